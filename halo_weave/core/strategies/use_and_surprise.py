"""Use and surprise: what nobody could guess is bright when it is said, what is needed later stays so, questions sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from halo_weave.core.attribution import shares_before
from halo_weave.core.brightness import (
    AttentionRow,
    Capture,
    Floats,
    Offsets,
    Strategy,
    StrategyInput,
    TokenBrightness,
    peaks,
)
from halo_weave.core.setting_fields import setting

SURPRISAL, USE, USUAL = range(3)
MIDDLE, STEP = 0.5, 0.1  # of the cap: an ordinary chunk, and one standard deviation
ASKS = (b"?", "？".encode(), "؟".encode())


@dataclass(frozen=True, slots=True)
class UseAndSurprise(Strategy):
    """A chunk is as bright as it was surprising and as the most that a later token took from it.

    Both are measured against the other live chunks, in standard deviations.
    """

    traces: ClassVar[tuple[str, ...]] = ("surprisal", "use", "usual")
    ignores: ClassVar[Mapping[str, str]] = {
        "resurrection_brightness": "what wakes up is as bright as it was surprising and as it was used.",
        "score_current_turn": "a reply's own tokens are lit by their surprise when it is done.",
    }

    question_penalty: float = setting(
        2.0,
        "By how much a chunk that ends with a question is dimmer, in standard deviations.",
        group="Forgetting",
        low=0,
        high=10,
    )

    @property
    def capture(self) -> Capture:
        heads = self.calibration.pairs
        return Capture(pairs=heads or None, raw=bool(heads), reading=True, reading_surprisal=True)

    def born(self, surprisal: Floats) -> TokenBrightness:
        traces = np.zeros((3, len(surprisal)), np.float32)
        traces[SURPRISAL] = surprisal
        return TokenBrightness(np.full(surprisal.shape, self.initial_brightness, np.float32), traces)

    def brighten(self, sight: StrategyInput, row: AttentionRow) -> TokenBrightness:
        return self._after(sight, [row])

    def after_reading(self, sight: StrategyInput, rows: Sequence[AttentionRow]) -> TokenBrightness | None:
        if self.calibration.heads:
            return self._after(sight, rows)
        # All heads together look at some tokens whatever is said: only what is more than that counts.
        traces, before = _copied(sight), int(sight.offsets[_earlier(sight)])
        traces[USUAL, :before] = np.mean([row.tokens[:before] for row in rows], axis=0)
        return TokenBrightness(sight.light.brightness, traces)

    def after_reply(self, sight: StrategyInput) -> TokenBrightness | None:
        return self._lit(sight, _copied(sight))

    def parts_of(self, traces: Floats | None) -> dict[str, float]:
        if traces is None or np.isnan(traces[:USUAL]).all(axis=1).any():
            return {}
        return {"surprisal": float(np.nanmean(traces[SURPRISAL])), "use": float(np.nanmax(traces[USE]))}

    def _after(self, sight: StrategyInput, rows: Sequence[AttentionRow]) -> TokenBrightness:
        count = _earlier(sight)
        if count < 2:
            return self._lit(sight, _copied(sight))
        before, noted = int(sight.offsets[count]), self._noted(sight)
        by_heads = self.calibration.heads and all(row.raw is not None for row in rows)
        assert sight.light.traces is not None
        usual = None if by_heads else np.nan_to_num(sight.light.traces[USUAL])
        most = np.zeros(count, np.float32)
        for row in rows:
            shares, _ = shares_before(row, before, self.calibration, usual)
            np.maximum(most, np.add.reduceat(shares, sight.offsets[:count]), out=most)
        # What a chunk gets if all get the same is no use: else the first ones of a talk would be the most used.
        used = np.maximum(0, (most * count - 1) / (count - 1))
        if "lit" in sight.noted and not (used > noted.use[:count]).any():
            return sight.light  # nothing was used more than before
        traces = _copied(sight)
        traces[USE, :before] = np.fmax(traces[USE, :before], np.repeat(used, noted.sizes[:count]))
        np.maximum(noted.use[:count], used, out=noted.use[:count])
        return self._lit(sight, traces)

    def _lit(self, sight: StrategyInput, traces: Floats) -> TokenBrightness:
        """Brightness from the traces; the brightest token of a chunk is as bright as the chunk."""
        after = sight.light.brightness.copy()
        said = int(sight.offsets[-1])
        if len(sight.chunks) < 2:
            return TokenBrightness(after, traces)
        noted = self._noted(sight)
        level = _standard(noted.use) + noted.surprisal
        level -= noted.sinks
        cap = np.float32(self.brightness_cap)
        of_chunks = np.clip((np.float32(MIDDLE) + np.float32(STEP) * level) * cap, 0, cap)
        after[:said] = np.repeat(of_chunks, noted.sizes) * noted.glow / 2
        sight.noted["lit"] = True
        return TokenBrightness(after, traces)

    def _noted(self, sight: StrategyInput) -> _ChunkFigures:
        """Of the chunks: what a row does not change, and how much each was used, which only rows change."""
        if "chunks" not in sight.noted:
            assert sight.light.traces is not None
            offsets, said, traces = sight.offsets, int(sight.offsets[-1]), sight.light.traces
            surprisal = traces[SURPRISAL, :said]
            known = np.nan_to_num(surprisal)
            highest, sizes = np.maximum(peaks(known, offsets), np.float32(1e-6)), np.diff(offsets)
            glow = known / np.repeat(highest, sizes)
            glow[np.repeat(highest <= 1e-6, sizes)] = 1
            asks = [chunk.tokens.raw.rstrip().endswith(ASKS) for chunk in sight.chunks]
            sight.noted["chunks"] = _ChunkFigures(
                sizes,
                peaks(np.nan_to_num(traces[USE]), offsets),
                _standard(_means(surprisal, offsets)),
                np.float32(self.question_penalty) * np.array(asks, np.float32),
                1 + glow,
            )
        noted: _ChunkFigures = sight.noted["chunks"]
        return noted


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkFigures:
    sizes: Offsets  # (chunks,)
    use: Floats  # (chunks,) the most that a token took from each
    surprisal: Floats  # (chunks,) in standard deviations
    sinks: Floats  # (chunks,) by how much those that ask are dimmer
    glow: Floats  # (tokens of the chunks,) from 1 to 2, the most surprising of each chunk


def _copied(sight: StrategyInput) -> Floats:
    assert sight.light.traces is not None
    return sight.light.traces.copy()


def _earlier(sight: StrategyInput) -> int:
    """How many chunks are older than the newest turn."""
    return int(np.count_nonzero(sight.ages > 0))


def _means(values: Floats, offsets: Offsets) -> Floats:
    """(chunks,) the mean of what is known of each chunk; NaN if nothing is."""
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0), offsets[:-1])
    counts = np.add.reduceat(known.astype(np.float32), offsets[:-1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)


def _standard(values: Floats) -> Floats:
    """In standard deviations from the mean; what is not known is ordinary."""
    unknown = np.isnan(values)
    known = values[~unknown] if unknown.any() else values
    spread = float(known.std()) if len(known) else 0.0
    if spread <= 0:
        return np.zeros_like(values)
    levels = np.asarray((values - known.mean()) / np.float32(spread), np.float32)
    levels[unknown] = 0
    return levels
