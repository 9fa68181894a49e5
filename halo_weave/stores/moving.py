"""Moving a memory to another place: into a file or a database. It can be broken off and repeated; every row is compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halo_weave.errors import BadInput, StoreError
from halo_weave.places import memory_file
from halo_weave.records import Finding
from halo_weave.store import Progress, silent
from halo_weave.stores.sql.copying import check_same, copy_rows
from halo_weave.stores.sql.seam import Database
from halo_weave.stores.sql.store import SqlStore
from halo_weave.stores.sqlite import SqliteStore


def move(source: SqlStore, place: Path | str, *, progress: Progress = silent) -> list[Finding]:
    """The memory at another place, where there must be none. The source stays as it is; nobody writes to it meanwhile.

    What `verify` finds in the copy was in the source, too.
    """
    name = source.stats().id
    opened = _database(str(place), name) if "://" in str(place) else _file(Path(place), name)
    with opened as target, source._db.writing() as rows:
        copy_rows(rows, target._db, progress=progress)
        check_same(rows, target._db)
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
        from halo_weave.stores.postgres import PostgresStore
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
