"""Plan which pruned chunks are resurrected for a query, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from math import exp, inf, log
from typing import Literal

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput, BadSetting, UnknownChunk

PairOrder = Literal["ranked", "with", "off"]
LENGTH_WEIGHT = 0.5  # of two chunks, one twice as long needs ln 2 times this more similarity to come first
PAIR_LOSS = log(8)  # a pair's log-odds are so much lower than those of its hit
OTHERS_LOSS = log(100)  # beside the best hit others come, down to a hundredth of its odds
USUAL_ROOM = 512  # tokens; with twice the room a chunk is worth its tokens at half the odds


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A chunk that has to do with a message, how likely it helps, and why."""

    key: ChunkKey
    similarity: float  # the log-odds that it helps
    parts: Mapping[str, float] = field(default_factory=dict)  # of the similarity; they add up to it
    words: tuple[str, ...] = ()  # of the message that it holds

    @property
    def probability(self) -> float:
        """How likely it is that the chunk helps with the message."""
        return 1 / (1 + exp(-max(-50.0, min(50.0, self.similarity))))


@dataclass(frozen=True, slots=True)
class RecallCandidate:
    """What the plan needs to know of a chunk that is not live: its cost, its rank among equals, its pairs."""

    key: ChunkKey
    tokens: int
    peak: float = 0.0  # brightness at deletion
    start: int = 0  # later is more recent
    pair_key: ChunkKey | None = None  # S0 of the question for an answer, of the answer for a question
    window: str = ""  # where it was said
    thought: bool = False
    said: datetime = datetime.min


class ResurrectReason(StrEnum):
    """Why a chunk wakes up."""

    HIT = "hit"  # its own words or meaning
    QUESTION = "question"  # it is the question to a hit
    ANSWER = "answer"  # it is the opening of the answer to a hit
    ANCHOR = "anchor"  # it opens the turn of a hit


@dataclass(frozen=True, slots=True)
class PlannedResurrection:
    key: ChunkKey
    part: ResurrectReason
    hit: ChunkKey  # the hit that brings it
    similarity: float  # of that hit
    cost: int  # tokens, its turn's frame included if that was not live


@dataclass(frozen=True, slots=True)
class RecallPlan:
    room: int
    cost: int
    chunks: tuple[PlannedResurrection, ...]  # in the order they were taken
    passed_over: tuple[
        PlannedResurrection, ...
    ] = ()  # hits that did not fit, with what they and their pairs would cost

    @property
    def keys(self) -> tuple[ChunkKey, ...]:
        return tuple(waking.key for waking in self.chunks)


def resurrection_room(
    *, model_context: int, live: int, user: int, max_new: int, max_context: int = 0, quota: int | None = None
) -> int:
    """Tokens that may wake up: the universal equation, within the window's budget and quota if it has them.

    Negative when the window must be pruned before the user's words fit.
    """
    if min(model_context, live, user, max_new, max_context, quota or 0) < 0:
        raise BadSetting("Token counts, budget and quota cannot be negative.")
    room = model_context - live - user - max_new
    if max_context:
        room = min(room, max_context)
    if quota is not None:
        room = min(room, max(0, quota - user))
    return room


def least_similarity(hits: Iterable[RecallHit], min_probability: float, room: int) -> float | None:
    """The log-odds from which on a hit is worth its tokens; None if the message needs nothing of memory.

    The best hit decides whether it does. Then others come that are not much less likely: an answer may need several
    pieces, and each of them by itself is less certain than the best. Where there is more room, more of them come.
    """
    best = max((hit.similarity for hit in hits), default=None)
    least = _log_odds(min_probability)
    if best is None or best < least:
        return None
    spare = max(0.0, log(max(room, 1) / USUAL_ROOM))
    return best - OTHERS_LOSS - spare


def _log_odds(probability: float) -> float:
    return log(max(probability, 1e-9) / max(1 - probability, 1e-9))


