"""The server is killed, starved and locked out while it replies: nothing acknowledged or shown is lost."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.database import postgres_server
from benchmarks.fault_servers import WORDS, Servers
from benchmarks.fault_witness import GRACE, Witness, now, rooms
from halo_weave.app import open_store
from halo_weave.paths import memory_file
from halo_weave.store.sqlite import SqliteStore

Report = dict[str, Any]


# Kills


def kills(
    servers: Servers, folder: Path, count: int, windows: int, address: str | None, grace: float
) -> Report:
    """Servers killed at a random moment while several windows are replied to, all on one memory."""
    rng = random.Random(7)
    witness = Witness(grace=grace)
    unsound = lost = unseen = 0
    for _ in range(count):
        with servers.running(folder, "random", store=address) as server:
            talks = [
                threading.Thread(target=witness.talk, args=(server.address, window))
                for window in rooms(server.address, windows)
            ]
            for talk in talks:
                talk.start()
            _until(partial(witness.has_seen, witness.tokens + rng.randrange(20 * windows)), 20)
            time.sleep(rng.uniform(0.0, 0.3))
            killed = server.kill()
            for talk in talks:
                talk.join()
        witness.settle(killed)
        with open_store(address or folder) as store:
            unsound += bool(store.verify())
            lost, unseen = map(max, (lost, unseen), witness.missing(store))
    with servers.running(folder, store=address):  # what was unfinished becomes turns
        pass
    with open_store(address or folder) as store:
        lost, unseen = map(max, (lost, unseen), witness.missing(store))
    return {
        "kills": count,
        "turns": len(witness.said),
        "shown_tokens": witness.tokens,
        "acknowledged_lost": lost,
        "shown_lost": unseen,
        "unsound_files": unsound,
    }


# Faults: each returns what was lost, or nothing


def killed_while(manner: str) -> Callable[[Servers, Path], str]:
    """The engine falls silent in the middle of a reply, and then the process is killed."""

    def fault(servers: Servers, folder: Path) -> str:
        witness = Witness()
        with servers.running(folder, manner) as server:
            talk = threading.Thread(target=witness.talk, args=(server.address, *rooms(server.address, 1)))
            talk.start()
            _until(lambda: any(one.shown for one in witness.replies.values()))
            (reply,) = witness.replies.values()
            seen = -1
            while len(reply.shown) > seen:
                seen = len(reply.shown)
                time.sleep(0.6)
            killed = server.kill()
        talk.join()
        witness.settle(killed)
        return _compared(witness, folder)

    return fault


def database_locked(servers: Servers, folder: Path) -> str:
    """Another process holds the memory longer than the store waits, from the middle of a reply on."""
    with _in_the_middle(servers, folder) as (witness, talk, address, window):
        with closing(sqlite3.connect(memory_file(folder), isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            problem = _unstored(address, window, talk)
            holder.execute("ROLLBACK")
        talk.join(60)
        return problem or _compared(witness, folder)


def disk_full(servers: Servers, folder: Path) -> str:
    """The disk is full from the middle of a reply on, and free again later."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        return "skipped: a small file system can be mounted by root only"
    try:
        with _in_the_middle(servers, folder) as (witness, talk, address, window):
            filler = folder / "filler"
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass
            problem = _unstored(address, window, talk)
            filler.unlink()
            talk.join(60)
            return problem or _compared(witness, folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def memory_replaced(servers: Servers, folder: Path) -> str:
    """The memory's file is replaced by another while a reply comes, and put back: no turn is acknowledged meanwhile."""
    with _in_the_middle(servers, folder) as (witness, talk, address, window):
        path, aside = memory_file(folder), folder / "aside"
        aside.mkdir()
        for file in path.parent.glob(f"{path.name}*"):
            file.rename(aside / file.name)
        SqliteStore(path).close()
        talk.join(5)
        noticed = bool(
            httpx.get(f"{address}/api/windows/{window}/context", timeout=60).json().get("reply_not_stored")
        )
        status = httpx.post(
            f"{address}/api/windows/{window}/messages", json={"text": "Anybody there?"}, timeout=60
        ).status_code
        if status == 202 and not noticed:
            return "skipped: this version does not notice that its file was replaced"
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        for file in aside.iterdir():
            file.rename(path.parent / file.name)
        talk.join(60)
        return _compared(witness, folder)


def descriptors(servers: Servers, folder: Path) -> str:
    """260 idle connections where 200 files may be open."""
    before = servers.log.stat().st_size if servers.log.exists() else 0
    witness = Witness()
    with servers.running(folder, files=200) as server, ExitStack() as stack:
        host, _, port = server.address.removeprefix("http://").partition(":")
        (window,) = rooms(server.address, 1)
        for _ in range(260):
            stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=30)))
        witness.talk(server.address, window, turns=1)
        witness.settle(time.monotonic())
        if not witness.said or not all(one.acknowledged for one in witness.replies.values()):
            return "no answer came while idle connections were open"
    written = servers.log.stat().st_size - before if servers.log.exists() else 0
    if written > 10_000:
        return f"{written} bytes of log"
    return _compared(witness, folder)


