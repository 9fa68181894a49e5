"""Magnitude voting: a token gains brightness when its attention is above a threshold, and loses a little otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from halo_weave.core.brightness import AttentionRow, PairPruning, Strategy, StrategyInput, TokenBrightness
from halo_weave.core.setting_fields import setting


@dataclass(frozen=True, slots=True)
class MagnitudeVoting(Strategy):
    """Above the threshold a token gains its share over the threshold, rounded down; else it loses `decay`."""

    pairs: ClassVar[PairPruning] = "dimmer"

    decay: float = setting(
        1.0,
        "Brightness that a token loses each time it gets little attention.",
        group="Forgetting",
        low=0,
        high=10_000,
    )
    sink: Literal["max", "first"] = setting(
        "max",
        "The attention sink: the token with the largest share, or the first token.",
        group="Forgetting",
        choices=("max", "first"),
    )

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        after = state.tokens.brightness.copy()
        if not state.scored or row.length < 2:
            return TokenBrightness(after)
        threshold = max(1 - row.sink(self.sink), 0.0) / (row.length - 1)
        # Few tokens are above the threshold, so only those are divided, in float64; the comparison is exact in float32.
        (above,) = (row.tokens[: state.scored] > _not_above(threshold)).nonzero()
        shares = row.tokens.take(above).astype(np.float64)
        # All attention on the sink makes the threshold 0: the sink then simply reaches the cap.
        votes = np.floor(shares / threshold) if threshold > 0 else np.full(shares.shape, 2.0**24)
        earned = np.minimum(after.take(above) + votes, self.brightness_cap).astype(np.float32)
        scored = after[: state.scored]
        scored -= np.float32(self.decay)
        scored[above] = earned
        if scored.max() > self.brightness_cap:  # only after the cap was lowered
            np.minimum(scored, np.float32(self.brightness_cap), out=scored)
        return TokenBrightness(after)


def _not_above(threshold: float) -> np.float32:
    """The largest float32 that is not above the threshold: the same float32 values are above both."""
    nearest = np.float32(threshold)
    # As Python floats: NumPy would round the threshold to float32 before it compares.
    return nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf))
