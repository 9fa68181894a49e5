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
    """`default` stands for every number that was never set."""

    def __init__(self, default: int, values: Ints | None = None) -> None:
        """`values`: of the numbers from 0 on."""
        self._default = default
        self.values = np.full(1024, default, np.int32) if values is None else values

    def __getitem__(self, numbers: Numbers) -> Numbers:
        known = (numbers >= 0) & (numbers < len(self.values))
        found = self.values[np.where(known, numbers, 0)].astype(np.int64)
        found[~known] = self._default
        return np.asarray(found)

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
PAUSE = 3600 * 1_000_000  # microseconds; what was said after a longer one is another conversation
NONE = -1
BLOCK = 20_000  # places that are looked at at once
REORDER_FROM = 1_000  # new chunks of a window, from which on all of it is put in order
CODES = {str(role): code for code, role in enumerate(ROLES)}
# Each is an array of its own: a search that looks at one of them reads nothing else.
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
    "told": np.float32,  # share of its words that tell something
    "role": np.int8,  # its place in `ROLES`
    "present": np.bool_,
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
        """The rows before and after the one that starts here; NONE where there is none."""
        at = bisect_left(self.starts, start)
        return self.rows[at - 1] if at else NONE, self.rows[at + 1] if at + 1 < len(self.rows) else NONE

    def drop(self, start: int) -> None:
        at = bisect_left(self.starts, start)
        del self.starts[at], self.rows[at]