def plan_recall(
    hits: Iterable[RecallHit],
    candidates: Mapping[ChunkKey, RecallCandidate],
    room: int,
    *,
    live: Collection[ChunkKey] = (),
    frame_tokens: Mapping[Role, int] | None = None,
    stamps: Mapping[tuple[str, Role], int] | None = None,
    pairs: PairOrder = "with",
    least: float = -inf,
) -> RecallPlan:
    """Hits in order of similarity, brightness at deletion and recency, as far as the room goes.

    Unless pairs come `with` their hits, similarity is weighed against length: room is what is short. A hit brings its pairs: the question of an answer or the answer's opening for a question, and the opening of
    its own turn. What is live already is free. `with`: a hit and its pairs wake up together or not at all. `ranked`:
    a hit first, its pairs once no other hit is worth more than they are. `off`: hits alone. `stamps`: what the frame of
    a turn takes more, by the window where it was said and by role. `least`: log-odds below which a pair does not come.
    """
    thrift = LENGTH_WEIGHT if pairs != "with" else 0.0

    def price(key: ChunkKey) -> float:
        """What its length takes off from the worth of a chunk."""
        return thrift * log(max(1, candidates[key].tokens + (frame_tokens or {}).get(key.role, 0)))

    ranked = _ranked(hits, candidates, live, price)
    awake = {key.turn_id for key in live}
    taken: dict[ChunkKey, PlannedResurrection] = {}
    passed: list[PlannedResurrection] = []
    left = room

    def take(hit: RecallHit, members: list[tuple[ChunkKey, ResurrectReason]]) -> int | None:
        """Wake all of them if they fit; None if so, else what they would cost."""
        nonlocal left
        wakes: list[PlannedResurrection] = []
        turns: set[int] = set()
        for key, part in members:
            if key in taken or key in live:
                continue
            cost = candidates[key].tokens
            if key.turn_id not in awake and key.turn_id not in turns:
                cost += (frame_tokens or {}).get(key.role, 0)
                cost += (stamps or {}).get((candidates[key].window, key.role), 0)
                turns.add(key.turn_id)
            wakes.append(PlannedResurrection(key, part, hit.key, hit.similarity, cost))
        total = sum(waking.cost for waking in wakes)
        if total > left:
            return total
        left -= total
        awake.update(turns)
        taken.update((waking.key, waking) for waking in wakes)
        return None

    for hit, members, is_hit in _steps(ranked, candidates, pairs, price, least):
        if is_hit:
            cost = take(hit, members)
            if cost is not None:
                passed.append(
                    PlannedResurrection(hit.key, ResurrectReason.HIT, hit.key, hit.similarity, cost)
                )
        elif hit.key in taken:
            take(hit, members)
    return RecallPlan(room, room - left, tuple(taken.values()), tuple(passed))


def _ranked(
    hits: Iterable[RecallHit],
    candidates: Mapping[ChunkKey, RecallCandidate],
    live: Collection[ChunkKey],
    price: Callable[[ChunkKey], float],
) -> list[RecallHit]:
    best: dict[ChunkKey, RecallHit] = {}
    for hit in hits:
        if hit.similarity != hit.similarity:
            raise BadInput(f"The similarity of chunk {hit.key} is not a number.")
        if hit.key in live:
            continue
        if hit.key not in candidates:
            raise UnknownChunk(f"Chunk {hit.key} is neither live nor asleep.")
        if hit.key not in best or best[hit.key].similarity < hit.similarity:
            best[hit.key] = hit

    def rank(hit: RecallHit) -> tuple[float, float, int]:
        sleeper = candidates[hit.key]
        return price(hit.key) - hit.similarity, -sleeper.peak, -sleeper.start

    return sorted(best.values(), key=rank)


def _steps(
    ranked: list[RecallHit],
    candidates: Mapping[ChunkKey, RecallCandidate],
    pairs: PairOrder,
    price: Callable[[ChunkKey], float],
    least: float,
) -> list[tuple[RecallHit, list[tuple[ChunkKey, ResurrectReason]], bool]]:
    """What is tried one after the other: a hit with what must come along, or a pair of one (then the last is False)."""
    steps: list[tuple[float, int, tuple[RecallHit, list[tuple[ChunkKey, ResurrectReason]], bool]]] = []
    for hit in ranked:
        worth = hit.similarity - price(hit.key)
        own = [(hit.key, ResurrectReason.HIT)]
        brought = _pairs(candidates[hit.key], candidates) if pairs != "off" else []
        if pairs == "with":
            steps.append((-worth, 0, (hit, own + brought, True)))
            continue
        steps.append((-worth, 0, (hit, own, True)))
        share = hit.similarity - PAIR_LOSS
        if share >= least:
            steps += [(price(member[0]) - share, 1, (hit, [member], False)) for member in brought]
    steps.sort(key=lambda step: step[:2])  # stable: equals keep their rank
    return [step for _, _, step in steps]


def _pairs(
    sleeper: RecallCandidate, candidates: Mapping[ChunkKey, RecallCandidate]
) -> list[tuple[ChunkKey, ResurrectReason]]:
    """Pairs that can wake up: a deleted one, or one that never was, is not among the candidates."""
    key = sleeper.key
    if key.role is Role.SYSTEM:
        return []
    pair_key = ResurrectReason.QUESTION if key.role is Role.ASSISTANT else ResurrectReason.ANSWER
    wanted = [(sleeper.pair_key, pair_key)] if sleeper.pair_key else []
    if key.chunk_id:
        wanted.append((ChunkKey(key.turn_id, 0, key.role), ResurrectReason.ANCHOR))
    return [(pair, part) for pair, part in wanted if pair in candidates]
