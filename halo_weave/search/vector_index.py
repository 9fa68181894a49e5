"""An index of quantized vectors: compares all of a small index, preselects by principal components in a large one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from halo_weave.core.quantization import MAX_CODE, Codes, dequantize, quantize
from halo_weave.errors import BadInput
from halo_weave.search.chunk_table import NumberMap
from halo_weave.store.records import Numbers, Vectors

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Kind = TypeVar("Kind", bound=np.generic)
STREAM = 4_096  # rows read at once when all are read


class SnapshotDamaged(Exception):
    """What a file holds is not as it was written."""


class OpenFile:
    """A file that is closed when nobody has it any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def read(self, count: int, at: int) -> bytes:
        return read_at(self.descriptor, count, at)

    def write(self, blob: bytes, at: int) -> None:
        with _seeking:
            os.lseek(self.descriptor, at, os.SEEK_SET)
            os.write(self.descriptor, blob)


class RowFile:
    """Rows in a file, each with its scale and a sum of its bytes, by which it is known to be whole. All zeros: erased."""

    def __init__(self, file: OpenFile, start: int, count: int, dimension: int) -> None:
        """`start`: where the first row is."""
        self._file, self._start, self.count, self._dimension = file, start, count, dimension

    def read(self, rows: Numbers) -> tuple[Codes, Floats]:
        """Raises `ImageDamaged`."""
        if not len(rows):
            return np.zeros((0, self._dimension), np.int8), np.zeros(0, np.float32)
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
        counts = np.diff(np.append(firsts, len(rows)))  # rows that follow each other are read at once
        size, start, file = row_size(self._dimension), self._start, self._file.descriptor
        runs = zip(rows[firsts].tolist(), counts.tolist(), strict=True)
        try:
            blob = b"".join([read_at(file, count * size, start + row * size) for row, count in runs])
        except OSError as error:
            raise SnapshotDamaged(str(error)) from error
        if len(blob) != len(rows) * size:
            raise SnapshotDamaged("it is shorter than it was")
        return _unpacked(np.frombuffer(blob, np.uint8).reshape(-1, size), self._dimension)

    def erase(self, rows: Numbers) -> None:
        size = row_size(self._dimension)
        for row in rows.tolist():
            self._file.write(bytes(size), self._start + row * size)


