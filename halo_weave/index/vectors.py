"""Vectors, one byte for each number. In a small index all are compared; in a large one a narrow view chooses.

Those that came out of an image of the index stay in its file, and only the ones that are compared are read.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import numpy.typing as npt

from halo_weave.core.coding import decoded
from halo_weave.errors import BadInput
from halo_weave.index.coderows import CodeRows, grown, parts_of
from halo_weave.index.numbers import NumberMap
from halo_weave.index.view import NARROW, NarrowView
from halo_weave.ports import Vectors
from halo_weave.records import Numbers

Floats = npt.NDArray[np.float32]

EXACT_BELOW = 10_000  # vectors; up to here comparing all takes a few milliseconds
SHORTLIST = 1_000  # at least so many are compared exactly
SHORTLIST_SHARE = 800  # and one of so many
SAMPLE = 20_000  # vectors from which the directions are learned, and by which a cut is estimated
BLOCK = 256  # vectors taken out at once: copies of many megabytes cost more in new pages than in copying
GONE = -1


class VectorIndex:
    """Vectors by the number of the chunk they belong to; a chunk may have several."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.rows = CodeRows(dimension)
        self.owners = np.zeros(0, np.int64)  # with room to grow
        self._first = NumberMap(GONE)  # row of a chunk's first vector; the others follow it
        self._count = NumberMap(0)
        self._chunks = self._gone = 0
        self.view: NarrowView | None = None
        self.learned = 0  # size when the directions of the view were found
        self._erase: Callable[[Numbers | None], None] = lambda rows: None

    @classmethod
    def of_image(
        cls,
        dimension: int,
        rows: CodeRows,
        owners: Numbers,
        firsts: NumberMap,
        counts: NumberMap,
        view: NarrowView | None,
        learned: int,
        erase: Callable[[Numbers | None], None],
    ) -> VectorIndex:
        """As it was written: no row of it is empty. `erase`: rows that go are erased from the file as well; None: all."""
        index = cls(dimension)
        index.rows, index.owners, index._first, index._count = rows, owners, firsts, counts
        index.view, index.learned, index._erase = view, learned, erase
        index._chunks = int(np.count_nonzero(counts.values))
        return index

    def __len__(self) -> int:
        """Chunks that have a vector."""
        return self._chunks

    def has(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of these chunks have a vector."""
        return self._count[numbers] > 0

    @property
    def size(self) -> int:
        """Vectors, the empty rows of removed ones included."""
        return len(self.rows)

    @property
    def bytes(self) -> int:
        """In memory."""
        return self.rows.bytes + self.owners.nbytes + (self.view.codes.nbytes if self.view else 0)

    def reserve(self, vectors: int) -> None:
        """Make room at once for this many more."""
        self._make_room(self.size + vectors)

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
        start, end = self.size, self.size + len(numbers)
        self._make_room(end)
        self.rows.append(vectors)
        self.owners[start:end] = numbers
        if self.view:
            self.view.put(start, vectors)
        self._first[owners], self._count[owners] = start + firsts, counts
        self._chunks += len(owners)

    def remove(self, numbers: Numbers) -> None:
        rows, counts = self._rows_of(np.unique(numbers))
        there = self.owners[rows]
        self.owners[rows] = GONE
        self._count[there] = 0
        self._gone += len(rows)
        self._chunks -= int(np.count_nonzero(counts))
        self._erase(rows)
        if self._gone > 1000 and self._gone > self.size // 4:
            self._close_up()

    def lacks_vectors(self) -> bool:
        """Whether the vector of a chunk that is there was erased: then it is of a later state of the memory.

        Raises `ImageDamaged`.
        """
        there = self.owners[: self.size] != GONE
        if self.view:  # it tells which ones to look at
            there &= ~self.view.codes[: self.size].view(np.uint64).any(axis=1)
        return any(
            not codes.any(axis=1).all() for codes, _ in map(self.rows.take, parts_of(np.flatnonzero(there)))
        )

    def nearest(self, query: Floats, count: int) -> Numbers:
        """Numbers of the chunks with the vectors nearest to the query, nearest first; at most `count`."""
        rows, similarity = self._candidates(query, count)
        owners = self.owners[rows[np.argsort(-similarity, kind="stable")]]
        _, first = np.unique(owners, return_index=True)
        return np.asarray(owners[np.sort(first)][:count])

    def of(self, numbers: Numbers) -> tuple[Vectors, Numbers]:
        """The vectors of these chunks one after the other, and how many each has (0 if none)."""
        rows, counts = self._rows_of(numbers)
        return decoded(*self.rows.take(rows)), counts

    def _rows_of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        counts = self._count[numbers]
        before = np.cumsum(counts) - counts
        return np.repeat(self._first[numbers] - before, counts) + np.arange(counts.sum()), counts

    def learn(self) -> None:
        """Find the directions anew, if the index has become large, or half as large again."""
        narrow = self.size > EXACT_BELOW and self.dimension > NARROW
        if not narrow or (self.view and self.size <= 1.5 * self.learned):
            return
        some = np.flatnonzero(self.owners[: self.size] != GONE)
        sample = decoded(*self.rows.take(some[:: max(1, len(some) // SAMPLE)]))
        self.view = NarrowView.learned(sample, len(self.owners))
        self.view.put_all(decoded(*self.rows.take(part)) for part in parts_of(np.arange(self.size)))
        self.learned = self.size

    def snapshot(self) -> tuple[VectorIndex, Numbers]:
        """The index as it is now, while this one changes; and the rows that are not empty, in the order of the chunks.

        What stands in a row never changes, so only the owners are copied.
        """
        self.learn()
        frozen = copy(self)
        frozen.owners = self.owners[: self.size].copy()
        rows = np.flatnonzero(frozen.owners != GONE)
        return frozen, rows[np.argsort(frozen.owners[rows], kind="stable")]

    def _candidates(self, query: Floats, count: int) -> tuple[Numbers, Floats]:
        """Rows worth a closer look, and how near each is."""
        self.learn()
        if self.view is None or self.size <= EXACT_BELOW:
            rows = np.flatnonzero(self.owners[: self.size] != GONE)
            similarity = self._alike(rows, query, 8 * BLOCK)
            wanted = min(len(rows), 4 * count)  # a chunk may have several among the nearest
            chosen = np.argpartition(similarity, -wanted)[-wanted:] if wanted < len(rows) else slice(None)
            return rows[chosen], similarity[chosen]
        rough = self.view.products(query, self.size)
        wanted = max(SHORTLIST, 4 * count, self.size // SHORTLIST_SHARE)
        # The cut is read off a sample: sorting all would take as long as comparing them.
        sample = rough[:: max(1, self.size // SAMPLE)]
        place = max(1, min(len(sample) - 1, round(wanted / self.size * len(sample))))
        rows = np.flatnonzero(rough >= np.partition(sample, -place)[-place])
        rows = rows[self.owners[rows] != GONE]
        return rows, self._alike(rows, query, BLOCK)

    def _alike(self, rows: Numbers, query: Floats, at_once: int) -> Floats:
        """(rows,) how near each is. Scaling comes last: it is one number for each."""
        found = np.zeros(len(rows), np.float32)
        for start in range(0, len(rows), at_once):
            codes, scales = self.rows.take(rows[start : start + at_once])
            found[start : start + at_once] = likeness(codes.astype(np.float32), query) * scales
        return found

    def _make_room(self, wanted: int) -> None:
        self.rows.make_room(wanted)
        if wanted > len(self.owners):
            size = max(wanted, 1024, len(self.owners) * 3 // 2)
            self.owners = grown(self.owners, size, self.size)
            if self.view:
                self.view = copy(self.view)
                self.view.codes = grown(self.view.codes, size, self.size)

    def _close_up(self) -> None:
        kept = np.flatnonzero(self.owners[: self.size] != GONE)
        self.rows, self.owners = self.rows.kept(kept), self.owners[kept]
        if self.view:
            self.view = copy(self.view)
            self.view.codes = self.view.codes[kept]
        self._first[self.owners[::-1]] = np.arange(len(kept))[::-1]  # of several rows the first is set last
        self._erase(None)
        self._gone, self._erase = 0, lambda rows: None


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
