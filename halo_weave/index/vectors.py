"""Vectors in memory, one byte for each number. In a small index all are compared; in a large one a narrow view chooses.

The narrow view keeps the directions in which the vectors of this memory differ most (principal components): there is
little of it to read, and reading is what takes the time.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from halo_weave.core.coding import decoded, encoded
from halo_weave.errors import BadInput
from halo_weave.index.numbers import NumberMap
from halo_weave.ports import Vectors
from halo_weave.records import Numbers

Floats = npt.NDArray[np.float32]

EXACT_BELOW = 10_000  # vectors; up to here comparing all takes a few milliseconds
NARROW = 48  # directions kept: an eighth of what MiniLM has
SHORTLIST = 2_000  # at least so many are compared exactly
SHORTLIST_SHARE = 400  # and one of so many
SAMPLE = 20_000  # vectors from which the directions are learned, and by which a cut is estimated
BLOCK = 256  # vectors taken out at once: copies of many megabytes cost more in new pages than in copying
GONE = -1
Kind = TypeVar("Kind", bound=np.generic)


class VectorIndex:
    """Vectors by the number of the chunk they belong to; a chunk may have several."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._size = 0
        self._codes = np.zeros((0, dimension), np.int8)  # see core/coding.py
        self._scales = np.zeros(0, np.float32)
        self._owners = np.zeros(0, np.int64)
        self._first = NumberMap(GONE)  # row of a chunk's first vector; the others follow it
        self._count = NumberMap(0)
        self._chunks = self._gone = 0
        self._directions: Floats | None = None  # (dimension, NARROW)
        self._narrow = np.zeros((0, NARROW), np.float32)
        self._learned = 0  # size when the directions were found

    def __len__(self) -> int:
        """Chunks that have a vector."""
        return self._chunks

    def has(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these chunks have a vector."""
        return self._count[numbers] > 0

    @property
    def size(self) -> int:
        """Vectors, the empty rows of removed ones included."""
        return self._size

    @property
    def bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes + self._owners.nbytes + self._narrow.nbytes

    def reserve(self, vectors: int) -> None:
        """Make room at once for this many more."""
        self._make_room(self._size + vectors)

    def put(self, numbers: Numbers, vectors: Vectors) -> None:
        """Vectors of chunks; those of one chunk stand together. They replace what the chunk had."""
        if vectors.ndim != 2 or vectors.shape != (len(numbers), self.dimension):
            raise BadInput(
                f"Vectors of shape {vectors.shape} do not fit an index of {self.dimension} dimensions with "
                f"{len(numbers)} numbers. With another embedder, run: halo-weave reindex"
            )
        if not len(numbers):
            return
        firsts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        counts = np.diff(np.append(firsts, len(numbers)))
        owners = numbers[firsts]
        self.remove(owners)
        start, end = self._size, self._size + len(numbers)
        self._make_room(end)
        self._codes[start:end], self._scales[start:end] = encoded(vectors)
        self._owners[start:end] = numbers
        if self._directions is not None:
            self._narrow[start:end] = vectors @ self._directions
        self._size = end
        self._first[owners], self._count[owners] = start + firsts, counts
        self._chunks += len(owners)

    def remove(self, numbers: Numbers) -> None:
        rows, counts = self._rows_of(np.unique(numbers))
        there = self._owners[rows]
        self._owners[rows] = GONE
        self._count[there] = 0
        self._gone += len(rows)
        self._chunks -= int(np.count_nonzero(counts))
        if self._gone > 1000 and self._gone > self._size // 4:
            self._close_up()

    def nearest(self, query: Floats, count: int) -> Numbers:
        """Numbers of the chunks with the vectors nearest to the query, nearest first; at most `count`."""
        rows, similarity = self._candidates(query, count)
        order = rows[np.argsort(-similarity, kind="stable")]
        owners = self._owners[order]
        owners = owners[owners != GONE]
        _, first = np.unique(owners, return_index=True)
        return np.asarray(owners[np.sort(first)][:count])

    def of(self, numbers: Numbers) -> tuple[Vectors, Numbers]:
        """The vectors of these chunks one after the other, and how many each has (0 if none)."""
        rows, counts = self._rows_of(numbers)
        return self._decoded(rows), counts

    def _rows_of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        counts = self._count[numbers]
        before = np.cumsum(counts) - counts
        return np.repeat(self._first[numbers] - before, counts) + np.arange(counts.sum()), counts

    def learn(self) -> None:
        """Find the directions anew, if the index has become large, or half as large again."""
        narrow = self._size > EXACT_BELOW and self.dimension > NARROW
        if not narrow or (self._directions is not None and self._size <= 1.5 * self._learned):
            return
        sample = self._decoded(slice(0, self._size, max(1, self._size // SAMPLE)))
        _, directions = np.linalg.eigh(np.cov(sample, rowvar=False))
        self._directions = np.ascontiguousarray(directions[:, -NARROW:], np.float32)
        self._narrow = np.zeros((len(self._codes), NARROW), np.float32)
        for start in range(0, self._size, SAMPLE):
            end = min(self._size, start + SAMPLE)
            self._narrow[start:end] = self._decoded(slice(start, end)) @ self._directions
        self._learned = self._size

    def _candidates(self, query: Floats, count: int) -> tuple[Numbers, Floats]:
        self.learn()
        if self._directions is None or self._size <= EXACT_BELOW:
            starts = range(0, self._size, 8 * BLOCK)
            blocks = [slice(start, min(self._size, start + 8 * BLOCK)) for start in starts]
            similarity = np.concatenate(
                [np.zeros(0, np.float32), *(self._alike(one, query) for one in blocks)]
            )
            similarity[self._owners[: self._size] == GONE] = -np.inf
            wanted = min(self._size, 4 * count)  # a chunk may have several among the nearest
            if wanted < self._size:
                rows = np.argpartition(similarity, -wanted)[-wanted:]
                return rows, similarity[rows]
            return np.arange(self._size), similarity
        # One thread, as in `likeness`; for rows as short as these einsum is faster.
        rough = np.einsum("ij,j->i", self._narrow[: self._size], query @ self._directions)
        wanted = max(SHORTLIST, 4 * count, self._size // SHORTLIST_SHARE)
        # The cut is read off a sample: sorting all would take as long as comparing them.
        sample = rough[:: max(1, self._size // SAMPLE)]
        place = max(1, min(len(sample) - 1, round(wanted / self._size * len(sample))))
        rows = np.flatnonzero(rough >= np.partition(sample, -place)[-place])
        parts = (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
        return rows, np.concatenate([self._alike(part, query) for part in parts])

    def _decoded(self, rows: Numbers | slice) -> Floats:
        return decoded(self._codes[rows], self._scales[rows])

    def _alike(self, rows: Numbers | slice, query: Floats) -> Floats:
        """(rows,) how near each is. Scaling comes last: it is one number for each."""
        return likeness(self._codes[rows].astype(np.float32), query) * self._scales[rows]

    def _make_room(self, wanted: int) -> None:
        if wanted <= len(self._codes):
            return
        size = max(wanted, 1024, len(self._codes) * 3 // 2)
        self._codes = _grown(self._codes, size, self._size)
        self._scales = _grown(self._scales, size, self._size)
        self._owners = _grown(self._owners, size, self._size)
        if self._directions is not None:
            self._narrow = _grown(self._narrow, size, self._size)

    def _close_up(self) -> None:
        kept = np.flatnonzero(self._owners[: self._size] != GONE)
        self._codes, self._scales = self._codes[kept], self._scales[kept]
        self._owners = self._owners[kept]
        if self._directions is not None:
            self._narrow = self._narrow[kept]
        self._first[self._owners[::-1]] = np.arange(len(kept))[::-1]  # of several rows the first is set last
        self._size, self._gone = len(kept), 0


class SomeVectors:
    """The vectors of a few chunks, which a store gave for one search."""

    def __init__(self, owners: Numbers, vectors: Vectors) -> None:
        order = np.argsort(owners, kind="stable")
        self._owners, self._vectors = owners[order], vectors[order]
        self.dimension = vectors.shape[1]

    def __len__(self) -> int:
        return len(self._owners)

    def of(self, numbers: Numbers) -> tuple[Vectors, Numbers]:
        """As that of `VectorIndex`."""
        first = np.searchsorted(self._owners, numbers)
        counts = np.searchsorted(self._owners, numbers, "right") - first
        before = np.cumsum(counts) - counts
        return self._vectors[np.repeat(first - before, counts) + np.arange(counts.sum())], counts


def likeness(vectors: Floats, query: Floats) -> Floats:
    """Row by row on this thread. A matrix product would wait for a second thread, long if the processor is busy."""
    return np.asarray(np.vecdot(vectors, query), np.float32)


def _grown(old: npt.NDArray[Kind], size: int, used: int) -> npt.NDArray[Kind]:
    new = np.empty((size, *old.shape[1:]), old.dtype)
    new[:used] = old[:used]
    return new
