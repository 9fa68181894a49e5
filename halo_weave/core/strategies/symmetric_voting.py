"""Symmetric voting: plus one when attention is above the row's mean, else minus one, between 0 and 255. From the
prototype."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halo_weave.core.brightness import AttentionRow, Floats, Strategy, StrategyInput, TokenBrightness

HIGHEST = 255.0


@dataclass(frozen=True, slots=True)
class SymmetricVoting(Strategy):
    """Tokens begin at 255, the highest brightness."""

    ignores: ClassVar[Mapping[str, str]] = {"brightness_cap": "no token becomes brighter than 255."}

    def born(self, surprisal: Floats) -> TokenBrightness:
        return TokenBrightness(np.full(surprisal.shape, HIGHEST, np.float32))

    def brighten(self, sight: StrategyInput, row: AttentionRow) -> TokenBrightness:
        after = sight.light.brightness.copy()
        votes = np.where(row.tokens[: sight.scored] > 1 / row.length, np.float32(1), np.float32(-1))
        after[: sight.scored] = np.clip(after[: sight.scored] + votes, 0, HIGHEST)
        return TokenBrightness(after)
