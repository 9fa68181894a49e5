"""Plan which chunks are pruned when a window is over its budget, and why."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from halo_weave.core.brightness import PairPruning
from halo_weave.core.tokens import Chunk, ChunkKey, Role
from halo_weave.core.working_set import WorkingSet
from halo_weave.errors import BadSetting


class PruneReason(StrEnum):
    """Why a chunk is pruned."""

    DIMMEST = "dimmest"  # the lowest brightness of all candidates
    OLDEST = "oldest of the dimmest"  # the oldest of several candidates that are equally dim
    PAIR = "with its pair"  # the anchor of a turn whose question or answer was pruned
    USER = "by the user"
    PRIVATE = "stays on this machine"  # it may not be sent where the model runs
    NO_ROOM = "no room"  # a part of a document that does not fit into the model's context
    TURN_OVER = "turn over"  # a thought or the output of a tool: live only during its turn


@dataclass(frozen=True, slots=True)
class Prune:
    """One chunk to prune: how bright it was, and how many other candidates there were."""

    key: ChunkKey
    tokens: int
    brightness: float
    why: PruneReason
    rivals: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Which chunks are pruned, in order, and the size of the window after that."""

    budget: int
    after: int  # size of the window, frames and system prompt included
    chunks: tuple[Prune, ...]
    current: frozenset[int] = frozenset()  # turns that were not allowed to be pruned
    kept: frozenset[ChunkKey] = frozenset()  # chunks that were not allowed to be pruned
    goal: int | None = None  # size at which pruning stops, if that is less than the budget

    @property
    def keys(self) -> tuple[ChunkKey, ...]:
        return tuple(prune.key for prune in self.chunks)

    @property
    def over(self) -> int:
        """Tokens over the budget although nothing more can be pruned."""
        return max(0, self.after - self.budget) if self.budget else 0


def plan_prune(
    window: WorkingSet,
    budget: int,
    *,
    goal: int | None = None,
    current: Collection[int] = (),
    kept: Collection[ChunkKey] = (),
    pairs: PairPruning | None = None,
    last: bool = False,
) -> PrunePlan:
    """The dimmest chunks, until the window's size is within the budget. A budget of 0 prunes nothing.

    With `goal`, a window over its budget is pruned down to that smaller size: for models where each prune is expensive. Never chosen: chunks
    of the `current` turns, `kept` chunks, pinned ones, system chunks, protected anchors, chunks that the strategy makes
    infinitely bright, and, unless `last` is set, the last prunable unit. `pairs`: by default as the strategy has it.
    """
    if budget < 0:
        raise BadSetting(f"max_context_tokens is {budget}; use 0 for no pruning, or a positive number.")
    size = window.size
    if budget == 0 or size <= budget:
        return PrunePlan(budget, size, (), frozenset(current), frozenset(kept), goal)
    candidates = _PruneCandidates(window, current, kept, pairs or window.strategy.pairs, last)
    prunes: list[Prune] = []
    while size > (budget if goal is None else goal) and (unit := candidates.take_dimmest()):
        for place in unit:
            chunk = window.chunks[place]
            why = candidates.why if place == unit[0] else PruneReason.PAIR
            brightness = candidates.brightness[place]
            prunes.append(Prune(chunk.key, len(chunk), brightness, why, candidates.rivals))
            size -= len(chunk)
            if not candidates.left[chunk.key.turn_id]:
                size -= window.frame_of(chunk.key.turn_id, chunk.key.role)
    return PrunePlan(budget, size, tuple(prunes), frozenset(current), frozenset(kept), goal)


