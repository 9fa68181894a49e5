"""KV cache on disk: saved keys and values of pruned text and of windows that were evicted from memory, within a quota."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import GIVEN, NAMELESS, windows_named_by
from halo_weave.engines.llama.cache_plan import CachedTokens, all_before
from halo_weave.engines.llama.library import Library

log = logging.getLogger(__name__)

MAGIC = b"HWCELLS2"
LIVE_FILE = "live.cells"
SAMPLES, BLOCK = 16, 1 << 20  # blocks of a model file that tell it from others
MAX_HEAD_BYTES = 1 << 24
ABANDONED_SECONDS = 600.0  # seconds
Span = tuple[int, int]  # first label, and the one after the last


@dataclass(slots=True, eq=False)
class SavedCells:
    """Tokens with their keys and values, as llama.cpp saves them."""

    tokens: CachedTokens
    order: npt.NDArray[np.intp]  # in which the saved state lists them
    state: npt.NDArray[np.uint8]


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


_Job = tuple[Path, Sequence[SavedCells], int]  # what is written where, and how much of it is clean


class CacheFiles:
    """The files of one data folder for one model. Only the engine's thread asks; a thread of its own writes."""

    def __init__(self, root: Path, key: str, quota: int) -> None:
        self.root, self.folder, self.quota = root, root / key, quota
        self._shelves: dict[str, dict[int, str]] = {}  # of each window: which file has a token, by `names_of`
        self._waiting: SimpleQueue[_Job | threading.Event | None] = SimpleQueue()
        self._guard = threading.Lock()  # a file is not written while its window is forgotten
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

    def keep(self, window: str, evicted_cells: SavedCells) -> None:
        """What fell asleep is written when there is time, unless its file is there already."""
        known = token_keys(evicted_cells.tokens.labels, evicted_cells.tokens.ids)
        if not len(known):
            return
        digest = hashlib.blake2b(known.tobytes() + evicted_cells.tokens.ids.tobytes(), digest_size=12)
        name = f"{digest.hexdigest()}.cells"
        self._window_folder(window).update(dict.fromkeys(known.tolist(), name))
        if not (path := self._place(window) / name).exists():
            self._waiting.put((path, [evicted_cells], 0))

    def save_live(self, window: str, saved: SavedWindow) -> None:
        self._waiting.put((self._place(window) / LIVE_FILE, saved.parts, saved.clean))

    def live(self, window: str) -> SavedWindow | None:
        return self._read(self._place(window) / LIVE_FILE)

    def asleep(self, window: str, wanted: Positions) -> list[SavedCells]:
        """What the files hold of these tokens, which are told by `names_of`."""
        shelf = self._window_folder(window)
        names = {shelf[token] for token in wanted.tolist() if token in shelf}
        found: list[SavedCells] = []
        for name in sorted(names):
            saved = self._read(self._place(window) / name)
            found += saved.parts if saved else ()
        return found

    def discard(self, window: str) -> None:
        """Nothing of the window is wanted any more."""
        for one in windows_named_by(window, list(self._shelves)):
            self._shelves.pop(one)
        self.settle()
        with self._guard:
            discard_window(self.root, window)

    def erase(self, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
        self.settle()
        with self._guard:
            erase_tokens(self.root, spans, windows)
        self._shelves.clear()

    def _place(self, window: str) -> Path:
        return self.folder / _folder_name(window)

    def _window_folder(self, window: str) -> dict[int, str]:
        shelf = self._shelves.get(window)
        if shelf is None:
            shelf = self._shelves[window] = {}
            for path in self._place(window).glob("*.cells"):
                if path.name != LIVE_FILE and (head := _head(path)) is not None:
                    shelf.update(dict.fromkeys(token_keys(head[1], head[2]).tolist(), path.name))
        return shelf

    def _read(self, path: Path) -> SavedWindow | None:
        """None if the file is torn, or not there any more."""
        try:
            content = path.read_bytes()
            saved = _unpacked(content)
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

    def _write_all(self) -> None:
        while (job := self._waiting.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            path, parts, clean = job
            try:
                with self._guard:
                    _write(path, parts, clean)
                self._keep_quota()
            except OSError as error:  # a full disk: it is computed again when it is needed
                log.info("Cells were not written to %s: %s", path, error)

    def _keep_quota(self) -> None:
        """The files that were not used for the longest time go first."""
        files = _files(self.root, "*.cells")
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total <= self.quota:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size


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


def discard_window(root: Path, window: str) -> None:
    """Delete the cells of a window, of every model. Of a name that stands for several: of all before its first /."""
    folders = f"*/{_group_name(window)}*" if window.endswith("/") else f"*/{_folder_name(window)}"
    for folder in root.glob(folders):
        shutil.rmtree(folder, ignore_errors=True)


def erase_tokens(root: Path, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
    """Delete every file that holds one of these tokens, of every window and model.

    Of `windows`, which have read them, also what was live, and what stands later.
    """
    first = min((first for first, _ in spans), default=0)
    have_read = {_folder_name(window) for window in windows}
    for path in root.rglob("*.cells"):
        head = _head(path)
        stale = path.parent.name in have_read and (
            path.name == LIVE_FILE or head is None or not all_before(head[1], first)
        )
        if stale or head is None or overlaps_any(head[1], spans):
            path.unlink(missing_ok=True)


def _folder_name(window: str) -> str:
    """Windows with the same words before a / can be told by their folders."""
    return f"{_group_name(window)}{_digest(window)}"


def _group_name(window: str) -> str:
    group, slash, _ = window.partition("/")
    return f"{_digest(group)}-" if slash else ""


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def disk_use(root: Path) -> DiskUse:
    sizes = [stat.st_size for stat, _ in _files(root, "*")]
    return DiskUse(root, len(sizes), sum(sizes))


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


# The form of a file: magic, checksum of all that follows, length of the head, head, states.
# The head is JSON with the labels, ids, places and order of each part as numbers.


def _write(path: Path, parts: Sequence[SavedCells], clean: int) -> None:
    """Whole or not at all, readable by the owner only."""
    for folder in reversed(path.parents[:3]):  # of all cells, of a model, of a window
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    head = json.dumps(
        {
            "clean": clean,
            "parts": [
                {
                    "labels": part.tokens.labels.tolist(),
                    "ids": part.tokens.ids.tolist(),
                    "places": part.tokens.places.tolist(),
                    "order": part.order.tolist(),
                    "bytes": part.state.nbytes,
                }
                for part in parts
            ],
        }
    ).encode()
    digest = hashlib.blake2b(len(head).to_bytes(4, "little") + head, digest_size=16)
    for part in parts:
        digest.update(part.state.data)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(MAGIC + digest.digest() + len(head).to_bytes(4, "little") + head)
        for part in parts:
            file.write(part.state.data)
    partial.replace(path)


def _head(path: Path) -> tuple[dict[str, Any], Positions, Ids] | None:
    """The head of a file, and the labels and ids in it. Not checked: that needs the whole file."""
    try:
        with path.open("rb") as file:
            head = _parsed_head(file)
        labels = np.array([label for part in head["parts"] for label in part["labels"]], np.int64)
        ids = np.array([id for part in head["parts"] for id in part["ids"]], np.int32)
        return (head, labels, ids) if len(labels) == len(ids) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _parsed_head(file: BinaryIO) -> dict[str, Any]:
    front = file.read(len(MAGIC) + 20)
    length = int.from_bytes(front[-4:], "little")
    if not front.startswith(MAGIC) or len(front) < len(MAGIC) + 20 or length > MAX_HEAD_BYTES:
        raise ValueError("it is not a file of cells of this version")
    head = json.loads(file.read(length))
    if not isinstance(head, dict):
        raise ValueError("its head is of another form")
    return head


def _unpacked(content: bytes) -> SavedWindow:
    start = len(MAGIC) + 16
    if not content.startswith(MAGIC) or len(content) < start + 4:
        raise ValueError("it is not a file of cells of this version")
    whole = memoryview(content)
    if hashlib.blake2b(whole[start:], digest_size=16).digest() != content[len(MAGIC) : start]:
        raise ValueError("its checksum is wrong")
    length = int.from_bytes(content[start : start + 4], "little")
    head = json.loads(bytes(whole[start + 4 : start + 4 + length]))
    at, parts, nameless = start + 4 + length, [], NAMELESS
    for part in head["parts"]:
        labels = np.array(part["labels"], np.int64)
        # Labels that the process gave which wrote them name nothing here.
        below = labels <= GIVEN
        labels[below] = np.arange(nameless, nameless - below.sum(), -1)
        nameless -= int(below.sum())
        tokens = CachedTokens(labels, np.array(part["ids"], np.int32), np.array(part["places"], np.int32))
        order = np.array(part["order"], np.intp)
        state = np.frombuffer(whole[at : at + part["bytes"]], np.uint8)
        sizes = {len(labels), len(tokens.ids), len(tokens.places), len(order)}
        sound = len(sizes) == 1 and len(labels) and len(state) == part["bytes"]
        if (
            not sound
            or (np.diff(tokens.places, prepend=-1) <= 0).any()
            or (np.sort(order) != np.arange(len(order))).any()
        ):
            raise ValueError("its parts do not fit each other")
        parts.append(SavedCells(tokens, order, state))
        at += part["bytes"]
    return SavedWindow(parts, int(head["clean"]))
