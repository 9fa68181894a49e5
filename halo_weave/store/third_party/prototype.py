"""Convert exports of the prototype, one conversation as a list of tokens, to the exchange format."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice, pairwise
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self, TextIO

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from halo_weave.core.brightness import INITIAL_BRIGHTNESS
from halo_weave.core.tokens import Role, Tokens
from halo_weave.errors import ImportRefused
from halo_weave.store.encoding import micros, pack_floats
from halo_weave.store.exchange_format import (
    FILE_LIMIT,
    MAX_TURN_SPAN,
    ExportHeader,
    Id,
    NoteIn,
    Text,
    base64_of,
    iso_time,
    read_element,
    tokens_out,
)
from halo_weave.store.json_stream import JsonReader
from halo_weave.store.records import Progress
from halo_weave.store.third_party.conversation import moment_of, one_line

MEMORY = "prototype"  # the name of the memory that such turns come from
TOKENIZER = "prototype"  # of another model: a window retokenizes such chunks before it uses them
SPEAKERS = {Role.USER: "User", Role.ASSISTANT: "AI", Role.SYSTEM: ""}
STEP = 200  # turns per batch
OPENED = ("conversation", "semanticIndex")  # objects of an export that are large
TOKENS = ("tokens", "conversation.tokens")  # member with the tokens: in older exports, in newer ones
NOTES = "notes.json"  # the name of the AI's notes
# The prototype's delimiters around a turn: time, speaker and end. Times are UTC.
_MARKS = re.compile(
    r"(?:\((\d{4}-\d\d-\d\d)_(\d\d:\d\d:\d\d)\) ?)?<\|im_start\|>([^\n<]{0,200})\n|<\|im_end\|>\n?"
    r"|\A\((\d{4}-\d\d-\d\d)_(\d\d:\d\d:\d\d)\) ?"
)
_ROLES = {"user", "assistant", "system"}  # placeholder names in delimiters
TABLE = """CREATE TABLE tokens (position INTEGER PRIMARY KEY, turn INTEGER, role TEXT, sentence INTEGER, asleep INTEGER,
               pinned INTEGER, token INTEGER, text TEXT, brightness REAL)"""

Finite = Annotated[float, Field(ge=-3e38, le=3e38)]  # of float32


class _TokenIn(BaseModel):
    model_config = ConfigDict(strict=True)

    position: Annotated[Id, Field(lt=FILE_LIMIT)]
    turn_id: Annotated[Id, Field(lt=FILE_LIMIT)]
    role: Annotated[Role, Field(strict=False)]
    sentence_id: Id
    token_id: Annotated[Id, Field(lt=2**31)]
    text: Text
    deleted: bool = False
    pinned: Any = False
    brightness: Finite | None = None
    brightness_at_deletion: Finite | None = None

    @property
    def earned(self) -> float:
        at_deletion = self.brightness_at_deletion if self.deleted else None
        known = (at_deletion, self.brightness, INITIAL_BRIGHTNESS)
        return next(value for value in known if value is not None)


class _Token(NamedTuple):
    position: int
    turn: int
    role: str
    sentence: int
    asleep: int
    pinned: int
    token: int
    text: str
    brightness: float


class _Turn(NamedTuple):
    id: int  # the next free id
    answers: int | None
    tokens: list[_Token]  # without tokens of delimiters
    mark: str
    speaker: str
    said: int


class PrototypeFile:
    """Live tokens become live chunks and deleted ones pruned chunks, with their brightness."""

    program = "Halo Weave's prototype"

    def __init__(self, text: TextIO, size: int, now: int, progress: Progress) -> None:
        self._now, self._size = now, size
        self.left: Counter[str] = Counter()
        self.heads: dict[str, int] = {}
        self._notes: dict[str, Any] | None = None
        self._names: dict[Role, str] = {}
        self._begun: int | None = None  # the time in its delimiters
        # Tokens may come in any order and exceed the memory, so they are sorted in an unnamed file.
        self._spool = sqlite3.connect("", isolation_level=None)
        try:
            self._spool.execute(TABLE)
            self._spool.execute("BEGIN")
            self._sort(text, progress)
            self.renumbered = False
            next_turn = next_position = 1
            self._mark = ""  # of the conversation: it stays the same while the conversation grows
            for turn in self._turns():
                self._mark = self._mark or turn.mark
                self.renumbered |= turn.id != turn.tokens[0].turn
                if turn.tokens[-1].position - turn.tokens[0].position >= MAX_TURN_SPAN:
                    raise ImportRefused(
                        f"The tokens of turn {turn.id} in the file stand too far apart. Nothing was changed."
                    )
                next_turn, next_position = turn.id + 1, turn.tokens[-1].position + 1
            if not self._mark:
                raise ImportRefused("There is no text in the file. Nothing was changed.")
            self.header = ExportHeader(
                id=f"{MEMORY} {self._mark}", next_turn=next_turn, next_position=next_position
            )
        except BaseException:
            self._spool.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def batches(self, progress: Progress) -> Iterator[tuple[str, list[Any]]]:
        window = hashlib.sha256(self._mark.encode()).hexdigest()[:10]
        yield "windows", [self._window(window)]
        if self._notes is not None:
            now = iso_time(self._now)
            yield "notes", [{"name": NOTES, "content": self._notes, "created": now, "modified": now}]
        for section, of_turn in (
            ("turns", self._turn),
            ("live", self._live),
            ("asleep", self._asleep),
        ):
            turns = self._turns()
            while some := list(islice(turns, STEP)):
                yield section, [element for turn in some for element in of_turn(turn, window)]
                progress(self._size + self._size * some[-1].id // self.header.next_turn, 2 * self._size)

    def _sort(self, text: TextIO, progress: Progress) -> None:
        text.seek(0)
        reader = JsonReader(text, opened=OPENED)
        for number, (key, element) in enumerate(reader):
            if key == "notes":
                self._read_notes(element)
            if key not in TOKENS:
                continue
            token = read_element("tokens", _TokenIn, element)
            try:
                self._spool.execute(
                    """INSERT INTO tokens VALUES (:position, :turn_id, :role, :sentence_id, :deleted, :pinned,
                           :token_id, :text, :earned)""",
                    {**token.model_dump(), "pinned": token.pinned is True, "earned": token.earned},
                )
            except sqlite3.IntegrityError:
                raise ImportRefused(
                    f"Two tokens in the file claim position {token.position}. Nothing was changed."
                ) from None
            if not number % 1000:
                progress(reader.taken, 2 * self._size)

    def _read_notes(self, found: Any) -> None:
        if isinstance(found, dict) and isinstance(found.get(NOTES), dict):
            found = found[NOTES]
        if not isinstance(found, dict) or not isinstance(found.get("_metadata", {}), dict):
            self.left["notes that are no object"] += 1
        elif found:
            note = {
                "name": NOTES,
                "content": found,
                "created": iso_time(self._now),
                "modified": iso_time(self._now),
            }
            read_element("notes", NoteIn, note)
            self._notes = found

    def _turns(self) -> Iterator[_Turn]:
        """Turns in order of time, each with its own id. An answer belongs to the question before it."""
        rows = map(_Token._make, self._spool.execute("SELECT * FROM tokens ORDER BY position"))
        last, question, said = 0, None, self._now if self._begun is None else self._begun
        for _, group in groupby(rows, key=lambda token: (token.turn, token.role)):
            raw = _spelled(list(group))
            if not all(any(token.text for token in part) for _, part in _chunks(raw)):
                raise ImportRefused(
                    f"A part of turn {raw[0].turn} in the file has no text. Nothing was changed."
                )
            tokens, name, when = _unmarked(raw)
            if not tokens:
                continue
            role = Role(raw[0].role)
            if when is not None:
                said = when
                self._begun = when if self._begun is None else self._begun
            if name:
                self._names[role] = name
            last = max(raw[0].turn, last + 1)
            answers = question if role is Role.ASSISTANT else None
            yield _Turn(last, answers, tokens, _mark(raw), name or SPEAKERS[role], said)
            question = last if role is Role.USER else None if role is Role.ASSISTANT else question

    # The elements of the exchange format

    def _window(self, window: str) -> dict[str, Any]:
        now = iso_time(self._now)
        user, ai = (self._names.get(role, SPEAKERS[role]) for role in (Role.USER, Role.ASSISTANT))
        names = {"name": "Imported", "system_prompt": "", "user_name": user, "ai_name": ai}
        created = now if self._begun is None else iso_time(self._begun)
        return {"id": window, **names, "settings": {}, "created": created, "modified": now}

    def _turn(self, turn: _Turn, window: str) -> Iterator[dict[str, Any]]:
        first = turn.tokens[0]
        yield {
            "turn": turn.id,
            "window": window,
            "role": first.role,
            "answers": turn.answers,
            "speaker": turn.speaker,
            "said": iso_time(turn.said),
            "origin": {"memory": MEMORY, "turn": first.turn, "mark": turn.mark},
            "chunks": [
                {
                    "chunk": number,
                    "start": part[0].position,
                    "tokenizer": TOKENIZER,
                    **tokens_out(
                        Tokens.of([token.token for token in part], [token.text.encode() for token in part])
                    ),
                }
                for number, part in _chunks(turn.tokens)
            ],
        }

    def _live(self, turn: _Turn, window: str) -> Iterator[dict[str, Any]]:
        for number, part in _chunks(turn.tokens):
            if not part[0].asleep:
                pinned = any(token.pinned for token in part)
                held = _held(turn, window, number, part)
                yield {**held, "pinned": pinned, "since": iso_time(self._now)}

    def _asleep(self, turn: _Turn, window: str) -> Iterator[dict[str, Any]]:
        for number, part in _chunks(turn.tokens):
            if part[0].asleep:
                reason = {"why": "before the import"}
                yield {
                    **_held(turn, window, number, part),
                    "slept": iso_time(self._now),
                    "reason": reason,
                }


def _held(turn: _Turn, window: str, number: int, part: list[_Token]) -> dict[str, Any]:
    brightness = np.array([token.brightness for token in part], np.float32)
    return {
        "window": window,
        "turn": turn.id,
        "chunk": number,
        "brightness": base64_of(pack_floats(brightness)),
    }


def _chunks(turn: list[_Token]) -> Iterator[tuple[int, list[_Token]]]:
    """The prototype's chunks. If one is partly live, has a gap, or the first is not 0, the turn's chunks are numbered
    again."""
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


def _spelled(turn: list[_Token]) -> list[_Token]:
    """The tokens with the text of delimiters: the oldest exports have no text for them, only the role."""
    name = "".join(token.text for token in turn[1:4]).partition("\n")[0]
    if turn[0].text or name not in _ROLES:
        return turn
    after = [token.text for token in turn[1:]] + ["\n"]
    return [turn[0]._replace(text="<|im_start|>")] + [
        token._replace(text="<|im_end|>") if not token.text and following.startswith("\n") else token
        for token, following in zip(turn[1:], after[1:], strict=True)
    ]


def _unmarked(turn: list[_Token]) -> tuple[list[_Token], str, int | None]:
    """A turn without its delimiters, with the name and time in them. A token in which a delimiter ends keeps the rest."""
    text = "".join(token.text for token in turn)
    name, when = "", None
    cuts: list[tuple[int, int]] = []
    for match in _MARKS.finditer(text):
        cuts.append(match.span())
        day, clock = match[1] or match[4], match[2] or match[5]
        if day and when is None:
            found = moment_of(f"{day}T{clock}+00:00")
            when = micros(found) if found else None
        if match[3] and not name and match[3].strip() not in _ROLES:
            name = one_line(match[3])
    if not cuts:
        return turn, name, when
    kept: list[_Token] = []
    at = 0
    for token in turn:
        end = at + len(token.text)
        rest, place = [], at
        for start, stop in cuts:
            if start < end and stop > at:
                rest.append(text[place : max(start, place)])
                place = max(place, stop)
        rest.append(text[place:end] if place < end else "")
        if whole := "".join(rest):
            kept.append(token._replace(text=whole))
        at = end
    return (kept if any(token.text.strip() for token in kept) else []), name, when


def _mark(turn: list[_Token]) -> str:
    """A hash of the turn's content, which distinguishes conversations with the same ids."""
    content = hashlib.sha256(repr([(token.position, token.token, token.text) for token in turn]).encode())
    return f"{turn[0].role} {content.hexdigest()[:32]}"
