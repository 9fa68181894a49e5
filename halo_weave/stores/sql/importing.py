"""Import: the elements of an exchange file become rows. What is here already is left as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np

from halo_weave.core.marks import mark_of
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import StoreBusy, StoreError
from halo_weave.records import PERSONA, Imported, Json
from halo_weave.store import Progress, silent
from halo_weave.stores import importfile
from halo_weave.stores.exchange import (
    SECTIONS,
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
from halo_weave.stores.importfile import checked, opened
from halo_weave.stores.packing import codes_of, micros, pack_tokens, unpack_floats
from halo_weave.stores.renumbering import Renumbering, Shift, reason_here, snapshot_here
from halo_weave.stores.sql.branches import move_head, place_turn, settle
from halo_weave.stores.sql.keepsakes import ENTRY
from halo_weave.stores.sql.people import ArrivingPeople
from halo_weave.stores.sql.rows import (
    SqlPart,
    insert_chunk,
    note_event,
    pack_json,
    reserve_up_to,
    tokenizer_of,
    want_vectors,
    write_words,
)
from halo_weave.stores.sql.seam import Connection
from halo_weave.stores.sql.tags import bring_tags
from halo_weave.stores.sql.uses import insert_use
from halo_weave.stores.sql.windows import persona_of


class SqlImport(SqlPart):
    def import_file(self, path: Path, *, now: datetime, progress: Progress = silent) -> Imported:
        with opened(path) as file:
            return self.import_open_file(file, now=now, progress=progress)

    def import_open_file(self, source: IO[bytes], *, now: datetime, progress: Progress = silent) -> Imported:
        # What an import notes on the way, and the ids that it set apart, are for one import at a time.
        with (
            checked(source, self._db.folder, micros(now), progress) as file,
            self._db.alone(patience=importfile.PATIENCE),
        ):
            with self._db.writing() as db:
                db.execute("DROP TABLE IF EXISTS arrived")
                db.execute(
                    "CREATE TEMP TABLE arrived (turn INTEGER PRIMARY KEY, here INTEGER NOT NULL, new INTEGER)"
                )
                db.execute("CREATE INDEX arrived_here ON arrived(here)")
                own = db.execute("SELECT id FROM memory").fetchone()[0]
            arriving = _Arrivals(file.header, own, retold=file.renumbered is None)
            try:
                for section, elements in file.batches(progress):
                    with self._db.writing() as db:
                        arriving.bring(db, section, elements)
                with self._db.writing() as db:
                    arriving.settle(db, micros(now), file.heads)
                    db.execute(
                        "UPDATE memory SET stamps_removed = 0"
                    )  # an earlier version may have written the file
            except StoreError as error:
                raise _broken_off(error) from error
            finally:
                with suppress(StoreError), self._db.writing() as db:  # the next import does it, too
                    db.execute("DROP TABLE IF EXISTS arrived")
            left = {reason: count for reason, count in sorted(file.left.items()) if count}
            return arriving.result(file.program, left, renumbered=file.renumbered)


def _broken_off(error: StoreError) -> StoreError:
    """An error of one step says that nothing was changed; of the import as a whole, the steps before it stay."""
    why = "others held the memory for too long" if isinstance(error, StoreBusy) else error.__cause__ or error
    return type(error)(
        f"The import broke off: {str(why).rstrip('.')}. What it brought so far stays. Import the same file again, and "
        "it goes on."
    )


class _Ledger:
    """The ids of this memory, for `Renumbering`."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def counters(self) -> tuple[int, int]:
        return self._db.execute("SELECT next_turn, next_position FROM memory").fetchone()  # type: ignore[no-any-return]

    def is_free(self, turn: int, start: int, stop: int) -> bool:
        # Chunks do not overlap, so the last one that begins before the turn's end tells for all.
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

    def set_apart(
        self, source: str, first: int, end: int, shift: Shift, next_turn: int, next_position: int
    ) -> None:
        reserve_up_to(self._db, next_turn, next_position)
        self._db.execute(
            "INSERT INTO imports (source, first_turn, end_turn, turn_shift, shift) VALUES (?, ?, ?, ?, ?)",
            (source, first, end, *shift),
        )


