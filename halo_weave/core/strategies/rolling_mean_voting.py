"""Rolling-mean voting: one vote for each time that attention is above the row's mean, if the token is far enough away.
From the prototype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halo_weave.core.brightness import AttentionRow, Floats, Strategy, StrategyInput, TokenBrightness

NEAR = 50  # tokens behind the newest one; nearer ones get no vote


@dataclass(frozen=True, slots=True)
class RollingMeanVoting(Strategy):
    """Tokens begin at 0 and never lose a vote. New chunks had no chance to get one, so the oldest stay longest."""

    def born(self, surprisal: Floats) -> TokenBrightness:
        return TokenBrightness(np.zeros(surprisal.shape, np.float32))

    def brighten(self, sight: StrategyInput, row: AttentionRow) -> TokenBrightness:
        after = sight.light.brightness.copy()
        far = max(0, min(sight.scored, row.tokens.size - NEAR))
        voted = row.tokens[:far] > 1 / row.length
        after[:far] = np.minimum(after[:far] + voted, np.float32(self.brightness_cap))
        return TokenBrightness(after)
