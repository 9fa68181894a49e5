"""Confident voting: magnitude voting in which each row is weighted with the probability of the token generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halo_weave.core.brightness import AttentionRow, Floats, Strategy, StrategyInput, TokenBrightness

SURPRISAL, PENDING = range(2)


@dataclass(frozen=True, slots=True)
class ConfidentVoting(Strategy):
    """The votes of a row are kept in the trace `pending` until the probability of its token is known. A row counts fully if
    that is 1, and hardly if the model was unsure."""

    traces: ClassVar[tuple[str, ...]] = ("surprisal", "pending")

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        traces = np.stack([surprisal, np.zeros_like(surprisal)]).astype(np.float32)
        return TokenBrightness(np.full(surprisal.shape, self.initial_brightness, np.float32), traces)

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        tokens = self._settled(state)
        assert tokens.traces is not None
        if state.scored and row.length > 1:
            threshold = max(1 - row.sink("max"), 1e-9) / (row.length - 1)
            shares = row.tokens[: state.scored].astype(np.float64)
            votes = np.where(shares > threshold, np.floor(shares / threshold), -1)
            tokens.traces[PENDING, : state.scored] = votes
        return tokens

    def after_reply(self, state: StrategyInput) -> TokenBrightness | None:
        tokens = self._settled(state)
        assert tokens.traces is not None
        tokens.traces[PENDING] = 0
        return tokens

    def _settled(self, state: StrategyInput) -> TokenBrightness:
        """Apply the pending votes, weighted with the probability of the newest token."""
        assert state.tokens.traces is not None
        traces, after = state.tokens.traces.copy(), state.tokens.brightness.copy()
        surprisal = float(traces[SURPRISAL, -1]) if traces.shape[1] else np.nan
        if np.isfinite(surprisal):
            pending = np.nan_to_num(traces[PENDING]) * np.float32(np.exp(-max(0.0, surprisal)))
            np.minimum(after + pending, np.float32(self.brightness_cap), out=after)
        traces[PENDING] = 0
        return TokenBrightness(after, traces)
