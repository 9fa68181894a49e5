"""The narrow view of vectors: their coordinates along the directions in which they differ most, one byte for each.

There is little of it to read, and reading is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from halo_weave.core.coding import MOST, Codes

try:
    from halo_weave.index import _view as native  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # there was no compiler
    native = None

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

NARROW = 64  # directions kept: a sixth of what MiniLM has
WEIGHT = (
    2_000  # the greatest weight of a direction: a sum of 64 products with a byte is exact even as float32
)
BLOCK = 4_096  # rows multiplied at once without the module in C
if native and native.width != NARROW:  # built from an earlier version
    native = None


class NarrowView:
    """Rows as their vectors come, with room for more. Products with it are rough and have no scale."""

    def __init__(self, directions: Floats, units: Floats, codes: Codes) -> None:
        """`units`: how much one step of each direction's numbers is."""
        self.directions, self.units, self.codes = directions, units, codes

    @classmethod
    def learned(cls, sample: Floats, room: int) -> NarrowView:
        """The principal components of some vectors."""
        _, directions = np.linalg.eigh(np.cov(sample, rowvar=False))
        chosen = np.ascontiguousarray(directions[:, -NARROW:], np.float32)
        units = np.abs(sample @ chosen).max(axis=0) / np.float32(MOST)
        return cls(chosen, np.where(units > 0, units, np.float32(1)), np.zeros((room, NARROW), np.int8))

    def put(self, start: int, vectors: Floats) -> None:
        steps = np.rint((vectors @ self.directions) / self.units)
        self.codes[start : start + len(vectors)] = np.clip(steps, -MOST, MOST)

    def put_all(self, blocks: Iterable[Floats]) -> None:
        start = 0
        for vectors in blocks:
            self.put(start, vectors)
            start += len(vectors)

    def products(self, query: Floats, size: int) -> Ints:
        """(size,) how near each row is to a query, by these directions alone."""
        weights = (query @ self.directions) * self.units
        weights = np.rint(weights * (WEIGHT / max(float(np.abs(weights).max()), 1e-30))).astype(np.int16)
        found = np.empty(size, np.int32)
        multiply(self.codes[:size], weights, found)
        return found


def _multiply(codes: Codes, weights: npt.NDArray[np.int16], out: Ints) -> None:
    floats = weights.astype(np.float32)
    for start in range(0, len(out), BLOCK):
        out[start : start + BLOCK] = np.vecdot(codes[start : start + BLOCK].astype(np.float32), floats)


multiply: Callable[[Codes, npt.NDArray[np.int16], Ints], None] = native.products if native else _multiply
