"""Tags of chunks: each person has their own. A deleted chunk has none until it is undeleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import UnknownChunk
from halo_weave.records import OWNER
from halo_weave.stores.exchange import TagIn
from halo_weave.stores.packing import micros
from halo_weave.stores.sql.rows import PRESENT, READABLE, SqlPart, listed, number_of
from halo_weave.stores.sql.seam import Connection


class SqlTags(SqlPart):
    def tag_chunk(self, key: ChunkKey, tags: Sequence[str], *, now: datetime, owner: str = OWNER) -> None:
        with self._db.writing(durable=True) as db:
            number = number_of(db, key)
            if (
                db.execute(f"SELECT 1 FROM chunks c WHERE c.number = ? AND {PRESENT}", (number,)).fetchone()
                is None
            ):
                raise UnknownChunk(
                    f"Chunk {key} is deleted, merged or on another branch, so it takes no tags."
                )
            had = db.execute("SELECT tag FROM chunk_tags WHERE owner = ? AND chunk = ?", (owner, number))
            gone = [(owner, tag, number) for (tag,) in had.fetchall() if tag not in tags]
            db.executemany("DELETE FROM chunk_tags WHERE owner = ? AND tag = ? AND chunk = ?", gone)
            add_tags(db, number, [(owner, tag, micros(now)) for tag in tags])
            db.note_changed([number])

    def chunk_tags(self, keys: Iterable[ChunkKey], *, owner: str = OWNER) -> dict[ChunkKey, tuple[str, ...]]:
        wanted = {*keys}
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT c.turn, c.chunk, t.role, g.tag FROM chunks c JOIN turns t ON t.id = c.turn
                    JOIN chunk_tags g ON g.chunk = c.number AND g.owner = ?
                    WHERE c.turn IN (SELECT value FROM json_each(?)) AND {PRESENT} ORDER BY g.tag""",
                (owner, listed({key.turn_id for key in wanted})),
            ).fetchall()
        found: dict[ChunkKey, tuple[str, ...]] = {}
        for turn, chunk, role, tag in rows:
            key = ChunkKey(turn, chunk, Role(role))
            if key in wanted:
                found[key] = (*found.get(key, ()), tag)
        return found

    def tagged(self, tags: Collection[str], *, owner: str = OWNER) -> dict[ChunkKey, int]:
        if not tags:
            return {}
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT DISTINCT c.turn, c.chunk, t.role, c.number FROM chunk_tags g
                    JOIN chunks c ON c.number = g.chunk JOIN turns t ON t.id = c.turn
                    WHERE g.owner = ? AND g.tag IN ({", ".join("?" * len(tags))}) AND {PRESENT}""",
                (owner, *tags),
            ).fetchall()
        return {ChunkKey(turn, chunk, Role(role)): number for turn, chunk, role, number in rows}

    def tag_counts(self, *, owner: str = OWNER) -> dict[str, int]:
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT g.tag, count(*) FROM chunk_tags g JOIN chunks c ON c.number = g.chunk
                    WHERE g.owner = :reader AND {PRESENT} AND c.window IN ({READABLE})
                    GROUP BY g.tag ORDER BY g.tag""",
                {"reader": owner},
            ).fetchall()
        return dict(rows)


def add_tags(db: Connection, number: int, tags: Iterable[tuple[str, str, int]]) -> None:
    """(whose, tag, when). Those that it has already stay as they are."""
    db.executemany(
        "INSERT INTO chunk_tags (owner, tag, chunk, made) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(owner, tag, number, made) for owner, tag, made in tags],
    )


def copy_marks(db: Connection, number: int, others: Iterable[int]) -> None:
    """These chunks have the tags of that one, too, and are wrong for the same questions."""
    tags = db.execute("SELECT owner, tag, made FROM chunk_tags WHERE chunk = ?", (number,)).fetchall()
    wrong = db.execute("SELECT question, made FROM wrong WHERE chunk = ?", (number,)).fetchall()
    for other in others:
        add_tags(db, other, tags)
        db.executemany(
            "INSERT INTO wrong (chunk, question, made) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            [(other, question, made) for question, made in wrong],
        )


def bring_tags(db: Connection, number: int, tags: Iterable[TagIn], owner: Callable[[str], str]) -> None:
    """Tags out of a file. `owner`: the id here of someone in the file."""
    add_tags(db, number, [(owner(one.owner), one.tag, one.made) for one in tags])
