"""Bundles: the files in a shared folder that carry changes from device to device, named by their hash."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator

from halo_weave.core.tokens import ID_LIMIT, Role
from halo_weave.errors import BadInput, ImportRefused
from halo_weave.store.exchange_format import (
    EARLIEST,
    LATEST,
    MAX_TURN_SPAN,
    AnyJson,
    Element,
    Id,
    Name,
    Object,
    Short,
    Tag,
    Text,
    TokensIn,
    read_element,
)
from halo_weave.store.records import MAX_TAGS, PROMPT_LENGTH, WINDOW_ID
from halo_weave.store.registers import Registers

FORMAT, VERSION = "halo-weave sync", 1
_NAME = re.compile(r"[0-9a-z]{1,16}-([0-9a-f]{64})\.bundle")
MAX_FILE_BYTES = 64 << 20
MAX_TEXT_BYTES = 512 << 20  # of an unpacked file
BUNDLE_BYTES = 8 << 20  # bytes of text after which the next bundle begins
MAX_PATH_LENGTH = 8  # steps of a register's path

Kind = Literal["window", "turn", "entry", "note", "setting"]


def _identity(value: str) -> str:
    """Check an identity: `[memory, turn, hash]` as JSON, the memory where a turn was said first and its id there."""
    try:
        memory, turn, mark = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        memory, turn, mark = None, None, None
    valid = isinstance(memory, str) and isinstance(mark, str) and type(turn) is int and 0 <= turn < ID_LIMIT
    if not valid or identity_of(memory, turn, mark) != value:
        raise ValueError("should name a turn by its memory, id and mark")
    return value


def identity_of(memory: str, turn: int, mark: str) -> str:
    return json.dumps([memory, turn, mark])


Identity = Annotated[str, Field(max_length=1000), AfterValidator(_identity)]
Stamp = Annotated[int, Field(ge=0, lt=LATEST)]  # microseconds since 1970


class _BundleHeader(Element):
    format: Literal["halo-weave sync"]
    version: int
    memory: Short
    needs: Annotated[list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]], Field(max_length=10_000)]


class _SharedChunk(TokensIn):
    chunk: Id
    at: Annotated[Id, Field(le=MAX_TURN_SPAN)]  # tokens from the turn's first one
    tags: Annotated[list[Short], Field(max_length=64, default_factory=list)]


class SharedTurn(Element):
    """The text of a turn, which never changes."""

    id: Identity
    window: Annotated[str, Field(pattern=WINDOW_ID)]
    role: Annotated[Role, Field(strict=False)]
    answers: Identity | None
    parent: Identity | None
    speaker: Short
    said: Annotated[int, Field(ge=EARLIEST, lt=LATEST)]
    chunks: Annotated[list[_SharedChunk], Field(min_length=1)]

    @model_validator(mode="after")
    def _in_order(self) -> SharedTurn:
        stop = 0
        if len({one.chunk for one in self.chunks}) != len(self.chunks) or self.chunks[0].at:
            raise ValueError("should have each chunk once, from the turn's beginning on")
        for one in self.chunks:
            if one.at < stop:
                raise ValueError("should have chunks in order that do not overlap")
            stop = one.at + len(one.ids)
        return self

    @property
    def width(self) -> int:
        return self.chunks[-1].at + len(self.chunks[-1].ids)


class SharedWindow(Element):
    """A window, to be changed by its registers."""

    name: Name
    system_prompt: Annotated[Text, Field(max_length=PROMPT_LENGTH)]
    user_name: Name
    ai_name: Name
    settings: Annotated[Object, Field(default_factory=dict)]
    tags: Annotated[dict[Tag, Literal[True]], Field(max_length=MAX_TAGS, default_factory=dict)]
    inherits: Annotated[
        dict[Literal["system_prompt", "user_name", "ai_name"], Literal[True]], Field(default_factory=dict)
    ]
    pinned: bool = False
    archived: bool = False
    created: Stamp
    deleted: Stamp | None = None
    head: Identity | None = None


# The length of paths by kind and first step, and the type of their value.
_SHAPES: dict[str, dict[str, tuple[int, type]]] = {
    "turn": {"gone": (2, bool), "wrong": (3, bool), "tags": (3, bool), "aside": (1, bool)},
    "entry": {"versions": (2, dict), "dead": (2, bool)},
}


_TAG: TypeAdapter[str] = TypeAdapter(Tag)


class _Change(Element):
    kind: Kind
    key: Annotated[Text, Field(max_length=4000)]
    set: list[
        tuple[
            Annotated[
                list[Annotated[Text, Field(max_length=4000)]], Field(min_length=1, max_length=MAX_PATH_LENGTH)
            ],
            Stamp,
            Annotated[list[AnyJson], Field(max_length=1)],
        ]
    ]

    model_config = ConfigDict(strict=False)

    @model_validator(mode="after")
    def _of_its_kind(self) -> _Change:
        if self.kind == "turn":
            _identity(self.key)
        if self.kind == "window" and not re.fullmatch(WINDOW_ID, self.key):
            raise ValueError("should have the id of a window")
        shapes = _SHAPES.get(self.kind)
        for path, _, held in self.set if shapes else ():
            length, kind = (shapes or {}).get(path[0], (0, object))
            if len(path) != length or not all(isinstance(one, kind) for one in held):
                raise ValueError(f"should not have a value of this kind at {path[0][:40]!r}")
            if self.kind == "turn" and path[0] == "tags":
                _TAG.validate_python(path[2])
        return self


@dataclass(slots=True)
class Bundle:
    """The content of one file: new text, then changes."""

    needs: Sequence[str] = ()
    turns: list[SharedTurn] = field(default_factory=list)
    changes: list[tuple[Kind, str, Registers]] = field(default_factory=list)


def change_line(kind: Kind, key: str, registers: Registers) -> str:
    set_ = [[list(path), stamp, list(held)] for path, (stamp, held) in sorted(registers.items())]
    return json.dumps({"kind": kind, "key": key, "set": set_}, ensure_ascii=False)


def listed_bundles(folder: Path) -> dict[str, Path]:
    """The bundles of a folder by hash. Files with other names, such as conflict copies of a cloud drive, are ignored."""
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be read: {error.strerror}. Name a folder to synchronise with."
        ) from None
    return {found[1]: path for path in paths if (found := _NAME.fullmatch(path.name)) and path.is_file()}


def write_bundle(folder: Path, memory: str, needs: Iterable[str], lines: Iterable[str]) -> str:
    """Write a bundle and return its hash. The file gets its name when it is complete and on disk."""
    header = {"format": FORMAT, "version": VERSION, "memory": memory, "needs": sorted(needs)}
    packed = gzip.compress("\n".join([json.dumps(header), *lines]).encode(), mtime=0)
    name = hashlib.sha256(packed).hexdigest()
    device = re.sub("[^0-9a-z]", "", memory.lower())[:8] or "memory"
    target = folder / f"{device}-{name}.bundle"
    partial = folder / f".{device}-{os.getpid()}.partial"
    try:
        with partial.open("wb") as file:
            file.write(packed)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BadInput(
            f"{folder} cannot be written to: {error.strerror}. Nothing was lost; sync again."
        ) from None
    return name


def read_bundle(path: Path, name: str) -> Bundle | None:
    """Read a bundle; None if the file is incomplete or damaged."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ImportRefused(f"{path.name} is larger than a bundle may be.")
        packed = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(packed).hexdigest() != name:
        return None
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            text = file.read(MAX_TEXT_BYTES + 1)
        if len(text) > MAX_TEXT_BYTES:
            raise ImportRefused(f"{path.name} unpacks to more than a bundle may.")
        first, *lines = (json.loads(line) for line in text.split(b"\n"))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        raise ImportRefused(f"{path.name} is not a bundle of Halo Weave.") from None
    header = read_element("bundle", _BundleHeader, first)
    if header.version != VERSION:
        raise ImportRefused(f"{path.name} was written by a newer Halo Weave. Install that version here, too.")
    bundle = Bundle(header.needs)
    for line in lines:
        if isinstance(line, dict) and "turn" in line:
            bundle.turns.append(read_element("turn", SharedTurn, line["turn"]))
        else:
            change = read_element("change", _Change, line)
            registers: Registers = {tuple(path): (stamp, tuple(held)) for path, stamp, held in change.set}
            bundle.changes.append((change.kind, change.key, registers))
    return bundle
