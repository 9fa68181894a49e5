"""Connections to PostgreSQL: one writer at a time among all processes, a pool of readers, translated errors, integrity checks."""

from __future__ import annotations

import select
import struct
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import psycopg
from psycopg import errors, sql
from psycopg.adapt import AdaptersMap, Buffer, Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format
from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrDumper
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from halo_weave.core.quantization import unpack_codes
from halo_weave.errors import BadInput, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnreachable
from halo_weave.store.database import (
    NOT_COPIED,
    WORD_INDEX,
    Check,
    Connection,
    Cursor,
    Fault,
    Table,
    Values,
    WriteLock,
    table_of,
)
from halo_weave.store.postgres.bm25 import counted_terms
from halo_weave.store.postgres.leases import PostgresFleet
from halo_weave.store.postgres.schema import migrate, schema_of, to_postgres
from halo_weave.store.records import VERIFY_FIRST
from halo_weave.store.rows import ROWS_PER_STEP


def _check_word_index(db: Connection) -> Iterator[Fault]:
    chunks, terms = db.execute("SELECT worded, terms FROM memory").fetchone()
    (held,) = db.execute("SELECT count(*) FROM words").fetchone()
    (often,) = db.execute("SELECT coalesce(sum(often), 0) FROM postings").fetchone()
    (wrong,) = db.execute(
        """SELECT count(*) FROM (
               SELECT w.rowid FROM words w LEFT JOIN postings p ON p.chunk = w.rowid
               GROUP BY w.rowid HAVING w.terms <> '' AND coalesce(sum(p.often), 0) <> coalesce(max(p.size), -1)
           ) AS unfit"""
    ).fetchone()
    if (chunks, terms) != (held, often) or wrong:
        yield "The word index does not fit the words it holds.", _rebuild


def _rebuild(db: Connection) -> None:
    rows = db.execute("SELECT rowid, terms FROM words").fetchall()
    db.execute("DELETE FROM words")
    db.execute("UPDATE memory SET worded = 0, terms = 0")
    for at in range(0, len(rows), ROWS_PER_STEP):
        db.add_to_word_index(rows[at : at + ROWS_PER_STEP])


def _check_embeddings(db: Connection) -> Iterator[Fault]:
    unfit = db.execute(
        """SELECT v.generation, g.dimension, v.chunk, v.vector FROM vectors v JOIN generations g ON g.id = v.generation
           LEFT JOIN (SELECT generation, chunk, count(*) AS many FROM embeddings GROUP BY generation, chunk) AS e
           ON e.generation = v.generation AND e.chunk = v.chunk
           WHERE length(v.vector) % (4 + g.dimension) = 0
               AND coalesce(e.many, 0) <> length(v.vector) / (4 + g.dimension)"""
    ).fetchall()

    def mend(db: Connection) -> None:
        for generation, dimension, chunk, vector in unfit:
            db.put_vectors(generation, dimension, [(chunk, vector)])

    if unfit:
        yield f"{len(unfit)} vectors are not where they are searched.", mend


CHECKS: dict[str, Check] = {"word index": _check_word_index, "embeddings": _check_embeddings}


Raw = psycopg.Connection[Any]
FETCH_ROWS = 2_000  # rows fetched at a time
MAX_READ_ATTEMPTS = 3  # how often a read is restarted when the server closes its connection
INDEX_CANDIDATES = 800  # candidates of a vector index during a search


class _FlagDumper(Dumper):
    """True and false, for columns with 1 and 0 and for conditions: the server knows which it is."""

    oid = 0

    def dump(self, obj: bool) -> Buffer:
        return b"1" if obj else b"0"


class _HalfVectorDumper(Dumper):
    """An array in pgvector's binary format: the length, two zero bytes, two bytes per number."""

    format = Format.BINARY

    def dump(self, obj: np.ndarray[Any, Any]) -> Buffer:
        return len(obj).to_bytes(2, "big") + b"\0\0" + obj.astype(">f2").tobytes()


class _SumLoader(NumericLoader):
    """Sums of whole numbers are whole numbers."""

    def load(self, data: Buffer) -> Any:
        return int(super().load(data))


