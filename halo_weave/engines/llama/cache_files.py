"""KV cache on disk: saved keys and values of pruned text and of windows that were evicted from memory, within a quota."""

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
from halo_weave.engines.base import GIVEN, NAMELESS
from halo_weave.engines.flat_prompt import NEVER, FlatPrompt
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.engines.llama.library import Library

log = logging.getLogger(__name__)

MAGIC = b"HWCELLS3"
LIVE = "live"
SAMPLES, BLOCK = 16, 1 << 20  # blocks of a model file that tell it from others
MAX_HEAD_BYTES = 1 << 24
ABANDONED_SECONDS = 600.0  # seconds
MOST_ON_DISK = 10 << 30
Span = tuple[int, int]  # first label, and the one after the last
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class SavedCells:
    """Tokens with their keys and values, as llama.cpp saves them."""

    tokens: CachedTokens
    order: npt.NDArray[np.intp]  # in which the saved state lists them
    state: npt.NDArray[np.uint8]
    latest: Positions  # (n,), the latest position that each was computed in sight of
    lendable: Bools  # (n,), said in the window that computed them: other windows may use them
    lenders: frozenset[str] = frozenset()  # keys of other windows whose cells were in sight
    owner: str | None = None  # whose window of the memory they are of

    @classmethod
    def unlent(
        cls, tokens: CachedTokens, order: npt.NDArray[np.intp], state: npt.NDArray[np.uint8]
    ) -> SavedCells:
        """Cells that no other window uses, each computed in sight of all before it."""
        latest = np.maximum.accumulate(np.maximum(tokens.labels, -1))
        return cls(tokens, order, state, latest, np.zeros(len(tokens), np.bool_))

    def lent_by(self, lenders: frozenset[str], these: Bools) -> SavedCells:
        """The same for another window, where only these tokens have names."""
        nameless = NAMELESS - np.arange(len(these), dtype=np.int64)
        tokens = CachedTokens(
            np.where(these, self.tokens.labels, nameless), self.tokens.ids, self.tokens.places, elsewhere=True
        )
        return SavedCells(tokens, self.order, self.state, self.latest, np.zeros_like(these), lenders)


@dataclass(frozen=True, slots=True)
class SavedWindow:
    """What was live in a window, in time order."""

    parts: Sequence[SavedCells]
    clean: int  # how many of the first tokens are as reading anew would make them


