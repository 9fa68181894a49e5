"""KV cache on disk: files with keys and values of pruned text and of windows that were evicted from memory, within a quota."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import ANONYMOUS_LABELS, PROCESS_LABELS, positions_of
from halo_weave.engines.flat_prompt import NEVER, FlatPrompt
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.engines.llama.cell_encoding import decode, encode
from halo_weave.engines.llama.library import Library

log = logging.getLogger(__name__)

MAGIC = b"HWCELLS4"
LIVE = "live"
SAMPLES, BLOCK = 16, 1 << 20  # number and size of the blocks of a model file that are hashed to identify it
MAX_HEAD_BYTES = 1 << 24
ABANDONED_SECONDS = 600.0  # a partial file of this age belongs to a process that was killed
MAX_DISK_BYTES = 10 << 30
Span = tuple[int, int]  # first label, and the label after the last
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class SavedCells:
    """Tokens with their keys and values, as llama.cpp saves them."""

    tokens: CachedTokens
    order: npt.NDArray[np.intp]  # the order of the tokens in `state`
    state: npt.NDArray[np.uint8]  # keys and values, in llama.cpp's format
    latest: Positions  # (n,), the latest position that each token attended to
    lendable: Bools  # (n,), said in the window that computed them, so other windows may use them
    lenders: frozenset[str] = (
        frozenset()
    )  # keys of other windows whose cells these tokens may have attended to
    owner: str | None = None  # the owner of the window, if it is a window of this server's store

    @classmethod
    def unshared(
        cls, tokens: CachedTokens, order: npt.NDArray[np.intp], state: npt.NDArray[np.uint8]
    ) -> SavedCells:
        """Cells that no other window may use. Each token has attended to all tokens before it."""
        latest = np.maximum.accumulate(np.maximum(tokens.labels, -1))
        return cls(tokens, order, state, latest, np.zeros(len(tokens), np.bool_))

    def as_borrowed(self, lenders: frozenset[str], these: Bools) -> SavedCells:
        """The same cells for another window. Tokens other than `these` get anonymous labels, so they are not used there."""
        anonymous = ANONYMOUS_LABELS - np.arange(len(these), dtype=np.int64)
        tokens = CachedTokens(
            np.where(these, self.tokens.labels, anonymous), self.tokens.ids, self.tokens.places, borrowed=True
        )
        return SavedCells(tokens, self.order, self.state, self.latest, np.zeros_like(these), lenders)


@dataclass(frozen=True, slots=True)
class SavedWindow:
    """The live tokens of a window, in time order."""

    parts: Sequence[SavedCells]
    exact_prefix: (
        int  # number of first tokens whose cells are as a prefill of the whole prompt would make them
    )


@dataclass(frozen=True, slots=True)
class DiskUse:
    folder: Path
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One part of a file: which tokens it has, without their keys and values."""

    window: str  # the window's key
    path: Path
    number: int  # index of the part in its file
    keys: Positions  # sorted `token_keys`
    lendable: Positions  # sorted labels of the tokens that other windows may use
    owner: str | None