def killed_import(servers: Servers, folder: Path) -> str:
    """The server is killed while it takes a file in; after that the file can be imported whole."""
    turns = 2000
    with servers.running(folder / "source") as server:
        (window,) = rooms(server.address, 1)
        with SqliteStore(memory_file(folder / "source")) as store:
            _fill(store, window, turns)
        file = httpx.get(f"{server.address}/api/export", timeout=120).content
    target = folder / "target"
    with servers.running(target) as server:
        sender = threading.Thread(target=_send, args=(server.address, file))
        sender.start()
        with SqliteStore(memory_file(target)) as store:
            _until(lambda: store.stats().turns > 0)
        server.kill()
        sender.join()
    with SqliteStore(memory_file(target)) as store:
        if store.verify():
            return "the memory is not sound after an import was killed"
    with servers.running(target) as server:
        _send(server.address, file)
    with SqliteStore(memory_file(target)) as store:
        found = store.stats().turns
        return "" if found == turns and not store.verify() else f"{found} of {turns} turns were imported"


def model_deleted(servers: Servers, folder: Path) -> str:
    """The model's file is deleted while it runs."""
    if servers.engine == "scripted" or servers.model is None:
        return "skipped: only with --engine llama"
    copy = folder / "model.gguf"
    shutil.copy(servers.model, copy)
    witness = Witness()
    with servers.running(folder, model=str(copy)) as server:
        (window,) = rooms(server.address, 1)
        talk = threading.Thread(target=lambda: witness.talk(server.address, window, turns=2))
        talk.start()
        _until(lambda: any(one.shown for one in witness.replies.values()))
        copy.unlink()
        talk.join(300)
        witness.settle(time.monotonic())
        if len(witness.replies) < 2 or not all(one.acknowledged for one in witness.replies.values()):
            return "replies did not go on"
    return _compared(witness, folder)


FAULTS: dict[str, Callable[[Servers, Path], str]] = {
    "model_pause": killed_while("words"),
    "tool_answer": killed_while("tool"),
    "database_locked": database_locked,
    "disk_full": disk_full,
    "memory_replaced": memory_replaced,
    "descriptors": descriptors,
    "killed_import": killed_import,
    "model_deleted": model_deleted,
}
SCRIPTED = {"model_pause", "tool_answer"}  # what the real model cannot be told to do


@contextmanager
def _in_the_middle(servers: Servers, folder: Path) -> Iterator[tuple[Witness, threading.Thread, str, str]]:
    """A server that is in the middle of its second reply."""
    witness = Witness()
    with servers.running(folder) as server:
        (window,) = rooms(server.address, 1)
        witness.talk(server.address, window, turns=1)
        talk = threading.Thread(target=lambda: witness.talk(server.address, window, turns=1))
        talk.start()
        _until(lambda: len(witness.replies) == 2 and len(max(witness.replies.items())[1].shown) > 4)
        yield witness, talk, server.address, window


def _unstored(address: str, window: str, talk: threading.Thread) -> str:
    """While the reply cannot be stored, the context shows all of it and says so, and a new message is refused."""
    with httpx.Client(base_url=address, timeout=60) as http:
        context: dict[str, Any] = {}

        def ended() -> bool:
            nonlocal context
            context = http.get(f"/api/windows/{window}/context").json()
            return bool(context["reply_not_stored"]) and context["generating"] is None

        if not _until(ended, 60):
            return "it was not told that the reply is not stored yet"
        answer = http.post(f"/api/windows/{window}/messages", json={"text": "More?"})
        return "" if answer.status_code == 409 else f"a new message was answered by {answer.status_code}"


