"""Under which ids what is imported will be known here. It decides; the store looks up and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import StoreFull
from halo_weave.stores.exchange import LIMIT, ExportHeader, TurnIn

Here = Callable[[int], int | None]  # the id here of a turn of the file


class Shift(NamedTuple):
    """How far ids move from the file to here."""

    turns: int
    positions: int


NO_SHIFT = Shift(0, 0)


class IdLedger(Protocol):
    """What a store tells of its ids, and keeps, within the transaction of one batch."""

    def counters(self) -> tuple[int, int, int]:
        """The next turn, the next position, and the first turn id that no clear wiped."""

    def is_free(self, turn: int, start: int, stop: int) -> bool:
        """Whether no turn has this id, and no chunk any of these positions."""

    def earlier(self, source: str, turn: int) -> Iterable[tuple[int, int]]:
        """The shifts of earlier imports from this memory that set ids apart for this turn."""

    def set_apart(
        self, source: str, first: int, end: int, shift: Shift, next_turn: int, next_position: int
    ) -> None:
        """Note the shift of the file's turns from `first` to before `end`, and count on from the next ids."""


class Renumbering:
    """The ids of one import. Turns that are new keep their ids if these are free here; else all get new ones, in order."""

    def __init__(self, header: ExportHeader, own: str) -> None:
        """`own`: the name of the memory that takes it in."""
        self.kept = True
        self._header, self._own = header, own
        self._shift: Shift | None = None  # once ids were set apart

    def shift(self, turn: TurnIn, ledger: IdLedger) -> Shift:
        """How far the ids of a turn must move that is not here yet."""
        next_turn, next_position, cleared = ledger.counters()
        memory, _, _ = turn.first_known_as(self._header.id)
        # The ids of this memory's own past are free for it again after a clear.
        if self._header.id == self._own == memory and turn.turn < cleared and _free(turn, NO_SHIFT, ledger):
            return NO_SHIFT
        shift = self._shift or self._of_earlier(turn, ledger)
        if shift is None:
            shift = self._shift = self._set_apart(turn, next_turn, next_position, ledger)
        self.kept &= shift == NO_SHIFT
        return shift

    def _of_earlier(self, turn: TurnIn, ledger: IdLedger) -> Shift | None:
        """That of an earlier import from there which did not bring this turn, if its place is still free."""
        for found in ledger.earlier(self._header.id, turn.turn):
            if _free(turn, Shift(*found), ledger):
                return Shift(*found)
        return None

    def _set_apart(self, turn: TurnIn, next_turn: int, next_position: int, ledger: IdLedger) -> Shift:
        """Ids for this turn and all that follow in the file."""
        start, _ = turn.reach
        free = turn.turn >= next_turn and start >= next_position
        shift = NO_SHIFT if free else Shift(next_turn - turn.turn, next_position - start)
        ends = (self._header.next_turn + shift.turns, self._header.next_position + shift.positions)
        if max(ends) > LIMIT:
            raise StoreFull("There are not enough ids left for this import: they end at 2^63.")
        ledger.set_apart(self._header.id, turn.turn, self._header.next_turn, shift, *ends)
        return shift


def _free(turn: TurnIn, shift: Shift, ledger: IdLedger) -> bool:
    start, stop = turn.reach
    return ledger.is_free(turn.turn + shift.turns, start + shift.positions, stop + shift.positions)


# Keys inside of what is imported. None, or left out, if the turn is not in the file: here its id may be another turn's.


def _key_here(text: Any, here: Here) -> str | None:
    try:
        turn, chunk, role = ChunkKey.parse(str(text))
    except ValueError:
        return None
    found = here(min(turn, LIMIT))
    return None if found is None else str(ChunkKey(found, chunk, role))


def reason_here(why: dict[str, Any], here: Here) -> dict[str, Any]:
    """Why a chunk woke up or sleeps, its hit by the key it has here."""
    told = {name: _key_here(value, here) if name == "hit" else value for name, value in why.items()}
    if isinstance(why.get("woken"), dict):  # a live chunk that was deleted keeps why it was live
        told["woken"] = reason_here(why["woken"], here)
    return {name: value for name, value in told.items() if name != "hit" or value is not None}


def snapshot_here(snapshot: Iterable[dict[str, Any]], here: Here) -> list[dict[str, Any]]:
    return [{**part, "key": _key_here(part["key"], here)} if "key" in part else part for part in snapshot]
