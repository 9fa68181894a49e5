"""Words through FTS5. SQLite has no index for vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from halo_weave.records import Numbers, Scores
from halo_weave.store import VectorSearch
from halo_weave.stores.sql.rows import SqlPart


class SqliteWords(SqlPart):
    def search_terms(
        self, terms: Sequence[str], limit: int, *, window: str | None = None
    ) -> list[tuple[Numbers, Scores]]:
        where = "AND (SELECT c.window FROM chunks c WHERE c.number = words.rowid) = :window" if window else ""
        found = []
        nothing = np.zeros(0, np.int64), np.zeros(0, np.float64)
        with self._db.reading() as db:
            few = (db.execute("SELECT max(number) FROM chunks").fetchone()[0] or 0) <= limit
            for term in terms:
                values = {"phrase": _phrase(term), "window": window, "most": limit + 1}
                # Counting is cheap beside ranking, so it tells first whether the term is too common.
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

    def vector_search(self, generation: int) -> VectorSearch | None:
        return None  # SQLite has no index for vectors: the process loads them


def _phrase(term: str) -> str:
    """A term as a phrase of FTS5, in which nothing is an operator."""
    return '"' + term.replace('"', " ").replace("\x00", " ") + '"'
