"""One memory in one SQLite file, shared by many windows, threads and processes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from halo_weave.store import Progress, silent
from halo_weave.stores.newfile import new_backup
from halo_weave.stores.sql.store import SqlStore
from halo_weave.stores.sqlite.connection import SqliteDatabase
from halo_weave.stores.sqlite.words import SqliteWords

STEP = 512  # pages copied at a time


class SqliteStore(SqliteWords, SqlStore):
    """A memory in a file."""

    _db: SqliteDatabase

    def __init__(self, path: Path, *, busy_seconds: float = 5.0, read_only: bool = False) -> None:
        super().__init__(SqliteDatabase(path, busy_seconds=busy_seconds, read_only=read_only))

    @property
    def path(self) -> Path:
        return self._db.path

    def backup(self, target: Path, *, progress: Progress = silent) -> None:
        with new_backup(target) as partial, self._db.reading() as db, self._db.translated(target):
            db.execute("SELECT 1 FROM memory").fetchone()  # from here on this reader sees one moment
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                db.backup(copy, pages=STEP, progress=lambda _, left, total: progress(total - left, total))
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, whole in itself
