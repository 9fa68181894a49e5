"""A memory in one SQLite file: connections, errors, full-text search with FTS5, integrity checks, and SqliteStore."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from halo_weave.errors import BadInput, StoreBusy, StoreCorrupt, StoreError, StoreFull
from halo_weave.store.access import StoreHandle, server_only
from halo_weave.store.database import (
    NOT_COPIED,
    WORD_INDEX,
    Check,
    Connection,
    Coordinator,
    Fault,
    SingleProcess,
    Table,
    WriteLock,
    is_running,
    table_of,
)
from halo_weave.store.records import VERIFY_FIRST, Numbers, Progress, Scores, VectorSearch, silent
from halo_weave.store.schema import APPLICATION_ID, migrate
from halo_weave.store.sql_store import SqlStore, atomic_backup


def _check_file(db: Connection) -> Iterator[Fault]:
    for (sentence,) in db.execute("PRAGMA integrity_check(20)"):
        if sentence != "ok":
            yield f"The file is damaged: {sentence}.", None
    for table, row, parent, _ in db.execute("PRAGMA foreign_key_check"):
        yield f"Row {row} of {table} points to something in {parent} that is not there.", None


def _check_word_index(db: Connection) -> Iterator[Fault]:
    """Let FTS5 compare its index with its content. For SQLite this is a write, so it has its own connection; on a
    read-only memory the check is left out."""
    file = next(name for _, schema, name in db.execute("PRAGMA database_list") if schema == "main")
    own = sqlite3.connect(file, isolation_level=None)
    try:
        own.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_CORRUPT"):
            yield (
                "The word index does not fit the words it holds.",
                lambda db: db.execute("INSERT INTO words (words) VALUES ('rebuild')"),
            )
    finally:
        own.close()


CHECKS: dict[str, Check] = {"file": _check_file, "word index": _check_word_index}


def _size(file: Path) -> int:
    """Bytes of a file; 0 if it does not exist. SQLite deletes its log when the last connection closes."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


class SqliteWords(StoreHandle):
    @server_only
    def search_terms(
        self, terms: Sequence[str], limit: int, *, window: str | None = None
    ) -> list[tuple[Numbers, Scores]]:
        """For each term the numbers of the chunks that contain it and their BM25 (higher is better), in any order.

        Both are empty if more than `limit` chunks of all windows contain the term. `window`: only chunks of this window.
        """
        where = "AND (SELECT c.window FROM chunks c WHERE c.number = words.rowid) = :window" if window else ""
        found = []
        nothing = np.zeros(0, np.int64), np.zeros(0, np.float64)
        with self._db.reading() as db:
            few = (db.execute("SELECT max(number) FROM chunks").fetchone()[0] or 0) <= limit
            for term in terms:
                values = {"phrase": _phrase(term), "window": window, "most": limit + 1}
                # Counting is cheaper than ranking, so check first whether the term is too common.
                holding = "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH :phrase LIMIT :most)"
                rows = []
                if few or 0 < db.execute(holding, values).fetchone()[0] <= limit:
                    ranked = f"SELECT rowid, -bm25(words) FROM words WHERE words MATCH :phrase {where}"
                    rows = db.execute(ranked, values).fetchall()
                if not rows:
                    found.append(nothing)
                    continue
                numbers, scores = zip(*rows, strict=True)
                found.append((np.array(numbers, np.int64), np.array(scores, np.float64)))
        return found

    @server_only
    def vector_search(self, generation: int) -> VectorSearch | None:
        """The store's own index over these vectors; None if it has none, then the process loads them itself."""
        return None  # SQLite has no index for vectors: the process loads them


def _phrase(term: str) -> str:
    """A term as a quoted phrase of FTS5, without operators."""
    return '"' + term.replace('"', " ").replace("\x00", " ") + '"'


T = TypeVar("T")

PAGE_BYTES = 8192  # five MiniLM vectors to a page; with 4096 a quarter of each page would stay empty
LOG_BYTES = 64 << 20  # the write-ahead log is cut back to this after a checkpoint
CACHE_KIB = 16 << 10
EMPTY_SECONDS = 2.0  # seconds for another process to write the first page of a new file
KEPT_WHEN_CLEARED = {"memory", "migrations", "settings", "people"}  # when a memory is cleared
RETRY_SECONDS = 0.05  # seconds between two attempts; SQLite's own waiting cannot be interrupted by Ctrl-C


