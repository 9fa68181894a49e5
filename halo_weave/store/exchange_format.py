"""The format of exports: the sections of a file and the checks when one is read."""

from __future__ import annotations

import base64
import binascii
import reprlib
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from halo_weave.core.tokens import ID_LIMIT, ChunkKey, Role, Tokens
from halo_weave.core.validation import checked_path, storable
from halo_weave.errors import BadInput, ImportRefused
from halo_weave.settings import PRESETS_KEY, SHARED_KEY
from halo_weave.store.encoding import micros, moment, unpack_floats, unpack_sources
from halo_weave.store.records import (
    MAX_TAGS,
    NAME_LENGTH,
    OWNER,
    PERSONA_KEY,
    PROMPT_LENGTH,
    TAG_LENGTH,
    WINDOW_ID,
)

FORMAT = "halo-weave memory"
VERSION = 1
LIMIT = 2**63 - 1
FILE_LIMIT = 2**62 - 1  # limit of ids in a file
MAX_TURN_SPAN = 1 << 32  # most positions of a turn
# A year from either end of datetime's range, so that it can be converted to any time zone.
EARLIEST, LATEST = micros(datetime(2, 1, 1, tzinfo=UTC)), micros(datetime(9999, 1, 1, tzinfo=UTC))

# Writing


def iso_time(when: int | None) -> str | None:
    return None if when is None else moment(when).isoformat(timespec="microseconds")


def base64_of(blob: bytes) -> str:
    return base64.b64encode(blob).decode("ascii")


def tokens_out(tokens: Tokens) -> dict[str, Any]:
    """Ids, the end of each piece in the text's UTF-8 bytes, and the text; also the bytes if they are not valid UTF-8."""
    out: dict[str, Any] = {"text": tokens.text, "ids": tokens.ids.tolist(), "ends": tokens.ends.tolist()}
    if tokens.text.encode("utf-8") != tokens.raw:
        out["bytes"] = base64_of(tokens.raw)
    return out


# Reading: one model for the elements of each section. A message says what a field "should be".


