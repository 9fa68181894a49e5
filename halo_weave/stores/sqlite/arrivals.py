"""What arrives from another memory: which of it is new, and under which ids it will be known here."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from halo_weave.core.paths import checked_path
from halo_weave.core.tokens import ChunkKey, Tokens
from halo_weave.errors import ImportRefused, StoreFull
from halo_weave.records import WINDOW_ID, Imported
from halo_weave.settings import SHARED
from halo_weave.stores.exchange import FILE_LIMIT, LIMIT, ChunkIn, Header, Reading, TurnIn, read_turn
from halo_weave.stores.packing import pack_tokens, unpack_floats
from halo_weave.stores.sqlite.connection import Database
from halo_weave.stores.sqlite.rows import note_changed, pack_json, tokenizer_of, want_vectors, write_words


class Arrivals:
    """One import. Turns that are new keep their ids if these are free here; else all get new ones, in order."""

    def __init__(self, database: Database, header: Header) -> None:
        self._db = database
        self.header = header
        self.own = ""  # this memory's id
        self.shifts: tuple[int, int] | None = None  # of turn ids and positions, once ids were set aside
        self.counts = dict.fromkeys(
            ("turns", "chunks", "tokens", "windows", "entries", "notes", "known_turns"), 0
        )
        self.kept_ids = True
        self.generation: int | None = None  # the one here that takes the vectors
        self.dimension = 0

    def begin(self, db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE IF EXISTS temp.arrived")
        db.execute("CREATE TEMP TABLE arrived (turn INTEGER PRIMARY KEY, here INTEGER NOT NULL)")
        self.own = db.execute("SELECT id FROM memory").fetchone()[0]

    def end(self, db: sqlite3.Connection) -> None:
        db.execute("DROP TABLE IF EXISTS temp.arrived")

    def result(self) -> Imported:
        return Imported(**self.counts, kept_ids=self.kept_ids)

    def bring(self, db: sqlite3.Connection, section: str, elements: Sequence[Any]) -> None:
        step = getattr(self, f"_bring_{section}")
        for element in elements:
            step(db, Reading(section, element))

    @staticmethod
    def check(section: str, field: Reading) -> None:
        """Refuse an element that `bring` could not use, or that would be in the way of those who read it later."""
        try:
            CHECKS[section](field)
        except ValueError as error:  # BadInput among them
            raise ImportRefused(
                f"In {section!r} there is something that cannot be kept: {error} Nothing was changed."
            ) from error

    # Windows

    def _bring_windows(self, db: sqlite3.Connection, field: Reading) -> None:
        cursor = db.execute(
            """INSERT OR IGNORE INTO windows
                   (id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            read_window(field),
        )
        self.counts["windows"] += cursor.rowcount

    # Turns

    def _bring_turns(self, db: sqlite3.Connection, field: Reading) -> None:
        turn = read_turn(field.element, self.header)
        here = self._known(db, turn)
        if here is not None:
            self.counts["known_turns"] += 1
        else:
            here = self._insert(db, turn)
        db.execute("INSERT OR REPLACE INTO arrived (turn, here) VALUES (?, ?)", (turn.turn, here))

    def _known(self, db: sqlite3.Connection, turn: TurnIn) -> int | None:
        row = db.execute(
            "SELECT here FROM imported WHERE source = ? AND turn = ? AND mark = ?",
            (turn.memory, turn.first_turn, turn.mark),
        ).fetchone()
        if row is None and turn.memory == self.own:
            row = db.execute(
                "SELECT id FROM turns WHERE id = ? AND role = ? AND said = ?",
                (turn.first_turn, turn.role, turn.said),
            ).fetchone()
        return int(row[0]) if row else None

    def _insert(self, db: sqlite3.Connection, turn: TurnIn) -> int:
        turn_shift, shift = self._place(db, turn)
        here = turn.turn + turn_shift
        answers = None
        if turn.answers is not None:
            row = db.execute("SELECT here FROM arrived WHERE turn = ?", (turn.answers,)).fetchone()
            answers = row[0] if row else None
        db.execute(
            "INSERT INTO turns (id, window, role, answers, speaker, said) VALUES (?, ?, ?, ?, ?, ?)",
            (here, turn.window, turn.role, answers, turn.speaker, turn.said),
        )
        if (turn.memory, turn.first_turn) != (self.own, here):
            db.execute(
                "INSERT INTO imported (source, turn, mark, here, shift) VALUES (?, ?, ?, ?, ?)",
                (turn.memory, turn.first_turn, turn.mark, here, shift),
            )
        numbers: dict[int, int] = {}
        for chunk in turn.chunks:
            numbers[chunk.chunk] = insert_chunk(db, here, turn.window, chunk, chunk.start + shift, numbers)
        note_changed(db, list(numbers.values()))
        present = [
            numbers[part.chunk] for part in turn.chunks if part.deleted is None and part.merged is None
        ]
        write_words(db, present)
        want_vectors(db, present)
        self.counts["turns"] += 1
        self.counts["chunks"] += len(turn.chunks)
        self.counts["tokens"] += sum(len(part.tokens) for part in turn.chunks if part.merged is None)
        return here

    def _place(self, db: sqlite3.Connection, turn: TurnIn) -> tuple[int, int]:
        """How far its ids must move. Those of our own past that a clear wiped are free for it."""
        next_turn, next_position, cleared = db.execute(
            "SELECT next_turn, next_position, cleared_turn FROM memory"
        ).fetchone()
        own_past = self.header.id == self.own == turn.memory and turn.turn < cleared
        if own_past and self._free(db, turn, (0, 0)):
            return 0, 0
        shifts = self.shifts or self._set_apart(db, turn)
        if shifts is None:
            shifts = self.shifts = self._set_aside(db, turn, next_turn, next_position)
        self.kept_ids &= shifts == (0, 0)
        return shifts

    def _set_apart(self, db: sqlite3.Connection, turn: TurnIn) -> tuple[int, int] | None:
        """The shifts of an earlier import from there that did not bring this turn, if its place is still free."""
        for shifts in db.execute(
            "SELECT turn_shift, shift FROM imports WHERE source = ? AND first_turn <= ? AND ? < end_turn",
            (self.header.id, turn.turn, turn.turn),
        ).fetchall():
            if self._free(db, turn, shifts):
                return shifts  # type: ignore[no-any-return]
        return None

    def _free(self, db: sqlite3.Connection, turn: TurnIn, shifts: tuple[int, int]) -> bool:
        start, stop = turn.reach
        # Chunks do not overlap, so the last one that begins before the turn's end tells for all.
        taken = db.execute(
            """SELECT 1 FROM turns WHERE id = ? UNION ALL
               SELECT 1 FROM (SELECT start + span AS stop FROM chunks WHERE start < ? AND merged IS NULL
                              ORDER BY start DESC LIMIT 1) WHERE stop > ?""",
            (turn.turn + shifts[0], stop + shifts[1], start + shifts[1]),
        ).fetchone()
        return taken is None

    def _set_aside(
        self, db: sqlite3.Connection, turn: TurnIn, next_turn: int, next_position: int
    ) -> tuple[int, int]:
        """Reserve ids for this turn and all that follow in the file."""
        start, _ = turn.reach
        free = turn.turn >= next_turn and start >= next_position
        shifts = (0, 0) if free else (next_turn - turn.turn, next_position - start)
        ends = (self.header.next_turn + shifts[0], self.header.next_position + shifts[1])
        if max(ends) > LIMIT:
            raise StoreFull("There are not enough ids left for this import: they end at 2^63.")
        db.execute(
            "UPDATE memory SET next_turn = max(next_turn, ?), next_position = max(next_position, ?)", ends
        )
        db.execute(
            "INSERT INTO imports (source, first_turn, end_turn, turn_shift, shift) VALUES (?, ?, ?, ?, ?)",
            (self.header.id, turn.turn, self.header.next_turn, *shifts),
        )
        return shifts

    # What windows know

    def _bring_live(self, db: sqlite3.Connection, field: Reading) -> None:
        window, number, start, gone = self._spot(db, field)
        if number is None:
            return
        pinned, since, woken, brightness, own = read_live(self._retold(db, field, "woken"))
        reading = pack_reading(db, own)
        if gone:
            db.execute(
                ASLEEP,
                (
                    window,
                    start,
                    number,
                    1,
                    peak(brightness),
                    since,
                    '{"why":"deleted"}',
                    brightness,
                    *reading,
                ),
            )
        else:
            db.execute(
                """INSERT INTO live (window, start, chunk, pinned, since, woken, brightness, tokenizer, ids, lengths, raw)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (window, start, number, pinned, since, woken, brightness, *reading),
            )

    def _bring_asleep(self, db: sqlite3.Connection, field: Reading) -> None:
        window, number, start, gone = self._spot(db, field)
        if number is not None:
            slept, reason, brightness, own = read_asleep(self._retold(db, field, "reason"))
            reading = pack_reading(db, own)
            db.execute(
                ASLEEP, (window, start, number, gone, peak(brightness), slept, reason, brightness, *reading)
            )

    def _spot(self, db: sqlite3.Connection, field: Reading) -> tuple[str, int | None, int, bool]:
        """Where a chunk stands in a window, if the window does not hold it yet. (window, number, start, deleted)"""
        window = field.text("window")
        row = db.execute(
            """SELECT c.number, c.start, c.deleted IS NOT NULL, c.span FROM arrived a JOIN chunks c ON c.turn = a.here
               JOIN windows w ON w.id = :window WHERE a.turn = :turn AND c.chunk = :chunk AND c.merged IS NULL
               AND NOT EXISTS (SELECT 1 FROM live WHERE window = :window AND start = c.start)
               AND NOT EXISTS (SELECT 1 FROM asleep WHERE window = :window AND start = c.start)""",
            {"window": window, "turn": field.whole("turn"), "chunk": field.whole("chunk")},
        ).fetchone()
        if row is None or (
            field.element.get("reading") is None and len(field.floats("brightness")) != 4 * row[3]
        ):
            return window, None, 0, False
        return window, row[0], row[1], bool(row[2])

    def _bring_history(self, db: sqlite3.Connection, field: Reading) -> None:
        turn, chunk, window, happened, event, detail = read_event(self._retold(db, field, "detail"))
        # An event is the same with another hit: one file may hold the turn of the hit, and another not.
        db.execute(
            """INSERT INTO history (window, chunk, happened, event, detail)
               SELECT :window, c.number, :happened, :event, :detail FROM arrived a JOIN chunks c ON c.turn = a.here
               WHERE a.turn = :turn AND c.chunk = :chunk
               AND (:window IS NULL OR EXISTS (SELECT 1 FROM windows WHERE id = :window))
               AND NOT EXISTS (SELECT 1 FROM history h WHERE h.chunk = c.number AND h.window IS :window
                               AND h.happened = :happened AND h.event = :event
                               AND json_remove(h.detail, '$.hit') = json_remove(:detail, '$.hit'))""",
            {
                "turn": turn,
                "chunk": chunk,
                "window": window,
                "happened": happened,
                "event": event,
                "detail": detail,
            },
        )

    def _retold(self, db: sqlite3.Connection, field: Reading, name: str) -> Reading:
        """The element, its reason to wake or sleep told with the keys of this memory."""
        why = field.element.get(name)
        return field if why is None else Reading(field.section, {**field.element, name: self._why(db, why)})

    def _why(self, db: sqlite3.Connection, why: dict[str, Any]) -> dict[str, Any]:
        told = dict(why)
        if "hit" in why:
            told["hit"] = self._key(db, why["hit"])
            if told["hit"] is None:
                del told["hit"]
        if isinstance(why.get("woken"), dict):  # a live chunk that was deleted keeps why it was live
            told["woken"] = self._why(db, why["woken"])
        return told

    def _key(self, db: sqlite3.Connection, text: Any) -> str | None:
        """A chunk's key in this memory. None if its turn is not in the file: here the id may be another turn's."""
        try:
            turn, chunk, role = ChunkKey.parse(str(text))
        except ValueError:
            return None
        row = db.execute("SELECT here FROM arrived WHERE turn = ?", (min(turn, LIMIT),)).fetchone()
        return str(ChunkKey(row[0], chunk, role)) if row else None

    # Keepsakes

    def _bring_entries(self, db: sqlite3.Connection, field: Reading) -> None:
        path, versions = read_entry(self._explained(db, field))
        if db.execute(
            "SELECT 1 FROM entries WHERE path = ?1 UNION SELECT 1 FROM entry_versions WHERE path = ?1",
            (path,),
        ).fetchone():
            return
        parent, _, heading = path.rpartition("/")
        for *version, ended in versions:
            if ended is None:
                db.execute(
                    """INSERT INTO entries (path, version, content, snapshot, model, vectors, created, modified, accessed,
                           parent, heading) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                    (path, *version, parent, heading),
                )
            else:
                db.execute(
                    """INSERT INTO entry_versions (path, version, content, snapshot, model, vectors, created, modified,
                           accessed, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                    (path, *version, ended),
                )
        self.counts["entries"] += 1

    def _explained(self, db: sqlite3.Connection, field: Reading) -> Reading:
        """The entry, the chunks of its snapshots by their keys in this memory; one that is not in the file has none."""
        versions = []
        for version in field.element["versions"]:
            chunks = [
                {**one, "key": self._key(db, one["key"])} if "key" in one else one
                for one in version["snapshot"]
            ]
            versions.append({**version, "snapshot": chunks})
        return Reading(field.section, {**field.element, "versions": versions})

    def _bring_notes(self, db: sqlite3.Connection, field: Reading) -> None:
        cursor = db.execute(
            "INSERT OR IGNORE INTO notes (name, content, created, modified) VALUES (?, ?, ?, ?)",
            read_note(field),
        )
        self.counts["notes"] += cursor.rowcount

    def _bring_settings(self, db: sqlite3.Connection, field: Reading) -> None:
        db.execute(
            "INSERT OR IGNORE INTO settings (key, value, modified) VALUES (?, ?, ?)", read_setting(field)
        )

    # Vectors serve if they are of the embedder that serves here, or if there is none yet.

    def _bring_generations(self, db: sqlite3.Connection, field: Reading) -> None:
        _, model, dimension, created, completed = read_generation(field)
        if db.execute("SELECT 1 FROM generations WHERE state = 'current'").fetchone() is None:
            number = db.execute(
                """INSERT INTO generations (model, dimension, state, created, completed)
                   VALUES (?, ?, 'current', ?, ?) RETURNING id""",
                (model, dimension, created, completed),
            ).fetchone()
            db.execute(
                """INSERT INTO wanted (generation, chunk, sequence) SELECT ?, c.number, n.sequence
                   FROM chunks c JOIN changes n ON n.chunk = c.number WHERE c.deleted IS NULL AND c.merged IS NULL""",
                number,
            )
        row = db.execute(
            "SELECT id FROM generations WHERE state = 'current' AND model = ? AND dimension = ?",
            (model, dimension),
        ).fetchone()
        self.generation, self.dimension = (row[0], dimension) if row else (None, 0)

    def _bring_vectors(self, db: sqlite3.Connection, field: Reading) -> None:
        vector = field.floats("vector")
        if self.generation is None or not vector or len(vector) % (4 * self.dimension):
            return
        row = db.execute(
            """SELECT c.number FROM arrived a JOIN chunks c ON c.turn = a.here WHERE a.turn = ? AND c.chunk = ?
               AND c.deleted IS NULL AND c.merged IS NULL
               AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = ? AND v.chunk = c.number)""",
            (field.whole("turn"), field.whole("chunk"), self.generation),
        ).fetchone()
        if row is None:
            return
        db.execute(
            "INSERT INTO vectors (generation, chunk, vector) VALUES (?, ?, ?)",
            (self.generation, row[0], vector),
        )
        note_changed(db, row)
        if not field.flag("stale"):
            db.execute("DELETE FROM wanted WHERE generation = ? AND chunk = ?", (self.generation, row[0]))


ASLEEP = """INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, brightness, tokenizer, ids, lengths, raw)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def insert_chunk(
    db: sqlite3.Connection, turn: int, window: str, chunk: ChunkIn, start: int, numbers: dict[int, int]
) -> int:
    cursor = db.execute(
        """INSERT INTO chunks (turn, chunk, window, start, span, tokenizer, deleted, undeleted, merged, merged_into, tags,
               ids, lengths, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            turn,
            chunk.chunk,
            window,
            start,
            len(chunk.tokens),
            tokenizer_of(db, chunk.tokenizer),
            chunk.deleted,
            chunk.undeleted,
            chunk.merged,
            None if chunk.merged_into is None else numbers[chunk.merged_into],
            pack_json(list(chunk.tags)) if chunk.tags else None,
            *pack_tokens(chunk.tokens),
        ),
    )
    return int(cursor.lastrowid or 0)


def peak(brightness: bytes) -> float:
    return float(unpack_floats(brightness).max()) if brightness else 0.0


def pack_reading(db: sqlite3.Connection, own: tuple[str, Tokens] | None) -> tuple[Any, ...]:
    return (None,) * 4 if own is None else (tokenizer_of(db, own[0]), *pack_tokens(own[1]))


# One element of each section as the values of its row


def read_window(field: Reading) -> tuple[Any, ...]:
    texts = [field.text(name) for name in ("id", "name", "system_prompt", "user_name", "ai_name")]
    if not re.fullmatch(WINDOW_ID, texts[0]):
        raise field.refuse("id", "1 to 64 letters, digits, _ or -")
    times = (field.time("created"), field.time("modified"), field.maybe_time("deleted"))
    return (*texts, pack_json(field.object("settings")), *times)


def read_own_tokens(field: Reading) -> tuple[bytes, tuple[str, Tokens] | None]:
    own = None
    if field.element.get("reading") is not None:
        inner = Reading(field.section, field.element["reading"])
        own = (inner.text("tokenizer"), inner.tokens())
    brightness = field.floats("brightness", None if own is None else len(own[1]))
    if not brightness or not np.isfinite(unpack_floats(brightness)).all():
        raise field.refuse("brightness", "at least one number for each token")
    return brightness, own


def read_live(field: Reading) -> tuple[bool, int, str | None, bytes, tuple[str, Tokens] | None]:
    woken = field.element.get("woken")
    since = field.time("since")
    return (
        field.flag("pinned"),
        since,
        None if woken is None else pack_json(field.object("woken")),
        *read_own_tokens(field),
    )


def read_asleep(field: Reading) -> tuple[int, str, bytes, tuple[str, Tokens] | None]:
    return field.time("slept"), pack_json(field.object("reason")), *read_own_tokens(field)


def read_event(field: Reading) -> tuple[int, int, str | None, int, str, str]:
    return (
        field.whole("turn", least=1),
        field.whole("chunk"),
        field.maybe_text("window"),
        field.time("happened"),
        field.text("event"),
        pack_json(field.object("detail")),
    )


def read_entry(field: Reading) -> tuple[str, list[tuple[Any, ...]]]:
    path = field.text("path")
    if checked_path(path) != path:
        raise field.refuse("path", "without spaces and slashes around its headings")
    versions: list[tuple[Any, ...]] = []
    for inner in field.list("versions"):
        snapshot = read_snapshot(inner)
        vectors = inner.floats("vectors")
        if vectors and (not snapshot or len(vectors) % (4 * len(snapshot))):
            raise inner.refuse("snapshot", "a list, with as many vectors")
        if not np.isfinite(unpack_floats(vectors)).all():
            raise inner.refuse("vectors", "numbers")
        version = inner.whole("version", least=1, most=FILE_LIMIT)
        if versions and (version <= versions[-1][0] or versions[-1][-1] is None):
            raise inner.refuse("version", "after the one before it, which has ended")
        versions.append(
            (
                version,
                pack_json(inner.any("content")),
                pack_json(snapshot),
                inner.text("model"),
                vectors,
                inner.time("created"),
                inner.time("modified"),
                inner.time("accessed"),
                inner.maybe_time("ended"),
            )
        )
    if not versions:
        raise field.refuse("versions", "a list of at least one version")
    return path, versions


def read_snapshot(field: Reading) -> list[Any]:
    """Objects. One with a key, be it null, is a chunk, whole; the others are texts that only their vectors speak for."""
    for one in field.list("snapshot"):
        if "key" in one.element:
            text = one.maybe_text("key")
            ids = () if text is None else ChunkKey.parse(text)[:2]
            if max(ids, default=0) > LIMIT or not isinstance(one.element.get("tokens"), int):
                raise one.refuse("key", "of a chunk, beside the number of its tokens")
            one.text("text"), one.number("tokens"), one.number("similarity"), one.maybe_text("said")
        elif "text" in one.element:
            one.text("text")
    return field.any("snapshot")  # type: ignore[no-any-return]


def read_note(field: Reading) -> tuple[Any, ...]:
    content = field.object("content")
    if content.get("_metadata") is not None:
        Reading(field.section, content).object("_metadata")
    return field.text("name"), pack_json(content), field.time("created"), field.time("modified")


def read_setting(field: Reading) -> tuple[Any, ...]:
    key = field.text("key")
    # The settings in it may be of a newer version: what cannot be used is passed over when they are read.
    value = field.object("value") if key == SHARED else field.any("value")
    return key, pack_json(value), field.time("modified")


def read_generation(field: Reading) -> tuple[int, str, int, int, int | None]:
    return (
        field.whole("generation"),
        field.text("model"),
        field.whole("dimension", least=1),
        field.time("created"),
        field.maybe_time("completed"),
    )


def read_vector(field: Reading) -> None:
    field.whole("generation"), field.whole("turn", least=1), field.whole("chunk"), field.flag("stale")
    if not np.isfinite(unpack_floats(field.floats("vector"))).all():
        raise field.refuse("vector", "numbers")


def read_held(field: Reading) -> None:
    field.text("window"), field.whole("turn", least=1), field.whole("chunk")
    (read_live if field.section == "live" else read_asleep)(field)


CHECKS = {
    "windows": read_window,
    "live": read_held,
    "asleep": read_held,
    "history": read_event,
    "entries": read_entry,
    "notes": read_note,
    "settings": read_setting,
    "generations": read_generation,
    "vectors": read_vector,
}
