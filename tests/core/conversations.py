"""How Hypothesis makes conversations, as windows hold them; and a brightness strategy that keeps traces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from halo_weave.core.brightness import AttentionRow, Floats, StrategyInput, TokenBrightness
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk, WorkingSet


def tokens(count: int, first: int = 0) -> Tokens:
    return Tokens.of(np.arange(first, first + count), [b"t"] * count)


def chunk(turn: int, number: int, role: Role, start: int, count: int, answers: int | None = None) -> Chunk:
    return Chunk(ChunkKey(turn, number, role), start, tokens(count), answers)


def live(item: Chunk, brightness: float | np.ndarray = 10_000.0, pinned: bool = False) -> LiveChunk:
    values = np.broadcast_to(np.asarray(brightness, np.float32), (len(item),)).copy()
    return LiveChunk(item, values, pinned)


@dataclass(frozen=True)
class Traced(MagnitudeVoting):
    """Magnitude voting that also keeps each token's surprisal, its rows, and the replies since it was said."""

    traces = ("surprisal", "rows", "replies")

    def new_tokens(self, surprisal: Floats) -> TokenBrightness:
        nothing = np.zeros((2, len(surprisal)), np.float32)
        return TokenBrightness(super().new_tokens(surprisal).brightness, np.vstack([surprisal, nothing]))

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        assert state.tokens.traces is not None
        traces = state.tokens.traces.copy()
        traces[1, : state.scored] += 1
        return TokenBrightness(super().brighten(state, row).brightness, traces)

    def after_reply(self, state: StrategyInput) -> TokenBrightness:
        assert state.tokens.traces is not None
        traces = state.tokens.traces.copy()
        old = np.repeat(state.ages > 0, np.diff(state.offsets))
        traces[2, old] += 1
        return TokenBrightness(state.tokens.brightness, traces)


BRIGHTNESS = st.integers(-500, 10_000)


@st.composite
def said(draw, max_exchanges: int = 6) -> list[LiveChunk]:
    """All that was said: exchanges of 1 to 4 chunks each, with gaps between, some pinned, brightness in ties."""
    everything: list[LiveChunk] = []
    turn, position = 1, 0
    for _ in range(draw(st.integers(1, max_exchanges))):
        question = turn
        for role in draw(st.sampled_from([[Role.USER], [Role.USER, Role.ASSISTANT], [Role.SYSTEM]])):
            for number in range(draw(st.integers(1, 4))):
                count = draw(st.integers(1, 5))
                answers = question if role is Role.ASSISTANT else None
                item = chunk(turn, number, role, position, count, answers)
                values = draw(st.lists(BRIGHTNESS, min_size=count, max_size=count))
                everything.append(live(item, np.array(values), draw(st.booleans()) and draw(st.booleans())))
                position += count
            turn += draw(st.integers(1, 3))
            position += draw(st.integers(0, 7))
    return everything


FRAMES = {Role.USER: 3, Role.ASSISTANT: 2}


def window_of(items: list[LiveChunk], **more: object) -> WorkingSet:
    return WorkingSet(items, frame_tokens=FRAMES, system_tokens=4, **more)  # type: ignore[arg-type]
