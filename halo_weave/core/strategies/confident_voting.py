"""Confident voting: magnitude voting in which a row counts as much as the model was sure of the token that it then
generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halo_weave.core.brightness import AttentionRow, Floats, Strategy, StrategyInput, TokenBrightness

SURPRISAL, PENDING = range(2)


@dataclass(frozen=True, slots=True)
class ConfidentVoting(Strategy):
    """The model's certainty is known only after the token, so each row waits for it. A row of a sure model raises and
    lowers brightness; a row of an unsure one changes nothing."""

    traces: ClassVar[tuple[str, ...]] = ("surprisal", "pending")

    def born(self, surprisal: Floats) -> TokenBrightness:
        traces = np.stack([surprisal, np.zeros_like(surprisal)]).astype(np.float32)
        return TokenBrightness(np.full(surprisal.shape, self.initial_brightness, np.float32), traces)

    def brighten(self, sight: StrategyInput, row: AttentionRow) -> TokenBrightness:
        light = self._settled(sight)
        assert light.traces is not None
        if sight.scored and row.length > 1:
            threshold = max(1 - row.sink("max"), 1e-9) / (row.length - 1)
            shares = row.tokens[: sight.scored].astype(np.float64)
            votes = np.where(shares > threshold, np.floor(shares / threshold), -1)
            light.traces[PENDING, : sight.scored] = votes
        return light

    def after_reply(self, sight: StrategyInput) -> TokenBrightness | None:
        light = self._settled(sight)
        assert light.traces is not None
        light.traces[PENDING] = 0
        return light

    def _settled(self, sight: StrategyInput) -> TokenBrightness:
        """Apply the last row, now that its token is known: the newest token of the reply, or of the window after the
        reply."""
        assert sight.light.traces is not None
        traces, after = sight.light.traces.copy(), sight.light.brightness.copy()
        surprisal = float(traces[SURPRISAL, -1]) if traces.shape[1] else np.nan
        if np.isfinite(surprisal):
            pending = np.nan_to_num(traces[PENDING]) * np.float32(np.exp(-max(0.0, surprisal)))
            np.minimum(after + pending, np.float32(self.brightness_cap), out=after)
        traces[PENDING] = 0
        return TokenBrightness(after, traces)
