"""What the user does to memory itself: merge, delete, undelete. It holds for every window."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from halo_weave.core.tokens import Brightness, ChunkKey, Role, Tokens
from halo_weave.errors import BadInput, UnknownChunk
from halo_weave.stores.packing import micros, pack_floats, pack_tokens, unpack_floats, unpack_tokens
from halo_weave.stores.sqlite.rows import (
    SqlitePart,
    check_window,
    listed,
    note_changed,
    note_event,
    number_of,
    pack_json,
    remove_words,
    unpack_tags,
    want_vectors,
    write_words,
)
from halo_weave.stores.sqlite.transcript import pair_of


@dataclass(frozen=True, slots=True, eq=False)
class HeldChunk:
    """How one window holds one chunk."""

    live: bool
    pinned: bool
    brightness: Brightness
    tokenizer: int | None
    tokens: Tokens | None  # the window's own reading
    row: tuple[Any, ...]  # since and woken, or slept and reason


class SqliteCorrections(SqlitePart):
    def merge(self, window_id: str, key: ChunkKey, *, now: datetime) -> ChunkKey:
        """The chunk joins the one before it in its turn, and goes by that one's key, which is returned.

        Both must be live here. Refused while another window has one of them live, since its tokens would change
        under it; where they sleep, they sleep on as one.
        """
        when = micros(now)
        with self._db.writing(durable=True) as db:
            check_window(db, window_id)
            second = number_of(db, key)
            row = db.execute(
                """SELECT a.number, a.chunk, a.start, a.span, a.ids, a.lengths, a.raw,
                       b.start, b.span, b.ids, b.lengths, b.raw, a.tags, b.tags FROM chunks b JOIN chunks a ON a.turn = b.turn
                   WHERE b.number = ? AND b.merged IS NULL AND b.deleted IS NULL AND a.start + a.span = b.start
                   AND a.merged IS NULL AND a.deleted IS NULL""",
                (second,),
            ).fetchone()
            if row is None:
                raise BadInput(f"Chunk {key} has no chunk of its turn right before it to merge into.")
            first, chunk, start = row[:3]
            before = unpack_tokens(row[4], row[5], row[6], row[3])
            after = unpack_tokens(row[9], row[10], row[11], row[8])
            tags = list(dict.fromkeys(unpack_tags(row[12]) + unpack_tags(row[13])))
            into = ChunkKey(key.turn_id, chunk, key.role)
            live = db.execute(
                "SELECT l.window, w.name, w.deleted FROM live l JOIN windows w ON w.id = l.window WHERE l.chunk IN (?, ?)",
                (first, second),
            ).fetchall()
            if sum(window == window_id for window, _, _ in live) != 2:
                raise BadInput(f"Chunks {into} and {key} must both be live to be merged.")
            for window, name, deleted in live:
                if window != window_id and deleted is None:
                    raise BadInput(
                        f"Chunk {into} or {key} is live in window {name!r} too. Put it to sleep there first."
                    )
            for window in _holders(db, first, second):
                _join(db, window, (first, start, before), (second, row[7], after))
            db.execute(
                "UPDATE chunks SET span = ?, ids = ?, lengths = ?, raw = ?, tags = ? WHERE number = ?",
                (
                    len(before) + len(after),
                    *pack_tokens(before + after),
                    pack_json(tags) if tags else None,
                    first,
                ),
            )
            db.execute(
                "UPDATE chunks SET merged = ?, merged_into = ? WHERE number = ?", (when, first, second)
            )
            _forget(db, [second])
            write_words(db, [first])
            note_changed(db, [first, second])
            want_vectors(db, [first])
            note_event(db, [(None, first, when, "merged", pack_json({"chunk_id": key.chunk_id}))])
        return into

    def deletion_of(self, key: ChunkKey) -> tuple[ChunkKey, ...]:
        """What goes when this chunk is deleted: the pair of turns for a question's opening or any part of an answer,
        else the chunk alone. The same set comes back when it is undeleted."""
        with self._db.reading() as db:
            number_of(db, key)
            turns = [key.turn_id]
            if key.role is Role.ASSISTANT or (key.role is Role.USER and key.chunk_id == 0):
                pair = pair_of(db, key.turn_id)
                turns += [] if pair is None else [pair]
            else:
                return (key,)
            rows = db.execute(
                """SELECT c.turn, c.chunk, t.role FROM chunks c JOIN turns t ON t.id = c.turn
                   WHERE c.turn IN (SELECT value FROM json_each(?)) AND c.merged IS NULL ORDER BY c.start""",
                (listed(turns),),
            ).fetchall()
        return tuple(ChunkKey(turn, chunk, Role(role)) for turn, chunk, role in rows)

    def delete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        """Out of every window and every search, until undeleted. The record stays. Returns where it was live."""
        when = micros(now)
        with self._db.writing(durable=True) as db:
            numbers = [number for number, deleted in _existing(db, keys) if deleted is None]
            chosen = (listed(numbers),)
            within = "chunk IN (SELECT value FROM json_each(?))"
            db.execute(
                f"""INSERT OR REPLACE INTO asleep
                        (window, start, chunk, gone, peak, slept, reason, tokenizer, brightness, ids, lengths, raw)
                    SELECT window, start, chunk, 1, 0, {when},
                        json_object('why', 'deleted', 'since', since, 'pinned', pinned, 'woken', json(woken)),
                        tokenizer, brightness, ids, lengths, raw
                    FROM live WHERE {within}""",
                chosen,
            )
            fallen = db.execute(
                f"SELECT window, start, brightness FROM live WHERE {within}", chosen
            ).fetchall()
            db.executemany(
                "UPDATE asleep SET peak = ? WHERE window = ? AND start = ?",
                [(float(unpack_floats(blob).max()), window, start) for window, start, blob in fallen],
            )
            db.execute(f"DELETE FROM live WHERE {within}", chosen)
            db.execute(f"UPDATE asleep SET gone = 1 WHERE {within}", chosen)
            db.execute(
                f"UPDATE chunks SET deleted = {when} WHERE number IN (SELECT value FROM json_each(?))", chosen
            )
            _forget(db, numbers)
            note_changed(db, numbers)
            note_event(db, [(None, number, when, "deleted", "{}") for number in numbers])
        return tuple(dict.fromkeys(window for window, _, _ in fallen))

    def undelete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        """Deleted chunks can be found again, and are in every window what they were: live, or asleep.

        Returns where they are live.
        """
        when = micros(now)
        was_live = "chunk IN (SELECT value FROM json_each(?)) AND reason ->> 'why' = 'deleted' AND reason ->> 'since'"
        with self._db.writing(durable=True) as db:
            numbers = [number for number, deleted in _existing(db, keys) if deleted is not None]
            chosen = (listed(numbers),)
            windows = db.execute(f"SELECT DISTINCT window FROM asleep WHERE {was_live}", chosen).fetchall()
            db.execute(
                f"""INSERT INTO live
                        (window, start, chunk, pinned, since, woken, tokenizer, brightness, ids, lengths, raw)
                    SELECT window, start, chunk, reason ->> 'pinned', reason ->> 'since',
                        nullif(reason -> 'woken', 'null'), tokenizer, brightness, ids, lengths, raw
                    FROM asleep WHERE {was_live}""",
                chosen,
            )
            db.execute(f"DELETE FROM asleep WHERE {was_live}", chosen)
            db.execute("UPDATE asleep SET gone = 0 WHERE chunk IN (SELECT value FROM json_each(?))", chosen)
            db.execute(
                f"""UPDATE chunks SET deleted = NULL, undeleted = {when}
                    WHERE number IN (SELECT value FROM json_each(?))""",
                chosen,
            )
            write_words(db, numbers)
            note_changed(db, numbers)
            want_vectors(db, numbers)
            note_event(db, [(None, number, when, "undeleted", "{}") for number in numbers])
        return tuple(window for (window,) in windows)


def _existing(db: sqlite3.Connection, keys: Sequence[ChunkKey]) -> list[tuple[int, int | None]]:
    """Numbers and deletion times. A chunk that joined another has no life of its own."""
    found = []
    for key in dict.fromkeys(keys):
        number = number_of(db, key)
        deleted, merged = db.execute(
            "SELECT deleted, merged FROM chunks WHERE number = ?", (number,)
        ).fetchone()
        if merged is not None:
            raise UnknownChunk(f"Chunk {key} is part of the chunk before it since they were merged.")
        found.append((number, deleted))
    return found


def _forget(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Out of the word index, and no vector in any generation."""
    remove_words(db, numbers)
    for table in ("vectors", "wanted"):
        db.execute(f"DELETE FROM {table} WHERE chunk IN (SELECT value FROM json_each(?))", (listed(numbers),))