class _SumBinaryLoader(NumericBinaryLoader):
    def load(self, data: Buffer) -> Any:
        return int(super().load(data))


class PostgresConnection:
    """A connection that accepts the shared statements, with PostgreSQL's own versions of those that differ."""

    def __init__(self, raw: Raw, fleet: PostgresFleet, *, another: Callable[[], Raw] | None = None) -> None:
        """`another`: for a single read statement without a transaction: a new connection, if the server closes this
        one."""
        self._raw, self._fleet, self._another = raw, fleet, another
        self._left = -1 if another is None else 1
        self._streams: list[psycopg.ServerCursor[Any]] = []

    @property
    def raw(self) -> Raw:
        """The connection for a single statement. Outside a transaction, two statements may see two states."""
        assert self._left, "Ask two things of one state within `reading`."
        self._left -= 1
        return self._raw

    def execute(self, sql: str, values: Values = (), /) -> Cursor:
        statement, given = to_postgres(sql, values)
        raw, again = self.raw, MAX_READ_ATTEMPTS if self._another else 0
        while True:
            try:
                return cast(Cursor, raw.execute(statement, given, binary=True))
            except psycopg.OperationalError:
                if self._another is None or not raw.broken or not again:
                    raise
                raw, again = self._another(), again - 1

    def executemany(self, sql: str, rows: Iterable[Values], /) -> Cursor:
        cursor = self.raw.cursor(binary=True)
        pairs = [to_postgres(sql, row) for row in rows]
        if pairs:
            cursor.executemany(pairs[0][0], [given for _, given in pairs])
        return cast(Cursor, cursor)

    def stream(self, sql: str, values: Values = (), /) -> Cursor:
        statement, given = to_postgres(sql, values)
        cursor = self.raw.cursor(f"stream_{time.monotonic_ns()}", binary=True)
        cursor.itersize = FETCH_ROWS
        self._streams.append(cursor)
        cursor.execute(statement, given)
        return cast(Cursor, cursor)

    def mark_changed(self, numbers: Sequence[int]) -> None:
        # The counter is a row: a sequence would become visible before the change itself.
        each = [int(number) for number in dict.fromkeys(numbers)]
        if each:
            self.raw.execute(
                """WITH last AS (UPDATE memory SET changed = changed + %(size)s RETURNING changed - %(size)s AS before)
                   INSERT INTO changes (sequence, chunk)
                   SELECT last.before + one.place, one.chunk
                   FROM last, unnest(%(numbers)s::bigint[]) WITH ORDINALITY AS one(chunk, place)
                   ON CONFLICT (chunk) DO UPDATE SET sequence = excluded.sequence""",
                {"size": len(each), "numbers": each},
            )

    def last_change(self) -> int:
        row = self.raw.execute("SELECT changed FROM memory").fetchone()
        return int(row[0]) if row else 0

    def add_to_word_index(self, rows: Sequence[tuple[int, str]]) -> None:
        if not rows:
            return
        numbers = [number for number, _ in rows]
        self.raw.execute(
            "INSERT INTO words (rowid, terms) SELECT * FROM unnest(%s::bigint[], %s::text[])",
            (numbers, [terms for _, terms in rows]),
        )
        counts = [counted_terms(terms) for _, terms in rows]
        sizes = [count.total() for count in counts]
        self.raw.execute(
            """INSERT INTO postings (term, chunk, often, size)
               SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])""",
            (
                list(chain.from_iterable(counts)),
                [number for number, count in zip(numbers, counts, strict=True) for _ in count],
                list(chain.from_iterable(count.values() for count in counts)),
                [size for size, count in zip(sizes, counts, strict=True) for _ in count],
            ),
        )
        self.raw.execute(
            "UPDATE memory SET worded = worded + %s, terms = terms + %s", (len(rows), sum(sizes))
        )

    def remove_from_word_index(self, numbers: Sequence[int]) -> None:
        if numbers:
            self.raw.execute(
                """WITH gone AS (DELETE FROM words WHERE rowid = ANY(%s) RETURNING rowid)
                   UPDATE memory SET worded = worded - (SELECT count(*) FROM gone), terms = terms - (
                       SELECT coalesce(sum(p.often), 0) FROM postings p JOIN gone ON gone.rowid = p.chunk)""",
                ([int(number) for number in numbers],),
            )

    def put_vectors(self, generation: int, dimension: int, rows: Sequence[tuple[int, bytes]]) -> None:
        if not rows:
            return
        numbers = [number for number, _ in rows]
        self.raw.execute(
            """INSERT INTO vectors (generation, chunk, vector)
               SELECT %s, * FROM unnest(%s::bigint[], %s::bytea[])
               ON CONFLICT (generation, chunk) DO UPDATE SET vector = excluded.vector""",
            (generation, numbers, [codes for _, codes in rows]),
        )
        self.raw.execute(
            "DELETE FROM embeddings WHERE generation = %s AND chunk = ANY(%s)", (generation, numbers)
        )
        windows = dict(
            self.raw.execute(
                'SELECT number, "window" FROM chunks WHERE number = ANY(%s)', (numbers,)
            ).fetchall()
        )
        into = 'COPY embeddings (generation, chunk, "window", embedding) FROM STDIN (FORMAT BINARY)'
        with self.raw.cursor() as cursor, cursor.copy(into) as copy:
            copy.set_types(["int8", "int8", "text", "halfvec"])
            for number, codes in rows:
                for vector in unpack_codes(codes, dimension):
                    copy.write_row((generation, number, windows[number], vector))

    def check_lease(self, window_id: str) -> None:
        self._fleet.check(self.raw, window_id)

    def fence(self, windows: Sequence[str]) -> None:
        self._fleet.fence(self.raw, windows)

    def writes(self, owner: str, window_id: str) -> bool | None:
        return self._fleet.writes(self.raw, owner, window_id)

    def defer_references(self) -> None:
        self.raw.execute("SET CONSTRAINTS ALL DEFERRED")

    def tables(self) -> list[Table]:
        rows = self.raw.execute(
            """SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum),
                   (SELECT array_agg(k.attname::text ORDER BY array_position(i.indkey::int2[], k.attnum))
                    FROM pg_index i JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = ANY(i.indkey)
                    WHERE i.indrelid = c.oid AND i.indisprimary)
               FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
               GROUP BY c.oid, c.relname ORDER BY c.oid"""
        ).fetchall()
        left_out = {*NOT_COPIED, "words", "postings", "embeddings"}
        return [*(table_of(*row) for row in rows if row[0] not in left_out), WORD_INDEX]

    def reset_row_counters(self) -> None:
        counted = self.raw.execute(
            """SELECT table_name, column_name FROM information_schema.columns
               WHERE table_schema = current_schema() AND is_identity = 'YES'"""
        ).fetchall()
        for table, column in counted:
            self.raw.execute(
                f"""SELECT setval(pg_get_serial_sequence('{table}', '{column}'), (SELECT max({column}) FROM {table}))"""
            )
        self.raw.execute("UPDATE memory SET changed = (SELECT coalesce(max(sequence), 0) FROM changes)")

    def end(self) -> None:
        """Close all streams."""
        for cursor in self._streams:
            with suppress(psycopg.Error):
                cursor.close()