class _Arrivals:
    """One import: a batch at a time, each in its transaction."""

    def __init__(self, header: ExportHeader, own: str, *, retold: bool) -> None:
        """`retold`: it is another program's, and knows nothing of what was said here since the last import."""
        self._source, self._own, self._retold = header.id, own, retold
        self._ids = Renumbering(header)
        self._counts: Counter[str] = Counter()
        self._people = ArrivingPeople()
        self._heads: dict[str, int] = {}  # the last turns, as in the file, of windows that are new here
        # Words that they shared with all windows where they come from.
        self._inherits: dict[str, Sequence[str]] = {}
        self._generation: int | None = None  # the one here that takes the vectors
        self._dimension = 0

    def result(self, program: str, left: Mapping[str, int], *, renumbered: bool | None) -> Imported:
        names = ("turns", "chunks", "tokens", "windows", "entries", "notes", "known_turns")
        counts = {name: self._counts[name] for name in names}
        if self._counts["other_notes"]:
            left = {**left, "notes, since there are others here": self._counts["other_notes"]}
        kept, ids = self._ids.kept and not renumbered, ""
        if renumbered is not None and not self._ids.kept:
            ids = "Turns and positions got new ids: theirs are taken here, or too far from the others."
        elif renumbered:
            ids = "Some turns of the file had one id, so turns were counted anew. Positions are those of the file."
        return Imported(**counts, kept_ids=kept, ids=ids, program=program, left=left)

    def bring(self, db: Connection, section: str, elements: Iterable[Any]) -> None:
        step = getattr(self, f"_bring_{section}")
        for element in elements:
            step(db, read_element(section, SECTIONS[section], element))

    def settle(self, db: Connection, when: int, heads: Mapping[str, int]) -> None:
        """What a file says of branches is made to fit what is here. `heads`: the last turns in another program."""
        for window, head in heads.items():
            here, now = _here(db, head), _head(db, window)
            if here is None or now in (None, here) or not _of_one_source(db, now, here):
                continue
            # An older file, which does not know of the last turn here, says nothing about it.
            if db.execute(
                "SELECT 1 FROM arrived WHERE here = ? OR (turn = ? AND new = 1)", (now, head)
            ).fetchone():
                move_head(db, window, here, when)
        for window, head in self._heads.items():
            db.execute("UPDATE windows SET head = ? WHERE id = ? AND head IS NULL", (_here(db, head), window))
        settle(db, when)
        for window, names in self._inherits.items():  # words that are the same here are shared here, too
            *words, owner = db.execute(
                f"SELECT {', '.join(PERSONA)}, owner FROM windows WHERE id = ?", (window,)
            ).fetchone()
            own, shared = dict(zip(PERSONA, words, strict=True)), persona_of(db, owner)
            same = [name for name in PERSONA if name in names and own[name] == shared[name]]
            db.execute("UPDATE windows SET inherits = ? WHERE id = ?", (pack_json(same), window))

    # People, windows and turns

    def _bring_people(self, db: Connection, person: PersonIn) -> None:
        self._people.bring(db, person)

    def _bring_shares(self, db: Connection, share: ShareIn) -> None:
        self._people.bring_share(db, share)

    def _bring_windows(self, db: Connection, window: WindowIn) -> None:
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

    def _bring_turns(self, db: Connection, turn: TurnIn) -> None:
        memory, first_turn, mark = turn.first_known_as(self._source)
        row = db.execute(
            "SELECT here FROM imported WHERE source = ? AND turn = ? AND mark = ?", (memory, first_turn, mark)
        ).fetchone()
        if row is None and memory == self._own:
            row = db.execute(
                "SELECT id FROM turns WHERE id = ? AND role = ? AND said = ?",
                (first_turn, turn.role, turn.said),
            ).fetchone()
        if row is None:
            shift = self._ids.shift(turn, _Ledger(db))
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
        arrived = (turn.turn, here, row is None)
        db.execute(
            """INSERT INTO arrived (turn, here, new) VALUES (?, ?, ?)
               ON CONFLICT (turn) DO UPDATE SET here = excluded.here, new = excluded.new""",
            arrived,
        )

    def _insert(self, db: Connection, turn: TurnIn, here: int, shift: int) -> None:
        answers = None if turn.answers is None else _here(db, turn.answers)
        db.execute(
            "INSERT INTO turns (id, window, role, answers, speaker, said, mark) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (here, turn.window, turn.role, answers, turn.speaker, turn.said, mark_of(turn.role, turn.words)),
        )
        parent = None if turn.parent is None else _here(db, turn.parent)
        aside = turn.aside or (self._retold and not self._follows(db, turn, parent))
        if not aside:
            place_turn(db, turn.window, here, None, None, 0, first=parent)
        else:
            db.execute("UPDATE turns SET parent = ?, aside = 1 WHERE id = ?", (parent, here))
        numbers: dict[int | None, int | None] = {None: None}  # of the turn's chunks
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
            bring_tags(db, number, chunk.tagged, self._people.owner)
            db.note_changed([number])
            if chunk.deleted is None and chunk.merged is None and not aside:
                present.append(number)
            if chunk.merged is None:
                self._counts["tokens"] += len(chunk.ids)
        if turn.use is not None:
            found = [(place, _here(db, one.turn), one) for place, one in enumerate(turn.use.chunks)]
            chunks = [(place, used, one.chunk, one.share) for place, used, one in found if used is not None]
            insert_use(db, here, chunks, turn.use.nothing, turn.use.tokens)
        write_words(db, present)
        want_vectors(db, present)
        self._counts["turns"] += 1
        self._counts["chunks"] += len(turn.chunks)

    def _follows(self, db: Connection, turn: TurnIn, parent: int | None) -> bool:
        """Whether a turn after `parent` goes on where the window is. What was said here since then stands in between."""
        source, head = turn.first_known_as(self._source)[0], _head(db, turn.window)
        known = "SELECT 1 FROM imported WHERE here = ? AND source = ?"
        while head is not None and head != parent and not db.execute(known, (head, source)).fetchone():
            head = db.execute("SELECT parent FROM turns WHERE id = ?", (head,)).fetchone()[0]
        return head == parent

    # What windows know

    def _bring_live(self, db: Connection, held: LiveIn) -> None:
        place = _free_place(db, held)
        if place is None:
            return
        number, start, gone = place
        if gone:
            _insert_asleep(db, held, number, start, gone, held.since, '{"why":"deleted"}')
            return
        woken = (
            None if held.woken is None else pack_json(reason_here(held.woken, lambda turn: _here(db, turn)))
        )
        db.execute(
            f"""INSERT INTO live (window, start, chunk, pinned, since, woken, {KEPT})
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (held.window, start, number, held.pinned, held.since, woken, *_kept(db, held)),
        )

    def _bring_asleep(self, db: Connection, held: AsleepIn) -> None:
        place = _free_place(db, held)
        if place is not None:
            reason = pack_json(reason_here(held.reason, lambda turn: _here(db, turn)))
            _insert_asleep(db, held, *place, held.slept, reason)

    def _bring_history(self, db: Connection, event: EventIn) -> None:
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
        detail = reason_here(event.detail, lambda turn: _here(db, turn))
        # An event is the same with another hit: one file may hold the turn of the hit, and another not.
        if (event.window, _without_hit(detail)) not in [
            (window, _without_hit(json.loads(text))) for window, text in known
        ]:
            happened = (event.window, row[0], event.happened, event.event, pack_json(detail))
            note_event(db, [happened])

    # Keepsakes

    def _bring_entries(self, db: Connection, entry: EntryIn) -> None:
        owner = self._people.owner(entry.owner)
        if db.execute(
            """SELECT 1 FROM entries WHERE owner = ?1 AND path = ?2
               UNION SELECT 1 FROM entry_versions WHERE owner = ?1 AND path = ?2""",
            (owner, entry.path),
        ).fetchone():
            return
        parent, _, heading = entry.path.rpartition("/")
        for version in entry.versions:
            snapshot = snapshot_here(version.snapshot, lambda turn: _here(db, turn))
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
            names = ["owner", *ENTRY.split(", "), *(("parent", "heading") if present else ("ended",))]
            db.execute(
                f"""INSERT INTO {"entries" if present else "entry_versions"} ({", ".join(names)})
                    VALUES (:{", :".join(names)})""",
                values,
            )
        self._counts["entries"] += 1

    def _bring_notes(self, db: Connection, note: NoteIn) -> None:
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

    def _bring_settings(self, db: Connection, setting: SettingIn) -> None:
        db.execute(
            "INSERT INTO settings (owner, key, value, modified) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (self._people.owner(setting.owner), setting.key, pack_json(setting.value), setting.modified),
        )

    # Vectors serve if they are of the embedder that serves here, or if there is none yet.

    def _bring_generations(self, db: Connection, generation: GenerationIn) -> None:
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

    def _bring_vectors(self, db: Connection, found: VectorIn) -> None:
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
        codes = codes_of(found.vector, self._dimension)
        db.put_vectors(self._generation, self._dimension, [(row[0], codes)])
        db.note_changed(row)
        if not found.stale:
            db.execute("DELETE FROM wanted WHERE generation = ? AND chunk = ?", (self._generation, row[0]))


def _without_hit(detail: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in detail.items() if name != "hit"}


def _here(db: Connection, turn: int) -> int | None:
    """The id here of a turn of the file."""
    row = db.execute("SELECT here FROM arrived WHERE turn = ?", (turn,)).fetchone()
    return row[0] if row else None


def _of_one_source(db: Connection, one: int | None, other: int) -> bool:
    sql = "SELECT 1 FROM imported a JOIN imported b ON b.source = a.source AND b.here = ? WHERE a.here = ?"
    return db.execute(sql, (other, one)).fetchone() is not None


def _head(db: Connection, window: str) -> int | None:
    row = db.execute("SELECT head FROM windows WHERE id = ?", (window,)).fetchone()
    return row[0] if row else None


def _free_place(db: Connection, held: LiveIn | AsleepIn) -> tuple[int, int, bool] | None:
    """Number, start and whether it is deleted or aside, of a chunk that its window does not hold yet."""
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


KEPT = "brightness, traces, tokenizer, ids, lengths, raw"


def _kept(db: Connection, held: LiveIn | AsleepIn) -> tuple[Any, ...]:
    """The values of the columns `KEPT`."""
    own: tuple[Any, ...] = (None,) * 4
    if held.reading is not None:
        own = (tokenizer_of(db, held.reading.tokenizer), *pack_tokens(held.reading.tokens))
    return held.brightness, held.traces, *own


def _insert_asleep(
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
        f"""INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, {KEPT})
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (held.window, start, number, gone, peak, slept, reason, *_kept(db, held)),
    )
