"""The exchange format: one JSON object that holds a memory, written and read as a stream."""

from __future__ import annotations

import base64
import binascii
import math
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from halo_weave.core.depth import DEPTH, shallow
from halo_weave.core.tokens import Role, Tokens
from halo_weave.errors import BadInput, ImportRefused
from halo_weave.stores.packing import micros, moment

FORMAT = "halo-weave memory"
VERSION = 1
LIMIT = 2**63 - 1
# An import takes all ids up to those that its file names, so at least half of them stay for what will be said here.
FILE_LIMIT = 2**62 - 1
# A year from either end of what a datetime holds, so that it can be told in any time zone.
EARLIEST, LATEST = micros(datetime(2, 1, 1, tzinfo=UTC)), micros(datetime(9999, 1, 1, tzinfo=UTC))
# An import takes the sections in this order; in the file they may stand in any.
SECTIONS = ("format", "version", "memory", "windows", "turns", "live", "asleep", "history", "entries", "notes", "settings",
            "generations", "vectors")  # fmt: skip

Element = Mapping[str, Any]


# Writing


def said_at(when: int | None) -> str | None:
    return None if when is None else moment(when).isoformat(timespec="microseconds")


def base64_of(blob: bytes) -> str:
    return base64.b64encode(blob).decode("ascii")


def tokens_out(tokens: Tokens) -> dict[str, Any]:
    """Ids, where each piece ends in the text's UTF-8 bytes, and the text; also the bytes if they are not UTF-8."""
    out: dict[str, Any] = {"text": tokens.text, "ids": tokens.ids.tolist(), "ends": tokens.ends.tolist()}
    if tokens.text.encode("utf-8") != tokens.raw:
        out["bytes"] = base64_of(tokens.raw)
    return out