def _compared(witness: Witness, folder: Path) -> str:
    witness.settle(time.monotonic() + GRACE)
    with SqliteStore(memory_file(folder)) as store:
        acknowledged, shown = witness.missing(store)
        if store.verify():
            return "the memory is not sound"
    return f"lost: {acknowledged} turns, {shown} tokens" if acknowledged or shown else ""


def _until(check: Callable[[], bool], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return False


def _send(address: str, file: bytes) -> None:
    with suppress(httpx.HTTPError):  # the server was killed
        httpx.post(f"{address}/api/import", content=file, timeout=120)


def _fill(store: SqliteStore, window: str, turns: int) -> None:
    import numpy as np

    from halo_weave.core.tokens import Role
    from halo_weave.core.working_set import LiveChunk, chunk_turn
    from tests.fakes.scripted_engine import ScriptedEngine

    engine = ScriptedEngine()
    for number in range(turns // 2):
        ids = store.reserve(200)
        for turn, role, start, answers in (
            (ids.user_turn, Role.USER, ids.start, None),
            (ids.assistant_turn, Role.ASSISTANT, ids.start + 100, ids.user_turn),
        ):
            tokens = engine.tokenize(f"{role} says {' '.join(WORDS)} {number}")
            live = [
                LiveChunk(chunk, np.full(len(chunk), 100, np.float32))
                for chunk in chunk_turn(tokens, turn, role, start, answers)
            ]
            store.append(window, live, tokenizer="scripted", now=now(), asleep=True)


def drill(
    count: int,
    *,
    windows: int = 3,
    engine: str = "scripted",
    model: str | None = None,
    only: list[str],
    address: str | None = None,
    grace: float = GRACE,
) -> Report:
    """All of it, in a folder of its own.

    `address`: of the memory for the kills, if it is not in a file. `grace`: seconds that what was shown then may be unsaved.
    """
    with tempfile.TemporaryDirectory(prefix="halo-faults-") as place:
        root = Path(place)
        servers = Servers(engine, model, root / "log")
        try:
            (root / "kills").mkdir()
            report: Report = {
                "engine": engine,
                **kills(servers, root / "kills", count, windows, address, grace),
            }
            faults = report["faults"] = {}
            for name, fault in FAULTS.items():
                if name not in only:
                    continue
                if engine != "scripted" and name in SCRIPTED:
                    faults[name] = "skipped: only with --engine scripted"
                    continue
                (root / name).mkdir()
                faults[name] = fault(servers, root / name) or "survived"
        finally:
            servers.close()
    return report


def failed(report: Report) -> bool:
    lost = any(report[name] for name in ("acknowledged_lost", "shown_lost", "unsound_files"))
    return lost or any(not told.startswith(("survived", "skipped")) for told in report["faults"].values())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--windows", type=int, default=3, help="Replied to at once.")
    options.add_argument("--engine", choices=["scripted", "llama"], default="scripted")
    options.add_argument("--model", help="A GGUF, for --engine llama.")
    options.add_argument(
        "--only", action="append", default=[], choices=list(FAULTS), help="One of the faults."
    )
    options.add_argument(
        "--store",
        choices=["sqlite", "postgres"],
        default="sqlite",
        help="Where the memory is; on postgres only the kills are drilled, since the faults are those of files.",
    )
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    model = chosen.model
    if chosen.engine == "llama" and model is None:
        from halo_weave.models import catalogue

        model = str(catalogue.ensure(catalogue.SMOLLM2_135M, lambda *_: None))
    about: Report = {"windows": chosen.windows, "engine": chosen.engine, "model": model}
    if chosen.store == "postgres":
        with postgres_server() as server:
            report = drill(chosen.kills, **about, only=[], address=server.address(server.new()))
    else:
        report = drill(chosen.kills, **about, only=chosen.only or [*FAULTS])
    report = {"store": chosen.store, **report}
    if chosen.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            if name != "faults":
                print(f"{name:20} {value}")
        for name, told in report["faults"].items():
            print(f"  {name:18} {told}")
    sys.exit(failed(report))


if __name__ == "__main__":
    main()
