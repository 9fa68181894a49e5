"""A snapshot of the search index in a memory-mapped file, from which a large memory opens at once.

The file: a JSON header with its digest, the arrays of the chunk table and of the vector index, a checksum for each block of
the arrays, and the quantized vectors, each with its own checksum.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import secrets
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from halo_weave.search.chunk_table import COLUMNS, NONE, ChunkTable, NumberMap
from halo_weave.search.vector_index import (
    COMPONENTS,
    REMOVED,
    OpenFile,
    PrincipalComponents,
    QuantizedRows,
    RowFile,
    SnapshotDamaged,
    VectorIndex,
    in_parts,
    row_size,
)
from halo_weave.store.records import Numbers
from halo_weave.store.sql_store import SqlStore

log = logging.getLogger(__name__)
Array = npt.NDArray[Any]

MAGIC = b"HWINDEX1"
_OPENING = struct.Struct("<8sQ32s")  # magic, length of the header, digest of the header
MAX_HEADER_BYTES = 1 << 26
ALIGNMENT = 4096
BLOCK = 1 << 16  # bytes per checksum
ABANDONED_SECONDS = 600.0  # a partial file older than this is from a killed process


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """The chunk table and the vector index of a memory as of a sequence number."""

    table: ChunkTable
    index: VectorIndex | None  # None: the store has its own vector index
    sequence: int


def open_snapshot(
    path: Path, store: SqlStore, generation: int, *, vectors: bool, writes: bool
) -> LoadedIndex | None:
    """Load the index from a file; None if there is none that matches the memory. `vectors`: whether it must have
    vectors."""
    try:
        descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    try:
        file = _SnapshotFile(path, OpenFile(descriptor), writes)
        header = file.header
        if (header["generation"], "codes" in header) != (generation, vectors):
            return None
        if header["sequence"] > store.sequence() or not store.knows_index_snapshot(header["mark"]):
            return None
        file.check()
        return file.load()
    except (SnapshotDamaged, OSError, ValueError, KeyError, TypeError) as error:
        log.info("%s is not used, the index is loaded from the store: %s", path, error)
        return None


def delete_snapshot(path: Path) -> None:
    """Delete the file, and partial files of processes that were killed."""
    for file in (path, *path.parent.glob(f"{path.name}.*.partial")):
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted: %s", file, error)


class IndexSnapshot:
    """A consistent copy of a loaded index, which can be written while the index changes."""

    def __init__(self, loaded: LoadedIndex) -> None:
        self.sequence = loaded.sequence
        self.columns, self.windows, self.speakers = loaded.table.snapshot()
        self.index: VectorIndex | None = None
        self.rows = np.zeros(0, np.int64)
        if loaded.index is not None:
            self.index, self.rows = loaded.index.snapshot()


def write_snapshot(path: Path, store: SqlStore, generation: int, snapshot: IndexSnapshot) -> None:
    """Write the file under another name and rename it when it is complete. Only the file's owner can read it."""
    if sys.byteorder != "little":
        return
    for partial in path.parent.glob(f"{path.name}.*.partial"):
        with suppress(OSError):
            if time.time() - partial.stat().st_mtime > ABANDONED_SECONDS:
                partial.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    snapshot_id = secrets.token_hex(16)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            _write(
                file, snapshot, {"mark": snapshot_id, "generation": generation, "sequence": snapshot.sequence}
            )
            file.flush()
            os.fsync(file.fileno())
        if store.record_index_snapshot(snapshot_id, generation):
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Section:
    """An array in the file. It is mapped with room for more rows."""

    start: int
    dtype: str
    shape: tuple[int, ...]  # of the rows that were written
    capacity: int  # rows

    @property
    def used(self) -> int:
        """Bytes of the rows that were written."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape))

    @property
    def end(self) -> int:
        return self.start + int(np.dtype(self.dtype).itemsize * np.prod((self.capacity, *self.shape[1:])))

    @property
    def checksums(self) -> int:
        """How many checksums the array has."""
        return -(-self.used // BLOCK)

    def array(self, mapped: mmap.mmap) -> Array:
        shape = (self.capacity, *self.shape[1:])
        return np.frombuffer(mapped, self.dtype, int(np.prod(shape)), self.start).reshape(shape)


class _SnapshotFile:
    """An open snapshot file."""

    def __init__(self, path: Path, file: OpenFile, writes: bool) -> None:
        self._path, self._file, self._writes = path, file, writes
        self.header = self._read_header()
        self._sections = {
            name: _Section(start, dtype, tuple(shape), capacity)
            for name, (start, dtype, shape, capacity) in self.header["sections"].items()
        }

    def check(self) -> None:
        """Raise `SnapshotDamaged` if a checksum of the arrays is wrong. Vectors are checked when they are read."""
        stored = np.frombuffer(self._file.read(self._checksums_before(None) * 8, self.header["sums"]), "<u8")
        computed = [
            _checksums(self._file.read, section.start, section.used) for section in self._sections.values()
        ]
        if not np.array_equal(stored, np.concatenate(computed)):
            raise SnapshotDamaged("a checksum of its arrays is wrong")

    def load(self) -> LoadedIndex:
        header, sections = self.header, self._sections
        end = max(section.end for section in sections.values())
        mapped = mmap.mmap(self._file.descriptor, end, access=mmap.ACCESS_COPY)
        arrays = {name: section.array(mapped) for name, section in sections.items()}
        table = ChunkTable.from_snapshot(
            {name: arrays[name] for name in COLUMNS},
            sections["number"].shape[0],
            NumberMap(NONE, arrays["row"]),
            header["windows"],
            header["speakers"],
        )
        if "codes" not in header:
            return LoadedIndex(table, None, header["sequence"])
        count, dimension = sections["owner"].shape[0], header["dimension"]
        self._codes = RowFile(self._file, header["codes"], count, dimension)
        view = "view" in arrays and PrincipalComponents(arrays["directions"], arrays["units"], arrays["view"])
        index = VectorIndex.from_snapshot(
            dimension,
            QuantizedRows(dimension, self._codes),
            arrays["owner"],
            NumberMap(REMOVED, arrays["first"]),
            NumberMap(0, arrays["count"]),
            view or None,
            header["learned"],
            self._erase,
        )
        return LoadedIndex(table, index, header["sequence"])

    def _erase(self, rows: Numbers | None) -> None:
        """Overwrite the vectors of these rows in the file with zeros; None: delete the file, since its rows are outdated."""
        if not self._writes:
            return
        if rows is None:
            delete_snapshot(self._path)
            return
        rows = rows[rows < self._codes.count]
        if not len(rows):
            return
        try:
            self._codes.erase(rows)
            if "view" in self._sections:
                self._erase_view(rows)
            if os.fstat(self._file.descriptor).st_ino != self._path.stat().st_ino:
                # Another process has written a newer file since, and may have ended before it could erase these rows.
                delete_snapshot(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be changed and is deleted: %s", self._path, error)
            delete_snapshot(self._path)

    def _erase_view(self, rows: Numbers) -> None:
        view, first = self._sections["view"], self.header["sums"] + 8 * self._checksums_before("view")
        for row in rows.tolist():
            self._file.write(bytes(COMPONENTS), view.start + row * COMPONENTS)
        offsets = rows * COMPONENTS
        for block in np.unique(np.concatenate([offsets, offsets + COMPONENTS - 1]) // BLOCK).tolist():
            length = min(BLOCK, view.used - block * BLOCK)
            checksum = _checksums(self._file.read, view.start + block * BLOCK, length)
            self._file.write(checksum.tobytes(), first + 8 * block)

    def _checksums_before(self, section: str | None) -> int:
        """How many checksums precede those of a section; None: how many there are in total."""
        names = list(self._sections)
        before = names[: names.index(section)] if section else names
        return sum(self._sections[name].checksums for name in before)

    def _read_header(self) -> dict[str, Any]:
        opening = self._file.read(_OPENING.size, 0)
        if len(opening) < _OPENING.size:
            raise SnapshotDamaged("it is too short")
        magic, length, digest = _OPENING.unpack(opening)
        if magic != MAGIC or length > MAX_HEADER_BYTES:
            raise SnapshotDamaged("it is not a snapshot of this version")
        blob = self._file.read(length, _OPENING.size)
        if hashlib.blake2b(blob, digest_size=32).digest() != digest:
            raise SnapshotDamaged("the digest of its header is wrong")
        header = dict(json.loads(blob))
        if os.fstat(self._file.descriptor).st_size != header["size"]:
            raise SnapshotDamaged("its length is wrong")
        return header


def _checksums(read: Callable[[int, int], bytes], start: int, length: int) -> npt.NDArray[np.uint64]:
    """The checksum of each block of a part of the file: the sum of its 64-bit words."""
    checksums = [np.zeros(0, np.uint64)]
    for offset in range(0, length, 16 * BLOCK):
        piece = read(min(16 * BLOCK, length - offset), start + offset)
        words = np.frombuffer(piece + bytes(-len(piece) % 8), "<u8")
        checksums.append(np.add.reduceat(words, np.arange(0, len(words), BLOCK // 8)))
    return np.concatenate(checksums)


# Writing

_Parts = Iterator[Array]  # consecutive parts of an array


def _write(file: IO[bytes], snapshot: IndexSnapshot, header: dict[str, Any]) -> None:
    """Write header, arrays, checksums and vectors. Unused room in the arrays takes no space on the disk."""
    arrays = {**_table_arrays(snapshot), **(_index_arrays(snapshot) if snapshot.index is not None else {})}
    header |= {"windows": snapshot.windows, "speakers": snapshot.speakers}
    codes_size = 0
    if snapshot.index is not None:
        dimension = snapshot.index.dimension
        codes_size = len(snapshot.rows) * row_size(dimension)
        header |= {"dimension": dimension, "learned": snapshot.index.learned, "codes": 1 << 50}
    # The offsets depend on the length of the header, so its length is first estimated with the largest offsets.
    header |= {"sums": 1 << 50, "size": 1 << 50, "sections": {}}
    estimate = {
        name: [1 << 50, dtype, shape, capacity] for name, (dtype, shape, capacity, _) in arrays.items()
    }
    offset = _aligned(_OPENING.size + len(_header_json(header | {"sections": estimate})))
    sections: dict[str, _Section] = {}
    for name, (dtype, shape, capacity, _) in arrays.items():
        sections[name] = _Section(offset, dtype, shape, capacity)
        header["sections"][name] = [offset, dtype, shape, capacity]
        offset = _aligned(sections[name].end)
    header["sums"] = offset
    offset = _aligned(offset + 8 * sum(section.checksums for section in sections.values()))
    if snapshot.index is not None:
        header["codes"] = offset
    header["size"] = offset + codes_size
    blob = _header_json(header)
    file.write(_OPENING.pack(MAGIC, len(blob), hashlib.blake2b(blob, digest_size=32).digest()) + blob)
    for name, (dtype, _, _, parts) in arrays.items():
        file.seek(sections[name].start)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).data)
    if snapshot.index is not None:
        file.seek(header["codes"])
        for rows in snapshot.index.rows.packed(snapshot.rows):
            file.write(rows.data)
    file.truncate(header["size"])
    file.flush()
    _write_checksums(file, header["sums"], sections)


def _write_checksums(file: IO[bytes], offset: int, sections: dict[str, _Section]) -> None:
    def read(count: int, at: int) -> bytes:
        file.seek(at)
        return file.read(count)

    checksums = [_checksums(read, section.start, section.used) for section in sections.values()]
    file.seek(offset)
    file.write(np.concatenate(checksums).tobytes())


_ToWrite = tuple[str, tuple[int, ...], int, _Parts]  # dtype, shape, capacity, and the rows


def _table_arrays(snapshot: IndexSnapshot) -> dict[str, _ToWrite]:
    numbers = snapshot.columns["number"]
    rows = np.full(int(numbers.max(initial=0)) + 1, NONE, np.int32)
    rows[numbers] = np.arange(len(numbers))
    columns = {name: _with_room(column) for name, column in snapshot.columns.items()}
    return {**columns, "row": _without_room(rows)}


def _index_arrays(snapshot: IndexSnapshot) -> dict[str, _ToWrite]:
    index, rows = snapshot.index, snapshot.rows
    assert index is not None
    owners = index.owners[rows]
    firsts = np.flatnonzero(np.diff(owners, prepend=REMOVED))
    first = np.full(int(owners.max(initial=0)) + 1, REMOVED, np.int32)
    count = np.zeros(len(first), np.int32)
    first[owners[firsts]], count[owners[firsts]] = firsts, np.diff(np.append(firsts, len(owners)))
    arrays = {"owner": _with_room(owners), "first": _without_room(first), "count": _without_room(count)}
    if view := index.view:
        arrays |= {"directions": _without_room(view.directions), "units": _without_room(view.units)}
        parts = (view.codes[part] for part in in_parts(rows))
        arrays["view"] = ("i1", (len(rows), COMPONENTS), _capacity(len(rows)), parts)
    return arrays


def _without_room(array: Array) -> _ToWrite:
    return array.dtype.str, array.shape, len(array), iter([array])


def _with_room(array: Array) -> _ToWrite:
    return array.dtype.str, array.shape, _capacity(len(array)), iter([array])


def _capacity(rows: int) -> int:
    """Room for more rows; without it, the first new row would copy all of them."""
    return rows * 9 // 8 + 1024


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def _header_json(header: dict[str, Any]) -> bytes:
    return json.dumps(header).encode()
