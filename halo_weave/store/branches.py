"""Branches: which turn follows which, and which turns are on a window's current branch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput
from halo_weave.store.access import StoreHandle, checks_access, reads_window, writes_window
from halo_weave.store.database import Connection
from halo_weave.store.encoding import micros, moment
from halo_weave.store.records import TurnRecord
from halo_weave.store.rows import (
    READABLE_WINDOWS,
    check_window,
    json_array,
    pack_json,
    record_events,
)
from halo_weave.store.visibility import hide_chunks, restore_chunks

TURN = "t.id, t.window, t.role, t.answers, t.parent, t.speaker, t.said, t.aside"
_FIRST = datetime(1, 1, 2, tzinfo=UTC)
MAX_SAME_HASH = 64  # turns with the same hash that are returned


class SqlBranches(StoreHandle):
    @writes_window
    def switch(self, window_id: str, head: int, *, now: datetime) -> tuple[str, ...]:
        """Make this turn the window's last one; 0: the window has none. Returns the windows where live chunks changed."""
        self._check_continues(window_id, head)
        with self._db.writing(durable=True) as db:
            check_window(db, window_id)
            db.check_lease(window_id)
            if head:
                _turn_record(db, head)
            windows = move_head(db, window_id, head or None, micros(now))
        return self._readable_windows(windows)

    @reads_window
    def branch(self, window_id: str, after: int = 0) -> list[TurnRecord]:
        """The turns of the current branch with a later id than `after`, in order."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""WITH RECURSIVE line(id, parent) AS (
                        SELECT t.id, t.parent FROM windows w JOIN turns t ON t.id = w.head WHERE w.id = ?1 AND t.id > ?2
                        UNION ALL SELECT t.id, t.parent FROM line JOIN turns t ON t.id = line.parent WHERE t.id > ?2)
                    SELECT {TURN} FROM line JOIN turns t ON t.id = line.id ORDER BY t.id""",
                (window_id, after),
            ).fetchall()
        return [_turn(row) for row in rows]

    @checks_access
    def turn_record(self, turn_id: int) -> TurnRecord:
        self._check_turn(turn_id)
        with self._db.reading() as db:
            return _turn_record(db, turn_id)

    @checks_access
    def timeline(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        window: str | None = None,
        after: tuple[datetime, int] | None = None,
        limit: int = 100,
        reader: str | None = None,
    ) -> list[TurnRecord]:
        """Turns of current branches in order of time. `after`: time and id of the last known turn."""
        reader = self._person(reader)
        among = "" if reader is None else f"AND t.window IN ({READABLE_WINDOWS})"
        begin = max(micros(one) for one in (since, after and after[0], _FIRST) if one)
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {TURN} FROM turns t
                    WHERE t.aside = 0 AND t.said >= :begin AND (:until IS NULL OR t.said <= :until)
                        AND (:window IS NULL OR t.window = :window) AND (t.said > :begin OR t.id > :last) {among}
                    ORDER BY t.said, t.id LIMIT :limit""",
                {
                    "begin": begin,
                    "until": micros(until) if until else None,
                    "window": window,
                    "last": after[1] if after and micros(after[0]) == begin else 0,
                    "limit": limit,
                    "reader": reader,
                },
            ).fetchall()
        return [_turn(row) for row in rows]

    @checks_access
    def followers(self, turn_id: int, window_id: str) -> list[TurnRecord]:
        """The turns that follow this one, in order; for 0, the first turns of the window."""
        if turn_id:
            self._check_turn(turn_id)
        where = "t.parent = ?" if turn_id else "t.parent IS NULL AND t.window = ?"
        with self._db.querying() as db:
            rows = db.execute(
                f"SELECT {TURN} FROM turns t WHERE {where} ORDER BY t.id", (turn_id or window_id,)
            ).fetchall()
        return [turn for turn in map(_turn, rows) if self._may_read(turn.window)]

    @checks_access
    def siblings(self, turns: Iterable[int]) -> dict[int, list[int]]:
        """For each of these turns all versions of it, itself included, in order."""
        with self._db.querying() as db:
            rows = db.execute(
                """SELECT t.id, s.id FROM json_each(?1) j JOIN turns t ON t.id = CAST(j.value AS BIGINT)
                   JOIN turns s ON s.parent = t.parent
                   UNION ALL
                   SELECT t.id, s.id FROM json_each(?1) j JOIN turns t ON t.id = CAST(j.value AS BIGINT) AND t.parent IS NULL
                   JOIN turns s INDEXED BY turns_by_parent ON s.parent IS NULL AND s.window = t.window
                   ORDER BY 1, 2""",
                (json_array(self._readable_turns(turns)),),
            ).fetchall()
        readable = self._readable_turns(sibling for _, sibling in rows)
        found: dict[int, list[int]] = {}
        for turn, sibling in rows:
            if sibling in readable:
                found.setdefault(turn, []).append(sibling)
        return found

    @checks_access
    def turns_with_hash(
        self, wanted_hash: int, *, window: str | None = None, reader: str | None = None
    ) -> list[TurnRecord]:
        """Turns with this hash, newest first; at most a few dozen."""
        reader = self._person(reader)
        among = "" if reader is None else f"AND t.window IN ({READABLE_WINDOWS})"
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {TURN} FROM turns t WHERE t.mark = :mark AND (:window IS NULL OR t.window = :window) {among}
                    ORDER BY t.id DESC LIMIT {MAX_SAME_HASH}""",
                {"mark": wanted_hash, "window": window, "reader": reader},
            ).fetchall()
        return [_turn(row) for row in rows]

    @checks_access
    def hashes_before(self, turn_id: int, limit: int) -> list[tuple[int, int | None]]:
        """Ids and hashes of a turn and of those before it on its branch, backwards."""
        if not self._readable_turns([turn_id]):
            return []
        with self._db.querying() as db:
            return db.execute(
                """WITH RECURSIVE line(id, parent, mark, rest) AS (
                       SELECT id, parent, mark, ?2 FROM turns WHERE id = ?1
                       UNION ALL SELECT t.id, t.parent, t.mark, line.rest - 1
                       FROM line JOIN turns t ON t.id = line.parent WHERE line.rest > 1)
                   SELECT id, mark FROM line""",
                (turn_id, limit),
            ).fetchall()


