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
from benchmarks.engine_borrow import cross_window_speedup, lent_quality
from benchmarks.engine_loss import SEEN, kv_types, nll, nll_ahead
from benchmarks.engine_readings import BUDGET, turns_between_readings
from benchmarks.engine_speed import capture_ratio, plain_ratio
from benchmarks.engine_talk import (
    Piece,
    facts,
    first_token,
    forget_asleep,
    leave_to_disk,
    note,
    pieces,
    prompt,
)
from halo_weave.engines.base import UNSENT_LABELS, Capture, PrefillResult, Prompt, Sampling, Step
from halo_weave.engines.calibration import load_or_calibrate
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.models import catalogue
from halo_weave.models.inventory import resolve
from halo_weave.paths import calibration_folder
from halo_weave.settings import KvMode, Settings

LIVE, PRUNED, RETURNING, QUESTION = 2000, 300, 200, 20
DIALOGUES, REPEATS, ROUNDS, TURNS = 24, 3, 20, 20  # on a small model; on larger ones fewer
SMALL = 300_000_000  # weights
RANDOM_ROUNDS = 50


def turn_speedup(engine: LlamaEngine, repeats: int) -> dict[str, Any]:
    """Prune and resurrect, then the first token after a question: time of reading anew over time of surgery.

    `ahead`: what returns was computed while the question was typed. `typed`: and so was the question itself, as the page's
    preview does it; by where what returns came from.
    """
    size = LIVE + PRUNED
    system, pruned, chunk, rest, asked = pieces(
        facts(engine, size), 40, PRUNED, RETURNING, size - 40 - PRUNED - RETURNING - QUESTION, QUESTION
    )
    before, new = prompt([system, pruned, rest]), itertools.count(size, QUESTION)
    sources = ("resident", "disk", "computed")
    cases = [
        *((source, "") for source in sources),
        ("computed", "chunk"),
        *((source, "all") for source in sources),
    ]
    times: dict[tuple[str, str], list[float]] = {case: [] for case in [*cases, ("exact", "")]}
    for _ in range(repeats):
        first_token(engine, "turn", prompt([system, pruned, chunk, rest]), "splice")
        for (source, ahead), sampled in times.items():
            first_token(engine, "turn", before, "splice")
            if source == "disk":
                leave_to_disk(engine, "turn")
            elif source == "computed":
                forget_asleep(engine, "turn")
            question = Piece(next(new) + np.arange(QUESTION), asked.ids)  # nobody has read it before
            if ahead:
                typed = [Piece(UNSENT_LABELS - np.arange(QUESTION), asked.ids)] if ahead == "all" else []
                coming = prompt([system, chunk, rest, *typed])
                seen = Prompt(coming.segments, coming.next_label, UNSENT_LABELS) if typed else coming
                engine.scheduler.wait_until_idle()  # nothing is read ahead in a window that speaks
                engine.prefetch("turn", seen, room=64, capture=SEEN if typed else None)
                engine.scheduler.wait_until_idle()
            after = (
                prompt([system, chunk, rest], read=question)
                if ahead == "all"
                else prompt([system, chunk, rest, question])
            )
            mode: KvMode = "exact" if source == "exact" else "splice"
            taken, read = first_token(engine, "turn", after, mode, SEEN if ahead == "all" else None)
            sampled.append(taken)
            note(
                f"  {source}{ahead and f', {ahead} ahead'}: {taken * 1e3:.0f} ms "
                f"({read.reused} reused, {read.restored} restored, {read.computed} computed)"
            )
            new_tokens = {"": QUESTION, "chunk": QUESTION, "all": 1}[ahead]
            computes = not ahead and source in ("computed", "exact")
            assert (read.restored >= RETURNING) == (not ahead and source in ("resident", "disk")), (
                f"{source}: {read}"
            )
            assert (read.computed > new_tokens + 1) == computes, (
                f"{source}, {ahead}: {read.computed} computed"
            )
        engine.forget("turn")
    exact = statistics.median(times["exact", ""])
    speedup = {case: round(exact / statistics.median(times[case]), 1) for case in cases}
    return {
        **{source: speedup[source, ""] for source in sources},
        "ahead": speedup["computed", "chunk"],
        "typed": {source: speedup[source, "all"] for source in sources},
    }


