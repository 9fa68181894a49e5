"""A map from chunk numbers to whole numbers, kept as one array, since chunk numbers have few gaps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from halo_weave.records import Numbers

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