class CacheFiles:
    """The saved cells of all windows for one model. The engine's thread reads files; a second thread writes them."""

    def __init__(self, root: Path, key: str, quota: int) -> None:
        self.root, self.folder, self.quota = root, root / key, quota
        self._files_by_name: dict[str, tuple[int, list[_Part]]] = {}  # by file name: its inode, and its parts
        self._changed = -1  # modification time of the folder when it was listed last
        self._listing = threading.Lock()
        self._unwritten: dict[Path, SavedWindow] = {}
        self._unwritten_lock = threading.Lock()
        self._waiting: SimpleQueue[Path | threading.Event | None] = SimpleQueue()
        self._file_lock = threading.Lock()  # a file is not written while files of its window are deleted
        _delete_old_format(root)
        _delete_abandoned(self.folder)
        self._thread = threading.Thread(target=self._write_all, name="halo-weave cells", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write all queued files, and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def flush(self) -> None:
        """Wait until all queued files are written."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait()

    def save_evicted(self, window: str, cells: SavedCells) -> None:
        """Queue cells of pruned text for writing, unless their file exists."""
        self.save_together(window, [cells])

    def save_together(self, window: str, parts: Sequence[SavedCells]) -> None:
        """Queue parts for writing to one file, unless it exists. Deleting text of one part deletes all of them."""
        known = [token_keys(part.tokens.labels, part.tokens.ids) for part in parts]
        if not sum(map(len, known)):
            return
        digest = hashlib.blake2b(
            np.concatenate([*known, *(part.tokens.ids for part in parts)]).tobytes(), digest_size=12
        )
        path = self._path(window, digest.hexdigest())
        if not path.exists():
            self._queue_write(path, SavedWindow(parts, 0))

    def positions(self, owner: str) -> Positions:
        """The sorted positions of all text of an owner that has cells here."""
        found = [positions_of(part.lendable) for part in self._parts() if part.owner == owner]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def has_room(self, size: int) -> bool:
        """Whether this many bytes more are within the quota, so that nothing has to be deleted for them."""
        with self._unwritten_lock:
            waiting = [part for saved in self._unwritten.values() for part in saved.parts]
        return disk_use(self.root).bytes + sum(part.state.nbytes for part in waiting) + size <= self.quota

    def save_live(self, window: str, saved: SavedWindow) -> None:
        self._queue_write(self._path(window, LIVE), saved)

    def load_live(self, window: str) -> SavedWindow | None:
        return self._read(self._path(window, LIVE))

    def load_evicted(self, window: str, keys: Positions) -> list[SavedCells]:
        """The parts of the window's files that have one of these tokens. `keys`: their `token_keys`, sorted."""
        wanted_window, live = window_key(window), self._path(window, LIVE)
        return [
            cells
            for part in self._parts()
            if part.window == wanted_window and part.path != live and _intersect(keys, part.keys)
            if (cells := self._cells(part)) is not None
        ]

    def cells_to_lend(self, window: str, prompt: FlatPrompt, missing: Bools) -> list[SavedCells]:
        """Cells from files of other windows for the `missing` tokens of this window's prompt."""
        key, labels, lent = window_key(window), np.sort(prompt.labels[missing]), list[SavedCells]()
        for part in self._parts():
            if part.window == key or part.owner != prompt.owner or not _intersect(labels, part.lendable):
                continue
            cells = self._cells(part)
            if cells is None or not prompt.is_consistent_with(cells.tokens):
                continue
            these = cells.lendable & prompt.contains(cells.tokens.labels, cells.tokens.ids, missing)
            if these.any():
                lent.append(cells.as_borrowed(cells.lenders | {part.window}, these))
                labels = np.setdiff1d(labels, cells.tokens.labels[these], assume_unique=True)
        return lent

    def discard(self, window: str) -> None:
        """Delete the files of a window."""
        self.flush()
        with self._file_lock:
            discard_window(self.root, window)

    def erase(self, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
        self.flush()
        with self._file_lock:
            erase_tokens(self.root, spans, windows)

    def _path(self, window: str, name: str) -> Path:
        return self.folder / f"{window_key(window)}.{name}.cells"

    # Listing and reading files

    def _parts(self) -> Iterator[_Part]:
        """The parts of all files, also of those that are not written yet. Other servers write and delete files, too."""
        with self._unwritten_lock:
            unwritten = list(self._unwritten.items())
        for path, saved in unwritten:
            yield from _parts_in(path, saved.parts)
        waiting = {path.name for path, _ in unwritten}
        for name, (_, parts) in self._listed_files().items():
            if name not in waiting:
                yield from parts

    def _listed_files(self) -> dict[str, tuple[int, list[_Part]]]:
        """The files in the folder, which is listed again if it has changed."""
        with self._listing:
            try:
                changed = self.folder.stat().st_mtime_ns
                if changed != self._changed:
                    self._files_by_name = self._list()
                    self._changed = changed
            except OSError:  # the folder does not exist yet, or cannot be read
                self._files_by_name = {}
            return self._files_by_name

    def _list(self) -> dict[str, tuple[int, list[_Part]]]:
        """List the folder, and read the heads of new files."""
        listed: dict[str, tuple[int, list[_Part]]] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".cells"):
                    known = self._files_by_name.get(entry.name)
                    if known is None or known[0] != entry.inode():
                        path = self.folder / entry.name
                        known = entry.inode(), list(_parts_in(path, _read_tokens(path)))
                    listed[entry.name] = known
        return listed

    def _cells(self, part: _Part) -> SavedCells | None:
        saved = self._read(part.path, part.number)
        return saved.parts[0] if saved else None

    def _read(self, path: Path, number: int | None = None) -> SavedWindow | None:
        """A file, or one part of it. None if it is damaged or does not exist any more."""
        with self._unwritten_lock:
            waiting = self._unwritten.get(path)
        if waiting is not None:
            return waiting if number is None else SavedWindow([waiting.parts[number]], 0)
        try:
            with path.open("rb") as file:
                saved = _read_parts(file, number)
            os.utime(path)  # the modification time is the time of the last use
            return saved
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            log.info("%s is deleted, and its tokens are computed again: %s", path, error)
            with suppress(OSError):
                path.unlink()
            return None

    # Writing, in a thread of its own

    def _queue_write(self, path: Path, saved: SavedWindow) -> None:
        with self._unwritten_lock:
            self._unwritten[path] = saved
        self._waiting.put(path)

    def _write_all(self) -> None:
        self._listed_files()  # in advance, so that the first prompt does not wait for it
        while (job := self._waiting.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            with self._unwritten_lock:
                saved = self._unwritten.get(job)
            try:
                if saved is not None:
                    with self._file_lock:
                        _write(job, saved)
                    self._enforce_quota()
            except (
                OSError
            ) as error:  # such as a full disk: the tokens are computed again when they are needed
                log.info("Cells were not written to %s: %s", job, error)
            with self._unwritten_lock:
                if self._unwritten.get(job) is saved:  # nothing newer is queued
                    self._unwritten.pop(job, None)

    def _enforce_quota(self) -> None:
        """Delete the least recently used files until the total size is within the quota."""
        files = _files(self.root, "*.cells")
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total <= self.quota:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size


def _intersect(sorted_a: Positions, sorted_b: Positions) -> bool:
    """Whether the two have a value in common."""
    if not len(sorted_a) or not len(sorted_b):
        return False
    first, last = np.searchsorted(sorted_a, (sorted_b[0], sorted_b[-1] + 1))
    return first < last and bool(np.isin(sorted_a[first:last], sorted_b).any())


def _parts_in(path: Path, parts: Iterable[SavedCells]) -> Iterator[_Part]:
    key = path.name.split(".")[0]
    for number, part in enumerate(parts):
        keys = np.sort(token_keys(part.tokens.labels, part.tokens.ids))
        yield _Part(key, path, number, keys, np.sort(part.tokens.labels[part.lendable]), part.owner)


def _files(root: Path, pattern: str) -> list[tuple[os.stat_result, Path]]:
    """The files below a folder with their stat. Another process may delete some of them meanwhile."""
    found = []
    for path in root.rglob(pattern):
        with suppress(FileNotFoundError):
            if path.is_file():
                found.append((path.stat(), path))
    return found


def _delete_abandoned(folder: Path) -> None:
    """Delete partial files of processes that were killed while writing."""
    for path in folder.rglob("*.partial"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()


def _delete_old_format(root: Path) -> None:
    """Delete the files of earlier versions, which had a folder for each window."""
    for folder in root.glob("*/*/"):
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)


def discard_window(root: Path, window: str) -> None:
    """Delete the files of a window for every model. A name that ends with `/` stands for a group of windows."""
    _delete_old_format(root)
    mine = f"{_group_name(window)}*" if window.endswith("/") else f"{window_key(window)}.*"
    for path in root.glob(f"*/{mine}.cells"):
        path.unlink(missing_ok=True)


def erase_tokens(root: Path, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
    """Delete every file that has one of the tokens in `spans`, of every window and model.

    `windows`: windows whose prompts have contained the tokens. Their files with tokens that have attended to deleted ones
    are deleted, and files of other windows with tokens that have attended to cells copied from `windows`. No spans: the
    deleted tokens are not known, so all files of `windows` are deleted.
    """
    _delete_old_format(root)
    first = min((first for first, _ in spans), default=-NEVER)
    affected = {window_key(window) for window in windows}
    for path in root.rglob("*.cells"):
        parts = _read_tokens(path)
        stale = not parts or any(
            overlaps_any(part.tokens.labels, spans)
            or not part.lenders.isdisjoint(affected)
            or (path.name.split(".")[0] in affected and int(part.latest.max()) >= first)
            for part in parts
        )
        if stale:
            path.unlink(missing_ok=True)


def window_key(window: str) -> str:
    """The beginning of a window's file names. Windows of the same group (see `Engine.forget`) have a common prefix."""
    return f"{_group_name(window)}{_digest(window)}"


def _group_name(window: str) -> str:
    group, slash, _ = window.partition("/")
    return f"{_digest(group)}-" if slash else ""


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def disk_use(root: Path) -> DiskUse:
    sizes = [stat.st_size for stat, _ in _files(root, "*")]
    return DiskUse(root, len(sizes), sum(sizes))


def disk_quota(root: Path) -> int:
    """The default quota: a tenth of the space that would be free without these files, at most 10 GB."""
    existing = next((folder for folder in (root, *root.parents) if folder.exists()), Path("."))
    return min(MAX_DISK_BYTES, (shutil.disk_usage(existing).free + disk_use(root).bytes) // 10)


def clear_disk(root: Path) -> DiskUse:
    """Delete all files. Returns what was deleted."""
    use = disk_use(root)
    shutil.rmtree(root, ignore_errors=True)
    return use


def cache_key(model: Path, library: Library, *facts: object) -> str:
    """Identifies the model file, the build of llama.cpp and the `facts` about the cache that saved cells depend on."""
    size, built = model.stat().st_size, library.path.stat()
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((MAGIC, size, library.path.name, built.st_size, built.st_mtime_ns, *facts)).encode())
    with model.open("rb") as file:
        for number in range(SAMPLES + 1):
            file.seek(max(0, size - BLOCK) * number // SAMPLES)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def token_keys(labels: Positions, ids: Ids) -> Positions:
    """A number for each token that another process can identify: its position, or for template text label and id combined."""
    stable = labels > PROCESS_LABELS
    labels, ids = labels[stable], ids[stable].astype(np.int64)
    return np.where(labels >= 0, labels, labels + (ids + 1) * PROCESS_LABELS)


def overlaps_any(labels: Positions, spans: Iterable[Span]) -> bool:
    """Whether the position of one of the labels is within one of the spans."""
    positions = positions_of(labels)
    return any(bool(((positions >= first) & (positions < last)).any()) for first, last in spans)


# The format of a file: magic, checksum of the head, length of the head, head, states.
# The head is JSON with the key of the model (the name of the file's folder), the labels, ids, places and order of each part, and
# the size and checksum of its state, and whether it is encoded with 8 bits.


def _write(path: Path, saved: SavedWindow) -> None:
    """Write a file completely or not at all, readable by the user only."""
    for folder in reversed(path.parents[:2]):  # the folder of all models, and that of this model
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # A window's live cells stay as they are, so that it goes on exactly; those of chunks are rounded to 8 bits.
    live = path.name.split(".")[1] == LIVE
    encoded = [None if live else encode(part.state) for part in saved.parts]
    states = [part.state if code is None else code for part, code in zip(saved.parts, encoded, strict=True)]
    parts = [
        {
            **_part_as_json(part),
            "encoded": code is not None,
            "bytes": state.nbytes,
            "checksum": _checksum(state.data).hex(),
        }
        for part, code, state in zip(saved.parts, encoded, states, strict=True)
    ]
    head = json.dumps({"key": path.parent.name, "clean": saved.exact_prefix, "parts": parts}).encode()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(MAGIC + _checksum(head) + len(head).to_bytes(4, "little") + head)
            for state in states:
                file.write(state.data)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _part_as_json(part: SavedCells) -> dict[str, Any]:
    return {
        "labels": part.tokens.labels.tolist(),
        "ids": part.tokens.ids.tolist(),
        "places": part.tokens.places.tolist(),
        "order": part.order.tolist(),
        "latest": part.latest.tolist(),
        "lendable": np.flatnonzero(part.lendable).tolist(),
        "lenders": sorted(part.lenders),
        "owner": part.owner,
    }


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _read_tokens(path: Path) -> list[SavedCells]:
    """The parts of a file without their keys and values; none if it is damaged or has another format."""
    try:
        with path.open("rb") as file:
            return [_part_from_json(part, np.zeros(0, np.uint8)) for part in _read_head(file)["parts"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError):
        return []


def _read_head(file: BinaryIO) -> dict[str, Any]:
    front = file.read(len(MAGIC) + 20)
    length = int.from_bytes(front[-4:], "little")
    if not front.startswith(MAGIC) or len(front) < len(MAGIC) + 20 or length > MAX_HEAD_BYTES:
        raise ValueError("it is not a file of this format")
    raw = file.read(length)
    if _checksum(raw) != front[len(MAGIC) : -4]:
        raise ValueError("the checksum of its head is wrong")
    head = json.loads(raw)
    if not isinstance(head, dict) or head.get("key") != Path(file.name).parent.name:
        raise ValueError("it is of another model")
    return head


def _part_from_json(entry: Mapping[str, Any], state: npt.NDArray[np.uint8]) -> SavedCells:
    labels = np.array(entry["labels"], np.int64)
    tokens = CachedTokens(labels, np.array(entry["ids"], np.int32), np.array(entry["places"], np.int32))
    order, latest = np.array(entry["order"], np.intp), np.array(entry["latest"], np.int64)
    lendable = np.zeros(len(labels), np.bool_)
    lendable[np.array(entry["lendable"], np.intp)] = True
    if (
        len({len(labels), len(tokens.ids), len(tokens.places), len(order), len(latest)}) != 1
        or not len(labels)
        or (np.diff(tokens.places, prepend=-1) <= 0).any()
        or (np.sort(order) != np.arange(len(order))).any()
    ):
        raise ValueError("its head is inconsistent")
    lenders = frozenset(str(window) for window in entry["lenders"])
    return SavedCells(tokens, order, state, latest, lendable, lenders, entry["owner"])


def _read_parts(file: BinaryIO, number: int | None) -> SavedWindow:
    """All parts of a file, or one."""
    head = _read_head(file)
    parts, next_label, at = [], ANONYMOUS_LABELS, file.tell()
    for index, entry in enumerate(head["parts"]):
        if number in (None, index):
            file.seek(at)
            state = file.read(entry["bytes"])
            if len(state) != entry["bytes"] or _checksum(state).hex() != entry["checksum"]:
                raise ValueError("the checksum of its cells is wrong")
            numbers = np.frombuffer(state, np.uint8)
            part = _part_from_json(entry, decode(numbers) if entry["encoded"] else numbers)
            # Labels that the writing process has assigned mean nothing here.
            foreign = part.tokens.labels <= PROCESS_LABELS
            part.tokens.labels[foreign] = np.arange(next_label, next_label - foreign.sum(), -1)
            next_label -= int(foreign.sum())
            parts.append(part)
        at += entry["bytes"]
    if not parts:
        raise ValueError("it has fewer parts than expected")
    return SavedWindow(parts, int(head["clean"]))
