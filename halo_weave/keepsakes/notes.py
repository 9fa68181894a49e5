"""The AI's notes: one JSON document, read and changed by jq programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from halo_weave.errors import BadInput, NotesChanged
from halo_weave.keeping import Keepsakes
from halo_weave.keepsakes.literals import Json, json_size
from halo_weave.keepsakes.results import changes
from halo_weave.keepsakes.sandbox import JqOutput, JqSandbox
from halo_weave.records import Note

NAME = "notes.json"
SIZE_LIMIT = 256 << 10  # bytes
DESCRIPTION = "AI assistant's persistent notes"
METADATA = "_metadata"
TRIES = 20
MOMENT = timedelta(microseconds=1)  # the store's smallest step in time
BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class NotesRevision:
    """The notes after a change, and what it changed."""

    document: dict[str, Json]
    changes: str
    version: str


class Notes:
    """Several windows and processes may write at once: a write that meets newer notes is made again on those."""

    def __init__(
        self, store: Keepsakes, sandbox: JqSandbox | None = None, *, size_limit: int = SIZE_LIMIT
    ) -> None:
        self._store = store
        self._sandbox = sandbox or JqSandbox()
        self._size_limit = size_limit

    def of(self, store: Keepsakes) -> Notes:
        """Those of someone else."""
        return Notes(store, self._sandbox, size_limit=self._size_limit)

    def document(self, *, now: datetime) -> dict[str, Json]:
        """The notes as they are; before the first write, the empty ones."""
        return self.latest(now=now)[0]

    def latest(self, *, now: datetime) -> tuple[dict[str, Json], str]:
        """The notes as they are, and what names this version of them."""
        note = self._store.note(NAME)
        return _content_of(note, now), _version_of(note)

    def read(self, program: str, *, now: datetime) -> JqOutput:
        """The values that a jq program gives for the notes."""
        return self._sandbox.run(program, json.dumps(self.document(now=now)))

    def write(self, program: str, *, now: datetime) -> NotesRevision:
        """Make the one object that a jq program gives the notes."""

        def result(document: dict[str, Json]) -> Json:
            value = _only_value(self._sandbox.run(program, json.dumps(document)))
            # `.topics` with `> output` would wipe all the rest, and is more likely a slip than meant.
            if isinstance(value, dict) and METADATA not in value:
                raise BadInput(
                    "This gives only a part of the notes, so nothing was changed. To write, change the whole, "
                    "such as: .topics.name = 1"
                )
            return value

        return self._change(result, now)

    def replace(self, document: Json, *, now: datetime, version: str | None = None) -> NotesRevision:
        """Make this document the notes, as when it is edited by hand; with `version`, only in that one's place."""
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
            # Each version has a later time than the one before, so that no writer mistakes one for the other.
            when = max(now, note.modified + MOMENT) if note else now
            seen = note.modified if note else BEFORE_ALL
            try:
                saved = self._store.save_note(NAME, new, now=when, unless_modified_since=seen)
            except BadInput:  # the content is fit to be stored: another writer was faster
                continue
            return NotesRevision(
                new, changes(_without_metadata(old), _without_metadata(new)), _version_of(saved)
            )
        raise BadInput("The notes were changed by others at the same time, again and again. Try once more.")


def _content_of(note: Note | None, now: datetime) -> dict[str, Json]:
    return _blank(now) if note is None else note.content


def _version_of(note: Note | None) -> str:
    """When they were written, in microseconds: no two versions have the same. 0: never."""
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
