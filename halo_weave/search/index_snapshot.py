"""A snapshot of the search index in a memory-mapped file, so that a large memory opens at once."""

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
    GONE,
    OpenFile,
    PrincipalComponents,
    QuantizedRows,
    RowFile,
    SnapshotDamaged,
    VectorIndex,
    parts_of,
    row_size,
)
from halo_weave.store.records import Numbers
from halo_weave.store.sql_store import SqlStore

log = logging.getLogger(__name__)
Array = npt.NDArray[Any]

MAGIC = b"HWINDEX1"
_OPENING = struct.Struct("<8sQ32s")  # magic, length of the head, its digest
LONGEST_HEAD = 1 << 26
ALIGNED = 4096
BLOCK = 1 << 16  # bytes that one sum is for
ABANDONED_SECONDS = 600.0  # seconds; no file takes this long to be written


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """What recall has of a memory, up to a point of its changes."""

    outline: ChunkTable
    index: VectorIndex | None  # None: the store searches the vectors itself
    sequence: int


def open_snapshot(
    path: Path, store: SqlStore, generation: int, *, vectors: bool, writes: bool
) -> LoadedIndex | None:
    """What a file holds of this memory, if it fits. `vectors`: whether it must have them."""
    try:
        descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    try:
        image = _SnapshotFile(path, OpenFile(descriptor), writes)
        head = image.head
        if (head["generation"], "codes" in head) != (generation, vectors):
            return None
        if head["sequence"] > store.sequence() or not store.knows_index_snapshot(head["mark"]):
            return None
        image.check()
        return image.loaded()
    except (SnapshotDamaged, OSError, ValueError, KeyError, TypeError) as error:
        log.info("%s is not used, the memory is read from its store: %s", path, error)
        return None


def delete_snapshot(path: Path) -> None:
    """Delete the file, and what killed processes left of such ones."""
    for one in (path, *path.parent.glob(f"{path.name}.*.partial")):
        try:
            one.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be deleted: %s", one, error)


class IndexSnapshot:
    """What was loaded, as it is now, while that changes."""

    def __init__(self, loaded: LoadedIndex) -> None:
        self.sequence = loaded.sequence
        self.columns, self.windows, self.speakers = loaded.outline.snapshot()
        self.index: VectorIndex | None = None
        self.rows = np.zeros(0, np.int64)
        if loaded.index is not None:
            self.index, self.rows = loaded.index.snapshot()


