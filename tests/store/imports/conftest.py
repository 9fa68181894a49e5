"""A memory to import into, and what was said in it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from halo_weave.store.records import ImportResult
from halo_weave.store.sql_store import SqlStore
from halo_weave.store.sqlite import SqliteStore
from tests.fuzz import CORPUS
from tests.store.material import quick_folder

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


class Heard(NamedTuple):
    """A turn as a reader of the memory finds it."""

    role: str
    speaker: str
    said: datetime
    text: str
    thoughts: str
    tools: str


@pytest.fixture
def store() -> Iterator[SqlStore]:
    with quick_folder() as folder, SqliteStore(folder / "memory.sqlite") as opened:
        yield opened


@pytest.fixture
def load(store: SqlStore) -> Callable[..., ImportResult]:
    """Import a sample by its name, or bytes, or a value as JSON."""

    def loaded(what: Any) -> ImportResult:
        content = sample(what) if isinstance(what, str) else what
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        result = store.import_open_file(io.BytesIO(content), now=NOW)
        assert store.verify() == []
        return result

    return loaded


def sample(name: str) -> bytes:
    return (CORPUS / "imports" / name).read_bytes()


def heard(store: SqlStore, window: str | None = None) -> list[Heard]:
    """All turns in the order of their ids."""
    turns: dict[int, list[Any]] = {}
    for place in sorted(store.chunk_places(), key=lambda one: one.start):
        [record] = store.chunks([place.number])
        if window in (None, record.window):
            turns.setdefault(place.turn_id, []).append(record)
    return [
        Heard(
            str(records[0].key.role),
            records[0].speaker,
            records[0].said,
            _text(records, ""),
            _text(records, "thought"),
            _text(records, "tool"),
        )
        for _, records in sorted(turns.items())
    ]


def _text(records: list[Any], tag: str) -> str:
    return "".join(one.chunk.text for one in records if one.tags == ((tag,) if tag else ())).strip()
