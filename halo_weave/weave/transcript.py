"""What was said in a window, page by page, and what each reply was reminded of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from halo_weave.core.tokens import Role
from halo_weave.records import DOCUMENT, ReplyMemory
from halo_weave.store import Store
from halo_weave.weave.desk import CUT
from halo_weave.weave.reply import THOUGHT, TOOL, UNFINISHED
from halo_weave.weave.seen import Reminder, SaidChunk, SaidPage, SaidTurn

USED = 0.05  # a chunk was used if so much of the reply came from it


def remembered(
    store: Store, turn_ids: Iterable[int], names: Mapping[str, str]
) -> dict[int, tuple[Reminder, ...]]:
    """By reply: the chunks that woke up for it or were used by it, the most used first. Unknown replies are left out."""
    found = store.remembered(turn_ids, least=USED)
    return {turn: tuple(_told(one, names) for one in memories) for turn, (_, memories) in found.items()}


def _told(one: ReplyMemory, names: Mapping[str, str]) -> Reminder:
    record, chunk = one.record, one.record.chunk
    return Reminder(
        chunk.key,
        chunk.start,
        len(chunk),
        chunk.text,
        record.said,
        record.window,
        names.get(record.window, ""),
        record.speaker,
        one.share,
        one.woken,
    )


def said(
    store: Store,
    window_id: str,
    names: Mapping[str, str],
    *,
    offset: int | None,
    around: int | None,
    limit: int,
) -> SaidPage:
    """Turns said in a window, in order: from an offset on, around a turn, or the last ones."""
    page = store.said_in(window_id, offset=offset, around=around, limit=limit)
    grouped = [list(group) for _, group in groupby(page.chunks, key=lambda one: one.key.turn_id)]
    replies = [chunks[0].key.turn_id for chunks in grouped if chunks[0].key.role is Role.ASSISTANT]
    reminded = remembered(store, replies, names)
    siblings = store.siblings({chunks[0].key.turn_id for chunks in grouped})
    turns = []
    for chunks in grouped:
        first = chunks[0]
        alike = siblings.get(first.key.turn_id, [first.key.turn_id])
        turns.append(
            SaidTurn(
                first.key.turn_id,
                first.key.role,
                first.speaker,
                first.said,
                first.window,
                names.get(first.window, ""),
                CUT in first.tags,
                tuple(
                    SaidChunk(
                        one.key,
                        one.chunk.start,
                        len(one.chunk),
                        one.chunk.tokens.spelled(),
                        TOOL in one.tags,
                        THOUGHT in one.tags,
                    )
                    for one in chunks
                ),
                reminded.get(first.key.turn_id),
                len(alike),
                alike.index(first.key.turn_id) + 1,
                DOCUMENT in first.tags,
                UNFINISHED in first.tags,
            )
        )
    return SaidPage(page.total, page.offset, tuple(turns))