@dataclass(frozen=True, slots=True)
class DiskUse:
    folder: Path
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Tokens of a file: where their keys and values are, and what they are."""

    window: str  # key
    path: Path
    number: int
    keys: Positions  # sorted: by what the window knows them again
    lendable: Positions  # sorted: positions of those that other windows may use
    owner: str | None


class CacheFiles:
    """The cells of one memory for one model: one shelf for all windows. Only the engine's thread asks; another one writes."""

    def __init__(self, root: Path, key: str, quota: int) -> None:
        self.root, self.folder, self.quota = root, root / key, quota
        self._shelf: dict[
            str, tuple[int, list[_Part]]
        ] = {}  # by the name of a file: its inode, and its parts
        self._changed = -1  # when the folder had changed when it was listed last
        self._listing = threading.Lock()
        self._unwritten: dict[Path, SavedWindow] = {}
        self._unwritten_lock = threading.Lock()
        self._waiting: SimpleQueue[Path | threading.Event | None] = SimpleQueue()
        self._guard = threading.Lock()  # a file is not written while its window is forgotten
        delete_earlier_form(root)
        _delete_abandoned(self.folder)
        self._thread = threading.Thread(target=self._write_all, name="halo-weave cells", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when everything is written."""
        self._waiting.put(None)
        self._thread.join()

    def settle(self) -> None:
        """Returns when all that waits is written."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait()

    def keep(self, window: str, cells: SavedCells) -> None:
        """What fell asleep is written when there is time, unless its file is there already."""
        known = token_keys(cells.tokens.labels, cells.tokens.ids)
        if not len(known):
            return
        digest = hashlib.blake2b(known.tobytes() + cells.tokens.ids.tobytes(), digest_size=12)
        path = self._path(window, digest.hexdigest())
        if not path.exists():
            self._write_soon(path, SavedWindow([cells], 0))

    def save_live(self, window: str, saved: SavedWindow) -> None:
        self._write_soon(self._path(window, LIVE), saved)

    def live(self, window: str) -> SavedWindow | None:
        return self._read(self._path(window, LIVE))

    def asleep(self, window: str, wanted: Positions) -> list[SavedCells]:
        """What the window's files hold of these tokens, which are told by `token_keys`."""
        key, live = window_key(window), self._path(window, LIVE)
        return [
            cells
            for part in self._parts()
            if part.window == key and part.path != live and _some_in(wanted, part.keys)
            if (cells := self._cells(part)) is not None
        ]

    def lent_to(self, window: str, asked: FlatPrompt, wanted: Bools) -> list[SavedCells]:
        """What the files of other windows can lend of the wanted tokens of this window's prompt."""
        key, missing, found = window_key(window), np.sort(asked.labels[wanted]), list[SavedCells]()
        for part in self._parts():
            if part.window == key or part.owner != asked.owner or not _some_in(missing, part.lendable):
                continue
            cells = self._cells(part)
            if cells is None or not asked.is_consistent_with(cells.tokens):
                continue
            these = cells.lendable & asked.has(cells.tokens.labels, cells.tokens.ids, wanted)
            if these.any():
                found.append(cells.lent_by(cells.lenders | {part.window}, these))
                missing = np.setdiff1d(missing, cells.tokens.labels[these], assume_unique=True)
        return found

    def discard(self, window: str) -> None:
        """Nothing of the window is wanted any more."""
        self.settle()
        with self._guard:
            discard_window(self.root, window)

    def erase(self, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
        self.settle()
        with self._guard:
            erase_tokens(self.root, spans, windows)

    def _path(self, window: str, name: str) -> Path:
        return self.folder / f"{window_key(window)}.{name}.cells"

    # The shelf

    def _parts(self) -> Iterator[_Part]:
        """All that the files hold, and what waits to be written. Other servers write and delete files, too."""
        with self._unwritten_lock:
            unwritten = list(self._unwritten.items())
        for path, saved in unwritten:
            yield from _parts_of(path, saved.parts)
        waiting = {path.name for path, _ in unwritten}
        for name, (_, parts) in self._listed_files().items():
            if name not in waiting:
                yield from parts

    def _listed_files(self) -> dict[str, tuple[int, list[_Part]]]:
        """What lies there now."""
        with self._listing:
            try:
                changed = self.folder.stat().st_mtime_ns
                if changed != self._changed:
                    self._shelf = self._list()
                    self._changed = changed
            except OSError:  # nothing was written yet, or it cannot be read
                self._shelf = {}
            return self._shelf

    def _list(self) -> dict[str, tuple[int, list[_Part]]]:
        """Look at the heads of files that are new."""
        there: dict[str, tuple[int, list[_Part]]] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(".cells"):
                    known = self._shelf.get(entry.name)
                    if known is None or known[0] != entry.inode():
                        path = self.folder / entry.name
                        known = entry.inode(), list(_parts_of(path, _tokens_in(path)))
                    there[entry.name] = known
        return there

    def _cells(self, part: _Part) -> SavedCells | None:
        saved = self._read(part.path, part.number)
        return saved.parts[0] if saved else None

    def _read(self, path: Path, number: int | None = None) -> SavedWindow | None:
        """A file, or one part of it. None if it is torn, or not there any more."""
        with self._unwritten_lock:
            waiting = self._unwritten.get(path)
        if waiting is not None:
            return waiting if number is None else SavedWindow([waiting.parts[number]], 0)
        try:
            with path.open("rb") as file:
                saved = _unpacked(file, number)
            os.utime(path)  # what was used last goes last
            return saved
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            log.info("%s is not used and computed anew: %s", path, error)
            with suppress(OSError):
                path.unlink()
            return None

    # In the thread that writes

    def _write_soon(self, path: Path, saved: SavedWindow) -> None:
        with self._unwritten_lock:
            self._unwritten[path] = saved
        self._waiting.put(path)

    def _write_all(self) -> None:
        self._listed_files()  # so that nobody waits for it later
        while (job := self._waiting.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            with self._unwritten_lock:
                saved = self._unwritten.get(job)
            try:
                if saved is not None:
                    with self._guard:
                        _write(job, saved)
                    self._keep_quota()
            except OSError as error:  # a full disk: it is computed again when it is needed
                log.info("Cells were not written to %s: %s", job, error)
            with self._unwritten_lock:
                if self._unwritten.get(job) is saved:  # and nothing newer waits
                    self._unwritten.pop(job, None)

    def _keep_quota(self) -> None:
        """The files that were not used for the longest time go first."""
        files = _files(self.root, "*.cells")
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total <= self.quota:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size


def _some_in(sorted_wanted: Positions, sorted_known: Positions) -> bool:
    """Whether the two have something in common."""
    if not len(sorted_wanted) or not len(sorted_known):
        return False
    first, last = np.searchsorted(sorted_wanted, (sorted_known[0], sorted_known[-1] + 1))
    return first < last and bool(np.isin(sorted_wanted[first:last], sorted_known).any())


def _parts_of(path: Path, parts: Iterable[SavedCells]) -> Iterator[_Part]:
    key = path.name.split(".")[0]
    for number, part in enumerate(parts):
        keys = np.sort(token_keys(part.tokens.labels, part.tokens.ids))
        yield _Part(key, path, number, keys, np.sort(part.tokens.labels[part.lendable]), part.owner)


def _files(root: Path, pattern: str) -> list[tuple[os.stat_result, Path]]:
    """What lies there; another process may delete some of it meanwhile."""
    found = []
    for path in root.rglob(pattern):
        with suppress(FileNotFoundError):
            if path.is_file():
                found.append((path.stat(), path))
    return found


def _delete_abandoned(folder: Path) -> None:
    """Delete what a killed process had not written to its end. No file takes this long to be written."""
    for path in folder.rglob("*.partial"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()


def delete_earlier_form(root: Path) -> None:
    """Earlier versions had a folder for each window. Nobody looks into them, and their names are not known here."""
    for folder in root.glob("*/*/"):
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)


def discard_window(root: Path, window: str) -> None:
    """Delete the cells of a window, of every model. Of a name that stands for several: of all before its first /."""
    delete_earlier_form(root)
    mine = f"{_group_name(window)}*" if window.endswith("/") else f"{window_key(window)}.*"
    for path in root.glob(f"*/{mine}.cells"):
        path.unlink(missing_ok=True)


def erase_tokens(root: Path, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
    """Delete every file that holds one of these tokens, of every window and model.

    Of `windows`, which have read them, also what was computed while they were in sight, and what other windows computed
    in sight of cells of these windows. No spans: they are not known, so all that these windows have computed goes.
    """
    delete_earlier_form(root)
    first = min((first for first, _ in spans), default=-NEVER)
    have_read = {window_key(window) for window in windows}
    for path in root.rglob("*.cells"):
        parts = _tokens_in(path)
        stale = not parts or any(
            overlaps_any(part.tokens.labels, spans)
            or not part.lenders.isdisjoint(have_read)
            or (path.name.split(".")[0] in have_read and int(part.latest.max()) >= first)
            for part in parts
        )
        if stale:
            path.unlink(missing_ok=True)


def window_key(window: str) -> str:
    """Names a window on disk. Windows with the same words before a / can be told by their names."""
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
    """How much may lie there by default: a tenth of what would be free without it, at most 10 GB."""
    there = next((folder for folder in (root, *root.parents) if folder.exists()), Path("."))
    return min(MOST_ON_DISK, (shutil.disk_usage(there).free + disk_use(root).bytes) // 10)


def clear_disk(root: Path) -> DiskUse:
    """Delete all cells. Returns what was there."""
    use = disk_use(root)
    shutil.rmtree(root, ignore_errors=True)
    return use


def cache_key(model: Path, library: Library, *facts: object) -> str:
    """Cells are of use only to the same model file, build of llama.cpp and form of the cache."""
    size, built = model.stat().st_size, library.path.stat()
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((MAGIC, size, library.path.name, built.st_size, built.st_mtime_ns, *facts)).encode())
    with model.open("rb") as file:
        for number in range(SAMPLES + 1):
            file.seek(max(0, size - BLOCK) * number // SAMPLES)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def token_keys(labels: Positions, ids: Ids) -> Positions:
    """Of those tokens that another process knows, too: positions, and of a template's own words label and id in one."""
    same = labels > GIVEN
    named, ids = labels[same], ids[same].astype(np.int64)
    return np.where(named >= 0, named, named + (ids + 1) * GIVEN)


def overlaps_any(labels: Positions, spans: Iterable[Span]) -> bool:
    """Whether one of the labels lies in one of the spans."""
    return any(bool(((labels >= first) & (labels < last)).any()) for first, last in spans)


# The form of a file: magic, checksum of the head, length of the head, head, states.
# The head is JSON with the labels, ids, places and order of each part as numbers, and a checksum of its state.


def _write(path: Path, saved: SavedWindow) -> None:
    """Whole or not at all, readable by the owner only."""
    for folder in reversed(path.parents[:2]):  # of all cells, of a model
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    head = json.dumps({"clean": saved.clean, "parts": [_described(part) for part in saved.parts]}).encode()
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(MAGIC + _checksum(head) + len(head).to_bytes(4, "little") + head)
            for part in saved.parts:
                file.write(part.state.data)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _described(part: SavedCells) -> dict[str, Any]:
    return {
        "labels": part.tokens.labels.tolist(),
        "ids": part.tokens.ids.tolist(),
        "places": part.tokens.places.tolist(),
        "order": part.order.tolist(),
        "latest": part.latest.tolist(),
        "lendable": np.flatnonzero(part.lendable).tolist(),
        "lenders": sorted(part.lenders),
        "owner": part.owner,
        "bytes": part.state.nbytes,
        "checksum": _checksum(part.state.data).hex(),
    }


def _checksum(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _tokens_in(path: Path) -> list[SavedCells]:
    """The parts of a file without their states; none if it is not of this form."""
    try:
        with path.open("rb") as file:
            return [_part(one, b"") for one in _head(file)["parts"]]
    except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError):
        return []


def _head(file: BinaryIO) -> dict[str, Any]:
    front = file.read(len(MAGIC) + 20)
    length = int.from_bytes(front[-4:], "little")
    if not front.startswith(MAGIC) or len(front) < len(MAGIC) + 20 or length > MAX_HEAD_BYTES:
        raise ValueError("it is not a file of cells of this version")
    written = file.read(length)
    if _checksum(written) != front[len(MAGIC) : -4]:
        raise ValueError("the checksum of its head is wrong")
    head = json.loads(written)
    if not isinstance(head, dict):
        raise ValueError("its head is of another form")
    return head


def _part(told: Mapping[str, Any], state: bytes) -> SavedCells:
    """A part as the head tells it."""
    labels = np.array(told["labels"], np.int64)
    tokens = CachedTokens(labels, np.array(told["ids"], np.int32), np.array(told["places"], np.int32))
    order, latest = np.array(told["order"], np.intp), np.array(told["latest"], np.int64)
    lendable = np.zeros(len(labels), np.bool_)
    lendable[np.array(told["lendable"], np.intp)] = True
    if (
        len({len(labels), len(tokens.ids), len(tokens.places), len(order), len(latest)}) != 1
        or not len(labels)
        or (np.diff(tokens.places, prepend=-1) <= 0).any()
        or (np.sort(order) != np.arange(len(order))).any()
    ):
        raise ValueError("its parts do not fit each other")
    lenders = frozenset(str(one) for one in told["lenders"])
    return SavedCells(tokens, order, np.frombuffer(state, np.uint8), latest, lendable, lenders, told["owner"])


def _unpacked(file: BinaryIO, number: int | None) -> SavedWindow:
    """All parts of a file, or one."""
    head = _head(file)
    parts, nameless, at = [], NAMELESS, file.tell()
    for index, told in enumerate(head["parts"]):
        if number in (None, index):
            file.seek(at)
            state = file.read(told["bytes"])
            if len(state) != told["bytes"] or _checksum(state).hex() != told["checksum"]:
                raise ValueError("the checksum of its cells is wrong")
            part = _part(told, state)
            # Labels that the process gave which wrote them name nothing here.
            below = part.tokens.labels <= GIVEN
            part.tokens.labels[below] = np.arange(nameless, nameless - below.sum(), -1)
            nameless -= int(below.sum())
            parts.append(part)
        at += told["bytes"]
    if not parts:
        raise ValueError("it has fewer parts")
    return SavedWindow(parts, int(head["clean"]))
