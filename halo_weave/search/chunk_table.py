"""A table in memory of all chunks: window, speaker, time and neighbours."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.store.records import ChunkPlace, Numbers

Ints = npt.NDArray[np.int32]


class NumberMap:
    """An array from numbers of chunks to integers; numbers that were never set have the `default`."""

    def __init__(self, default: int, values: Ints | None = None) -> None:
        """`values`: the integers of the numbers 0, 1, 2, ..."""
        self._default = default
        self.values = np.full(1024, default, np.int32) if values is None else values

    def __getitem__(self, numbers: Numbers) -> Numbers:
        known = (numbers >= 0) & (numbers < len(self.values))
        values = self.values[np.where(known, numbers, 0)].astype(np.int64)
        values[~known] = self._default
        return np.asarray(values)

    def __setitem__(self, numbers: Numbers, values: Numbers | int) -> None:
        largest = int(numbers.max(initial=0))
        if largest >= len(self.values):
            wider = np.full(max(largest + 1, len(self.values) * 3 // 2), self._default, np.int32)
            wider[: len(self.values)] = self.values
            self.values = wider
        self.values[numbers] = values


Rows = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
ROLES = tuple(Role)
PAUSE = 3600 * 1_000_000  # microseconds; chunks with a longer pause between them are not neighbours
NONE = -1
BLOCK = 20_000  # chunks added at a time
REORDER_FROM = 1_000  # with more new chunks than this, all chunks of a window are sorted again
CODES = {str(role): code for code, role in enumerate(ROLES)}
# Each column is an array of its own, so that a search reads only the columns it needs.
COLUMNS: dict[str, type[np.generic]] = {
    "number": np.int64,
    "turn": np.int64,
    "chunk": np.int32,
    "start": np.int64,
    "said": np.int64,  # microseconds since 1970
    "before": np.int32,  # row of the chunk said right before, or NONE
    "after": np.int32,
    "window": np.int32,
    "speaker": np.int32,
    "told": np.float32,  # informative share: share of its words that state facts, see `core.informativeness`
    "role": np.int8,  # index in `ROLES`
    "present": np.bool_,  # False: the chunk was deleted
}


class _WindowOrder:
    """The chunks of one window in time order."""

    def __init__(self, starts: Rows, rows: Rows) -> None:
        order = np.argsort(starts, kind="stable")
        self.starts = array("q", starts[order].tobytes())
        self.rows = array("q", rows[order].tobytes())

    def put(self, start: int, row: int) -> None:
        at = bisect_left(self.starts, start)
        self.starts.insert(at, start)
        self.rows.insert(at, row)

    def beside(self, start: int) -> tuple[int, int]:
        """The rows before and after the chunk that starts at this position; NONE where there is none."""
        at = bisect_left(self.starts, start)
        return self.rows[at - 1] if at else NONE, self.rows[at + 1] if at + 1 < len(self.rows) else NONE

    def drop(self, start: int) -> None:
        at = bisect_left(self.starts, start)
        del self.starts[at], self.rows[at]


class ChunkTable:
    """One row for each chunk, linked to the rows of its neighbours. The row of a deleted chunk is kept, but not `present`."""

    def __init__(self) -> None:
        self._size = 0
        self._row = NumberMap(NONE)
        self._present = 0
        self.window_codes: dict[str, int] = {}
        self.speaker_codes: dict[str, int] = {}
        self._columns = {name: np.zeros(0, kind) for name, kind in COLUMNS.items()}  # longer than `_size`
        self._orders: dict[int, _WindowOrder] = {}  # of the windows that changed, by code

    @classmethod
    def from_snapshot(
        cls,
        columns: Mapping[str, npt.NDArray[Any]],
        size: int,
        rows: NumberMap,
        windows: Sequence[str],
        speakers: Sequence[str],
    ) -> ChunkTable:
        """The table from what `snapshot` returned, in which no row was deleted. `windows` and `speakers`: in the order of
        their codes."""
        table = cls()
        table._columns, table._size, table._present, table._row = dict(columns), size, size, rows
        table.window_codes = {name: code for code, name in enumerate(windows)}
        table.speaker_codes = {name: code for code, name in enumerate(speakers)}
        return table

    def snapshot(self) -> tuple[dict[str, npt.NDArray[Any]], list[str], list[str]]:
        """The columns without deleted rows, and the names of windows and speakers by code.

        The rows are sorted by the number of their chunk, so that neighbours are close to each other in the file.
        """
        kept = np.flatnonzero(self["present"])
        kept = kept[np.argsort(self["number"][kept], kind="stable")]
        columns = {name: self[name][kept] for name in COLUMNS}
        new_rows = np.full(self._size, NONE, np.int32)
        new_rows[kept] = np.arange(len(kept))
        for name in ("before", "after"):
            linked = columns[name] >= 0
            columns[name][linked] = new_rows[columns[name][linked]]
        return columns, list(self.window_codes), list(self.speaker_codes)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """A column by its name in `COLUMNS`: one value for each row."""
        return self._columns[column][: self._size]

    def __len__(self) -> int:
        """The number of chunks, without deleted ones."""
        return self._present

    def put(self, places: Iterable[ChunkPlace]) -> None:
        """Add chunks. Those that have a row already are skipped, since a chunk's place never changes."""
        first, windows_before, remaining = self._size, len(self.window_codes), iter(places)
        while block := list(islice(remaining, BLOCK)):
            known = self.rows(np.array([place.number for place in block], np.int64)) >= 0
            self._add(list(compress(block, (~known).tolist())) if known.any() else block)
        new = np.arange(first, self._size)
        self._present += len(new)
        windows = self["window"][first:]
        order = np.argsort(windows, kind="stable")
        for rows in np.split(new[order], np.flatnonzero(np.diff(windows[order])) + 1) if len(new) else ():
            window = int(self["window"][rows[0]])
            self._link_new(window, rows, new_window=window >= windows_before)

    def drop(self, numbers: Numbers) -> None:
        rows = self.rows(np.unique(numbers))
        for row in rows[rows >= 0].tolist():
            order, start = self._order(int(self["window"][row])), int(self["start"][row])
            earlier, later = order.beside(start)
            order.drop(start)
            self._row[self["number"][row : row + 1]] = NONE
            self._present -= 1
            self["present"][row] = False
            self["before"][row] = self["after"][row] = NONE
            self._link(earlier, later)

    def key(self, row: int) -> ChunkKey:
        role = ROLES[self["role"][row]]
        return ChunkKey(int(self["turn"][row]), int(self["chunk"][row]), role)

    def rows(self, numbers: Numbers) -> Rows:
        """The rows of chunks by their numbers; -1 for an unknown or deleted chunk."""
        return self._row[numbers]

    def around(self, rows: Rows, distance: int) -> list[Rows]:
        """The neighbours of the rows 1 place after them, 1 before, 2 after, 2 before, ... up to `distance`; -1 where there
        is none."""
        neighbours = []
        after = before = rows
        for _ in range(distance):
            after = np.where(after >= 0, self["after"][after], np.int64(NONE))
            before = np.where(before >= 0, self["before"][before], np.int64(NONE))
            neighbours += [after, before]
        return neighbours

    def _add(self, places: Sequence[ChunkPlace]) -> None:
        def code(codes: dict[str, int], name: str) -> int:
            return codes.setdefault(name, len(codes))

        if not places:
            return
        first, self._size = self._size, self._size + len(places)
        capacity = len(self._columns["number"])
        if self._size > capacity:
            for name, column in self._columns.items():
                wider = np.zeros(max(1024, self._size * 3 // 2), column.dtype)
                wider[:first] = column[:first]
                self._columns[name] = wider
        new = {name: column[first : self._size] for name, column in self._columns.items()}
        numbers, turns, chunks, roles, windows, starts, said, speakers, informative = zip(
            *places, strict=True
        )
        new["number"][:], new["turn"][:], new["chunk"][:] = numbers, turns, chunks
        new["start"][:], new["said"][:], new["told"][:] = starts, said, informative
        new["role"][:] = [CODES[role] for role in roles]
        new["window"][:] = [code(self.window_codes, name) for name in windows]
        new["speaker"][:] = [code(self.speaker_codes, name) for name in speakers]
        new["before"][:] = new["after"][:] = NONE
        new["present"][:] = True
        self._row[new["number"]] = np.arange(first, self._size)

    def _link_new(self, window: int, rows: Rows, *, new_window: bool) -> None:
        """Link new rows of a window with their neighbours. `new_window`: the window has no other rows."""
        if new_window or len(rows) > REORDER_FROM:
            order = self._orders[window] = self._sorted(rows if new_window else self._rows_in(window))
            self._link_all(np.array(order.rows, np.int64))
            return
        known, order = window in self._orders, self._order(window)
        for row in rows.tolist():
            start = int(self["start"][row])
            if known:
                order.put(start, row)
            earlier, later = order.beside(start)
            self._link(earlier, row)
            self._link(row, later)

    def _order(self, window: int) -> _WindowOrder:
        """The chunks of a window in time order. They are sorted when this is first called for the window."""
        if window not in self._orders:
            self._orders[window] = self._sorted(self._rows_in(window))
        return self._orders[window]

    def _rows_in(self, window: int) -> Rows:
        return np.flatnonzero((self["window"] == window) & self["present"])

    def _sorted(self, rows: Rows) -> _WindowOrder:
        return _WindowOrder(self["start"][rows], rows)

    def _link(self, earlier: int, later: int) -> None:
        """Make two rows neighbours, unless one is NONE or the pause between them is too long."""
        joined = earlier >= 0 and later >= 0 and abs(self["said"][later] - self["said"][earlier]) <= PAUSE
        if earlier >= 0:
            self["after"][earlier] = later if joined else NONE
        if later >= 0:
            self["before"][later] = earlier if joined else NONE

    def _link_all(self, order: Rows) -> None:
        joined = np.abs(np.diff(self["said"][order])) <= PAUSE
        self["before"][order] = np.concatenate([[NONE], np.where(joined, order[:-1], NONE)])
        self["after"][order] = np.concatenate([np.where(joined, order[1:], NONE), [NONE]])
