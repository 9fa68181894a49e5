"""The model's notes: one JSON document, read and changed by jq programs in a sandbox."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

from halo_weave.chat.tools.calls import Json, json_changes, json_size
from halo_weave.errors import BadInput, HaloWeaveError, NotesChanged
from halo_weave.sandbox.process import ProcessStopped, SandboxedProcess
from halo_weave.store.records import Note
from halo_weave.store.sql_store import SqlStore

TASK = Path(__file__).with_name("jq_task.py")
PROGRAM_LIMIT = 20_000  # characters
LARGEST = sys.float_info.max
DIGITS = 4000  # longest whole number that Python parses by default


@dataclass(frozen=True, slots=True)
class JqOutput:
    """The program's values as JSON texts; `cut` if there were more than the limit."""

    values: tuple[str, ...]
    cut: bool = False

    def parsed(self) -> list[Json]:
        """The JSON as Python values, to be shown. A number beyond a float becomes the largest float, as in jq."""
        return [json.loads(value, parse_float=_number, parse_int=_number) for value in self.values]


@dataclass(frozen=True, slots=True)
class JqSandbox:
    """The limits of one jq program."""

    seconds: float = 2.0
    memory_bytes: int = 256 << 20
    result_characters: int = 1 << 20

    def run(self, program: str, document: str) -> JqOutput:
        """Run a jq program on a JSON text, without files, environment or other input. Raises BadInput."""
        if len(program) > PROGRAM_LIMIT:
            raise BadInput(
                f"This jq program is longer than {PROGRAM_LIMIT} characters. Use several shorter ones."
            )
        if "\0" in program:
            raise BadInput("A jq program cannot hold a NUL character.")
        question = {"program": program, "document": document, "limit": self.result_characters}
        try:
            with SandboxedProcess(TASK, _extension_file(), memory_bytes=self.memory_bytes) as process:
                answer = process.ask(question, self.seconds)
        except ProcessStopped as error:
            raise BadInput(f"jq {error} Use a simpler program.") from None
        except OSError as error:
            raise BadInput(f"jq could not be started: {error.strerror or error}.") from error
        if "error" in answer:
            raise BadInput(f"jq cannot do this: {_first_line(answer['error'])}.")
        return JqOutput(tuple(answer["values"]), answer["cut"])


def _number(digits: str) -> int | float:
    """Parse a number: infinity becomes the largest float, and very long integers become floats."""
    if digits.lstrip("-").isdigit() and len(digits) <= DIGITS:
        return int(digits)
    return max(-LARGEST, min(LARGEST, float(digits)))


def _extension_file() -> str:
    """The compiled module of the `jq` package; the sandboxed process loads only that."""
    spec = find_spec("jq")
    if spec is None or spec.origin is None:
        raise HaloWeaveError("Notes need the package jq. Try: pip install jq")
    return spec.origin


def _first_line(message: str) -> str:
    """jq's error message without its prefixes and the picture of the position."""
    line = message.strip().splitlines()[0] if message.strip() else "no reason given"
    line = line.removeprefix("jq: error: ").removeprefix("jq: ")
    return line.split(" at <top-level>")[0].rstrip(".:")


NAME = "notes.json"
SIZE_LIMIT = 256 << 10  # bytes
DESCRIPTION = "AI assistant's persistent notes"
METADATA = "_metadata"
TRIES = 20
MOMENT = timedelta(microseconds=1)  # the resolution of times in the store
BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NotesRevision:
    """The notes after a change, and the change."""

    document: dict[str, Json]
    changes: str
    version: str


