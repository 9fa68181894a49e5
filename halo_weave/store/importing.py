"""Import a file: read it in batches and add what is not here yet."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal, TextIO

import numpy as np

from halo_weave.core.tokens import ChunkKey
from halo_weave.core.turn_text import turn_hash
from halo_weave.errors import ImportRefused, StoreBusy, StoreError
from halo_weave.store.access import StoreHandle, server_only
from halo_weave.store.attribution import insert_attribution
from halo_weave.store.branches import attach_turn, move_head, recompute_aside
from halo_weave.store.chunk_edits import import_tags
from halo_weave.store.database import Connection
from halo_weave.store.encoding import micros, pack_tokens, quantized_blob, unpack_floats
from halo_weave.store.exchange_format import (
    FORMAT,
    SECTIONS,
    VERSION,
    AsleepIn,
    EntryIn,
    EventIn,
    ExportHeader,
    GenerationIn,
    LiveIn,
    NoteIn,
    PersonIn,
    SettingIn,
    ShareIn,
    TurnIn,
    VectorIn,
    WindowIn,
    read_element,
)
from halo_weave.store.json_stream import JsonReader
from halo_weave.store.people import ImportedPeople
from halo_weave.store.records import PERSONA, ImportResult, Json, Progress, silent
from halo_weave.store.renumbering import Renumbering, Shift, reason_with_local_ids, snapshot_with_local_ids
from halo_weave.store.rows import (
    insert_chunk,
    pack_json,
    record_events,
    request_embedding,
    reserve_up_to,
    rewrite_word_index,
    tokenizer_id,
)
from halo_weave.store.structured_memory import ENTRY_COLUMNS
from halo_weave.store.third_party.prototype import OPENED, TOKENS, PrototypeFile
from halo_weave.store.third_party.reader import PNG, ZIP, ThirdPartyFile
from halo_weave.store.windows import persona_of

BATCH = 500  # elements per transaction, so that others can write in between
BATCH_CHARACTERS = 1 << 18
IMPORT_LOCK_SECONDS = 60.0  # seconds to wait for another import
_HEADER_KEYS = {"format", "version", "memory"}
_FileKind = ExportHeader | Literal["prototype", "third party"]


@contextmanager
def open_import(path: Path) -> Iterator[IO[bytes]]:
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
def checked_file(
    source: IO[bytes], folder: Path, now: int, progress: Progress
) -> Iterator[_ExportFile | PrototypeFile | ThirdPartyFile]:
    """Open the file, read it once and check that all of it can be imported.

    All kinds of files yield elements of the exchange format in batches, each section after those that it needs.
    """
    size = source.seek(0, os.SEEK_END)
    kind = _kind(source)
    if kind == "third party":
        with ThirdPartyFile(source, folder, now, progress) as third_party:
            yield third_party
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
    """The program that wrote the file; for our own exports, the header."""
    source.seek(0)
    if source.read(len(PNG)).startswith((ZIP, PNG)):
        return "third party"
    source.seek(0)
    text = TextIOWrapper(source, encoding="utf-8-sig", newline="")
    try:
        return _header(text)
    finally:
        text.detach()


def _header(text: TextIO) -> _FileKind:
    """The header, or the kind of another program's file. Members may have any order, so this may read the whole file."""
    found: dict[str, Any] = {}
    reader = JsonReader(text, opened=OPENED)
    if reader.begin() != "{":
        return "third party"
    try:
        for key, value in reader:
            if key in _HEADER_KEYS:
                found[key] = value
            if key in TOKENS and "format" not in found and isinstance(value, dict) and "token_id" in value:
                return "prototype"
            if found.keys() >= _HEADER_KEYS:
                break
    except ImportRefused:
        if not reader.closed:
            raise  # if the object was closed, the file is a list of JSON values, one on each line
    if found.get("format") != FORMAT or "memory" not in found:
        return "third party"
    if found.get("version") != VERSION:
        raise ImportRefused(
            f"The file has version {found.get('version')} of the format; this Halo Weave reads version {VERSION}. "
            "Install the newer version."
        )
    return read_element("memory", ExportHeader, found["memory"])


