"""Turn ids and positions: choose ids for imported turns, and close gaps that a faulty file has made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import StoreFull
from halo_weave.store.database import Connection
from halo_weave.store.exchange_format import LIMIT, ExportHeader, TurnIn
from halo_weave.store.records import Json
from halo_weave.store.rows import pack_json

MAX_ID_GAP = 1 << 40  # a larger gap between two turns does not come from a conversation
LocalTurn = Callable[[int], int | None]  # the id here of a turn of the file


class Shift(NamedTuple):
    """By how much the ids of a file are moved here."""

    turns: int
    positions: int


NO_SHIFT = Shift(0, 0)


class IdAllocator(Protocol):
    """Reads and reserves ids of the store, within the transaction of one batch."""

    def counters(self) -> tuple[int, int]:
        """The next turn id and the next position."""

    def is_free(self, turn: int, start: int, stop: int) -> bool:
        """Whether no turn has this id, and no chunk one of these positions."""

    def earlier(self, source: str, turn: int) -> Iterable[tuple[int, int]]:
        """The shifts of earlier imports from the same memory that reserved ids for this turn."""

    def reserve_ids(
        self, source: str, first: int, end: int, shift: Shift, next_turn: int, next_position: int
    ) -> None:
        """Reserve ids for the file's turns from `first` to before `end`."""


class Renumbering:
    """The ids of one import.

    New turns keep their ids if these are free here and less than `MAX_ID_GAP` above the next ones; otherwise they get the
    next ones, in order. A larger gap is closed, so that no file can use up the ids.
    """

    def __init__(self, header: ExportHeader) -> None:
        self.kept = True
        self._header = header
        self._shift: Shift | None = None  # set when ids were reserved for the rest of the file

    def shift(self, turn: TurnIn, allocator: IdAllocator) -> Shift:
        """The shift of a turn that is not here yet."""
        shift = self._shift or self._earlier_shift(turn, allocator) or self._reserve(turn, allocator)
        self.kept &= shift == NO_SHIFT
        return shift

    def _earlier_shift(self, turn: TurnIn, allocator: IdAllocator) -> Shift | None:
        """The shift of an earlier import from the same memory that reserved ids for this turn, if they are still free."""
        start, stop = turn.reach
        next_turn, next_position = allocator.counters()
        for turns, positions in allocator.earlier(self._header.id, turn.turn):
            place = turn.turn + turns, start + positions, stop + positions
            if (
                place[0] < next_turn
                and place[1] >= 0
                and place[2] <= next_position
                and allocator.is_free(*place)
            ):
                return Shift(turns, positions)
        return None

    def _reserve(self, turn: TurnIn, allocator: IdAllocator) -> Shift:
        """Reserve ids for this turn and all later ones of the file; for this turn only, if the others are far away."""
        next_turn, next_position = allocator.counters()
        start, stop = turn.reach
        end, end_position = self._header.next_turn, self._header.next_position
        whole = end - turn.turn < MAX_ID_GAP and end_position - start < MAX_ID_GAP
        if not whole:
            end, end_position = turn.turn + 1, stop
        kept = 0 <= turn.turn - next_turn < MAX_ID_GAP and 0 <= start - next_position < MAX_ID_GAP
        shift = NO_SHIFT if kept else Shift(next_turn - turn.turn, next_position - start)
        ends = end + shift.turns, end_position + shift.positions
        if max(ends) > LIMIT:
            raise StoreFull(
                "There are not enough ids left for this import: they end at 2^63. Run: halo-weave verify --repair"
            )
        allocator.reserve_ids(self._header.id, turn.turn, end, shift, *ends)
        self._shift = shift if whole else None
        return shift


# Chunk keys inside imported data. If the turn of a key is not in the file, its id may belong to another turn here, so the
# key is replaced by None or left out.


def _local_key(text: Any, here: LocalTurn) -> str | None:
    try:
        turn, chunk, role = ChunkKey.parse(str(text))
    except ValueError:
        return None
    found = here(min(turn, LIMIT))
    return None if found is None else str(ChunkKey(found, chunk, role))


