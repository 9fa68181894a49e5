"""Import: the sections of an exchange file become part of this memory. What is here already is left as it is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, TextIO

from halo_weave.errors import ImportRefused, StoreBusy, StoreError
from halo_weave.records import Imported
from halo_weave.stores.exchange import FORMAT, SECTIONS, VERSION, Header, Reading, read_header, read_turn
from halo_weave.stores.jsonstream import JsonReader
from halo_weave.stores.sqlite.alone import alone
from halo_weave.stores.sqlite.arrivals import Arrivals
from halo_weave.stores.sqlite.prototype import PrototypeImport
from halo_weave.stores.sqlite.rows import SqlitePart

BATCH = 500  # elements to a transaction, so that others can write in between
BATCH_CHARACTERS = 1 << 18
PATIENCE = 60.0  # seconds for another import to end, before the user is asked to wait instead
Progress = Callable[[int, int], None]


class SqliteImport(SqlitePart):
    def import_file(
        self, path: Path, *, now: datetime, progress: Progress = lambda done, total: None
    ) -> Imported:
        """Add what a file holds that is not here yet: an export of ours, or of the prototype.

        The whole file is checked before anything is changed. An import that was interrupted goes on when repeated.
        """
        with opened(path) as file:
            return self.import_open_file(file, now=now, progress=progress)

    def import_open_file(
        self, source: IO[bytes], *, now: datetime, progress: Progress = lambda done, total: None
    ) -> Imported:
        """The same of a file that has no name any more. It stays open."""
        size = 2 * source.seek(0, os.SEEK_END)
        source.seek(0)
        file = TextIOWrapper(source, encoding="utf-8-sig", newline="")
        try:
            kind, header = self._look(file)
            if kind == "prototype":
                with alone(self._db, patience=PATIENCE):
                    return PrototypeImport(self._db).run(file, now, progress)
            counts = check(file, header, lambda done: progress(done, size))
            arrivals = Arrivals(self._db, header)
            # What it notes on the way, and the ids that it set apart, are for one import at a time.
            with alone(self._db, patience=PATIENCE):
                with self._db.writing() as db:
                    arrivals.begin(db)
                try:
                    for done in self._bring(file, arrivals, counts):
                        progress(size // 2 + done, size)
                except StoreError as error:
                    raise broken_off(error) from error
                finally:
                    with suppress(StoreError), self._db.writing() as db:  # the next import does it, too
                        arrivals.end(db)
        finally:
            file.detach()
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
def opened(path: Path) -> Iterator[IO[bytes]]:
    if path.is_dir():
        raise ImportRefused(f"{path} is a folder. Name a file to import.")
    try:
        file = path.open("rb")
    except OSError as error:
        raise ImportRefused(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error
    with file:
        if not file.seekable():
            raise ImportRefused(f"{path} can be read only once. Save it as a file, then import that.")
        yield file


def broken_off(error: StoreError) -> StoreError:
    """An error of one step says that nothing was changed; of the import as a whole, the steps before it stay."""
    why = "others held the memory for too long" if isinstance(error, StoreBusy) else error.__cause__ or error
    return type(error)(
        f"The import broke off: {str(why).rstrip('.')}. What it brought so far stays. Import the same file again, and "
        "it goes on."
    )


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
