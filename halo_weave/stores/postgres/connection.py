"""A connection to PostgreSQL that takes the statements written for SQLite, and does some steps its own way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, cast

import numpy as np
import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper
from psycopg.pq import Format
from psycopg.types import TypeInfo
from psycopg.types.numeric import Int8BinaryDumper, NumericBinaryLoader, NumericLoader
from psycopg.types.string import StrDumper

from halo_weave.core.coding import unpack_codes
from halo_weave.stores.postgres.dialect import translated
from halo_weave.stores.postgres.fleet import PostgresFleet
from halo_weave.stores.postgres.terms import counted_terms
from halo_weave.stores.sql.seam import NOT_COPIED, WORDS, Cursor, Table, Values, table_of

Raw = psycopg.Connection[Any]
STREAM = 2_000  # rows fetched at a time
AGAIN = 3  # times that a reading is begun anew when the server ends its connection
REACH = 800  # candidates that a vector index keeps while it searches


class _FlagDumper(Dumper):
    """True and false for columns that hold 1 and 0, and for conditions: the server knows which it is."""

    oid = 0

    def dump(self, obj: bool) -> Buffer:
        return b"1" if obj else b"0"


class _HalfVectorDumper(Dumper):
    """An array as pgvector takes it: how many, nothing, and two bytes each."""

    format = Format.BINARY

    def dump(self, obj: np.ndarray[Any, Any]) -> Buffer:
        return len(obj).to_bytes(2, "big") + b"\0\0" + obj.astype(">f2").tobytes()


class _SumLoader(NumericLoader):
    """Sums of whole numbers are whole."""

    def load(self, data: Buffer) -> Any:
        return int(super().load(data))


class _SumBinaryLoader(NumericBinaryLoader):
    def load(self, data: Buffer) -> Any:
        return int(super().load(data))


class PostgresConnection:
    """A connection that takes the shared statements, and the steps that PostgreSQL does its own way."""

    def __init__(self, raw: Raw, fleet: PostgresFleet, *, another: Callable[[], Raw] | None = None) -> None:
        """`another`: this is for one statement that only reads, without a transaction; where to ask again if the server
        ends the connection meanwhile."""
        self._raw, self._fleet, self._another = raw, fleet, another
        self._left = -1 if another is None else 1
        self._streams: list[psycopg.ServerCursor[Any]] = []

    @property
    def raw(self) -> Raw:
        """For a statement. Two that are not in a transaction may see two states."""
        assert self._left, "Ask two things of one state within `reading`."
        self._left -= 1
        return self._raw

    def execute(self, sql: str, values: Values = (), /) -> Cursor:
        statement, given = translated(sql, values)
        raw, again = self.raw, AGAIN if self._another else 0
        while True:
            try:
                return cast(Cursor, raw.execute(statement, given, binary=True))
            except psycopg.OperationalError:
                if self._another is None or not raw.broken or not again:
                    raise
                raw, again = self._another(), again - 1

    def executemany(self, sql: str, rows: Iterable[Values], /) -> Cursor:
        cursor = self.raw.cursor(binary=True)
        pairs = [translated(sql, row) for row in rows]
        if pairs:
            cursor.executemany(pairs[0][0], [given for _, given in pairs])
        return cast(Cursor, cursor)

    def stream(self, sql: str, values: Values = (), /) -> Cursor:
        statement, given = translated(sql, values)
        cursor = self.raw.cursor(f"stream_{time.monotonic_ns()}", binary=True)
        cursor.itersize = STREAM
        self._streams.append(cursor)
        cursor.execute(statement, given)
        return cast(Cursor, cursor)

    def note_changed(self, numbers: Sequence[int]) -> None:
        # The counter is a row: a sequence would be seen to move before the change itself is seen.
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

    def put_words(self, rows: Sequence[tuple[int, str]]) -> None:
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

    def remove_words(self, numbers: Sequence[int]) -> None:
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
        return [*(table_of(*row) for row in rows if row[0] not in left_out), WORDS]

    def adopt_numbers(self) -> None:
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
        """No stream is read any more."""
        for cursor in self._streams:
            with suppress(psycopg.Error):
                cursor.close()


def configure(raw: Raw) -> None:
    """How values go to the server and come back."""
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
        # Iterative: what the conditions of a search leave out is made up for by searching on.
        raw.execute(f"SET hnsw.iterative_scan = strict_order; SET hnsw.ef_search = {REACH}")
