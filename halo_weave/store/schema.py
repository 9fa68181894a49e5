"""The schema as numbered SQL migrations, each applied in one transaction."""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from halo_weave.errors import StoreCorrupt, StoreTooNew
from halo_weave.store.encoding import informativeness_of, quantized_blob, word_terms

# SQL functions that migrations use.
SQL_FUNCTIONS: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("terms_of", 3, word_terms),
    ("told_of", 1, informativeness_of),
    ("codes_of", 2, quantized_blob),
)
APPLICATION_ID = 0x48414C4F  # "HALO", in the file's header


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str


def migrations() -> tuple[Migration, ...]:
    """The files of `migrations/`, in order."""
    found = []
    for file in sorted(files(__package__).joinpath("migrations").iterdir(), key=lambda file: file.name):
        number, _, name = file.name.removesuffix(".sql").partition("_")
        if file.name.endswith(".sql"):
            found.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(found)


def migrate(
    db: sqlite3.Connection,
    path: Path,
    *,
    without_migrating: bool = False,
    steps: Sequence[Migration] | None = None,
) -> None:
    """Migrate the file to the newest schema. An older file is first copied beside itself."""
    steps = migrations() if steps is None else steps
    newest = steps[-1].number
    version = _schema_of(db, path)
    if version > newest:
        raise StoreTooNew(
            f"{path} was written by a newer Halo Weave (schema {version}, this one knows {newest}). "
            "Install the newer version."
        )
    if version == newest:
        return
    if without_migrating:
        raise StoreTooNew(
            f"{path} has an older schema ({version}). Open it once for writing to bring it up to date."
        )
    if version:
        _back_up_before_migration(db, path, version)
    _apply(db, [step for step in steps if step.number > version])


def _schema_of(db: sqlite3.Connection, path: Path) -> int:
    """The number of the last migration; 0 for an empty file. Other files are refused."""
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION_ID and (
        application or version or db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    ):
        raise StoreCorrupt(f"{path} is a database, but not a memory of Halo Weave. Name another file.")
    return version


def _apply(db: sqlite3.Connection, steps: Sequence[Migration]) -> None:
    """Apply all migrations or none, so that no other process sees an incomplete memory."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in steps:
            if int(db.execute("PRAGMA user_version").fetchone()[0]) >= step.number:
                continue  # another process was faster
            for name, arguments, function in SQL_FUNCTIONS:
                db.create_function(name, arguments, function, deterministic=True)
            for statement in _statements(step.sql):
                db.execute(statement)
            if step.number == 1:
                db.execute(
                    "INSERT INTO memory (one, id, created, next_turn, next_position) VALUES (1, ?, ?, 1, 0)",
                    (uuid.uuid4().hex, time.time_ns() // 1000),
                )
                db.execute(
                    "CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied INTEGER NOT NULL)"
                )
            db.execute(
                "INSERT INTO migrations (number, name, applied) VALUES (?, ?, ?)",
                (step.number, step.name, time.time_ns() // 1000),
            )
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {step.number}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _statements(sql: str) -> Iterator[str]:
    """Single statements, since running a whole script would end the transaction."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _back_up_before_migration(db: sqlite3.Connection, path: Path, version: int) -> Path:
    """Make a backup named after its schema."""
    copy = path.with_name(f"{path.name}.schema-{version}.backup")
    partial = path.with_name(f"{copy.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    target = sqlite3.connect(partial)
    try:
        db.backup(target)
    finally:
        target.close()
    partial.replace(copy)
    return copy
