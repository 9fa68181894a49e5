"""Nearest vectors among 10,000 to 1,000,000 chunks: the index against comparing all with numpy, and how many it finds."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from halo_weave.search.vector_index import VectorIndex

Floats = npt.NDArray[np.float32]

SIZES = (10_000, 100_000, 1_000_000)
DIMENSION = 384
NEAREST = 50
PROTOTYPE_MS = {10_000: 4, 100_000: 40, 1_000_000: 400}  # comparing all, in JavaScript, by its own account
BLOCK = 50_000


class Topics:
    """Vectors as an embedder makes them: topics within themes, and few directions that tell most.

    Of MiniLM's vectors of real talk the first 64 principal components hold 78 % of the variance, of these 65 %:
    they are harder than real ones, not easier.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.scale = (1 / np.sqrt(1 + np.arange(DIMENSION) / 12)).astype(np.float32)
        themes = self.around(np.zeros((40, DIMENSION), np.float32), 1.0)
        self.topics = self.around(themes[rng.integers(0, len(themes), 4_000)], 1.0)

    def around(self, centres: Floats, spread: float) -> Floats:
        noise = self.rng.standard_normal(centres.shape, dtype=np.float32)
        return np.asarray(centres + np.float32(spread) * noise * self.scale, np.float32)

    def vectors(self, count: int, spread: float = 0.9) -> Floats:
        found = self.around(self.topics[self.rng.integers(0, len(self.topics), count)], spread)
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def exact(vectors: Floats, query: Floats) -> npt.NDArray[np.int64]:
    similarity = vectors @ query
    nearest = np.argpartition(similarity, -NEAREST)[-NEAREST:]
    return np.asarray(nearest[np.argsort(-similarity[nearest])])


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = act()
    return 1e3 * (time.perf_counter() - start), result


def measure(size: int, queries: int, rng: np.random.Generator) -> dict[str, float]:
    topics = Topics(rng)
    index = VectorIndex(DIMENSION)
    with tempfile.TemporaryDirectory() as folder:
        # Loaded in blocks from the disk, as it is from the store.
        path = Path(folder) / "vectors.npy"
        stored = np.lib.format.open_memmap(path, "w+", np.float32, (size, DIMENSION))
        for start in range(0, size, BLOCK):
            stored[start : start + BLOCK] = topics.vectors(min(BLOCK, size - start))
        stored.flush()
        del stored
        start_time = time.perf_counter()
        index.reserve(size)
        stored = np.load(path, mmap_mode="r")
        for start in range(0, size, BLOCK):
            block = np.asarray(stored[start : start + BLOCK])
            index.put(np.arange(start, start + len(block)), block)
        index.nearest(
            topics.vectors(1)[0], NEAREST
        )  # the first search of a large index learns its directions
        load_seconds = time.perf_counter() - start_time
        vectors = np.array(stored)  # as they were, to compare with
        del stored
    asked = topics.vectors(queries + 3, spread=1.2)
    mine, all_of_them, found = [], [], 0
    for i, query in enumerate(asked):
        # Interleaved, so that both meet the same machine.
        took, nearest = timed(partial(index.nearest, query, NEAREST))
        took_exact, truth = timed(partial(exact, vectors, query))
        if i >= 3:
            mine.append(took)
            all_of_them.append(took_exact)
            found += len(np.intersect1d(nearest, truth))
    return {
        "p50_ms": round(float(np.percentile(mine, 50)), 3),
        "p95_ms": round(float(np.percentile(mine, 95)), 3),
        "exact_p50_ms": round(float(np.percentile(all_of_them, 50)), 3),
        "exact_p95_ms": round(float(np.percentile(all_of_them, 95)), 3),
        "speedup": round(float(np.percentile(all_of_them, 50) / np.percentile(mine, 50)), 2),
        "recall_at_50": round(found / (queries * NEAREST), 4),
        "load_seconds": round(load_seconds, 2),
        "memory_mb": round(index.bytes / 1e6, 1),
        "prototype_ms": PROTOTYPE_MS.get(size, 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--queries", type=int, default=60)
    asked = parser.parse_args()
    result = {}
    for size in asked.sizes:
        result[str(size)] = measure(size, asked.queries, np.random.default_rng(size))
        print(f"{size:>9,}: {result[str(size)]}", file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    if asked.json:
        print(json.dumps({**result, "peak_memory_mb": round(peak, 1)}))
        return
    names = list(next(iter(result.values())))
    print(f"{'chunks':>10}" + "".join(f"{name:>16}" for name in names))
    for size, one in result.items():
        print(f"{int(size):>10,}" + "".join(f"{one[name]:>16}" for name in names))


if __name__ == "__main__":
    main()
