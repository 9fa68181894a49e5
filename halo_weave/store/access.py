"""Who may call which method of the store: each method declares a rule, and a handle with limits checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import wraps
from typing import Any, Self, TypeVar

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, NotYours, UnknownChunk, UnknownWindow
from halo_weave.store.database import Database
from halo_weave.store.records import OWNER, Access

UNDECLARED = "undeclared"
Method = TypeVar("Method", bound=Callable[..., Any])


def _rule(name: str, method: Method, check: Callable[..., object]) -> Method:
    """The method, with `check` before it if the handle has limits. `check` gets the handle and the first argument."""

    @wraps(method)
    def checked(self: StoreHandle, *args: Any, **named: Any) -> Any:
        if self.access is not None:
            check(self, args[0] if args else named.get("window_id"))
        return method(self, *args, **named)

    return _declared(name, checked)  # type: ignore[return-value]


def _declared(name: str, method: Method) -> Method:
    method.access_rule = name  # type: ignore[attr-defined]
    return method


def server_only(method: Method) -> Method:
    """For the server itself: a handle with limits refuses."""
    return _rule("server_only", method, _refuse)


def reads_window(method: Method) -> Method:
    """The first argument is a window that the person must be allowed to read."""
    return _rule("reads_window", method, lambda self, window_id: self.check_reads(window_id))


def writes_window(method: Method) -> Method:
    """The first argument is a window that the person must be allowed to write in."""
    return _rule("writes_window", method, lambda self, window_id: self.check_writes(window_id))


def owns_window(method: Method) -> Method:
    """The first argument is a window that must belong to the person."""
    return _rule("owns_window", method, lambda self, window_id: self.check_owns(window_id))


def checks_access(method: Method) -> Method:
    """The method's own body checks `self.access`, or leaves out what it does not allow."""
    return _declared("checks_access", method)


def own_data(method: Method) -> Method:
    """The method reads and writes only what belongs to the handle's person: notes, structured memory, settings."""
    return _declared("own_data", method)


def for_everyone(method: Method) -> Method:
    """The method shows nothing of what was said."""
    return _declared("for_everyone", method)


def _refuse(self: StoreHandle, _: object) -> None:
    raise NotYours("Only the owner of this server may do this.")


class StoreHandle:
    """A handle on the store. Without `access` it is the server's own and has no limits.

    A public method without a rule refuses for a handle with limits, so a new method is closed until somebody decides.
    """

    _db: Database
    _owner: str = OWNER  # person whose notes, structured memory and settings it reads and writes
    access: Access | None = None

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and callable(method) and not hasattr(method, "access_rule"):
                setattr(cls, name, _rule(UNDECLARED, method, _refuse))

    def with_access(self, access: Access) -> Self:
        """A handle on the same store that reads and changes only what `access` allows."""
        if self.access is not None:
            raise NotYours("Only the owner of this server may do this.")
        limited = copy(self)
        limited.access, limited._owner = access, access.person
        return limited

    def for_owner(self, owner: str) -> Self:
        """A handle on the notes, the structured memory and the settings of another person."""
        if self.access is not None and self.access.person != owner:
            raise NotYours("Only the owner of this server may do this.")
        other = copy(self)
        other._owner = owner
        return other

    # Checks

    def check_reads(self, window_id: str) -> None:
        if not self._may_read(window_id):
            raise UnknownWindow(f"There is no window {window_id!r}. To see them: halo-weave windows")

    def check_writes(self, window_id: str) -> None:
        self.check_reads(window_id)
        if self.access is not None and window_id not in self.access.writable:
            raise NotYours("This window is shared with you to read. Ask its owner.")

    def check_owns(self, window_id: str) -> None:
        self.check_reads(window_id)
        if self.access is not None and window_id not in self.access.own:
            raise NotYours("Only the owner of a window can do this.")

    def _may_read(self, window_id: str | None) -> bool:
        return self.access is None or window_id in self.access.readable

    def _readable_windows(self, windows: Iterable[str]) -> tuple[str, ...]:
        return tuple(window for window in windows if self._may_read(window))

    def _person(self, person: str | None) -> str | None:
        """The person whose data a call is about: with limits always the handle's own person."""
        return person if self.access is None else self.access.person

    def _turn_windows(self, turns: Iterable[int]) -> dict[int, str]:
        """The window where each of these turns was said; unknown turns are left out."""
        with self._db.querying() as db:
            sql = "SELECT id, window FROM turns WHERE id IN (SELECT value FROM json_each(?))"
            return dict(db.execute(sql, ("[" + ",".join(map(str, turns)) + "]",)).fetchall())

    def _readable_turns(self, turns: Iterable[int]) -> frozenset[int]:
        """Those of these turns that were said in a window that the person may read."""
        if self.access is None:
            return frozenset(turns)
        return frozenset(turn for turn, window in self._turn_windows(turns).items() if self._may_read(window))

    def _check_turn(self, turn_id: int) -> None:
        if turn_id not in self._readable_turns([turn_id]):
            raise BadInput(f"There is no turn {turn_id} in this memory.")

    def _check_chunk(self, key: ChunkKey) -> None:
        if key.turn_id not in self._readable_turns([key.turn_id]):
            raise UnknownChunk(f"There is no chunk {key} in this memory.")

    def _check_changes(self, keys: Iterable[ChunkKey]) -> None:
        """Refuse unless the person may write in every window where one of these chunks was said."""
        if self.access is None:
            return
        turns = {}
        for key in keys:
            self._check_chunk(key)
            turns[key.turn_id] = key
        for window in self._turn_windows(turns).values():
            self.check_writes(window)

    def _check_continues(self, window_id: str, turn_id: int | None) -> None:
        """A window may go on from a turn that was said in it or leads up to it, and a person's own window also from a
        turn of another of their own."""
        if self.access is None or not turn_id:
            return
        self._check_turn(turn_id)
        said_in = self._turn_windows([turn_id])[turn_id]
        if {window_id, said_in} <= self.access.own or said_in == window_id:
            return
        with self._db.querying() as db:
            leads_here = db.execute(
                """WITH RECURSIVE line(id) AS (
                       SELECT head FROM windows WHERE id = ? AND head IS NOT NULL
                       UNION ALL SELECT t.parent FROM line JOIN turns t USING (id) WHERE t.parent IS NOT NULL)
                   SELECT 1 FROM line WHERE id = ?""",
                (window_id, turn_id),
            ).fetchone()
        if leads_here is None:
            raise BadInput(f"There is no turn {turn_id} in this memory.")


for _name in ("with_access", "for_owner", "check_reads", "check_writes", "check_owns"):
    for_everyone(getattr(StoreHandle, _name))