def attach_turn(
    db: Connection,
    window_id: str,
    turn: int,
    answers: int | None,
    after: int | None,
    when: int,
    *,
    first: int | None = None,
) -> None:
    """Attach a turn that was just stored, and make it the window's last one.

    Without `after`, its place on the current branch follows from its id, since another process may have stored a later
    one. A second answer to a question replaces the first one. `first`: the turn that it follows if the window has none.
    """
    head = db.execute("SELECT head FROM windows WHERE id = ?", (window_id,)).fetchone()[0]
    if after is None and answers is not None and _answered(db, head, answers):
        after = answers
    if after is not None:
        if after:
            _turn_record(db, after)
        if after >= turn:
            raise BadInput(f"Turn {turn} cannot follow turn {after}, which has a later id.")
        db.execute("UPDATE turns SET parent = ? WHERE id = ?", (after or None, turn))
        move_head(db, window_id, turn, when)
        return
    parent, later = first if head is None else head, None
    while parent is not None and parent > turn:
        later, parent = parent, _parent(db, parent)
    db.execute("UPDATE turns SET parent = ? WHERE id = ?", (parent, turn))
    if later is None:
        db.execute("UPDATE windows SET head = ? WHERE id = ?", (turn, window_id))
    else:
        db.execute("UPDATE turns SET parent = ? WHERE id = ?", (turn, later))


def move_head(db: Connection, window_id: str, head: int | None, when: int) -> tuple[str, ...]:
    """Make another turn the window's last one. Turns that are on no current branch any more are set aside; those on one
    again return. Returns the windows where one of their chunks was or is live."""
    old = db.execute("SELECT head FROM windows WHERE id = ?", (window_id,)).fetchone()[0]
    leaving, coming = _diverging_turns(db, old, head)
    db.execute("UPDATE windows SET head = ? WHERE id = ?", (head, window_id))
    shared = _last_shared(db, window_id, leaving)
    gone = [turn for turn in leaving if turn > shared]
    for table, column in (("turns", "id"), ("chunks", "turn")):
        for turns, aside in ((gone, 1), (coming, 0)):
            db.execute(
                f"UPDATE {table} SET aside = {aside} WHERE {column} IN (SELECT value FROM json_each(?))",
                (json_array(turns),),
            )
    hidden, restored = _chunks(db, gone), _chunks(db, coming)
    windows = [
        *hide_chunks(db, _chunks(db, leaving), "aside", when, only=window_id),
        *hide_chunks(db, hidden, "aside", when),
        *restore_chunks(db, restored, here=window_id),
    ]
    detail = pack_json({"head": str(head or 0)})
    record_events(db, [(window_id, number, when, "aside", detail) for number in hidden])
    record_events(db, [(window_id, number, when, "returned", detail) for number in restored])
    return tuple(dict.fromkeys(windows))


