"""One memory in one SQLite file, shared by many windows, threads and processes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from halo_weave.stores.sqlite.branches import SqliteBranches
from halo_weave.stores.sqlite.connection import Database
from halo_weave.stores.sqlite.corrections import SqliteCorrections
from halo_weave.stores.sqlite.exporting import SqliteExport
from halo_weave.stores.sqlite.importing import SqliteImport
from halo_weave.stores.sqlite.keepsakes import SqliteKeepsakes
from halo_weave.stores.sqlite.transcript import SqliteTranscript
from halo_weave.stores.sqlite.upkeep import SqliteUpkeep
from halo_weave.stores.sqlite.uses import SqliteUses
from halo_weave.stores.sqlite.windows import SqliteWindows
from halo_weave.stores.sqlite.workingset import SqliteWorkingSets


class SqliteStore(
    SqliteTranscript,
    SqliteBranches,
    SqliteUses,
    SqliteCorrections,
    SqliteWindows,
    SqliteWorkingSets,
    SqliteKeepsakes,
    SqliteUpkeep,
    SqliteExport,
    SqliteImport,
):
    """All that was ever said, what each window knows of it, and the ways to find it again."""

    def __init__(self, path: Path, *, busy_seconds: float = 5.0, read_only: bool = False) -> None:
        self._db = Database(path, busy_seconds=busy_seconds, read_only=read_only)

    @property
    def path(self) -> Path:
        return self._db.path

    @property
    def place(self) -> str:
        return str(self._db.path)

    @property
    def folder(self) -> Path:
        return self._db.path.parent

    def version(self) -> int:
        return self._db.version()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
