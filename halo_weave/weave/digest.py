"""A digest: what a window used most, in the original words, with where each stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from halo_weave.core.tokens import ChunkKey
from halo_weave.store import Store


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A chunk in its own words, and what it gave to the window's replies."""

    key: ChunkKey
    text: str
    speaker: str
    said: datetime
    share: float  # of the replies, added up
    replies: tuple[int, ...]  # the turns of those that used it


def digest(store: Store, window_id: str, tokens: int) -> list[Excerpt]:
    """What was used most, up to so many tokens, in the order in which it was said. No word is changed."""
    used = {one.key: one for one in store.most_used(window_id)}
    records = {one.key: one for one in store.chunks_by_key(list(used))}
    chosen, left = [], tokens
    for key in used:
        if key in records and len(records[key].chunk) <= left:
            chosen.append(records[key])
            left -= len(records[key].chunk)
    return [
        Excerpt(one.key, one.chunk.text, one.speaker, one.said, used[one.key].share, used[one.key].turns)
        for one in sorted(chosen, key=lambda one: one.chunk.start)
    ]