def recompute_aside(db: Connection, when: int) -> None:
    """Set each turn aside or not, as it follows from the windows' last turns."""
    wrong = misplaced_turns(db)
    for aside in (1, 0):
        turns = [turn for turn, on in wrong if on != aside]
        for table, column in (("turns", "id"), ("chunks", "turn")):
            db.execute(
                f"UPDATE {table} SET aside = {aside} WHERE {column} IN (SELECT value FROM json_each(?))",
                (json_array(turns),),
            )
        if aside:
            hide_chunks(db, _chunks(db, turns), "aside", when)
        else:
            restore_chunks(db, _chunks(db, turns))


def misplaced_turns(db: Connection) -> list[tuple[int, int]]:
    """Turns that are wrongly aside or not aside, each with whether it is on a current branch."""
    return db.execute(
        """WITH RECURSIVE line(id) AS (
               SELECT head FROM windows WHERE head IS NOT NULL
               UNION SELECT t.parent FROM line JOIN turns t ON t.id = line.id WHERE t.parent IS NOT NULL)
           SELECT t.id, line.id IS NOT NULL FROM turns t LEFT JOIN line ON line.id = t.id
           WHERE (t.aside = 1) = (line.id IS NOT NULL)
               OR EXISTS (SELECT 1 FROM chunks c WHERE c.turn = t.id AND c.aside <> t.aside)"""
    ).fetchall()


def _answered(db: Connection, head: int | None, question: int) -> bool:
    """Whether a turn of the branch that ends at `head` answers this one."""
    while head is not None and head > question:
        answers, head = db.execute("SELECT answers, parent FROM turns WHERE id = ?", (head,)).fetchone()
        if answers == question:
            return True
    return False


def _diverging_turns(db: Connection, old: int | None, new: int | None) -> tuple[list[int], list[int]]:
    """The turns from each of two down to where their branches meet. A parent's id is always smaller."""
    leaving: list[int] = []
    coming: list[int] = []
    while old != new:
        if new is None or (old is not None and old > new):
            assert old is not None
            leaving.append(old)
            old = _parent(db, old)
        else:
            coming.append(new)
            new = _parent(db, new)
    return leaving, coming


def _last_shared(db: Connection, window_id: str, leaving: Sequence[int]) -> int:
    """The last of the leaving turns that is on another window's current branch; 0: none."""
    return int(
        db.execute(
            """SELECT coalesce(max(id), 0) FROM (
                   SELECT head AS id FROM windows WHERE head IN (SELECT value FROM json_each(?1)) AND id <> ?2
                   UNION ALL SELECT parent FROM turns
                   WHERE parent IN (SELECT value FROM json_each(?1)) AND aside = 0
                   AND id NOT IN (SELECT value FROM json_each(?1))) AS through""",
            (json_array(leaving), window_id),
        ).fetchone()[0]
    )


def _chunks(db: Connection, turns: Sequence[int]) -> list[int]:
    rows = db.execute(
        "SELECT number FROM chunks WHERE turn IN (SELECT value FROM json_each(?)) AND merged IS NULL",
        (json_array(turns),),
    )
    return [number for (number,) in rows]


def _parent(db: Connection, turn: int) -> int | None:
    return db.execute("SELECT parent FROM turns WHERE id = ?", (turn,)).fetchone()[0]  # type: ignore[no-any-return]


def _turn_record(db: Connection, turn: int) -> TurnRecord:
    row = db.execute(f"SELECT {TURN} FROM turns t WHERE t.id = ?", (turn,)).fetchone()
    if row is None:
        raise BadInput(f"There is no turn {turn} in this memory.")
    return _turn(row)


def _turn(row: tuple[Any, ...]) -> TurnRecord:
    turn, window, role, answers, parent, speaker, said, aside = row
    return TurnRecord(turn, window, Role(role), answers, parent, speaker, moment(said), bool(aside))
