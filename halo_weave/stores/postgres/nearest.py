"""Vectors searched by pgvector: all are compared up to a size, beyond it through an index (HNSW)."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import psycopg

from halo_weave.errors import UnknownGeneration
from halo_weave.records import Numbers, Similarities, Vectors
from halo_weave.stores.postgres.connection import PostgresConnection
from halo_weave.stores.postgres.database import PostgresDatabase

EXACT_BELOW = 50_000  # vectors; up to here comparing all takes some ten milliseconds
LOOK = 60.0  # seconds after which the size is looked at again
SEVERAL = 2  # a chunk may have several among the nearest
MOST_DIMENSIONS = 4000  # that an index of pgvector takes
GRAPH = 900  # bytes that building keeps for each vector beside its numbers
MOST_MEMORY = 2 << 30  # bytes that building asks the server for; with less it takes many times as long
NOT_ASIDE = "NOT EXISTS (SELECT 1 FROM chunks c WHERE c.number = e.chunk AND c.aside = 1)"


class PostgresVectors:
    """The vectors of one generation."""

    def __init__(self, db: PostgresDatabase, generation: int, dimension: int) -> None:
        self._db, self._generation, self._dimension = db, generation, dimension
        self._index = f"embeddings_of_{generation}"
        self._indexed = False
        self._looked = -LOOK
        self._building: threading.Thread | None = None

    @classmethod
    def of(cls, db: PostgresDatabase, generation: int) -> PostgresVectors:
        with db.asking() as reader:
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
        if time.monotonic() - self._looked > LOOK:
            self._look()
        few = among is not None or (window is not None and self._indexed and not self._many(window))
        with self._db.asking() as db:
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
            {"query": query, "window": window, "several": SEVERAL * limit, "limit": limit},
        ).fetchall()

    def _many(self, window: str | None = None) -> bool:
        """Whether there are more vectors than should all be compared."""
        here = 'AND "window" = %(window)s' if window else ""
        with self._db.asking() as db:
            row = db.raw.execute(
                f"""SELECT count(*) FROM (SELECT 1 FROM embeddings WHERE generation = %(generation)s {here}
                        LIMIT %(most)s) AS many""",
                {"generation": self._generation, "window": window, "most": EXACT_BELOW + 1},
            ).fetchone()
        return bool(row and row[0] > EXACT_BELOW)

    def _look(self) -> None:
        """Whether the index can be used; if there should be one, it is built beside all other work."""
        self._looked = time.monotonic()
        with self._db.asking() as db:
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
        """The index, made once. An unfinished one, of a server or process that was ended, is made anew."""
        try:
            with self._db.connected() as raw:
                asked = "SELECT pg_try_advisory_lock(hashtext(current_schema()), hashtext(%s))"
                if raw.execute(asked, (self._index,)).fetchone() != (True,):
                    return  # another process is at it
                counted = "SELECT count(*) FROM embeddings WHERE generation = %s"
                row = raw.execute(counted, (self._generation,)).fetchone()
                needed = (row[0] if row else 0) * (2 * self._dimension + GRAPH) * 5 // 4
                megabytes = max(64, min(MOST_MEMORY, needed) >> 20)
                raw.execute(f"SET maintenance_work_mem = '{megabytes}MB'")
                try:
                    self._create(raw)
                except psycopg.OperationalError:
                    # Several workers share the graph in memory of which a container may have little; one needs none.
                    raw.execute("SET max_parallel_maintenance_workers = 0")
                    self._create(raw)
                self._looked = -LOOK
        except psycopg.Error:
            pass  # all are compared until it is there; the next look tries again
        finally:
            self._building = None

    def _create(self, raw: psycopg.Connection[Any]) -> None:
        raw.execute(f"DROP INDEX IF EXISTS {self._index}")
        raw.execute(
            f"""CREATE INDEX CONCURRENTLY {self._index} ON embeddings
                USING hnsw ((embedding::halfvec({self._dimension})) halfvec_cosine_ops)
                WHERE generation = {self._generation}"""
        )