class SqliteConnection(sqlite3.Connection):
    """A connection, with SQLite's own versions of the statements that differ."""

    stream = sqlite3.Connection.execute  # SQLite reads rows as they are fetched

    def mark_changed(self, numbers: Sequence[int]) -> None:
        self.executemany(
            "INSERT OR REPLACE INTO changes (chunk) VALUES (?)", [(number,) for number in numbers]
        )

    def last_change(self) -> int:
        row = self.execute("SELECT seq FROM sqlite_sequence WHERE name = 'changes'").fetchone()
        return int(row[0]) if row else 0

    def add_to_word_index(self, rows: Sequence[tuple[int, str]]) -> None:
        self.executemany("INSERT INTO words (rowid, terms) VALUES (?, ?)", rows)

    def remove_from_word_index(self, numbers: Sequence[int]) -> None:
        self.executemany("DELETE FROM words WHERE rowid = ?", [(number,) for number in numbers])

    def put_vectors(self, generation: int, dimension: int, rows: Sequence[tuple[int, bytes]]) -> None:
        self.executemany(
            "INSERT OR REPLACE INTO vectors (generation, chunk, vector) VALUES (?, ?, ?)",
            [(generation, number, codes) for number, codes in rows],
        )

    def check_lease(self, window_id: str) -> None:
        """Nothing: a file is used by one server."""

    def fence(self, windows: Sequence[str]) -> None:
        """Nothing: a file is used by one server."""

    def writes(self, owner: str, window_id: str) -> bool | None:
        return is_running(owner)

    def defer_references(self) -> None:
        self.execute("PRAGMA defer_foreign_keys = ON")

    def tables(self) -> list[Table]:
        names = self.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid").fetchall()
        found = []
        for (name,) in names:
            if name.startswith(("sqlite_", "words")) or name in NOT_COPIED:
                continue
            columns = self.execute(f"PRAGMA table_info({name})").fetchall()
            key = [(place, column) for _, column, _, _, _, place in columns if place]
            found.append(
                table_of(name, [column for _, column, *_ in columns], [name for _, name in sorted(key)])
            )
        return [*found, WORD_INDEX]

    def reset_row_counters(self) -> None:
        """Nothing: SQLite continues after the highest number."""


