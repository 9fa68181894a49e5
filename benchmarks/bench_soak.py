"""Twenty clients talk on five windows at once for a minute: no error, no mixed text, no lost turn."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

WORDS = ["amber", "birch", "copper", "delta", "ember", "fjord", "grove", "harbour", "iris", "juniper", "kelp"]


@dataclass
class Report:
    seconds: float = 0.0
    turns: int = 0
    tokens: int = 0
    busy: int = 0  # refused since the window was being written to
    resumed: int = 0  # streams broken off and taken up again
    abandoned: int = 0  # turns that nobody followed to their end
    errors: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    heard_ms: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        told = asdict(self)
        times = sorted(told.pop("heard_ms")) or [0.0]
        told["heard_ms_median"] = round(statistics.median(times), 1)
        told["heard_ms_p99"] = round(times[int(len(times) * 0.99)], 1)
        for name in ("errors", "mixed", "lost"):
            told[f"first_{name}"] = told[name][:3]
            told[name] = len(told[name])
        return told


@dataclass(frozen=True)
class Said:
    window: str
    turn: str
    reply_turn: str
    text: str


class Client:
    """Speaks to one window after the other, breaks off streams and takes them up again, and checks what it hears."""

    def __init__(
        self, number: int, address: str, windows: list[str], report: Report, lock: threading.Lock
    ) -> None:
        self.number, self.windows, self.report, self.lock = number, windows, report, lock
        self.chance = random.Random(number)
        self.http = httpx.Client(base_url=address, timeout=60)
        self.said: list[Said] = []

    def run(self, until: float) -> None:
        spoken = 0
        with self.http:
            while time.monotonic() < until:
                window = self.chance.choice(self.windows)
                words = " ".join(self.chance.choices(WORDS, k=6))
                try:
                    spoken += self.speak(window, f"client {self.number} message {spoken}: {words}.")
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self.note("errors", f"client {self.number}: {error!r}")

    def speak(self, window: str, text: str) -> bool:
        began = time.monotonic()
        answer = self.http.post(f"/api/windows/{window}/messages", json={"text": text})
        if answer.status_code == 409:
            with self.lock:
                self.report.busy += 1
            time.sleep(self.chance.uniform(0.01, 0.1))
            return False
        if answer.status_code != 202:
            self.note("errors", f"say gave {answer.status_code}: {answer.text}")
            return False
        told = answer.json()
        with self.lock:
            self.report.turns += 1
            self.report.heard_ms.append((time.monotonic() - began) * 1e3)
        self.said.append(Said(window, told["turn_id"], told["reply_turn_id"], text))
        if self.chance.random() < 0.1:
            with self.lock:
                self.report.abandoned += 1
            return True
        self.listen(self.said[-1], told["last_event"])
        return True

    def listen(self, said: Said, last: str) -> None:
        """The events of a turn, with breaks; every token of this turn once, and none of another."""
        pieces: dict[int, str] = {}
        while True:
            stop_after = self.chance.choice([3, 10, 10_000])
            with self.events(said.window, last) as events:
                for i, (number, name, data) in enumerate(events):
                    last = number
                    if name == "message_stored" and data["turn_id"] != said.turn:
                        self.note("mixed", f"turn {data['turn_id']} was told in the place of {said.turn}")
                    if name == "token":
                        if int(data["position"]) in pieces:
                            self.note("mixed", f"position {data['position']} came twice")
                        pieces[int(data["position"])] = data["text"]
                    if name in {"failed", "reset"}:
                        self.note("errors", f"{name} in turn {said.turn}: {data}")
                        return
                    if name == "reply_stored" and data["turn_id"] != said.reply_turn:
                        self.note("mixed", f"reply {data['turn_id']} came in the place of {said.reply_turn}")
                    if name == "done":
                        self.check(said, "".join(pieces[place] for place in sorted(pieces)))
                        with self.lock:
                            self.report.tokens += len(pieces)
                        return
                    if i == stop_after:
                        break
                else:
                    self.note("errors", f"the stream of turn {said.turn} ended early")
                    return
            with self.lock:
                self.report.resumed += 1

    def check(self, said: Said, reply: str) -> None:
        if said.text not in reply:
            self.note("mixed", f"{said.text!r} was answered by {reply!r}")

    @contextmanager
    def events(self, window: str, last: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
        with self.http.stream(
            "GET", f"/api/windows/{window}/events", headers={"last-event-id": last}
        ) as response:
            response.raise_for_status()
            yield told(response.iter_lines())

    def note(self, kind: str, sentence: str) -> None:
        with self.lock:
            getattr(self.report, kind).append(sentence)


def told(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    """(id, name, data) of each event."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def soak(address: str, seconds: float, *, clients: int = 20, windows: int = 5) -> Report:
    """The scripted engine repeats what it is asked, so every reply shows whose it is."""
    report, lock = Report(), threading.Lock()
    began = time.monotonic()
    with httpx.Client(base_url=address, timeout=60) as http:
        about = {"max_context_tokens": 600, "tool_rounds": 0, "min_chunk_tokens": 16}
        rooms = [
            http.post("/api/windows", json={"name": f"Soak {i}", "settings": about}).json()["id"]
            for i in range(windows)
        ]
        crowd = [Client(i, address, rooms, report, lock) for i in range(clients)]
        threads = [threading.Thread(target=client.run, args=(began + seconds,)) for client in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while http.get("/api/status").json()["generating"]:
            time.sleep(0.05)
        report.seconds = round(time.monotonic() - began, 1)
        stored = turns_stored(http)
    for said in (one for client in crowd for one in client.said):
        if stored.get(said.turn) != said.text:
            report.lost.append(
                f"turn {said.turn} was {said.text!r} and is stored as {stored.get(said.turn)!r}"
            )
        if said.text not in stored.get(said.reply_turn, ""):
            report.lost.append(
                f"the reply {said.reply_turn} to {said.text!r} is {stored.get(said.reply_turn)!r}"
            )
    return report


def turns_stored(http: httpx.Client) -> dict[str, str]:
    """The text of every turn, as an export has it."""
    exported = http.get("/api/export").json()
    return {turn["turn"]: "".join(chunk["text"] for chunk in turn["chunks"]) for turn in exported["turns"]}


def main() -> None:
    import tests.fakes
    from halo_weave.app import Options, build_weave
    from halo_weave.server.http_server import serve_in_thread
    from halo_weave.server.service import Service

    assert tests.fakes  # adds the engine `scripted`

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = Service(lambda progress: build_weave(Options(data=Path(folder), engine="scripted")))
        with serve_in_thread(service) as address:
            service.begin().join()
            print(f"{asked.clients} clients, {asked.windows} windows, {asked.seconds:g} s", file=sys.stderr)
            report = soak(address, asked.seconds, clients=asked.clients, windows=asked.windows)
    figures = report.figures()
    if asked.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:16} {value}")
    sys.exit(bool(figures["errors"] or figures["mixed"] or figures["lost"]))


if __name__ == "__main__":
    main()
