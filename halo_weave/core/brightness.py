"""Captured attention, and the interface of the strategies that turn it into brightness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from halo_weave.core.retrieval_heads import NOT_CALIBRATED, Calibration
from halo_weave.core.tokens import Brightness, Chunk
from halo_weave.errors import BadInput

INITIAL_BRIGHTNESS = 10_000.0
HYBRID_FLOOR = 255.0
SUM_TOLERANCE = 1e-2

Floats = npt.NDArray[np.float32]
Offsets = npt.NDArray[np.int64]
# How a question and its answer are pruned: each on its own, or together when the brighter or the dimmer one is due.
PairPruning = Literal["apart", "brighter", "dimmer"]


@dataclass(frozen=True, slots=True)
class Capture:
    """Which attention is read, and how layers and heads are combined to one row. Chosen for each generation."""

    layers: tuple[int, ...] | None = None  # None: all
    heads: tuple[int, ...] | None = None  # None: all
    pairs: tuple[tuple[int, int], ...] | None = None  # (layer, head), in place of `layers` and `heads`
    combine: Literal["mean", "max"] = "mean"
    reply: bool = True  # a row for each generated token
    reading: bool = False  # rows of the user turn's tokens while they are read
    reading_surprisal: bool = False  # surprisal of those tokens; that of the reply is always captured
    raw: bool = False  # with each row also the single rows of the chosen pairs: `AttentionRow.raw`
    raw_pairs: tuple[tuple[int, int], ...] | None = None  # which of the pairs; None: all

    def chosen(self, layers: int, heads: int) -> list[tuple[int, int]]:
        """The (layer, head) pairs to read, for a model with so many layers and heads."""
        if self.pairs is not None and (self.layers is not None or self.heads is not None):
            raise BadInput("Choose either pairs of layer and head, or layers and heads.")
        pairs = list(
            product(
                range(layers) if self.layers is None else self.layers,
                range(heads) if self.heads is None else self.heads,
            )
            if self.pairs is None
            else self.pairs
        )
        if not pairs:
            raise BadInput("No layer and head was chosen to read attention from.")
        for layer, head in pairs:
            if not 0 <= layer < layers:
                raise BadInput(f"The model has {layers} layers, so there is no layer {layer}.")
            if not 0 <= head < heads:
                raise BadInput(f"The model has {heads} heads, so there is no head {head}.")
        if len(set(pairs)) != len(pairs):
            raise BadInput("A layer and head was chosen twice to read attention from.")
        if not set(self.raw_pairs or ()) <= set(pairs):
            raise BadInput("`raw_pairs` names a layer and head that was not chosen.")
        return pairs

    def chosen_raw(self, layers: int, heads: int) -> list[tuple[int, int]]:
        """The (layer, head) pairs whose single rows are read, in order."""
        pairs = self.chosen(layers, heads)
        return pairs if self.raw_pairs is None else list(self.raw_pairs)


class RowFault(StrEnum):
    """Why an attention row was not used. Such a row changes nothing; it is counted."""

    MISSING = "missing"
    EMPTY = "empty"
    SHORT = "too short"
    LONG = "too long"
    NOT_FINITE = "not finite"
    NEGATIVE = "negative"
    ZERO = "all zero"
    NOT_ONE = "does not sum to 1"


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRow:
    """The attention of one token: the share of each live token, and those of frames and system prompt."""

    tokens: Floats  # (live tokens,), in time order
    frames: float = 0.0  # share of all frame tokens together
    system: float = 0.0  # share of the system prompt's tokens together
    aside: int = 0  # how many frame and system tokens there are
    aside_peak: float = 0.0  # the largest single share among them
    first: float | None = None  # the share of the context's first token, if that is a frame or system token
    raw: Floats | None = None  # (pairs, live tokens) as `Capture.chosen_raw` orders them; None: not captured

    def fault(self, live: int) -> RowFault | None:
        """Why the row cannot be used for a window of `live` tokens; None: it can."""
        if self.tokens.ndim != 1 or not self.tokens.size:
            return RowFault.EMPTY
        if self.tokens.size != live:
            return RowFault.SHORT if self.tokens.size < live else RowFault.LONG
        with np.errstate(invalid="ignore"):
            # `einsum` is three times as fast as `sum`.
            total = float(np.einsum("i->", self.tokens)) + self.frames + self.system
        if not np.isfinite(total):
            return RowFault.NOT_FINITE
        if self.tokens.min() < 0 or min(self.frames, self.system) < 0:
            return RowFault.NEGATIVE
        if total == 0:
            return RowFault.ZERO
        return None if abs(total - 1) <= SUM_TOLERANCE else RowFault.NOT_ONE

    @property
    def length(self) -> int:
        """All tokens of the context, frames and system prompt included."""
        return self.tokens.size + self.aside

    def sink(self, kind: Literal["max", "first"]) -> float:
        """The share of the attention sink: the token that gets the attention when nothing is relevant."""
        if kind == "first":
            return float(self.tokens[0]) if self.first is None else self.first
        return max(float(self.tokens.max()), self.aside_peak)


@dataclass(frozen=True, slots=True, eq=False)
class TokenBrightness:
    """What a strategy keeps for each token: its brightness, and its traces if the strategy has any."""

    brightness: Brightness  # (n,)
    traces: Floats | None = None  # (traces of the strategy, n); None where it has none


@dataclass(frozen=True, slots=True, eq=False)
class StrategyInput:
    """The working set as the input of a strategy. The arrays are views of the working set's own: a strategy must neither
    change nor keep them."""

    tokens: TokenBrightness  # of all live tokens, the reply in progress last
    chunks: Sequence[Chunk]  # in order of time, without the reply in progress
    offsets: Offsets  # (chunks + 1,), where each chunk's tokens begin
    ages: npt.NDArray[np.int64]  # (chunks,) age in turns; 0 is the newest
    scored: int  # tokens before this index may change; those of the current turn come after it
    # For values that the strategy computes once and uses for several rows. Emptied when something other than the strategy
    # changes the chunks or their traces.
    cache: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Strategy(ABC):
    """How attention, surprisal, size and age become brightness.

    A strategy is a frozen dataclass in a module of its own in `core.strategies`. Fields made by `setting` are its
    own settings; a field with the name of a general setting takes its value.
    """

    # Names of the values that are kept for each token beside its brightness.
    traces: ClassVar[tuple[str, ...]] = ()
    pairs: ClassVar[PairPruning] = "apart"
    # General settings that have no effect on what is pruned, and why.
    ignores: ClassVar[Mapping[str, str]] = {}

    initial_brightness: float = INITIAL_BRIGHTNESS
    brightness_cap: float = INITIAL_BRIGHTNESS
    calibration: Calibration = NOT_CALIBRATED  # the model's retrieval heads

    @property
    def capture(self) -> Capture:
        """Which attention it reads."""
        return Capture()

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        """Brightness and traces of new tokens. Their surprisal in nats is NaN where it is not known yet."""
        shape = (len(self.traces), len(surprisal))
        traces = np.full(shape, np.nan, np.float32) if self.traces else None
        return TokenBrightness(np.full(surprisal.shape, self.initial_brightness, np.float32), traces)

    @abstractmethod
    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        """Brightness of all live tokens after one row. The row has been checked."""

    def after_reading(self, state: StrategyInput, rows: Sequence[AttentionRow]) -> TokenBrightness | None:
        """Brightness of all live tokens after the user's turn was read, if `capture.reading`; None changes nothing.

        Each row covers the tokens up to its own; the user's turn is the newest.
        """
        return None

    def after_reply(self, state: StrategyInput) -> TokenBrightness | None:
        """Brightness of all live tokens after a reply, whose chunks are the newest; None changes nothing."""
        return None

    def parts_of(self, traces: Floats | None) -> dict[str, float]:
        """The parts of a chunk's brightness, computed from the traces of its tokens; shown by "Why?"."""
        return {}

    def of_chunks(self, state: StrategyInput) -> Floats:
        """(chunks,) brightness of whole chunks: the lowest is pruned first, infinite ones never."""
        return peaks(state.tokens.brightness, state.offsets)


def peaks(values: Floats, offsets: Offsets) -> Floats:
    """(chunks,) the highest value of each chunk: one bright token keeps a whole chunk live."""
    if len(offsets) < 2:
        return np.zeros(0, np.float32)
    return np.maximum.reduceat(values[: offsets[-1]], offsets[:-1])


def means(values: Floats, offsets: Offsets) -> Floats:
    """(chunks,) the mean over each chunk's tokens."""
    if len(offsets) < 2:
        return np.zeros(0, np.float32)
    return np.asarray(np.add.reduceat(values[: offsets[-1]], offsets[:-1]) / np.diff(offsets), np.float32)


def resurrected_brightness(
    mode: Literal["earned", "hybrid", "fresh"],
    earned: Brightness,
    *,
    mean: float,
    initial: float = INITIAL_BRIGHTNESS,
) -> Brightness:
    """Brightness of a resurrected chunk: `earned`, what it had when it was pruned; `hybrid`, that, but at least the mean of the
    live tokens; `fresh`, that of a new chunk."""
    if mode == "earned":
        return earned.copy()
    if mode == "hybrid":
        return np.maximum(earned, np.float32(max(HYBRID_FLOOR, mean)))
    return np.full(earned.shape, initial, np.float32)
