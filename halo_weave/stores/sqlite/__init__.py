"""One memory in one SQLite file, shared by many windows, threads and processes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from halo_weave.stores.sqlite.connection import Database
from halo_weave.stores.sqlite.dump import Dump
from halo_weave.stores.sqlite.gaps import Gaps
from halo_weave.stores.sqlite.keepsakes import Keepsakes
from halo_weave.stores.sqlite.restore import Restore
from halo_weave.stores.sqlite.said import Said
from halo_weave.stores.sqlite.signals import Signals
from halo_weave.stores.sqlite.upkeep import Upkeep
from halo_weave.stores.sqlite.verify import Verify
from halo_weave.stores.sqlite.windows import Windows
from halo_weave.stores.sqlite.working import Working


class SqliteStore(Said, Windows, Working, Gaps, Signals, Keepsakes, Upkeep, Verify, Dump, Restore):
    """All that was ever said, what each window knows of it, and the ways to find it again."""

    def __init__(self, path: Path, *, busy_seconds: float = 5.0, read_only: bool = False) -> None:
        self._db = Database(path, busy_seconds=busy_seconds, read_only=read_only)

    @property
    def path(self) -> Path:
        return self._db.path

    def version(self) -> int:
        """A number that changes with every commit, of any thread or process."""
        return self._db.version()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