def sound(text: str) -> bool:
    """Whether it can be kept: half of a character, as JSON can have it, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# Reading. Each function takes one element and gives values that are known to be sound.


@dataclass(frozen=True, slots=True)
class Header:
    id: str
    next_turn: int
    next_position: int


@dataclass(frozen=True, slots=True)
class ChunkIn:
    chunk: int
    start: int
    tokens: Tokens
    tokenizer: str
    tags: tuple[str, ...]
    deleted: int | None
    undeleted: int | None
    merged: int | None
    merged_into: int | None


@dataclass(frozen=True, slots=True)
class TurnIn:
    turn: int
    window: str
    role: Role
    answers: int | None
    speaker: str
    said: int
    memory: str  # where it was said first
    first_turn: int  # its id there
    mark: str  # tells apart two turns that got the same id in two copies of one memory
    chunks: tuple[ChunkIn, ...]

    @property
    def reach(self) -> tuple[int, int]:
        """The first position, and the first after the turn."""
        return self.chunks[0].start, max(chunk.start + len(chunk.tokens) for chunk in self.chunks)


class Reading:
    """Fields of an element, checked; a refusal names the section, the element and the field."""

    def __init__(self, section: str, element: Any) -> None:
        self.section = section
        if not isinstance(element, dict):
            raise ImportRefused(
                f"In {section!r} there is an element that is not an object. Nothing was changed."
            )
        self.element: dict[str, Any] = element

    def refuse(self, field: str, wanted: str) -> ImportRefused:
        value = self.element.get(field)
        shown = (value if isinstance(value, str) else reprlib.repr(value))[:40]
        return ImportRefused(
            f"In {self.section!r}, {field!r} should be {wanted}, not {shown!r}. Nothing was changed."
        )

    def text(self, field: str, default: str | None = None) -> str:
        value = self.element.get(field, default)
        if not isinstance(value, str) or not sound(value):
            raise self.refuse(field, "text")
        return value

    def maybe_text(self, field: str) -> str | None:
        return None if self.element.get(field) is None else self.text(field)

    def whole(self, field: str, *, least: int = 0, most: int = LIMIT) -> int:
        value = self.element.get(field)
        try:
            number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise self.refuse(field, f"a whole number from {least} to 2^{most.bit_length()}, as text")
        return number

    def maybe_whole(self, field: str, *, least: int = 0) -> int | None:
        return None if self.element.get(field) is None else self.whole(field, least=least)

    def time(self, field: str) -> int:
        try:
            when = micros(datetime.fromisoformat(self.text(field)))
        except (ValueError, OverflowError, BadInput):
            when = LATEST
        if not EARLIEST <= when < LATEST:
            raise self.refuse(field, "a time such as 2026-01-31T12:00:00.000000+00:00")
        return when

    def number(self, field: str) -> float:
        value = self.element.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
            raise self.refuse(field, "a number")
        return value

    def maybe_time(self, field: str) -> int | None:
        return None if self.element.get(field) is None else self.time(field)

    def flag(self, field: str) -> bool:
        value = self.element.get(field, False)
        if not isinstance(value, bool):
            raise self.refuse(field, "true or false")
        return value

    def blob(self, field: str) -> bytes:
        try:
            return base64.b64decode(self.text(field), validate=True)
        except binascii.Error:
            raise self.refuse(field, "base64") from None

    def floats(self, field: str, count: int | None = None) -> bytes:
        blob = self.blob(field)
        if len(blob) % 4 or (count is not None and len(blob) != 4 * count):
            raise self.refuse(field, f"{'' if count is None else count} float32 values in base64")
        return blob

    def object(self, field: str) -> dict[str, Any]:
        value = self.element.get(field)
        if not isinstance(value, dict):
            raise self.refuse(field, "an object")
        return self._shallow(field, value)  # type: ignore[no-any-return]

    def strings(self, field: str) -> tuple[str, ...]:
        value = self.element.get(field) or []
        if not isinstance(value, list) or not all(isinstance(item, str) and sound(item) for item in value):
            raise self.refuse(field, "a list of texts")
        return tuple(value)

    def any(self, field: str) -> Any:
        if field not in self.element:
            raise self.refuse(field, "there")
        return self._shallow(field, self.element[field])

    def _shallow(self, field: str, value: Any) -> Any:
        if not shallow(value):
            raise self.refuse(field, f"nested at most {DEPTH} deep")
        return value

    def list(self, field: str) -> Iterator[Reading]:
        value = self.element.get(field)
        if not isinstance(value, list):
            raise self.refuse(field, "a list")
        return (Reading(self.section, item) for item in value)

    def tokens(self) -> Tokens:
        try:
            raw = self.blob("bytes") if "bytes" in self.element else self.text("text").encode("utf-8")
            arrays = [np.array(self.element.get(name), np.int32) for name in ("ids", "ends")]
            if any(array.ndim != 1 or not array.size for array in arrays):
                raise self.refuse("ids", "a list of token ids, as long as 'ends'")
            return Tokens(arrays[0], raw, arrays[1])
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, ImportRefused):
                raise
            raise ImportRefused(
                f"In {self.section!r}, a chunk's tokens do not fit together: {error} Nothing was changed."
            ) from error


def read_header(element: Any) -> Header:
    field = Reading("memory", element)
    return Header(
        field.text("id"),
        field.whole("next_turn", least=1, most=FILE_LIMIT),
        field.whole("next_position", most=FILE_LIMIT),
    )


def read_chunk(field: Reading) -> ChunkIn:
    part = ChunkIn(
        field.whole("chunk"),
        field.whole("start"),
        field.tokens(),
        field.text("tokenizer"),
        field.strings("tags"),
        field.maybe_time("deleted"),
        field.maybe_time("undeleted"),
        field.maybe_time("merged"),
        field.maybe_whole("merged_into"),
    )
    if (part.merged is None) != (part.merged_into is None):
        raise field.refuse("merged", "there if 'merged_into' is")
    return part


def read_turn(element: Any, header: Header) -> TurnIn:
    field = Reading("turns", element)
    role = field.text("role")
    if role not in set(Role):
        raise field.refuse("role", "system, user or assistant")
    chunks: list[ChunkIn] = []
    stop = 0  # the end of the last chunk that stands for itself
    for inner in field.list("chunks"):
        part = read_chunk(inner)
        end = part.start + len(part.tokens)
        if chunks and (part.chunk <= chunks[-1].chunk or part.start <= chunks[-1].start):
            raise inner.refuse("chunk", "after the chunk before it, as its 'start'")
        if part.merged is None:
            if part.start < stop or end > header.next_position:
                raise inner.refuse("start", "after the chunk before it and below 'next_position'")
            stop = end
        elif end > stop or part.merged_into not in {chunk.chunk for chunk in chunks}:
            raise inner.refuse("merged_into", "an earlier chunk that holds its tokens")
        chunks.append(part)
    if not chunks:
        raise field.refuse("chunks", "a list of at least one chunk")
    origin = Reading("turns", field.element["origin"]) if field.element.get("origin") else None
    turn = field.whole("turn", least=1)
    answers = field.maybe_whole("answers", least=1)
    if turn >= header.next_turn or (answers is not None and answers >= turn):
        raise field.refuse("turn", "below 'next_turn' and after the turn it answers")
    said = field.time("said")
    return TurnIn(
        turn,
        field.text("window"),
        Role(role),
        answers,
        field.text("speaker"),
        said,
        header.id if origin is None else origin.text("memory"),
        turn if origin is None else origin.whole("turn"),
        f"{role} {said}" if origin is None else origin.text("mark"),
        tuple(chunks),
    )
