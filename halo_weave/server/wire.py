"""Everything that goes over the wire: what may be asked, and what is told. Ids are decimal strings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from halo_weave import settings as settings_module
from halo_weave.core.tokens import ID_LIMIT, ChunkKey, Role
from halo_weave.errors import BadInput
from halo_weave.keepsakes.commands import CONTEXT_LIMIT, CONTEXT_TOKENS
from halo_weave.records import WINDOW_ID
from halo_weave.server.asked import DAY, KEY, SAID, WHOLE, Asked, Id, Json, Told

LONGEST_SAID = 200_000
LONGEST_QUESTION = 20_000

Key = Annotated[str, Field(pattern=KEY, examples=["12.0.user"])]
WindowId = Annotated[str, Field(pattern=WINDOW_ID, examples=["3f9a01bc"])]
Moment = Annotated[str, Field(max_length=40, pattern=DAY, examples=["2026-01-31T12:00Z"])]
SettingValue = bool | int | float | str | None
Part = Literal["hit", "question", "answer", "anchor"]


def chunk_key(text: str) -> ChunkKey:
    return ChunkKey.parse(text)


def position(text: str) -> int:
    if int(text) >= ID_LIMIT:
        raise BadInput("Positions end at 2^63.")
    return int(text)


def moment(text: str | None) -> datetime | None:
    """A time that a request names. Without a zone it is UTC."""
    try:
        when = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text!r} is not a time. Write it like 2026-01-31 or 2026-01-31T12:00Z.") from None
    return when.replace(tzinfo=UTC) if when and when.tzinfo is None else when


# Errors


class Problem(Told):
    code: str = Field(examples=["unknown_window"])
    sentence: str = Field(examples=["There is no window 'x'."])


class Failure(Told):
    """Every error has this shape."""

    error: Problem


# Settings


class Described(Told):
    name: str
    group: str
    type: Literal["integer", "number", "boolean", "choice"]
    default: SettingValue
    low: float | None
    high: float | None
    choices: list[str]
    optional: bool
    meaning: str


def setting_field(about: dict[str, Any], *, empty: bool) -> tuple[Any, Any]:
    """A setting as a field of a request: its type and range as the settings themselves state them."""
    kinds: dict[str, Any] = {"integer": int, "number": float, "boolean": bool}
    kind = Literal[tuple(about["choices"])] if about["choices"] else kinds[about["type"]]
    limits = {} if about["low"] is None else {"ge": about["low"], "le": about["high"]}
    field: Any = Annotated[kind, Field(**limits)]
    # A factory, since a default would be described: to leave a setting out is not to send null.
    return field | None if empty else field, Field(default_factory=lambda: None, description=about["meaning"])


OWN: dict[str, Any] = {
    about["name"]: setting_field(about, empty=True) for about in settings_module.described()
}
SHARED: dict[str, Any] = {
    about["name"]: setting_field(about, empty=about["optional"]) for about in settings_module.described()
}
SettingNames: Any = list[Literal[tuple(OWN)]]  # type: ignore[misc]

OwnSettings: type[Asked] = create_model(
    "OwnSettings",
    __base__=Asked,
    __doc__="Settings of one window. Null empties a setting that may be empty; others go back to that for all.",
    **OWN,
)
SettingsChange: type[Asked] = create_model(
    "SettingsChange",
    __base__=Asked,
    __doc__="Settings for all windows. Null empties a setting that may be empty; `reset` goes back to the defaults.",
    reset=(SettingNames, Field([])),
    **SHARED,
)


def given(asked: BaseModel) -> dict[str, Any]:
    """What a request names, and nothing that it leaves out."""
    return {name: getattr(asked, name) for name in asked.model_fields_set if name != "reset"}


class SettingsTold(Told):
    described: list[Described]
    values: dict[str, SettingValue]


# Status


class ModelTold(Told):
    state: Literal["ready", "loading", "missing"]
    sentence: str = Field(description="What the state means, and what to do.")
    progress: float | None = Field(default=None, description="0 to 1, while weights are downloaded.")
    name: str = ""
    architecture: str = ""
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    trained_context: int = 0
    context: int = 0
    template: str = ""
    kv: str = ""
    file: str = ""
    size_bytes: int = 0


class EmbedderTold(Told):
    state: Literal["ready", "loading", "off"]
    model: str = ""
    sentence: str = ""
    wanted: int = Field(default=0, description="Chunks that are not embedded yet.")


class MemoryTold(Told):
    chunks: int = 0
    tokens: int = 0
    windows: int = 0
    deleted: int = 0
    bytes: int = 0


class Status(Told):
    version: str
    model: ModelTold
    embedder: EmbedderTold
    memory: MemoryTold
    generating: list[str]


# Windows


class NewWindow(Asked):
    name: Annotated[str, Field(max_length=200, pattern=SAID)]
    system_prompt: Annotated[str, Field(max_length=100_000, pattern=WHOLE)] | None = None
    user_name: Annotated[str, Field(max_length=200, pattern=SAID)] | None = None
    ai_name: Annotated[str, Field(max_length=200, pattern=SAID)] | None = None
    settings: OwnSettings | None = None  # type: ignore[valid-type]


class WindowChange(Asked):
    name: Annotated[str, Field(max_length=200, pattern=SAID)] | None = None
    system_prompt: Annotated[str, Field(max_length=100_000, pattern=WHOLE)] | None = None
    user_name: Annotated[str, Field(max_length=200, pattern=SAID)] | None = None
    ai_name: Annotated[str, Field(max_length=200, pattern=SAID)] | None = None
    settings: OwnSettings | None = None  # type: ignore[valid-type]
    reset: SettingNames = Field(default=[], description="Settings that go back to those for all windows.")


class WindowTold(Told):
    id: str
    name: str
    system_prompt: str
    user_name: str
    ai_name: str
    settings: dict[str, SettingValue] = Field(description="What the window sets itself.")
    effective: dict[str, SettingValue] = Field(description="What holds in it.")
    created: datetime
    modified: datetime = Field(description="When it was last changed or spoken in.")
    last_text: str
    live_chunks: int
    live_tokens: int
    asleep_chunks: int
    generating: bool


class WindowsTold(Told):
    windows: list[WindowTold]


# The turn


class Say(Asked):
    text: Annotated[str, Field(max_length=LONGEST_SAID, pattern=SAID, examples=["My cat is called Mochi."])]


class Saying(Told):
    turn: Id = Field(description="The user's turn: it is stored.")
    reply_turn: Id
    last_event: str = Field(description="The newest event before this turn.")
    stream: str = Field(description="Where the turn's events are, from the first on.")


class Stopped(Told):
    stopped: bool = Field(description="Whether there was a reply to stop.")


# The context


class GapTold(Told):
    """What sleeps in this window between two live chunks."""

    chunks: int
    tokens: int


class ChunkTold(Told):
    key: str
    start: Id
    pinned: bool
    tokens: int
    text_pieces: list[str] = Field(description="One per token; the one that ends a character carries it.")
    brightness: list[float]
    peak: float
    mean: float
    woken: dict[str, Any] | None = Field(description="Why it woke up, if it slept.")
    tool: bool = Field(description="Whether a tool's answer stands in it.")
    gap: GapTold | None = Field(description="What sleeps right before it.")


class TurnTold(Told):
    turn_id: Id
    role: Role
    said: datetime
    window: str = Field(description="Where it was said.")
    window_name: str
    speaker: str
    cut: bool = Field(description="The program ended before this reply did; what was stored of it is here.")
    chunks: list[ChunkTold]


class BudgetTold(Told):
    max_context_tokens: int
    model_context: int
    system: int
    pinned: int
    live: int = Field(description="Without the pinned.")
    frames: int
    reserve: int = Field(description="For the reply.")
    free: int


class RangeTold(Told):
    low: float
    high: float
    mean: float


class ReplyTold(Told):
    turn_id: Id
    position: Id = Field(description="Of the reply's first token.")
    text_pieces: list[str]
    brightness: list[float]
    tool: list[bool]


class ContextStats(Told):
    asleep_chunks: int
    asleep_tokens: int
    woken_last_turn: int
    kv_reuse: float | None = Field(description="Share of the last prompt that was not computed again.")
    tokens_per_second: float | None


class ContextTold(Told):
    """Exactly what the model sees, in time order."""

    window: str
    version: int
    last_event: str = Field(description="Events after this one are not, or not all, in this context.")
    size: int
    system_tokens: int
    budget: BudgetTold
    brightness: RangeTold
    turns: list[TurnTold]
    tail_gap: GapTold | None
    generating: ReplyTold | None
    stats: ContextStats


class SleepingTold(Told):
    key: str
    role: Role
    turn_id: Id
    start: Id
    tokens: int
    peak: float
    slept: datetime
    reason: dict[str, Any]
    said: datetime
    window: str
    window_name: str
    speaker: str
    text: str


class GraveyardTold(Told):
    total: int
    items: list[SleepingTold]


class GapItems(Told):
    total: int
    tokens: int = Field(description="Of all of them.")
    items: list[SleepingTold]


# A chunk


class Acted(Told):
    key: str = Field(description="The chunk; after a merge the one it became part of.")
    live: bool
    pinned: bool


class Happened(Told):
    event: str
    happened: datetime
    window: str | None
    window_name: str
    detail: dict[str, Any]


class WhyTold(Told):
    key: str
    text: str
    tokens: int
    live: bool
    pinned: bool
    peak: float | None
    mean: float | None
    said: datetime
    window: str
    window_name: str
    speaker: str
    history: list[Happened] = Field(description="The newest first.")


class DeletionTold(Told):
    keys: list[str]
    turns: int
    chunks: int
    tokens: int
    text: str | None = Field(
        description="The user's words, if their newest answer goes: they return to the input."
    )


class Undelete(Asked):
    keys: Annotated[list[Key], Field(min_length=1, max_length=10_000)]


class Undeleted(Told):
    keys: list[str]


# Search


class HitTold(Told):
    key: str
    text: str
    role: Role
    speaker: str
    said: datetime
    window: str
    window_name: str
    similarity: float
    parts: dict[str, float]
    words: list[str]
    live: bool
    tokens: int


class SearchTold(Told):
    hits: list[HitTold]


class WakingTold(Told):
    key: str
    part: Part
    hit: str
    similarity: float
    cost: int
    words: list[str]
    text: str


class PreviewTold(Told):
    room: int
    cost: int
    wakes: list[WakingTold]
    passed_over: int


# The AI's own memory

Path = Annotated[str, Field(min_length=1, max_length=512, pattern=WHOLE, examples=["People/Mochi"])]


class BranchTold(Told):
    heading: str
    path: str
    version: int | None = Field(description="Null: a heading without an entry of its own.")
    modified: datetime | None
    children: list[BranchTold]


class Keep(Asked):
    path: Path
    content: Json
    context_tokens: int = Field(
        default=CONTEXT_TOKENS, ge=0, le=CONTEXT_LIMIT, description="Size of the snapshot of relevant chunks."
    )


class KeptTold(Told):
    key: str | None = Field(description="Null if an import brought the memory without this chunk.")
    text: str
    tokens: int
    similarity: float
    said: str | None


class EntryTold(Told):
    path: str
    content: Any
    snapshot: list[KeptTold]
    created: datetime
    modified: datetime
    accessed: datetime
    version: int
    ended: datetime | None


class VersionsTold(Told):
    versions: list[EntryTold]


class MatchTold(Told):
    entry: EntryTold
    score: float
    similarity: float
    recency: float


class MatchesTold(Told):
    matches: list[MatchTold]


class Forgotten(Told):
    deleted: int


class Inject(Asked):
    path: Path


class Injected(Told):
    keys: list[str]
    cost: int
    asleep: list[str] = Field(description="What fell asleep to make room.")


class NotesChange(Asked):
    content: dict[str, Json]
    version: Id | None = Field(
        default=None,
        description="The one that was read: 409 if the notes have another by now. Null: whatever they are.",
    )


class NotesTold(Told):
    content: dict[str, Any]
    version: Id = Field(description="Send it back with the change.")


# Upkeep


class Clear(Asked):
    confirm: Literal["delete everything"]


class ImportedTold(Told):
    turns: int
    chunks: int
    tokens: int
    windows: int
    entries: int
    notes: int
    known_turns: int = Field(description="Were here already.")
    kept_ids: bool = Field(description="False: turns and positions got new ids since theirs were taken.")


class GenerationTold(Told):
    id: int
    model: str
    dimension: int
    state: Literal["building", "current", "retired"]
    created: datetime
    completed: datetime | None
    vectors: int
    wanted: int


class StatsTold(Told):
    model_config = ConfigDict(extra="forbid")

    id: str
    created: datetime
    next_turn: Id
    next_position: Id
    turns: int
    chunks: int
    tokens: int
    deleted_chunks: int
    windows: int
    drafts: int
    entries: int
    notes: int
    generations: list[GenerationTold]
    schema_version: int
    bytes: int
    clients: int = Field(description="Listening to events now.")


class ReindexTold(Told):
    state: Literal["idle", "running", "off", "failed"]
    model: str
    done: int
    total: int
    sentence: str
