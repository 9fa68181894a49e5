"""Import of the prototype's export: one conversation as a list of tokens, live and deleted."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import groupby, pairwise
from typing import NamedTuple, TextIO

import numpy as np

from halo_weave.core.brightness import INITIAL
from halo_weave.core.tokens import Role, Tokens
from halo_weave.errors import ImportRefused, StoreFull
from halo_weave.records import Imported
from halo_weave.stores.exchange import LIMIT, ChunkIn, Reading
from halo_weave.stores.jsonstream import JsonReader
from halo_weave.stores.packing import micros, pack_floats
from halo_weave.stores.sqlite.arrivals import insert_chunk
from halo_weave.stores.sqlite.connection import Database
from halo_weave.stores.sqlite.rows import note_changed, want_vectors, write_words

SOURCE = "prototype"
TOKENIZER = "prototype"  # of another model; a window reads such chunks anew before it uses them
TABLE = """CREATE TABLE tokens (position INTEGER PRIMARY KEY, turn INTEGER, role TEXT, sentence INTEGER, asleep INTEGER,
               pinned INTEGER, token INTEGER, text TEXT, brightness REAL)"""


class Token(NamedTuple):
    position: int
    turn: int
    role: str
    sentence: int
    asleep: int
    pinned: int
    token: int
    text: str
    brightness: float


class PrototypeImport:
    """Live tokens become live chunks, deleted ones sleep, each as bright as it was."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def run(self, file: TextIO, now: datetime, progress: Callable[[int, int], None]) -> Imported:
        # Tokens may come in any order and be more than memory holds, so they are sorted in a file that has no name.
        with closing(sqlite3.connect("")) as spool:
            spool.execute(TABLE)
            spool.execute("BEGIN")
            self._spool(file, spool, progress)
            with self._db.writing(durable=True) as db:
                return self._bring(db, spool, micros(now))

    def _spool(self, file: TextIO, spool: sqlite3.Connection, progress: Callable[[int, int], None]) -> None:
        file.seek(0)
        count = 0
        for key, element in JsonReader(file):
            if key != "tokens":
                continue
            token = read_token(Reading("tokens", element))
            try:
                spool.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", token)
            except sqlite3.IntegrityError:
                raise ImportRefused(
                    f"Two tokens in the file claim position {token.position}. Nothing was changed."
                ) from None
            count += 1
            if not count % 1000:
                progress(count, 0)

    def _bring(self, db: sqlite3.Connection, spool: sqlite3.Connection, when: int) -> Imported:
        next_turn, next_position = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
        found = spool.execute("SELECT min(turn), min(position), count(*) FROM tokens").fetchone()
        if not found[2]:
            return Imported(0, 0, 0, 0, 0, 0, 0, True)
        ids = _Ids(next_turn, next_position, found[0], found[1])
        window: str | None = None
        counts = dict.fromkeys(("turns", "chunks", "tokens", "windows", "known_turns"), 0)
        question: int | None = None
        for tokens in turns(spool):
            role = Role(tokens[0].role)
            mark = mark_of(tokens)
            row = db.execute(
                """SELECT i.here, t.window FROM imported i JOIN turns t ON t.id = i.here
                   WHERE i.source = ? AND i.turn = ? AND i.mark = ?""",
                (SOURCE, tokens[0].turn, mark),
            ).fetchone()
            if row is not None:
                here, window = row
                counts["known_turns"] += 1
                question = here if role is Role.USER else question
                continue
            if window is None:
                window = new_window(db, when)
                counts["windows"] += 1
            here = ids.turn(tokens[0].turn)
            db.execute(
                "INSERT INTO turns (id, window, role, answers, speaker, said) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    here,
                    window,
                    role,
                    question if role is Role.ASSISTANT else None,
                    {Role.USER: "User", Role.ASSISTANT: "AI"}.get(role, ""),
                    when,
                ),
            )
            chunks = list(chunked(tokens))
            numbers: dict[int, int] = {}
            for chunk_id, part in chunks:
                start = ids.start(part)
                chunk = ChunkIn(chunk_id, start, tokens_of(part), TOKENIZER, (), None, None, None, None)
                numbers[chunk_id] = insert_chunk(db, here, window, chunk, start, {})
                place(db, window, numbers[chunk_id], start, part, when)
                counts["tokens"] += len(part)
            db.execute(
                "INSERT INTO imported (source, turn, mark, here, shift) VALUES (?, ?, ?, ?, ?)",
                (SOURCE, tokens[0].turn, mark, here, 0),
            )
            note_changed(db, list(numbers.values()))
            write_words(db, list(numbers.values()))
            want_vectors(db, list(numbers.values()))
            counts["turns"] += 1
            counts["chunks"] += len(chunks)
            question = here if role is Role.USER else None if role is Role.ASSISTANT else question
        if max(ids.next_turn, ids.next_position) > LIMIT:
            raise StoreFull("There are not enough ids left for this import: they end at 2^63.")
        db.execute("UPDATE memory SET next_turn = ?, next_position = ?", (ids.next_turn, ids.next_position))
        return Imported(
            counts["turns"],
            counts["chunks"],
            counts["tokens"],
            counts["windows"],
            0,
            0,
            counts["known_turns"],
            ids.kept,
        )


