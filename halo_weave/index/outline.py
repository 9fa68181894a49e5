"""Where every chunk of memory stands: who said it, when, and what was said right before and after it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.index.numbers import NumberMap
from halo_weave.records import Numbers, Place

Rows = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
ROLES = tuple(Role)
PAUSE = 3600 * 1_000_000  # microseconds; what was said after a longer one is another conversation
NONE = -1
BLOCK = 20_000  # places that are looked at at once
MANY = 1_000  # new chunks of a window, from which on all of it is put in order
CODES = {str(role): code for code, role in enumerate(ROLES)}
# Each is an array of its own: a search that looks at one of them reads nothing else.
COLUMNS: dict[str, type[np.generic]] = {
    "number": np.int64,
    "turn": np.int64,
    "chunk": np.int64,
    "start": np.int64,
    "said": np.int64,  # microseconds since 1970
    "before": np.int64,  # row of the chunk said right before, or NONE
    "after": np.int64,
    "window": np.int32,
    "speaker": np.int32,
    "told": np.float32,  # share of its words that tell something
    "role": np.int8,  # its place in `ROLES`
    "present": np.bool_,
}


class _Line:
    """The chunks of one window in time order."""

    def __init__(self) -> None:
        self.starts = array("q")
        self.rows = array("q")

    def put(self, starts: Rows, rows: Rows) -> None:
        """Many at once."""
        all_starts = np.concatenate([np.array(self.starts, np.int64), starts])
        order = np.argsort(all_starts, kind="stable")
        self.rows = array("q", np.concatenate([np.array(self.rows, np.int64), rows])[order].tobytes())
        self.starts = array("q", all_starts[order].tobytes())


class Outline:
    """One row for each chunk, linked to its neighbours. The row of a deleted chunk stays and is marked."""

    def __init__(self) -> None:
        self._size = 0
        self._row = NumberMap(NONE)
        self._present = 0
        self.window_codes: dict[str, int] = {}
        self.speaker_codes: dict[str, int] = {}
        self._columns = {name: np.zeros(0, kind) for name, kind in COLUMNS.items()}  # with room to grow
        self._lines: dict[int, _Line] = {}

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """One value for each row: a column of `COLUMNS`."""
        return self._columns[column][: self._size]

    def __len__(self) -> int:
        """Chunks that are there."""
        return self._present

    def put(self, places: Iterable[Place]) -> None:
        """Chunks that are new, or were there and changed; a chunk's place never changes."""
        first, rest = self._size, iter(places)
        while block := list(islice(rest, BLOCK)):
            known = self.rows(np.array([place.number for place in block], np.int64)) >= 0
            self._add(list(compress(block, (~known).tolist())) if known.any() else block)
        new = np.arange(first, self._size)
        self._present += len(new)
        windows = self["window"][first:]
        order = np.argsort(windows, kind="stable")
        for rows in np.split(new[order], np.flatnonzero(np.diff(windows[order])) + 1) if len(new) else ():
            line = self._lines.setdefault(int(self["window"][rows[0]]), _Line())
            if len(rows) > MANY:
                line.put(self["start"][rows], rows)
                self._link_all(np.array(line.rows, np.int64))
                continue
            for row in rows.tolist():
                start = int(self["start"][row])
                at = bisect_left(line.starts, start)
                line.starts.insert(at, start)
                line.rows.insert(at, row)
                self._link(line.rows[at - 1] if at else NONE, row)
                self._link(row, line.rows[at + 1] if at + 1 < len(line.rows) else NONE)

    def drop(self, numbers: Numbers) -> None:
        rows = self.rows(np.unique(numbers))
        for row in rows[rows >= 0].tolist():
            self._row[self["number"][row : row + 1]] = NONE
            self._present -= 1
            self["present"][row] = False
            line = self._lines[int(self["window"][row])]
            at = bisect_left(line.starts, int(self["start"][row]))
            del line.starts[at], line.rows[at]
            self["before"][row] = self["after"][row] = NONE
            earlier = line.rows[at - 1] if at else NONE
            later = line.rows[at] if at < len(line.rows) else NONE
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
            ahead = np.where(ahead >= 0, self["after"][ahead], NONE)
            back = np.where(back >= 0, self["before"][back], NONE)
            found += [ahead, back]
        return found

    def _add(self, fresh: Sequence[Place]) -> None:
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
