"""Gaps in the ids of a memory that only a file can have made: found, and closed by giving new ids to what stands after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from halo_weave.records import Json
from halo_weave.stores.renumbering import FAR, reason_here, snapshot_here
from halo_weave.stores.sql.rows import pack_json
from halo_weave.stores.sql.seam import Connection


class _Closed(NamedTuple):
    """The new ids of what moves, and the next free one."""

    moved: dict[int, int]
    end: int


def _without_gaps(taken: Iterable[tuple[int, int]], first: int, end: int) -> _Closed:
    """`taken`: ids in order, and how many are taken from each on. `first`: the first that there is, `end`: the next one."""
    moved, stop, by = {}, first, 0
    for start, count in taken:
        if start - stop >= FAR:
            by += start - stop
        stop = max(stop, start + count)
        if by:
            moved[start] = start - by
    return _Closed(moved, (stop if end - stop >= FAR else end) - by)


def closed(db: Connection) -> tuple[_Closed, _Closed] | None:
    """Turns and positions as they would be; None if there is no gap to close."""
    next_turn, next_position = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
    turns = db.execute("SELECT id, 1 FROM turns UNION SELECT turn, 1 FROM drafts ORDER BY 1")
    places = db.execute("SELECT start, span FROM chunks UNION SELECT start, tokens FROM drafts ORDER BY 1")
    found = _without_gaps(turns, 1, next_turn), _without_gaps(places, 0, next_position)
    return None if (found[0].end, found[1].end) == (next_turn, next_position) else found


def close(db: Connection) -> None:
    """Whatever names a turn or a position follows. Ids only become smaller, in order, so they never meet on the way."""
    found = closed(db)
    if found is None:
        return
    turns, places = found
    db.defer_references()
    # What windows hold is found by its chunk, as long as the chunk is found at its old place.
    for table, column, moved, found_by in (
        ("live", "start", places.moved, "chunk = (SELECT number FROM chunks WHERE start = ?)"),
        ("asleep", "start", places.moved, "chunk = (SELECT number FROM chunks WHERE start = ?)"),
        ("chunks", "start", places.moved, "start = ?"),
        ("drafts", "start", places.moved, "start = ?"),
        ("turns", "id", turns.moved, "id = ?"),
        ("turns", "answers", turns.moved, "answers = ?"),
        ("turns", "parent", turns.moved, "parent = ?"),
        ("windows", "head", turns.moved, "head = ?"),
        ("chunks", "turn", turns.moved, "turn = ?"),
        ("uses", "turn", turns.moved, "turn = ?"),
        ("sources", "turn", turns.moved, "turn = ?"),
        ("remembered", "turn", turns.moved, "turn = ?"),
        ("imported", "here", turns.moved, "here = ?"),
        ("drafts", "turn", turns.moved, "turn = ?"),
        ("drafts", "answers", turns.moved, "answers = ?"),
        ("draft_parts", "turn", turns.moved, "turn = ?"),
    ):
        steps = [(new, old) for old, new in moved.items()]
        db.executemany(f"UPDATE {table} SET {column} = ? WHERE {found_by}", steps)

    def here(turn: int) -> int:
        return turns.moved.get(turn, turn)

    db.execute("UPDATE sources SET start = NULL")  # then it is where the reply's first chunk begins
    for table, column, key in (
        ("live", "woken", ("window", "start")),
        ("asleep", "reason", ("window", "start")),
        ("remembered", "reason", ("turn", "chunk")),
        ("history", "detail", ("id",)),
    ):
        _retell(db, table, column, key, lambda told: reason_here(told, here))
    _retell(db, "entries", "snapshot", ("owner", "path"), lambda told: snapshot_here(told, here))
    versions = ("owner", "path", "version")
    _retell(db, "entry_versions", "snapshot", versions, lambda told: snapshot_here(told, here))
    db.execute("DELETE FROM imports")
    db.execute("UPDATE memory SET next_turn = ?, next_position = ?", (turns.end, places.end))


def _retell(
    db: Connection, table: str, column: str, key: Sequence[str], retold: Callable[[Any], Json]
) -> None:
    """What a column tells in JSON, with the ids as they are now."""
    rows = db.execute(f"SELECT {column}, {', '.join(key)} FROM {table} WHERE {column} IS NOT NULL").fetchall()
    where = " AND ".join(f"{name} = ?" for name in key)
    db.executemany(
        f"UPDATE {table} SET {column} = ? WHERE {where}",
        [(pack_json(retold(json.loads(text))), *found) for text, *found in rows],
    )
