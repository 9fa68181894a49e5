"""What replies took from chunks: stored with the reply, found by the reply and by the chunk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.use import ChunkShare, ReplyUse
from halo_weave.records import ChunkUse, MostUsed
from halo_weave.stores.packing import moment, pack_sources, unpack_sources
from halo_weave.stores.sqlite.rows import SqlitePart, number_of

# A chunk and what it is part of by now.
WHOLE_CHUNK = """WITH RECURSIVE whole (named, number) AS (
    SELECT u.chunk, u.chunk FROM uses u WHERE u.turn = ?
    UNION SELECT w.named, c.merged_into FROM whole w JOIN chunks c ON c.number = w.number WHERE c.merged_into IS NOT NULL
)"""
# All chunks that a window's replies used, and what they are part of by now.
MERGED = """WITH RECURSIVE merged (named, number) AS (
    SELECT DISTINCT u.chunk, u.chunk FROM uses u JOIN turns r ON r.id = u.turn WHERE r.window = ?
    UNION SELECT m.named, c.merged_into FROM merged m JOIN chunks c ON c.number = m.number
        WHERE c.merged_into IS NOT NULL
)"""
# A chunk and all that was merged into it.
PARTS = """WITH RECURSIVE parts (number) AS (
    VALUES (?) UNION SELECT c.number FROM chunks c JOIN parts p ON c.merged_into = p.number
)"""


class SqliteUses(SqlitePart):
    def save_use(self, turn_id: int, use: ReplyUse) -> None:
        with self._db.writing() as db:
            chunks = (
                (place, one.key.turn_id, one.key.chunk_id, one.share) for place, one in enumerate(use.chunks)
            )
            insert_use(db, turn_id, chunks, use.nothing, pack_sources(use.tokens))

    def use_of(self, turn_id: int) -> ReplyUse | None:
        with self._db.reading() as db:
            row = db.execute("SELECT rest, tokens FROM sources WHERE turn = ?", (turn_id,)).fetchone()
            if row is None:
                return None
            chunks = db.execute(
                f"""{WHOLE_CHUNK} SELECT u.place, c.turn, c.chunk, t.role, said.start, u.share
                    FROM uses u JOIN chunks said ON said.number = u.chunk JOIN whole w ON w.named = u.chunk
                    JOIN chunks c ON c.number = w.number AND c.merged IS NULL AND c.deleted IS NULL
                    JOIN turns t ON t.id = c.turn WHERE u.turn = ? ORDER BY u.place""",
                (turn_id, turn_id),
            ).fetchall()
        places = {place: i for i, (place, *_) in enumerate(chunks)}
        return ReplyUse(
            tuple(
                ChunkShare(ChunkKey(turn, chunk, Role(role)), start, share)
                for _, turn, chunk, role, start, share in chunks
            ),
            row[0],
            tuple(
                tuple(one._replace(place=places[one.place]) for one in sources if one.place in places)
                for sources in unpack_sources(row[1])
            ),
        )

    def used_in(self, key: ChunkKey, *, limit: int = 100) -> list[ChunkUse]:
        with self._db.reading() as db:
            rows = db.execute(
                f"""{PARTS} SELECT t.id, t.window, t.said, sum(u.share) FROM uses u JOIN turns t ON t.id = u.turn
                    WHERE u.chunk IN (SELECT number FROM parts) GROUP BY t.id ORDER BY t.id DESC LIMIT ?""",
                (number_of(db, key), limit),
            ).fetchall()
        return [ChunkUse(turn, window, moment(said), share) for turn, window, said, share in rows]

    def most_used(self, window_id: str, limit: int = 200) -> list[MostUsed]:
        with self._db.reading() as db:
            rows = db.execute(
                f"""{MERGED} SELECT c.turn, c.chunk, t.role, sum(u.share) AS share, group_concat(DISTINCT u.turn)
                    FROM uses u JOIN turns r ON r.id = u.turn AND r.window = ? JOIN merged m ON m.named = u.chunk
                    JOIN chunks c ON c.number = m.number AND c.merged IS NULL AND c.deleted IS NULL
                    JOIN turns t ON t.id = c.turn GROUP BY c.number ORDER BY share DESC, c.start LIMIT ?""",
                (window_id, window_id, limit),
            ).fetchall()
        return [
            MostUsed(ChunkKey(turn, chunk, Role(role)), share, tuple(sorted(map(int, turns.split(",")))))
            for turn, chunk, role, share, turns in rows
        ]


def insert_use(
    db: sqlite3.Connection,
    turn: int,
    chunks: Iterable[tuple[int, int, int, float]],
    nothing: float,
    tokens: bytes,
) -> None:
    """The use of a reply by (place, turn, chunk, share) of its sources. Chunks that are not here are left out."""
    cursor = db.execute(
        "INSERT OR IGNORE INTO sources (turn, rest, tokens) SELECT id, ?, ? FROM turns WHERE id = ?",
        (nothing, tokens, turn),
    )
    if cursor.rowcount == 1:
        db.executemany(
            """INSERT INTO uses (turn, place, chunk, share)
               SELECT ?, ?, number, ? FROM chunks WHERE turn = ? AND chunk = ?""",
            [(turn, place, share, source, chunk) for place, source, chunk, share in chunks],
        )
