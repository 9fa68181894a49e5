"""One memory in a PostgreSQL database: a writer that takes turns with all others, a pool of readers, errors as sentences."""

from __future__ import annotations

import select
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from halo_weave.errors import BadInput, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnreachable
from halo_weave.records import VERIFY_FIRST
from halo_weave.stores.postgres.checks import CHECKS
from halo_weave.stores.postgres.connection import PostgresConnection, Raw, configure
from halo_weave.stores.postgres.fleet import PostgresFleet
from halo_weave.stores.postgres.schema import migrate, schema_of
from halo_weave.stores.sql.seam import Check, Connection
from halo_weave.stores.sql.turnstile import Turnstile

READERS = 8  # connections at most, beside the writer's
RECONNECT = 2.0  # seconds after which a connection is given up; whoever needs one then tries anew, at once
IDLE = 15  # seconds after which the server ends the transaction of a process that fell silent in it
PAUSE = 0.05  # seconds between two tries
LOCK = 0x48414C4F  # "HALO": the first half of our advisory locks' names; the second is the schema
IMPORT_LOCK = LOCK + 1
KEPT = {"memory", "migrations", "settings", "people"}  # when a memory is cleared


class PostgresDatabase:
    """Connections to one memory. Any thread may read or write; writes happen one at a time, among all processes.

    A commit is in the server's hands when `writing` ends. With `durable` it is also on its disk, if the server is set so.
    """

    def __init__(
        self,
        address: str,
        *,
        busy_seconds: float = 5.0,
        read_only: bool = False,
        moving: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder or Path(tempfile.gettempdir())
        self.address, self.busy_seconds, self.read_only = address, busy_seconds, read_only
        self.fleet = PostgresFleet(self)
        self._turn = Turnstile()  # one writer at a time within the process
        self._guard = threading.Lock()
        self._closed = False
        self._writer: Raw | None = None
        self._lent: set[Raw] = set()
        self._pool: ConnectionPool[Raw] | None = None
        try:
            self.place = place_of(address)
        except psycopg.Error as error:
            raise BadInput(
                f"This is no address of a database: {str(error).strip()}. Write it like postgresql://user@host/name."
            ) from error
        try:
            with self.translated():
                with self.connected() as raw:
                    self._prepare(raw, moving)
                self._pool = ConnectionPool(
                    address,
                    kwargs={"autocommit": True, "connect_timeout": 10},
                    configure=configure,
                    min_size=1,
                    max_size=READERS,
                    timeout=busy_seconds,
                    reconnect_timeout=RECONNECT,
                    open=True,
                    name="halo-weave",
                )
        except BaseException:
            self.close()
            raise

    @property
    def conflict(self) -> type[Exception]:
        return errors.IntegrityError

    @property
    def checks(self) -> Mapping[str, Check]:
        return CHECKS

    # Using it

    @contextmanager
    def reading(self) -> Iterator[PostgresConnection]:
        """A connection that sees one state of the memory until the block ends."""
        with self.translated():
            raw = self._begin()
            with self._guard:
                self._lent.add(raw)
            db = PostgresConnection(raw, self.fleet)
            try:
                yield db
            finally:
                db.end()
                with self._guard:
                    self._lent.discard(raw)
                with suppress(psycopg.Error):
                    raw.execute("ROLLBACK")
                self._check_pool().putconn(raw)

    @contextmanager
    def asking(self) -> Iterator[PostgresConnection]:
        """A connection for one statement. A transaction would cost two more ways to the server and back."""
        lent: Raw | None = None

        def give_back() -> None:
            if lent is not None:
                with self._guard:
                    self._lent.discard(lent)
                self._check_pool().putconn(lent)

        def another() -> Raw:
            nonlocal lent
            give_back()
            lent = None
            lent = self._idle()
            with self._guard:
                self._lent.add(lent)
            return lent

        with self.translated():
            try:
                yield PostgresConnection(another(), self.fleet, another=another)
            finally:
                give_back()

    @contextmanager
    def writing(self, *, durable: bool = False, urgent: bool = False) -> Iterator[PostgresConnection]:
        """A transaction: all of the block, or nothing. `urgent`: before other threads that wait to write."""
        if self.read_only:
            raise StoreFull(f"{self.place} was opened for reading only.")
        if not self._turn.acquire(self.busy_seconds, urgent=urgent):
            raise StoreBusy(self._busy())
        try:
            with self.translated():
                raw = self._begin_to_write(durable)
                db = PostgresConnection(raw, self.fleet)
                try:
                    yield db
                    db.end()
                    raw.execute("COMMIT")
                except BaseException:
                    db.end()
                    with suppress(psycopg.Error):
                        raw.execute("ROLLBACK")
                    raise
        finally:
            self._turn.release()

    def version(self) -> int:
        """Which transactions have ended, as the server tells it."""
        with self.translated():
            pool = self._check_pool()
            with pool.connection() as raw:
                row = raw.execute("SELECT pg_current_snapshot()::text").fetchone()
        return zlib.crc32(str(row).encode())

    @contextmanager
    def alone(self, *, patience: float) -> Iterator[None]:
        """The lock is the server's: it ends with the connection that has it, and lets all other work go on."""
        deadline = time.monotonic() + patience
        with self.translated(), self.connected() as lock:
            while not self._locked(lock):
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"Another import into {self.place} is under way, or it is being cleared. Nothing was changed; "
                        "try again when that is done."
                    )
                time.sleep(PAUSE)
            yield

    def _locked(self, raw: Raw) -> bool:
        asked = "SELECT pg_try_advisory_lock(%s::int, hashtext(current_schema()))"
        return raw.execute(asked, (IMPORT_LOCK,)).fetchone() == (True,)

    def empty(self, db: Connection) -> None:
        db.defer_references()
        tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        for (table,) in tables:
            if table not in KEPT:
                db.execute(f"DELETE FROM {table}")
        db.execute("UPDATE memory SET worded = 0, terms = 0")

    def vacuum(self) -> None:
        """The server does it by itself, when it has time."""

    def schema(self) -> int:
        with self.reading() as db:
            return schema_of(db.raw) or 0

    def size(self) -> int:
        with self.reading() as db:
            row = db.raw.execute(
                """SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
                   WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'"""
            ).fetchone()
        return int(row[0]) if row else 0

    def close(self) -> None:
        """Let go of the server. Whoever still reads is interrupted."""
        with self._turn:
            self._closed = True
            self.fleet.close()
            with self._guard:
                for raw in self._lent:
                    with suppress(psycopg.Error):
                        raw.cancel_safe(timeout=1.0)
            if self._writer is not None:
                self._writer.close()
            if self._pool is not None:
                self._pool.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """The server's errors as sentences that say what to do: the one place where they are translated."""
        try:
            yield
        except (psycopg.Error, PoolTimeout, PoolClosed) as error:
            raise self._sentence(error) from error
        except (UnicodeEncodeError, OverflowError, struct.error) as error:
            raise BadInput(f"This cannot be stored: {error}.") from error

    def _busy(self) -> str:
        return (
            f"Another process held {self.place} for more than {self.busy_seconds:g} seconds. Nothing was changed; "
            "try again, or close the other program."
        )

    def _sentence(self, error: Exception) -> StoreError | BadInput:
        place, said = self.place, " ".join(str(error).split()) or type(error).__name__
        if self._closed or isinstance(error, PoolClosed):
            return StoreError(f"{place} was closed.")
        if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled):
            return StoreBusy(self._busy())
        if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
            return StoreCorrupt(f"{place} is damaged ({said}). {VERIFY_FIRST}")
        if isinstance(error, errors.DiskFull):
            return StoreFull(
                f"No space is left for {place}, so nothing was changed. Free some, then try again."
            )
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return StoreFull(
                f"{place} is read-only, so nothing was changed. Name the server that takes writes."
            )
        if isinstance(error, psycopg.DataError):
            return BadInput(f"This cannot be stored: {said}.")
        if isinstance(error, errors.UndefinedFile | errors.FeatureNotSupported | errors.UndefinedObject) and (
            "vector" in said
        ):
            return StoreError(f"{place} lacks pgvector 0.7 or newer ({said}). Install it on the server.")
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreError(f"{place} does not allow this ({said}). Ask whoever looks after the database.")
        if isinstance(error, psycopg.OperationalError | PoolTimeout | psycopg.InterfaceError):
            return StoreUnreachable(
                f"{place} cannot be reached ({said}). Check that the database runs; then try again."
            )
        return StoreError(f"{place} refused a step ({said}). Nothing was changed.")

    # Opening it

    def _prepare(self, raw: Raw, moving: str | None) -> None:
        """The tables, made or brought up to date by one process at a time."""
        if self.read_only:
            migrate(raw, self.place, look_only=True)
        else:
            raw.execute("BEGIN")
            raw.execute("SELECT pg_advisory_xact_lock(%s::int, hashtext(current_schema()))", (LOCK,))
            migrate(raw, self.place)
            raw.execute("COMMIT")
        row = raw.execute("SELECT moving FROM memory").fetchone()
        if row and row[0] is not None and row[0] != moving:
            raise StoreError(
                f"A memory is being moved to {self.place}, and is not whole yet. Repeat the move to end it."
            )

    @contextmanager
    def connected(self) -> Iterator[Raw]:
        """A connection for one purpose."""
        raw = self._connect()
        try:
            yield raw
        finally:
            raw.close()

    def _connect(self) -> Raw:
        raw = psycopg.connect(self.address, autocommit=True, connect_timeout=10)
        try:
            configure(raw)
        except BaseException:
            raw.close()
            raise
        return raw

    def _idle(self) -> Raw:
        """A reader. One to which the server has sent something unasked, such as its end, is tried first."""
        pool = self._check_pool()
        for left in range(READERS, -1, -1):
            raw = pool.getconn()
            try:
                if raw.closed or select.select([raw], [], [], 0)[0]:
                    raw.execute("SELECT 1")
                return raw
            except (psycopg.OperationalError, ValueError):
                pool.putconn(raw)
                if not left:
                    raise
        raise AssertionError

    def _begin(self) -> Raw:
        """A reader in a transaction. Connections that a restart of the server broke are passed over."""
        pool = self._check_pool()
        for left in range(READERS, -1, -1):
            raw = pool.getconn()
            try:
                raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                return raw
            except psycopg.OperationalError:
                pool.putconn(raw)
                if not left:
                    raise
        raise AssertionError

    def _begin_to_write(self, durable: bool) -> Raw:
        begin = sql.SQL(
            "BEGIN; SET LOCAL lock_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}; "
            "{} SELECT pg_advisory_xact_lock({}, hashtext(current_schema()))"
        )
        statement = begin.format(
            sql.Literal(f"{int(self.busy_seconds * 1000)}ms"),
            sql.Literal(f"{IDLE}s"),
            sql.SQL("" if durable else "SET LOCAL synchronous_commit = off;"),
            sql.Literal(LOCK),
        ).as_string()
        for fresh in (False, True):
            if self._closed:
                raise StoreError(f"{self.place} was closed.")
            if self._writer is None or self._writer.closed:
                self._writer, fresh = self._connect(), True
            try:
                self._writer.execute(statement)
                return self._writer
            except psycopg.OperationalError as error:
                if not self._writer.closed:
                    self._writer.execute("ROLLBACK")
                    raise
                if fresh:
                    raise error
        raise AssertionError

    def _check_pool(self) -> ConnectionPool[Raw]:
        if self._closed or self._pool is None:
            raise StoreError(f"{self.place} was closed.")
        return self._pool


def place_of(address: str) -> str:
    """The address without what is secret or a detail of the connection."""
    parts = conninfo_to_dict(address)
    host = str(parts.get("host") or "localhost").replace("/", "%2F")
    port = f":{parts['port']}" if parts.get("port") else ""
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"postgresql://{user}{host}{port}/{parts.get('dbname') or parts.get('user') or ''}"
