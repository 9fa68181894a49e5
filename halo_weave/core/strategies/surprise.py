"""Surprise: tokens that the model did not expect are bright; attention has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halo_weave.core.brightness import (
    AttentionRow,
    Capture,
    Floats,
    Strategy,
    StrategyInput,
    TokenBrightness,
    means,
)

PER_NAT = 1_000.0  # brightness


@dataclass(frozen=True, slots=True)
class Surprise(Strategy):
    """A token is as bright as its surprisal, a chunk as the mean of its tokens."""

    ignores: ClassVar[Mapping[str, str]] = {"score_current_turn": "attention changes nothing."}

    @property
    def capture(self) -> Capture:
        return Capture(reply=False, reading_surprisal=True)

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        earned = np.minimum(surprisal * np.float32(PER_NAT), np.float32(self.brightness_cap))
        known = np.where(np.isnan(surprisal), np.float32(self.initial_brightness), earned)
        return TokenBrightness(known.astype(np.float32))

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        return TokenBrightness(state.tokens.brightness)

    def of_chunks(self, state: StrategyInput) -> Floats:
        return means(state.tokens.brightness, state.offsets)
