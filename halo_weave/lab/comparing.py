"""Strategies side by side on one capture: what each put to sleep, and how far they agree."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from halo_weave.lab.capture import TapedWindow
from halo_weave.lab.replay import Replayed, replay


def compared(
    tape: TapedWindow, strategies: Sequence[str], budget: int | None
) -> tuple[dict[str, Replayed], dict[str, Any]]:
    """The replays, and what they came to."""
    done, told = {}, {}
    for name in strategies:
        began = time.perf_counter()
        one = done[name] = replay(tape, strategy=name, budget=budget)
        seconds = time.perf_counter() - began
        ages = [slept.age for slept in one.slept]
        told[name] = {
            "turns": len(one.brightness),
            "asleep": len(one.slept),
            "woken": len(one.woken),
            "woken_tokens": one.woken_tokens,
            "live": len(one.brightness[-1]) if one.brightness else 0,
            "median_age": float(np.median(ages)) if ages else None,
            "rows": one.rows,
            "rows_per_second": round(one.rows / seconds) if seconds else None,
        }
    return done, {"strategies": told, "agreement": _agreement(done)}


def _agreement(done: Mapping[str, Replayed]) -> dict[str, float]:
    """For each pair, the mean over turns of what both keep live, of what either does."""
    found = {}
    for one, other in combinations(done, 2):
        shares = [
            len(a.keys() & b.keys()) / len(a.keys() | b.keys())
            for a, b in zip(done[one].brightness, done[other].brightness, strict=True)
            if a or b
        ]
        found[f"{one}, {other}"] = round(float(np.mean(shares)), 4) if shares else 1.0
    return found
