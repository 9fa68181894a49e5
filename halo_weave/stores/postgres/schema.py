"""The tables of a memory in PostgreSQL: SQLite's migrations with other types, and tables of its own for search."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg

from halo_weave.errors import StoreCorrupt, StoreError, StoreTooNew
from halo_weave.stores.postgres.dialect import definitions, statements, typed
from halo_weave.stores.sqlite.schema import Migration, migrations

Raw = psycopg.Connection[Any]
_RESERVED = re.compile(r"\bwindow\b")


def schema_of(raw: Raw) -> int | None:
    """The number of the last migration; None if there is no memory."""
    if raw.execute("SELECT to_regclass(current_schema() || '.memory')").fetchone() == (None,):
        return None
    row = raw.execute("SELECT max(number) FROM migrations").fetchone()
    return int(row[0]) if row else None


def migrate(raw: Raw, place: str, *, look_only: bool = False) -> None:
    """Bring the memory to the newest schema, or make one where there is none. Within a transaction of the caller's."""
    steps = migrations()
    newest = steps[-1].number
    version = schema_of(raw)
    if version == newest:
        return
    if version is None:
        if look_only:
            raise StoreError(
                f"There is no memory at {place}. Talk to a model first, or name another with --store."
            )
        taken = raw.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY(%s)",
            (["windows", "turns", "chunks"],),
        ).fetchone()
        if taken != (0,):
            raise StoreCorrupt(
                f"{place} has tables that are not a memory of Halo Weave. Name another database or schema."
            )
        _make(raw, steps)
    elif version > newest:
        raise StoreTooNew(
            f"{place} was written by a newer Halo Weave (schema {version}, this one knows {newest}). "
            "Install the newer version."
        )
    elif look_only:
        raise StoreTooNew(
            f"{place} has an older schema ({version}). Open it once for writing to bring it up to date."
        )
    else:
        for step in steps:
            if step.number > version:
                for statement in _own(step) or _shared(step):
                    raw.execute(statement)
                _note(raw, step)


def _make(raw: Raw, steps: tuple[Migration, ...]) -> None:
    """An empty memory: of the migrations only the definitions count, since there is nothing to bring up to date."""
    for step in steps:
        for statement in definitions(step.sql):
            raw.execute(_worded(statement))
    for statement in (files(__package__) / "search.sql").read_text(encoding="utf-8").split(";\n\n"):
        raw.execute(statement)
    raw.execute(
        "INSERT INTO memory (one, id, created, next_turn, next_position) VALUES (1, %s, %s, 1, 0)",
        (uuid.uuid4().hex, time.time_ns() // 1000),
    )
    raw.execute(
        "CREATE TABLE migrations (number BIGINT PRIMARY KEY, name TEXT NOT NULL, applied BIGINT NOT NULL)"
    )
    for step in steps:
        _note(raw, step)


def _shared(step: Migration) -> Iterator[str]:
    return (_worded(statement) for statement in statements(step.sql))


def _own(step: Migration) -> list[str]:
    """Of a migration that PostgreSQL does in its own way."""
    folder = files(__package__) / "migrations"
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name.startswith(f"{step.number:04}_"):
            return statements(file.read_text(encoding="utf-8"))
    return []


def _worded(statement: str) -> str:
    """With PostgreSQL's types, and the one name that is reserved there."""
    return _RESERVED.sub('"window"', typed(statement))


def _note(raw: Raw, step: Migration) -> None:
    raw.execute(
        "INSERT INTO migrations (number, name, applied) VALUES (%s, %s, %s)",
        (step.number, step.name, time.time_ns() // 1000),
    )