def reason_with_local_ids(why: dict[str, Any], here: LocalTurn) -> dict[str, Any]:
    """The reason of a resurrection or prune, with the ids of this memory."""
    reason = {name: _local_key(value, here) if name == "hit" else value for name, value in why.items()}
    if isinstance(why.get("woken"), dict):  # a deleted chunk that was live keeps the reason
        reason["woken"] = reason_with_local_ids(why["woken"], here)
    return {name: value for name, value in reason.items() if name != "hit" or value is not None}


def snapshot_with_local_ids(snapshot: Iterable[dict[str, Any]], here: LocalTurn) -> list[dict[str, Any]]:
    return [{**part, "key": _local_key(part["key"], here)} if "key" in part else part for part in snapshot]


class _CompactedIds(NamedTuple):
    """New ids by old ones, without those that stay the same, and the next free id."""

    moved: dict[int, int]
    end: int


def _without_gaps(taken: Iterable[tuple[int, int]], first: int, end: int) -> _CompactedIds:
    """Close the gaps. `taken`: used ids in order, each with the number of ids from there on. `first`: the first id, `end`: the
    next free one."""
    moved, stop, shift = {}, first, 0
    for start, count in taken:
        if start - stop >= MAX_ID_GAP:
            shift += start - stop
        stop = max(stop, start + count)
        if shift:
            moved[start] = start - shift
    return _CompactedIds(moved, (stop if end - stop >= MAX_ID_GAP else end) - shift)


def compacted_ids(db: Connection) -> tuple[_CompactedIds, _CompactedIds] | None:
    """Turns and positions without gaps; None if there is no gap to close."""
    next_turn, next_position = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
    turns = db.execute("SELECT id, 1 FROM turns UNION SELECT turn, 1 FROM drafts ORDER BY 1")
    places = db.execute("SELECT start, span FROM chunks UNION SELECT start, tokens FROM drafts ORDER BY 1")
    found = _without_gaps(turns, 1, next_turn), _without_gaps(places, 0, next_position)
    return None if (found[0].end, found[1].end) == (next_turn, next_position) else found


def compact_ids(db: Connection) -> None:
    """Change all references to turns and positions. Ids only become smaller, in order, so they never collide on the
    way."""
    found = compacted_ids(db)
    if found is None:
        return
    turns, places = found
    db.defer_references()
    # Rows of windows refer to the chunk's old position, so they are moved first.
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

    db.execute("UPDATE sources SET start = NULL")  # the position of the reply's first chunk
    for table, column, key in (
        ("live", "woken", ("window", "start")),
        ("asleep", "reason", ("window", "start")),
        ("remembered", "reason", ("turn", "chunk")),
        ("history", "detail", ("id",)),
    ):
        _rewrite_ids_in_json(db, table, column, key, lambda value: reason_with_local_ids(value, here))
    _rewrite_ids_in_json(
        db,
        "entries",
        "snapshot",
        ("owner", "path"),
        lambda value: snapshot_with_local_ids(value, here),
    )
    versions = ("owner", "path", "version")
    _rewrite_ids_in_json(
        db,
        "entry_versions",
        "snapshot",
        versions,
        lambda value: snapshot_with_local_ids(value, here),
    )
    db.execute("DELETE FROM imports")
    db.execute("UPDATE memory SET next_turn = ?, next_position = ?", (turns.end, places.end))


def _rewrite_ids_in_json(
    db: Connection, table: str, column: str, key: Sequence[str], convert: Callable[[Any], Json]
) -> None:
    """Replace ids in a JSON column."""
    rows = db.execute(f"SELECT {column}, {', '.join(key)} FROM {table} WHERE {column} IS NOT NULL").fetchall()
    where = " AND ".join(f"{name} = ?" for name in key)
    db.executemany(
        f"UPDATE {table} SET {column} = ? WHERE {where}",
        [(pack_json(convert(json.loads(text))), *found) for text, *found in rows],
    )
