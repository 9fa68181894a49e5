"""What 100,000 and 1,000,000 chunks cost in a file and in PostgreSQL: a turn, memory, start, search, bytes.

Everything is stored by the product's own calls. A copy of each memory is then opened by a process of its own, as a
server does it, and closed; that leaves an image of the index. A second process opens it again and is measured.
Filling takes hours: `--keep` leaves the memories in a folder, and takes those that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.bench_search import DIMENSION, NEAREST, Topics
from benchmarks.bench_turn import TURN_CHUNKS, Prose, turn
from benchmarks.database import postgres_server
from halo_weave.app import open_store
from halo_weave.chat import Weave
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.core.tokens import Role
from halo_weave.core.working_set import LiveChunk, chunk_turn
from halo_weave.paths import index_snapshot_file
from halo_weave.search.embedding_worker import generation_name
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.store.postgres.store import EXACT_BELOW, PostgresVectors
from halo_weave.store.sql_store import SqlStore
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.fakes.scripted_engine import ScriptedEngine

SIZES = (100_000, 1_000_000)
ROUNDS = 20
QUERIES = 40
LIVE = 2_000
BATCH = 1_000
FILLED, COPY = "filled", "copy"
Floats = npt.NDArray[np.float32]


def embedder() -> HashingEmbedder:
    return HashingEmbedder(DIMENSION, name="scale")


def say(store: SqlStore, window: str, prose: Prose, chunks: int, *, asleep: bool = False) -> int:
    """A turn of so many chunks of about 30 words. Returns how many it became."""
    engine = ScriptedEngine()
    tokens = engine.tokenize("".join(prose(32) for _ in range(chunks)))
    ids = store.reserve(len(tokens))
    said = [
        LiveChunk(chunk, np.full(len(chunk), 9_000, np.float32))
        for chunk in chunk_turn(tokens, ids.user_turn, Role.USER, ids.start)
    ]
    store.append(window, said, tokenizer=engine.info.tokenizer, now=datetime.now(UTC), asleep=asleep)
    return len(said)


def make(store: SqlStore, size: int, topics: Topics, prose: Prose) -> int:
    """So many sleeping chunks with a vector each, and a window to talk in. Returns the generation of the vectors."""
    archive = store.create_window("archive", now=datetime.now(UTC)).id
    made = 0
    while made < size:
        made += say(store, archive, prose, min(TURN_CHUNKS, size - made), asleep=True)
    generation = store.begin_generation(generation_name(embedder()), DIMENSION, now=datetime.now(UTC)).id
    while len((wanted := store.wanted(generation, BATCH)).numbers):
        store.add_vectors(generation, wanted, topics.vectors(len(wanted.numbers)))
    talk = store.create_window("talk", now=datetime.now(UTC)).id
    say(store, talk, prose, LIVE // 80)
    search = store.vector_search(generation)
    if isinstance(search, PostgresVectors) and size > EXACT_BELOW:
        search.build()
    return generation


def truth(store: SqlStore, generation: int, queries: Floats) -> list[set[int]]:
    """The nearest chunks of each question, by comparing all vectors."""
    best = [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
    for numbers, vectors in store.vectors(generation):
        alike = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)) @ queries.T
        for i, (known, near) in enumerate(best):
            all_of_them, similarity = np.concatenate([known, numbers]), np.concatenate([near, alike[:, i]])
            kept = np.argsort(-similarity)[:NEAREST]
            best[i] = all_of_them[kept], similarity[kept]
    return [set(numbers.tolist()) for numbers, _ in best]


def opened(place: str, data: Path) -> tuple[SqlStore, MemorySearch, float]:
    """A memory as a server opens it, up to the first search; and the seconds that this takes."""
    began = time.perf_counter()
    store = open_store(place, beside=data)
    recall = MemorySearch(store, embedder, snapshot_path=index_snapshot_file(data))
    recall.embedder()
    recall.search("warm up", now=datetime.now(UTC))
    return store, recall, time.perf_counter() - began


def opened_first(place: str, data: Path) -> dict[str, Any]:
    """In a process that finds no image, and leaves one."""
    store, recall, start = opened(place, data)
    rss = _rss()
    recall.close()
    store.close()
    return {"start_without_image_s": round(start, 2), "rss_without_image_mb": rss}


def used(place: str, data: Path, queries: Floats) -> dict[str, Any]:
    """In a process that opens the memory anew: what it costs to start, to talk, to search; and what is found."""
    store, recall, start = opened(place, data)
    found = [_nearest(recall, query) for query in queries]  # before anything new is said
    settings = Settings().changed({"max_context_tokens": LIVE, "max_new_tokens": 24})
    engine, tools = ScriptedEngine(context=4 * LIVE), Toolbox(Notes(store), StructuredMemory(store))
    weave = Weave(engine, store, recall, tools, defaults=settings)
    try:
        rng = np.random.default_rng(11)
        prose = Prose(rng)
        talk = next(window.id for window in store.windows() if window.name == "talk")
        own = [turn(weave, talk, f"{prose.topic()}?").stats["own_ms_per_turn"] for _ in range(ROUNDS + 3)]
        appends, searches = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            say(store, talk, prose, 4, asleep=True)
            appends.append(1e3 * (time.perf_counter() - began))
        for _ in range(QUERIES):
            began = time.perf_counter()
            recall.search(f"{prose.topic()}?", now=datetime.now(UTC))
            searches.append(1e3 * (time.perf_counter() - began))
    finally:
        weave.close()
    return {
        "own_ms": round(float(np.median(own[3:])), 2),
        "rss_mb": _rss(),
        "start_s": round(start, 2),
        "append_ms": round(float(np.median(appends)), 2),
        "search_p50_ms": round(float(np.percentile(searches, 50)), 2),
        "search_p95_ms": round(float(np.percentile(searches, 95)), 2),
        "found": found,
    }


def _rss() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1)


def _nearest(recall: MemorySearch, query: Floats) -> list[int]:
    if recall._vector_search is not None:
        return [int(number) for number in recall._vector_search.nearest(query, limit=NEAREST)[0]]
    assert recall._index is not None
    return [int(number) for number in recall._index.nearest(query, NEAREST)]


def sqlite_memory(folder: Path) -> Path:
    return folder / "memory"


@contextmanager
def filling(kind: str, folder: Path) -> Iterator[str]:
    """Where a memory is to be made that stays in this folder."""
    if kind == "sqlite":
        yield str(sqlite_memory(folder))
        return
    with postgres_server(folder=folder) as server:
        server.run(f"CREATE DATABASE {FILLED}")
        yield server.address(FILLED)


@contextmanager
def copied(kind: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """A copy of the memory in this folder, and a data folder: what is said while measuring changes nothing for the next time."""
    with tempfile.TemporaryDirectory(prefix="copy-", dir=folder) as data:
        if kind == "sqlite":
            shutil.copytree(sqlite_memory(folder), data, dirs_exist_ok=True)
            os.sync()
            yield data, Path(data)
            return
        with postgres_server(folder=folder, durable=True) as server:
            server.run(f"DROP DATABASE IF EXISTS {COPY}")
            server.run(f"CREATE DATABASE {COPY} TEMPLATE {FILLED} STRATEGY FILE_COPY")
            server.run("CHECKPOINT")
            try:
                yield server.address(COPY), Path(data)
            finally:
                server.drop(COPY)


def filled(kind: str, size: int, folder: Path) -> dict[str, Any]:
    """What is known of the memory in this folder, which is made if it is not there or not whole."""
    told = folder / "filled.json"
    if not told.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rng = np.random.default_rng(size)
        topics, prose = Topics(rng), Prose(rng)
        with filling(kind, folder) as address, open_store(address) as store:
            began = time.perf_counter()
            generation = make(store, size, topics, prose)
            seconds = time.perf_counter() - began
            queries = topics.vectors(QUERIES, spread=1.2)
            nearest = truth(store, generation, queries)
            stats = store.stats()
        np.save(folder / "queries.npy", queries)
        known = {
            "nearest": [sorted(one) for one in nearest],
            "bytes_per_chunk": round(stats.bytes / stats.chunks),
            "seconds": round(seconds),
        }
        told.write_text(json.dumps(known))
    return dict(json.loads(told.read_text()))


def measure(kind: str, size: int, keep: Path) -> dict[str, Any]:
    folder = keep / f"{kind}-{size}"
    known = filled(kind, size, folder)
    print(f"{kind} {size:,}: stored in {known['seconds']} s", file=sys.stderr, flush=True)
    result: dict[str, Any] = {}
    with copied(kind, folder) as (address, data):
        open_store(address).close()  # one that was filled by an earlier version is brought up to date first
        for step in ("--use-first", "--use"):
            command = [sys.executable, "-m", __spec__.name, step, address, str(data), str(folder)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            result |= json.loads(told)
    pairs = zip(known["nearest"], result.pop("found"), strict=True)
    result["recall_at_50"] = round(float(np.mean([len({*a} & {*b}) / len(a) for a, b in pairs])), 4)
    result["bytes_per_chunk"] = known["bytes_per_chunk"]
    return dict(result)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench scale", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--sizes", "--size", type=int, nargs="+", default=SIZES)
    parser.add_argument(
        "--stores", "--store", nargs="+", choices=("sqlite", "postgres"), default=("sqlite", "postgres")
    )
    parser.add_argument("--keep", type=Path, help="a folder for the filled memories, which stay there")
    parser.add_argument("--fill", action="store_true", help="only fill what is missing in that folder")
    parser.add_argument("--use-first", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--use", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.use_first:
        print(json.dumps(opened_first(asked.use_first[0], Path(asked.use_first[1]))))
        return
    if asked.use:
        place, data, folder = asked.use
        print(json.dumps(used(place, Path(data), np.load(Path(folder) / "queries.npy"))))
        return
    result: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in asked.stores}
    with tempfile.TemporaryDirectory(prefix="halo-weave-") as temporary:
        for size in asked.sizes:
            for kind in asked.stores:
                keep = asked.keep or Path(temporary)
                if asked.fill:
                    filled(kind, size, keep / f"{kind}-{size}")
                    continue
                result[kind][str(size)] = measure(kind, size, keep)
                print(f"{kind:9}{size:>10,}  {result[kind][str(size)]}", file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
