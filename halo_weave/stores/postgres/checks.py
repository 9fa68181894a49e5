"""What `verify` looks at in PostgreSQL only: the tables that search needs against those that they are made from."""

from __future__ import annotations

from collections.abc import Iterator

from halo_weave.stores.sql.rows import FEW
from halo_weave.stores.sql.seam import Check, Connection, Fault


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
    for at in range(0, len(rows), FEW):
        db.put_words(rows[at : at + FEW])


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