class _PruneCandidates:
    """The candidates, dimmest first. Chunk 0 of a turn is its anchor and is pruned last, alone or together with its pair."""

    def __init__(
        self,
        window: WorkingSet,
        current: Collection[int],
        kept: Collection[ChunkKey],
        pairs: PairPruning,
        last: bool,
    ) -> None:
        self.chunks = window.chunks
        self.brightness = window.chunk_brightness()
        self.left: dict[int, set[int]] = defaultdict(set)  # turn -> places of its chunks that are still live
        self.answers: dict[int, set[int]] = defaultdict(set)  # question -> its answers' turns
        self.pairs, self.last = pairs, last
        protected = window.pinned.union(kept)
        self.protected = [
            chunk.key.turn_id in current
            or chunk.key.role is Role.SYSTEM
            or chunk.key in protected
            or bright == inf
            for chunk, bright in zip(self.chunks, self.brightness, strict=True)
        ]
        for place, chunk in enumerate(self.chunks):
            self.left[chunk.key.turn_id].add(place)
            if chunk.answers is not None:
                self.answers[chunk.answers].add(chunk.key.turn_id)
        self.queue: list[tuple[float, int, int]] = []
        self.open: set[int] = set()  # places of the current candidates
        self.rivals = 0  # how many other candidates there were when the last unit was taken
        self.why = PruneReason.DIMMEST  # why the last unit was taken
        for place in range(len(self.chunks)):
            self.offer(place)

    def offer(self, place: int) -> None:
        """Make a chunk a candidate, unless it may not be pruned now."""
        unit = self.unit(place)
        if place not in self.open and unit:
            self.open.add(place)
            bright = self.brightness[unit[0]]
            heapq.heappush(self.queue, (bright, self.chunks[unit[0]].start, place))

    def unit(self, place: int) -> list[int]:
        """The chunks that are pruned together with this one, first the one whose brightness decides; empty if it may not be
        pruned."""
        chunk = self.chunks[place]
        places = self.partners(place, chunk) if chunk.key.chunk_id == 0 else [place]
        if self.pairs == "brighter":
            places = sorted(places, key=lambda member: (-self.brightness[member], member))
        return [] if any(self.protected[member] for member in places) else places

    def partners(self, place: int, chunk: Chunk) -> list[int]:
        """An anchor and the anchors that must be pruned with it; empty while one of their turns has other live chunks."""
        if self.pairs == "apart":
            return [place] if len(self.left[chunk.key.turn_id]) == 1 else []
        if chunk.answers is None:
            question, turns = place, self.answers.get(chunk.key.turn_id, set())
        else:
            anchors = [p for p in self.left.get(chunk.answers, ()) if self.chunks[p].key.chunk_id == 0]
            if not anchors:
                return [place] if len(self.left[chunk.key.turn_id]) == 1 else []
            question, turns = anchors[0], self.answers[chunk.answers]
        members = [question, *sorted(p for turn in turns for p in self.left[turn])]
        alone = len(self.left[self.chunks[question].key.turn_id]) == 1
        if not alone or any(self.chunks[p].key.chunk_id for p in members):
            return []
        return [place, *(p for p in members if p != place)]

    def take_dimmest(self) -> list[int]:
        """Take the unit of the dimmest candidate; empty if it is the last one and that must stay."""
        while self.queue:
            bright, _, place = heapq.heappop(self.queue)
            if place in self.open:
                unit = self.unit(place)
                self.rivals = len(self.open.difference(unit))
                self.why = PruneReason.OLDEST if self.is_tied(bright, unit) else PruneReason.DIMMEST
                for member in unit:
                    self.remove(member)
                return unit if self.open or self.last else []
        return []

    def is_tied(self, bright: float, unit: Collection[int]) -> bool:
        """Whether another candidate is equally dim."""
        while self.queue and (self.queue[0][2] not in self.open or self.queue[0][2] in unit):
            heapq.heappop(self.queue)
        return bool(self.queue) and self.queue[0][0] <= bright

    def remove(self, place: int) -> None:
        """Remove a pruned chunk. The anchor of its turn or of its pair may become a candidate."""
        chunk = self.chunks[place]
        self.open.discard(place)
        self.left[chunk.key.turn_id].discard(place)
        question = chunk.key.turn_id if chunk.answers is None else chunk.answers
        for turn in (question, *self.answers.get(question, ())):
            if len(self.left[turn]) == 1:
                self.offer(next(iter(self.left[turn])))
