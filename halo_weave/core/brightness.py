"""Attention becomes brightness. A strategy is a small dataclass whose fields are its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Brightness

INITIAL = 10_000.0
FLOOR_OF_HYBRID = 255.0
SUM_TOLERANCE = 1e-2

Floats = npt.NDArray[np.float32]


class Fault(StrEnum):
    """Why an attention row was not used. The row changes nothing and the fault is counted."""

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
    """What one token looked at: each live token's share, and what frames and system prompt took."""

    tokens: Floats  # (live tokens,), in time order
    frames: float = 0.0  # share of all frame tokens together
    system: float = 0.0  # share of the system prompt's tokens together
    aside: int = 0  # how many frame and system tokens there are
    aside_peak: float = 0.0  # the largest single share among them
    first: float | None = None  # the share of the very first token of the context, when that is aside
    raw: Floats | None = None  # (layers, heads, context), only when asked for

    def fault(self, live: int) -> Fault | None:
        """What makes the row unusable for a window of `live` tokens, if anything."""
        if self.tokens.ndim != 1 or not self.tokens.size:
            return Fault.EMPTY
        if self.tokens.size != live:
            return Fault.SHORT if self.tokens.size < live else Fault.LONG
        with np.errstate(invalid="ignore"):
            total = float(np.einsum("i->", self.tokens)) + self.frames + self.system  # thrice as fast as sum
        if not np.isfinite(total):
            return Fault.NOT_FINITE
        if self.tokens.min() < 0 or min(self.frames, self.system) < 0:
            return Fault.NEGATIVE
        if total == 0:
            return Fault.ZERO
        return None if abs(total - 1) <= SUM_TOLERANCE else Fault.NOT_ONE

    @property
    def length(self) -> int:
        """All tokens of the context, frames and system prompt included."""
        return self.tokens.size + self.aside

    def sink(self, kind: Literal["max", "first"]) -> float:
        """The share of the token that attention rests on when it has nothing to look at."""
        if kind == "first":
            return float(self.tokens[0]) if self.first is None else self.first
        return max(float(self.tokens.max()), self.aside_peak)


@dataclass(frozen=True, slots=True)
class Wants:
    """Which attention a strategy reads, said anew for each generation."""

    layers: tuple[int, ...] | None = None  # None: all
    heads: tuple[int, ...] | None = None  # None: all
    combine: Literal["mean", "max"] = "mean"
    reply: bool = True  # rows of the reply's tokens
    reading: bool = False  # rows of the user turn while it is read
    surprisal: bool = False  # how little each token was expected, read or generated


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """All that a strategy may look at in one step."""

    brightness: Brightness  # (live tokens,)
    row: AttentionRow
    scored: int  # tokens before this index are scored; the current turn lies after it
    offsets: npt.NDArray[np.int64]  # (chunks + 1,), where each chunk's tokens begin
    ages: npt.NDArray[np.int64]  # (chunks,), in turns; 0 is the newest


class Strategy(Protocol):
    """How attention, surprisal, size and age become brightness."""

    name: ClassVar[str]

    @property
    def wants(self) -> Wants: ...

    def born(self, surprisal: Floats) -> Brightness:
        """Brightness of new tokens; their surprisal in nats is NaN where it was not read."""

    def brighten(self, sight: Sight) -> Brightness:
        """Brightness after one row. The row is sound and the sight is not to be changed."""

    def of_chunks(self, brightness: Brightness, offsets: npt.NDArray[np.int64]) -> Floats:
        """Brightness of whole chunks: the lowest falls asleep first."""


def peaks(brightness: Brightness, offsets: npt.NDArray[np.int64]) -> Floats:
    """(chunks,) the brightest token of each chunk: one bright token keeps a whole chunk awake."""
    if len(offsets) < 2:
        return np.zeros(0, np.float32)
    return np.maximum.reduceat(brightness, offsets[:-1])


def means(brightness: Brightness, offsets: npt.NDArray[np.int64]) -> Floats:
    """(chunks,) the mean over each chunk's tokens."""
    if len(offsets) < 2:
        return np.zeros(0, np.float32)
    return np.asarray(np.add.reduceat(brightness, offsets[:-1]) / np.diff(offsets), np.float32)


@dataclass(frozen=True, slots=True)
class MagnitudeVoting:
    """A token gains as often as it was looked at above the average, and loses a little when it was not."""

    name: ClassVar[str] = "magnitude_voting"

    initial: float = INITIAL
    cap: float = INITIAL
    decay: float = 1.0
    sink: Literal["max", "first"] = "max"
    wants: Wants = field(default_factory=Wants)

    def born(self, surprisal: Floats) -> Brightness:
        return np.full(surprisal.shape, self.initial, np.float32)

    def brighten(self, sight: Sight) -> Brightness:
        after = sight.brightness.copy()
        row = sight.row
        if not sight.scored or row.length < 2:
            return after
        threshold = max(1 - row.sink(self.sink), 0.0) / (row.length - 1)
        # Few tokens are looked at, so only those are divided, in float64; the comparison is exact in float32.
        (looked_at,) = (row.tokens[: sight.scored] > _not_above(threshold)).nonzero()
        shares = row.tokens.take(looked_at).astype(np.float64)
        # All attention on the sink makes the threshold 0: the sink then simply reaches the cap.
        votes = np.floor(shares / threshold) if threshold > 0 else np.full(shares.shape, 2.0**24)
        earned = np.minimum(after.take(looked_at) + votes, self.cap).astype(np.float32)
        scored = after[: sight.scored]
        scored -= np.float32(self.decay)
        scored[looked_at] = earned
        if scored.max() > self.cap:  # only after the cap was lowered
            np.minimum(scored, np.float32(self.cap), out=scored)
        return after

    def of_chunks(self, brightness: Brightness, offsets: npt.NDArray[np.int64]) -> Floats:
        return peaks(brightness, offsets)


def _not_above(threshold: float) -> np.float32:
    """The largest float32 that is not above it: the same float32 values lie above both."""
    near = np.float32(threshold)
    # As Python floats: NumPy would round the threshold to float32 before it compares.
    return near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf))


@dataclass(frozen=True, slots=True)
class Surprise:
    """What the model did not expect is worth keeping: brightness is a token's surprisal, a chunk's its mean."""

    name: ClassVar[str] = "surprise"

    initial: float = INITIAL
    cap: float = INITIAL
    per_nat: float = 1_000.0
    wants: Wants = field(default_factory=lambda: Wants(reply=False, surprisal=True))

    def born(self, surprisal: Floats) -> Brightness:
        earned = np.minimum(surprisal * np.float32(self.per_nat), np.float32(self.cap))
        return np.where(np.isnan(surprisal), np.float32(self.initial), earned).astype(np.float32)

    def brighten(self, sight: Sight) -> Brightness:
        return sight.brightness.copy()

    def of_chunks(self, brightness: Brightness, offsets: npt.NDArray[np.int64]) -> Floats:
        return means(brightness, offsets)


STRATEGIES: dict[str, type[MagnitudeVoting] | type[Surprise]] = {
    strategy.name: strategy for strategy in (MagnitudeVoting, Surprise)
}


def returning(
    mode: Literal["earned", "hybrid", "fresh"], earned: Brightness, *, mean: float, initial: float = INITIAL
) -> Brightness:
    """Brightness of a chunk that wakes up: what it had, no less than the others have, or as new."""
    if mode == "earned":
        return earned.copy()
    if mode == "hybrid":
        return np.maximum(earned, np.float32(max(FLOOR_OF_HYBRID, mean)))
    return np.full(earned.shape, initial, np.float32)
