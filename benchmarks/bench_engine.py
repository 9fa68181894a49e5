"""The engine on any model: cost of capture, KV surgery against reprocessing, its loss, plain speed."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cell_kills import drill
from benchmarks.engine_readings import BUDGET, turns_between_readings
from benchmarks.engine_speed import capture_ratio, plain_ratio
from benchmarks.engine_talk import (
    CHUNK,
    CONTINUATION,
    LATER,
    MIDDLE,
    PREFIX,
    Piece,
    dialogues,
    facts,
    first_token,
    forget_asleep,
    give_way,
    leave_to_disk,
    loss,
    note,
    pieces,
    prompt,
)
from halo_weave.engines.calibration import calibrated
from halo_weave.engines.llama import Limits, LlamaEngine
from halo_weave.llama import catalogue
from halo_weave.llama.footprint import cache_bytes
from halo_weave.llama.header import read_header
from halo_weave.llama.inventory import resolve
from halo_weave.places import calibration_folder
from halo_weave.ports import Capture, Read, Sampling, Step
from halo_weave.settings import Settings

LIVE, PRUNED, RETURNING, QUESTION = 2000, 300, 200, 20
DIALOGUES, REPEATS, ROUNDS, TURNS = 24, 3, 20, 20  # on a small model; on larger ones fewer
SMALL = 300_000_000  # weights
RANDOM_ROUNDS = 50


def turn_speedup(engine: LlamaEngine, repeats: int) -> dict[str, float]:
    """Prune and resurrect, then the first token after a question: time of reading anew over time of surgery.

    `ahead`: what returns was computed while the question was typed.
    """
    size = LIVE + PRUNED
    system, pruned, chunk, rest, asked = pieces(
        facts(engine, size), 40, PRUNED, RETURNING, size - 40 - PRUNED - RETURNING - QUESTION, QUESTION
    )
    before, new = prompt([system, pruned, rest]), itertools.count(size, QUESTION)
    times: dict[str, list[float]] = {kind: [] for kind in ("resident", "disk", "computed", "ahead", "exact")}
    for _ in range(repeats):
        first_token(engine, "turn", prompt([system, pruned, chunk, rest]), "splice")
        for kind, sampled in times.items():
            first_token(engine, "turn", before, "splice")
            if kind == "disk":
                leave_to_disk(engine, "turn")
            elif kind in ("computed", "ahead"):
                forget_asleep(engine, "turn")
            if kind == "ahead":
                engine.read_ahead("turn", prompt([system, chunk, rest]), room=64)
                engine.scheduler.settle()
            question = Piece(next(new) + np.arange(QUESTION), asked.ids)  # nobody has read it before
            after = prompt([system, chunk, rest, question])
            taken, read = first_token(engine, "turn", after, "exact" if kind == "exact" else "splice")
            sampled.append(taken)
            note(
                f"  {kind}: {taken * 1e3:.0f} ms ({read.reused} reused, {read.restored} restored, {read.computed} computed)"
            )
            assert (read.restored >= RETURNING) == (kind in ("resident", "disk")), f"{kind}: {read}"
            assert (read.computed >= RETURNING) == (kind in ("computed", "exact")), f"{kind}: {read}"
        engine.forget("turn")
    exact = statistics.median(times["exact"])
    return {kind: round(exact / statistics.median(times[kind]), 1) for kind in times if kind != "exact"}


def restart_speedup(path: Path, folder: Path) -> float:
    """First token of a window that the engine before this one had, against reading it anew."""
    limits = Limits(cells=folder / "cells")
    with LlamaEngine(path, limits=limits) as engine:
        talk, question = pieces(facts(engine, LIVE + 20), LIVE, 20)
        first_token(engine, "restart", prompt([talk]), "splice")
    with LlamaEngine(path, limits=limits) as engine:
        first_token(engine, "warm", prompt([question]), "splice")
        taken, read = first_token(engine, "restart", prompt([talk, question]), "splice")
        assert read.reused >= LIVE - 1, read
        note(f"  restarted: {taken * 1e3:.0f} ms ({read.reused} from disk, {read.computed} computed)")
        engine.forget("restart")
        anew, read = first_token(engine, "restart", prompt([talk, question]), "splice")
        note(f"  anew: {anew * 1e3:.0f} ms ({read.computed} computed)")
    return round(anew / taken, 1)


def switch_speedup(path: Path, folder: Path) -> float:
    """First token of a window that comes back after another one took its room, against reading it anew."""
    with LlamaEngine(path, limits=Limits(cells=folder / "cells", memory_bytes=1)) as engine:
        talk, question = pieces(facts(engine, LIVE + 20), LIVE, 20)
        anew, _ = first_token(engine, "one", prompt([talk]), "splice")
        first_token(engine, "two", prompt([question]), "splice")
        assert engine.disk is not None
        engine.disk.settle()
        taken, read = first_token(engine, "one", prompt([talk, question]), "splice")
        assert read.reused >= LIVE - 1, read
        note(f"  back: {taken * 1e3:.0f} ms ({read.reused} from disk); anew: {anew * 1e3:.0f} ms")
        engine.forget("one")
    return round(anew / taken, 1)


WAYS = ("resident", "window", "disk", "computed")


def nll(engine: LlamaEngine, folder: Path, count: int) -> dict[str, float | int]:
    """A chunk leaves, the talk goes on without it, it returns: what that costs the continuation and its own copy.

    `window`: it is there again, and the whole window comes back from disk, as after a restart or a switch.
    """
    differences: dict[str, list[float]] = {way: [] for way in WAYS}
    copies: dict[str, list[float]] = {way: [] for way in WAYS}
    exact: list[float] = []
    for number, ids in enumerate(dialogues(engine, folder, count)):
        prefix, chunk, middle, later, continuation = pieces(ids, PREFIX, CHUNK, MIDDLE, LATER, CONTINUATION)
        again = Piece(np.arange(2 * 10**6, 2 * 10**6 + CHUNK), chunk.ids)
        whole, without = [prefix, chunk, middle, later], prompt([prefix, middle, later])
        exact.append(loss(engine, "exact", whole, continuation, "exact")[0])
        untouched, _ = loss(engine, "exact", whole, again, "exact")
        engine.forget("exact")
        first_token(engine, "loss", prompt([prefix, chunk, middle]), "splice")
        for way in WAYS:
            first_token(engine, "loss", without, "splice")
            if way == "window":
                first_token(engine, "loss", prompt(whole), "splice")
                give_way(engine, "loss")
            elif way == "disk":
                leave_to_disk(engine, "loss")
            elif way == "computed":
                forget_asleep(engine, "loss")
            after, read = loss(engine, "loss", whole, continuation)
            assert (read.restored >= CHUNK) == (way in ("resident", "disk")), f"{way}: {read}"
            assert (read.computed >= CONTINUATION + CHUNK) == (way == "computed"), f"{way}: {read}"
            differences[way].append(after - exact[-1])
            copies[way].append(loss(engine, "loss", whole, again)[0] - untouched)
        engine.forget("loss")
        told = ", ".join(f"{way} {differences[way][-1]:+.4f} {copies[way][-1]:+.4f}" for way in WAYS)
        note(f"  dialogue {number + 1}, continuation and copy: {told}")
    found: dict[str, float | int] = {"windows": len(exact), "exact": round(statistics.mean(exact), 4)}
    for way in WAYS:
        suffix = "" if way == "resident" else f"_{way}"
        found[f"difference{suffix}"] = round(statistics.mean(differences[way]), 4)
        found[f"copy{suffix}"] = round(statistics.mean(copies[way]), 4)
    return found


def kv_types(
    path: Path, folder: Path, data: Path, count: int, plain: dict[str, float | int]
) -> dict[str, Any]:
    """Keys as q8_0: bytes of a token, the loss of reading alone against f16, and of surgery on top of it."""
    limits = Limits(cells=folder / "cells", kv_type="q8_0")
    with LlamaEngine(path, limits=limits) as engine:
        small = nll(engine, data, count)
        size = engine.shape.cell_bytes
    header = read_header(path)
    return {
        "bytes_per_token": {"f16": cache_bytes(header), "q8_0": size},
        "difference": round(small["exact"] - plain["exact"], 4),
        **{
            f"surgery_{way}": small["difference" if way == "resident" else f"difference_{way}"]
            for way in WAYS
        },
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


def _checked(ok: bool, why: str, measure: Callable[[], Any]) -> Any:
    """What does not apply to a model is null."""
    if ok:
        return measure()
    note(f"  skipped: {why}")
    return None


PARTS = ("capture", "turn", "nll", "kv", "rounds", "plain", "readings", "kills")
KILLS = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--model", help="a GGUF file or the name of a model; default: SmolLM2 135M")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data" / "locomo")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone, and others so named")
    parser.add_argument("--dialogues", type=int, help=f"for the loss; {DIALOGUES} on a small model")
    parser.add_argument("--repeats", type=int, help=f"of each turn; {REPEATS} on a small model")
    parser.add_argument("--rounds", type=int, help=f"of interleaved decoding; {ROUNDS} on a small model")
    parser.add_argument("--quick", action="store_true", help="few repetitions, and no readings")
    parser.add_argument("--kills", type=int, help=f"while cells are written; {KILLS} by default")
    options = parser.parse_args()
    if options.quick:
        options.dialogues, options.repeats, options.rounds = (
            options.dialogues or 2,
            options.repeats or 1,
            options.rounds or 4,
        )
        options.kills = options.kills or 3
        options.only = options.only or [part for part in PARTS if part != "readings"]
    path = resolve(options.model) if options.model else catalogue.ensure(catalogue.CHAT)
    wanted = options.only or PARTS
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with LlamaEngine(path, limits=Limits(cells=Path(folder) / "cells")) as engine:
            result["model"] = engine.info.name
            measure(engine, result, options, wanted, Path(folder))
            share, fits = _share(engine), engine.info.context > BUDGET + 600
            cuts = engine.info.abilities.cuts
        for measured in (restart_speedup, switch_speedup) if "turn" in wanted else ():
            note(f"{measured.__name__}: {LIVE} live tokens")
            result[measured.__name__] = measured(path, Path(folder)) if cuts and fits else None
        there = any(options.data.glob("*.json"))
        if "kv" in wanted:
            note("kv_q8_0: keys in 8 bits")
            count = options.dialogues or max(1, round(DIALOGUES * share / 2))
            result["kv_q8_0"] = _checked(
                cuts and there,
                "no dialogues, or a cache that cannot be cut",
                lambda: kv_types(path, Path(folder), options.data, count, result.pop("kv_f16")),
            )
        if "kills" in wanted:
            note("kills: while cells are written")
            result["kills"] = drill(path, options.kills or KILLS) if cuts else None
        if "readings" in wanted:
            note("turns_between_readings: a model that cannot be cut, as if this were one")
            turns = max(10, round(TURNS * share))
            result["turns_between_readings"] = _checked(
                there and fits,
                "no dialogues, or a context that is too small",
                lambda: turns_between_readings(path, Path(folder), options.data, turns),
            )
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


def _share(engine: LlamaEngine) -> float:
    """How much of all repetitions there is time for."""
    return min(1.0, max(0.25, SMALL / max(1, engine.info.parameters)))


def measure(
    engine: LlamaEngine,
    result: dict[str, Any],
    options: argparse.Namespace,
    wanted: Iterable[str],
    folder: Path,
) -> None:
    abilities, share = engine.info.abilities, _share(engine)
    rounds = options.rounds or max(6, round(ROUNDS * share))
    cannot_cut = "the cache of this model cannot be cut"
    if "capture" in wanted:
        note("capture_ratio")
        found = None
        if abilities.attention:
            calibration = calibrated(engine, calibration_folder(folder), lambda *_: None)
            found = capture_ratio(engine, calibration, rounds)
        result["capture_ratio"] = found[Settings().strategy] if found else None
        result["capture_ratio_by_strategy"] = found
    if "turn" in wanted:
        note(f"turn_speedup: {LIVE} live, {PRUNED} pruned, {RETURNING} return, first token")
        repeats = options.repeats or max(1, round(REPEATS * share))
        fits = engine.info.context > LIVE + PRUNED + RETURNING
        why = "its context is too small" if abilities.cuts else cannot_cut
        result["turn_speedup"] = _checked(abilities.cuts and fits, why, lambda: turn_speedup(engine, repeats))
    if "nll" in wanted:
        note(f"nll: dialogues of {options.data}")
        count = options.dialogues or max(1, round(DIALOGUES * share))
        there = any(options.data.glob("*.json"))
        why = f"no dialogues in {options.data}; name a folder with --data" if abilities.cuts else cannot_cut
        result["nll"] = _checked(abilities.cuts and there, why, lambda: nll(engine, options.data, count))
    if "kv" in wanted and abilities.cuts and any(options.data.glob("*.json")):
        count = options.dialogues or max(1, round(DIALOGUES * share / 2))
        found = result.get("nll")
        same = isinstance(found, dict) and found["windows"] == count
        result["kv_f16"] = found if same else nll(engine, options.data, count)
    if "rounds" in wanted:
        note("rounds")
        result["rounds"] = _checked(
            abilities.attention and abilities.cuts,
            "its cache cannot be cut, or what it looks at cannot be read",
            lambda: random_rounds(engine, RANDOM_ROUNDS),
        )
    if "plain" in wanted:
        note("plain_ratio")
        result["plain_ratio"] = plain_ratio(engine, rounds)


if __name__ == "__main__":
    main()
