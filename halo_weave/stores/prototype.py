"""The prototype's export, one conversation as a list of tokens, retold in the exchange format."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from itertools import groupby, islice, pairwise
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self, TextIO

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from halo_weave.core.brightness import INITIAL
from halo_weave.core.tokens import Role, Tokens
from halo_weave.errors import ImportRefused
from halo_weave.store import Progress
from halo_weave.stores.exchange import (
    FILE_LIMIT,
    WIDEST,
    ExportHeader,
    Id,
    Text,
    base64_of,
    read_element,
    said_at,
    tokens_out,
)
from halo_weave.stores.jsonstream import JsonReader
from halo_weave.stores.packing import pack_floats

MEMORY = "prototype"  # the name of the memory that such turns come from
TOKENIZER = "prototype"  # of another model; a window reads such chunks anew before it uses them
SPEAKERS = {Role.USER: "User", Role.ASSISTANT: "AI", Role.SYSTEM: ""}
STEP = 200  # turns to a batch
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
        known = (at_deletion, self.brightness, INITIAL)
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
    id: int  # the first free one from its own on
    answers: int | None
    tokens: list[_Token]


class PrototypeFile:
    """Live tokens become live chunks, deleted ones sleep, each as bright as it was."""

    def __init__(self, text: TextIO, size: int, now: int, progress: Progress) -> None:
        self._now, self._size = now, size
        # Tokens may come in any order and be more than memory holds, so they are sorted in a file that has no name.
        self._spool = sqlite3.connect("", isolation_level=None)
        try:
            self._spool.execute(TABLE)
            self._spool.execute("BEGIN")
            self._sort(text, progress)
            self.renumbered = False
            next_turn = next_position = 1
            for turn in self._turns():
                self.renumbered |= turn.id != turn.tokens[0].turn
                if turn.tokens[-1].position - turn.tokens[0].position >= WIDEST:
                    raise ImportRefused(
                        f"The tokens of turn {turn.id} in the file stand too far apart. Nothing was changed."
                    )
                if not all(any(token.text for token in part) for _, part in _chunks(turn.tokens)):
                    raise ImportRefused(
                        f"A part of turn {turn.id} in the file has no text. Nothing was changed."
                    )
                next_turn, next_position = turn.id + 1, turn.tokens[-1].position + 1
            self._mark = _mark(next(self._turns()).tokens)  # of the conversation, however long it grows
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
        reader = JsonReader(text)
        for number, (key, element) in enumerate(reader):
            if key != "tokens":
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

    def _turns(self) -> Iterator[_Turn]:
        """In time order, each with an id of its own. An answer belongs to the question before it."""
        rows = map(_Token._make, self._spool.execute("SELECT * FROM tokens ORDER BY position"))
        last, question = 0, None
        for _, group in groupby(rows, key=lambda token: (token.turn, token.role)):
            tokens = list(group)
            role = tokens[0].role
            last = max(tokens[0].turn, last + 1)
            yield _Turn(last, question if role == Role.ASSISTANT else None, tokens)
            question = last if role == Role.USER else None if role == Role.ASSISTANT else question

    # The elements of the exchange format

    def _window(self, window: str) -> dict[str, Any]:
        now = said_at(self._now)
        names = {"name": "Imported", "system_prompt": "", "user_name": "User", "ai_name": "AI"}
        return {"id": window, **names, "settings": {}, "created": now, "modified": now}

    def _turn(self, turn: _Turn, window: str) -> Iterator[dict[str, Any]]:
        first = turn.tokens[0]
        yield {
            "turn": turn.id,
            "window": window,
            "role": first.role,
            "answers": turn.answers,
            "speaker": SPEAKERS[Role(first.role)],
            "said": said_at(self._now),
            "origin": {"memory": MEMORY, "turn": first.turn, "mark": _mark(turn.tokens)},
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
                yield {**held, "pinned": pinned, "since": said_at(self._now)}

    def _asleep(self, turn: _Turn, window: str) -> Iterator[dict[str, Any]]:
        for number, part in _chunks(turn.tokens):
            if part[0].asleep:
                reason = {"why": "before the import"}
                yield {
                    **_held(turn, window, number, part),
                    "slept": said_at(self._now),
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


def _mark(turn: list[_Token]) -> str:
    """The turn's content, so that two conversations with the same ids are told apart."""
    content = hashlib.sha256(repr([(token.position, token.token, token.text) for token in turn]).encode())
    return f"{turn[0].role} {content.hexdigest()[:32]}"
