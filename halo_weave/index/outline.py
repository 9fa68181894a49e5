"""Where every chunk of memory stands: who said it, when, and what was said right before and after it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
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
COLUMNS = np.dtype(
    [
        ("number", np.int64),
        ("said", np.int64),  # microseconds since 1970
        ("before", np.int64),  # row of the chunk said right before, or NONE
        ("after", np.int64),
        ("window", np.int32),
        ("speaker", np.int32),
        ("told", np.float32),  # share of its words that tell something
        ("role", np.int8),  # its place in `ROLES`
        ("present", bool),
    ]
)


@dataclass(slots=True)
class _Line:
    """The chunks of one window in time order."""

    starts: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Outline:
    """One row for each chunk, linked to its neighbours. The row of a deleted chunk stays and is marked."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._row = NumberMap(NONE)
        self._present = 0
        self.window_codes: dict[str, int] = {}
        self.speaker_codes: dict[str, int] = {}
        self._table = np.zeros(0, COLUMNS)  # with room to grow
        self._lines: dict[int, _Line] = {}

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        """One value for each row: a column of `COLUMNS`."""
        return np.asarray(self._table[column][: len(self.places)])

    def __len__(self) -> int:
        """Chunks that are there."""
        return self._present

    def put(self, places: Sequence[Place]) -> None:
        """Chunks that are new, or were there and changed; a chunk's place never changes."""
        known = self.rows(np.array([place.number for place in places], np.int64)) >= 0
        fresh = [place for place, here in zip(places, known.tolist(), strict=True) if not here]
        if not fresh:
            return
        first = len(self.places)
        self.places.extend(fresh)
        self._grow(fresh)
        rows = range(first, first + len(fresh))
        self._row[self["number"][first:]] = np.arange(first, first + len(fresh))
        self._present += len(fresh)
        touched: dict[int, list[int]] = {}
        for row in rows:
            touched.setdefault(int(self["window"][row]), []).append(row)
        for window, new in touched.items():
            line = self._lines.setdefault(window, _Line())
            if len(new) > 1000:
                everything = sorted([*line.rows, *new], key=lambda row: self.places[row].start)
                line.rows = everything
                line.starts = [self.places[row].start for row in everything]
                self._link_all(everything)
            else:
                for row in new:
                    at = bisect_left(line.starts, self.places[row].start)
                    line.starts.insert(at, self.places[row].start)
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
            at = bisect_left(line.starts, self.places[row].start)
            del line.starts[at], line.rows[at]
            self["before"][row] = self["after"][row] = NONE
            earlier = line.rows[at - 1] if at else NONE
            later = line.rows[at] if at < len(line.rows) else NONE
            self._link(earlier, later)

    def key(self, row: int) -> ChunkKey:
        place = self.places[row]
        return ChunkKey(place.turn_id, place.chunk_id, Role(place.role))

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

    def _grow(self, fresh: Sequence[Place]) -> None:
        """Fill the rows of places that were just added."""

        def code(codes: dict[str, int], name: str) -> int:
            return codes.setdefault(name, len(codes))

        first, size = len(self.places) - len(fresh), len(self.places)
        if size > len(self._table):
            wider = np.zeros(max(1024, size * 3 // 2), COLUMNS)
            wider[:first] = self._table[:first]
            self._table = wider
        new = self._table[first:size]
        new["number"] = [place.number for place in fresh]
        new["said"] = [place.said for place in fresh]
        new["told"] = [place.told for place in fresh]
        new["role"] = [ROLES.index(Role(place.role)) for place in fresh]
        new["window"] = [code(self.window_codes, place.window) for place in fresh]
        new["speaker"] = [code(self.speaker_codes, place.speaker) for place in fresh]
        new["before"] = new["after"] = NONE
        new["present"] = True

    def _link(self, earlier: int, later: int) -> None:
        joined = earlier >= 0 and later >= 0 and abs(self["said"][later] - self["said"][earlier]) <= PAUSE
        if earlier >= 0:
            self["after"][earlier] = later if joined else NONE
        if later >= 0:
            self["before"][later] = earlier if joined else NONE

    def _link_all(self, rows: Sequence[int]) -> None:
        order = np.array(rows, np.int64)
        joined = np.abs(np.diff(self["said"][order])) <= PAUSE
        self["before"][order] = np.concatenate([[NONE], np.where(joined, order[:-1], NONE)])
        self["after"][order] = np.concatenate([np.where(joined, order[1:], NONE), [NONE]])
