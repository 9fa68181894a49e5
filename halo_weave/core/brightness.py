"""Attention becomes brightness. A strategy is a small dataclass with one method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRow:
    """What one token looked at: each live token's share, and what frames and system prompt took."""

    tokens: npt.NDArray[np.float32]  # (live tokens,), in time order
    frames: float = 0.0  # share of all frame tokens together
    system: float = 0.0  # share of the system prompt's tokens together
    aside: int = 0  # how many frame and system tokens there are
    aside_peak: float = 0.0  # the largest single share among them
    first: float | None = None  # the share of the very first token of the context, when that is aside
