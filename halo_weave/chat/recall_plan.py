"""Search the memory for a text and plan what is resurrected. Turns, previews and the command line use the same plan."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from halo_weave.core.corrections import find_corrections
from halo_weave.core.informativeness import informative_share, worth_recalling
from halo_weave.core.memory_requests import memory_request
from halo_weave.core.resurrection import (
    PlannedResurrection,
    RecallCandidate,
    RecallHit,
    RecallPlan,
    ResurrectReason,
    plan_recall,
    recall_threshold,
)
from halo_weave.core.terms import query_terms
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import NO_FILTER, SearchFilter, TagFilter
from halo_weave.settings import Settings
from halo_weave.store.records import OWNER, StoredChunk, WindowRecord
from halo_weave.store.sql_store import SqlStore

MAX_HITS = 200  # hits of a search that the plan chooses from
PROBABLY_KNOWN = 0.5  # sum of the hits' probabilities from which on memory probably has the answer
PROBABLY_KNOWN_LIVE = 0.1  # the same of one chunk that is live anyway
MAX_COMPARED = 40  # hits that are searched for corrections
COMPARED_FROM = 0.05  # probability of hits that are searched for corrections
CORRECTION_GAP = 2.0  # similarity that a correction may be below the statement that it corrects
MAX_NEAR_MISSES = 5  # near misses that are shown
RELATED_MEANING = (
    2.25  # a hit with at least this part of its similarity is shown even if it contains no word of the text
)


@dataclass(frozen=True, slots=True)
class RecallOverrides:
    """What the user changes in the recall for one message."""

    without: frozenset[ChunkKey] = frozenset()  # not resurrected, not even as pairs of other chunks
    also: tuple[ChunkKey, ...] = ()  # resurrected first, whether the search finds them or not
    room: bool = False  # ignore the recall budget, and prune live chunks to make room


Search = Callable[..., Sequence[RecallHit]]  # as `Runtime.search`
NO_OVERRIDES = RecallOverrides()


class RecallResult(NamedTuple):
    """What recall would resurrect for a text."""

    hits: dict[ChunkKey, RecallHit]
    plan: RecallPlan
    # Hits that are not worth their tokens, best first, with the cost that each would have alone.
    near_misses: tuple[PlannedResurrection, ...] = ()
    probably_known: bool = False  # what answers the message was probably found, or is live


NOTHING_RECALLED = RecallResult({}, RecallPlan(0, 0, ()))


def hit_limit(room: int) -> int:
    """An upper bound on how many chunks can fit into `room`."""
    return min(MAX_HITS, 16 + room // 8)


def tag_filter(store: SqlStore, tags: Collection[str], owner: str = OWNER) -> TagFilter:
    """The windows with one of these tags, also deleted ones, and the tagged chunks of `owner`."""
    wanted = set(tags)
    windows = (window.id for window in store.windows(deleted=True) if wanted.intersection(window.tags))
    return TagFilter(frozenset(windows), store.tagged(wanted, owner=owner))


def recall_scope(
    store: SqlStore,
    window: WindowRecord,
    settings: Settings,
    readable_by_readers: frozenset[str] | None,
    *,
    only_this_window: bool,
) -> tuple[frozenset[str] | None, Mapping[ChunkKey, int]]:
    """The windows whose chunks may be resurrected in `window`, None for all; and chunks of other windows that may be, too.

    `readable_by_readers`: ids of the windows that everybody who reads `window` may read; None: all. `only_this_window`: no
    chunk of another window may be resurrected.
    """
    own = frozenset({window.id})
    if only_this_window or settings.memory_scope == "window":
        return own, {}
    if settings.memory_scope != "tags":
        return readable_by_readers, {}
    windows, chunks = tag_filter(store, window.tags, window.owner)
    return (windows if readable_by_readers is None else windows & readable_by_readers) | own, chunks


def filter_by_settings(only: SearchFilter, settings: Settings, store: SqlStore, owner: str) -> SearchFilter:
    """Limit a filter further by these settings. Dates are in the time zone of this machine."""

    def begin(day: str | None) -> datetime | None:
        return None if day is None else datetime.fromisoformat(day).astimezone()

    if settings.tags_recalled:
        only = only.with_tag(tag_filter(store, settings.tags_recalled, owner))
    role = None if settings.recall_role is None else Role(settings.recall_role)
    return only.narrowed(role, begin(settings.recall_since), begin(settings.recall_before))


def is_related_hit(hit: RecallHit) -> bool:
    """Whether a hit is related to the text at all: by a word, a date, or its meaning."""
    parts = hit.parts
    return bool(hit.words) or parts.get("time", 0) > 0 or parts.get("meaning", 0) >= RELATED_MEANING


def hits_in_order(keys: Sequence[ChunkKey]) -> list[RecallHit]:
    """Hits for chunks that are wanted by key. Their similarities only say the order, the first highest."""
    return [RecallHit(key, 1 - i / len(keys)) for i, key in enumerate(keys)]


def annotation_costs(
    candidates: Iterable[RecallCandidate], annotation_tokens: Callable[[str, Role], int]
) -> dict[tuple[str, Role], int]:
    """Tokens of the annotations of candidates, by the window where they were said and by role."""
    origins = {(candidate.window, candidate.key.role) for candidate in candidates}
    return {(window_id, role): annotation_tokens(window_id, role) for window_id, role in origins}


def search_and_plan_recall(
    text: str,
    room: int,
    settings: Settings,
    *,
    store: SqlStore,
    search: Search,
    now: datetime,
    window_id: str = "",
    live: Collection[ChunkKey] = (),
    before: int | None = None,
    frame_tokens: Mapping[Role, int] | None = None,
    annotation_tokens: Callable[[str, Role], int] = lambda window, role: 0,
    replaced_turns: Collection[int] = (),
    ancestor_turns: Mapping[int, str] = MappingProxyType({}),
    only: SearchFilter = NO_FILTER,
    may_read: Callable[[str], bool] = lambda window: True,
    overrides: RecallOverrides = NO_OVERRIDES,
    owner: str = OWNER,
) -> RecallResult:
    """Search for a text and plan what is resurrected within `room` tokens. Nothing is changed.

    `window_id`: the window to resurrect chunks in; empty: nothing is live. `only`: which chunks may be resurrected; the
    settings limit this further. Chunks that the user adds by key are not limited. `owner`: whose tags count. `before`: only
    chunks before this position. `replaced_turns`: turns that the new turn replaces; they are left out. `ancestor_turns`: turns
    of other windows that this one branched off after, and those windows; only these turns of those windows count.
    `may_read`: whether the text of a window may be shown to this window's model. `annotation_tokens`: the estimated tokens of
    the annotation of a chunk, by the window where it was said and its role.
    """
    min_probability, asks_memory = settings.min_probability, False
    if (request := memory_request(text)) is not None and not overrides.also:
        if request.kind != "ask" and request.only:
            return NOTHING_RECALLED
        if request.kind == "ask":  # it needs memory, whatever the search says
            text = request.text if query_terms(request.text, 1) else text
            min_probability, asks_memory = 0.0, True
            if settings.recall_role is None:
                only = only.narrowed(Role.USER, None, None)  # not what the assistant knows about the subject
    only = filter_by_settings(only, settings, store, owner)
    hits = search(
        text,
        window=next(iter(only.windows)) if only.windows and len(only.windows) == 1 else None,
        limit=hit_limit(room) + len(live),  # live chunks may well be the best hits
        now=now,
        user_weight=settings.user_weight,
        only=only,
    )
    # Chunks that state nothing are resurrected only as the question of an answer.
    informative = [hit for hit in hits if "asking" not in hit.parts]
    added_keys = list(dict.fromkeys(overrides.also))

    def is_allowed(key: ChunkKey, candidate: RecallCandidate) -> bool:
        from_ancestor = key.turn_id in ancestor_turns
        return (
            (may_read(candidate.window) or from_ancestor)
            and (key in added_keys or only.takes(key, candidate.window, candidate.said))
            and key.turn_id not in replaced_turns
            and key not in overrides.without
            and (from_ancestor or candidate.window not in ancestor_windows)
            # What another window said after this turn began has later positions. It can be resurrected next turn.
            and (before is None or candidate.start < before)
            and (settings.recall_thoughts or not candidate.thought)
        )

    ancestor_windows = set(ancestor_turns.values())
    wanted = [*(hit.key for hit in informative if hit.key not in live), *added_keys]
    candidates = {
        key: candidate
        for key, candidate in store.recall_candidates(window_id, wanted).items()
        if is_allowed(key, candidate)
    }
    statements = {hit.key for hit in informative[:MAX_COMPARED] if hit.key.role is Role.USER}
    records = {record.key: record for record in store.chunks_by_key({*candidates, *statements})}
    readable = {key: record for key, record in records.items() if key in candidates or key in live}
    candidates, only_with_answer = _worth_recalling(candidates, records, store, window_id, added_keys)
    added_keys = [key for key in added_keys if key in candidates]
    eligible = [
        hit
        for hit in _newest_statements(informative, readable, live)
        if hit.key in candidates and hit.key not in only_with_answer and hit.key not in added_keys
        if is_related_hit(hit) or not asks_memory
    ]
    # What the user leaves out still says that the message needs memory.
    left_out = [hit for hit in informative if hit.key in overrides.without and hit.key not in live]
    threshold = recall_threshold([*eligible, *left_out], min_probability, room)
    chosen = [] if threshold is None else [hit for hit in eligible if hit.similarity >= threshold]
    annotation_cost = annotation_costs(candidates.values(), annotation_tokens)

    def plan(
        hits: Iterable[RecallHit], room: int, live: Collection[ChunkKey], *, prefer_short: bool = True
    ) -> RecallPlan:
        return plan_recall(
            hits,
            candidates,
            room,
            live=live,
            frame_tokens=frame_tokens,
            annotation_tokens=annotation_cost,
            pairs=settings.resurrect_pairs,
            min_pair_similarity=inf if threshold is None else threshold,
            prefer_short=prefer_short,
        )

    def cost(key: ChunkKey) -> int:
        candidate = candidates[key]
        frame = (frame_tokens or {}).get(key.role, 0)
        return candidate.tokens + frame + annotation_cost[candidate.window, key.role]

    plan_of_added = plan(hits_in_order(added_keys), room, live, prefer_short=False)
    plan_of_hits = plan(
        chosen, room - plan_of_added.cost, {*live, *plan_of_added.keys} if plan_of_added.chunks else live
    )
    plan_of_all = RecallPlan(
        room,
        plan_of_added.cost + plan_of_hits.cost,
        plan_of_added.chunks + plan_of_hits.chunks,
        plan_of_added.passed_over + plan_of_hits.passed_over,
    )
    near = [
        hit
        for hit in eligible
        if hit not in chosen and is_related_hit(hit) and hit.key not in plan_of_all.keys
    ]
    return RecallResult(
        {hit.key: hit for hit in (*chosen, *near)},
        plan_of_all,
        tuple(
            PlannedResurrection(hit.key, ResurrectReason.HIT, hit.key, hit.similarity, cost(hit.key))
            for hit in near[:MAX_NEAR_MISSES]
        ),
        (asks_memory and bool(chosen))
        or sum(hit.probability for hit in informative) >= PROBABLY_KNOWN
        or any(hit.key in live and hit.probability >= PROBABLY_KNOWN_LIVE for hit in informative),
    )


def _worth_recalling(
    candidates: Mapping[ChunkKey, RecallCandidate],
    records: Mapping[ChunkKey, StoredChunk],
    store: SqlStore,
    window_id: str,
    added_keys: Collection[ChunkKey],
) -> tuple[dict[ChunkKey, RecallCandidate], set[ChunkKey]]:
    """The candidates that are worth recalling, and the keys of those that are resurrected only with their answer.

    Replies of the assistant are left out if they state no facts. Replies from another chat are also left out unless they
    answer a question or a request: the reply to a statement only repeats it, and an outdated copy would be read as a fact.
    A question from another chat states no facts, so it is resurrected only with its answer. Chunks that the user asked for by
    key are always kept.
    """
    said = {key: one.chunk for key, one in records.items() if key not in added_keys}
    questions = {chunk.answers for chunk in said.values() if chunk.answers is not None}
    question_chunks = store.chunks_by_key(ChunkKey(turn, 0, Role.USER) for turn in questions)
    question_texts = {one.key.turn_id: one.chunk.text for one in question_chunks}
    kept, only_with_answer = {}, set()
    for key, candidate in candidates.items():
        is_from_other_chat = bool(window_id) and candidate.window != window_id
        if key in said and key.role is Role.ASSISTANT:
            question = question_texts.get(said[key].answers or 0, "")
            if not worth_recalling(said[key].text, question) or (
                is_from_other_chat and question and informative_share(question)
            ):
                continue
        if is_from_other_chat and key.role is Role.USER:
            if key in said and not informative_share(said[key].text):
                only_with_answer.add(key)
            else:
                candidate = replace(candidate, pair_key=None)
        kept[key] = candidate
    return kept, only_with_answer


def _newest_statements(
    hits: Sequence[RecallHit], records: Mapping[ChunkKey, StoredChunk], live: Collection[ChunkKey]
) -> list[RecallHit]:
    """The hits that are not live, with corrections in place of the statements that they correct.

    `records`: of the statements that the model may read here; others correct nothing. Small models take the first value that
    they read, even if a note says that it is outdated, so an outdated statement is left out. Only statements that may help
    with the same message are compared. An outdated one stays if it fits the message better than its
    correction, since the message may be about something else in it.
    """
    by_time = sorted(
        (
            hit
            for hit in hits[:MAX_COMPARED]
            if hit.key.role is Role.USER and hit.key in records and hit.probability >= COMPARED_FROM
        ),
        key=lambda hit: records[hit.key].chunk.start,
    )
    similarity = {hit.key: hit.similarity for hit in hits}
    outdated = set()
    for earlier, later in find_corrections([records[hit.key].chunk.text for hit in by_time]):
        old, new = by_time[earlier], by_time[later]
        if new.similarity > old.similarity - CORRECTION_GAP:
            outdated.add(old.key)
            similarity[new.key] = max(similarity[new.key], old.similarity)
    newest = [
        replace(hit, similarity=similarity[hit.key])
        for hit in hits
        if hit.key not in outdated and hit.key not in live
    ]
    return sorted(newest, key=lambda hit: -hit.similarity)
