"""One memory in a PostgreSQL database with pgvector, shared by many processes and machines."""

from __future__ import annotations

from pathlib import Path

from halo_weave.store import Progress, silent
from halo_weave.stores.newfile import new_backup
from halo_weave.stores.postgres.database import PostgresDatabase
from halo_weave.stores.postgres.words import PostgresSearch
from halo_weave.stores.sql.copying import copy_rows
from halo_weave.stores.sql.store import SqlStore
from halo_weave.stores.sqlite.connection import SqliteDatabase


class PostgresStore(PostgresSearch, SqlStore):
    """A memory in a database."""

    _db: PostgresDatabase

    def __init__(
        self,
        address: str,
        *,
        busy_seconds: float = 5.0,
        read_only: bool = False,
        moving: str | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder`: where large files may lie for a while. `moving`: the id of a memory that is being moved here, which others may not use until it is whole."""
        super().__init__(
            PostgresDatabase(
                address, busy_seconds=busy_seconds, read_only=read_only, moving=moving, folder=folder
            )
        )

    def backup(self, target: Path, *, progress: Progress = silent) -> None:
        """A memory in a SQLite file: it can be used as it is, or moved back."""
        with new_backup(target) as partial, self._db.reading() as db:
            file = SqliteDatabase(partial)
            try:
                copy_rows(db, file, progress=progress)
            finally:
                file.close()
