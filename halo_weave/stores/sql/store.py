"""A store made of the shared statements. A database adds the search of words and vectors, and the backup."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from halo_weave.fleet import Fleet
from halo_weave.stores.sql.branches import SqlBranches
from halo_weave.stores.sql.corrections import SqlCorrections
from halo_weave.stores.sql.exporting import SqlExport
from halo_weave.stores.sql.importing import SqlImport
from halo_weave.stores.sql.keepsakes import SqlKeepsakes
from halo_weave.stores.sql.people import SqlPeople
from halo_weave.stores.sql.seam import Database
from halo_weave.stores.sql.stamps import SqlStamps
from halo_weave.stores.sql.syncing import SqlSync
from halo_weave.stores.sql.tags import SqlTags
from halo_weave.stores.sql.transcript import SqlTranscript
from halo_weave.stores.sql.upkeep import SqlUpkeep
from halo_weave.stores.sql.uses import SqlUses
from halo_weave.stores.sql.windows import SqlWindows
from halo_weave.stores.sql.workingset import SqlWorkingSets


class SqlStore(
    SqlTranscript,
    SqlBranches,
    SqlUses,
    SqlCorrections,
    SqlStamps,
    SqlWindows,
    SqlWorkingSets,
    SqlKeepsakes,
    SqlTags,
    SqlPeople,
    SqlUpkeep,
    SqlExport,
    SqlImport,
    SqlSync,
):
    """All that was ever said, what each window knows of it, and the ways to find it again."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def place(self) -> str:
        return self._db.place

    @property
    def fleet(self) -> Fleet:
        return self._db.fleet

    @property
    def folder(self) -> Path:
        return self._db.folder

    def version(self) -> int:
        return self._db.version()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
