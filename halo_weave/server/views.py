"""Response bodies of the API, read from values of the chat layer by their attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BeforeValidator, ConfigDict, Field, ValidationInfo

from halo_weave.chat.events import ChangeStage
from halo_weave.chat.memory import Preview
from halo_weave.chat.models import ModelState
from halo_weave.chat.views import ContextView, PrunedGap, TokenBudget
from halo_weave.core.resurrection import PlannedResurrection
from halo_weave.core.tokens import Role
from halo_weave.server.schema import Id, KeyText, Number, Output
from halo_weave.settings import Settings
from halo_weave.store.records import PUBLIC_EVENT_KINDS, VectorGeneration


class ReplySource(Output):
    """A chunk that a reply used, or that was resurrected for it and not used."""

    key: KeyText
    start: Number
    tokens: int
    text: str
    said: datetime
    window: str = Field(description="Where it was said.")
    window_name: str
    speaker: str
    share: float | None = Field(description="Share of the reply; null if unknown.")
    resurrected: dict[str, Any] | None = Field(
        validation_alias="resurrect_reason",
        description="Why it was resurrected; null if it was live already.",
    )


class TurnBase(Output):
    turn_id: Number
    role: Role
    said: datetime
    window: str = Field(description="Where it was said.")
    window_name: str
    speaker: str
    interrupted: bool = Field(
        validation_alias="cut",
        description="The program ended during this reply; this is what was stored of it.",
    )
    unfinished: bool = Field(
        description="This reply stopped at max_new_tokens or at the end of the model's context. It can be continued."
    )
    versions: int = Field(validation_alias="siblings", description="Number of versions of this turn.")
    version: int = Field(
        validation_alias="sibling", description="Number of this version in order of time, from 1 on."
    )
    document: bool = Field(description="A file that was attached; its name is the speaker.")
    sources: list[ReplySource] | None = Field(
        validation_alias="remembered",
        description="The chunks that the reply used; null if unknown.",
    )


class TranscriptChunk(Output):
    key: KeyText
    start: Number
    tokens: int
    text_pieces: list[str]
    tool: bool
    thought: bool


class TranscriptTurn(TurnBase):
    chunks: list[TranscriptChunk]


class Transcript(Output):
    total: int = Field(description="Turns that were said in the window.")
    offset: int = Field(description="Offset of the first turn in this page.")
    turns: list[TranscriptTurn]


class DeletedChunk(Output):
    key: KeyText
    role: Role = Field(validation_alias=AliasPath("key", "role"))
    turn_id: Number = Field(validation_alias=AliasPath("key", "turn_id"))
    start: Number = Field(validation_alias=AliasPath("chunk", "start"))
    tokens: Annotated[int, BeforeValidator(len)] = Field(validation_alias="chunk")
    deleted: datetime = Field(description="When it was deleted.")
    said: datetime
    window: str
    window_name: str = ""
    speaker: str
    text: str = Field(validation_alias=AliasPath("chunk", "text"))


class DeletedChunks(Output):
    total: int
    items: list[DeletedChunk]


class ChunkShare(Output):
    key: KeyText
    start: Number = Field(description="The position that offsets count from.")
    share: float


class TokenSource(Output):
    chunk: int = Field(validation_alias="place", description="Index of the chunk in `chunks`.")
    offset: int = Field(description="Index of the token in the chunk.")
    share: float


class AttributionView(Output):
    """The share that earlier chunks have in a reply. With `nothing` the shares add up to 1."""

    chunks: list[ChunkShare] = Field(description="The largest share first.")
    nothing: float = Field(
        description="Share that came from no earlier chunk: from the question, the reply itself or the model's own knowledge."
    )
    tokens: list[list[TokenSource]] = Field(
        description="Where each token of the reply came from, strongest first."
    )


class ReplySources(Output):
    start: Number = Field(description="The position of the reply's first token.")
    attribution: AttributionView | None = Field(description="Null if it is not known.")


class ModelChange(Output):
    """A model that is being loaded, or the last one that was requested."""

    model: str = Field(description="Name in the request; empty: the model that the server starts with.")
    state: ChangeStage
    message: str = Field(validation_alias="sentence")
    progress: float | None = Field(description="0 to 1; null: unknown.")


class ModelView(Output):
    state: Literal["ready", "loading", "missing"]
    message: str = Field(description="What the state means, and what to do.")
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
    template_note: str = Field(default="", description="Why the model's own template is not used.")
    kv_mode: str = ""
    file: str = ""
    size_bytes: int = 0
    parameters: int = Field(default=0, description="Number of parameters; 0: unknown.")
    remote_host: str = Field(
        default="", description="The machine that text is sent to; empty: it stays on this one."
    )
    attention_source: str = Field(
        default="", description="Where the attention comes from: the model itself, or a shadow model."
    )
    note: str = Field(default="", description="A note about this model.")
    thinks: bool = Field(default=False, description="Whether it thinks before it answers.")
    efforts: list[str] = Field(default=[], description="Levels of thinking in its template.")
    native_tools: bool = Field(default=False, description="Whether its template declares tools.")
    change: ModelChange | None = Field(
        default=None, description="The model that is being loaded, or the last one that was requested."
    )

    @classmethod
    def of(cls, now: ModelState, note: str) -> ModelView:
        """`note`: a note about the model for the user."""
        info, change = now.info, now.change
        facts: dict[str, Any] = {}
        if now.state == "ready":
            facts = {name: getattr(info, name) for name in cls.model_fields if hasattr(info, name)}
            facts["kv_mode"] = "splice" if info.abilities.cuts else "exact"
            facts["remote_host"] = info.elsewhere
        waiting = change.sentence if change else "The model is being loaded."
        return cls(
            state=now.state,
            message=f"{info.name} is ready." if now.state == "ready" else waiting,
            progress=change.progress if change and now.state == "loading" else None,
            attention_source=now.light if now.state == "ready" else "",
            note=note,
            thinks=now.thinks,
            efforts=list(now.efforts),
            native_tools=now.native_tools,
            change=None if change is None else ModelChange.model_validate(change),
            **facts,
        )


class AvailableModel(Output):
    name: str = Field(description="The name to request it with.")
    title: str
    kind: Literal["chat", "text", "embedder"] | None = Field(description="Null: unknown.")
    size: int = Field(description="Bytes of its files.")
    needs: int | None = Field(description="Bytes of memory, with the KV cache of one full window.")
    fits: bool | None = Field(description="Whether this machine has memory for it.")
    where: str = Field(description="`pulled`, `to pull`, or the program whose folder it is in.")
    source: str
    path: str | None
    license: str
    problem: str = Field(description="Why it cannot be used, if so.")
    note: str
    in_use: bool = False


class AvailableModels(Output):
    memory: int = Field(description="Bytes that this machine has.")
    default: str = Field(description="The model that is used when none is named.")
    models: list[AvailableModel]
    recommended: list[str] = Field(description="Models of the hub that should fit.")
    embedders: dict[str, str] = Field(description="Embedders of the hub, with a note about each.")
    any_path: bool = Field(description="Whether any file path may be requested.")


MAX_PASSED_OVER = 20  # chunks that do not fit


class RecallPreviewChunk(Output):
    key: str
    part: Literal["hit", "question", "answer", "anchor"]
    hit: str
    similarity: float
    cost: int
    words: list[str]
    parts: dict[str, float] = Field(description="Of the similarity.")
    text: str


class RecallPreview(Output):
    tokens: int = Field(description="Length of the text in tokens.")
    room: int
    cost: int
    resurrect: list[RecallPreviewChunk] = Field(description="These would be resurrected.")
    skipped: int = Field(description="Number of hits that do not fit.")
    no_room: list[RecallPreviewChunk] = Field(
        description="Hits that match but do not fit into the budget; the best ones."
    )
    below_threshold: list[RecallPreviewChunk] = Field(
        description="Hits below the threshold for resurrection; best first."
    )
    tokens_to_prune: int = Field(description="Tokens that would be pruned first, if room is made.")

    @classmethod
    def of(cls, preview: Preview) -> RecallPreview:
        plan, hits = preview.plan, preview.hits

        def views_of(planned: Iterable[PlannedResurrection]) -> list[RecallPreviewChunk]:
            return [
                RecallPreviewChunk(
                    key=str(chunk.key),
                    part=chunk.reason.value,
                    hit=str(chunk.hit),
                    similarity=chunk.similarity,
                    cost=chunk.cost,
                    words=list(hits[chunk.hit].words) if chunk.hit in hits else [],
                    parts=dict(hits[chunk.hit].parts) if chunk.hit in hits else {},
                    text=preview.texts.get(chunk.key, ""),
                )
                for chunk in planned
            ]

        return cls(
            tokens=preview.tokens,
            room=plan.room,
            cost=plan.cost,
            resurrect=views_of(plan.chunks),
            skipped=len(plan.passed_over),
            no_room=views_of(plan.passed_over[:MAX_PASSED_OVER]),
            below_threshold=views_of(preview.near),
            tokens_to_prune=preview.tokens_to_prune,
        )


# Kinds of stored events, as the API calls them.
EVENT_KIND = BeforeValidator(lambda kind: PUBLIC_EVENT_KINDS.get(kind, kind))


class TimelineEvent(Output):
    step: int = Field(description="Index in `turns` of the turn after which it happened.")
    chunk: int = Field(description="Index of the chunk in `keys`.")
    event: Annotated[Literal["pruned", "resurrected", "pinned", "unpinned"], EVENT_KIND]
    reason: str = Field(validation_alias="why", description="Who or what caused it, if known.")


class WindowTimeline(Output):
    """The turns of a window without text, and what happened to their chunks."""

    turns: list[Number] = Field(description="Turn ids of the current branch, in order.")
    keys: list[KeyText] = Field(
        description="Keys of its chunks, and of chunks of other windows that were resurrected here."
    )
    tokens: list[int] = Field(description="Number of tokens of each chunk in `keys`.")
    foreign: list[int] = Field(description="Indexes of chunks that were said in another window.")
    live: list[int] = Field(description="Indexes of chunks that are live now.")
    pinned: list[int]
    events: list[TimelineEvent] = Field(description="In the order in which they happened.")


SettingValue = bool | int | float | str | None


def _window_name(window: Any, info: ValidationInfo) -> str:
    names: Mapping[str | None, str] = info.context or {}
    return names.get(window, "")


def _nested(*path: str) -> Any:
    """A field that is deeper in the value it is read from."""
    return Field(validation_alias=AliasPath(*path))


Floats = Annotated[list[float], BeforeValidator(lambda row: row.tolist())]
Size = Annotated[int, BeforeValidator(len)]
Words = Annotated[list[str], BeforeValidator(list)]
WindowName = Annotated[str, BeforeValidator(_window_name)]


# Settings


class SettingDescription(Output):
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


class SettingsView(Output):
    described: list[SettingDescription]
    values: dict[str, SettingValue]
    auto: dict[str, int] = Field(
        description="The values of empty settings for the model of all windows; empty while there is none."
    )


# Status


class EmbedderView(Output):
    model_config = ConfigDict(extra="ignore")

    state: Literal["ready", "loading", "off"] = "loading"
    model: str = ""
    file: str = ""
    message: str = Field(default="", validation_alias="sentence")
    pending: int = Field(
        default=0, validation_alias="wanted", description="Chunks that are not embedded yet."
    )


class MemoryView(Output):
    chunks: int = 0
    tokens: int = 0
    windows: int = 0
    deleted: int = Field(default=0, validation_alias="deleted_chunks")
    bytes: int = 0
    location: str = Field(default="", validation_alias="place", description="The folder or the database.")


class IdleReadingView(Output):
    state: Literal["off", "unavailable", "waiting", "reading", "on battery", "disk full", "done"] = "waiting"
    done: int = Field(default=0, description="Tokens of the memory whose KV cache entries are on disk.")
    total: int = Field(default=0, description="Tokens of the memory that can be resurrected.")


class Status(Output):
    version: str
    model: ModelView
    embedder: EmbedderView = EmbedderView()
    memory: MemoryView = MemoryView()
    idle_reading: IdleReadingView = IdleReadingView()
    generating: list[str] = Field(default_factory=list)


# Windows


class Window(Output):
    id: str = _nested("window", "id")
    name: str = _nested("window", "name")
    system_prompt: str = _nested("window", "system_prompt")
    user_name: str = _nested("window", "user_name")
    ai_name: str = _nested("window", "ai_name")
    inherits: list[str] = Field(
        validation_alias=AliasPath("window", "inherits"),
        description="Which of these texts are inherited from all windows.",
    )
    owner: str = Field(description="The person who shares it with you; empty: it is yours.")
    writable: bool = Field(description="Whether you may write there.")
    tags: list[str] = _nested("window", "tags")
    pinned: bool = _nested("window", "pinned")
    archived: bool = _nested("window", "archived")
    settings: dict[str, SettingValue] = Field(description="The window's own settings.")
    effective: Annotated[dict[str, SettingValue], BeforeValidator(Settings.as_mapping)] = Field(
        description="The effective settings."
    )
    created: datetime = _nested("window", "created")
    modified: datetime = Field(description="When it was last changed or written in.")
    last_text: str = Field(validation_alias="last_words")
    live_chunks: int
    live_tokens: int
    pruned_chunks: int
    generating: bool


class Windows(Output):
    windows: list[Window]


# Turns


class PrunedChunk(Output):
    key: KeyText
    tokens: int
    brightness: float
    reason: str = Field(validation_alias="why")


class PruneResult(Output):
    chunks: list[PrunedChunk]
    budget: int
    tokens_over_budget: int = Field(
        validation_alias="over", description="Tokens over the budget although nothing more can be pruned."
    )


# The context


class LiveChunk(Output):
    key: KeyText
    start: Number
    pinned: bool
    tokens: int
    text_pieces: list[str] = Field(
        description="One per token; a character that spans tokens is in the last of them."
    )
    brightness: Floats
    rank: int | None = Field(
        description="Rank among the live chunks: 0 the dimmest, 100 the brightest. Not in events, except the last one of a turn."
    )
    peak: float
    mean: float
    resurrected: dict[str, Any] | None = Field(
        validation_alias="resurrect_reason", description="Why it was resurrected, if it was pruned before."
    )
    tool: bool = Field(description="Whether it is the output of a tool.")
    thought: bool = Field(description="Whether it is a thought of the model.")
    pruned_before: PrunedGap | None = Field(
        validation_alias="gap", description="What is pruned right before it."
    )
    pruned_thoughts: int = Field(
        validation_alias="thoughts",
        description="Number of chunks in `pruned_before` that are thoughts of this answer.",
    )


class LiveTurn(TurnBase):
    chunks: list[LiveChunk]


class BrightnessRange(Output):
    low: float
    high: float
    mean: float


class ReplyInProgress(Output):
    turn_id: Number
    position: Number = Field(description="Position of the reply's first token.")
    text_pieces: list[str]
    brightness: Floats
    tool: list[bool]
    thought: list[bool]


class ContextStats(Output):
    pruned_chunks: int
    pruned_tokens: int
    resurrected_last_turn: int
    kv_reuse: float | None = Field(description="Share of the last prompt that was not computed again.")
    tokens_per_second: float | None
    only_thought: bool = Field(description="The last reply ended during a thought, without an answer.")


class WindowContext(Output):
    """Exactly what the model reads, in order of time."""

    window: str
    version: int
    last_event: str = Field(description="The context includes all events up to this one.")
    size: int
    system_tokens: int
    system_text: str = Field(description="The system prompt with what Halo Weave adds to it.")
    budget: TokenBudget
    brightness: BrightnessRange
    turns: list[LiveTurn]
    pruned_after: PrunedGap | None = Field(description="What is pruned after the last live chunk.")
    generating: ReplyInProgress | None
    reply_not_stored: str | None = Field(description="Why the last reply is not stored yet; empty: it is.")
    stats: ContextStats

    @classmethod
    def of(cls, context: ContextView) -> WindowContext:
        brightness, last = context.brightness, context.last_turn
        cached = last.get("reused", 0) + last.get("restored", 0)
        prompt_tokens = cached + last.get("computed", 0)
        return cls(
            window=context.window,
            version=int(context.last_event.rpartition("-")[2]),
            last_event=context.last_event,
            size=context.budget.used,
            system_tokens=context.budget.system,
            system_text=context.system_text,
            budget=context.budget,
            brightness=BrightnessRange(low=brightness.min(), high=brightness.max(), mean=brightness.mean()),
            turns=[LiveTurn.model_validate(turn) for turn in context.turns],
            pruned_after=context.gaps.tail,
            generating=None if context.reply is None else ReplyInProgress.model_validate(context.reply),
            reply_not_stored=context.unstored or None,
            stats=ContextStats(
                pruned_chunks=context.gaps.whole.chunks,
                pruned_tokens=context.gaps.whole.tokens,
                resurrected_last_turn=last.get("resurrected", 0),
                kv_reuse=round(cached / prompt_tokens, 4) if prompt_tokens else None,
                tokens_per_second=last.get("tokens_per_second"),
                only_thought=bool(last.get("only_thought")),
            ),
        )


class GraveyardItem(Output):
    key: KeyText
    role: Role = _nested("key", "role")
    turn_id: Number = _nested("key", "turn_id")
    start: Number = _nested("record", "chunk", "start")
    tokens: Size = _nested("record", "chunk")
    peak: float
    pruned: datetime = Field(validation_alias="pruned_at", description="When it was pruned.")
    reason: dict[str, Any]
    said: datetime = _nested("record", "said")
    window: str = _nested("record", "window")
    window_name: WindowName = _nested("record", "window")
    speaker: str = _nested("record", "speaker")
    text: str = _nested("record", "chunk", "text")


class Graveyard(Output):
    total: int
    items: list[GraveyardItem]


class PrunedBetween(Graveyard):
    tokens: int = Field(description="Number of tokens of all of them.")


# Chunks


class ChunkActionResult(Output):
    key: KeyText = Field(description="The chunk; after a merge, the chunk that contains it.")
    live: bool
    pinned: bool
    resurrected: list[str] = Field(default=[], description="All resurrected chunks, the requested one first.")
    pruned: list[str] = Field(default=[], description="What was pruned to make room.")


class ChunkHistoryEvent(Output):
    event: Annotated[str, EVENT_KIND]
    happened: datetime
    window: str | None
    window_name: WindowName = Field(validation_alias="window")
    detail: dict[str, Any]


class UsedByReply(Output):
    turn_id: Number = Field(description="The reply.")
    said: datetime
    window: str
    window_name: WindowName = Field(validation_alias="window")
    share: float = Field(description="Share of the reply.")


class ChunkExplanation(Output):
    key: KeyText
    text: str
    tokens: int
    live: bool
    pinned: bool
    rank: int | None = Field(description="Rank among the live chunks: 0 the dimmest, 100 the brightest.")
    peak: float | None
    mean: float | None
    parts: dict[str, float] = Field(description="The parts of its brightness, if the strategy can name them.")
    said: datetime
    window: str
    window_name: WindowName = Field(validation_alias="window")
    speaker: str
    history: list[ChunkHistoryEvent] = Field(description="The newest first.")
    used_by: list[UsedByReply] = Field(
        validation_alias="uses", description="The replies that used it, newest first."
    )
    attribution: AttributionView | None = Field(
        validation_alias="use", description="The attribution of the reply that it belongs to."
    )
    resurrections: int = Field(
        validation_alias="times_resurrected", description="How often it was resurrected, in all windows."
    )
    tags: list[str] = Field(description="Your own tags; other people do not see them.")


class ChunkTagsView(Output):
    key: KeyText
    tags: list[str]


class TagCount(Output):
    tag: str
    windows: int
    chunks: int


class TagCounts(Output):
    tags: list[TagCount]


class Deletion(Output):
    keys: list[KeyText]
    turns: int
    chunks: int
    tokens: int
    text: str | None = Field(
        description="The user's message, if the newest exchange is deleted: the page puts it back into the input box."
    )


class RestoredChunks(Output):
    keys: list[str]


# Search


class SearchHit(Output):
    key: KeyText = _nested("record", "key")
    text: str = _nested("record", "chunk", "text")
    role: Role = _nested("record", "key", "role")
    speaker: str = _nested("record", "speaker")
    said: datetime = _nested("record", "said")
    window: str = _nested("record", "window")
    window_name: WindowName = _nested("record", "window")
    similarity: float = _nested("hit", "similarity")
    parts: dict[str, float] = _nested("hit", "parts")
    words: Words = _nested("hit", "words")
    part: Literal["hit", "question", "answer", "anchor"]
    live: bool
    tokens: Size = _nested("record", "chunk")
    tags: list[str] = Field(description="Your own tags of the chunk.")


class TokenView(Output):
    position: Number
    id: int
    text: str
    key: KeyText


class Tokens(Output):
    tokens: list[TokenView]


class SearchResults(Output):
    hits: list[SearchHit]
    cost: int | None = Field(
        description="Tokens that would be resurrected, frames included, if a budget was given."
    )


# Structured memory and notes


class MemoryTreeNode(Output):
    heading: str
    path: str
    version: int | None = Field(description="Null: a heading without an entry of its own.")
    modified: datetime | None
    children: list[MemoryTreeNode]
    entries: int = Field(description="Number of entries here and below.")
    content: Any = Field(description="The content of the entry, if contents were requested.")


class SnapshotChunk(Output):
    key: Annotated[str | None, BeforeValidator(lambda key: key and str(key))] = Field(
        description="Null if the entry was imported without this chunk."
    )
    text: str
    tokens: int
    similarity: float
    said: str | None


class MemoryEntry(Output):
    path: str
    content: Any
    snapshot: list[SnapshotChunk]
    created: datetime
    modified: datetime
    accessed: datetime
    version: int
    ended: datetime | None


class MemoryEntryVersions(Output):
    versions: list[MemoryEntry]


class MemoryMatch(Output):
    entry: MemoryEntry
    score: float
    similarity: float
    recency: float
    relevant: list[SnapshotChunk] = Field(
        description="Chunks of the snapshot that match the query, best first."
    )


class MemoryMatches(Output):
    matches: list[MemoryMatch]


class DeletedEntries(Output):
    deleted: int


class InjectionResult(Output):
    resurrected: list[str]
    cost: int
    pruned: list[str] = Field(description="What was pruned to make room.")


class Notes(Output):
    content: dict[str, Any]
    version: Id = Field(description="Send it with the next change.")


# Maintenance


class MemoryStats(Output):
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
    generations: list[VectorGeneration]
    schema_version: int = Field(validation_alias="schema")
    bytes: int
    clients: int = Field(default=0, description="Number of clients that follow events now.")
