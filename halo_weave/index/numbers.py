"""From the numbers of chunks to other whole numbers, all at once: one array, since numbers count up with few holes."""

from __future__ import annotations

import numpy as np

from halo_weave.records import Numbers


class NumberMap:
    """`default` stands for every number that was never set."""

    def __init__(self, default: int) -> None:
        self._default = default
        self._values = np.full(1024, default, np.int64)

    def __getitem__(self, numbers: Numbers) -> Numbers:
        known = (numbers >= 0) & (numbers < len(self._values))
        found = self._values[np.where(known, numbers, 0)]
        found[~known] = self._default
        return np.asarray(found)

    def __setitem__(self, numbers: Numbers, values: Numbers | int) -> None:
        largest = int(numbers.max(initial=0))
        if largest >= len(self._values):
            wider = np.full(max(largest + 1, len(self._values) * 3 // 2), self._default, np.int64)
            wider[: len(self._values)] = self._values
            self._values = wider
        self._values[numbers] = values
