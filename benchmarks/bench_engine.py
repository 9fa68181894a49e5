"""The engine on the default model: cost of capture, KV surgery against reprocessing, its loss, plain speed."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.engines.llama import LlamaEngine
from halo_weave.llama import catalogue
from halo_weave.ports import Capture, Prompt, Read, Sampling, Segment, Step
from halo_weave.settings import KvMode

CONTEXTS = (500, 1700, 4000)
LIVE, PRUNED, RETURNING = 2000, 300, 200
PREFIX, CHUNK, MIDDLE, LATER, CONTINUATION = 128, 96, 96, 192, 64
WINDOWS = 24
ROUNDS = 50
PAIRS = 8  # that a few heads are
GREEDY = Sampling(temperature=0.0, max_new_tokens=1)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Piece:
    """A run of tokens with its place in time; a prompt is some of them."""

    labels: np.ndarray
    ids: Ids


def pieces(ids: Ids, *sizes: int) -> list[Piece]:
    edges = np.cumsum([0, *sizes])
    labels = np.arange(len(ids), dtype=np.int64)
    return [Piece(labels[a:b], ids[a:b]) for a, b in itertools.pairwise(edges)]


def prompt(parts: list[Piece], *, read: Piece | None = None, next_label: int = 10**6) -> Prompt:
    parts = [*parts, read] if read else parts
    segments = [Segment("chunk", part.labels, part.ids) for part in parts]
    return Prompt(segments, next_label, int(read.labels[0]) if read else None)


def facts(engine: LlamaEngine, count: int) -> Ids:
    """A text that a model goes on with for ever: numbered facts."""
    text = " ".join(
        f"Fact {i}: boat number {i * 7 % 97} is blue and has {i % 9 + 2} sails." for i in range(1, count)
    )
    return engine.tokenize(text).ids[:count]


def intervals(times: Iterable[float]) -> list[float]:
    """Seconds from token to token."""
    return [b - a for a, b in itertools.pairwise(times)]


def arrivals(
    engine: LlamaEngine, window: str, ask: Prompt, tokens: int, capture: Capture | None
) -> Iterator[float]:
    for event in engine.generate(window, ask, Sampling(temperature=0.0, max_new_tokens=tokens), capture):
        if isinstance(event, Step):
            yield time.perf_counter()


def capture_ratio(engine: LlamaEngine, rounds: int) -> dict[str, dict[str, float]]:
    """Decode speed with capture over without, of all heads and of a few pairs, interleaved in one window."""
    layers, heads = engine.info.layers, engine.info.heads
    few = tuple((layers // 2 + i, i % heads) for i in range(min(PAIRS, layers - layers // 2)))
    kinds = {"without": None, "all": Capture(), "pairs": Capture(pairs=few, raw=True)}
    ratios: dict[str, dict[str, float]] = {"all": {}, "pairs": {}}
    for size in CONTEXTS:
        ask = prompt(pieces(facts(engine, size), size))
        list(arrivals(engine, "capture", ask, 4, None))
        taken: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(rounds):
            for kind in sorted(kinds, reverse=bool(number % 2)):
                taken[kind] += intervals(arrivals(engine, "capture", ask, 12, kinds[kind]))
        medians = {kind: statistics.median(found) for kind, found in taken.items()}
        for kind, found in ratios.items():
            found[str(size)] = round(medians["without"] / medians[kind], 3)
        told = ", ".join(f"{kind} {value * 1e3:.2f} ms" for kind, value in medians.items())
        note(f"  {size} tokens, per token: {told}")
    engine.forget("capture")
    return ratios


def first_token(engine: LlamaEngine, window: str, ask: Prompt, mode: str) -> tuple[float, Read]:
    start = time.perf_counter()
    read = None
    for event in engine.generate(window, ask, GREEDY, Capture(), mode=mode):  # type: ignore[arg-type]
        if isinstance(event, Read):
            read = event
        elif isinstance(event, Step):
            break
    assert read is not None
    return time.perf_counter() - start, read


def turn_speedup(engine: LlamaEngine, repeats: int) -> dict[str, float]:
    """Prune and resurrect, then the first token: time of reprocessing over time of surgery."""
    size = LIVE + RETURNING + 40
    system, pruned, chunk, rest, question = pieces(
        facts(engine, size), 40, PRUNED, RETURNING, size - 40 - PRUNED - RETURNING - 20, 20
    )
    before = prompt([system, pruned, rest])
    after = prompt([system, chunk, rest, question])
    times: dict[str, list[float]] = {"exact": [], "resident": [], "computed": []}
    for _ in range(repeats):
        for kind, sampled in times.items():
            window = f"turn {kind}"
            engine.forget(window)
            if kind == "resident":
                first_token(engine, window, prompt([system, pruned, chunk, rest]), "splice")
            first_token(engine, window, before, "splice")
            taken, read = first_token(engine, window, after, "exact" if kind == "exact" else "splice")
            expected = {"resident": read.restored, "computed": read.computed, "exact": read.computed}[kind]
            assert expected >= RETURNING, f"{kind}: {read}"
            sampled.append(taken)
            note(
                f"  {kind}: {taken * 1e3:.0f} ms ({read.reused} reused, {read.restored} restored, {read.computed} computed)"
            )
    for kind in times:
        engine.forget(f"turn {kind}")
    exact = statistics.median(times["exact"])
    return {kind: round(exact / statistics.median(times[kind]), 1) for kind in ("resident", "computed")}


def dialogues(engine: LlamaEngine, folder: Path, count: int) -> Iterator[Ids]:
    """Stretches of real dialogue, spread over the conversations."""
    length = PREFIX + CHUNK + MIDDLE + LATER + CONTINUATION
    files = sorted(folder.glob("*.json"))
    for number in range(count):
        sessions = json.loads(files[number % len(files)].read_text())["sessions"]
        start = (number // len(files)) * len(sessions) // (count // len(files) + 1)
        lines: list[str] = []
        while len(ids := engine.tokenize("\n".join(lines)).ids) < length:
            lines += [
                f"{turn['speaker']}: {turn['text']}" for turn in sessions[start % len(sessions)]["turns"]
            ]
            start += 1
        yield ids[:length]


def loss(engine: LlamaEngine, window: str, parts: list[Piece], read: Piece, mode: KvMode = "splice") -> float:
    """Mean surprisal of what is read, after everything before it."""
    ask = prompt(parts, read=read)
    for event in engine.generate(
        window, ask, GREEDY, Capture(reply=False, reading_surprisal=True), mode=mode
    ):
        if isinstance(event, Read):
            assert event.surprisal is not None
            return float(event.surprisal.mean())
    raise AssertionError("nothing was read")


def nll(engine: LlamaEngine, folder: Path, count: int) -> dict[str, float | int]:
    """A chunk leaves, the talk goes on without it, it returns: what that costs the continuation and its own copy."""
    differences: dict[str, list[float]] = {"resident": [], "computed": []}
    copies: dict[str, list[float]] = {"resident": [], "computed": []}
    for number, ids in enumerate(dialogues(engine, folder, count)):
        prefix, chunk, middle, later, continuation = pieces(ids, PREFIX, CHUNK, MIDDLE, LATER, CONTINUATION)
        again = Piece(np.arange(2 * 10**6, 2 * 10**6 + CHUNK), chunk.ids)
        whole = [prefix, chunk, middle, later]
        exact = loss(engine, "exact", whole, continuation, "exact")
        untouched = loss(engine, "exact", whole, again, "exact")
        for kind in differences:
            first_token(engine, kind, prompt([prefix, chunk, middle]), "splice")
            first_token(engine, kind, prompt([prefix, middle, later]), "splice")
            if kind == "computed":
                engine.caches[kind].graves.clear()
            differences[kind].append(loss(engine, kind, whole, continuation) - exact)
            copies[kind].append(loss(engine, kind, whole, again) - untouched)
            engine.forget(kind)
        engine.forget("exact")
        note(
            f"  dialogue {number + 1}: continuation {differences['resident'][-1]:+.4f}, copy {copies['resident'][-1]:+.4f} "
            f"(computed: {differences['computed'][-1]:+.4f}, {copies['computed'][-1]:+.4f})"
        )
    return {
        "difference": round(statistics.mean(differences["resident"]), 4),
        "copy": round(statistics.mean(copies["resident"]), 4),
        "windows": len(differences["resident"]),
        "difference_computed": round(statistics.mean(differences["computed"]), 4),
        "copy_computed": round(statistics.mean(copies["computed"]), 4),
    }


def random_rounds(engine: LlamaEngine, count: int) -> dict[str, int]:
    """Random prune, resurrect, generate: rows sum to 1 over the live tokens, all else is exactly 0."""
    rng = np.random.default_rng(11)
    parts = pieces(facts(engine, 20 * 40), *[40] * 20)
    position, faults, rows = 20 * 40, 0, 0
    for _ in range(count):
        asleep = set(rng.choice(np.arange(1, len(parts)), size=len(parts) // 3, replace=False).tolist())
        live = [part for number, part in enumerate(parts) if number not in asleep]
        ask = prompt(live, next_label=position)
        said: list[int] = []
        tokens = sum(len(part.ids) for part in live)
        sampling = Sampling(
            temperature=0.8, seed=int(rng.integers(2**31)), max_new_tokens=int(rng.integers(2, 12))
        )
        for event in engine.generate("rounds", ask, sampling, Capture()):
            if isinstance(event, Read):
                faults += bool(event.rebuilt)
            elif isinstance(event, Step):
                rows += 1
                row = event.row
                faults += (
                    row is None
                    or row.fault(tokens + len(said)) is not None
                    or abs(float(row.tokens.sum()) - 1) > 1e-4
                )
                said.append(event.id)
        cache = engine.caches["rounds"]
        columns = cache.columns[: cache.count]
        if cache.last_rows is not None:
            dead = np.ones(cache.last_rows.shape[1], dtype=bool)
            dead[columns] = False
            faults += bool(np.any(cache.last_rows[-1][dead]))
        faults += len(np.unique(columns)) != cache.count or not bool(cache.cells.taken[columns].all())
        if said:
            labels = np.arange(position, position + len(said), dtype=np.int64)
            parts.append(Piece(labels, np.array(said, np.int32)))
            position += len(said)
    engine.forget("rounds")
    note(f"  {count} rounds, {rows} rows, {faults} faults")
    return {"rounds": count, "rows": rows, "faults": faults}


def plain_ratio(engine: LlamaEngine, rounds: int) -> float | None:
    """Our decode speed without capture over that of xllamacpp's own server, at the faster of its two settings."""
    try:
        import xllamacpp
    except ImportError:
        note("  skipped: xllamacpp is not installed")
        return None
    ids = facts(engine, 500)
    text = engine.pieces(ids).text
    ask = prompt(pieces(ids, len(ids)))

    def server(flash: Any) -> Any:
        params = xllamacpp.CommonParams()
        params.model.path = str(engine.model.path)
        params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 2048, 1, False, -1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = engine.shape.threads
        params.flash_attn_type = flash
        return xllamacpp.Server(params)

    kinds = xllamacpp.llama_flash_attn_type
    theirs = {
        "flash attention off": server(kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED),
        "its default": server(kinds.LLAMA_FLASH_ATTN_TYPE_AUTO),
    }

    def heard(which: Any) -> Iterator[float]:
        times: list[float] = []
        which.handle_completions(
            {"prompt": text, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True},
            lambda _: times.append(time.perf_counter()),
        )
        return iter(times[:-1])  # the last message only says that it is over

    taken: dict[str, list[float]] = {"ours": [], **{name: [] for name in theirs}}
    for number in range(rounds + 1):
        for name, sampled in taken.items():
            if name == "ours":
                found = intervals(arrivals(engine, "plain", ask, 24, None))
            else:
                found = intervals(heard(theirs[name]))
            if number:  # the first round reads the prompt
                sampled.extend(found)
    engine.forget("plain")
    medians = {name: statistics.median(found) for name, found in taken.items()}
    note("  " + ", ".join(f"{name}: {value * 1e3:.2f} ms per token" for name, value in medians.items()))
    return round(min(medians[name] for name in theirs) / medians["ours"], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the default chat model")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "locomo")
    parser.add_argument(
        "--only", choices=("capture", "turn", "nll", "rounds", "plain"), help="one part alone"
    )
    parser.add_argument("--windows", type=int, default=WINDOWS, help="dialogues for the loss")
    parser.add_argument("--repeats", type=int, default=3, help="of each turn")
    parser.add_argument("--rounds", type=int, default=20, help="of interleaved decoding")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with LlamaEngine(options.model or catalogue.ensure(catalogue.CHAT)) as engine:
        if options.only in (None, "capture"):
            note("capture_ratio")
            ratios = capture_ratio(engine, options.rounds)
            result |= {"capture_ratio": ratios["all"], "capture_pairs_ratio": ratios["pairs"]}
        if options.only in (None, "turn"):
            note(f"turn_speedup: {LIVE} live, {PRUNED} pruned, {RETURNING} return, first token")
            result["turn_speedup"] = turn_speedup(engine, options.repeats)
        if options.only in (None, "nll"):
            note(f"nll: dialogues of {options.data}")
            if any(options.data.glob("*.json")):
                result["nll"] = nll(engine, options.data, options.windows)
            else:
                note(f"  skipped: no dialogues in {options.data}; name a folder with --data")
                result["nll"] = None
        if options.only in (None, "rounds"):
            note("rounds")
            result["rounds"] = random_rounds(engine, ROUNDS)
        if options.only in (None, "plain"):
            note("plain_ratio")
            result["plain_ratio"] = plain_ratio(engine, options.rounds)
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
