"""Time from request to first token when nothing, something resident and something computed wakes up; our own share.

Between two turns the model has time to read ahead, as while a person reads and types. `typed` is `computed`, and `written`
is `nothing`, with a preview of the text before it is sent, as the page asks for one. `--against` measures an older version
in turn with this one; ratios are medians of pairs, and `written` is compared with its `nothing`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave, events
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.working_set import LiveChunk, chunk_turn
from halo_weave.engines.base import Engine
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.models import catalogue
from halo_weave.models.inventory import resolve
from halo_weave.search.embedding_worker import generation_name
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.store.sql_store import SqlStore

LIVE = 2_000
TRIES = 5
TURN_CHUNKS = 500  # chunks appended in one step
ONSETS = """
    b br c d dr f g gr h k l m n p pl r s st t tr v w
""".split()
RHYMES = [
    vowel + end
    for vowel in ["a", "e", "i", "o", "u", "ai", "ea", "oo"]
    for end in ("", "n", "r", "l", "s", "t", "m", "nd")
]
SYLLABLES = [onset + rhyme for onset in ONSETS for rhyme in RHYMES]
VOCABULARY = 20_000


class Prose:
    """Made-up words, some frequent and most of them rare, as in any language: searching costs what it costs in life."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        made = ("".join(pair) for pair in rng.choice(SYLLABLES, (2 * VOCABULARY, 2)))
        self.words = np.array(list(dict.fromkeys(made))[:VOCABULARY])
        weights = np.cumsum(1 / (np.arange(len(self.words)) + 2.7))
        self.below = weights / weights[-1]

    def __call__(self, count: int) -> str:
        return " ".join(self.words[np.searchsorted(self.below, self.rng.random(count))]) + ".\n\n"

    def topic(self) -> str:
        """Words that a few hundred to a few thousand of 100,000 chunks hold, as those of a question do."""
        return " ".join(self.rng.choice(self.words[60:3_000], 3))


def fill(store: SqlStore, engine: Engine, window: str, chunks: int, prose: Prose) -> list[ChunkKey]:
    """Turns of prose, stored as the product stores them; chunks of about 80 tokens."""
    keys: list[ChunkKey] = []
    while len(keys) < chunks:
        count = min(TURN_CHUNKS, chunks - len(keys))
        tokens = engine.tokenize("".join(prose(32) for _ in range(count)))
        ids = store.reserve(len(tokens))
        said = chunk_turn(tokens, ids.user_turn, Role.USER, ids.start)
        brightness = [LiveChunk(chunk, np.full(len(chunk), 9_000, np.float32)) for chunk in said]
        store.append(window, brightness, tokenizer=engine.info.tokenizer, now=datetime.now(UTC))
        keys += [chunk.key for chunk in said]
    return keys


@dataclass(frozen=True)
class Measured:
    first_token_ms: float
    stats: dict[str, float]
    reading: events.PrefillFinished
    woken: frozenset[ChunkKey]


def turn(weave: Weave, window: str, text: str) -> Measured:
    began = time.perf_counter()
    first, reading, woken = 0.0, None, frozenset[ChunkKey]()
    for event in weave.turns.steps(window, text):
        if isinstance(event, events.TokenGenerated) and not first:
            first = (time.perf_counter() - began) * 1e3
        elif isinstance(event, events.PrefillFinished):
            reading = event
        elif isinstance(event, events.ChunksResurrected):
            woken = frozenset(one.chunk.key for one in event.chunks)
        elif isinstance(event, events.TurnEnded):
            stats = dict(event.stats)
    assert reading is not None
    return Measured(first, stats, reading, woken)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench turn", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--chunks", type=int, help="chunks in memory; 100,000 by default")
    parser.add_argument("--rounds", type=int, help="turns for each case; 5 by default")
    parser.add_argument("--quick", action="store_true", help="2,000 chunks and 2 rounds")
    parser.add_argument("--model", help="a GGUF file or the name of a model; default: SmolLM2 135M")
    parser.add_argument("--against", help="a commit, or the folder of another checkout, to compare with")
    parser.add_argument("--pairs", type=int, default=3, help="how often both versions run; 3 by default")
    options = parser.parse_args()
    options.chunks = options.chunks or (2_000 if options.quick else 100_000)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.model = resolve(options.model) if options.model else catalogue.ensure(catalogue.SMOLLM2_135M)
    with other_version(options.against) as other:
        result = compared(other, options) if other else measured(options)
    if options.json:
        print(json.dumps(result))


