"""What was measured, as records that can be kept in a file, and the figures made from them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.errors import BadInput
from halo_weave.lab.dialogues import KINDS

FLIPS = 10_000
SLIDING = "first_in_first_out"  # what a sliding window does: the measure end to end
Record = Mapping[str, Any]


class Records:
    """Records by what they are about. With a file they are kept, so that a long measurement can go on later."""

    def __init__(self, file: Path | None, **about: Any) -> None:
        """`about`: what must be the same for records to belong together, such as the model."""
        self._file, self._about = file, about
        self.known: dict[str, Record] = {}
        if file is not None and file.exists():
            lines = file.read_text(encoding="utf-8").splitlines()
            try:
                first, *rest = [json.loads(line) for line in lines if line.strip()]
            except ValueError:
                raise BadInput(f"{file} holds no records of a measurement.") from None
            if first != json.loads(json.dumps(about)):
                raise BadInput(f"{file} holds records of another measurement: {first}. Name another file.")
            self.known = {one["name"]: one for one in rest}

    def add(self, name: str, record: Record) -> None:
        self.known[name] = {"name": name, **record}
        if self._file is not None:
            fresh = not self._file.exists()
            with self._file.open("a", encoding="utf-8") as out:
                if fresh:
                    out.write(json.dumps(self._about) + "\n")
                out.write(json.dumps(self.known[name]) + "\n")

    def of(self, kind: str) -> list[Record]:
        return [one for name, one in sorted(self.known.items()) if name.startswith(f"{kind} ")]


def attribution(windows: Iterable[Record]) -> dict[str, Any]:
    """By each way of reading: how often the brightest chunk, or one of three, is what the answer came from."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in (answer for one in windows for answer in one["answers"]):
        for way, place in answer["places"].items():
            for group in ("", answer["kind"]):
                counts[way][f"questions {group}"] += 1
                counts[way][f"top1 {group}"] += place == 1
                counts[way][f"top3 {group}"] += 1 <= place <= 3

    def told(count: Counter[str], group: str) -> dict[str, float]:
        asked = count[f"questions {group}"]
        tops = {top: round(count[f"{top} {group}"] / asked, 4) for top in ("top1", "top3")}
        return {**tops, "questions": asked}

    return {
        way: {
            **told(count, ""),
            "by_category": {kind: told(count, kind) for kind in KINDS.values() if count[f"questions {kind}"]},
        }
        for way, count in counts.items()
    }


def keeping(windows: Sequence[Record]) -> dict[str, dict[str, float]]:
    """By strategy and share of the window that was kept: the mean over windows."""
    return {
        name: {share: round(float(np.mean(values)), 4) for share, values in shares.items()}
        for name, shares in _kept(windows).items()
    }


def against(windows: Sequence[Record], one: str) -> dict[str, dict[str, dict[str, float]]]:
    """How far a strategy is ahead of each other one, and how often chance would do as much.

    The signs of the windows' differences are flipped at random, for a difference in either direction.
    """
    kept = _kept(windows)
    return {
        other: {
            share: flipped(np.array(kept[one][share]) - np.array(values)) for share, values in shares.items()
        }
        for other, shares in kept.items()
        if other != one
    }


def flipped(differences: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    flips = np.random.default_rng(1).choice([-1.0, 1.0], (FLIPS, len(differences)))
    as_large = np.abs((flips * differences).mean(axis=1)) >= abs(differences.mean()) - 1e-12
    return {"difference": round(float(differences.mean()), 4), "p": round(float(as_large.mean()), 4)}


def end_to_end(wholes: Iterable[Record]) -> dict[str, dict[str, dict[str, Any]]]:
    """By budget and strategy: the share of questions with all their evidence in the context, and tokens read.

    `ahead`: of first in, first out, on the same questions; p as in `against`, over the questions.
    """
    wholes = list(wholes)
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in wholes:
        count = sums[one["budget"], one["strategy"]]
        count.update({name: value for name, value in one.items() if isinstance(value, int)})
        count["conversations"] += 1
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for (budget, strategy), count in sums.items():
        asked = max(1, count["questions"])
        found[budget][strategy] = {
            "evidence": round(count["found"] / asked, 4),
            "evidence_live": round(count["live"] / asked, 4),
            "read_tokens": count["read_tokens"],
            "woken_tokens": count["woken_tokens"],
            "questions": count["questions"],
            "conversations": count["conversations"],
        }
        if strategy != SLIDING and (pairs := _same_questions(wholes, budget, strategy)):
            found[budget][strategy]["ahead"] = flipped(np.concatenate(pairs))
    return dict(found)


def _same_questions(
    wholes: Sequence[Record], budget: str, strategy: str
) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """For each conversation said with both: for each question 1 if only the strategy has its evidence, -1 if only the other."""
    there: dict[str, dict[str, Any]] = defaultdict(dict)
    for one in wholes:
        if one["budget"] == budget and "each" in one:
            there[one["dialogue"]][one["strategy"]] = one["each"]
    return [
        np.array(by[strategy], np.float64) - np.array(by[SLIDING], np.float64)
        for by in there.values()
        if len(by.get(strategy, ())) == len(by.get(SLIDING, ())) > 0
    ]


def _kept(windows: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in windows:
        for name, shares in one["kept"].items():
            for share, value in shares.items():
                found[name][share].append(value)
    return found
