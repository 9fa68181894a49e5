"""Cumulative: attention adds up, weighted by distance, and decays a little with each token. From the prototype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from halo_weave.core.brightness import AttentionRow, Capture, Strategy, StrategyInput, TokenBrightness
from halo_weave.core.setting_fields import setting

NEAR, SCALE = (
    20,
    10.0,
)  # tokens nearer than NEAR gain nothing; beyond, the gain grows with log(distance / SCALE)
BRIGHTNESS_PER_UNIT = 10_000.0  # of the prototype's units


@dataclass(frozen=True, slots=True)
class Cumulative(Strategy):
    """A token gains its share of each row, weighted by its distance, and loses `fade_per_token`, by a number or by a share."""

    fade_per_token: float = setting(
        20.0,
        "Brightness that a token loses with each token of a reply.",
        group="Forgetting",
        low=0,
        high=10_000,
    )
    fade_rate: float = setting(
        0.0,
        "Share of its brightness that a token loses with each token of a reply, in addition to `fade_per_token`.",
        group="Forgetting",
        low=0,
        high=1,
    )
    aggregate: Literal["mean", "max"] = setting(
        "mean",
        "How the attention of all heads is combined: their mean, or the largest.",
        group="Forgetting",
        choices=("mean", "max"),
    )

    @property
    def capture(self) -> Capture:
        return Capture(combine=self.aggregate)

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        after = state.tokens.brightness.copy()
        distance = row.tokens.size - np.arange(state.scored, dtype=np.float32)
        weights = np.where(distance < NEAR, 0, np.log1p(np.maximum(distance - NEAR, 0) / SCALE))
        scored = after[: state.scored]
        scored *= np.float32(1 - self.fade_rate)
        scored += row.tokens[: state.scored] * weights * np.float32(BRIGHTNESS_PER_UNIT) - np.float32(
            self.fade_per_token
        )
        np.clip(scored, 0, np.float32(self.brightness_cap), out=scored)
        return TokenBrightness(after)
