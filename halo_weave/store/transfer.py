"""Copy a memory row by row into another database, and move it there."""

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
# References to rows that come later: these columns are filled in when all rows are there.
DEFERRED_COLUMNS = {"windows": "head", "chunks": "merged_into"}
HEADER = Table("memory", ("id", "created", "next_turn", "next_position", "cleared_turn"), ("id",))
Row = tuple[Any, ...]


def copy_rows(source: Connection, target: Database, *, progress: Progress = silent) -> int:
    """The target holds what the source holds. Others may see it half done meanwhile. Returns how many rows it took."""
    tables = source.tables()
    total = sum(int(source.execute(f"SELECT count(*) FROM {one.name}").fetchone()[0]) for one in tables)
    done = written = 0
    for table in tables:
        for gone, new in _steps(source, target, table, DEFERRED_COLUMNS.get(table.name)):
            with target.writing() as db:
                _remove(db, table, gone)
                _put(db, table, new)
            written += len(gone) + len(new)
            done += len(new)
            progress(min(done, total), total)
    for table in tables:
        if table.name in DEFERRED_COLUMNS:
            for gone, new in _steps(source, target, table, None):
                with target.writing() as db:
                    _remove(db, table, gone)
                    _put(db, table, new)
    header = source.execute(f"SELECT {', '.join(HEADER.columns)} FROM memory").fetchone()
    with target.writing(durable=True) as db:
        columns = ", ".join(f"{column} = ?" for column in HEADER.columns)
        db.execute(f"UPDATE memory SET {columns}", header)
        db.reset_row_counters()
    progress(total, total)
    return written


def check_identical(source: Connection, target: Database) -> None:
    """Every row of both, once more."""
    for table in [*source.tables(), HEADER]:
        for gone, new in _steps(source, target, table, None):
            raise StoreError(
                f"{len(gone) + len(new)} rows of {table.name} in {target.place} are not what they should be. "
                "Repeat the move; what is there already is not copied again."
            )


def _steps(
    source: Connection, target: Database, table: Table, late: str | None
) -> Iterator[tuple[list[Row], list[Row]]]:
    """A batch at a time: the keys of rows that should go, and the rows that should be there."""
    gone: list[Row] = []
    new: list[Row] = []
    with target.reading() as held:
        for key, row in _differing(_rows(source, table, late), _rows(held, table, late), len(table.key)):
            (gone if row is None else new).append(key if row is None else row)
            if len(gone) + len(new) >= BATCH:
                yield gone, new
                gone, new = [], []
    if gone or new:
        yield gone, new


def _rows(db: Connection, table: Table, late: str | None) -> Iterator[Row]:
    columns = ["NULL" if column == late else column for column in table.columns]
    return iter(db.stream(f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY {', '.join(table.key)}"))


def _differing(wanted: Iterator[Row], held: Iterator[Row], width: int) -> Iterator[tuple[Row, Row | None]]:
    """Both in the order of their first `width` columns. None: the row should not be there."""
    one, other = next(wanted, None), next(held, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[:width] < other[:width]):
            assert one is not None
            yield one[:width], one
            one = next(wanted, None)
        elif one is None or other[:width] < one[:width]:
            yield other[:width], None
            other = next(held, None)
        else:
            if one != other:
                yield one[:width], one
            one, other = next(wanted, None), next(held, None)


def _remove(db: Connection, table: Table, keys: Sequence[Row]) -> None:
    if table.name == "words":
        db.remove_from_word_index([key[0] for key in keys])
    elif keys:
        where = " AND ".join(f"{column} = ?" for column in table.key)
        db.executemany(f"DELETE FROM {table.name} WHERE {where}", keys)


def _put(db: Connection, table: Table, rows: Sequence[Row]) -> None:
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
    """The memory at another place, where there must be none. The source stays as it is; nobody writes to it meanwhile.

    What `verify` finds in the copy was in the source, too.
    """
    name = source.stats().id
    opened = _database(str(place), name) if "://" in str(place) else _file(Path(place), name)
    with opened as target, source._db.writing() as rows:
        copy_rows(rows, target._db, progress=progress)
        check_identical(rows, target._db)
        return target.verify()


@contextmanager
def _file(folder: Path, name: str) -> Iterator[SqlStore]:
    """A file of another name until it is whole."""
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
    """A database that nobody else can use until the memory in it is whole."""
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
    """The place is for the memory of this name: it is empty, or it was `begun` to be moved there."""
    with target.writing(durable=True) as db:
        own, next_turn = db.execute("SELECT id, next_turn FROM memory").fetchone()
        used = next_turn > 1 or any(
            db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()
            for table in ("windows", "entries", "notes", "settings")
        )
        if used and not (begun and own == name):
            raise BadInput(f"There is another memory at {target.place} already. Name an empty place.")
        db.execute("UPDATE memory SET id = ?", (name,))
