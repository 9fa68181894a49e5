"""Brightness update and pruning on 3,000, 30,000 and 300,000 live tokens."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.pruning import plan_prune
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk, WorkingSet

SIZES = (3_000, 30_000, 300_000)
PROTOTYPE = {"update_ms": 0.74, "prune_ms": 323.0}  # in V8, at 30,000 tokens


def conversation(size: int, rng: np.random.Generator) -> list[LiveChunk]:
    """Exchanges of a one-chunk question and an answer of three chunks, 64 to 80 tokens each."""
    items: list[LiveChunk] = []
    turn = position = 0
    while position < size:
        turn += 2
        for role, number in ((Role.USER, 0), (Role.ASSISTANT, 0), (Role.ASSISTANT, 1), (Role.ASSISTANT, 2)):
            count = min(int(rng.integers(64, 81)), size - position)
            if not count:
                break
            answer = role is Role.ASSISTANT
            tokens = Tokens.of(rng.integers(0, 49_152, count), [b"word "] * count)
            chunk = Chunk(ChunkKey(turn + answer, number, role), position, tokens, turn if answer else None)
            items.append(LiveChunk(chunk, rng.integers(-5_000, 10_000, count).astype(np.float32)))
            position += count
    return items


def median_ms(act: Callable[[], object], prepare: Callable[[], None], repeats: int) -> float:
    """The median of the quietest of ten batches: machines are shared, and a neighbour is not our cost."""
    medians = []
    for _ in range(10):
        times = []
        for _ in range(max(1, repeats // 10)):
            prepare()
            start = time.perf_counter()
            act()
            times.append((time.perf_counter() - start) * 1e3)
        medians.append(statistics.median(times))
    return min(medians)


def measure(size: int, rng: np.random.Generator) -> dict[str, float]:
    items = conversation(size, rng)
    window = WorkingSet(items)
    row = AttentionRow(rng.dirichlet(np.full(size, 0.05)).astype(np.float32))
    assert window.update(row) is None
    update = median_ms(lambda: window.update(row), lambda: None, 500)

    def fill() -> None:
        nonlocal window
        window = WorkingSet(items)

    def prune() -> None:
        plan = plan_prune(window, size - size // 3)
        window.remove(plan.keys)
        assert plan.after <= size - size // 3

    return {"update_ms": round(update, 4), "prune_ms": round(median_ms(prune, fill, 30), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench core", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args()
    rng = np.random.default_rng(7)
    growth = {str(size): measure(size, rng) for size in SIZES}
    at_30k = growth["30000"]
    result = {
        "update_ms_30k": at_30k["update_ms"],
        "prune_ms_30k": at_30k["prune_ms"],
        "update_times_faster": round(PROTOTYPE["update_ms"] / at_30k["update_ms"], 1),
        "prune_times_faster": round(PROTOTYPE["prune_ms"] / at_30k["prune_ms"], 1),
        "growth": growth,
        "growth_30k_to_300k": {key: round(growth["300000"][key] / at_30k[key], 1) for key in at_30k},
    }
    out = sys.stderr if options.json else sys.stdout
    for size, row in growth.items():
        print(
            f"{int(size):>8,} live tokens: update {row['update_ms']:.3f} ms, prune a third {row['prune_ms']:.2f} ms",
            file=out,
        )
    print(
        f"against the prototype at 30,000: {result['update_times_faster']}x and {result['prune_times_faster']}x",
        file=out,
    )
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