class _Ids:
    """Ids as they were if they are free and in order; else the next free ones."""

    def __init__(self, next_turn: int, next_position: int, first_turn: int, first_position: int) -> None:
        self.next_turn, self.next_position = next_turn, next_position
        self._keeps = first_turn >= next_turn and first_position >= next_position
        self.kept = True

    def turn(self, wanted: int) -> int:
        given = wanted if self._keeps and wanted >= self.next_turn else self.next_turn
        self.kept &= given == wanted
        self.next_turn = given + 1
        return given

    def start(self, part: list[Token]) -> int:
        wanted = part[0].position
        given = wanted if self._keeps and wanted >= self.next_position else self.next_position
        self.kept &= given == wanted
        self.next_position = given + len(part)
        return given


def read_token(field: Reading) -> Token:
    role = field.text("role")
    if role not in set(Role):
        raise field.refuse("role", "system, user or assistant")
    asleep = field.flag("deleted")
    number = field.element.get("brightness")
    if asleep and field.element.get("brightness_at_deletion") is not None:
        number = field.element["brightness_at_deletion"]
    if number is None:
        number = INITIAL
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise field.refuse("brightness", "a number")
    pinned = field.element.get("pinned") is True
    return Token(
        field.whole("position"),
        field.whole("turn_id"),
        role,
        field.whole("sentence_id"),
        asleep,
        pinned,
        field.whole("token_id"),
        field.text("text"),
        float(number),
    )


def turns(spool: sqlite3.Connection) -> Iterator[list[Token]]:
    rows = map(Token._make, spool.execute("SELECT * FROM tokens ORDER BY position"))
    for _, group in groupby(rows, key=lambda token: (token.turn, token.role)):
        yield list(group)


def chunked(turn: list[Token]) -> Iterator[tuple[int, list[Token]]]:
    """The prototype's chunks. If one is live in part, has a gap, or the first is not 0, the turn's are counted anew."""
    groups = [
        list(group)
        for _, group in groupby(
            enumerate(turn), key=lambda item: (item[1].sentence, item[1].asleep, item[1].position - item[0])
        )
    ]
    sentences = [group[0][1].sentence for group in groups]
    in_order = sentences[0] == 0 and all(before < after for before, after in pairwise(sentences))
    for number, group in enumerate(groups):
        yield sentences[number] if in_order else number, [token for _, token in group]


def tokens_of(part: list[Token]) -> Tokens:
    return Tokens.of(
        [token.token for token in part], [token.text.encode("utf-8", "replace") for token in part]
    )


def mark_of(turn: list[Token]) -> str:
    """The turn's content, so that two conversations with the same ids are told apart."""
    content = hashlib.sha256(repr([(token.position, token.token, token.text) for token in turn]).encode())
    return f"{turn[0].role} {content.hexdigest()[:32]}"


def new_window(db: sqlite3.Connection, when: int) -> str:
    window = secrets.token_hex(5)
    db.execute(
        """INSERT INTO windows (id, name, system_prompt, user_name, ai_name, settings, created, modified)
           VALUES (?, 'Imported', '', 'User', 'AI', '{}', ?, ?)""",
        (window, when, when),
    )
    return window


def place(db: sqlite3.Connection, window: str, number: int, start: int, part: list[Token], when: int) -> None:
    brightness = np.array([token.brightness for token in part], np.float32)
    if part[0].asleep:
        db.execute(
            """INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, brightness)
               VALUES (?, ?, ?, 0, ?, ?, '{"why":"before the import"}', ?)""",
            (window, start, number, float(brightness.max()), when, pack_floats(brightness)),
        )
    else:
        db.execute(
            "INSERT INTO live (window, start, chunk, pinned, since, brightness) VALUES (?, ?, ?, ?, ?, ?)",
            (window, start, number, any(token.pinned for token in part), when, pack_floats(brightness)),
        )
