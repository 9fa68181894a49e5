"""Words through a table of terms, ranked as FTS5 ranks them; and vectors through pgvector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from halo_weave.records import Numbers, Scores
from halo_weave.store import VectorSearch
from halo_weave.stores.postgres.database import PostgresDatabase
from halo_weave.stores.postgres.nearest import PostgresVectors
from halo_weave.stores.postgres.terms import bm25, folded
from halo_weave.stores.sql.rows import SqlPart


class PostgresSearch(SqlPart):
    _db: PostgresDatabase

    def search_terms(
        self, terms: Sequence[str], limit: int, *, window: str | None = None
    ) -> list[tuple[Numbers, Scores]]:
        asked = [folded(term.replace("\x00", " ")) for term in terms]
        nothing = (np.zeros(0, np.int64), np.zeros(0, np.float64))
        where = 'AND c."window" = %(window)s' if window else ""
        tables = "postings p JOIN chunks c ON c.number = p.chunk" if window else "postings p"
        with self._db.asking() as db:
            # The numbers come as bytes: as rows they would take ten times as long.
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
                {"terms": list(dict.fromkeys(asked)), "most": limit + 1, "window": window},
                binary=True,
            ).fetchall()
        found: dict[str, tuple[Numbers, Scores]] = {}
        for term, holding, chunks, total, numbers, often, sizes in rows:
            counts, lengths = (np.frombuffer(blob, ">i4").astype(np.int64) for blob in (often, sizes))
            scores = bm25(counts, lengths, holding, chunks, total)
            found[term] = np.frombuffer(numbers, ">i8").astype(np.int64), scores
        return [found.get(term, nothing) for term in asked]

    def vector_search(self, generation: int) -> VectorSearch | None:
        return PostgresVectors.of(self._db, generation)
