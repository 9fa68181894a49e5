"""What takes many steps and must not meet its like: one import or clearing at a time, among all processes."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from halo_weave.errors import StoreBusy
from halo_weave.stores.sqlite.connection import Database

PAUSE = 0.05  # seconds; SQLite's own waiting would not hear Ctrl-C


@contextmanager
def alone(database: Database, *, patience: float) -> Iterator[None]:
    """Wait for others up to `patience` seconds, then keep them out until the block ends.

    The lock is SQLite's own, on an empty file beside the memory: so it holds among threads and processes on every
    system, ends with the process that has it, and lets all other work on the memory go on.
    """
    path = database.path.with_name(f"{database.path.name}.import")
    deadline = time.monotonic() + patience
    with database.spoken(path):
        lock = sqlite3.connect(path, timeout=0, isolation_level=None)
    with closing(lock):
        while not taken(database, lock):
            if time.monotonic() >= deadline:
                raise StoreBusy(
                    f"Another import into {database.path} is under way, or it is being cleared. Nothing was changed; "
                    "try again when that is done."
                )
            time.sleep(PAUSE)
        yield


def taken(database: Database, lock: sqlite3.Connection) -> bool:
    with database.spoken():
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise
            return False
        return True
