"""A vector index: exact search in a small memory, preselection by principal components in a large one."""

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
ROWS_PER_READ = 4_096  # rows read at a time when many are read


class SnapshotDamaged(Exception):
    """A snapshot file does not contain what was written to it."""


class OpenFile:
    """A file descriptor that is closed when this object is garbage collected."""

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
    """Quantized vectors in a file, each with its scale and a checksum. An erased row is all zeros."""

    def __init__(self, file: OpenFile, start: int, count: int, dimension: int) -> None:
        """`start`: the offset of the first row in the file."""
        self._file, self._start, self.count, self._dimension = file, start, count, dimension

    def read(self, rows: Numbers) -> tuple[Codes, Floats]:
        """The codes and scales of these rows. Raises `SnapshotDamaged`."""
        if not len(rows):
            return np.zeros((0, self._dimension), np.int8), np.zeros(0, np.float32)
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(rows) != 1) + 1])
        counts = np.diff(np.append(firsts, len(rows)))  # consecutive rows are read at once
        size, start, file = row_size(self._dimension), self._start, self._file.descriptor
        runs = zip(rows[firsts].tolist(), counts.tolist(), strict=True)
        try:
            blob = b"".join([read_at(file, count * size, start + row * size) for row, count in runs])
        except OSError as error:
            raise SnapshotDamaged(str(error)) from error
        if len(blob) != len(rows) * size:
            raise SnapshotDamaged("the file was cut off")
        return _unpack_rows(np.frombuffer(blob, np.uint8).reshape(-1, size), self._dimension)

    def erase(self, rows: Numbers) -> None:
        size = row_size(self._dimension)
        for row in rows.tolist():
            self._file.write(bytes(size), self._start + row * size)