class Notes:
    """The notes of a person. If several processes write at once, a write based on older notes is repeated on the newer
    ones."""

    def __init__(
        self, store: SqlStore, sandbox: JqSandbox | None = None, *, size_limit: int = SIZE_LIMIT
    ) -> None:
        self._store = store
        self._sandbox = sandbox or JqSandbox()
        self._size_limit = size_limit

    def of(self, store: SqlStore) -> Notes:
        """The notes of another person."""
        return Notes(store, self._sandbox, size_limit=self._size_limit)

    def document(self, *, now: datetime) -> dict[str, Json]:
        """The current notes; empty before the first write."""
        return self.latest(now=now)[0]

    def latest(self, *, now: datetime) -> tuple[dict[str, Json], str]:
        """The current notes with their version."""
        note = self._store.note(NAME)
        return _content_of(note, now), _version_of(note)

    def read(self, program: str, *, now: datetime) -> JqOutput:
        """The values that a jq program returns for the notes."""
        return self._sandbox.run(program, json.dumps(self.document(now=now)))

    def write(self, program: str, *, now: datetime) -> NotesRevision:
        """Replace the notes by the one object that a jq program returns for them."""

        def result(document: dict[str, Json]) -> Json:
            value = _only_value(self._sandbox.run(program, json.dumps(document)))
            # `.topics` with `> output` would delete everything else: more likely a mistake than intended.
            if isinstance(value, dict) and METADATA not in value:
                raise BadInput(
                    "This gives only a part of the notes, so nothing was changed. To write, change the whole, "
                    "such as: .topics.name = 1"
                )
            return value

        return self._change(result, now)

    def replace(self, document: Json, *, now: datetime, version: str | None = None) -> NotesRevision:
        """Replace the notes by this document, as when they are edited by hand; with `version`, only if that is still
        current."""
        return self._change(lambda _: document, now, version)

    def _change(
        self, change: Callable[[dict[str, Json]], Json], now: datetime, version: str | None = None
    ) -> NotesRevision:
        for _ in range(TRIES):
            note = self._store.note(NAME)
            if version is not None and version != _version_of(note):
                raise NotesChanged(
                    "The notes were changed since you read them, so nothing was saved. Read them again, then save."
                )
            old = _content_of(note, now)
            kept = {**_blank(now)[METADATA], **(old.get(METADATA) or {}), "last_modified": _stamp(now)}
            new = {METADATA: kept, **_without_metadata(_checked(change(old), self._size_limit))}
            # Each version has a later time than the one before, so times identify versions.
            when = max(now, note.modified + MOMENT) if note else now
            seen = note.modified if note else BEFORE_ALL
            try:
                saved = self._store.save_note(NAME, new, now=when, unless_modified_since=seen)
            except BadInput:  # the content was checked above, so another writer was faster
                continue
            return NotesRevision(
                new, json_changes(_without_metadata(old), _without_metadata(new)), _version_of(saved)
            )
        raise BadInput("The notes were changed by others at the same time, again and again. Try once more.")


def _content_of(note: Note | None, now: datetime) -> dict[str, Json]:
    return _blank(now) if note is None else note.content


def _version_of(note: Note | None) -> str:
    """The time of the last write in microseconds, which is unique; 0: never written."""
    return str(0 if note is None else (note.modified - BEFORE_ALL) // MOMENT)


def _blank(now: datetime) -> dict[str, Json]:
    metadata = {"created": _stamp(now), "last_modified": _stamp(now), "description": DESCRIPTION}
    return {METADATA: metadata, "topics": {}, "reminders": [], "context": {}, "scratch": {}}


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _without_metadata(document: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in document.items() if key != METADATA}


def _only_value(output: JqOutput) -> Json:
    if len(output.values) != 1 and not output.cut:
        count = len(output.values)
        raise BadInput(
            f"To write, a program gives one object; this one gave {count or 'no'} values. Nothing was changed."
        )
    if output.cut:
        raise BadInput("The result is too large for the notes. Nothing was changed.")
    try:
        return json.loads(output.values[0])
    except (ValueError, RecursionError):
        raise BadInput(
            "The result is nested too deeply or holds a number that is too large. Nothing was changed."
        ) from None


def _checked(document: Json, size_limit: int) -> dict[str, Json]:
    if not isinstance(document, dict):
        raise BadInput(f"The notes stay an object, not {_kind_of(document)}. Nothing was changed.")
    size = json_size(document)
    if size > size_limit:
        raise BadInput(
            f"The notes would have {size} bytes; at most {size_limit} are kept. Delete something first. Nothing was changed."
        )
    return document


def _kind_of(value: Json) -> str:
    names = {str: "text", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