class SqliteDatabase:
    """Connections to one memory file. Any thread may read or write; writes happen one at a time.

    When `writing` ends, the operating system has the commit, so it survives the death of this process. With `durable`
    it is also on disk, so it survives a loss of power.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 5.0, read_only: bool = False) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self.read_only = read_only
        self._turn = WriteLock()  # one writer at a time within the process
        self._idle: list[SqliteConnection] = []
        self._all: list[SqliteConnection] = []
        self._guard = threading.Condition()
        self._closed = False
        self._durable = True
        self._watcher: SqliteConnection | None = None
        self._lent: set[SqliteConnection] = set()  # connections that a thread is reading from
        self._file: tuple[int, int] | None = None  # identity of the file, once it is open
        if path.is_dir():
            raise StoreError(f"{path} is a folder. Name a file, such as {path / 'memory.sqlite'}.")
        try:
            with self.translated():
                if read_only:
                    self._open_to_read()
                else:
                    self._open_to_write()
            self._file = self._which_file()
        except OSError as error:
            self.close()
            raise StoreError(f"{path} cannot be used: {error.strerror or error}.") from error
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        return str(self.path)

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def fleet(self) -> Coordinator:
        return SingleProcess()

    @property
    def conflict(self) -> type[Exception]:
        return sqlite3.IntegrityError

    @property
    def checks(self) -> Mapping[str, Check]:
        return CHECKS

    # Using it

    @contextmanager
    def reading(self) -> Iterator[SqliteConnection]:
        """A read transaction: one consistent state of the memory until the block ends."""
        with self.translated():
            db = self._take()
            try:
                db.execute("BEGIN")
                yield db
            finally:
                try:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                finally:
                    self._give_back(db)

    querying = reading  # beginning a transaction costs nothing here

    @contextmanager
    def writing(self, *, durable: bool = False, urgent: bool = False) -> Iterator[SqliteConnection]:
        """A write transaction: all of the block, or nothing. `urgent`: before other threads that wait."""
        if self.read_only:
            raise StoreFull(f"{self.path} was opened for reading only.")
        if not self._turn.acquire(self.busy_seconds, urgent=urgent):
            raise StoreBusy(self._busy())
        try:
            with self.translated():
                self._check_open()
                db = self._writer
                if durable is not self._durable:
                    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                    self._durable = durable
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                    self._check_same_file()
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
        finally:
            self._turn.release()

    def version(self) -> int:
        """SQLite's count of commits that this connection, which never writes, has seen others make."""
        self._check_same_file()
        with self.translated(), self._guard:
            self._check_open()
            if self._watcher is None:
                self._watcher = self._connect()
                self._all.append(self._watcher)
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def import_lock(self, *, timeout: float) -> Iterator[None]:
        """Hold the lock for imports and clearing, among all threads and processes; wait up to `timeout` seconds for
        it.

        It is SQLite's lock on an empty file beside the memory: it works on every system, ends with its process, and
        does not block other work.
        """
        path = self.path.with_name(f"{self.path.name}.import")
        deadline = time.monotonic() + timeout
        with self.translated(path):
            lock = sqlite3.connect(path, timeout=0, isolation_level=None)
        with closing(lock):
            while not self._locked(lock):
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"Another import into {self.path} is under way, or it is being cleared. Nothing was changed; "
                        "try again when that is done."
                    )
                time.sleep(RETRY_SECONDS)
            yield

    def _locked(self, lock: sqlite3.Connection) -> bool:
        with self.translated():
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                    raise
                return False
            return True

    def empty(self, db: Connection) -> None:
        db.defer_references()
        tables = db.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
        for (table,) in tables:
            if table not in KEPT_WHEN_CLEARED and not table.startswith(("sqlite_", "words")):
                db.execute(f"DELETE FROM {table}")
        db.execute("DELETE FROM words")

    def schema(self) -> int:
        with self.reading() as db:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

    def size(self) -> int:
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(map(_size, files))

    def vacuum(self) -> None:
        """Give free space back to the disk. While others use the memory, it is kept for later."""
        with self._turn, suppress(sqlite3.OperationalError):
            self._writer.execute("VACUUM")
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file. Running reads are interrupted: a connection must not close during a statement."""
        with self._turn, self._guard:
            self._closed = True
            deadline = time.monotonic() + self.busy_seconds
            while self._lent and time.monotonic() < deadline:
                for db in self._all:
                    db.interrupt()
                self._guard.wait(0.05)
            for db in self._all:
                if db not in self._lent:
                    db.close()
            self._all.clear()
            self._idle.clear()

    @contextmanager
    def translated(self, path: Path | None = None) -> Iterator[None]:
        """Convert SQLite's errors to sentences that say what to do. This is the only place where this happens."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._sentence(error, path or self.path) from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise BadInput(f"This cannot be stored: {error}.") from error

    def _busy(self) -> str:
        return (
            f"Another process held {self.path} for more than {self.busy_seconds:g} seconds. Nothing was changed; "
            "try again, or close the other program."
        )

    def _sentence(self, error: sqlite3.Error, path: Path) -> StoreError:
        name: str = getattr(error, "sqlite_errorname", "") or ""
        # An interrupted step may also say that it could not open a table.
        if name == "SQLITE_INTERRUPT" or self._closed:
            return StoreError(f"{path} was closed.")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return StoreBusy(self._busy())
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")):
            return StoreCorrupt(f"{path} is damaged, or is not a memory ({error}). {VERIFY_FIRST}")
        if name.startswith("SQLITE_READONLY"):
            return StoreFull(
                f"{path} is read-only, so nothing was changed. Make the file and its folder writable."
            )
        if name == "SQLITE_FULL" or name.startswith(("SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")):
            return StoreFull(
                f"No space is left for {path}, so nothing was changed. Free some, then try again."
            )
        if name.startswith("SQLITE_CANTOPEN"):
            return StoreError(
                f"{path} cannot be opened. Check that its folder exists and that you may use it."
            )
        if name.startswith("SQLITE_IOERR"):
            return StoreError(
                f"{path} cannot be read or written ({error}). Nothing was changed; check the disk."
            )
        return StoreError(f"{path} refused a step ({error}). Nothing was changed.")

    # Opening it

    def _open_to_write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        there = self.path.exists()
        self._writer = self._connect()
        self._all.append(self._writer)
        if there and not self.path.stat().st_size:
            self._patiently(
                lambda: self._writer.execute("BEGIN IMMEDIATE")
            )  # not while another process has it
            self._writer.execute("ROLLBACK")
            self._check_not_empty()
        if self._patiently(lambda: self._pragma("application_id")) != APPLICATION_ID:
            self._writer.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # only effective for a new file
        self._patiently(lambda: migrate(self._writer, self.path))
        self._patiently(lambda: self._pragma("journal_mode = WAL"))
        self._writer.execute("PRAGMA synchronous = FULL")
        self._writer.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")

    def _open_to_read(self) -> None:
        if not self.path.exists():
            raise StoreError(
                f"There is no memory at {self.path}. Talk to a model first, or name another with --data."
            )
        self._check_not_empty()
        db = self._take()
        try:
            self._patiently(lambda: migrate(db, self.path, without_migrating=True))
        finally:
            self._give_back(db)

    def _connect(self) -> SqliteConnection:
        mode = "ro" if self.read_only else "rwc"
        if self.read_only and not self._wal_usable():
            mode += "&immutable=1"
        db = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=SqliteConnection,
        )
        try:
            db.execute("PRAGMA foreign_keys = ON")
            db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except BaseException:
            db.close()
            raise
        return db

    def _wal_usable(self) -> bool:
        """Whether the write-ahead log can be used. Readers share an index of it, which a read-only folder cannot have."""
        log = self.path.with_name(self.path.name + "-wal")
        return _size(log) > 0 or os.access(self.path.parent, os.W_OK)

    def _take(self) -> SqliteConnection:
        self._check_same_file()
        with self._guard:
            self._check_open()
            if self._idle:
                db = self._idle.pop()
                self._lent.add(db)
                return db
        db = self._connect()
        with self._guard:
            if self._closed:
                db.close()
                self._check_open()
            self._all.append(db)
            self._lent.add(db)
        return db

    def _give_back(self, db: SqliteConnection) -> None:
        with self._guard:
            self._lent.discard(db)
            if self._closed:
                self._guard.notify_all()
            else:
                self._idle.append(db)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} was closed.")

    def _which_file(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _check_same_file(self) -> None:
        """Check that the path still is the open file: writes to a deleted file would be lost."""
        if self._file is not None and self._which_file() != self._file:
            raise StoreError(
                f"{self.path} was deleted, moved or replaced while it was in use, so nothing more is saved. "
                "End the program, put the right file in its place, and start again."
            )

    def _check_not_empty(self) -> None:
        """Refuse an empty file: it was a memory once. Wait a moment, since another process may be creating one."""
        deadline = time.monotonic() + min(self.busy_seconds, EMPTY_SECONDS)
        while not self.path.stat().st_size:
            if time.monotonic() > deadline:
                raise StoreCorrupt(
                    f"{self.path} is empty: there is no memory in it. Put a backup in its place; if there never was a "
                    "memory, delete the file."
                )
            time.sleep(RETRY_SECONDS)

    def _pragma(self, pragma: str) -> object:
        row = self._writer.execute(f"PRAGMA {pragma}").fetchone()
        return row[0] if row else None

    def _patiently(self, step: Callable[[], T]) -> T:
        """Retry: changing the journal mode does not wait for others by itself."""
        deadline = time.monotonic() + self.busy_seconds
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                name = getattr(error, "sqlite_errorname", "")
                if not name.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


STEP = 512  # pages copied at a time


class SqliteStore(SqliteWords, SqlStore):
    """A memory in a SQLite file."""

    _db: SqliteDatabase

    def __init__(self, path: Path, *, busy_seconds: float = 5.0, read_only: bool = False) -> None:
        super().__init__(SqliteDatabase(path, busy_seconds=busy_seconds, read_only=read_only))

    @property
    @server_only
    def path(self) -> Path:
        return self._db.path

    @server_only
    def backup(self, target: Path, *, progress: Progress = silent) -> None:
        """Copy the memory as it is now, while others continue writing. The target is never incomplete."""
        with atomic_backup(target) as partial, self._db.reading() as db, self._db.translated(target):
            db.execute("SELECT 1 FROM memory").fetchone()  # from here on this reader sees one moment
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                db.backup(copy, pages=STEP, progress=lambda _, left, total: progress(total - left, total))
                copy.execute("PRAGMA journal_mode = DELETE")  # a single, complete file