class QuantizedRows:
    """All rows. What is in the file never changes but for being emptied."""

    def __init__(self, dimension: int, file: RowFile | None = None) -> None:
        self._file, self._first = file, file.count if file else 0  # the first row in memory
        self._codes = np.zeros((0, dimension), np.int8)  # see core/quantization.py
        self._scales = np.zeros(0, np.float32)
        self._size = self._first

    def __len__(self) -> int:
        return self._size

    @property
    def bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def make_room(self, rows: int) -> None:
        wanted, used = rows - self._first, self._size - self._first
        if wanted > len(self._codes):
            room = max(wanted, 1024, len(self._codes) * 3 // 2)
            self._codes = grown(self._codes, room, used)
            self._scales = grown(self._scales, room, used)

    def append(self, vectors: Vectors) -> None:
        start, end = self._size - self._first, self._size - self._first + len(vectors)
        self.make_room(self._size + len(vectors))
        self._codes[start:end], self._scales[start:end] = quantize(vectors)
        self._size += len(vectors)

    def take(self, rows: Numbers) -> tuple[Codes, Floats]:
        """The codes and scales of these rows."""
        if self._file is None:
            return self._codes[rows], self._scales[rows]
        early = rows < self._first
        if early.all():
            return self._file.read(rows)
        late = rows[~early] - self._first
        if not early.any():
            return self._codes[late], self._scales[late]
        codes, scales = np.empty((len(rows), self._codes.shape[1]), np.int8), np.empty(len(rows), np.float32)
        codes[early], scales[early] = self._file.read(rows[early])
        codes[~early], scales[~early] = self._codes[late], self._scales[late]
        return codes, scales

    def kept(self, rows: Numbers) -> QuantizedRows:
        """These rows alone, in memory."""
        new = QuantizedRows(self._codes.shape[1])
        new.make_room(len(rows))
        for part in parts_of(rows):
            start, end = new._size, new._size + len(part)
            new._codes[start:end], new._scales[start:end] = self.take(part)
            new._size = end
        return new

    def packed(self, rows: Numbers) -> Iterator[Bytes]:
        """The same rows as a file holds them."""
        for part in parts_of(rows):
            yield _packed(*self.take(part))


def parts_of(rows: Numbers) -> Iterator[Numbers]:
    return (rows[start : start + STREAM] for start in range(0, len(rows), STREAM))


def row_size(dimension: int) -> int:
    """Bytes of a row in a file: the codes, then the scale and the sum, filled up to whole words."""
    return -(-dimension // 8) * 8 + 8


def _packed(codes: Codes, scales: Floats) -> Bytes:
    rows = np.zeros((len(codes), row_size(codes.shape[1])), np.uint8)
    rows[:, : codes.shape[1]] = codes.view(np.uint8)
    rows[:, -8:-4] = scales.astype("<f4")[:, None].view(np.uint8)
    rows[:, -4:] = _sums(rows)[:, None].view(np.uint8)
    return rows


def _unpacked(rows: Bytes, dimension: int) -> tuple[Codes, Floats]:
    found = rows[:, -4:].copy().view("<u4")[:, 0]
    if (_sums(rows) != found).any():
        raise SnapshotDamaged("a row of it is not as it was written")
    return rows[:, :dimension].view(np.int8), rows[:, -8:-4].copy().view("<f4")[:, 0]


def _sums(rows: Bytes) -> npt.NDArray[np.uint32]:
    """(rows,) of all words but the sum itself, folded into 32 bits."""
    words = rows.view("<u8")
    total = words[:, :-1].sum(axis=1, dtype=np.uint64) + (words[:, -1] & np.uint64(0xFFFFFFFF))
    return np.asarray((total ^ (total >> np.uint64(32))).astype("<u4"))


def grown(old: npt.NDArray[Kind], size: int, used: int) -> npt.NDArray[Kind]:
    """With room for `size` rows; the first `used` are kept."""
    new = np.empty((size, *old.shape[1:]), old.dtype)
    new[:used] = old[:used]
    return new


_seeking = threading.Lock()


def _seek_and_read(file: int, count: int, at: int) -> bytes:
    with _seeking:
        os.lseek(file, at, os.SEEK_SET)
        return os.read(file, count)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)  # not every system has it


try:
    from halo_weave.search import _view as native  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # there was no compiler
    native = None

Ints = npt.NDArray[np.int32]

COMPONENTS = 64  # directions kept: a sixth of what MiniLM has
MAX_WEIGHT = (
    2_000  # the greatest weight of a direction: a sum of 64 products with a byte is exact even as float32
)
ROWS_PER_PRODUCT = 4_096  # rows multiplied at once without the module in C
if native and native.width != COMPONENTS:  # built from an earlier version
    native = None


class PrincipalComponents:
    """Rows as their vectors come, with room for more. Products with it are rough and have no scale."""

    def __init__(self, directions: Floats, units: Floats, codes: Codes) -> None:
        """`units`: how much one step of each direction's numbers is."""
        self.directions, self.units, self.codes = directions, units, codes

    @classmethod
    def learned(cls, sample: Floats, room: int) -> PrincipalComponents:
        """The principal components of some vectors."""
        _, directions = np.linalg.eigh(np.cov(sample, rowvar=False))
        chosen = np.ascontiguousarray(directions[:, -COMPONENTS:], np.float32)
        units = np.abs(sample @ chosen).max(axis=0) / np.float32(MAX_CODE)
        return cls(chosen, np.where(units > 0, units, np.float32(1)), np.zeros((room, COMPONENTS), np.int8))

    def put(self, start: int, vectors: Floats) -> None:
        steps = np.rint((vectors @ self.directions) / self.units)
        self.codes[start : start + len(vectors)] = np.clip(steps, -MAX_CODE, MAX_CODE)

    def put_all(self, blocks: Iterable[Floats]) -> None:
        start = 0
        for vectors in blocks:
            self.put(start, vectors)
            start += len(vectors)

    def products(self, query: Floats, size: int) -> Ints:
        """(size,) how near each row is to a query, by these directions alone."""
        weights = (query @ self.directions) * self.units
        weights = np.rint(weights * (MAX_WEIGHT / max(float(np.abs(weights).max()), 1e-30))).astype(np.int16)
        found = np.empty(size, np.int32)
        multiply(self.codes[:size], weights, found)
        return found


def _multiply(codes: Codes, weights: npt.NDArray[np.int16], out: Ints) -> None:
    floats = weights.astype(np.float32)
    for start in range(0, len(out), ROWS_PER_PRODUCT):
        out[start : start + ROWS_PER_PRODUCT] = np.vecdot(
            codes[start : start + ROWS_PER_PRODUCT].astype(np.float32), floats
        )


multiply: Callable[[Codes, npt.NDArray[np.int16], Ints], None] = native.products if native else _multiply


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
        self.rows = QuantizedRows(dimension)
        self.owners = np.zeros(0, np.int64)  # with room to grow
        self._first = NumberMap(GONE)  # row of a chunk's first vector; the others follow it
        self._count = NumberMap(0)
        self._chunks = self._gone = 0
        self.view: PrincipalComponents | None = None
        self.learned = 0  # size when the directions of the view were found
        self._erase: Callable[[Numbers | None], None] = lambda rows: None

    @classmethod
    def from_snapshot(
        cls,
        dimension: int,
        rows: QuantizedRows,
        owners: Numbers,
        firsts: NumberMap,
        counts: NumberMap,
        view: PrincipalComponents | None,
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
        return dequantize(*self.rows.take(rows)), counts

    def _rows_of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        counts = self._count[numbers]
        before = np.cumsum(counts) - counts
        return np.repeat(self._first[numbers] - before, counts) + np.arange(counts.sum()), counts

    def learn(self) -> None:
        """Find the directions anew, if the index has become large, or half as large again."""
        narrow = self.size > EXACT_BELOW and self.dimension > COMPONENTS
        if not narrow or (self.view and self.size <= 1.5 * self.learned):
            return
        some = np.flatnonzero(self.owners[: self.size] != GONE)
        sample = dequantize(*self.rows.take(some[:: max(1, len(some) // SAMPLE)]))
        self.view = PrincipalComponents.learned(sample, len(self.owners))
        self.view.put_all(dequantize(*self.rows.take(part)) for part in parts_of(np.arange(self.size)))
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
            found[start : start + at_once] = cosine_similarity(codes.astype(np.float32), query) * scales
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


class FetchedVectors:
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


def cosine_similarity(vectors: Floats, query: Floats) -> Floats:
    """Row by row on this thread. A matrix product would wait for a second thread, long if the processor is busy."""
    return np.asarray(np.vecdot(vectors, query), np.float32)
