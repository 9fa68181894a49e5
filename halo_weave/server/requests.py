"""Request bodies of the API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from halo_weave.chat.documents import MAX_DOCUMENTS as MOST_DOCUMENTS
from halo_weave.chat.recall_plan import NO_OVERRIDES, RecallOverrides
from halo_weave.chat.tools.calls import CONTEXT_LIMIT, CONTEXT_TOKENS
from halo_weave.core.tokens import ID_LIMIT, ChunkKey
from halo_weave.errors import BadInput
from halo_weave.server.schema import (
    KEY_PATTERN,
    NON_BLANK_PATTERN,
    TEXT_PATTERN,
    TIME_PATTERN,
    Id,
    Input,
    Json,
)
from halo_weave.settings import described_settings
from halo_weave.store.records import MAX_TAGS, NAME_LENGTH, PROMPT_LENGTH, TAG_LENGTH, WINDOW_ID

MAX_MESSAGE_LENGTH = 200_000
MAX_QUESTION_LENGTH = 20_000
MAX_DOCUMENT_LENGTH = 10_000_000

Key = Annotated[str, Field(pattern=KEY_PATTERN, examples=["12.0.user"])]
WindowId = Annotated[str, Field(pattern=WINDOW_ID, examples=["3f9a01bc"])]
TimeText = Annotated[str, Field(max_length=40, pattern=TIME_PATTERN, examples=["2026-01-31T12:00Z"])]
Path = Annotated[str, Field(min_length=1, max_length=512, pattern=TEXT_PATTERN, examples=["People/Mochi"])]
Name = Annotated[str, Field(max_length=NAME_LENGTH, pattern=NON_BLANK_PATTERN)]
Tag = Annotated[str, Field(max_length=TAG_LENGTH, pattern=NON_BLANK_PATTERN, examples=["work"])]
Prompt = Annotated[str, Field(max_length=PROMPT_LENGTH, pattern=TEXT_PATTERN)]


def parse_position(text: str) -> int:
    if int(text) >= ID_LIMIT:
        raise BadInput("Positions end at 2^63.")
    return int(text)


def recall_overrides_of(body: RecallChoice | None) -> RecallOverrides:
    """The recall overrides of a message."""
    if body is None:
        return NO_OVERRIDES
    exclude, include = ([ChunkKey.parse(key) for key in keys] for keys in (body.exclude, body.include))
    return RecallOverrides(frozenset(exclude), tuple(include), body.make_room)


def parse_time(text: str | None) -> datetime | None:
    """A time in a request. Without a zone it is UTC."""
    try:
        when = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is not a time. Write it like 2026-01-31 or 2026-01-31T12:00Z.") from None
    return when.replace(tzinfo=UTC) if when and when.tzinfo is None else when


# Settings


def _setting_field(setting: dict[str, Any], *, empty: bool) -> tuple[Any, Any]:
    """The type and description of a setting as a request field. `empty`: null is allowed."""
    kinds: dict[str, Any] = {"integer": int, "number": float, "boolean": bool, "text": str, "day": str}
    kind = Literal[tuple(setting["choices"])] if setting["choices"] else kinds[setting["type"]]
    limits = {} if setting["low"] is None else {"ge": setting["low"], "le": setting["high"]}
    if setting["type"] == "text":
        limits = {"max_length": setting["high"], "pattern": TEXT_PATTERN}
    field: Any = Annotated[kind, Field(**limits)]
    # A default factory, because a default value would appear in the API description: omitting a setting is not the same as null.
    return field | None if empty else field, Field(
        default_factory=lambda: None, description=setting["meaning"]
    )


_OWN: dict[str, Any] = {
    setting["name"]: _setting_field(setting, empty=True) for setting in described_settings()
}
_SHARED: dict[str, Any] = {
    setting["name"]: _setting_field(setting, empty=setting["optional"]) for setting in described_settings()
}
SettingNames: Any = list[Literal[tuple(_OWN)]]  # type: ignore[misc]

OwnSettings: type[Input] = create_model(
    "OwnSettings",
    __base__=Input,
    __doc__="Settings of one window. Null empties a setting that may be empty; other settings follow those for all windows again.",
    **_OWN,
)
SettingsChange: type[Input] = create_model(
    "SettingsChange",
    __base__=Input,
    __doc__="Settings for all windows. Null empties a setting that may be empty; `reset` restores the defaults.",
    reset=(SettingNames, Field([])),
    **_SHARED,
)


def given_fields(body: BaseModel) -> dict[str, Any]:
    """The fields that a request contains."""
    return {name: getattr(body, name) for name in body.model_fields_set if name != "reset"}


# Other requests


class ChunkTags(Input):
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS, description="The complete new list.")]


class PersonaChange(Input):
    system_prompt: Prompt | None = None
    user_name: Name | None = None
    ai_name: Name | None = None


class _WindowFields(PersonaChange):
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] | None = None
    settings: OwnSettings | None = None  # type: ignore[valid-type]


class NewWindow(_WindowFields):
    name: Name


class WindowChange(_WindowFields):
    name: Name | None = None
    pinned: bool | None = None
    archived: bool | None = None
    inherits: list[Literal["system_prompt", "user_name", "ai_name"]] = Field(
        default=[], description="Texts that follow those of all windows again."
    )
    reset: SettingNames = Field(default=[], description="Settings that follow those for all windows again.")


class SavePreset(Input):
    """Saves the settings of a window, those for all windows (neither `window` nor `settings`), or the sent ones."""

    name: Name
    window: WindowId | None = None
    settings: OwnSettings | None = None  # type: ignore[valid-type]
    persona: PersonaChange | None = None


class RenamePreset(Input):
    name: Name
    to: Name


class ApplyPreset(Input):
    name: Name
    window: WindowId | None = Field(default=None, description="Null: all windows.")


class AttachedDocument(Input):
    name: Name
    text: Annotated[str, Field(max_length=MAX_DOCUMENT_LENGTH, pattern=NON_BLANK_PATTERN)]


class NewMessage(Input):
    text: Annotated[
        str,
        Field(max_length=MAX_MESSAGE_LENGTH, pattern=NON_BLANK_PATTERN, examples=["My cat is called Mochi."]),
    ]
    after: Id | None = Field(default=None, description="The turn that it follows, if not the last; 0: none.")
    recall: RecallChoice | None = Field(
        default=None, description="What to resurrect for it, as chosen in a preview."
    )
    documents: Annotated[list[AttachedDocument], Field(max_length=MOST_DOCUMENTS)] = Field(
        default=[],
        description="Files with the text from `POST /api/documents`; each becomes a turn before the message.",
    )


class ExternalTurn(Input):
    role: Literal["user", "assistant"]
    text: Annotated[str, Field(max_length=MAX_MESSAGE_LENGTH, pattern=NON_BLANK_PATTERN)]


class AddTurns(Input):
    turns: Annotated[list[ExternalTurn], Field(min_length=1, max_length=200)]


class RecallChoice(Input):
    """What to resurrect for this message, besides what recall finds."""

    exclude: list[Key] = Field(
        default_factory=list, max_length=1000, description="These are not resurrected."
    )
    include: list[Key] = Field(
        default_factory=list, max_length=1000, description="These are resurrected before all others."
    )
    make_room: bool = Field(default=False, description="Prune the dimmest chunks until all of it fits.")


class Regenerate(Input):
    turn_id: Id | None = Field(
        default=None, description="The user's turn, or its answer. By default the last one."
    )


class TurnReference(Input):
    turn_id: Id


class EditTurn(Input):
    turn_id: Id
    text: Annotated[str, Field(max_length=MAX_MESSAGE_LENGTH, pattern=NON_BLANK_PATTERN)]


class CreateBranch(Input):
    turn_id: Id
    name: Name | None = None


class ChooseModel(Input):
    model: Annotated[str, Field(max_length=4096, pattern=NON_BLANK_PATTERN, examples=["smollm2-135m"])] = (
        Field(
            description="A name that GET /api/models lists, hf:owner/repository[:quant], or the path of a GGUF file."
        )
    )


class Reindex(Input):
    embedder: (
        Annotated[str, Field(max_length=4096, pattern=NON_BLANK_PATTERN, examples=["nomic-embed"])] | None
    ) = Field(
        default=None,
        description="An embedder that GET /api/models lists, hf:owner/repository[:quant], or the path of a GGUF file. "
        "Without one: the embedder in use.",
    )


class NegativeFeedback(Input):
    question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION_LENGTH, pattern=TEXT_PATTERN)]


class RestoreChunks(Input):
    keys: Annotated[list[Key], Field(min_length=1, max_length=10_000)]


class SaveMemoryEntry(Input):
    path: Path
    content: Json
    context_tokens: int = Field(
        default=CONTEXT_TOKENS, ge=0, le=CONTEXT_LIMIT, description="Size of the snapshot of relevant chunks."
    )


class InjectMemoryEntry(Input):
    path: Path


class ReplaceNotes(Input):
    content: dict[str, Json]
    version: Id | None = Field(
        default=None,
        description="The version that was read: 409 if the notes have changed since. Null: no check.",
    )


class ClearMemory(Input):
    confirm: Literal["delete everything"]
