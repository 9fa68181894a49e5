"""Copy a memory into another file or database, row by row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from halo_weave.errors import BadInput, StoreError
from halo_weave.paths import memory_file
from halo_weave.store.database import Connection, Database, Table
from halo_weave.store.records import Progress, VerifyFinding, silent
from halo_weave.store.sql_store import SqlStore
from halo_weave.store.sqlite import SqliteStore

BATCH = 1_000  # rows in one transaction
# Columns that refer to rows of later tables: they stay empty until all rows are copied.
DEFERRED_COLUMNS = {"windows": "head", "chunks": "merged_into"}
# The row of the table `memory` that is copied last.
HEADER = Table("memory", ("id", "created", "next_turn", "next_position", "cleared_turn"), ("id",))
Row = tuple[Any, ...]


def copy_rows(source: Connection, target: Database, *, progress: Progress = silent) -> int:
    """Make the target equal to the source. Returns how many rows were written or deleted.

    Rows that are equal already are skipped, so an interrupted copy can be repeated. Each batch is a transaction of its own:
    a reader of the target may see an incomplete copy.
    """
    tables = source.tables()
    total = sum(int(source.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0]) for table in tables)
    done = written = 0
    for table in tables:
        for to_delete, to_write in _differences(source, target, table, DEFERRED_COLUMNS.get(table.name)):
            with target.writing() as db:
                _delete_rows(db, table, to_delete)
                _write_rows(db, table, to_write)
            written += len(to_delete) + len(to_write)
            done += len(to_write)
            progress(min(done, total), total)
    for table in tables:
        if table.name in DEFERRED_COLUMNS:
            for to_delete, to_write in _differences(source, target, table, None):
                with target.writing() as db:
                    _delete_rows(db, table, to_delete)
                    _write_rows(db, table, to_write)
    header = source.execute(f"SELECT {', '.join(HEADER.columns)} FROM memory").fetchone()
    with target.writing(durable=True) as db:
        columns = ", ".join(f"{column} = ?" for column in HEADER.columns)
        db.execute(f"UPDATE memory SET {columns}", header)
        db.reset_row_counters()
    progress(total, total)
    return written


def check_identical(source: Connection, target: Database) -> None:
    """Compare all rows of both, and raise an error if any differ."""
    for table in [*source.tables(), HEADER]:
        for to_delete, to_write in _differences(source, target, table, None):
            raise StoreError(
                f"{len(to_delete) + len(to_write)} rows of {table.name} in {target.place} are not what they should be. "
                "Repeat the move; what is there already is not copied again."
            )


def _differences(
    source: Connection, target: Database, table: Table, deferred: str | None
) -> Iterator[tuple[list[Row], list[Row]]]:
    """The differences in batches: keys of rows to delete from the target, and rows to write into it."""
    to_delete: list[Row] = []
    to_write: list[Row] = []
    with target.reading() as present:
        for key, row in _compare(
            _rows(source, table, deferred), _rows(present, table, deferred), len(table.key)
        ):
            (to_delete if row is None else to_write).append(key if row is None else row)
            if len(to_delete) + len(to_write) >= BATCH:
                yield to_delete, to_write
                to_delete, to_write = [], []
    if to_delete or to_write:
        yield to_delete, to_write


def _rows(db: Connection, table: Table, deferred: str | None) -> Iterator[Row]:
    columns = ["NULL" if column == deferred else column for column in table.columns]
    return iter(db.stream(f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY {', '.join(table.key)}"))


def _compare(
    wanted: Iterator[Row], present: Iterator[Row], key_size: int
) -> Iterator[tuple[Row, Row | None]]:
    """The key and the wanted row of each difference; None: the row must be deleted.

    Both sources are sorted by their key, which is their first `key_size` columns.
    """
    expected, actual = next(wanted, None), next(present, None)
    while expected is not None or actual is not None:
        if actual is None or (expected is not None and expected[:key_size] < actual[:key_size]):
            assert expected is not None
            yield expected[:key_size], expected
            expected = next(wanted, None)
        elif expected is None or actual[:key_size] < expected[:key_size]:
            yield actual[:key_size], None
            actual = next(present, None)
        else:
            if expected != actual:
                yield expected[:key_size], expected
            expected, actual = next(wanted, None), next(present, None)


def _delete_rows(db: Connection, table: Table, keys: Sequence[Row]) -> None:
    if table.name == "words":
        db.remove_from_word_index([key[0] for key in keys])
    elif keys:
        where = " AND ".join(f"{column} = ?" for column in table.key)
        db.executemany(f"DELETE FROM {table.name} WHERE {where}", keys)


def _write_rows(db: Connection, table: Table, rows: Sequence[Row]) -> None:
    if table.name == "words":
        db.remove_from_word_index([row[0] for row in rows])
        db.add_to_word_index([(row[0], row[1]) for row in rows])
    elif table.name == "vectors":
        for generation, group in groupby(rows, key=lambda row: row[0]):
            found = db.execute("SELECT dimension FROM generations WHERE id = ?", (generation,)).fetchone()
            db.put_vectors(generation, found[0], [(row[1], row[2]) for row in group])
    elif rows:
        columns, key = ", ".join(table.columns), ", ".join(table.key)
        others = [column for column in table.columns if column not in table.key]
        change = ", ".join(f"{column} = excluded.{column}" for column in others)
        db.executemany(
            f"""INSERT INTO {table.name} ({columns}) VALUES ({", ".join("?" * len(table.columns))})
                ON CONFLICT ({key}) DO {f"UPDATE SET {change}" if change else "NOTHING"}""",
            rows,
        )


def transfer_memory(
    source: SqlStore, place: Path | str, *, progress: Progress = silent
) -> list[VerifyFinding]:
    """Copy the memory to another folder or database, which must be empty.

    The source stays unchanged, and nobody can write to it meanwhile. Returns what `verify` finds in the copy; these faults are in
    the source, too.
    """
    name = source.stats().id
    opened = _database(str(place), name) if "://" in str(place) else _file(Path(place), name)
    with opened as target, source._db.writing() as rows:
        copy_rows(rows, target._db, progress=progress)
        check_identical(rows, target._db)
        return target.verify()


@contextmanager
def _file(folder: Path, name: str) -> Iterator[SqlStore]:
    """The new file. It has another name until the copy is complete."""
    path = memory_file(folder)
    partial = path.with_name(path.name + ".moving")
    if path.exists():
        raise BadInput(f"There is a memory at {path} already. Name another folder, or move that file away.")
    with SqliteStore(partial) as target:
        _claim(target._db, name, begun=True)
        yield target
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


@contextmanager
def _database(address: str, name: str) -> Iterator[SqlStore]:
    """The new database. It is marked as incomplete, so that no server opens it until the copy is complete."""
    try:
        from halo_weave.store.postgres.store import PostgresStore
    except ImportError as error:
        raise StoreError("PostgreSQL needs: pip install 'halo-weave[postgres]'") from error
    with PostgresStore(address, moving=name) as target:
        with target._db.reading() as db:
            begun = db.execute("SELECT moving FROM memory").fetchone()[0] is not None
        if not begun:
            _claim(target._db, name)
            with target._db.writing(durable=True) as db:
                db.execute("UPDATE memory SET moving = ?", (name,))
        yield target
        with target._db.writing(durable=True) as db:
            db.execute("UPDATE memory SET moving = NULL")


def _claim(target: Database, name: str, *, begun: bool = False) -> None:
    """Give the target the id of the memory. It must be empty, or with `begun` hold an incomplete copy of the same memory."""
    with target.writing(durable=True) as db:
        own, next_turn = db.execute("SELECT id, next_turn FROM memory").fetchone()
        used = next_turn > 1 or any(
            db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
            for table in ("windows", "entries", "notes", "settings")
        )
        if used and not (begun and own == name):
            raise BadInput(f"There is another memory at {target.place} already. Name an empty place.")
        db.execute("UPDATE memory SET id = ?", (name,))
