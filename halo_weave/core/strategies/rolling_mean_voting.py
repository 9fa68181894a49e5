"""Rolling-mean voting: one vote for each time that attention is above the row's mean, if the token is far enough away.
From the prototype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from halo_weave.core.brightness import AttentionRow, Floats, Strategy, StrategyInput, TokenBrightness

NEAR = 50  # tokens at most so far behind the newest get no vote


@dataclass(frozen=True, slots=True)
class RollingMeanVoting(Strategy):
    """Tokens begin at 0 and never lose votes. New chunks have had little time to get any, so the oldest chunks stay longest."""

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        return TokenBrightness(np.zeros(surprisal.shape, np.float32))

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        after = state.tokens.brightness.copy()
        far = max(0, min(state.scored, row.tokens.size - NEAR))
        voted = row.tokens[:far] > 1 / row.length
        after[:far] = np.minimum(after[:far] + voted, np.float32(self.brightness_cap))
        return TokenBrightness(after)