def _holders(db: sqlite3.Connection, first: int, second: int) -> list[str]:
    rows = db.execute(
        "SELECT window FROM live WHERE chunk IN (?1, ?2) UNION SELECT window FROM asleep WHERE chunk IN (?1, ?2)",
        (first, second),
    )
    return [window for (window,) in rows]


def _held(db: sqlite3.Connection, window: str, start: int) -> HeldChunk | None:
    for table, pinned, columns in (("live", "pinned", "since, woken"), ("asleep", "0", "slept, reason")):
        row = db.execute(
            f"""SELECT {pinned}, brightness, tokenizer, ids, lengths, raw, {columns} FROM {table}
                WHERE window = ? AND start = ?""",
            (window, start),
        ).fetchone()
        if row is not None:
            brightness = unpack_floats(row[1])
            tokens = None if row[3] is None else unpack_tokens(row[3], row[4], row[5], len(brightness))
            return HeldChunk(table == "live", bool(row[0]), brightness, row[2], tokens, row[6:])
    return None


def _join(
    db: sqlite3.Connection, window: str, first: tuple[int, int, Tokens], second: tuple[int, int, Tokens]
) -> None:
    """Two chunks become one in a window that holds at least one of them. What it never saw gets the least it knows."""
    number, start, _ = first
    parts = [_held(db, window, start), _held(db, window, second[1])]
    known = [part for part in parts if part is not None]
    base = next((part for part in known if part.live), known[0])
    least = min(float(part.brightness.min()) for part in known)
    own = len({part.tokenizer for part in known}) == 1 and len(known) == 2
    brightness = []
    for part, (_, _, tokens) in zip(parts, (first, second), strict=True):
        if part is not None and (own or part.tokens is None):
            brightness.append(part.brightness)
        else:
            value = least if part is None else float(part.brightness.max())
            brightness.append(np.full(len(tokens), value, np.float32))
    joined = np.concatenate(brightness)
    reading: tuple[Any, ...] = (None, None, None, None)
    if own and known[0].tokens is not None and known[1].tokens is not None:
        reading = (known[0].tokenizer, *pack_tokens(known[0].tokens + known[1].tokens))
    for table in ("live", "asleep"):
        db.execute(f"DELETE FROM {table} WHERE window = ? AND start IN (?, ?)", (window, start, second[1]))
    if base.live:
        db.execute(
            """INSERT INTO live (window, start, chunk, pinned, brightness, tokenizer, ids, lengths, raw, since, woken)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (
                window,
                start,
                number,
                any(part.pinned for part in known),
                pack_floats(joined),
                *reading,
                *base.row,
            ),
        )
    else:
        db.execute(
            """INSERT INTO asleep (window, start, chunk, gone, peak, brightness, tokenizer, ids, lengths, raw, slept, reason)
               VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (window, start, number, float(joined.max()), pack_floats(joined), *reading, *base.row),
        )
