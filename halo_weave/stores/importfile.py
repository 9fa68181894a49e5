"""A file to import, read a batch at a time: an export of ours, or another program's retold as one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal, TextIO

from halo_weave.errors import ImportRefused
from halo_weave.store import Progress
from halo_weave.stores.archives import PNG, ZIP
from halo_weave.stores.exchange import (
    FORMAT,
    SECTIONS,
    VERSION,
    ExportHeader,
    TurnIn,
    read_element,
)
from halo_weave.stores.foreign import ForeignFile
from halo_weave.stores.jsonstream import JsonReader
from halo_weave.stores.prototype import OPENED, TOKENS, PrototypeFile

BATCH = 500  # elements to a transaction, so that others can write in between
BATCH_CHARACTERS = 1 << 18
PATIENCE = 60.0  # seconds for another import to end, before the user is asked to wait instead
_HEAD = {"format", "version", "memory"}
_FileKind = ExportHeader | Literal["prototype", "foreign"]


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    if path.is_dir():
        raise ImportRefused(f"{path} is a folder. Name a file to import; several files can be in one zip.")
    try:
        file = path.open("rb")
    except OSError as error:
        raise ImportRefused(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error
    with file:
        if not file.seekable():
            raise ImportRefused(f"{path} can be read only once. Save it as a file, then import that.")
        yield file


@contextmanager
def checked(
    source: IO[bytes], folder: Path, now: int, progress: Progress
) -> Iterator[_ExportFile | PrototypeFile | ForeignFile]:
    """The file, after all of it was read once and nothing was found that could not be imported. It stays open.

    All kinds give elements of the exchange format in batches, each section after those that it needs.
    """
    size = source.seek(0, os.SEEK_END)
    kind = _kind(source)
    if kind == "foreign":
        with ForeignFile(source, folder, now, progress) as foreign:
            yield foreign
        return
    source.seek(0)
    text = TextIOWrapper(source, encoding="utf-8-sig", newline="")
    try:
        if kind == "prototype":
            with PrototypeFile(text, size, now, progress) as prototype:
                yield prototype
        else:
            yield _ExportFile(text, size, kind, progress)
    finally:
        text.detach()


def _kind(source: IO[bytes]) -> _FileKind:
    source.seek(0)
    if source.read(len(PNG)).startswith((ZIP, PNG)):
        return "foreign"
    source.seek(0)
    text = TextIOWrapper(source, encoding="utf-8-sig", newline="")
    try:
        return _header(text)
    finally:
        text.detach()


def _header(text: TextIO) -> _FileKind:
    """Members may stand in any order, so this may read all of it."""
    found: dict[str, Any] = {}
    reader = JsonReader(text, opened=OPENED)
    if reader.begin() != "{":
        return "foreign"
    try:
        for key, value in reader:
            if key in _HEAD:
                found[key] = value
            if key in TOKENS and "format" not in found and isinstance(value, dict) and "token_id" in value:
                return "prototype"
            if found.keys() >= _HEAD:
                break
    except ImportRefused:
        if not reader.closed:
            raise  # else more values follow, one on each line
    if found.get("format") != FORMAT or "memory" not in found:
        return "foreign"
    if found.get("version") != VERSION:
        raise ImportRefused(
            f"The file has version {found.get('version')} of the format; this Halo Weave reads version {VERSION}. "
            "Install the newer version."
        )
    return read_element("memory", ExportHeader, found["memory"])


class _ExportFile:
    renumbered = False  # its ids are used as they stand in the file
    program = "Halo Weave"

    def __init__(self, text: TextIO, size: int, header: ExportHeader, progress: Progress) -> None:
        self.header = header
        self.left: Counter[str] = Counter()
        self.heads: dict[str, int] = {}
        self._text, self._size = text, size
        self._counts = self._check(progress)

    def _check(self, progress: Progress) -> Counter[str]:
        """Read everything once and refuse what could not be imported. Gives how many elements each section has."""
        self._text.seek(0)
        reader = JsonReader(self._text)
        counts: Counter[str] = Counter()
        turn = position = 0
        there: set[str] = set()  # windows of the file
        named: set[str] = set()
        for key, element in reader:
            if key in _HEAD:
                continue
            if key not in SECTIONS:
                raise ImportRefused(
                    f"The file has a part named {key!r} that this Halo Weave does not know. Nothing was changed."
                )
            found = read_element(key, SECTIONS[key], element)
            if isinstance(found, TurnIn):
                turn, position = self._after(found, turn, position)
                named.add(found.window)
            elif key == "windows":
                there.add(element["id"])
            counts[key] += 1
            if not counts[key] % BATCH:
                progress(reader.taken, 2 * self._size)
        if named - there:
            raise ImportRefused(
                f"The file names a window {min(named - there)!r} that it does not hold. Nothing was changed."
            )
        return counts

    def _after(self, found: TurnIn, turn: int, position: int) -> tuple[int, int]:
        """The turn and the position that this turn reaches, coming from those."""
        starts = [chunk.start for chunk in found.chunks if chunk.merged is None]
        stop = found.reach[1]
        if found.turn <= turn or (starts and starts[0] < position):
            raise ImportRefused(
                f"Turn {found.turn} in the file is not in order of turns and positions. Nothing was changed."
            )
        if found.turn >= self.header.next_turn or stop > self.header.next_position:
            raise ImportRefused(
                f"Turn {found.turn} in the file is beyond the ids that its memory gave. Nothing was changed."
            )
        return found.turn, max(position, stop)

    def batches(self, progress: Progress) -> Iterator[tuple[str, list[Any]]]:
        """A section and elements of it for one transaction. In another order than ours they take several readings."""
        left = self._counts.copy()
        order = [section for section in SECTIONS if left[section]]
        while order:
            self._text.seek(0)
            reader = JsonReader(self._text)
            batch: list[Any] = []
            begun = 0
            for key, element in reader:
                if not order or key != order[0]:
                    continue
                batch.append(element)
                left[key] -= 1
                if len(batch) == BATCH or reader.read - begun > BATCH_CHARACTERS or not left[key]:
                    yield key, batch
                    progress(self._size + reader.taken, 2 * self._size)
                    batch, begun = [], reader.read
                if not left[key]:
                    order.pop(0)
                    if not order:
                        return
