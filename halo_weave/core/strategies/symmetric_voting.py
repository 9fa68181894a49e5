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

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        return TokenBrightness(np.full(surprisal.shape, HIGHEST, np.float32))

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        after = state.tokens.brightness.copy()
        votes = np.where(row.tokens[: state.scored] > 1 / row.length, np.float32(1), np.float32(-1))
        after[: state.scored] = np.clip(after[: state.scored] + votes, 0, HIGHEST)
        return TokenBrightness(after)
