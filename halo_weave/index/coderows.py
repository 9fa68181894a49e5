"""Encoded vectors by row: the first ones in a file, read when they are needed; those that came later in memory."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from halo_weave.core.coding import Codes, encoded
from halo_weave.records import Numbers, Vectors

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Kind = TypeVar("Kind", bound=np.generic)
STREAM = 4_096  # rows read at once when all are read


class ImageDamaged(Exception):
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
            raise ImageDamaged(str(error)) from error
        if len(blob) != len(rows) * size:
            raise ImageDamaged("it is shorter than it was")
        return _unpacked(np.frombuffer(blob, np.uint8).reshape(-1, size), self._dimension)

    def erase(self, rows: Numbers) -> None:
        size = row_size(self._dimension)
        for row in rows.tolist():
            self._file.write(bytes(size), self._start + row * size)


class CodeRows:
    """All rows. What is in the file never changes but for being emptied."""

    def __init__(self, dimension: int, file: RowFile | None = None) -> None:
        self._file, self._first = file, file.count if file else 0  # the first row in memory
        self._codes = np.zeros((0, dimension), np.int8)  # see core/coding.py
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
        self._codes[start:end], self._scales[start:end] = encoded(vectors)
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

    def kept(self, rows: Numbers) -> CodeRows:
        """These rows alone, in memory."""
        new = CodeRows(self._codes.shape[1])
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
        raise ImageDamaged("a row of it is not as it was written")
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