def restart_speedup(path: Path, folder: Path) -> float:
    """First token of a window that the engine before this one had, against reading it anew."""
    limits = EngineLimits(cells=folder / "cells")
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
    with LlamaEngine(path, limits=EngineLimits(cells=folder / "cells", memory_bytes=1)) as engine:
        talk, question = pieces(facts(engine, LIVE + 20), LIVE, 20)
        anew, _ = first_token(engine, "one", prompt([talk]), "splice")
        first_token(engine, "two", prompt([question]), "splice")
        assert engine.disk is not None
        engine.disk.flush()
        taken, read = first_token(engine, "one", prompt([talk, question]), "splice")
        assert read.reused >= LIVE - 1, read
        note(f"  back: {taken * 1e3:.0f} ms ({read.reused} from disk); anew: {anew * 1e3:.0f} ms")
        engine.forget("one")
    return round(anew / taken, 1)


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
            if isinstance(event, PrefillResult):
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
        if cache.last_attention is not None:
            dead = np.ones(cache.last_attention.shape[1], dtype=bool)
            dead[columns] = False
            faults += bool(np.any(cache.last_attention[-1][dead]))
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


PARTS = ("capture", "turn", "lent", "nll", "ahead", "kv", "rounds", "plain", "readings", "kills")
KILLS, QUESTIONS = 100, 20


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
    path = resolve(options.model) if options.model else catalogue.ensure(catalogue.SMOLLM2_135M)
    wanted = options.only or PARTS
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with LlamaEngine(path, limits=EngineLimits(cells=Path(folder) / "cells")) as engine:
            result["model"] = engine.info.name
            measure(engine, result, options, wanted, Path(folder))
            share, fits = _share(engine), engine.info.context > BUDGET + 600
            cuts = engine.info.abilities.cuts
        for measured in (restart_speedup, switch_speedup) if "turn" in wanted else ():
            note(f"{measured.__name__}: {LIVE} live tokens")
            result[measured.__name__] = measured(path, Path(folder)) if cuts and fits else None
        if "lent" in wanted:
            note("cross_window_speedup: 450 tokens of another window return")
            result["cross_window_speedup"] = _checked(
                cuts and fits,
                "a cache that cannot be cut, or a context that is too small",
                lambda: cross_window_speedup(path, Path(folder), options.repeats or REPEATS),
            )
        there = any(options.data.glob("*.json"))
        if "kv" in wanted:
            note("kv_q8_0: keys in 8 bits")
            count = options.dialogues or max(1, round(DIALOGUES * share / 2))
            result["kv_q8_0"] = _checked(
                cuts and there,
                "no dialogues, or a cache that cannot be cut",
                lambda: kv_types(path, Path(folder), options.data, count),
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
            calibration = load_or_calibrate(engine, calibration_folder(folder), lambda *_: None)
            found = capture_ratio(engine, calibration, rounds)
        result["capture_ratio"] = found[Settings().strategy] if found else None
        result["capture_ratio_by_strategy"] = found
    if "turn" in wanted:
        note(f"turn_speedup: {LIVE} live, {PRUNED} pruned, {RETURNING} return, first token")
        repeats = options.repeats or max(1, round(REPEATS * share))
        fits = engine.info.context > LIVE + PRUNED + RETURNING
        why = "its context is too small" if abilities.cuts else cannot_cut
        result["turn_speedup"] = _checked(abilities.cuts and fits, why, lambda: turn_speedup(engine, repeats))
    if "lent" in wanted:
        note("lent_quality: questions in a new window about another one")
        calibration = load_or_calibrate(engine, calibration_folder(folder), lambda *_: None)
        count = options.dialogues or max(4, round(QUESTIONS * share))
        result["lent_quality"] = _checked(
            abilities.cuts, cannot_cut, lambda: lent_quality(engine, calibration, options.data, count)
        )
    if "nll" in wanted:
        note(f"nll: dialogues of {options.data}")
        count = options.dialogues or max(1, round(DIALOGUES * share))
        there = any(options.data.glob("*.json"))
        why = f"no dialogues in {options.data}; name a folder with --data" if abilities.cuts else cannot_cut
        result["nll"] = _checked(abilities.cuts and there, why, lambda: nll(engine, options.data, count))
    if "ahead" in wanted:
        note("nll_ahead: what follows a message that was read ahead")
        count = options.dialogues or max(1, round(DIALOGUES * share / 2))
        result["nll_ahead"] = _checked(
            abilities.prefetch and abilities.cuts and any(options.data.glob("*.json")),
            "no dialogues, or nothing can be read ahead",
            lambda: nll_ahead(engine, options.data, count),
        )
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
