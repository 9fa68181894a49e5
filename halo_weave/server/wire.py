"""The API's answers.

It is read from the values of weave by their attributes: `WindowTold.model_validate(state)`. Ids become decimal
strings. Where a value tells the window something was said in by its id alone, its name comes from the validation context,
which is the names of all windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BeforeValidator, ConfigDict, Field, ValidationInfo

from halo_weave.core.tokens import Role
from halo_weave.records import Generation
from halo_weave.server.modelwire import ModelTold
from halo_weave.server.schema import Id, KeyText, Number, Output
from halo_weave.server.speech import SpeechTold, UseTold
from halo_weave.settings import Settings
from halo_weave.weave.seen import Budget, Context, Gap

SettingValue = bool | int | float | str | None


def _named(window: Any, info: ValidationInfo) -> str:
    names: Mapping[str | None, str] = info.context or {}
    return names.get(window, "")


def _at(*path: str) -> Any:
    """A field that lies deeper in the value it is read from."""
    return Field(validation_alias=AliasPath(*path))


Floats = Annotated[list[float], BeforeValidator(lambda row: row.tolist())]
Size = Annotated[int, BeforeValidator(len)]
Words = Annotated[list[str], BeforeValidator(list)]
WindowName = Annotated[str, BeforeValidator(_named)]


# Settings


class Described(Output):
    name: str
    group: str
    type: Literal["integer", "number", "boolean", "choice", "text", "day"]
    default: SettingValue
    low: float | None
    high: float | None
    choices: list[str]
    optional: bool
    common: bool = Field(description="One of the few that most people change.")
    meaning: str
    no_effect: dict[str, str] = Field(
        description="By strategy: why the setting changes nothing while that strategy is chosen."
    )


class SettingsTold(Output):
    described: list[Described]
    values: dict[str, SettingValue]
    auto: dict[str, int] = Field(
        description="What settings that are empty come to with the model of all windows; nothing while there is none."
    )


# Status


class EmbedderTold(Output):
    model_config = ConfigDict(extra="ignore")

    state: Literal["ready", "loading", "off"] = "loading"
    model: str = ""
    file: str = ""
    sentence: str = ""
    wanted: int = Field(default=0, description="Chunks that are not embedded yet.")


class MemoryTold(Output):
    chunks: int = 0
    tokens: int = 0
    windows: int = 0
    deleted: int = Field(default=0, validation_alias="deleted_chunks")
    bytes: int = 0
    place: str = Field(default="", description="Where it lies.")


class Status(Output):
    version: str
    model: ModelTold
    embedder: EmbedderTold = EmbedderTold()
    memory: MemoryTold = MemoryTold()
    generating: list[str] = Field(default_factory=list)


# Windows


class WindowTold(Output):
    id: str = _at("window", "id")
    name: str = _at("window", "name")
    system_prompt: str = _at("window", "system_prompt")
    user_name: str = _at("window", "user_name")
    ai_name: str = _at("window", "ai_name")
    inherits: list[str] = Field(
        validation_alias=AliasPath("window", "inherits"),
        description="Which of these words are those of all windows.",
    )
    owner: str = Field(description="Who shares it with you; empty: it is yours.")
    writable: bool = Field(description="Whether you may write there.")
    tags: list[str] = _at("window", "tags")
    pinned: bool = _at("window", "pinned")
    archived: bool = _at("window", "archived")
    settings: dict[str, SettingValue] = Field(description="What the window sets itself.")
    effective: Annotated[dict[str, SettingValue], BeforeValidator(Settings.as_mapping)] = Field(
        description="What holds in it."
    )
    created: datetime = _at("window", "created")
    modified: datetime = Field(description="When it was last changed or spoken in.")
    last_text: str = Field(validation_alias="last_words")
    live_chunks: int
    live_tokens: int
    asleep_chunks: int
    generating: bool


class WindowsTold(Output):
    windows: list[WindowTold]


# The turn


class SleptTold(Output):
    key: KeyText
    tokens: int
    brightness: float
    why: str


class Pruned(Output):
    chunks: list[SleptTold]
    budget: int
    over: int = Field(description="Tokens above the budget that nothing prunable is left for.")


# The context


class ChunkTold(Output):
    key: KeyText
    start: Number
    pinned: bool
    tokens: int
    text_pieces: list[str] = Field(description="One per token; the one that ends a character carries it.")
    brightness: Floats
    rank: int | None = Field(
        description="Among what is live: 0 the dimmest, 100 the brightest. Not told in events; the last one of a turn tells all."
    )
    peak: float
    mean: float
    woken: dict[str, Any] | None = Field(description="Why it woke up, if it slept.")
    tool: bool = Field(description="Whether a tool's answer stands in it.")
    thought: bool = Field(description="Whether it is what the model thought before it answered.")
    gap: Gap | None = Field(description="What sleeps right before it.")
    thoughts: int = Field(description="How many chunks of that are the thoughts before this answer.")


class TurnTold(SpeechTold):
    chunks: list[ChunkTold]


class RangeTold(Output):
    low: float
    high: float
    mean: float


class ReplyTold(Output):
    turn_id: Number
    position: Number = Field(description="Of the reply's first token.")
    text_pieces: list[str]
    brightness: Floats
    tool: list[bool]
    thought: list[bool]


class ContextStats(Output):
    asleep_chunks: int
    asleep_tokens: int
    woken_last_turn: int
    kv_reuse: float | None = Field(description="Share of the last prompt that was not computed again.")
    tokens_per_second: float | None
    only_thought: bool = Field(description="The last reply ended before there was an answer.")


class ContextTold(Output):
    """Exactly what the model sees, in time order."""

    window: str
    version: int
    last_event: str = Field(description="Events after this one are not, or not all, in this context.")
    size: int
    system_tokens: int
    system_text: str = Field(description="The system prompt with what is added to it.")
    budget: Budget
    brightness: RangeTold
    turns: list[TurnTold]
    tail_gap: Gap | None
    generating: ReplyTold | None
    unstored: str | None = Field(description="Why the last reply is not stored yet, while that is so.")
    stats: ContextStats

    @classmethod
    def of(cls, seen: Context) -> ContextTold:
        every, last = seen.brightness, seen.last_turn
        kept = last.get("reused", 0) + last.get("restored", 0)
        whole = kept + last.get("computed", 0)
        return cls(
            window=seen.window,
            version=int(seen.last_event.rpartition("-")[2]),
            last_event=seen.last_event,
            size=seen.budget.used,
            system_tokens=seen.budget.system,
            system_text=seen.system_text,
            budget=seen.budget,
            brightness=RangeTold(low=every.min(), high=every.max(), mean=every.mean()),
            turns=[TurnTold.model_validate(turn) for turn in seen.turns],
            tail_gap=seen.gaps.tail,
            generating=None if seen.reply is None else ReplyTold.model_validate(seen.reply),
            unstored=seen.unstored or None,
            stats=ContextStats(
                asleep_chunks=seen.gaps.whole.chunks,
                asleep_tokens=seen.gaps.whole.tokens,
                woken_last_turn=last.get("woken", 0),
                kv_reuse=round(kept / whole, 4) if whole else None,
                tokens_per_second=last.get("tokens_per_second"),
                only_thought=bool(last.get("only_thought")),
            ),
        )


class SleepingTold(Output):
    key: KeyText
    role: Role = _at("key", "role")
    turn_id: Number = _at("key", "turn_id")
    start: Number = _at("record", "chunk", "start")
    tokens: Size = _at("record", "chunk")
    peak: float
    slept: datetime
    reason: dict[str, Any]
    said: datetime = _at("record", "said")
    window: str = _at("record", "window")
    window_name: WindowName = _at("record", "window")
    speaker: str = _at("record", "speaker")
    text: str = _at("record", "chunk", "text")


class GraveyardTold(Output):
    total: int
    items: list[SleepingTold]


class GapItems(GraveyardTold):
    tokens: int = Field(description="Of all of them.")


# A chunk


class Acted(Output):
    key: KeyText = Field(description="The chunk; after a merge the one it became part of.")
    live: bool
    pinned: bool
    woken: list[str] = Field(default=[], description="All that came back, the chunk itself first.")
    asleep: list[str] = Field(default=[], description="What fell asleep to make room.")


class Happened(Output):
    event: str
    happened: datetime
    window: str | None
    window_name: WindowName = Field(validation_alias="window")
    detail: dict[str, Any]


class UsedIn(Output):
    turn_id: Number = Field(description="The reply.")
    said: datetime
    window: str
    window_name: WindowName = Field(validation_alias="window")
    share: float = Field(description="Of the reply.")


class WhyTold(Output):
    key: KeyText
    text: str
    tokens: int
    live: bool
    pinned: bool
    rank: int | None = Field(description="Among what is live: 0 the dimmest, 100 the brightest.")
    peak: float | None
    mean: float | None
    parts: dict[str, float] = Field(description="What its brightness is made of, if the strategy knows.")
    said: datetime
    window: str
    window_name: WindowName = Field(validation_alias="window")
    speaker: str
    history: list[Happened] = Field(description="The newest first.")
    uses: list[UsedIn] = Field(description="The replies that took something from it, the newest first.")
    use: UseTold | None = Field(description="What the reply that it belongs to took from chunks.")
    woken: int = Field(description="How often it woke up, in all windows.")
    tags: list[str] = Field(description="Yours: nobody else sees them.")


class ChunkTagsTold(Output):
    key: KeyText
    tags: list[str]


class TagTold(Output):
    tag: str
    windows: int
    chunks: int


class TagsTold(Output):
    tags: list[TagTold]


class DeletionTold(Output):
    keys: list[KeyText]
    turns: int
    chunks: int
    tokens: int
    text: str | None = Field(
        description="The user's words, if their newest answer goes: they return to the input."
    )


class Undeleted(Output):
    keys: list[str]


# Search


class HitTold(Output):
    key: KeyText = _at("record", "key")
    text: str = _at("record", "chunk", "text")
    role: Role = _at("record", "key", "role")
    speaker: str = _at("record", "speaker")
    said: datetime = _at("record", "said")
    window: str = _at("record", "window")
    window_name: WindowName = _at("record", "window")
    similarity: float = _at("hit", "similarity")
    parts: dict[str, float] = _at("hit", "parts")
    words: Words = _at("hit", "words")
    part: Literal["hit", "question", "answer", "anchor"]
    live: bool
    tokens: Size = _at("record", "chunk")
    tags: list[str] = Field(description="Yours, of the chunk itself.")


class TokenTold(Output):
    position: Number
    id: int
    text: str
    key: KeyText


class TokensTold(Output):
    tokens: list[TokenTold]


class SearchTold(Output):
    hits: list[HitTold]
    cost: int | None = Field(description="Tokens that would wake up, frames included, if a budget was given.")


# The AI's own memory


class BranchTold(Output):
    heading: str
    path: str
    version: int | None = Field(description="Null: a heading without an entry of its own.")
    modified: datetime | None
    children: list[BranchTold]
    entries: int = Field(description="How many there are here and below.")
    content: Any = Field(description="What the entry says, if contents were asked for.")


class KeptTold(Output):
    key: Annotated[str | None, BeforeValidator(lambda key: key and str(key))] = Field(
        description="Null if an import brought the memory without this chunk."
    )
    text: str
    tokens: int
    similarity: float
    said: str | None


class EntryTold(Output):
    path: str
    content: Any
    snapshot: list[KeptTold]
    created: datetime
    modified: datetime
    accessed: datetime
    version: int
    ended: datetime | None


class VersionsTold(Output):
    versions: list[EntryTold]


class MatchTold(Output):
    entry: EntryTold
    score: float
    similarity: float
    recency: float
    relevant: list[KeptTold] = Field(description="The kept chunks that fit the query, the best first.")


class MatchesTold(Output):
    matches: list[MatchTold]


class Forgotten(Output):
    deleted: int


class Injected(Output):
    keys: list[str]
    cost: int
    asleep: list[str] = Field(description="What fell asleep to make room.")


class NotesTold(Output):
    content: dict[str, Any]
    version: Id = Field(description="Send it back with the change.")


# Upkeep


class StatsTold(Output):
    id: str
    created: datetime
    next_turn: Number
    next_position: Number
    turns: int
    chunks: int
    tokens: int
    deleted_chunks: int
    windows: int
    drafts: int
    entries: int
    notes: int
    generations: list[Generation]
    schema_version: int = Field(validation_alias="schema")
    bytes: int
    clients: int = Field(default=0, description="Listening to events now.")
