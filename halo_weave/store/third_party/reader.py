"""Read the file of another program, also within a zip or a PNG, and convert its conversations to the exchange format."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np

from halo_weave.core.brightness import INITIAL_BRIGHTNESS
from halo_weave.core.chunking import TOKENIZER, count_tokens, split_into_chunks
from halo_weave.core.tokens import Role, Tokens
from halo_weave.errors import ImportRefused, StoreFull
from halo_weave.store.encoding import micros, pack_floats
from halo_weave.store.exchange_format import ExportHeader, base64_of, iso_time, tokens_out
from halo_weave.store.json_stream import JsonReader
from halo_weave.store.records import PROMPT_LENGTH, Progress
from halo_weave.store.third_party.conversation import (
    Conversation,
    Message,
    Skipped,
    clean,
    content_id,
    one_line,
)
from halo_weave.store.third_party.formats import ConversationFormat, format_of, formats

ZIP, PNG = b"PK\x03\x04", b"\x89PNG\r\n\x1a\n"
_RATIO, SMALL = (
    200,
    64 << 20,
)  # a zip may unpack to `SMALL` bytes and `_RATIO` times its size, far more than text does
_MEMBERS = 200_000
_CARD = 32 << 20  # bytes of the text in a PNG
_NEWER = b"ccv3"
_NAMES = {_NEWER, b"chara"}


class ArchiveRefused(ImportRefused):
    """A zip that cannot be read to its end."""


class _Document(NamedTuple):
    """A readable part of the file, and its size."""

    name: str  # for messages only
    file: IO[bytes]
    size: int


class _SizeLimitedMember(io.RawIOBase):
    """A member of a zip. One that unpacks to far more than its size is refused while it is read."""

    def __init__(self, member: IO[bytes], meter: list[int]) -> None:
        self._member, self._meter = member, meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            block = self._member.read(len(buffer))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
            raise ArchiveRefused(
                "The zip is damaged or breaks off, so it was not imported. Get it again."
            ) from error
        self._meter[0] -= len(block)
        if self._meter[0] < 0:
            raise ArchiveRefused(
                f"The zip unpacks to more than {_RATIO} times its size, so it was not imported."
            )
        buffer[: len(block)] = block
        return len(block)


@contextmanager
def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, meter: list[int]) -> Iterator[IO[bytes]]:
    try:
        opened = archive.open(info)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError) as error:
        why = "is encrypted" if info.flag_bits & 1 else "is damaged"
        raise ArchiveRefused(
            f"{_decoded_name(info.filename)} in the zip {why}, so it was not imported."
        ) from error
    with opened, io.BufferedReader(_SizeLimitedMember(opened, meter), 1 << 16) as buffered:
        yield buffered


def _decoded_name(name: str) -> str:
    return repr(name[:100])


def documents_in_file(source: IO[bytes]) -> Iterator[_Document]:
    """The documents in a file, each open until the next one is requested. Can be called again from the beginning."""
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    begin = source.read(8)
    source.seek(0)
    if begin.startswith(ZIP):
        yield from _members(source, size)
    elif begin == PNG:
        card = _card(source)
        if card is None:
            raise ImportRefused(
                "The picture has no character card in it (no chunk chara or ccv3), so it was not imported."
            )
        yield _Document("card", io.BytesIO(card), len(card))
    else:
        yield _Document("file", source, size)


def _members(source: IO[bytes], size: int) -> Iterator[_Document]:
    try:
        archive = zipfile.ZipFile(source)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise ArchiveRefused(
            "The zip is damaged or breaks off, so it was not imported. Get it again."
        ) from error
    with archive:
        infos = [info for info in archive.infolist() if not info.is_dir()]
        if len(infos) > _MEMBERS:
            raise ArchiveRefused(f"The zip has more than {_MEMBERS:,} files, so it was not imported.")
        meter = [SMALL + _RATIO * size]  # bytes that may still be unpacked
        for info in infos:
            with _member(archive, info, meter) as member:
                begin = member.peek(len(PNG))[: len(PNG)]  # type: ignore[attr-defined]
                if begin.startswith(PNG):
                    card = _card(member)
                    if card is not None:
                        yield _Document(info.filename, io.BytesIO(card), len(card))
                        continue
                yield _Document(info.filename, member, info.file_size)


def _card(png: IO[bytes]) -> bytes | None:
    """The JSON of the newest card in a picture; nothing else of it is read."""
    found: dict[bytes, bytes] = {}
    png.read(len(PNG))
    while len(head := png.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND" or length > _CARD:
            break
        if kind == b"tEXt":
            name, _, written = png.read(length).partition(b"\0")
            if name.lower() in _NAMES:
                found[name.lower()] = written
            png.read(4)
        else:
            rest = length + 4
            while rest and (block := png.read(min(rest, 1 << 16))):
                rest -= len(block)
    text = found.get(_NEWER, next(iter(found.values()), None))
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=False)
    except binascii.Error as error:
        raise ImportRefused(
            "The character card in the picture is not base64, so it was not imported."
        ) from error


LIVE_TOKENS = 1000  # tokens at the end of a conversation that are live in its window; the rest is pruned
MAX_MESSAGE_CHARACTERS = 1_000_000  # characters of a message
_AHEAD = 100  # values of a file that are examined to recognise its format
BATCH = 200  # turns per transaction
_WITHIN = (
    "conversations",
    "chats",
    "threads",
    "data",
)  # members of an object that may be a list of conversations
_SPEAKERS = {Role.USER: "User", Role.ASSISTANT: "AI"}


class _SpooledMessage(NamedTuple):
    """A message in the spool file."""

    id: str
    parent: str | None
    role: str
    speaker: str
    said: int
    aside: bool
    asleep: bool
    parts: list[tuple[str, str]]
    tokens: int


@dataclass(slots=True)
class _SpooledConversation:
    """A conversation whose messages are in the spool file."""

    program: str
    id: str
    title: str = ""
    user_name: str = ""
    ai_name: str = ""
    system_prompt: str = ""
    created: int | None = None
    modified: int | None = None
    head: str | None = None  # the last message on the branch in use
    tokens: int = 0  # of that branch
    places: list[tuple[int, int]] = field(default_factory=list)  # offset and count of messages in the spool

    @property
    def source(self) -> str:
        """The name of the memory that its turns come from."""
        return f"{self.program} {self.id}"

    @property
    def window(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


class ThirdPartyFile:
    """A file of another program, read and checked once and kept in an unnamed spool file. Conversations are in order of
    time."""

    renumbered = None  # its messages have no numbers

    def __init__(self, source: IO[bytes], folder: Path, now: int, progress: Progress) -> None:
        """`folder`: beside the memory, since the system's temporary folder may be in RAM."""
        self._now, self._progress = now, progress
        self.left: Skipped = Counter()
        self.heads: dict[str, int] = {}  # the last turn of the current branch, by window, once it was yielded
        self._programs: dict[str, None] = {}
        self._kept: dict[str, _SpooledConversation] = {}
        self._turns, self._positions = 0, 0
        self._marks = hashlib.sha256()
        self._size = source.seek(0, io.SEEK_END)
        try:
            self._spool = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is closed at the end of the import
            try:
                self._read(source)
                self._spool.flush()
            except BaseException:
                self._spool.close()
                raise
        except OSError as error:
            raise StoreFull(
                f"What is imported cannot be kept in {folder} for a while: {error.strerror or error}. Free some space "
                "there, then try again."
            ) from error
        name = f"import {self._marks.hexdigest()[:32]}"  # the same file gets the same ids when it is imported again
        self.header = ExportHeader(id=name, next_turn=self._turns + 1, next_position=self._positions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    @property
    def program(self) -> str:
        return ", ".join(self._programs)

    # Reading

    def _read(self, source: IO[bytes]) -> None:
        source.seek(0)
        alone = not source.read(len(ZIP)).startswith(ZIP)
        for document in documents_in_file(source):
            text = io.TextIOWrapper(document.file, encoding="utf-8-sig", newline="")
            try:
                self._read_document(text, alone)
            finally:
                text.detach()
        if not self._programs:
            names = ", ".join(one.NAME for one in formats())
            raise ImportRefused(
                "There is no conversation in the file that can be imported. Known are exports of Halo Weave and its "
                f"prototype, and of: {names}."
            )

    def _read_document(self, text: io.TextIOWrapper, alone: bool) -> None:
        reader = JsonReader(text)
        values = reader.values()
        begin: list[Any] = []
        found: ConversationFormat | None = None
        try:
            for value in islice(values, _AHEAD):
                begin.append(value)
                if found := format_of(value):
                    break
            if found is None and len(begin) == 1:
                begin, found = _listed(begin[0])
        except ImportRefused as error:
            if alone or isinstance(error, ArchiveRefused):
                raise
            self.left["files of other kinds"] += 1
            return
        if found is None:
            self.left["files without conversations"] += not alone
            return
        self._programs[found.NAME] = None
        for conversation in found.conversations(chain(begin, values), self.left):
            self._keep(found.NAME, conversation)
            if alone:
                self._progress(reader.taken, 2 * self._size)

    def _keep(self, program: str, found: Conversation) -> None:
        """Spool a conversation, or further messages of a known one."""
        id = clean(found.id)
        one = _SpooledConversation(program, id if 0 < len(id) <= 100 else content_id(id))
        one = self._kept.setdefault(one.source, one)
        one.title = one_line(found.title) or one.title
        one.user_name = one_line(found.user_name) or one.user_name
        one.ai_name = one_line(found.ai_name) or one.ai_name
        one.system_prompt = clean(found.system_prompt)[:PROMPT_LENGTH] or one.system_prompt
        last = when = micros(found.created) if found.created else None
        skipped: dict[str, str | None] = {}  # messages that were left out, and what they followed
        offset, count, head, speaker = self._spool.seek(0, io.SEEK_END), 0, None, ""
        for message in found.messages:
            line = self._line(message, last if last is not None else self._now)
            if line is None:
                skipped[message.id] = skipped.get(message.parent or "", message.parent)
                continue
            if line.parent in skipped:
                line = line._replace(parent=skipped[line.parent])
            if message.said is not None:
                last = line.said
            when = min(when if when is not None else line.said, line.said)
            self._spool.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._marks.update(f"{one.source}\0{_mark(line)}\0".encode())
            self._turns += 1
            self._positions += line.tokens
            count += 1
            if not line.aside:
                head, one.tokens = line.id, one.tokens + line.tokens
                speaker = line.speaker if line.role == Role.ASSISTANT else speaker
        one.ai_name = one.ai_name or speaker
        one.created = min(filter(None, (one.created, when)), default=None)
        if count:
            one.places.append((offset, count))
        if head is not None and (one.modified is None or last is None or last >= one.modified):
            one.head, one.modified = head, last

    def _line(self, message: Message, said: int) -> _SpooledMessage | None:
        parts = [(str(part.kind), clean(part.text)) for part in message.parts if part.text.strip()]
        if not any(text.strip() for _, text in parts):
            self.left["empty messages"] += 1
            return None
        if sum(len(text) for _, text in parts) > MAX_MESSAGE_CHARACTERS:
            self.left["messages longer than a million characters"] += 1
            return None
        said = micros(message.said) if message.said else said
        tokens = count_tokens(parts)
        ids = [
            None if one is None else one if len(one) <= 100 else content_id(one)
            for one in (message.id, message.parent)
        ]
        return _SpooledMessage(
            clean(ids[0] or ""),
            None if ids[1] is None else clean(ids[1]),
            str(message.role),
            one_line(message.speaker),
            said,
            message.aside,
            message.asleep,
            parts,
            tokens,
        )

    # Telling

    def batches(self, progress: Progress) -> Iterator[tuple[str, list[Any]]]:
        sections: dict[str, list[Any]] = {name: [] for name in ("windows", "turns", "live", "asleep")}
        done_turns = 0
        for section, element in self._elements():
            sections[section].append(element)
            if len(sections["turns"]) == BATCH and section == "turns":
                done_turns += BATCH
                yield from ((name, elements) for name, elements in sections.items() if elements)
                sections = {name: [] for name in sections}
                progress(self._size + self._size * done_turns // max(1, self._turns), 2 * self._size)
        yield from ((name, elements) for name, elements in sections.items() if elements)

    def _elements(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The elements of the exchange format. The chunks of a window come before their turn, so that both are in one
        batch."""
        turn, position = 0, 0
        for one in sorted(self._kept.values(), key=lambda one: (one.created or self._now, one.source)):
            if not one.places and not one.system_prompt:
                self.left["conversations without messages"] += 1
                continue
            yield "windows", self._window(one)
            current = self._way(one) if len(one.places) > 1 else None
            ids: dict[str, tuple[int, str]] = {}  # the turns by their messages, with their roles
            before = 0  # tokens of the branch so far
            for line in self._lines(one):
                if line.id in ids:
                    self.left["messages that came twice"] += 1
                    continue
                turn += 1
                aside = line.aside if current is None else line.id not in current
                parent, role = ids.get(line.parent or "", (None, ""))
                ids[line.id] = turn, line.role
                if line.id == one.head:
                    self.heads[one.window] = turn
                chunks = split_into_chunks(line.parts)
                element = {
                    "turn": turn,
                    "window": one.window,
                    "role": line.role,
                    "parent": parent,
                    "aside": aside,
                    "answers": parent if (line.role, role) == (Role.ASSISTANT, Role.USER) else None,
                    "speaker": line.speaker
                    or one.user_name * (line.role == Role.USER)
                    or _SPEAKERS[Role(line.role)],
                    "said": iso_time(line.said),
                    "origin": {"memory": one.source, "turn": 0, "mark": _mark(line)},
                    "chunks": [],
                }
                for number, (tokens, tag) in zip(_numbers(chunks), chunks, strict=True):
                    place = {
                        "chunk": number,
                        "start": position,
                        "tokenizer": TOKENIZER,
                        "tags": [tag] if tag else None,
                    }
                    element["chunks"].append({**place, **tokens_out(tokens)})  # type: ignore[attr-defined]
                    is_live = (
                        not aside
                        and tag != "thought"
                        and before >= one.tokens - LIVE_TOKENS
                        and not line.asleep
                    )
                    if (
                        line.id == one.head and line.tokens > LIVE_TOKENS
                    ):  # of a long last message, its beginning
                        is_live = tag != "thought" and before < one.tokens - line.tokens + LIVE_TOKENS
                    yield self._held(one.window, turn, number, len(tokens), is_live)
                    position += len(tokens)
                    before += 0 if aside else len(tokens)
                yield "turns", element

    def _window(self, one: _SpooledConversation) -> dict[str, Any]:
        created = one.created if one.created is not None else self._now
        return {
            "id": one.window,
            "name": one.title or one.program,
            "system_prompt": one.system_prompt,
            "user_name": one.user_name or _SPEAKERS[Role.USER],
            "ai_name": one.ai_name or _SPEAKERS[Role.ASSISTANT],
            "settings": {},
            "created": iso_time(created),
            "modified": iso_time(max(created, one.modified or 0)),
        }

    def _held(
        self, window: str, turn: int, chunk: int, count: int, is_live: bool
    ) -> tuple[str, dict[str, Any]]:
        brightness = base64_of(pack_floats(np.full(count, INITIAL_BRIGHTNESS, np.float32)))
        held = {"window": window, "turn": turn, "chunk": chunk, "brightness": brightness}
        now = iso_time(self._now)
        if is_live:
            return "live", {**held, "since": now}
        return "asleep", {**held, "slept": now, "reason": {"why": "before the import"}}

    def _lines(self, one: _SpooledConversation) -> Iterator[_SpooledMessage]:
        for offset, count in one.places:
            self._spool.seek(offset)
            for _ in range(count):
                raw = self._spool.readline()
                offset = self._spool.tell()
                yield _SpooledMessage(*json.loads(raw))
                self._spool.seek(offset)

    def _way(self, one: _SpooledConversation) -> set[str]:
        """The messages on the branch that ends at the head, of a conversation that came in several pieces."""
        parents = {line.id: line.parent for line in self._lines(one)}
        way: set[str] = set()
        at = one.head
        while at in parents and at not in way:
            way.add(at)
            at = parents[at]
        return way


def _listed(value: Any) -> tuple[list[Any], ConversationFormat | None]:
    """The conversations in an object that is not a conversation itself."""
    for name in _WITHIN:
        listed = value.get(name) if isinstance(value, dict) else None
        if isinstance(listed, list):
            for element in listed[:_AHEAD]:
                if found := format_of(element):
                    return listed, found
    return [], None


def _mark(line: _SpooledMessage) -> str:
    """A hash that recognises a message when it is imported again. An edited message is another one."""
    return f"{line.id} {content_id(*(text for _, text in line.parts))[:12]}"


def _numbers(chunks: Iterable[tuple[Tokens, str]]) -> list[int]:
    """Chunk numbers. Those of the answer come first: its opening is the turn's anchor."""
    order = sorted(enumerate(chunks), key=lambda one: bool(one[1][1]))
    numbers = {place: number for number, (place, _) in enumerate(order)}
    return [numbers[place] for place in range(len(numbers))]