def configure(raw: Raw) -> None:
    """Register how values are converted."""
    adapters: AdaptersMap = raw.adapters
    adapters.register_dumper(bool, _FlagDumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(str, StrDumper)
    adapters.register_loader("numeric", _SumLoader)
    adapters.register_loader("numeric", _SumBinaryLoader)
    row = raw.execute("SELECT to_regtype('halfvec')::oid").fetchone()
    if row and row[0]:
        kind = type("HalfVectorDumper", (_HalfVectorDumper,), {"oid": row[0]})
        adapters.register_dumper(np.ndarray, kind)
        TypeInfo("halfvec", row[0], 0).register(raw)
        # Iterative: if the search's conditions remove candidates, the index continues searching.
        raw.execute(f"SET hnsw.iterative_scan = strict_order; SET hnsw.ef_search = {INDEX_CANDIDATES}")


MAX_READERS = 8  # connections for readers
CONNECT_TIMEOUT = 2.0  # seconds after which connecting is given up; the next caller tries again at once
IDLE_TRANSACTION_SECONDS = 15  # seconds after which the server ends an idle transaction
RETRY_SECONDS = 0.05  # seconds between two tries
LOCK = 0x48414C4F  # "HALO": the first half of our advisory locks' names; the second is the schema
IMPORT_LOCK = LOCK + 1
KEPT_WHEN_CLEARED = {"memory", "migrations", "settings", "people"}  # when a memory is cleared


class PostgresDatabase:
    """Connections to one memory. Any thread may read or write; writes happen one at a time, among all processes.

    When `writing` ends, the server has the commit. With `durable` it is also on disk, if the server is configured that
    way.
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
        self._turn = WriteLock()  # one writer at a time within the process
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
                    max_size=MAX_READERS,
                    timeout=busy_seconds,
                    reconnect_timeout=CONNECT_TIMEOUT,
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
        """A read transaction: one consistent state of the memory until the block ends."""
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
    def querying(self) -> Iterator[PostgresConnection]:
        """A connection for a single statement. A transaction would need two more round trips."""
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
        """A write transaction: all of the block, or nothing. `urgent`: before other threads that wait."""
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
        """The server's snapshot of transactions that have ended."""
        with self.translated():
            pool = self._check_pool()
            with pool.connection() as raw:
                row = raw.execute("SELECT pg_current_snapshot()::text").fetchone()
        return zlib.crc32(str(row).encode())

    @contextmanager
    def import_lock(self, *, timeout: float) -> Iterator[None]:
        """Hold the lock for imports and clearing, among all processes. The server releases it with its connection;
        other work continues."""
        deadline = time.monotonic() + timeout
        with self.translated(), self.connected() as lock:
            while not self._locked(lock):
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"Another import into {self.place} is under way, or it is being cleared. Nothing was changed; "
                        "try again when that is done."
                    )
                time.sleep(RETRY_SECONDS)
            yield

    def _locked(self, raw: Raw) -> bool:
        sql = "SELECT pg_try_advisory_lock(%s::int, hashtext(current_schema()))"
        return raw.execute(sql, (IMPORT_LOCK,)).fetchone() == (True,)

    def empty(self, db: Connection) -> None:
        db.defer_references()
        tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        for (table,) in tables:
            if table not in KEPT_WHEN_CLEARED:
                db.execute(f"DELETE FROM {table}")
        db.execute("UPDATE memory SET worded = 0, terms = 0")

    def vacuum(self) -> None:
        """Nothing: the server does it itself."""

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
        """Close all connections. Running reads are interrupted."""
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
        """Convert the server's errors to sentences that say what to do. This is the only place where this happens."""
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
            return StoreError(f"{place} does not allow this ({said}). Ask its administrator.")
        if isinstance(error, psycopg.OperationalError | PoolTimeout | psycopg.InterfaceError):
            return StoreUnreachable(
                f"{place} cannot be reached ({said}). Check that the database runs; then try again."
            )
        return StoreError(f"{place} refused a step ({said}). Nothing was changed.")

    # Opening it

    def _prepare(self, raw: Raw, moving: str | None) -> None:
        """Create or migrate the tables, one process at a time."""
        if self.read_only:
            migrate(raw, self.place, without_migrating=True)
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
        """A new connection."""
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
        """An idle reader. One with unread data from the server, such as its shutdown, is tried first."""
        pool = self._check_pool()
        for left in range(MAX_READERS, -1, -1):
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
        """Begin a transaction of a reader. Connections that a restart of the server broke are skipped."""
        pool = self._check_pool()
        for left in range(MAX_READERS, -1, -1):
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
            sql.Literal(f"{IDLE_TRANSACTION_SECONDS}s"),
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
    """The address without secrets and connection details."""
    parts = conninfo_to_dict(address)
    host = str(parts.get("host") or "localhost").replace("/", "%2F")
    port = f":{parts['port']}" if parts.get("port") else ""
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"postgresql://{user}{host}{port}/{parts.get('dbname') or parts.get('user') or ''}"
