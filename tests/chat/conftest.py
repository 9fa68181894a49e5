"""A whole system on the scripted engine: real store, real core; recall by plain words, so that tests can foretell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.resurrection import RecallHit
from halo_weave.core.terms import stems, terms
from halo_weave.engines.base import NO_FILTER, SearchFilter
from halo_weave.store.sqlite import SqliteStore
from tests.fakes.scripted_engine import ScriptedEngine

PLAIN = {
    "a",
    "and",
    "are",
    "do",
    "i",
    "in",
    "is",
    "it",
    "me",
    "my",
    "of",
    "on",
    "the",
    "to",
    "was",
    "what",
    "you",
}


class WordRecall:
    """A chunk is as similar as it shares words with the question, beyond the plain ones."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.noted = 0

    def prefetch_query(self, text: str) -> None:
        pass

    def search(
        self,
        text: str,
        *,
        window: str | None = None,
        limit: int = 50,
        only: SearchFilter = NO_FILTER,
        **_: Any,
    ) -> Sequence[RecallHit]:
        asked = set(terms(text)) - PLAIN
        if not asked:
            return []
        found: Counter[int] = Counter()
        for numbers, scores in self.store.search_terms(stems(sorted(asked), "english"), 1000, window=window):
            found.update(dict(zip(numbers.tolist(), scores.tolist(), strict=True)))
        hits = []
        for record in self.store.chunks(number for number, _ in found.most_common(limit)):
            shared = asked & set(terms(record.chunk.text))
            if shared and only.takes(record.key, record.window, record.said):
                hits.append(RecallHit(record.key, len(shared), {"words": len(shared)}, tuple(sorted(shared))))
        return hits

    def embed_soon(self) -> None:
        self.noted += 1

    def forget(self) -> None:
        pass

    def reopen(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"state": "off"}

    def close(self) -> None:
        pass


class Clock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self.at = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


Assembled = Callable[..., Weave]


@pytest.fixture
def assembled(tmp_path: Path) -> Iterator[Assembled]:
    """Opens the same memory, as often as it is called, as a restart does."""
    opened: list[Weave] = []
    clock = Clock()

    def open_memory(engine: ScriptedEngine | None = None, toolbox: Any = None, **more: Any) -> Weave:
        store = SqliteStore(tmp_path / "memory.sqlite")
        weave = Weave(engine or ScriptedEngine(), store, WordRecall(store), toolbox, now=clock, **more)
        weave.turns.entry_filer.pause = 0.0
        opened.append(weave)
        return weave

    yield open_memory
    for weave in opened:
        weave.close()


SMALL = {
    "strategy": "magnitude_voting",  # so that tests can foretell what falls asleep: the oldest
    "max_context_tokens": 300,
    "max_new_tokens": 40,
    "min_chunk_tokens": 8,
    "timestamps": False,
    "resurrection_budget": 200,
    "tools": "tags",
}


def spoken(turn: list[events.TurnEvent]) -> str:
    return b"".join(event.piece for event in turn if isinstance(event, events.TokenGenerated)).decode()


def of(kind: type[Any], turn: list[events.TurnEvent]) -> list[Any]:
    return [event for event in turn if isinstance(event, kind)]


def lived(weave: Weave, window: str) -> list[tuple[str, str, bool, bytes]]:
    """All that a window shows, to compare with."""
    return [
        (str(one.chunk.key), one.chunk.text, one.pinned, one.brightness.tobytes())
        for turn in weave.windows.context(window).turns
        for one in turn.chunks
    ]
