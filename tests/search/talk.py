"""A memory of a few exchanges, and recall over it with the embedder that needs no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.search.memory_search import MemorySearch
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.store.material import NOW, answer, ask

EXCHANGES = (
    ("I planted three tomato seedlings behind the shed.", "Water them in the evening, never at noon."),
    (
        "My sister Ada plays the violin in Lisbon.",
        "Try the free concerts on Sunday.",
    ),
    ("The parser fails on parseURL2 with a trailing slash.", "Strip the slash before you split the path."),
    ("We adopted a greyhound called Comet.", "Greyhounds sleep a lot, and they love sofas."),
    ("Remind me that the rent is due on the 28th.", "Noted: the rent, on the 28th."),
)


def talk(
    store, window: str, exchanges=EXCHANGES, *, begun: datetime = NOW, pace: timedelta = timedelta(hours=2)
):
    """Each exchange by itself, since a long pause lies between them. Gives the keys of questions and answers."""
    keys = []
    for i, (question, reply) in enumerate(exchanges):
        ids = ask(store, window, question, now=begun + i * pace)
        said = answer(store, window, ids, reply, now=begun + i * pace)
        keys.append((ChunkKey(ids.user_turn, 0, Role.USER), said[0].chunk.key))
    return keys


@contextmanager
def recalling(store, open_embedder: Callable | None = HashingEmbedder, **more) -> Iterator[MemorySearch]:
    recall = MemorySearch(store, open_embedder, now=lambda: NOW, **more)
    try:
        assert recall.settle(30)
        yield recall
    finally:
        recall.close()


def keys_of(hits) -> list:
    return [hit.key for hit in hits]
