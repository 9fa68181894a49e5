"""PostgresStore: word search over a table of terms, and vector search with pgvector."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from halo_weave.errors import UnknownGeneration
from halo_weave.store.access import StoreHandle, server_only
from halo_weave.store.postgres.bm25 import bm25, fold_term
from halo_weave.store.postgres.database import PostgresConnection, PostgresDatabase
from halo_weave.store.records import Numbers, Progress, Scores, Similarities, Vectors, VectorSearch, silent
from halo_weave.store.sql_store import SqlStore, atomic_backup
from halo_weave.store.sqlite import SqliteDatabase
from halo_weave.store.transfer import copy_rows

EXACT_BELOW = 50_000  # vectors; up to this number comparing all takes about ten milliseconds
RECOUNT_SECONDS = 60.0  # seconds after which the size is checked again
VECTORS_PER_CHUNK = 2  # a chunk may have several vectors among the nearest
MOST_DIMENSIONS = 4000  # limit of pgvector's indexes
INDEX_BYTES_PER_VECTOR = 900  # bytes per vector that building needs in addition to its numbers
MAX_BUILD_MEMORY = (
    2 << 30
)  # bytes that building requests from the server; with less it takes many times longer
NOT_ASIDE = "NOT EXISTS (SELECT 1 FROM chunks c WHERE c.number = e.chunk AND c.aside = 1)"


class PostgresVectors:
    """The vectors of one generation."""

    def __init__(self, db: PostgresDatabase, generation: int, dimension: int) -> None:
        self._db, self._generation, self._dimension = db, generation, dimension
        self._index = f"embeddings_of_{generation}"
        self._indexed = False
        self._looked = -RECOUNT_SECONDS
        self._building: threading.Thread | None = None

    @classmethod
    def of(cls, db: PostgresDatabase, generation: int) -> PostgresVectors:
        with db.querying() as reader:
            row = reader.execute("SELECT dimension FROM generations WHERE id = ?", (generation,)).fetchone()
        if row is None:
            raise UnknownGeneration(
                f"There is no generation {generation} of vectors. To make them: halo-weave reindex"
            )
        return cls(db, generation, row[0])

    def nearest(
        self, vector: Vectors, *, limit: int, window: str | None = None, among: Numbers | None = None
    ) -> tuple[Numbers, Similarities]:
        query = np.asarray(vector, np.float32)
        if time.monotonic() - self._looked > RECOUNT_SECONDS:
            self._look()
        few = among is not None or (window is not None and self._indexed and not self._many(window))
        with self._db.querying() as db:
            if few or not self._indexed:
                rows = self._compared(db, query, limit, window, among)
            else:
                rows = self._through_index(db, query, limit, window)
        far = np.array([one for _, one in rows], np.float32)
        return np.array([number for number, _ in rows], np.int64), np.float32(1) - far

    def _compared(
        self,
        db: PostgresConnection,
        query: Vectors,
        limit: int,
        window: str | None = None,
        among: Numbers | None = None,
    ) -> list[tuple[int, float]]:
        here = 'AND e."window" = %(window)s' if window else ""
        here += " AND e.chunk = ANY(%(among)s)" if among is not None else ""
        chosen = None if among is None else among.tolist()
        return db.raw.execute(
            f"""SELECT e.chunk, min(e.embedding <=> %(query)s) AS far FROM embeddings e
                WHERE e.generation = %(generation)s {here} AND {NOT_ASIDE}
                GROUP BY e.chunk ORDER BY far, e.chunk LIMIT %(limit)s""",
            {
                "query": query,
                "generation": self._generation,
                "window": window,
                "limit": limit,
                "among": chosen,
            },
        ).fetchall()

    def _through_index(
        self, db: PostgresConnection, query: Vectors, limit: int, window: str | None
    ) -> list[tuple[int, float]]:
        here = 'AND e."window" = %(window)s' if window else ""
        far = f"e.embedding::halfvec({self._dimension}) <=> %(query)s::halfvec({self._dimension})"
        return db.raw.execute(
            f"""SELECT chunk, min(far) FROM (
                    SELECT e.chunk, {far} AS far FROM embeddings e
                    WHERE e.generation = {self._generation} {here} AND {NOT_ASIDE}
                    ORDER BY {far} LIMIT %(several)s) AS near
                GROUP BY chunk ORDER BY 2, 1 LIMIT %(limit)s""",
            {"query": query, "window": window, "several": VECTORS_PER_CHUNK * limit, "limit": limit},
        ).fetchall()

    def _many(self, window: str | None = None) -> bool:
        """Whether the window has too many vectors to compare all."""
        here = 'AND "window" = %(window)s' if window else ""
        with self._db.querying() as db:
            row = db.raw.execute(
                f"""SELECT count(*) FROM (SELECT 1 FROM embeddings WHERE generation = %(generation)s {here}
                        LIMIT %(most)s) AS many""",
                {"generation": self._generation, "window": window, "most": EXACT_BELOW + 1},
            ).fetchone()
        return bool(row and row[0] > EXACT_BELOW)

    def _look(self) -> None:
        """Check whether the index can be used; if there should be one, build it in the background."""
        self._looked = time.monotonic()
        with self._db.querying() as db:
            row = db.raw.execute(
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(current_schema() || '.' || %s)",
                (self._index,),
            ).fetchone()
        self._indexed = bool(row and row[0])
        if self._indexed or self._building or self._db.read_only or self._dimension > MOST_DIMENSIONS:
            return
        if self._many():
            self._building = threading.Thread(target=self.build, name="vector-index", daemon=True)
            self._building.start()

    def build(self) -> None:
        """Build the index. An unfinished one is built again."""
        try:
            with self._db.connected() as raw:
                sql = "SELECT pg_try_advisory_lock(hashtext(current_schema()), hashtext(%s))"
                if raw.execute(sql, (self._index,)).fetchone() != (True,):
                    return  # another process is building it
                counted = "SELECT count(*) FROM embeddings WHERE generation = %s"
                row = raw.execute(counted, (self._generation,)).fetchone()
                needed = (row[0] if row else 0) * (2 * self._dimension + INDEX_BYTES_PER_VECTOR) * 5 // 4
                megabytes = max(64, min(MAX_BUILD_MEMORY, needed) >> 20)
                raw.execute(f"SET maintenance_work_mem = '{megabytes}MB'")
                try:
                    self._create(raw)
                except psycopg.OperationalError:
                    # Several workers need shared memory, of which a container may have little; one worker needs none.
                    raw.execute("SET max_parallel_maintenance_workers = 0")
                    self._create(raw)
                self._looked = -RECOUNT_SECONDS
        except psycopg.Error:
            pass  # all are compared until it exists; the next check tries again
        finally:
            self._building = None

    def _create(self, raw: psycopg.Connection[Any]) -> None:
        raw.execute(f"DROP INDEX IF EXISTS {self._index}")
        raw.execute(
            f"""CREATE INDEX CONCURRENTLY {self._index} ON embeddings
                USING hnsw ((embedding::halfvec({self._dimension})) halfvec_cosine_ops)
                WHERE generation = {self._generation}"""
        )


class PostgresSearch(StoreHandle):
    _db: PostgresDatabase

    @server_only
    def search_terms(
        self, terms: Sequence[str], limit: int, *, window: str | None = None
    ) -> list[tuple[Numbers, Scores]]:
        """For each term the numbers of the chunks that contain it and their BM25 (higher is better), in any order.

        Both are empty if more than `limit` chunks of all windows contain the term. `window`: only chunks of this
        window.
        """
        folded = [fold_term(term.replace("\x00", " ")) for term in terms]
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.float64))
        where = 'AND c."window" = %(window)s' if window else ""
        tables = "postings p JOIN chunks c ON c.number = p.chunk" if window else "postings p"
        with self._db.querying() as db:
            # The numbers are sent as bytes: as rows they would take ten times longer.
            rows = db.raw.execute(
                f"""SELECT h.term, h.holding, m.worded, m.terms, o.chunks, o.often, o.sizes
                    FROM (SELECT one.term, (SELECT count(*) FROM (
                              SELECT 1 FROM postings p WHERE p.term = one.term LIMIT %(most)s) AS few) AS holding
                          FROM unnest(%(terms)s::text[]) AS one(term)) AS h
                    CROSS JOIN memory m
                    CROSS JOIN LATERAL (
                        SELECT string_agg(int8send(p.chunk), '') AS chunks, string_agg(int4send(p.often), '') AS often,
                            string_agg(int4send(p.size), '') AS sizes
                        FROM {tables} WHERE p.term = h.term AND h.holding < %(most)s {where}) AS o
                    WHERE o.chunks IS NOT NULL""",
                {"terms": list(dict.fromkeys(folded)), "most": limit + 1, "window": window},
                binary=True,
            ).fetchall()
        found: dict[str, tuple[Numbers, Scores]] = {}
        for term, holding, chunks, total, numbers, often, sizes in rows:
            counts, lengths = (np.frombuffer(blob, ">i4").astype(np.int64) for blob in (often, sizes))
            scores = bm25(counts, lengths, holding, chunks, total)
            found[term] = np.frombuffer(numbers, ">i8").astype(np.int64), scores
        return [found.get(term, nothing) for term in folded]

    @server_only
    def vector_search(self, generation: int) -> VectorSearch | None:
        """The store's own index over these vectors; None if it has none: then the process loads them itself."""
        return PostgresVectors.of(self._db, generation)


class PostgresStore(PostgresSearch, SqlStore):
    """A memory in a PostgreSQL database."""

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
        """`folder`: for temporary files. `moving`: the id of a memory that is being moved here: others may not use it
        until it is complete."""
        super().__init__(
            PostgresDatabase(
                address, busy_seconds=busy_seconds, read_only=read_only, moving=moving, folder=folder
            )
        )

    @server_only
    def backup(self, target: Path, *, progress: Progress = silent) -> None:
        """Copy the memory to a SQLite file, which can be used as it is, or moved back."""
        with atomic_backup(target) as partial, self._db.reading() as db:
            file = SqliteDatabase(partial)
            try:
                copy_rows(db, file, progress=progress)
            finally:
                file.close()
