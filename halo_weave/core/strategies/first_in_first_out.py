"""First in, first out: the oldest chunks are pruned first, whatever the attention. Like a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halo_weave.core.brightness import AttentionRow, Capture, Floats, Strategy, StrategyInput, TokenBrightness


@dataclass(frozen=True, slots=True)
class FirstInFirstOut(Strategy):
    """Tokens keep the brightness that they begin with; a chunk's brightness depends on its age."""

    ignores: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("initial_brightness", "brightness_cap", "resurrection_brightness", "score_current_turn"),
        "only age decides what is pruned.",
    )

    @property
    def capture(self) -> Capture:
        return Capture(reply=False)

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        return state.tokens

    def of_chunks(self, state: StrategyInput) -> Floats:
        return -state.ages.astype(np.float32)