def compared(other: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Both versions in turn, each in processes of its own, so that a machine that becomes slower is so for both.

    What the other version has no case for is compared with what its users had to wait.
    """
    here = Path(__file__).parents[1]
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    for number in range(options.pairs):
        pair = ((theirs, other), (ours, here))
        for found, tree in pair if number % 2 else pair[::-1]:
            print(f"pair {number + 1}: {'this version' if found is ours else tree}", file=sys.stderr)
            found.append(run_version(tree, options))
    now, before = ([one["first_token_ms"] for one in found] for found in (ours, theirs))
    for one in before:
        one.setdefault("written", one["nothing"])
        one.setdefault("typed", one["computed"])
    return ours[-1] | {
        "pairs": options.pairs,
        "first_token_ms": {case: round(statistics.median(one[case] for one in now), 1) for case in now[0]},
        "first_token_ms_before": {
            case: round(statistics.median(one[case] for one in before), 1) for case in now[0]
        },
        "first_token_ratio": {
            case: round(statistics.median(a[case] / b[case] for a, b in zip(now, before, strict=True)), 3)
            for case in now[0]
        },
    }


def measured(options: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings().changed({"max_context_tokens": LIVE, "max_new_tokens": 24, "temperature": 0})
        weave = build_weave(
            Options(data=Path(folder), model=options.model, settings=settings),
            progress=told,
        )
        try:
            return measure(weave, options.chunks, options.rounds, rng)
        finally:
            weave.close()


@contextmanager
def other_version(named: str | None) -> Iterator[Path | None]:
    """The folder of another checkout, with its attention callback built; of a commit for as long as it is needed."""
    if named is None or Path(named).is_dir():
        yield None if named is None else Path(named).resolve()
        return
    here = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", tree, named], cwd=here, check=True, stdout=2)
        try:
            source = next((tree / "halo_weave").rglob("_capture.c"))
            build = ["cc", "-O3", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source), "-o"]
            subprocess.run([*build, str(source.with_suffix(".abi3.so"))], check=True)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=here, check=True)


def run_version(tree: Path, options: argparse.Namespace) -> dict[str, Any]:
    """By the version's own benchmark."""
    size = ["--chunks", str(options.chunks), "--rounds", str(options.rounds), "--model", options.model]
    command = [sys.executable, "-m", "benchmarks.bench_turn", "--json", *size]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    ran = subprocess.run(command, cwd=tree, env=env, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def told(what: str, done: int, total: int) -> None:
    if not total:
        print(what, file=sys.stderr)


def measure(weave: Weave, chunks: int, rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    archive = weave.windows.create("archive").id
    prose = Prose(rng)
    print(f"storing {chunks:,} chunks", file=sys.stderr)
    fill(weave.runtime.store, weave.engine, archive, chunks, prose)
    give_vectors(weave, rng)
    window = weave.windows.create("talk").id
    fill(weave.runtime.store, weave.engine, window, LIVE // 80, prose)
    found: dict[str, list[Measured]] = {
        case: [] for case in ("nothing", "written", "resident", "computed", "typed")
    }
    for text in ("Good morning.", "How are you?"):  # the window is read once, and the memory loaded
        say_with_room(weave, window, text, 1)
    for case, measured in [*found.items()] * rounds:
        for _ in range(TRIES):
            name = f"{''.join(rng.choice(SYLLABLES, 3))}{len(measured)}".capitalize()
            topic = prose.topic()
            text = f"{name}: {topic}?"  # in words that no question before it had
            if case in ("nothing", "written"):  # memory is searched, and nothing fits
                one = say_with_room(weave, window, text, 1, typed=case == "written")
                break
            key, cost = say_elsewhere(weave, archive, f"{name}, {topic}: so begins the story. {prose(80)}")
            if case == "resident":  # it was live here before, and sleeps
                weave.chunks.resurrect(window, key)
                say_with_room(weave, window, "Go on.", 1)
                weave.chunks.prune(window, key)
                say_with_room(weave, window, "Something else now.", 1)
            one = say_with_room(weave, window, text, cost, typed=case == "typed")
            if key in one.woken:
                assert (one.reading.restored >= 150) == (case == "resident"), one.reading
                if case == "typed" and one.reading.computed >= 150:
                    print("typed: the machine had no time to compute it ahead", file=sys.stderr)
                break
            print(f"{case:9} earlier questions were more alike and took the room: again", file=sys.stderr)
        else:
            raise AssertionError(f"What was spoken of did not wake up in {TRIES} tries.")
        measured.append(one)
        ours = f"own {one.stats['own_ms_per_turn']:.1f} ms + {one.stats['own_ms_per_token']:.3f} ms a token"
        print(f"{case:9} {one.first_token_ms:8.1f} ms, {ours}, {one.reading}", file=sys.stderr)
    turns = [one for measured in found.values() for one in measured]
    own = [one.stats["own_ms_per_turn"] for one in turns]
    return {
        "own_ms_per_token": round(statistics.median(one.stats["own_ms_per_token"] for one in turns), 4),
        "own_ms_per_turn": round(statistics.median(own), 2),
        "own_ms_per_turn_worst": round(max(own), 2),
        "own_ms_after": round(statistics.median(one.stats["own_ms_after"] for one in turns), 2),
        "first_token_ms": {
            case: round(statistics.median(one.first_token_ms for one in measured), 1)
            for case, measured in found.items()
        },
        "read": {
            case: {name: getattr(measured[-1].reading, name) for name in ("reused", "restored", "computed")}
            for case, measured in found.items()
        },
        "chunks": chunks,
        "live_tokens": LIVE,
    }


def say_with_room(weave: Weave, window: str, text: str, room: int, *, typed: bool = False) -> Measured:
    """Say something when so many tokens may wake up.

    The one before is embedded by then, and what can be read ahead was, as when a person speaks.
    """
    assert isinstance(weave.runtime.memory_search, MemorySearch)
    weave.runtime.memory_search.settle()
    quota = len(weave.engine.tokenize(text)) + room
    weave.windows.change(window, settings={"resurrection_budget": quota})
    if typed:
        weave.memory.preview(window, text, prefetch=True)
    weave._prefetcher.settle()
    if isinstance(weave.engine, LlamaEngine):
        weave.engine.scheduler.wait_until_idle()
    return turn(weave, window, text)


def give_vectors(weave: Weave, rng: np.random.Generator) -> None:
    """Made up ones: embedding so many chunks takes half an hour, and searching them does not care."""
    recall, store = weave.runtime.memory_search, weave.runtime.store
    assert isinstance(recall, MemorySearch)
    embedder = recall.embedder()
    if embedder is None:
        print("no embedder: words alone are searched", file=sys.stderr)
        return
    generation = store.begin_generation(generation_name(embedder), embedder.dimension, now=datetime.now(UTC))
    topics = rng.normal(size=(300, embedder.dimension))
    while len((wanted := store.wanted(generation.id, 5_000)).numbers):
        vectors = topics[rng.integers(0, 300, len(wanted.numbers))]
        vectors = vectors + 0.7 * rng.normal(size=vectors.shape)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        store.add_vectors(generation.id, wanted, vectors.astype(np.float32))


def say_elsewhere(weave: Weave, window: str, text: str) -> tuple[ChunkKey, int]:
    """A chunk of another window, and what it costs to wake it up with its frame, and next to nothing else."""
    tokens = weave.engine.tokenize(text)
    ids = weave.runtime.store.reserve(len(tokens))
    (chunk,) = chunk_turn(
        tokens, ids.user_turn, Role.USER, ids.start, min_chunk_tokens=10_000, max_chunk_tokens=10_000
    )
    live = LiveChunk(chunk, np.full(len(chunk), 9_000, np.float32))
    weave.runtime.store.append(window, [live], tokenizer=weave.engine.info.tokenizer, now=datetime.now(UTC))
    weave.runtime.memory_search.embed_soon()
    return chunk.key, len(chunk) + 40


if __name__ == "__main__":
    main()