class _ExportFile:
    renumbered = False  # its ids are used unchanged
    program = "Halo Weave"

    def __init__(self, text: TextIO, size: int, header: ExportHeader, progress: Progress) -> None:
        self.header = header
        self.left: Counter[str] = Counter()
        self.heads: dict[str, int] = {}
        self._text, self._size = text, size
        self._counts = self._check(progress)

    def _check(self, progress: Progress) -> Counter[str]:
        """Read everything once and refuse what cannot be imported. Returns the number of elements by section."""
        self._text.seek(0)
        reader = JsonReader(self._text)
        counts: Counter[str] = Counter()
        turn = position = 0
        windows: set[str] = set()  # in the file
        windows_of_turns: set[str] = set()
        for key, element in reader:
            if key in _HEADER_KEYS:
                continue
            if key not in SECTIONS:
                raise ImportRefused(
                    f"The file has a part named {key!r} that this Halo Weave does not know. Nothing was changed."
                )
            found = read_element(key, SECTIONS[key], element)
            if isinstance(found, TurnIn):
                turn, position = self._after(found, turn, position)
                windows_of_turns.add(found.window)
            elif key == "windows":
                windows.add(element["id"])
            counts[key] += 1
            if not counts[key] % BATCH:
                progress(reader.taken, 2 * self._size)
        if missing := windows_of_turns - windows:
            raise ImportRefused(
                f"The file names a window {min(missing)!r} that it does not hold. Nothing was changed."
            )
        return counts

    def _after(self, found: TurnIn, turn: int, position: int) -> tuple[int, int]:
        """The id and the end position of a turn, after checking that it follows the given ones."""
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
        """The elements of each section, in batches for one transaction. If the file has another order, it is read several
        times."""
        remaining = self._counts.copy()
        order = [section for section in SECTIONS if remaining[section]]
        while order:
            self._text.seek(0)
            reader = JsonReader(self._text)
            batch: list[Any] = []
            batch_start = 0
            for key, element in reader:
                if not order or key != order[0]:
                    continue
                batch.append(element)
                remaining[key] -= 1
                if len(batch) == BATCH or reader.read - batch_start > BATCH_CHARACTERS or not remaining[key]:
                    yield key, batch
                    progress(self._size + reader.taken, 2 * self._size)
                    batch, batch_start = [], reader.read
                if not remaining[key]:
                    order.pop(0)
                    if not order:
                        return


class SqlImport(StoreHandle):
    @server_only
    def import_file(self, path: Path, *, now: datetime, progress: Progress = silent) -> ImportResult:
        """Import what is new in a file: an export of ours, of the prototype or of another program.

        The whole file is checked before anything is changed. An interrupted import continues when it is repeated.
        """
        with open_import(path) as file:
            return self.import_open_file(file, now=now, progress=progress)

    @server_only
    def import_open_file(
        self, source: IO[bytes], *, now: datetime, progress: Progress = silent
    ) -> ImportResult:
        """Like `import_file`, for an open, seekable file. It stays open."""
        # The temporary tables and reserved ids are for one import at a time.
        with (
            checked_file(source, self._db.folder, micros(now), progress) as file,
            self._db.import_lock(timeout=IMPORT_LOCK_SECONDS),
        ):
            with self._db.writing() as db:
                db.execute("DROP TABLE IF EXISTS arrived")
                db.execute(
                    "CREATE TEMP TABLE arrived (turn INTEGER PRIMARY KEY, here INTEGER NOT NULL, new INTEGER)"
                )
                db.execute("CREATE INDEX arrived_here ON arrived(here)")
                own = db.execute("SELECT id FROM memory").fetchone()[0]
            running = _Import(file.header, own, third_party=file.renumbered is None)
            try:
                for section, elements in file.batches(progress):
                    with self._db.writing() as db:
                        running.add(db, section, elements)
                with self._db.writing() as db:
                    running.finish(db, micros(now), file.heads)
                    # An earlier version, which kept time stamps, may have written the file.
                    db.execute("UPDATE memory SET stamps_removed = 0")
            except StoreError as error:
                raise _broken_off(error) from error
            finally:
                with suppress(StoreError), self._db.writing() as db:  # if this fails, the next import does it
                    db.execute("DROP TABLE IF EXISTS arrived")
            left = {reason: count for reason, count in sorted(file.left.items()) if count}
            return running.result(file.program, left, renumbered=file.renumbered)


