"""A process that writes cells is killed again and again: what the next one reads from disk is what reading anew gives."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from halo_weave.engines.base import Capture, PrefillResult, Prompt, Sampling, Segment
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine

LINES = [
    f"Line {i}: boat number {i * 7 % 97} is blue and has {i % 9 + 2} sails, and its captain is called Marta."
    for i in range(8)
]
ENDING = "Once more:\n" + "\n".join(LINES)  # a wrong cell makes what is copied from it a surprise
WINDOW, OTHER = "talk", "another"
ASIDE = 10**6  # a position beyond all others
ONE = Sampling(temperature=0.0, max_new_tokens=1)
EVICTED = 0.3  # share of the files that go before each round
LONGEST = 0.6  # seconds from the first file to the kill
TOLERANCE = 0.7  # nats a token: sums over cells in another order give up to 0.25, the cells of another line 1.6 to 2.5


@dataclass
class Killed:
    kills: int = 0
    torn: int = 0  # files that were not whole yet
    from_disk: int = 0  # readings that took cells from disk
    computed_anew: int = 0  # readings that found nothing to use
    errors: int = 0
    wrong: int = 0  # readings whose logits were not those of an exact reading
    worst: float = 0.0  # difference of a token's surprisal, nats


def drill(model: Path, kills: int, *, seed: int = 7) -> dict[str, float]:
    """So many kills, each on the files that the ones before left."""
    rng, told = random.Random(seed), Killed()
    with tempfile.TemporaryDirectory() as folder:
        cells = Path(folder) / "cells"
        with LlamaEngine(model) as engine:
            exact = _surprisal(engine, told)
        assert exact is not None
        for _ in range(kills):
            _write_until_killed(model, cells, rng)
            told.kills += 1
            told.torn += sum(1 for _ in cells.rglob("*.partial"))
            with LlamaEngine(model, limits=_limits(cells)) as engine:
                found = _surprisal(engine, told, count=True)
                assert engine.disk is not None
                engine.disk.close()
                engine.disk = None  # only what was killed leaves files behind
            if found is None:
                told.errors += 1
                continue
            difference = float(np.abs(found - exact).max())
            told.worst = max(told.worst, round(difference, 5))
            told.wrong += difference > TOLERANCE
    return asdict(told)


def _limits(cells: Path) -> EngineLimits:
    """Two windows never fit together, so that each turn writes a whole one."""
    return EngineLimits(cells=cells, memory_bytes=1, context=2048)


def _prompt(engine: LlamaEngine, asleep: set[int], *, ending: bool = False) -> Prompt:
    segments, start = [], 0
    for number, line in enumerate([*LINES, ENDING]):
        ids = engine.tokenize(f"{line}\n").ids
        if number not in asleep and (number < len(LINES) or ending):
            segments.append(Segment("chunk", np.arange(start, start + len(ids)), ids))
            first = start
        start += len(ids)
    if asleep:  # the last token of a prompt is always computed: here one that no other prompt has
        segments.append(Segment("chunk", np.array([ASIDE]), ids[-1:]))
    return Prompt(segments, start, first)


def _surprisal(engine: LlamaEngine, told: Killed, *, count: bool = False) -> np.ndarray | None:
    """Of the ending, which depends on everything before it."""
    capture = Capture(reply=False, reading_surprisal=True)
    for event in engine.generate(WINDOW, _prompt(engine, set(), ending=True), ONE, capture):
        if isinstance(event, PrefillResult):
            told.from_disk += count and event.reused + event.restored > 0
            told.computed_anew += count and event.reused + event.restored == 0
            return event.surprisal
    return None


def _write_until_killed(model: Path, cells: Path, rng: random.Random) -> None:
    command = [sys.executable, "-m", "benchmarks.cell_kills", str(model), str(cells), str(rng.random())]
    before = _written(cells)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()  # it has read everything and begins to write
            end = time.monotonic() + 20
            while _written(cells) == before and time.monotonic() < end:
                time.sleep(0.001)
            if rng.random() < 0.5:  # in the middle of a file
                while not any(cells.rglob("*.partial")) and time.monotonic() < end:
                    pass
            else:
                time.sleep(rng.uniform(0, LONGEST))
        finally:
            process.send_signal(signal.SIGKILL)


def _written(cells: Path) -> list[tuple[str, int]]:
    """The files that are there, and when they were written. They come and go meanwhile."""
    found = []
    for path in cells.rglob("*.cells"):
        with suppress(FileNotFoundError):
            found.append((path.name, path.stat().st_mtime_ns))
    return sorted(found)


def _write_for_ever(model: Path, cells: Path, seed: float) -> None:
    """A conversation whose parts fall asleep and wake up, in turn with another one."""
    rng = random.Random(seed)
    with LlamaEngine(model, limits=_limits(cells)) as engine:
        list(engine.generate(WINDOW, _prompt(engine, set()), ONE, None))
        print("go", flush=True)
        while True:
            for path in cells.rglob(
                "*.cells"
            ):  # as if others had taken its room, so that it is written again
                if rng.random() < EVICTED:
                    path.unlink(missing_ok=True)
            asleep = {rng.randrange(1, len(LINES))}
            list(engine.generate(WINDOW, _prompt(engine, asleep), ONE, None))
            list(engine.generate(OTHER, _prompt(engine, {0, 1, 2, 3}), ONE, None))
            list(engine.generate(WINDOW, _prompt(engine, set()), ONE, None))


if __name__ == "__main__":
    _write_for_ever(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
