"""What was said in a window: pages with the sources of each reply, the timeline, and a digest of what was used most."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from halo_weave.chat.open_window import INTERRUPTED
from halo_weave.chat.reply import THOUGHT, TOOL, UNFINISHED
from halo_weave.chat.views import ReplySourceView, TranscriptChunk, TranscriptPage, TranscriptTurn
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.store.records import DOCUMENT, ChunkEventKind, ReplySource, TimelineEvent, WindowTimeline
from halo_weave.store.sql_store import SqlStore

MIN_USED_SHARE = 0.05  # a chunk counts as used if at least this share of the reply came from it


def reply_sources(
    store: SqlStore, turn_ids: Iterable[int], names: Mapping[str, str]
) -> dict[int, tuple[ReplySourceView, ...]]:
    """By reply: the chunks that were resurrected for it or used by it, most used first. Unknown replies are left out."""
    found = store.remembered(turn_ids, min_share=MIN_USED_SHARE)
    return {
        turn: tuple(_source_view(one, names) for one in memories) for turn, (_, memories) in found.items()
    }


def _source_view(one: ReplySource, names: Mapping[str, str]) -> ReplySourceView:
    record, chunk = one.record, one.record.chunk
    return ReplySourceView(
        chunk.key,
        chunk.start,
        len(chunk),
        chunk.text,
        record.said,
        record.window,
        names.get(record.window, ""),
        record.speaker,
        one.share,
        one.resurrect_reason,
    )


def transcript_page(
    store: SqlStore,
    window_id: str,
    names: Mapping[str, str],
    *,
    offset: int | None,
    around: int | None,
    limit: int,
) -> TranscriptPage:
    """Turns of a window in order: from an offset on, around a turn, or the last ones."""
    page = store.said_in(window_id, offset=offset, around=around, limit=limit)
    grouped = [list(group) for _, group in groupby(page.chunks, key=lambda one: one.key.turn_id)]
    replies = [chunks[0].key.turn_id for chunks in grouped if chunks[0].key.role is Role.ASSISTANT]
    reminded = reply_sources(store, replies, names)
    siblings = store.siblings({chunks[0].key.turn_id for chunks in grouped})
    turns = []
    for chunks in grouped:
        first = chunks[0]
        alike = siblings.get(first.key.turn_id, [first.key.turn_id])
        turns.append(
            TranscriptTurn(
                first.key.turn_id,
                first.key.role,
                first.speaker,
                first.said,
                first.window,
                names.get(first.window, ""),
                INTERRUPTED in first.tags,
                tuple(
                    TranscriptChunk(
                        chunk.key,
                        chunk.chunk.start,
                        len(chunk.chunk),
                        chunk.chunk.tokens.spelled(),
                        TOOL in chunk.tags,
                        THOUGHT in chunk.tags,
                    )
                    for chunk in chunks
                ),
                reminded.get(first.key.turn_id),
                len(alike),
                alike.index(first.key.turn_id) + 1,
                DOCUMENT in first.tags,
                UNFINISHED in first.tags,
            )
        )
    return TranscriptPage(page.total, page.offset, tuple(turns))


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """Something that happened to a chunk, and the turn after which it happened, both as indexes."""

    step: int
    chunk: int
    event: ChunkEventKind
    why: str


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The turns and chunks of a window in order, and what happened to the chunks."""

    turns: tuple[int, ...]
    keys: tuple[ChunkKey, ...]
    tokens: tuple[int, ...]
    foreign: tuple[int, ...]  # said in another window
    live: tuple[int, ...]
    pinned: tuple[int, ...]
    events: tuple[TimelineStep, ...]


def timeline_view(life: WindowTimeline) -> TimelineView:
    """The timeline with each event assigned to its turn."""
    places = {chunk.key: place for place, chunk in enumerate(life.chunks)}
    own = {turn for turn, _ in life.turns}
    times = [said for _, said in life.turns]

    def step(one: TimelineEvent) -> int:
        """The turn that an event belongs to: what recall or a memory entry resurrects belongs to the turn stored right
        after."""
        said = bisect_right(times, one.happened) - 1
        resurrected_for_it = one.event == "woke" and one.why in ("recall", "memory")
        return max(0, min(len(times) - 1, said + resurrected_for_it))

    return TimelineView(
        tuple(turn for turn, _ in life.turns),
        tuple(places),
        tuple(chunk.tokens for chunk in life.chunks),
        tuple(places[chunk.key] for chunk in life.chunks if chunk.key.turn_id not in own),
        tuple(places[chunk.key] for chunk in life.chunks if chunk.live),
        tuple(places[chunk.key] for chunk in life.chunks if chunk.pinned),
        tuple(TimelineStep(step(event), places[event.key], event.event, event.why) for event in life.events),
    )


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A chunk in its original words, and how much the window's replies used it."""

    key: ChunkKey
    text: str
    speaker: str
    said: datetime
    share: float  # sum over the replies
    replies: tuple[int, ...]  # the turns of those that used it


def digest(store: SqlStore, window_id: str, tokens: int) -> list[Excerpt]:
    """The most used chunks, up to so many tokens, in the order in which they were said, unchanged."""
    used = {one.key: one for one in store.most_used(window_id)}
    records = {record.key: record for record in store.chunks_by_key(list(used))}
    chosen, left = [], tokens
    for key in used:
        if key in records and len(records[key].chunk) <= left:
            chosen.append(records[key])
            left -= len(records[key].chunk)
    return [
        Excerpt(one.key, one.chunk.text, one.speaker, one.said, used[one.key].share, used[one.key].turns)
        for one in sorted(chosen, key=lambda one: one.chunk.start)
    ]
