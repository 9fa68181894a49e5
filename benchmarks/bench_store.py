"""What the store costs with 100,000 and with 1,000,000 tokens in memory, 30,000 of them live."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.store.records import ChunkMove
from halo_weave.store.sqlite import SqliteStore

CHUNK = 70  # tokens, between the 64 of the rule and the 80 that paragraphs tend to have
LIVE = 30_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PIECES = [
    (word if i % 3 else " " + word).encode()
    for i, word in enumerate(
        [
            "the",
            "of",
            "and",
            "memory",
            "bright",
            "token",
            "sleep",
            "wake",
            "window",
            "river",
            "stone",
            "letter",
            "music",
            "garden",
            "number",
            "seven",
            "because",
            "under",
            "light",
            "house",
            "winter",
            "train",
            "question",
            "answer",
            "river-side",
            "morning",
            "paper",
            "thought",
            "quiet",
            "engine",
        ]
    )
]


def turn(
    rng: np.random.Generator, turn_id: int, role: Role, start: int, answers: int | None, chunks: int
) -> list[LiveChunk]:
    """A turn of a few chunks, each of tokens that look like words."""
    said = []
    for chunk_id in range(chunks):
        ids = rng.integers(0, 49_152, CHUNK)
        tokens = Tokens.of(ids, [PIECES[i] for i in rng.integers(0, len(PIECES), CHUNK)])
        chunk = Chunk(ChunkKey(turn_id, chunk_id, role), start + chunk_id * CHUNK, tokens, answers)
        said.append(LiveChunk(chunk, np.full(CHUNK, 10_000, np.float32)))
    return said


class Memory:
    """A memory of a given size, filled by the product's own calls."""

    def __init__(self, path: Path, tokens: int) -> None:
        self.store = SqliteStore(path)
        self.rng = np.random.default_rng(7)
        self.window = self.store.create_window("bench", now=NOW).id
        self.tokens = 0
        self.store.begin_generation("bench", 384, now=NOW)
        while self.tokens < tokens - LIVE:
            self.say(asleep=True)
        # What is live is scattered: half was said last, half woke up from all over the past.
        while self.tokens < tokens:
            self.say()
        live = self.store.live(self.window)
        self.prune(list(live[::2]))
        total = self.store.graveyard(self.window, limit=0).total
        wake = np.linspace(0, total - 1, LIVE // CHUNK - len(live[1::2])).astype(int)
        for at in reversed(wake.tolist()):
            (item,) = self.store.graveyard(self.window, offset=at, limit=1, descending=False).items
            self.wake([(item.key, item.brightness)])

    def say(self, *, asleep: bool = False) -> None:
        ids = self.store.reserve(5 * CHUNK + 1)
        self.store.append(
            self.window,
            turn(self.rng, ids.user_turn, Role.USER, ids.start, None, 1),
            tokenizer="bench",
            now=NOW,
            asleep=asleep,
        )
        answer = turn(self.rng, ids.assistant_turn, Role.ASSISTANT, ids.start + CHUNK, ids.user_turn, 4)
        self.store.append(self.window, answer, tokenizer="bench", now=NOW, asleep=asleep)
        self.tokens += 5 * CHUNK

    def prune(self, live: list[LiveChunk]) -> None:
        reason = {"why": "dimmest", "rivals": 12}
        asleep = [ChunkMove(item.chunk.key, item.brightness, reason) for item in live]
        self.store.prune(self.window, asleep, now=NOW)

    def wake(self, chunks: list[tuple[ChunkKey, np.ndarray]]) -> None:
        reason = {"part": "hit", "similarity": 0.61, "words": ["river"]}
        self.store.resurrect(self.window, [ChunkMove(key, bright, reason) for key, bright in chunks], now=NOW)

    def embed(self) -> None:
        """A vector for every chunk, as large as MiniLM's."""
        (generation,) = self.store.generations()
        while len((wanted := self.store.wanted(generation.id, 1000)).numbers):
            vectors = self.rng.normal(size=(len(wanted.numbers), generation.dimension)).astype(np.float32)
            self.store.add_vectors(generation.id, wanted, vectors)

    def weigh(self) -> float:
        """Bytes of the file for each token in it, without the log."""
        copy = self.store.path.with_suffix(".copy")
        self.store.backup(copy)
        size = copy.stat().st_size
        copy.unlink()
        return round(size / self.store.stats().tokens, 1)


def timed(step: Callable[[], object]) -> float:
    begin = time.perf_counter()
    step()
    return (time.perf_counter() - begin) * 1e3


def measure(memories: dict[str, Memory], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Each operation on each memory in turn, so that a busy machine weighs on both alike."""
    times: dict[str, dict[str, list[float]]] = {}

    def note(operation: str, size: str, spent: float) -> None:
        times.setdefault(operation, {}).setdefault(size, []).append(spent)

    for _ in range(rounds):
        for size, memory in memories.items():
            store, window = memory.store, memory.window
            note("live", size, timed(lambda: store.live(window)))  # noqa: B023
            live = store.live(window)
            chunks = [item.chunk for item in live]
            brightness = np.concatenate([item.brightness for item in live]) - 1
            note("save_brightness", size, timed(lambda: store.save_brightness(window, chunks, brightness)))  # noqa: B023
            one = live[int(memory.rng.integers(len(live)))]
            note("prune", size, timed(lambda: memory.prune([one])))  # noqa: B023
            note("resurrect", size, timed(lambda: memory.wake([(one.chunk.key, one.brightness)])))  # noqa: B023
            note("reserve", size, timed(lambda: store.reserve(500)))  # noqa: B023
            ids = store.reserve(CHUNK)
            said = turn(memory.rng, ids.user_turn, Role.USER, ids.start, None, 1)
            note(
                "append",
                size,
                timed(lambda: store.append(window, said, tokenizer="bench", now=NOW)),  # noqa: B023
            )
            memory.prune(said)  # the live set stays as large as it was
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=150)
    options = parser.parse_args()
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-store-"))
    try:
        memories = {}
        for size, tokens in (("100k", 100_000), ("1m", 1_000_000)):
            with console.status(f"Filling a memory with {tokens:,} tokens"):
                memories[size] = Memory(folder / f"{size}.sqlite", tokens)
        measure(memories, 5)
        times = measure(memories, options.rounds)
        middle = {
            name: {size: statistics.median(spent) for size, spent in by.items()} for name, by in times.items()
        }
        p95 = {name: float(np.percentile(by["1m"], 95)) for name, by in times.items()}
        result: dict[str, object] = {f"{name}_ms": round(by["1m"], 3) for name, by in middle.items()}
        result["p95_ms"] = {name: round(value, 3) for name, value in p95.items()}
        result["ratio_1m_100k"] = {name: round(by["1m"] / by["100k"], 2) for name, by in middle.items()}
        with console.status("Weighing the file"):
            result["bytes_per_token"] = memories["1m"].weigh()
            memories["1m"].embed()
            result["bytes_per_token_with_vectors"] = memories["1m"].weigh()
        result["live_tokens"] = sum(
            len(item.chunk) for item in memories["1m"].store.live(memories["1m"].window)
        )
        for memory in memories.values():
            memory.store.close()
    finally:
        shutil.rmtree(folder)
    table = Table("operation", "100k ms", "1M ms", "1M p95 ms", "ratio")
    for name, by in middle.items():
        table.add_row(
            name, f"{by['100k']:.3f}", f"{by['1m']:.3f}", f"{p95[name]:.3f}", f"{by['1m'] / by['100k']:.2f}"
        )
    (console if options.json else Console()).print(table)
    if options.json:
        json.dump(result, sys.stdout)
        print()


if __name__ == "__main__":
    main()
