"""Which chunks each reply used, found by the reply and by the chunk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from halo_weave.core.attribution import Attribution, ChunkShare
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.store.access import StoreHandle, checks_access, reads_window, server_only
from halo_weave.store.database import Connection
from halo_weave.store.encoding import moment, pack_sources, unpack_sources
from halo_weave.store.records import ChunkUse, Json, MostUsed, ReplySource
from halo_weave.store.rows import (
    CHUNK_COLUMNS,
    CHUNK_TABLES,
    VISIBLE,
    chunk_number,
    chunk_records,
    json_array,
    pack_json,
)

# The chunks that a reply used, each with the chunks that it was merged into.
WHOLE_CHUNK = """WITH RECURSIVE whole (named, number) AS (
    SELECT u.chunk, u.chunk FROM uses u WHERE u.turn = ?
    UNION SELECT w.named, c.merged_into FROM whole w JOIN chunks c ON c.number = w.number WHERE c.merged_into IS NOT NULL
)"""
# All chunks that a window's replies used, and the chunks that these were merged into.
MERGED = """WITH RECURSIVE merged (named, number) AS (
    SELECT DISTINCT u.chunk, u.chunk FROM uses u JOIN turns r ON r.id = u.turn WHERE r.window = ?
    UNION SELECT m.named, c.merged_into FROM merged m JOIN chunks c ON c.number = m.number
        WHERE c.merged_into IS NOT NULL
)"""
# Chunks that were used by replies or resurrected for them, without the message that they answer, and the chunks that these were merged into.
REMEMBERED = """WITH RECURSIVE named (turn, chunk, share, reason) AS (
    SELECT turn, chunk, max(share), max(reason) FROM (
        SELECT u.turn, u.chunk, u.share, NULL AS reason
        FROM uses u JOIN turns r ON r.id = u.turn JOIN chunks said ON said.number = u.chunk
        WHERE u.turn IN (SELECT value FROM json_each(?)) AND said.turn <> coalesce(r.answers, 0)
        UNION ALL SELECT turn, chunk, 0.0, reason FROM remembered WHERE turn IN (SELECT value FROM json_each(?))
    ) AS either GROUP BY turn, chunk
), whole (named, number) AS (
    SELECT DISTINCT chunk, chunk FROM named
    UNION SELECT w.named, c.merged_into FROM whole w JOIN chunks c ON c.number = w.number WHERE c.merged_into IS NOT NULL
)"""
# A chunk and all that was merged into it.
PARTS = """WITH RECURSIVE parts (number) AS (
    VALUES (?) UNION SELECT c.number FROM chunks c JOIN parts p ON c.merged_into = p.number
)"""


class SqlAttribution(StoreHandle):
    @server_only
    def save_use(
        self,
        turn_id: int,
        use: Attribution | None,
        resurrected: Mapping[ChunkKey, Mapping[str, Json]] | None = None,
    ) -> None:
        """Save the attribution of a stored reply, if it is known, and the chunks that were resurrected for it, with the
        reason. Nothing that was saved before is changed."""
        with self._db.writing() as db:
            db.executemany(
                """INSERT INTO remembered (turn, chunk, reason)
                   SELECT ?, number, ? FROM chunks WHERE turn = ? AND chunk = ? ON CONFLICT DO NOTHING""",
                [(turn_id, pack_json(reason), *key[:2]) for key, reason in (resurrected or {}).items()],
            )
            if use is None:
                return
            chunks = (
                (place, one.key.turn_id, one.key.chunk_id, one.share) for place, one in enumerate(use.chunks)
            )
            insert_attribution(db, turn_id, chunks, use.nothing, pack_sources(use.tokens), use.start)

    @checks_access
    def use_of(self, turn_id: int) -> Attribution | None:
        """The attribution of a reply, without deleted chunks; merged ones have their current key. None: unknown."""
        if not self._readable_turns([turn_id]):
            return None
        with self._db.reading() as db:
            row = db.execute("SELECT rest, tokens, start FROM sources WHERE turn = ?", (turn_id,)).fetchone()
            if row is None:
                return None
            chunks = db.execute(
                f"""{WHOLE_CHUNK} SELECT u.place, c.turn, c.chunk, t.role, said.start, u.share
                    FROM uses u JOIN chunks said ON said.number = u.chunk JOIN whole w ON w.named = u.chunk
                    JOIN chunks c ON c.number = w.number AND c.merged IS NULL AND c.deleted IS NULL AND c.aside = 0
                    JOIN turns t ON t.id = c.turn WHERE u.turn = ? ORDER BY u.place""",
                (turn_id, turn_id),
            ).fetchall()
        places = {place: i for i, (place, *_) in enumerate(chunks)}
        return Attribution(
            tuple(
                ChunkShare(ChunkKey(turn, chunk, Role(role)), start, share)
                for _, turn, chunk, role, start, share in chunks
            ),
            row[0],
            tuple(
                tuple(one._replace(place=places[one.place]) for one in sources if one.place in places)
                for sources in unpack_sources(row[1])
            ),
            row[2],
        )

    @checks_access
    def remembered(
        self, turn_ids: Iterable[int], *, min_share: float = 0.0
    ) -> dict[int, tuple[float, list[ReplySource]]]:
        """By reply: its share from no chunk in particular, and the chunks that were resurrected for it or have at least
        `min_share` in it, without the message that it answers.
        """
        turns = json_array(self._readable_turns(turn_ids))
        with self._db.reading() as db:
            rest = db.execute(
                "SELECT turn, rest FROM sources WHERE turn IN (SELECT value FROM json_each(?))", (turns,)
            ).fetchall()
            rows = db.execute(
                f"""{REMEMBERED} SELECT n.turn, n.share, n.reason, {CHUNK_COLUMNS}
                    FROM named n JOIN whole w ON w.named = n.chunk CROSS JOIN {CHUNK_TABLES}
                    WHERE c.number = w.number AND {VISIBLE} AND (n.share >= ? OR n.reason IS NOT NULL)
                    ORDER BY n.turn, n.share DESC, c.start""",
                (turns, turns, min_share),
            ).fetchall()
        found: dict[int, tuple[float, list[ReplySource]]] = {turn: (nothing, []) for turn, nothing in rest}
        used = set(found)
        for (turn, share, reason, *_), record in zip(
            rows, chunk_records([row[3:] for row in rows]), strict=True
        ):
            resurrect_reason = None if reason is None else json.loads(reason)
            known = share if turn in used else None
            sources = found.setdefault(turn, (1.0, []))[1]
            if self._may_read(record.window):
                sources.append(ReplySource(record, known, resurrect_reason))
        return found

    @checks_access
    def used_in(self, key: ChunkKey, *, limit: int = 100) -> list[ChunkUse]:
        """The replies that used a chunk, newest first, without the one that answers it."""
        self._check_chunk(key)
        with self._db.reading() as db:
            rows = db.execute(
                f"""{PARTS} SELECT t.id, t.window, t.said, sum(u.share) FROM uses u JOIN turns t ON t.id = u.turn
                    JOIN chunks said ON said.number = u.chunk
                    WHERE u.chunk IN (SELECT number FROM parts) AND said.turn <> coalesce(t.answers, 0)
                    GROUP BY t.id ORDER BY t.id DESC LIMIT ?""",
                (chunk_number(db, key), limit),
            ).fetchall()
        return [
            ChunkUse(turn, window, moment(said), share)
            for turn, window, said, share in rows
            if self._may_read(window)
        ]

    @reads_window
    def most_used(self, window_id: str, limit: int = 200) -> list[MostUsed]:
        """The chunks that the window's replies used most, without the messages that they answer."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""{MERGED} SELECT c.turn, c.chunk, t.role, sum(u.share) AS share, group_concat(DISTINCT u.turn)
                    FROM uses u JOIN turns r ON r.id = u.turn AND r.window = ? JOIN merged m ON m.named = u.chunk
                    JOIN chunks c ON c.number = m.number AND c.merged IS NULL AND c.deleted IS NULL
                    JOIN turns t ON t.id = c.turn WHERE t.id <> coalesce(r.answers, 0) GROUP BY c.number, t.role ORDER BY 4 DESC, c.start LIMIT ?""",
                (window_id, window_id, limit),
            ).fetchall()
        return [
            MostUsed(ChunkKey(turn, chunk, Role(role)), share, tuple(sorted(map(int, turns.split(",")))))
            for turn, chunk, role, share, turns in rows
        ]


def insert_attribution(
    db: Connection,
    turn: int,
    chunks: Iterable[tuple[int, int, int, float]],
    nothing: float,
    tokens: bytes,
    start: int | None = None,
) -> None:
    """Insert the attribution of a reply, as (place, turn, chunk, share) of its sources. Unknown chunks are left out."""
    cursor = db.execute(
        """INSERT INTO sources (turn, rest, tokens, start) SELECT id, ?, ?, ? FROM turns WHERE id = ?
           ON CONFLICT DO NOTHING""",
        (nothing, tokens, start, turn),
    )
    if cursor.rowcount == 1:
        db.executemany(
            """INSERT INTO uses (turn, place, chunk, share)
               SELECT ?, ?, number, ? FROM chunks WHERE turn = ? AND chunk = ?""",
            [(turn, place, share, source, chunk) for place, source, chunk, share in chunks],
        )
