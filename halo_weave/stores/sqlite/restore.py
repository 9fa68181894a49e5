"""Import: the sections of an exchange file become part of this memory. What is here already is left as it is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from halo_weave.errors import ImportRefused
from halo_weave.store import Imported
from halo_weave.stores.exchange import FORMAT, SECTIONS, VERSION, Header, Reading, read_header, read_turn
from halo_weave.stores.jsonstream import JsonReader
from halo_weave.stores.sqlite.arrivals import Arrivals
from halo_weave.stores.sqlite.prototype import PrototypeImport
from halo_weave.stores.sqlite.rows import Part

BATCH = 500  # elements to a transaction, so that others can write in between
BATCH_CHARACTERS = 1 << 18
Progress = Callable[[int, int], None]


class Restore(Part):
    def import_file(
        self, path: Path, *, now: datetime, progress: Progress = lambda done, total: None
    ) -> Imported:
        """Add what a file holds that is not here yet: an export of ours, or of the prototype.

        The whole file is checked before anything is changed. An import that was interrupted goes on when repeated.
        """
        size = 2 * path.stat().st_size if path.is_file() else 0
        with opened(path) as file:
            kind, header = self._look(file)
            if kind == "prototype":
                return PrototypeImport(self._db).run(file, now, progress)
            counts = check(file, header, lambda done: progress(done, size))
            arrivals = Arrivals(self._db, header)
            with self._db.writing() as db:
                arrivals.begin(db)
            try:
                for done in self._bring(file, arrivals, counts):
                    progress(size // 2 + done, size)
            finally:
                with self._db.writing() as db:
                    arrivals.end(db)
        progress(size, size)
        return arrivals.result()

    def _look(self, file: TextIO) -> tuple[str, Header]:
        """Which format it is. Members may stand in any order, so this may read all of it."""
        found: dict[str, Any] = {}
        for key, value in JsonReader(file):
            if key in {"format", "version", "memory"} or (key == "tokens" and key not in found):
                found[key] = value
            if key == "tokens" and "format" not in found and isinstance(value, dict) and "token_id" in value:
                return "prototype", Header("", 1, 0)
            if {"format", "version", "memory"} <= found.keys():
                break
        if found.get("format") != FORMAT or "memory" not in found:
            raise ImportRefused(
                "The file is neither an export of Halo Weave nor of its prototype, so it was not imported."
            )
        if found.get("version") != VERSION:
            raise ImportRefused(
                f"The file has version {found.get('version')} of the format; this Halo Weave reads version {VERSION}. "
                "Install the newer version."
            )
        return "ours", read_header(found["memory"])

    def _bring(self, file: TextIO, arrivals: Arrivals, left: Counter[str]) -> Iterator[int]:
        """Sections in the order in which they need each other. As our exports stand, one reading is enough."""
        order = [section for section in SECTIONS if left[section]]
        while order:
            file.seek(0)
            reader = JsonReader(file)
            batch: list[Any] = []
            begun = 0
            for key, element in reader:
                if key != order[0]:
                    continue
                batch.append(element)
                left[key] -= 1
                if len(batch) == BATCH or reader.read - begun > BATCH_CHARACTERS or not left[key]:
                    with self._db.writing() as db:
                        arrivals.bring(db, key, batch)
                    batch, begun = [], reader.read
                    yield reader.taken
                if not left[key]:
                    order.pop(0)
                    if not order:
                        return


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    if path.is_dir():
        raise ImportRefused(f"{path} is a folder. Name a file to import.")
    try:
        file = path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise ImportRefused(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error
    with file:
        if not file.seekable():
            raise ImportRefused(f"{path} can be read only once. Save it as a file, then import that.")
        yield file


def check(file: TextIO, header: Header, progress: Callable[[int], None]) -> Counter[str]:
    """Read everything once and refuse what could not be imported. Gives how many elements each section has."""
    file.seek(0)
    counts: Counter[str] = Counter()
    turn, position = 0, 0
    windows: set[str] = set()
    named: set[str] = set()
    reader = JsonReader(file)
    for key, element in reader:
        if key not in SECTIONS:
            raise ImportRefused(
                f"The file has a part named {key!r} that this Halo Weave does not know. Nothing was changed."
            )
        if key in {"format", "version", "memory"}:
            continue
        counts[key] += 1
        if key == "turns":
            arriving = read_turn(element, header)
            starts = [chunk.start for chunk in arriving.chunks if chunk.merged is None]
            if arriving.turn <= turn or (starts and starts[0] < position):
                raise ImportRefused(
                    f"Turn {arriving.turn} in the file is not in order of turns and positions. Nothing was changed."
                )
            turn = arriving.turn
            named.add(arriving.window)
            position = max(position, arriving.reach[1])
        else:
            Arrivals.check(key, Reading(key, element))
            if key == "windows":
                windows.add(element["id"])
        if not counts[key] % BATCH:
            progress(reader.taken)
    if named - windows:
        raise ImportRefused(
            f"The file names a window {min(named - windows)!r} that it does not hold. Nothing was changed."
        )
    return counts
