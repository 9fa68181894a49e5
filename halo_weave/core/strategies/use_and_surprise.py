"""Use and surprise: surprising text starts bright, text that replies use stays bright, and questions are dimmer.

Each token has three traces: its surprisal in nats; its use, which is the largest share of attention that a later token gave
to its chunk; and, for models without retrieval heads, the usual attention that it gets whatever is generated.
"""

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
MIDDLE, STEP = 0.5, 0.1  # brightness of an average chunk and of one standard deviation, as shares of the cap
QUESTION_MARKS = (b"?", "？".encode(), "؟".encode())


@dataclass(frozen=True, slots=True)
class UseAndSurprise(Strategy):
    """The brightness of a chunk is the sum of its mean surprisal and its use.

    Both are counted in standard deviations from the mean of the live chunks. A chunk that ends with a question mark is dimmer
    by `question_penalty`. The most surprising token of a chunk is as bright as the chunk, the others at least half as bright.
    """

    traces: ClassVar[tuple[str, ...]] = ("surprisal", "use", "usual")
    ignores: ClassVar[Mapping[str, str]] = {
        "resurrection_brightness": "the brightness of a resurrected chunk follows from its surprisal and its use.",
        "score_current_turn": "the tokens of a reply get brightness from their surprisal when the reply is complete.",
    }

    question_penalty: float = setting(
        2.0,
        "How much dimmer a chunk that ends with a question is, in standard deviations.",
        group="Forgetting",
        low=0,
        high=10,
    )

    @property
    def capture(self) -> Capture:
        heads = self.calibration.pairs
        return Capture(pairs=heads or None, raw=bool(heads), reading=True, reading_surprisal=True)

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        traces = np.zeros((3, len(surprisal)), np.float32)
        traces[SURPRISAL] = surprisal
        return TokenBrightness(np.full(surprisal.shape, self.initial_brightness, np.float32), traces)

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        return self._add_use(state, [row])

    def after_reading(self, state: StrategyInput, rows: Sequence[AttentionRow]) -> TokenBrightness | None:
        if self.calibration.heads:
            return self._add_use(state, rows)
        # All heads together give some tokens attention whatever is generated: only attention beyond that is use.
        traces, before = _copy_traces(state), int(state.offsets[_count_earlier_chunks(state)])
        traces[USUAL, :before] = np.mean([row.tokens[:before] for row in rows], axis=0)
        return TokenBrightness(state.tokens.brightness, traces)

    def after_reply(self, state: StrategyInput) -> TokenBrightness | None:
        return self._compute_brightness(state, _copy_traces(state))

    def parts_of(self, traces: Floats | None) -> dict[str, float]:
        if traces is None or np.isnan(traces[:USUAL]).all(axis=1).any():
            return {}
        return {"surprisal": float(np.nanmean(traces[SURPRISAL])), "use": float(np.nanmax(traces[USE]))}

    def _add_use(self, state: StrategyInput, rows: Sequence[AttentionRow]) -> TokenBrightness:
        """Raise the use of the earlier chunks by these rows, and compute brightness."""
        count = _count_earlier_chunks(state)
        if count < 2:
            return self._compute_brightness(state, _copy_traces(state))
        before, figures = int(state.offsets[count]), self._chunk_figures(state)
        by_heads = self.calibration.heads and all(row.raw is not None for row in rows)
        assert state.tokens.traces is not None
        usual = None if by_heads else np.nan_to_num(state.tokens.traces[USUAL])
        most = np.zeros(count, np.float32)
        for row in rows:
            shares, _ = shares_before(row, before, self.calibration, usual)
            np.maximum(most, np.add.reduceat(shares, state.offsets[:count]), out=most)
        # An equal share for each chunk counts as no use: otherwise the first chunks of a conversation would be the most used,
        # since they share the attention with few others.
        used = np.maximum(0, (most * count - 1) / (count - 1))
        if "brightness" in state.cache and not (used > figures.use[:count]).any():
            return state.tokens  # no chunk was used more than before
        traces = _copy_traces(state)
        traces[USE, :before] = np.fmax(traces[USE, :before], np.repeat(used, figures.sizes[:count]))
        np.maximum(figures.use[:count], used, out=figures.use[:count])
        return self._compute_brightness(state, traces)

    def _compute_brightness(self, state: StrategyInput, traces: Floats) -> TokenBrightness:
        """The brightness that follows from the traces."""
        brightness = state.tokens.brightness.copy()
        said = int(state.offsets[-1])
        if len(state.chunks) < 2:
            return TokenBrightness(brightness, traces)
        figures = self._chunk_figures(state)
        level = _standardized(figures.use) + figures.surprisal
        level -= figures.penalty
        cap = np.float32(self.brightness_cap)
        of_chunks = np.clip((np.float32(MIDDLE) + np.float32(STEP) * level) * cap, 0, cap)
        brightness[:said] = np.repeat(of_chunks, figures.sizes) * figures.token_weights / 2
        state.cache["brightness"] = True  # computed at least once for these chunks
        return TokenBrightness(brightness, traces)

    def _chunk_figures(self, state: StrategyInput) -> _ChunkFigures:
        """The figures of the chunks, kept from row to row: a row changes only `use`."""
        if "chunks" not in state.cache:
            assert state.tokens.traces is not None
            offsets, said, traces = state.offsets, int(state.offsets[-1]), state.tokens.traces
            surprisal = traces[SURPRISAL, :said]
            known = np.nan_to_num(surprisal)
            highest, sizes = np.maximum(peaks(known, offsets), np.float32(1e-6)), np.diff(offsets)
            relative = known / np.repeat(highest, sizes)
            relative[np.repeat(highest <= 1e-6, sizes)] = 1
            are_questions = [chunk.tokens.raw.rstrip().endswith(QUESTION_MARKS) for chunk in state.chunks]
            state.cache["chunks"] = _ChunkFigures(
                sizes,
                peaks(np.nan_to_num(traces[USE]), offsets),
                _standardized(_means(surprisal, offsets)),
                np.float32(self.question_penalty) * np.array(are_questions, np.float32),
                1 + relative,
            )
        figures: _ChunkFigures = state.cache["chunks"]
        return figures


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkFigures:
    """What the brightness of each chunk is computed from."""

    sizes: Offsets  # (chunks,)
    use: Floats  # (chunks,) the largest share of attention that a later token gave to the chunk
    surprisal: Floats  # (chunks,) in standard deviations
    penalty: Floats  # (chunks,) what questions lose, in standard deviations
    token_weights: (
        Floats  # (tokens of the chunks,) from 1 to 2, which is the most surprising token of a chunk
    )


def _copy_traces(state: StrategyInput) -> Floats:
    assert state.tokens.traces is not None
    return state.tokens.traces.copy()


def _count_earlier_chunks(state: StrategyInput) -> int:
    """How many chunks are older than the newest turn."""
    return int(np.count_nonzero(state.ages > 0))


def _means(values: Floats, offsets: Offsets) -> Floats:
    """(chunks,) the mean of the known values of each chunk; NaN if none is known."""
    known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(known, values, 0), offsets[:-1])
    counts = np.add.reduceat(known.astype(np.float32), offsets[:-1])
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)


def _standardized(values: Floats) -> Floats:
    """The values in standard deviations from their mean; unknown values become 0."""
    unknown = np.isnan(values)
    known = values[~unknown] if unknown.any() else values
    spread = float(known.std()) if len(known) else 0.0
    if spread <= 0:
        return np.zeros_like(values)
    levels = np.asarray((values - known.mean()) / np.float32(spread), np.float32)
    levels[unknown] = 0
    return levels