def _text_or_whole(value: Any) -> Any:
    """An id as text, since JavaScript's numbers are exact up to 2^53 only; 1.0 and true are not ids."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("should be a whole number, as text")
    return value


def _time(value: Any) -> int:
    try:
        when = micros(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError, BadInput):
        when = LATEST
    if not EARLIEST <= when < LATEST:
        raise ValueError("should be a time such as 2026-01-31T12:00:00.000000+00:00")
    return when


def _blob(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("should be base64") from None


def _floats(value: Any) -> bytes:
    blob = _blob(value)
    if len(blob) % 4 or not np.isfinite(unpack_floats(blob)).all():
        raise ValueError("should be float32 numbers in base64")
    return blob


def _sources(value: Any) -> bytes:
    blob = _blob(value)
    unpack_sources(blob)
    return blob


def _path(value: str) -> str:
    if checked_path(value) != value:
        raise ValueError("should be without spaces and slashes around its headings")
    return value


def _snapshot_part(part: dict[str, Any]) -> dict[str, Any]:
    """A part with a key, which may be null, is a complete chunk; of others only the vectors are used."""
    try:
        if "key" in part:
            _SnapshotChunk.model_validate(part)
    except ValidationError:
        raise ValueError("should be a chunk with its key, text, tokens and similarity") from None
    if not isinstance(part.get("text", ""), str):
        raise ValueError("should have a text")
    return part


def _reason(value: dict[str, Any]) -> dict[str, Any]:
    """The reason of a resurrection or prune; the parts that the page shows are checked for their type."""
    inner: Any = value
    while inner is not None:
        inner = _Reason.model_validate(inner).woken
    return value


def _visible(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("should have a visible character, and no NUL")
    return value


_keepable = partial(storable, limit=ID_LIMIT)
Text = Annotated[str, AfterValidator(storable)]
Short = Annotated[Text, Field(max_length=NAME_LENGTH)]
Name = Annotated[Short, AfterValidator(_visible)]
Tag = Annotated[Name, Field(max_length=TAG_LENGTH)]
Id = Annotated[int, BeforeValidator(_text_or_whole), Field(strict=False, ge=0, le=LIMIT)]
TurnId = Annotated[Id, Field(ge=1)]
Time = Annotated[int, BeforeValidator(_time)]  # microseconds
Floats = Annotated[bytes, BeforeValidator(_floats)]  # float32, little-endian
AnyJson = Annotated[Any, AfterValidator(_keepable)]
Object = Annotated[dict[str, Any], AfterValidator(_keepable)]
Reason = Annotated[Object, AfterValidator(_reason)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class Element(BaseModel):
    model_config = ConfigDict(strict=True)


class _Reason(Element):
    why: Text | None = None
    by: Text | None = None
    part: Text | None = None
    similarity: float | None = None
    brightness: float | None = None
    cost: int | None = None
    rivals: int | None = None
    budget: int | None = None
    words: list[Text] | None = None
    parts: dict[str, float] | None = None
    woken: dict[str, Any] | None = None


class ExportHeader(Element):
    """The id of the exported memory, and its first unused ids."""

    id: Short
    next_turn: Annotated[TurnId, Field(le=FILE_LIMIT)]
    next_position: Annotated[Id, Field(le=FILE_LIMIT)]


class PersonIn(Element):  # whose memory is in the file; keys are not in files
    id: Annotated[str, Field(pattern=WINDOW_ID)]
    name: Name
    created: Time


class ShareIn(Element):
    owner: Short
    window: Short
    person: Short
    writes: bool
    made: Time


class WindowIn(Element):
    id: Annotated[str, Field(pattern=WINDOW_ID)]
    name: Name
    system_prompt: Annotated[Text, Field(max_length=PROMPT_LENGTH)]
    user_name: Name
    ai_name: Name
    settings: Object
    created: Time
    modified: Time
    deleted: Time | None = None
    head: TurnId | None = None  # the last turn of its current branch
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] = []
    pinned: bool = False
    archived: bool = False
    inherits: list[
        Literal["system_prompt", "user_name", "ai_name"]
    ] = []  # texts that are inherited from all windows
    owner: Short = OWNER


class TokensIn(Element):
    text: Text | None = None
    bytes: Annotated[Any, BeforeValidator(_blob)] = None  # if they are not UTF-8
    ids: Annotated[list[Int32], Field(min_length=1)]
    ends: list[Int32]
    tokenizer: Short
    _tokens: Tokens = PrivateAttr()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.text is None and self.bytes is None:
            raise ValueError("should have a text")
        raw = (self.text or "").encode("utf-8") if self.bytes is None else self.bytes
        if not raw:
            raise ValueError("should have a text that is not empty")
        try:
            self._tokens = Tokens(np.array(self.ids, np.int32), raw, np.array(self.ends, np.int32))
        except ValueError as error:
            raise ValueError(f"should have tokens that fit together: {str(error).rstrip('.')}") from error
        return self

    @property
    def tokens(self) -> Tokens:
        return self._tokens


class TagIn(Element):
    tag: Tag
    made: Time
    owner: Short = OWNER


class ChunkIn(TokensIn):
    chunk: Id
    start: Id
    tags: Annotated[list[Short], Field(max_length=64)] | None = None  # kind of its text
    tagged: Annotated[list[TagIn], Field(max_length=10_000)] = []  # by people
    deleted: Time | None = None
    undeleted: Time | None = None
    merged: Time | None = None
    merged_into: Id | None = None

    @model_validator(mode="after")
    def _merged_whole(self) -> Self:
        if (self.merged is None) != (self.merged_into is None):
            raise ValueError("should have 'merged' if it has 'merged_into'")
        return self

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)


class _OriginIn(Element):
    """Where the turn was said first, and a hash that distinguishes turns with the same id in two copies of a memory."""

    memory: Short
    turn: Id
    mark: Short


class _UsedIn(Element):  # a chunk that a reply took something from
    turn: TurnId
    chunk: Id
    share: Annotated[float, Field(ge=0, le=1)]


class _UseIn(Element):
    chunks: Annotated[list[_UsedIn], Field(max_length=1 << 16)]
    nothing: Annotated[float, Field(ge=0, le=1)]
    tokens: Annotated[bytes, BeforeValidator(_sources)]


class TurnIn(Element):
    turn: TurnId
    window: Short
    role: Annotated[Role, Field(strict=False)]
    answers: TurnId | None = None
    parent: TurnId | None = None  # the turn that it follows; by default the one before it in its window
    aside: bool = False  # not on the current branch of its window
    speaker: Short
    said: Time
    origin: _OriginIn | None = None
    use: _UseIn | None = None  # attribution of the reply to earlier chunks
    chunks: Annotated[list[ChunkIn], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.answers is not None and self.answers >= self.turn:
            raise ValueError("should stand after the turn that it answers")
        if self.parent is not None and self.parent >= self.turn:
            raise ValueError("should stand after the turn that it follows")
        stop = 0  # the end of the last chunk that was not merged
        known: list[ChunkIn] = []
        ids: set[int] = set()
        for chunk in self.chunks:
            if chunk.chunk in ids or (known and chunk.start <= known[-1].start):
                raise ValueError("should have its chunks once each and in order, by 'start'")
            ids.add(chunk.chunk)
            if chunk.merged is None:
                if chunk.start < stop:
                    raise ValueError("should have chunks that do not overlap")
                stop = chunk.stop
            elif chunk.stop > stop or chunk.merged_into not in {one.chunk for one in known}:
                raise ValueError("should have, for each merged chunk, an earlier one that holds its tokens")
            known.append(chunk)
        if self.reach[1] - self.reach[0] > MAX_TURN_SPAN:
            raise ValueError("should have chunks that stand close together")
        return self

    @property
    def reach(self) -> tuple[int, int]:
        """The first position, and the first one after the turn."""
        return self.chunks[0].start, max(chunk.stop for chunk in self.chunks)

    @property
    def words(self) -> str:
        """The text of the turn, without thoughts and tool output."""
        aside = {"thought", "tool"}
        own = [one for one in self.chunks if one.merged is None and not aside & {*(one.tags or ())}]
        return b"".join(one.tokens.raw for one in own).decode("utf-8", errors="replace")

    def original_identity(self, memory: str) -> tuple[str, int, str]:
        """The memory where the turn was said first, its id there, its hash. `memory`: that of the file, if the turn
        does not say."""
        if self.origin is not None:
            return self.origin.memory, self.origin.turn, self.origin.mark
        return memory, self.turn, f"{self.role} {self.said}"


class _HeldIn(Element):  # how a window holds a chunk
    window: Short
    turn: TurnId
    chunk: Id
    brightness: Annotated[Floats, Field(min_length=4)]
    traces: Annotated[Any, BeforeValidator(_blob)] = None  # float32; unknown values are NaN
    reading: TokensIn | None = None  # the window's own tokens, under another tokenizer

    @model_validator(mode="after")
    def _one_number_a_token(self) -> Self:
        if self.reading is not None and len(self.brightness) != 4 * len(self.reading.ids):
            raise ValueError("should have one number of brightness for each token")
        if self.traces is not None and (not self.traces or len(self.traces) % len(self.brightness)):
            raise ValueError("should have traces of as many tokens as it has brightness")
        return self


class LiveIn(_HeldIn):
    pinned: bool = False
    since: Time
    woken: Reason | None = None


class AsleepIn(_HeldIn):
    slept: Time
    reason: Reason


class EventIn(Element):
    turn: TurnId
    chunk: Id
    window: Short | None = None
    happened: Time
    event: Short
    detail: Reason


class _SnapshotChunk(Element):
    key: Text | None
    text: Text
    tokens: int
    similarity: Annotated[float, Field(allow_inf_nan=False)]
    said: Text | None = None

    @model_validator(mode="after")
    def _known_key(self) -> Self:
        if self.key is not None:
            ChunkKey.parse(self.key)
        return self


class _VersionIn(Element):
    version: Annotated[TurnId, Field(le=FILE_LIMIT)]
    content: AnyJson
    snapshot: list[Annotated[Object, AfterValidator(_snapshot_part)]]
    model: Short
    vectors: Floats
    created: Time
    modified: Time
    accessed: Time
    ended: Time | None = None

    @model_validator(mode="after")
    def _one_vector_a_chunk(self) -> Self:
        if self.vectors and (not self.snapshot or len(self.vectors) % (4 * len(self.snapshot))):
            raise ValueError("should have as many vectors as its 'snapshot' has chunks")
        return self


class EntryIn(Element):
    path: Annotated[Text, AfterValidator(_path)]
    versions: Annotated[list[_VersionIn], Field(min_length=1)]
    owner: Short = OWNER

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for before, after in zip(self.versions, self.versions[1:], strict=False):
            if after.version <= before.version or before.ended is None:
                raise ValueError("should have its versions in order; all but the last one ended")
        return self


class NoteIn(Element):
    name: Name
    content: Object
    created: Time
    modified: Time
    owner: Short = OWNER

    @model_validator(mode="after")
    def _metadata_is_an_object(self) -> Self:
        if not isinstance(self.content.get("_metadata") or {}, dict):
            raise ValueError("should have an object as its '_metadata'")
        return self


class SettingIn(Element):
    key: Short
    value: AnyJson
    modified: Time
    owner: Short = OWNER

    @model_validator(mode="after")
    def _settings_by_name(self) -> Self:
        # The settings may come from a newer version: unknown ones are ignored when they are read.
        if self.key in (SHARED_KEY, PERSONA_KEY, PRESETS_KEY) and not isinstance(self.value, dict):
            raise ValueError("should have an object as its 'value'")
        return self


class GenerationIn(Element):
    generation: Id
    model: Short
    dimension: Annotated[int, Field(ge=1, le=1 << 16)]
    created: Time
    completed: Time | None = None


class VectorIn(Element):
    generation: Id
    turn: TurnId
    chunk: Id
    vector: Floats
    stale: bool = False


# The order in which sections are imported; in the file they may have any order.
SECTIONS: dict[str, type[BaseModel]] = {
    "people": PersonIn,
    "windows": WindowIn,
    "shares": ShareIn,
    "turns": TurnIn,
    "live": LiveIn,
    "asleep": AsleepIn,
    "history": EventIn,
    "entries": EntryIn,
    "notes": NoteIn,
    "settings": SettingIn,
    "generations": GenerationIn,
    "vectors": VectorIn,
}
Model = TypeVar("Model", bound=BaseModel)


def read_element(section: str, model: type[Model], element: Any) -> Model:
    """An element with checked values. An error names section, field and what the field should be."""
    try:
        return model.model_validate(element)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(step) for step in first["loc"]) or "an element"
        why = first["msg"].removeprefix("Value error, ").removeprefix("Input ").rstrip(".")
        shown = first["input"] if isinstance(first["input"], str) else reprlib.repr(first["input"])
        if first["type"] == "missing":
            why = "is missing"
        elif why.startswith("should"):
            why += f", not {shown[:40]!r}"
        else:
            why = f"cannot be kept: {why}"
        raise ImportRefused(f"In {section!r}, {field!r} {why}. Nothing was changed.") from error
