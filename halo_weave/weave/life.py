"""A window's life: all that was said in it, without the words, and turn by turn what fell asleep and woke up."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from halo_weave.core.tokens import ChunkKey
from halo_weave.records import Happening, Life, LifeEvent


@dataclass(frozen=True, slots=True)
class LifeStep:
    """What happened to a chunk, and after which turn it was so; both by their place among all."""

    step: int
    chunk: int
    event: Happening
    why: str


@dataclass(frozen=True, slots=True)
class WindowLife:
    """The turns and chunks of a window in order, and what became of the chunks."""

    turns: tuple[int, ...]
    keys: tuple[ChunkKey, ...]
    tokens: tuple[int, ...]
    foreign: tuple[int, ...]  # said in another window
    live: tuple[int, ...]
    pinned: tuple[int, ...]
    events: tuple[LifeStep, ...]


def life_of(life: Life) -> WindowLife:
    """The steps of a life: which turn each event belongs to."""
    places = {chunk.key: place for place, chunk in enumerate(life.chunks)}
    own = {turn for turn, _ in life.turns}
    times = [said for _, said in life.turns]

    def step(one: LifeEvent) -> int:
        """What recall and the model's memory wake up belongs to the turn that is stored right after."""
        said = bisect_right(times, one.happened) - 1
        woken_for_it = one.event == "woke" and one.why in ("recall", "memory")
        return max(0, min(len(times) - 1, said + woken_for_it))

    return WindowLife(
        tuple(turn for turn, _ in life.turns),
        tuple(places),
        tuple(chunk.tokens for chunk in life.chunks),
        tuple(places[chunk.key] for chunk in life.chunks if chunk.key.turn_id not in own),
        tuple(places[chunk.key] for chunk in life.chunks if chunk.live),
        tuple(places[chunk.key] for chunk in life.chunks if chunk.pinned),
        tuple(LifeStep(step(one), places[one.key], one.event, one.why) for one in life.events),
    )