class QuantizedRows:
    """All quantized vectors: those of the snapshot file first, then those in memory. Rows in the file can be erased, not
    changed."""

    def __init__(self, dimension: int, file: RowFile | None = None) -> None:
        self._file, self._file_rows = file, file.count if file else 0
        self._codes = np.zeros((0, dimension), np.int8)  # see core/quantization.py
        self._scales = np.zeros(0, np.float32)
        self._size = self._file_rows

    def __len__(self) -> int:
        return self._size

    @property
    def bytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def reserve(self, rows: int) -> None:
        """Make room for this many rows in total."""
        wanted, used = rows - self._file_rows, self._size - self._file_rows
        if wanted > len(self._codes):
            capacity = max(wanted, 1024, len(self._codes) * 3 // 2)
            self._codes = grown(self._codes, capacity, used)
            self._scales = grown(self._scales, capacity, used)

    def append(self, vectors: Vectors) -> None:
        start, end = self._size - self._file_rows, self._size - self._file_rows + len(vectors)
        self.reserve(self._size + len(vectors))
        self._codes[start:end], self._scales[start:end] = quantize(vectors)
        self._size += len(vectors)

    def take(self, rows: Numbers) -> tuple[Codes, Floats]:
        """The codes and scales of these rows."""
        if self._file is None:
            return self._codes[rows], self._scales[rows]
        in_file = rows < self._file_rows
        if in_file.all():
            return self._file.read(rows)
        in_memory = rows[~in_file] - self._file_rows
        if not in_file.any():
            return self._codes[in_memory], self._scales[in_memory]
        codes, scales = np.empty((len(rows), self._codes.shape[1]), np.int8), np.empty(len(rows), np.float32)
        codes[in_file], scales[in_file] = self._file.read(rows[in_file])
        codes[~in_file], scales[~in_file] = self._codes[in_memory], self._scales[in_memory]
        return codes, scales

    def subset(self, rows: Numbers) -> QuantizedRows:
        """A copy of these rows in memory."""
        new = QuantizedRows(self._codes.shape[1])
        new.reserve(len(rows))
        for part in in_parts(rows):
            start, end = new._size, new._size + len(part)
            new._codes[start:end], new._scales[start:end] = self.take(part)
            new._size = end
        return new

    def packed(self, rows: Numbers) -> Iterator[Bytes]:
        """These rows as the bytes that are written to a snapshot file."""
        for part in in_parts(rows):
            yield _pack_rows(*self.take(part))


def in_parts(rows: Numbers) -> Iterator[Numbers]:
    return (rows[start : start + ROWS_PER_READ] for start in range(0, len(rows), ROWS_PER_READ))


def row_size(dimension: int) -> int:
    """Bytes of a row in a file: codes, padding to a multiple of 8, scale, checksum."""
    return -(-dimension // 8) * 8 + 8


def _pack_rows(codes: Codes, scales: Floats) -> Bytes:
    rows = np.zeros((len(codes), row_size(codes.shape[1])), np.uint8)
    rows[:, : codes.shape[1]] = codes.view(np.uint8)
    rows[:, -8:-4] = scales.astype("<f4")[:, None].view(np.uint8)
    rows[:, -4:] = _checksums(rows)[:, None].view(np.uint8)
    return rows


def _unpack_rows(rows: Bytes, dimension: int) -> tuple[Codes, Floats]:
    stored = rows[:, -4:].copy().view("<u4")[:, 0]
    if (_checksums(rows) != stored).any():
        raise SnapshotDamaged("the checksum of a row is wrong")
    return rows[:, :dimension].view(np.int8), rows[:, -8:-4].copy().view("<f4")[:, 0]


def _checksums(rows: Bytes) -> npt.NDArray[np.uint32]:
    """(rows,) the sum of each row's 64-bit words without the checksum itself, folded into 32 bits."""
    words = rows.view("<u8")
    total = words[:, :-1].sum(axis=1, dtype=np.uint64) + (words[:, -1] & np.uint64(0xFFFFFFFF))
    return np.asarray((total ^ (total >> np.uint64(32))).astype("<u4"))


def grown(old: npt.NDArray[Kind], size: int, used: int) -> npt.NDArray[Kind]:
    """A larger array with the first `used` rows of the old one."""
    new = np.empty((size, *old.shape[1:]), old.dtype)
    new[:used] = old[:used]
    return new


_seeking = threading.Lock()


def _seek_and_read(file: int, count: int, at: int) -> bytes:
    with _seeking:
        os.lseek(file, at, os.SEEK_SET)
        return os.read(file, count)


read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)  # Windows has no pread


try:
    from halo_weave.search import _view as native  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # installed without a compiler
    native = None

Ints = npt.NDArray[np.int32]

COMPONENTS = 64  # principal components kept: a sixth of the dimensions of MiniLM
MAX_WEIGHT = 2_000  # weights are scaled to at most this; then a sum of 64 products is exact even in float32
ROWS_PER_PRODUCT = 4_096  # rows multiplied at a time without the C module
if native and native.width != COMPONENTS:  # built from an earlier version
    native = None


class PrincipalComponents:
    """The coordinates of all vectors along a few principal components, in one byte each: for a fast, approximate search."""

    def __init__(self, directions: Floats, units: Floats, codes: Codes) -> None:
        """`units`: the quantization step of each component. `codes`: (rows, COMPONENTS), with room for more rows."""
        self.directions, self.units, self.codes = directions, units, codes

    @classmethod
    def learned(cls, sample: Floats, capacity: int) -> PrincipalComponents:
        """The principal components of a sample of the vectors; the rows are still empty."""
        _, directions = np.linalg.eigh(np.cov(sample, rowvar=False))
        chosen = np.ascontiguousarray(directions[:, -COMPONENTS:], np.float32)
        units = np.abs(sample @ chosen).max(axis=0) / np.float32(MAX_CODE)
        return cls(
            chosen, np.where(units > 0, units, np.float32(1)), np.zeros((capacity, COMPONENTS), np.int8)
        )

    def put(self, start: int, vectors: Floats) -> None:
        steps = np.rint((vectors @ self.directions) / self.units)
        self.codes[start : start + len(vectors)] = np.clip(steps, -MAX_CODE, MAX_CODE)

    def put_all(self, blocks: Iterable[Floats]) -> None:
        start = 0
        for vectors in blocks:
            self.put(start, vectors)
            start += len(vectors)

    def products(self, query: Floats, size: int) -> Ints:
        """(size,) the approximate dot product of each row with a query, up to a constant factor."""
        weights = (query @ self.directions) * self.units
        weights = np.rint(weights * (MAX_WEIGHT / max(float(np.abs(weights).max()), 1e-30))).astype(np.int16)
        products = np.empty(size, np.int32)
        multiply(self.codes[:size], weights, products)
        return products


def _multiply(codes: Codes, weights: npt.NDArray[np.int16], out: Ints) -> None:
    floats = weights.astype(np.float32)
    for start in range(0, len(out), ROWS_PER_PRODUCT):
        out[start : start + ROWS_PER_PRODUCT] = np.vecdot(
            codes[start : start + ROWS_PER_PRODUCT].astype(np.float32), floats
        )


multiply: Callable[[Codes, npt.NDArray[np.int16], Ints], None] = native.products if native else _multiply


EXACT_BELOW = 10_000  # up to this many vectors, all are compared exactly, which takes a few milliseconds
SHORTLIST = 1_000  # vectors that are compared exactly after preselection: at least this many
SHORTLIST_SHARE = 800  # and at least one in this many
SAMPLE = 20_000  # vectors from which the components are learned, and the threshold of the preselection is estimated
BLOCK = 256  # vectors dequantized at a time: allocating many megabytes takes longer than copying
REMOVED = -1


class VectorIndex:
    """Nearest-neighbour search over the vectors of chunks. A chunk may have several vectors."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.rows = QuantizedRows(dimension)
        self.owners = np.zeros(0, np.int64)  # number of each row's chunk, or REMOVED; with room for more
        self._first = NumberMap(REMOVED)  # row of a chunk's first vector; its others follow
        self._count = NumberMap(0)
        self._chunks = self._removed_rows = 0
        self.view: PrincipalComponents | None = None
        self.learned = 0  # size of the index when the components of the view were learned
        self._erase: Callable[[Numbers | None], None] = lambda rows: None  # see `from_snapshot`

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
        """The index as it was written, without removed rows. `erase`: called with rows to erase them from the file, with
        None to delete the file."""
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
        """Rows, including removed ones."""
        return len(self.rows)

    @property
    def bytes(self) -> int:
        """Bytes of memory that the index takes."""
        return self.rows.bytes + self.owners.nbytes + (self.view.codes.nbytes if self.view else 0)

    def reserve(self, vectors: int) -> None:
        """Make room for this many more vectors."""
        self._make_room(self.size + vectors)

    def put(self, numbers: Numbers, vectors: Vectors) -> None:
        """Add vectors with the numbers of their chunks, or replace those that a chunk had. The vectors of one chunk must be
        consecutive."""
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
        owners = self.owners[rows]
        self.owners[rows] = REMOVED
        self._count[owners] = 0
        self._removed_rows += len(rows)
        self._chunks -= int(np.count_nonzero(counts))
        self._erase(rows)
        if self._removed_rows > 1000 and self._removed_rows > self.size // 4:
            self._compact()

    def lacks_vectors(self) -> bool:
        """Whether the file lacks the vector of a chunk of this index: then it was erased in a later state of the memory.

        Raises `SnapshotDamaged`.
        """
        suspects = self.owners[: self.size] != REMOVED
        if self.view:  # the components of an erased row are all zero, and cheap to check
            suspects &= ~self.view.codes[: self.size].view(np.uint64).any(axis=1)
        parts = in_parts(np.flatnonzero(suspects))
        return any(not codes.any(axis=1).all() for codes, _ in map(self.rows.take, parts))

    def nearest(self, query: Floats, count: int) -> Numbers:
        """Numbers of the chunks whose best vector is nearest to the query, nearest first; at most `count`."""
        rows, similarity = self._candidates(query, count)
        owners = self.owners[rows[np.argsort(-similarity, kind="stable")]]
        _, first = np.unique(owners, return_index=True)
        return np.asarray(owners[np.sort(first)][:count])

    def of(self, numbers: Numbers) -> tuple[Vectors, Numbers]:
        """The vectors of these chunks, one chunk after the other, and how many each has (0 if none)."""
        rows, counts = self._rows_of(numbers)
        return dequantize(*self.rows.take(rows)), counts

    def _rows_of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        counts = self._count[numbers]
        before = np.cumsum(counts) - counts
        return np.repeat(self._first[numbers] - before, counts) + np.arange(counts.sum()), counts

    def learn(self) -> None:
        """Learn the principal components when the index becomes large, and again each time it has grown by half."""
        needed = self.size > EXACT_BELOW and self.dimension > COMPONENTS
        if not needed or (self.view and self.size <= 1.5 * self.learned):
            return
        present = np.flatnonzero(self.owners[: self.size] != REMOVED)
        sample = dequantize(*self.rows.take(present[:: max(1, len(present) // SAMPLE)]))
        self.view = PrincipalComponents.learned(sample, len(self.owners))
        self.view.put_all(dequantize(*self.rows.take(part)) for part in in_parts(np.arange(self.size)))
        self.learned = self.size

    def snapshot(self) -> tuple[VectorIndex, Numbers]:
        """A copy that later changes do not affect, and its rows without removed ones, sorted by the number of their chunk.

        The vector of a row never changes, so only the owners are copied.
        """
        self.learn()
        frozen = copy(self)
        frozen.owners = self.owners[: self.size].copy()
        rows = np.flatnonzero(frozen.owners != REMOVED)
        return frozen, rows[np.argsort(frozen.owners[rows], kind="stable")]

    def _candidates(self, query: Floats, count: int) -> tuple[Numbers, Floats]:
        """The nearest rows and their similarities: more than `count`, in no order."""
        self.learn()
        if self.view is None or self.size <= EXACT_BELOW:
            rows = np.flatnonzero(self.owners[: self.size] != REMOVED)
            similarity = self._similarity(rows, query, 8 * BLOCK)
            wanted = min(len(rows), 4 * count)  # a chunk may have several vectors among the nearest
            chosen = np.argpartition(similarity, -wanted)[-wanted:] if wanted < len(rows) else slice(None)
            return rows[chosen], similarity[chosen]
        approximate = self.view.products(query, self.size)
        wanted = max(SHORTLIST, 4 * count, self.size // SHORTLIST_SHARE)
        # The threshold is estimated from a sample: sorting all would take as long as comparing them.
        sample = approximate[:: max(1, self.size // SAMPLE)]
        place = max(1, min(len(sample) - 1, round(wanted / self.size * len(sample))))
        rows = np.flatnonzero(approximate >= np.partition(sample, -place)[-place])
        rows = rows[self.owners[rows] != REMOVED]
        return rows, self._similarity(rows, query, BLOCK)

    def _similarity(self, rows: Numbers, query: Floats, block: int) -> Floats:
        """(rows,) cosine similarity to the query, computed in blocks. The scale is applied last, to one number per row."""
        similarity = np.zeros(len(rows), np.float32)
        for start in range(0, len(rows), block):
            codes, scales = self.rows.take(rows[start : start + block])
            similarity[start : start + block] = cosine_similarity(codes.astype(np.float32), query) * scales
        return similarity

    def _make_room(self, wanted: int) -> None:
        self.rows.reserve(wanted)
        if wanted > len(self.owners):
            size = max(wanted, 1024, len(self.owners) * 3 // 2)
            self.owners = grown(self.owners, size, self.size)
            if self.view:
                self.view = copy(self.view)
                self.view.codes = grown(self.view.codes, size, self.size)

    def _compact(self) -> None:
        """Drop the removed rows. The snapshot file is deleted, since its rows have other indexes."""
        kept = np.flatnonzero(self.owners[: self.size] != REMOVED)
        self.rows, self.owners = self.rows.subset(kept), self.owners[kept]
        if self.view:
            self.view = copy(self.view)
            self.view.codes = self.view.codes[kept]
        self._first[self.owners[::-1]] = np.arange(len(kept))[
            ::-1
        ]  # reversed, so that the first of several rows wins
        self._erase(None)
        self._removed_rows, self._erase = 0, lambda rows: None


class FetchedVectors:
    """The vectors of a few chunks that were fetched from the store for one search."""

    def __init__(self, owners: Numbers, vectors: Vectors) -> None:
        order = np.argsort(owners, kind="stable")
        self._owners, self._vectors = owners[order], vectors[order]
        self.dimension = vectors.shape[1]

    def __len__(self) -> int:
        return len(self._owners)

    def of(self, numbers: Numbers) -> tuple[Vectors, Numbers]:
        """As `VectorIndex.of`."""
        first = np.searchsorted(self._owners, numbers)
        counts = np.searchsorted(self._owners, numbers, "right") - first
        before = np.cumsum(counts) - counts
        return self._vectors[np.repeat(first - before, counts) + np.arange(counts.sum())], counts


def cosine_similarity(vectors: Floats, query: Floats) -> Floats:
    """(vectors,) dot products, which are cosine similarities since vectors have length 1.

    Computed on this thread: a matrix product would start others and wait for them, long if the processor is busy.
    """
    return np.asarray(np.vecdot(vectors, query), np.float32)
