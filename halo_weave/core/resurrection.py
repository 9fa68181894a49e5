"""Plan which chunks are resurrected for a message within a token budget, and what each costs."""

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
LENGTH_WEIGHT = 0.5  # this times the logarithm of a chunk's tokens is subtracted from its similarity
PAIR_PENALTY = log(8)  # the similarity of a pair is lower by this than that of its hit
MAX_DISTANCE_FROM_BEST = log(50)  # hits with less than a fiftieth of the best hit's probability are left out
MIN_SHARE = 0.1  # a hit must help with at least this share of `min_probability`
REFERENCE_ROOM = 512  # tokens; with twice the room, half of these odds suffice


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A search result: a chunk, the logarithm of the probability that it helps with the message, and its parts."""

    key: ChunkKey
    similarity: float  # the logarithm of the probability that it helps
    parts: Mapping[str, float] = field(default_factory=dict)  # what each feature adds to `similarity`
    words: tuple[str, ...] = ()  # words of the message that it contains

    @property
    def probability(self) -> float:
        """The probability that the chunk helps with the message."""
        return min(1.0, exp(min(0.0, self.similarity)))


@dataclass(frozen=True, slots=True)
class RecallCandidate:
    """A chunk that is not live and could be resurrected: its cost, its pair, and what breaks ties."""

    key: ChunkKey
    tokens: int
    peak: float = 0.0  # highest brightness of its tokens when it was pruned
    start: int = 0  # position
    pair_key: ChunkKey | None = (
        None  # first chunk of the question for an answer, of the answer for a question
    )
    window: str = ""  # where it was said
    thought: bool = False
    said: datetime = datetime.min


class ResurrectReason(StrEnum):
    """Why a chunk is resurrected."""

    HIT = "hit"  # the search found it
    QUESTION = "question"  # a hit answers it
    ANSWER = "answer"  # it begins the answer to a hit
    ANCHOR = "anchor"  # it begins the turn of a hit


@dataclass(frozen=True, slots=True)
class PlannedResurrection:
    key: ChunkKey
    reason: ResurrectReason
    hit: ChunkKey  # the hit for which it is resurrected
    similarity: float  # of that hit
    cost: int  # tokens, including those of its turn's frame if no chunk of the turn is live


@dataclass(frozen=True, slots=True)
class RecallPlan:
    """Which chunks are resurrected, and the hits for which there was no room."""

    room: int  # tokens available
    cost: int  # tokens that the chunks take
    chunks: tuple[PlannedResurrection, ...]  # in the order in which they were chosen
    passed_over: tuple[
        PlannedResurrection, ...
    ] = ()  # hits that did not fit; their cost includes their pairs

    @property
    def keys(self) -> tuple[ChunkKey, ...]:
        return tuple(planned.key for planned in self.chunks)


def resurrection_room(
    *, model_context: int, live: int, user: int, max_new: int, max_context: int = 0, quota: int | None = None
) -> int:
    """Tokens available for resurrected chunks: what the model's context leaves beside the live tokens, the user's message and
    the longest reply, at most the window's budget and quota. Live tokens are not subtracted from the budget, because the window
    is pruned to its budget after the reply.

    Negative when the window must be pruned before the message fits.
    """
    if min(model_context, live, user, max_new, max_context, quota or 0) < 0:
        raise BadSetting("Token counts, budget and quota cannot be negative.")
    room = model_context - live - user - max_new
    if max_context:
        room = min(room, max_context)
    if quota is not None:
        room = min(room, max(0, quota - user))
    return room


def recall_threshold(hits: Iterable[RecallHit], min_probability: float, room: int) -> float | None:
    """The lowest similarity with which a hit is resurrected; None if no hit is.

    Nothing is resurrected unless any of the hits helps with at least `min_probability`. Then the best comes, and with it hits that
    are not much less likely, since an answer may need several chunks. With more room, less likely hits are resurrected.
    """
    hits = list(hits)
    if not hits or sum(hit.probability for hit in hits) < min_probability:
        return None
    best = max(hit.similarity for hit in hits)
    extra_room = max(0.0, log(max(room, 1) / REFERENCE_ROOM))
    lowest = log(max(min_probability * MIN_SHARE, 1e-9))
    return min(best, max(best - MAX_DISTANCE_FROM_BEST, lowest) - extra_room)


def plan_recall(
    hits: Iterable[RecallHit],
    candidates: Mapping[ChunkKey, RecallCandidate],
    room: int,
    *,
    live: Collection[ChunkKey] = (),
    frame_tokens: Mapping[Role, int] | None = None,
    annotation_tokens: Mapping[tuple[str, Role], int] | None = None,
    pairs: PairOrder = "with",
    min_pair_similarity: float = -inf,
    prefer_short: bool = True,
) -> RecallPlan:
    """Choose hits by similarity, then brightness, then recency, as far as there is room.

    The pairs of a hit are the question of an answer or the beginning of the answer to a question, and the beginning of the
    hit's own turn. `pairs`: `with` resurrects a hit and its pairs together or not at all. `ranked` resurrects a pair after
    its hit, when no remaining hit ranks above it, and only with at least `min_pair_similarity`. `off` resurrects hits only.
    Unless `pairs` is `with` or `prefer_short` is false, long chunks rank lower. Live chunks cost nothing.

    `annotation_tokens`: additional frame tokens of a turn, by the window where it was said and by role.
    """
    length_weight = LENGTH_WEIGHT if pairs != "with" and prefer_short else 0.0

    def length_penalty(key: ChunkKey) -> float:
        return length_weight * log(max(1, candidates[key].tokens + (frame_tokens or {}).get(key.role, 0)))

    ranked = _ranked(hits, candidates, live, length_penalty)
    live_turns = {key.turn_id for key in live}  # their frames are paid for
    planned: dict[ChunkKey, PlannedResurrection] = {}
    passed_over: list[PlannedResurrection] = []
    left = room

    def plan_together(hit: RecallHit, members: list[tuple[ChunkKey, ResurrectReason]]) -> int | None:
        """Plan all these chunks if they fit. Returns None if so, else what they would cost."""
        nonlocal left
        additions: list[PlannedResurrection] = []
        turns: set[int] = set()
        for key, reason in members:
            if key in planned or key in live:
                continue
            cost = candidates[key].tokens
            if key.turn_id not in live_turns and key.turn_id not in turns:
                cost += (frame_tokens or {}).get(key.role, 0)
                cost += (annotation_tokens or {}).get((candidates[key].window, key.role), 0)
                turns.add(key.turn_id)
            additions.append(PlannedResurrection(key, reason, hit.key, hit.similarity, cost))
        total = sum(addition.cost for addition in additions)
        if total > left:
            return total
        left -= total
        live_turns.update(turns)
        planned.update((addition.key, addition) for addition in additions)
        return None

    for hit, members, is_hit in _steps(ranked, candidates, pairs, length_penalty, min_pair_similarity):
        if is_hit:
            cost = plan_together(hit, members)
            if cost is not None:
                passed_over.append(
                    PlannedResurrection(hit.key, ResurrectReason.HIT, hit.key, hit.similarity, cost)
                )
        elif hit.key in planned:
            plan_together(hit, members)
    return RecallPlan(room, room - left, tuple(planned.values()), tuple(passed_over))


def _ranked(
    hits: Iterable[RecallHit],
    candidates: Mapping[ChunkKey, RecallCandidate],
    live: Collection[ChunkKey],
    length_penalty: Callable[[ChunkKey], float],
) -> list[RecallHit]:
    """The hits that are not live, each once, best first."""
    best: dict[ChunkKey, RecallHit] = {}
    for hit in hits:
        if hit.similarity != hit.similarity:
            raise BadInput(f"The similarity of chunk {hit.key} is not a number.")
        if hit.key in live:
            continue
        if hit.key not in candidates:
            raise UnknownChunk(f"Chunk {hit.key} is neither live nor a candidate.")
        if hit.key not in best or best[hit.key].similarity < hit.similarity:
            best[hit.key] = hit

    def rank(hit: RecallHit) -> tuple[float, float, int]:
        candidate = candidates[hit.key]
        return length_penalty(hit.key) - hit.similarity, -candidate.peak, -candidate.start

    return sorted(best.values(), key=rank)


def _steps(
    ranked: list[RecallHit],
    candidates: Mapping[ChunkKey, RecallCandidate],
    pairs: PairOrder,
    length_penalty: Callable[[ChunkKey], float],
    min_pair_similarity: float,
) -> list[tuple[RecallHit, list[tuple[ChunkKey, ResurrectReason]], bool]]:
    """What is planned in turn: a hit with the pairs that must be resurrected with it, or a single pair of a hit.

    Each step is the hit, the chunks to plan together, and whether the hit is among them.
    """
    steps: list[tuple[float, int, tuple[RecallHit, list[tuple[ChunkKey, ResurrectReason]], bool]]] = []
    for hit in ranked:
        rank = length_penalty(hit.key) - hit.similarity
        own = [(hit.key, ResurrectReason.HIT)]
        members = _pairs(candidates[hit.key], candidates) if pairs != "off" else []
        if pairs == "with":
            steps.append((rank, 0, (hit, own + members, True)))
            continue
        steps.append((rank, 0, (hit, own, True)))
        similarity = hit.similarity - PAIR_PENALTY
        if similarity >= min_pair_similarity:
            steps += [(length_penalty(pair[0]) - similarity, 1, (hit, [pair], False)) for pair in members]
    steps.sort(key=lambda step: step[:2])  # stable, so that ties keep the order of `ranked`
    return [step for _, _, step in steps]


def _pairs(
    candidate: RecallCandidate, candidates: Mapping[ChunkKey, RecallCandidate]
) -> list[tuple[ChunkKey, ResurrectReason]]:
    """The pairs of a hit that can be resurrected. Deleted and live ones are not among the candidates."""
    key = candidate.key
    if key.role is Role.SYSTEM:
        return []
    reason = ResurrectReason.QUESTION if key.role is Role.ASSISTANT else ResurrectReason.ANSWER
    pairs = [(candidate.pair_key, reason)] if candidate.pair_key else []
    if key.chunk_id:
        pairs.append((ChunkKey(key.turn_id, 0, key.role), ResurrectReason.ANCHOR))
    return [(pair, reason) for pair, reason in pairs if pair in candidates]
