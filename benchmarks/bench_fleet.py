"""Three servers on one PostgreSQL memory, killed one after the other while thirty clients talk; the database is restarted, too."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.database import Server, postgres_server
from benchmarks.fault_servers import WORDS, Running, Servers
from benchmarks.fault_witness import events
from halo_weave.app import open_store
from halo_weave.core.tokens import Role
from halo_weave.store.sql_store import SqlStore

SETTINGS = {
    "max_context_tokens": 600,
    "memory_scope": "window",
    "min_chunk_tokens": 16,
    "tool_rounds": 0,
    "timestamps": False,
}
PATIENCE = 30.0  # seconds for all servers to answer again after the last fault


@dataclass
class Told:
    """A message that a server acknowledged, and what came of its reply."""

    window: str
    turn: int
    reply_turn: int
    text: str
    at: float
    shown: list[str] = field(default_factory=list)
    whole: bool = False  # it was told that all of the reply is stored


class Slot:
    """A place for a server: when it is killed, another one is started there."""

    def __init__(self, servers: Servers, folder: Path, address: str) -> None:
        self._servers, self._folder, self._store = servers, folder, address
        self.server: Running | None = None
        self.starts = self.failed_starts = 0
        self._kill, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        self._kill.set()

    def end(self) -> None:
        self._ending.set()
        self._kill.set()
        self._thread.join()
        self._servers.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with self._servers.running(self._folder, "echo", store=self._store) as server:
                    self.server, self.starts = server, self.starts + 1
                    self._kill.wait()
                    self.server = None
                    server.kill()
            except RuntimeError:  # the database was away when it started
                self.failed_starts += 1
                time.sleep(0.5)
            if not self._ending.is_set():
                self._kill.clear()


class Client:
    """Speaks to any server and any window. Every message is another one, also after a failure."""

    def __init__(self, number: int, slots: list[Slot], windows: list[str]) -> None:
        self.number, self.slots, self.windows = number, slots, windows
        self.chance = random.Random(number)
        self.told: list[Told] = []
        self.answers = Counter[str]()  # what came instead of a reply
        self.wrong: list[str] = []  # answers that are no sentence

    def run(self, until: float) -> None:
        spoken = 0
        while time.monotonic() < until:
            server = self.chance.choice(self.slots).server
            if server is None:
                time.sleep(0.05)
                continue
            spoken += 1
            words = " ".join(self.chance.choices(WORDS, k=6))
            text = f"client {self.number} message {spoken}: {words}."
            try:
                # One without certificates: reading them costs more than a turn.
                with httpx.Client(base_url=server.address, timeout=30, verify=False) as http:
                    self._speak(http, self.chance.choice(self.windows), text)
            except httpx.HTTPError:
                self.answers["line broken"] += 1
                time.sleep(0.1)

    def _speak(self, http: httpx.Client, window: str, text: str) -> None:
        answer = http.post(f"/api/windows/{window}/messages", json={"text": text})
        if answer.status_code != 202:
            self._refused(answer)
            time.sleep(self.chance.uniform(0.1, 0.4))
            return
        told = answer.json()
        one = Told(window, int(told["turn_id"]), int(told["reply_turn_id"]), text, time.monotonic())
        self.told.append(one)
        after = {"after": told["last_event"]}
        with http.stream("GET", f"/api/windows/{window}/events", params=after) as stream:
            for name, data in events(stream.iter_lines()):
                if name == "token":
                    one.shown.append(data["text"])
                elif name == "reply_stored" and int(data["turn_id"]) == one.reply_turn:
                    one.whole = True
                elif name == "failed":
                    self.answers["reply failed"] += 1
                    if not data["message"].endswith("."):
                        self.wrong.append(f"failed: {data}")
                    return
                elif name == "done":
                    return

    def _refused(self, answer: httpx.Response) -> None:
        with suppress(ValueError, KeyError, TypeError):
            problem = answer.json()["error"]
            self.answers[f"{answer.status_code} {problem['code']}"] += 1
            if answer.status_code in {409, 503} and problem["message"].rstrip().endswith("."):
                return
        self.wrong.append(f"{answer.status_code}: {answer.text[:300]}")


def drill(
    server: Server,
    seconds: float,
    *,
    servers: int = 3,
    clients: int = 30,
    windows: int = 10,
    kill_every: float = 20.0,
    away: float = 3.0,
) -> dict[str, Any]:
    """`away`: seconds for which the database is gone, in the middle."""
    address = server.address(server.new())
    with tempfile.TemporaryDirectory(prefix="halo-fleet-") as place:
        root = Path(place)
        slots = []
        for number in range(servers):
            (root / str(number)).mkdir()
            nursery = Servers("scripted", None, root / f"log {number}")
            slots.append(Slot(nursery, root / str(number), address))
        try:
            return _talked(server, address, slots, seconds, clients, windows, kill_every, away)
        finally:
            for slot in slots:
                slot.end()


def _talked(
    server: Server,
    address: str,
    slots: list[Slot],
    seconds: float,
    clients: int,
    windows: int,
    kill_every: float,
    away: float,
) -> dict[str, Any]:
    _all_ready(slots)
    rooms = []
    with httpx.Client(base_url=slots[0].server.address, timeout=60) as http:  # type: ignore[union-attr]
        for number in range(windows):
            about = {"name": f"Window {number}", "settings": SETTINGS}
            rooms.append(http.post("/api/windows", json=about).json()["id"])
    began = time.monotonic()
    crowd = [Client(number, slots, rooms) for number in range(clients)]
    talks = [threading.Thread(target=client.run, args=(began + seconds,)) for client in crowd]
    for talk in talks:
        talk.start()
    kills, back, unready = 0, 0.0, (0, "")
    while time.monotonic() < began + seconds:
        time.sleep(0.05)
        if not back and time.monotonic() > began + seconds / 2:
            server.stop()
            time.sleep(away)
            unready = _readiness(random.choice(slots)) if away >= 1 else unready
            server.start()
            back = time.monotonic()
        if time.monotonic() > began + (kills + 1) * kill_every:
            slots[kills % len(slots)].kill()
            kills += 1
    for talk in talks:
        talk.join()
    recovered = _all_ready(slots)
    told = [one for client in crowd for one in client.told]
    with httpx.Client(
        timeout=60, verify=False
    ) as http:  # each server answers in each window, without having been touched
        answering = sum(_answers(http, slot, room) for slot in slots for room in rooms)
    with open_store(address) as store:
        return {
            "seconds": round(time.monotonic() - began, 1),
            "servers": len(slots),
            "clients": clients,
            "windows": windows,
            "kills": kills,
            "database_restarts": int(bool(back)),
            "without_database": f"{unready[0]} {unready[1]}",
            "answering_at_the_end": f"{answering} of {len(slots) * len(rooms)}",
            "acknowledged": len(told),
            "acknowledged_after_restart": sum(one.at > back for one in told),
            "whole_replies": sum(one.whole for one in told),
            **_compared(store, told),
            "wrong_answers": sum(len(client.wrong) for client in crowd),
            "first_wrong": [sentence for client in crowd for sentence in client.wrong][:3],
            "refusals": dict(sum((client.answers for client in crowd), Counter[str]())),
            "ready_again_s": round(recovered, 1),
            "unsound": [finding.sentence for finding in store.verify()],
        }


def _compared(store: SqlStore, told: list[Told]) -> dict[str, Any]:
    """What clients were told, against what is stored."""
    lost, mixed, aside = [], [], 0
    for window in {one.window for one in told}:
        branch = {turn.id for turn in store.branch(window)}
        aside += sum(one.turn not in branch for one in told if one.window == window)
    texts = Counter[str]()
    replies = 0
    for record in store.windows():
        for turn in store.branch(record.id):
            text = _text(store, turn.id)
            if turn.role is Role.USER:
                texts[text] += 1
            else:
                replies += 1
                asked = _text(store, turn.answers or 0)
                if not f"You said: {asked}".startswith(text):
                    mixed.append(f"{asked!r} was answered by {text!r}")
    for one in told:
        if _text(store, one.turn) != one.text:
            lost.append(f"turn {one.turn} {one.text!r}")
        if one.whole and _text(store, one.reply_turn) != "".join(one.shown):
            lost.append(f"reply {one.reply_turn} to {one.text!r}")
    return {
        "stored_messages": texts.total(),
        "stored_replies": replies,
        "lost": len(lost),
        "first_lost": lost[:3],
        "doubled": sum(count - 1 for text, count in texts.items() if text.startswith("client ")),
        "mixed": len(mixed),
        "first_mixed": mixed[:3],
        "set_aside": aside,
    }


def _text(store: SqlStore, turn: int) -> str:
    return b"".join(one.chunk.tokens.raw for one in store.turn(turn)).decode(errors="replace")


def _answers(http: httpx.Client, slot: Slot, window: str) -> bool:
    """Whether a server takes a message for a window, once the one before is answered."""
    assert slot.server is not None
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        say = f"{slot.server.address}/api/windows/{window}/messages"
        if http.post(say, json={"text": "Is all well?"}).status_code == 202:
            return True
        time.sleep(0.1)
    return False


def _readiness(slot: Slot) -> tuple[int, str]:
    with suppress(httpx.HTTPError):
        if slot.server is not None:
            answer = httpx.get(f"{slot.server.address}/readyz", timeout=30, verify=False)
            return answer.status_code, answer.text.strip()
    return 0, ""


def _all_ready(slots: list[Slot]) -> float:
    """Seconds until every server can answer."""
    began = time.monotonic()
    while not all(_readiness(slot)[0] == 200 for slot in slots):
        if time.monotonic() > began + PATIENCE + 60:
            raise RuntimeError(f"Not all servers answer: {[_readiness(slot) for slot in slots]}")
        time.sleep(0.1)
    return time.monotonic() - began


def failed(report: dict[str, Any]) -> bool:
    wrong = ("lost", "doubled", "mixed", "set_aside", "wrong_answers", "unsound")
    answering, _, all_of_them = report["answering_at_the_end"].partition(" of ")
    return any(report[name] for name in wrong) or answering != all_of_them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--kill-every", type=float, default=20, help="Seconds.")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with postgres_server() as server:
        report = drill(
            server,
            asked.minutes * 60,
            servers=asked.servers,
            clients=asked.clients,
            windows=asked.windows,
            kill_every=asked.kill_every,
        )
    if asked.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:27} {value}")
    sys.exit(failed(report))


if __name__ == "__main__":
    main()