def _broken_off(error: StoreError) -> StoreError:
    """The error of a step says that nothing was changed; for the whole import, say that earlier steps are kept."""
    why = "others held the memory for too long" if isinstance(error, StoreBusy) else error.__cause__ or error
    return type(error)(
        f"The import was interrupted: {str(why).rstrip('.')}. What was imported so far is kept. Import the same file "
        "again to continue."
    )


class _SqlIdAllocator:
    """Allocates ids of this memory for `Renumbering`."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def counters(self) -> tuple[int, int]:
        return self._db.execute("SELECT next_turn, next_position FROM memory").fetchone()  # type: ignore[no-any-return]

    def is_free(self, turn: int, start: int, stop: int) -> bool:
        # Chunks do not overlap, so it is enough to check the last one that begins before the turn's end.
        taken = self._db.execute(
            """SELECT 1 FROM turns WHERE id = ? UNION ALL
               SELECT 1 FROM (SELECT start + span AS stop FROM chunks WHERE start < ? AND merged IS NULL
                              ORDER BY start DESC LIMIT 1) AS last WHERE stop > ?""",
            (turn, stop, start),
        ).fetchone()
        return taken is None

    def earlier(self, source: str, turn: int) -> Iterable[tuple[int, int]]:
        return self._db.execute(
            "SELECT turn_shift, shift FROM imports WHERE source = ?1 AND first_turn <= ?2 AND ?2 < end_turn",
            (source, turn),
        ).fetchall()

    def reserve_ids(
        self, source: str, first: int, end: int, shift: Shift, next_turn: int, next_position: int
    ) -> None:
        reserve_up_to(self._db, next_turn, next_position)
        self._db.execute(
            "INSERT INTO imports (source, first_turn, end_turn, turn_shift, shift) VALUES (?, ?, ?, ?, ?)",
            (source, first, end, *shift),
        )


class _Import:
    """One import: a batch at a time, each in its transaction."""

    def __init__(self, header: ExportHeader, own: str, *, third_party: bool) -> None:
        """`own`: the id of this memory. `third_party`: the file is another program's, and does not contain turns that were
        added here since the last import."""
        self._source, self._own, self._third_party = header.id, own, third_party
        self._ids = Renumbering(header)
        self._counts: Counter[str] = Counter()
        self._people = ImportedPeople()
        self._heads: dict[str, int] = {}  # of windows that are new here, the last turn by its id in the file
        # Texts that the windows inherited in the memory that wrote the file.
        self._inherits: dict[str, Sequence[str]] = {}
        self._generation: int | None = None  # the generation here to which vectors are added
        self._dimension = 0

    def result(self, program: str, left: Mapping[str, int], *, renumbered: bool | None) -> ImportResult:
        names = ("turns", "chunks", "tokens", "windows", "entries", "notes", "known_turns")
        counts = {name: self._counts[name] for name in names}
        if self._counts["other_notes"]:
            left = {**left, "notes, since there are others here": self._counts["other_notes"]}
        kept, ids = self._ids.kept and not renumbered, ""
        if renumbered is not None and not self._ids.kept:
            ids = "Turns and positions got new ids: theirs are taken here, or too far from the others."
        elif renumbered:
            ids = "Several turns of the file had the same id, so turns were renumbered. Positions are those of the file."
        return ImportResult(**counts, kept_ids=kept, ids=ids, program=program, left=left)

    def add(self, db: Connection, section: str, elements: Iterable[Any]) -> None:
        """Add the elements of a section that are not here yet."""
        step = getattr(self, f"_add_{section}")
        for element in elements:
            step(db, read_element(section, SECTIONS[section], element))

    def finish(self, db: Connection, when: int, heads: Mapping[str, int]) -> None:
        """Set the last turns of windows, after all turns were added. `heads`: the last turns in the other program."""
        for window, head in heads.items():
            here, now = _local_turn(db, head), _head(db, window)
            if here is None or now in (None, here) or not _same_source(db, now, here):
                continue
            # An older file that does not contain the last turn here does not change it.
            if db.execute(
                "SELECT 1 FROM arrived WHERE here = ? OR (turn = ? AND new = 1)", (now, head)
            ).fetchone():
                move_head(db, window, here, when)
        for window, head in self._heads.items():
            db.execute(
                "UPDATE windows SET head = ? WHERE id = ? AND head IS NULL", (_local_turn(db, head), window)
            )
        recompute_aside(db, when)
        for window, names in self._inherits.items():  # texts that are equal here are inherited here, too
            *texts, owner = db.execute(
                f"SELECT {', '.join(PERSONA)}, owner FROM windows WHERE id = ?", (window,)
            ).fetchone()
            own, shared = dict(zip(PERSONA, texts, strict=True)), persona_of(db, owner)
            same = [name for name in PERSONA if name in names and own[name] == shared[name]]
            db.execute("UPDATE windows SET inherits = ? WHERE id = ?", (pack_json(same), window))

    # People, windows and turns

    def _add_people(self, db: Connection, person: PersonIn) -> None:
        self._people.add(db, person)

    def _add_shares(self, db: Connection, share: ShareIn) -> None:
        self._people.add_share(db, share)

    def _add_windows(self, db: Connection, window: WindowIn) -> None:
        cursor = db.execute(
            """INSERT INTO windows
                   (id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted,
                    tags, pinned, archived, inherits, owner)
               VALUES (:id, :name, :system_prompt, :user_name, :ai_name, :settings, :created, :modified, :deleted,
                       :tags, :pinned, :archived, '[]', :owner)
               ON CONFLICT DO NOTHING""",
            {
                **window.model_dump(exclude={"head", "inherits"}),
                "settings": pack_json(window.settings),
                "tags": pack_json(list(dict.fromkeys(window.tags))),
                "owner": self._people.owner(window.owner),
            },
        )
        self._counts["windows"] += cursor.rowcount
        if cursor.rowcount:
            self._people.windows.add(window.id)
        if cursor.rowcount and window.head is not None:
            self._heads[window.id] = window.head
        if cursor.rowcount and window.inherits:
            self._inherits[window.id] = window.inherits

    def _add_turns(self, db: Connection, turn: TurnIn) -> None:
        memory, first_turn, mark = turn.original_identity(self._source)
        row = db.execute(
            "SELECT here FROM imported WHERE source = ? AND turn = ? AND mark = ?", (memory, first_turn, mark)
        ).fetchone()
        if row is None and memory == self._own:
            row = db.execute(
                "SELECT id FROM turns WHERE id = ? AND role = ? AND said = ?",
                (first_turn, turn.role, turn.said),
            ).fetchone()
        if row is None:
            shift = self._ids.shift(turn, _SqlIdAllocator(db))
            here = turn.turn + shift.turns
            self._insert(db, turn, here, shift.positions)
            if (memory, first_turn) != (self._own, here):
                db.execute(
                    "INSERT INTO imported (source, turn, mark, here, shift) VALUES (?, ?, ?, ?, ?)",
                    (memory, first_turn, mark, here, shift.positions),
                )
        else:
            here = row[0]
            self._counts["known_turns"] += 1
        db.execute(
            """INSERT INTO arrived (turn, here, new) VALUES (?, ?, ?)
               ON CONFLICT (turn) DO UPDATE SET here = excluded.here, new = excluded.new""",
            (turn.turn, here, row is None),
        )

    def _insert(self, db: Connection, turn: TurnIn, here: int, shift: int) -> None:
        answers = None if turn.answers is None else _local_turn(db, turn.answers)
        db.execute(
            "INSERT INTO turns (id, window, role, answers, speaker, said, mark) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                here,
                turn.window,
                turn.role,
                answers,
                turn.speaker,
                turn.said,
                turn_hash(turn.role, turn.words),
            ),
        )
        parent = None if turn.parent is None else _local_turn(db, turn.parent)
        aside = turn.aside or (self._third_party and not self._follows(db, turn, parent))
        if not aside:
            attach_turn(db, turn.window, here, None, None, 0, first=parent)
        else:
            db.execute("UPDATE turns SET parent = ?, aside = 1 WHERE id = ?", (parent, here))
        numbers: dict[int | None, int | None] = {None: None}  # chunks of the turn
        present: list[int] = []
        for chunk in turn.chunks:
            key = ChunkKey(here, chunk.chunk, turn.role)
            start = chunk.start + shift
            number = insert_chunk(db, turn.window, key, start, chunk.tokens, chunk.tokenizer, chunk.tags)
            state = (chunk.deleted, chunk.undeleted, chunk.merged, numbers[chunk.merged_into], aside)
            db.execute(
                """UPDATE chunks SET deleted = ?, undeleted = ?, merged = ?, merged_into = ?, aside = ?
                   WHERE number = ?""",
                (*state, number),
            )
            numbers[chunk.chunk] = number
            import_tags(db, number, chunk.tagged, self._people.owner)
            db.mark_changed([number])
            if chunk.deleted is None and chunk.merged is None and not aside:
                present.append(number)
            if chunk.merged is None:
                self._counts["tokens"] += len(chunk.ids)
        if turn.use is not None:
            found = [(place, _local_turn(db, one.turn), one) for place, one in enumerate(turn.use.chunks)]
            chunks = [(place, used, one.chunk, one.share) for place, used, one in found if used is not None]
            insert_attribution(db, here, chunks, turn.use.nothing, turn.use.tokens)
        rewrite_word_index(db, present)
        request_embedding(db, present)
        self._counts["turns"] += 1
        self._counts["chunks"] += len(turn.chunks)

    def _follows(self, db: Connection, turn: TurnIn, parent: int | None) -> bool:
        """Whether a turn after `parent` continues the window's current branch, ignoring turns that were added here since."""
        source, head = turn.original_identity(self._source)[0], _head(db, turn.window)
        known = "SELECT 1 FROM imported WHERE here = ? AND source = ?"
        while head is not None and head != parent and not db.execute(known, (head, source)).fetchone():
            head = db.execute("SELECT parent FROM turns WHERE id = ?", (head,)).fetchone()[0]
        return head == parent

    # Chunks of windows

    def _add_live(self, db: Connection, held: LiveIn) -> None:
        place = _free_place(db, held)
        if place is None:
            return
        number, start, gone = place
        if gone:
            _insert_pruned(db, held, number, start, gone, held.since, '{"why":"deleted"}')
            return
        woken = (
            None
            if held.woken is None
            else pack_json(reason_with_local_ids(held.woken, lambda turn: _local_turn(db, turn)))
        )
        db.execute(
            f"""INSERT INTO live (window, start, chunk, pinned, since, woken, {HELD_COLUMNS})
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (held.window, start, number, held.pinned, held.since, woken, *_held_values(db, held)),
        )

    def _add_asleep(self, db: Connection, held: AsleepIn) -> None:
        place = _free_place(db, held)
        if place is not None:
            reason = pack_json(reason_with_local_ids(held.reason, lambda turn: _local_turn(db, turn)))
            _insert_pruned(db, held, *place, held.slept, reason)

    def _add_history(self, db: Connection, event: EventIn) -> None:
        row = db.execute(
            "SELECT c.number FROM arrived a JOIN chunks c ON c.turn = a.here WHERE a.turn = ? AND c.chunk = ?",
            (event.turn, event.chunk),
        ).fetchone()
        if row is None or not (
            event.window is None
            or db.execute("SELECT 1 FROM windows WHERE id = ?", (event.window,)).fetchone()
        ):
            return
        known = db.execute(
            "SELECT window, detail FROM history WHERE chunk = ? AND happened = ? AND event = ?",
            (row[0], event.happened, event.event),
        ).fetchall()
        detail = reason_with_local_ids(event.detail, lambda turn: _local_turn(db, turn))
        # Events are equal even if the hit differs: a file may lack the turn of the hit.
        if (event.window, _without_hit(detail)) not in [
            (window, _without_hit(json.loads(text))) for window, text in known
        ]:
            happened = (event.window, row[0], event.happened, event.event, pack_json(detail))
            record_events(db, [happened])

    # Notes and structured memory

    def _add_entries(self, db: Connection, entry: EntryIn) -> None:
        owner = self._people.owner(entry.owner)
        if db.execute(
            """SELECT 1 FROM entries WHERE owner = ?1 AND path = ?2
               UNION SELECT 1 FROM entry_versions WHERE owner = ?1 AND path = ?2""",
            (owner, entry.path),
        ).fetchone():
            return
        parent, _, heading = entry.path.rpartition("/")
        for version in entry.versions:
            snapshot = snapshot_with_local_ids(version.snapshot, lambda turn: _local_turn(db, turn))
            values = {
                **version.model_dump(),
                "path": entry.path,
                "owner": owner,
                "content": pack_json(version.content),
                "snapshot": pack_json(snapshot),
                "parent": parent,
                "heading": heading,
            }
            present = version.ended is None
            names = ["owner", *ENTRY_COLUMNS.split(", "), *(("parent", "heading") if present else ("ended",))]
            db.execute(
                f"""INSERT INTO {"entries" if present else "entry_versions"} ({", ".join(names)})
                    VALUES (:{", :".join(names)})""",
                values,
            )
        self._counts["entries"] += 1

    def _add_notes(self, db: Connection, note: NoteIn) -> None:
        owner, content = self._people.owner(note.owner), pack_json(note.content)
        cursor = db.execute(
            """INSERT INTO notes (owner, name, content, created, modified) VALUES (?, ?, ?, ?, ?)
               ON CONFLICT DO NOTHING""",
            (owner, note.name, content, note.created, note.modified),
        )
        self._counts["notes"] += cursor.rowcount
        if (
            not cursor.rowcount
            and not db.execute(
                "SELECT 1 FROM notes WHERE owner = ? AND name = ? AND content = ?",
                (owner, note.name, content),
            ).fetchone()
        ):
            self._counts["other_notes"] += 1

    def _add_settings(self, db: Connection, setting: SettingIn) -> None:
        db.execute(
            "INSERT INTO settings (owner, key, value, modified) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (self._people.owner(setting.owner), setting.key, pack_json(setting.value), setting.modified),
        )

    # Vectors are used if they are of the current embedder here, or if there is none yet.

    def _add_generations(self, db: Connection, generation: GenerationIn) -> None:
        if db.execute("SELECT 1 FROM generations WHERE state = 'current'").fetchone() is None:
            number = db.execute(
                """INSERT INTO generations (model, dimension, state, created, completed)
                   VALUES (:model, :dimension, 'current', :created, :completed) RETURNING id""",
                generation.model_dump(),
            ).fetchone()
            db.execute(
                """INSERT INTO wanted (generation, chunk, sequence) SELECT ?, c.number, n.sequence
                   FROM chunks c JOIN changes n ON n.chunk = c.number WHERE c.deleted IS NULL AND c.merged IS NULL AND c.aside = 0""",
                number,
            )
        row = db.execute(
            "SELECT id FROM generations WHERE state = 'current' AND model = ? AND dimension = ?",
            (generation.model, generation.dimension),
        ).fetchone()
        self._generation, self._dimension = (row[0], generation.dimension) if row else (None, 0)

    def _add_vectors(self, db: Connection, found: VectorIn) -> None:
        if self._generation is None or not found.vector or len(found.vector) % (4 * self._dimension):
            return
        if not np.isfinite(unpack_floats(found.vector)).all():
            return
        row = db.execute(
            """SELECT c.number FROM arrived a JOIN chunks c ON c.turn = a.here WHERE a.turn = ? AND c.chunk = ?
               AND c.deleted IS NULL AND c.merged IS NULL
               AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = ? AND v.chunk = c.number)""",
            (found.turn, found.chunk, self._generation),
        ).fetchone()
        if row is None:
            return
        codes = quantized_blob(found.vector, self._dimension)
        db.put_vectors(self._generation, self._dimension, [(row[0], codes)])
        db.mark_changed(row)
        if not found.stale:
            db.execute("DELETE FROM wanted WHERE generation = ? AND chunk = ?", (self._generation, row[0]))


def _without_hit(detail: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in detail.items() if name != "hit"}


def _local_turn(db: Connection, turn: int) -> int | None:
    """The id here of a turn of the file."""
    row = db.execute("SELECT here FROM arrived WHERE turn = ?", (turn,)).fetchone()
    return row[0] if row else None


def _same_source(db: Connection, one: int | None, other: int) -> bool:
    """Whether two turns were imported from the same memory."""
    sql = "SELECT 1 FROM imported a JOIN imported b ON b.source = a.source AND b.here = ? WHERE a.here = ?"
    return db.execute(sql, (other, one)).fetchone() is not None


def _head(db: Connection, window: str) -> int | None:
    row = db.execute("SELECT head FROM windows WHERE id = ?", (window,)).fetchone()
    return row[0] if row else None


def _free_place(db: Connection, held: LiveIn | AsleepIn) -> tuple[int, int, bool] | None:
    """Number, start, and whether it is deleted or aside, of a chunk; None if its window has it already."""
    row = db.execute(
        """SELECT c.number, c.start, c.deleted IS NOT NULL OR c.aside = 1, c.span FROM arrived a JOIN chunks c ON c.turn = a.here
           JOIN windows w ON w.id = :window WHERE a.turn = :turn AND c.chunk = :chunk AND c.merged IS NULL
           AND NOT EXISTS (SELECT 1 FROM live WHERE window = :window AND start = c.start)
           AND NOT EXISTS (SELECT 1 FROM asleep WHERE window = :window AND start = c.start)""",
        {"window": held.window, "turn": held.turn, "chunk": held.chunk},
    ).fetchone()
    if row is None or (held.reading is None and len(held.brightness) != 4 * row[3]):
        return None
    return row[0], row[1], bool(row[2])


HELD_COLUMNS = "brightness, traces, tokenizer, ids, lengths, raw"


def _held_values(db: Connection, held: LiveIn | AsleepIn) -> tuple[Any, ...]:
    """The values for the columns `KEPT`."""
    own: tuple[Any, ...] = (None,) * 4
    if held.reading is not None:
        own = (tokenizer_id(db, held.reading.tokenizer), *pack_tokens(held.reading.tokens))
    return held.brightness, held.traces, *own


def _insert_pruned(
    db: Connection,
    held: LiveIn | AsleepIn,
    number: int,
    start: int,
    gone: bool,
    slept: int,
    reason: str,
) -> None:
    peak = float(unpack_floats(held.brightness).max())
    db.execute(
        f"""INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, {HELD_COLUMNS})
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (held.window, start, number, gone, peak, slept, reason, *_held_values(db, held)),
    )
