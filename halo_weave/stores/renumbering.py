"""Under which ids what is imported will be known here. It decides; the store looks up and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import StoreFull
from halo_weave.stores.exchange import LIMIT, ExportHeader, TurnIn

FAR = 1 << 40  # ids between two turns that no conversation leaves out
Here = Callable[[int], int | None]  # the id here of a turn of the file


class Shift(NamedTuple):
    """How far ids move from the file to here."""

    turns: int
    positions: int


NO_SHIFT = Shift(0, 0)


class IdLedger(Protocol):
    """What a store tells of its ids, and keeps, within the transaction of one batch."""

    def counters(self) -> tuple[int, int]:
        """The next turn and the next position."""

    def is_free(self, turn: int, start: int, stop: int) -> bool:
        """Whether no turn has this id, and no chunk any of these positions."""

    def earlier(self, source: str, turn: int) -> Iterable[tuple[int, int]]:
        """The shifts of earlier imports from this memory that set ids apart for this turn."""

    def set_apart(
        self, source: str, first: int, end: int, shift: Shift, next_turn: int, next_position: int
    ) -> None:
        """Note the shift of the file's turns from `first` to before `end`, and count on from the next ids."""


class Renumbering:
    """The ids of one import. Turns that are new keep their ids if these are free here and not `FAR` from those given so
    far; else they get the next ones, in order. A gap that is `FAR` is closed, so that no file says how far ids advance."""

    def __init__(self, header: ExportHeader) -> None:
        self.kept = True
        self._header = header
        self._shift: Shift | None = None  # once ids were set apart for the rest of the file

    def shift(self, turn: TurnIn, ledger: IdLedger) -> Shift:
        """How far the ids of a turn must move that is not here yet."""
        shift = self._shift or self._of_earlier(turn, ledger) or self._set_apart(turn, ledger)
        self.kept &= shift == NO_SHIFT
        return shift

    def _of_earlier(self, turn: TurnIn, ledger: IdLedger) -> Shift | None:
        """That of an earlier import from there which did not bring this turn, if its place is still free."""
        start, stop = turn.reach
        next_turn, next_position = ledger.counters()
        for turns, positions in ledger.earlier(self._header.id, turn.turn):
            place = turn.turn + turns, start + positions, stop + positions
            if (
                place[0] < next_turn
                and place[1] >= 0
                and place[2] <= next_position
                and ledger.is_free(*place)
            ):
                return Shift(turns, positions)
        return None

    def _set_apart(self, turn: TurnIn, ledger: IdLedger) -> Shift:
        """Ids for this turn and all that follow in the file; for this turn alone if those that follow are far away."""
        next_turn, next_position = ledger.counters()
        start, stop = turn.reach
        end, end_position = self._header.next_turn, self._header.next_position
        whole = end - turn.turn < FAR and end_position - start < FAR
        if not whole:
            end, end_position = turn.turn + 1, stop
        kept = 0 <= turn.turn - next_turn < FAR and 0 <= start - next_position < FAR
        shift = NO_SHIFT if kept else Shift(next_turn - turn.turn, next_position - start)
        ends = end + shift.turns, end_position + shift.positions
        if max(ends) > LIMIT:
            raise StoreFull(
                "There are not enough ids left for this import: they end at 2^63. Run: halo-weave verify --repair"
            )
        ledger.set_apart(self._header.id, turn.turn, end, shift, *ends)
        self._shift = shift if whole else None
        return shift


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