def write_snapshot(path: Path, store: SqlStore, generation: int, snapshot: IndexSnapshot) -> None:
    """Whole or not at all, readable by the owner only."""
    if sys.byteorder != "little":
        return
    for partial in path.parent.glob(f"{path.name}.*.partial"):
        with suppress(OSError):
            if time.time() - partial.stat().st_mtime > ABANDONED_SECONDS:
                partial.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    mark = secrets.token_hex(16)
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(descriptor, "r+b") as file:
            _write(file, snapshot, {"mark": mark, "generation": generation, "sequence": snapshot.sequence})
            file.flush()
            os.fsync(file.fileno())
        if store.record_index_snapshot(mark, generation):
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Section:
    """An array in the file, with room for more rows."""

    start: int
    kind: str
    shape: tuple[int, ...]  # of what is there
    room: int  # rows that fit in

    @property
    def used(self) -> int:
        """Bytes."""
        return int(np.dtype(self.kind).itemsize * np.prod(self.shape))

    @property
    def end(self) -> int:
        return self.start + int(np.dtype(self.kind).itemsize * np.prod((self.room, *self.shape[1:])))

    @property
    def sums(self) -> int:
        return -(-self.used // BLOCK)

    def array(self, mapped: mmap.mmap) -> Array:
        whole = (self.room, *self.shape[1:])
        return np.frombuffer(mapped, self.kind, int(np.prod(whole)), self.start).reshape(whole)


class _SnapshotFile:
    """A file that is open."""

    def __init__(self, path: Path, file: OpenFile, writes: bool) -> None:
        self._path, self._file, self._writes = path, file, writes
        self.head = self._read_head()
        self._sections = {
            name: _Section(start, kind, tuple(shape), room)
            for name, (start, kind, shape, room) in self.head["sections"].items()
        }

    def check(self) -> None:
        """Raises `ImageDamaged` if something is not as it was written. Vectors are looked at when they are read."""
        known = np.frombuffer(self._file.read(self._sums(None) * 8, self.head["sums"]), "<u8")
        found = [_sums(self._file.read, one.start, one.used) for one in self._sections.values()]
        if not np.array_equal(known, np.concatenate(found)):
            raise SnapshotDamaged("a part of it is not as it was written")

    def loaded(self) -> LoadedIndex:
        head, sections = self.head, self._sections
        end = max(one.end for one in sections.values())
        mapped = mmap.mmap(self._file.descriptor, end, access=mmap.ACCESS_COPY)
        arrays = {name: section.array(mapped) for name, section in sections.items()}
        outline = ChunkTable.from_snapshot(
            {name: arrays[name] for name in COLUMNS},
            sections["number"].shape[0],
            NumberMap(NONE, arrays["row"]),
            head["windows"],
            head["speakers"],
        )
        if "codes" not in head:
            return LoadedIndex(outline, None, head["sequence"])
        count, dimension = sections["owner"].shape[0], head["dimension"]
        self._codes = RowFile(self._file, head["codes"], count, dimension)
        view = "view" in arrays and PrincipalComponents(arrays["directions"], arrays["units"], arrays["view"])
        index = VectorIndex.from_snapshot(
            dimension,
            QuantizedRows(dimension, self._codes),
            arrays["owner"],
            NumberMap(GONE, arrays["first"]),
            NumberMap(0, arrays["count"]),
            view or None,
            head["learned"],
            self._erase,
        )
        return LoadedIndex(outline, index, head["sequence"])

    def _erase(self, rows: Numbers | None) -> None:
        """The vectors of these rows go out of the file; None: it is of no use any more."""
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
                delete_snapshot(
                    self._path
                )  # another process wrote this one, and may not be there to do the same
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s cannot be changed and is deleted: %s", self._path, error)
            delete_snapshot(self._path)

    def _erase_view(self, rows: Numbers) -> None:
        view, first = self._sections["view"], self.head["sums"] + 8 * self._sums("view")
        for row in rows.tolist():
            self._file.write(bytes(COMPONENTS), view.start + row * COMPONENTS)
        places = rows * COMPONENTS
        for block in np.unique(np.concatenate([places, places + COMPONENTS - 1]) // BLOCK).tolist():
            length = min(BLOCK, view.used - block * BLOCK)
            total = _sums(self._file.read, view.start + block * BLOCK, length)
            self._file.write(total.tobytes(), first + 8 * block)

    def _sums(self, name: str | None) -> int:
        """How many sums stand before those of a section; None: in all."""
        names = list(self._sections)
        before = names[: names.index(name)] if name else names
        return sum(self._sections[one].sums for one in before)

    def _read_head(self) -> dict[str, Any]:
        opening = self._file.read(_OPENING.size, 0)
        if len(opening) < _OPENING.size:
            raise SnapshotDamaged("it is too short")
        magic, length, digest = _OPENING.unpack(opening)
        if magic != MAGIC or length > LONGEST_HEAD:
            raise SnapshotDamaged("it is of another kind")
        blob = self._file.read(length, _OPENING.size)
        if hashlib.blake2b(blob, digest_size=32).digest() != digest:
            raise SnapshotDamaged("its head is not as it was written")
        head = dict(json.loads(blob))
        if os.fstat(self._file.descriptor).st_size != head["size"]:
            raise SnapshotDamaged("it is not as long as it was")
        return head


def _sums(read: Callable[[int, int], bytes], start: int, used: int) -> npt.NDArray[np.uint64]:
    """Of each block of the bytes in use, as words."""
    found = [np.zeros(0, np.uint64)]
    for at in range(0, used, 16 * BLOCK):
        piece = read(min(16 * BLOCK, used - at), start + at)
        words = np.frombuffer(piece + bytes(-len(piece) % 8), "<u8")
        found.append(np.add.reduceat(words, np.arange(0, len(words), BLOCK // 8)))
    return np.concatenate(found)


# Writing

_Parts = Iterator[Array]  # of an array, one after the other


def _write(file: IO[bytes], snapshot: IndexSnapshot, head: dict[str, Any]) -> None:
    """Head, arrays, sums of the arrays, vectors. Room that is not used takes no space on the disk."""
    arrays = {**_outline_arrays(snapshot), **(_index_arrays(snapshot) if snapshot.index is not None else {})}
    head |= {"windows": snapshot.windows, "speakers": snapshot.speakers}
    count, codes = len(snapshot.rows), 0
    if snapshot.index is not None:
        dimension = snapshot.index.dimension
        codes = count * row_size(dimension)
        head |= {"dimension": dimension, "learned": snapshot.index.learned, "codes": 1 << 50}
    head |= {"sums": 1 << 50, "size": 1 << 50, "sections": {}}
    names = {name: [1 << 50, kind, shape, room] for name, (kind, shape, room, _) in arrays.items()}
    at = _aligned(_OPENING.size + len(_packed_head(head | {"sections": names})))
    for name, (kind, shape, room, _) in arrays.items():
        section = _Section(at, kind, shape, room)
        head["sections"][name] = [at, kind, shape, room]
        at = _aligned(section.end)
    sections = {
        name: _Section(start, kind, shape, room)
        for name, (start, kind, shape, room) in head["sections"].items()
    }
    head["sums"] = at
    at = _aligned(at + 8 * sum(section.sums for section in sections.values()))
    if snapshot.index is not None:
        head["codes"] = at
    head["size"] = at + codes
    blob = _packed_head(head)
    file.write(_OPENING.pack(MAGIC, len(blob), hashlib.blake2b(blob, digest_size=32).digest()) + blob)
    for name, (kind, _, _, parts) in arrays.items():
        file.seek(sections[name].start)
        for part in parts:
            file.write(np.ascontiguousarray(part, kind).data)
    if snapshot.index is not None:
        file.seek(head["codes"])
        for rows in snapshot.index.rows.packed(snapshot.rows):
            file.write(rows.data)
    file.truncate(head["size"])
    file.flush()
    _write_sums(file, head["sums"], sections)


def _write_sums(file: IO[bytes], at: int, sections: dict[str, _Section]) -> None:
    def read(count: int, place: int) -> bytes:
        file.seek(place)
        return file.read(count)

    found = [_sums(read, section.start, section.used) for section in sections.values()]
    file.seek(at)
    file.write(np.concatenate(found).tobytes())


_ToWrite = tuple[str, tuple[int, ...], int, _Parts]  # kind, shape, room, and the rows


def _outline_arrays(snapshot: IndexSnapshot) -> dict[str, _ToWrite]:
    numbers = snapshot.columns["number"]
    rows = np.full(int(numbers.max(initial=0)) + 1, NONE, np.int32)
    rows[numbers] = np.arange(len(numbers))
    found = {name: _with_room(column) for name, column in snapshot.columns.items()}
    return {**found, "row": _alone(rows)}


def _index_arrays(snapshot: IndexSnapshot) -> dict[str, _ToWrite]:
    index, rows = snapshot.index, snapshot.rows
    assert index is not None
    owners = index.owners[rows]
    firsts = np.flatnonzero(np.diff(owners, prepend=GONE))
    first = np.full(int(owners.max(initial=0)) + 1, GONE, np.int32)
    count = np.zeros(len(first), np.int32)
    first[owners[firsts]], count[owners[firsts]] = firsts, np.diff(np.append(firsts, len(owners)))
    found = {"owner": _with_room(owners), "first": _alone(first), "count": _alone(count)}
    if view := index.view:
        found |= {"directions": _alone(view.directions), "units": _alone(view.units)}
        parts = (view.codes[part] for part in parts_of(rows))
        found["view"] = ("i1", (len(rows), COMPONENTS), _room(len(rows)), parts)
    return found


def _alone(array: Array) -> _ToWrite:
    return array.dtype.str, array.shape, len(array), iter([array])


def _with_room(array: Array) -> _ToWrite:
    return array.dtype.str, array.shape, _room(len(array)), iter([array])


def _room(rows: int) -> int:
    """Without it the first new row would copy all of them."""
    return rows * 9 // 8 + 1024


def _aligned(place: int) -> int:
    return -(-place // ALIGNED) * ALIGNED


def _packed_head(head: dict[str, Any]) -> bytes:
    return json.dumps(head).encode()
