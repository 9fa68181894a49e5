"""Servers for the drill, each in a process of its own that can be killed.

One process makes them, a new one for each line it reads, without the time it takes to start Python.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

WORDS = [
    "amber",
    "birch",
    "copper",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbour",
    "iris",
    "juniper",
    "kelp",
    "lantern",
    "moss",
    "northern",
    "otter",
]
CALL = """<tool>jq '.count = 1' notes.json > output</tool>"""


@dataclass
class Running:
    """A server in a process of its own."""

    address: str
    pid: int
    killed: float = 0.0

    def kill(self) -> float:
        """Once; its parent waits for it, so that until then the number is its own. Returns when that was."""
        if not self.killed:
            self.killed = time.monotonic()
            os.kill(self.pid, signal.SIGKILL)
        return self.killed


@dataclass
class Servers:
    """Servers on one memory after the other, each in a process of its own."""

    engine: str
    model: str | None
    log: Path

    def __post_init__(self) -> None:
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fault_servers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def running(
        self,
        folder: Path,
        manner: str = "steady",
        *,
        files: int = 0,
        model: str | None = None,
        store: str | None = None,
    ) -> Iterator[Running]:
        """A server that is killed at the latest when the block ends. `store`: the memory's address, if it is not in the folder."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        order = {"folder": str(folder), "engine": self.engine, "manner": manner, "files": files}
        order |= {"log": str(self.log), "model": model or self.model, "store": store}
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()
        told = self._nursery.stdout.readline().split()
        if len(told) != 2:
            raise RuntimeError(f"The server did not start: {self.log.read_text()[-2000:]}")
        server = Running(told[1], int(told[0]))
        try:
            yield server
        finally:
            server.kill()
            self._nursery.stdout.readline()

    def close(self) -> None:
        self._nursery.communicate()


def nursery() -> None:
    from halo_weave import app as assembling
    from halo_weave.app import Options, build_weave
    from halo_weave.core.retrieval_heads import Calibration
    from halo_weave.server.http_server import serve_in_thread
    from halo_weave.server.service import Service
    from tests.fakes import ScriptedEngine

    # Each fault has a memory of its own, and calibrating the model for each would take minutes.
    setattr(assembling, "calibrate_engine", lambda *_: Calibration())  # noqa: B010
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            if order["files"]:
                import resource

                resource.setrlimit(resource.RLIMIT_NOFILE, (order["files"], order["files"]))
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            options = Options(
                data=Path(order["folder"]),
                store=order["store"],
                engine=order["engine"],
                model=order["model"],
                embedder=None if order["engine"] == "scripted" else "off",
            )
            weave = build_weave(options)
            if isinstance(weave.engine, ScriptedEngine):
                _script(weave.engine, order["manner"])
            service = Service(partial(_ready, weave))
            service.begin().join()
            with serve_in_thread(service) as address:
                os.write(1, f"{os.getpid()} {address}\n".encode())
                threading.Event().wait()
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


def _ready(weave: Any, progress: object) -> Any:
    return weave


def _script(engine: Any, manner: str) -> None:
    """How the scripted engine speaks: `random`, `steady`, or with a long pause after some `words` or a `tool`'s answer.

    As an `echo`, it repeats what it was asked.
    """
    rng = random.Random()
    tokens = 0

    def pause() -> None:
        nonlocal tokens
        tokens += 1
        time.sleep(rng.uniform(0.001, 0.02))
        if manner == "random" and rng.random() < 0.03:
            time.sleep(0.4)
        if manner == "words" and tokens == 15:
            time.sleep(3600)

    def answer(prompt: str) -> str:
        nonlocal tokens
        if manner == "tool" and tokens:  # the tool has answered
            time.sleep(3600)
        text = " ".join(rng.choices(WORDS, k=40))
        called = manner == "tool" or (manner == "random" and rng.random() < 0.2)
        return f"{text} {CALL}" if called else text

    engine.pause = pause
    if manner != "echo":
        engine.answer = answer


if __name__ == "__main__":
    nursery()