class ChunkTable:
    """One row for each chunk, linked to its neighbours. The row of a deleted chunk stays and is marked."""

    def __init__(self) -> None:
        self._size = 0
        self._row = NumberMap(NONE)
        self._present = 0
        self.window_codes: dict[str, int] = {}
        self.speaker_codes: dict[str, int] = {}
        self._columns = {name: np.zeros(0, kind) for name, kind in COLUMNS.items()}  # with room to grow
        self._lines: dict[int, _WindowOrder] = {}  # of the windows in which something changed

    @classmethod
    def from_snapshot(
        cls,
        columns: Mapping[str, npt.NDArray[Any]],
        size: int,
        rows: NumberMap,
        windows: Sequence[str],
        speakers: Sequence[str],
    ) -> ChunkTable:
        """As it was written: every row of it is there. `windows` and `speakers` in the order of their codes."""
        outline = cls()
        outline._columns, outline._size, outline._present, outline._row = dict(columns), size, size, rows
        outline.window_codes = {name: code for code, name in enumerate(windows)}
        outline.speaker_codes = {name: code for code, name in enumerate(speakers)}
        return outline

    def snapshot(self) -> tuple[dict[str, npt.NDArray[Any]], list[str], list[str]]:
        """The columns of all rows that are there, in the order of the chunks, and the names of windows and speakers by
        code. What was said together is then read together."""
        kept = np.flatnonzero(self["present"])
        kept = kept[np.argsort(self["number"][kept], kind="stable")]
        columns = {name: self[name][kept] for name in COLUMNS}
        moved = np.full(self._size, NONE, np.int32)
        moved[kept] = np.arange(len(kept))
        for name in ("before", "after"):
            there = columns[name] >= 0
            columns[name][there] = moved[columns[name][there]]
        return columns, list(self.window_codes), list(self.speaker_codes)

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """One value for each row: a column of `COLUMNS`."""
        return self._columns[column][: self._size]

    def __len__(self) -> int:
        """Chunks that are there."""
        return self._present

    def put(self, places: Iterable[ChunkPlace]) -> None:
        """Chunks that are new, or were there and changed; a chunk's place never changes."""
        first, windows_before, rest = self._size, len(self.window_codes), iter(places)
        while block := list(islice(rest, BLOCK)):
            known = self.rows(np.array([place.number for place in block], np.int64)) >= 0
            self._add(list(compress(block, (~known).tolist())) if known.any() else block)
        new = np.arange(first, self._size)
        self._present += len(new)
        windows = self["window"][first:]
        order = np.argsort(windows, kind="stable")
        for rows in np.split(new[order], np.flatnonzero(np.diff(windows[order])) + 1) if len(new) else ():
            window = int(self["window"][rows[0]])
            self._put_in_line(window, rows, alone=window >= windows_before)

    def drop(self, numbers: Numbers) -> None:
        rows = self.rows(np.unique(numbers))
        for row in rows[rows >= 0].tolist():
            line, start = self._line(int(self["window"][row])), int(self["start"][row])
            earlier, later = line.beside(start)
            line.drop(start)
            self._row[self["number"][row : row + 1]] = NONE
            self._present -= 1
            self["present"][row] = False
            self["before"][row] = self["after"][row] = NONE
            self._link(earlier, later)

    def key(self, row: int) -> ChunkKey:
        role = ROLES[self["role"][row]]
        return ChunkKey(int(self["turn"][row]), int(self["chunk"][row]), role)

    def rows(self, numbers: Numbers) -> Rows:
        """Rows of chunks by number; -1 for one that is not there."""
        return self._row[numbers]

    def around(self, rows: Rows, reach: int) -> list[Rows]:
        """For each distance 1, -1, 2, -2, ... the neighbours of the rows; -1 where the conversation ends."""
        found = []
        ahead = back = rows
        for _ in range(reach):
            ahead = np.where(ahead >= 0, self["after"][ahead], np.int64(NONE))
            back = np.where(back >= 0, self["before"][back], np.int64(NONE))
            found += [ahead, back]
        return found

    def _add(self, fresh: Sequence[ChunkPlace]) -> None:
        def code(codes: dict[str, int], name: str) -> int:
            return codes.setdefault(name, len(codes))

        if not fresh:
            return
        first, self._size = self._size, self._size + len(fresh)
        room = len(self._columns["number"])
        if self._size > room:
            for name, column in self._columns.items():
                wider = np.zeros(max(1024, self._size * 3 // 2), column.dtype)
                wider[:first] = column[:first]
                self._columns[name] = wider
        new = {name: column[first : self._size] for name, column in self._columns.items()}
        numbers, turns, chunks, roles, windows, starts, said, speakers, told = zip(*fresh, strict=True)
        new["number"][:], new["turn"][:], new["chunk"][:] = numbers, turns, chunks
        new["start"][:], new["said"][:], new["told"][:] = starts, said, told
        new["role"][:] = [CODES[role] for role in roles]
        new["window"][:] = [code(self.window_codes, name) for name in windows]
        new["speaker"][:] = [code(self.speaker_codes, name) for name in speakers]
        new["before"][:] = new["after"][:] = NONE
        new["present"][:] = True
        self._row[new["number"]] = np.arange(first, self._size)

    def _put_in_line(self, window: int, rows: Rows, *, alone: bool) -> None:
        """Link new rows of a window with those around them. `alone`: it has no others."""
        if alone or len(rows) > REORDER_FROM:
            line = self._lines[window] = self._ordered(rows if alone else self._rows_in(window))
            self._link_all(np.array(line.rows, np.int64))
            return
        known, line = window in self._lines, self._line(window)
        for row in rows.tolist():
            start = int(self["start"][row])
            if known:
                line.put(start, row)
            earlier, later = line.beside(start)
            self._link(earlier, row)
            self._link(row, later)

    def _line(self, window: int) -> _WindowOrder:
        """The chunks of a window in order, put in order when they are first needed."""
        if window not in self._lines:
            self._lines[window] = self._ordered(self._rows_in(window))
        return self._lines[window]

    def _rows_in(self, window: int) -> Rows:
        return np.flatnonzero((self["window"] == window) & self["present"])

    def _ordered(self, rows: Rows) -> _WindowOrder:
        return _WindowOrder(self["start"][rows], rows)

    def _link(self, earlier: int, later: int) -> None:
        joined = earlier >= 0 and later >= 0 and abs(self["said"][later] - self["said"][earlier]) <= PAUSE
        if earlier >= 0:
            self["after"][earlier] = later if joined else NONE
        if later >= 0:
            self["before"][later] = earlier if joined else NONE

    def _link_all(self, order: Rows) -> None:
        joined = np.abs(np.diff(self["said"][order])) <= PAUSE
        self["before"][order] = np.concatenate([[NONE], np.where(joined, order[:-1], NONE)])
        self["after"][order] = np.concatenate([np.where(joined, order[1:], NONE), [NONE]])
