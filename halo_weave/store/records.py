"""The values that the store takes and returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.errors import StoreError

Json = Any  # what json.loads gives
Numbers = npt.NDArray[np.int64]  # of chunks, within one store
Vectors = npt.NDArray[np.float32]  # (n, dimension)
Traces = npt.NDArray[np.float32]  # (traces, tokens): what a strategy keeps of tokens beside their brightness
Similarities = npt.NDArray[np.float32]  # (n,)
Scores = npt.NDArray[np.float64]  # (n,)

VERIFY_FIRST = "Run: halo-weave verify. If that does not help, put a backup in its place."
WINDOW_ID = "^[0-9a-zA-Z_-]{1,64}$"  # part of addresses
NAME_LENGTH, PROMPT_LENGTH = 200, 100_000  # longest name and system prompt of a window, in characters
TAG_LENGTH, MAX_TAGS = 40, 32  # most tags of a window
DOCUMENT = "document"  # tag of the chunks of a file that was attached; its name is their speaker
DEFAULT_PROMPT = "You are a helpful assistant with a long memory. Answer plainly and briefly."
# Texts of windows that have none of their own; what differs from these is stored under PERSONA_KEY.
PERSONA: Mapping[str, str] = {"system_prompt": DEFAULT_PROMPT, "user_name": "User", "ai_name": "AI"}
PERSONA_KEY = "persona"
# The owner of the server has an empty id. Everything belongs to the owner until people are added.
OWNER, OWNER_NAME = "", "owner"


def stored_persona(stored: Json) -> dict[str, str]:
    """The persona of all windows: the default, changed by what is stored."""
    known = stored if isinstance(stored, Mapping) else {}
    return {
        about: said if isinstance(said := known.get(about), str) else text for about, text in PERSONA.items()
    }


# Turns and chunks


@dataclass(frozen=True, slots=True)
class Reservation:
    """Ids for one exchange, never given again."""

    user_turn: int
    assistant_turn: int
    start: int
    stop: int  # the first position after the range


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as the store has it, with where and when it was said."""

    number: int  # its number in this store, for search and vectors
    chunk: Chunk
    window: str  # where it was said
    speaker: str
    said: datetime
    tokenizer: str
    tags: tuple[str, ...] = ()
    deleted: datetime | None = None
    undeleted: datetime | None = None
    merged_into: ChunkKey | None = None
    aside: bool = False  # on no window's current branch

    @property
    def key(self) -> ChunkKey:
        return self.chunk.key

    @property
    def gone(self) -> bool:
        """Whether it is deleted, merged into another chunk, or on another branch."""
        return self.deleted is not None or self.merged_into is not None or self.aside


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn without text: who said it when, and which turn it follows."""

    id: int
    window: str  # where it was said
    role: Role
    answers: int | None
    parent: int | None  # None: it follows none
    speaker: str
    said: datetime
    aside: bool  # on no window's current branch


@dataclass(frozen=True, slots=True)
class Draft:
    """The stored part of a reply that was never finished."""

    window: str
    turn_id: int
    start: int
    answers: int | None
    tokens: Tokens
    tokenizer: str
    begun: datetime
    saved: datetime


@dataclass(frozen=True, slots=True)
class ChunkUse:
    """A reply that used a chunk."""

    turn_id: int
    window: str
    said: datetime
    share: float  # of the reply


@dataclass(frozen=True, slots=True)
class MostUsed:
    """A chunk, its total share in all replies of a window, and these replies."""

    key: ChunkKey
    share: float
    turns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplySource:
    """A chunk that a reply used, or that was resurrected for it."""

    record: StoredChunk
    share: float | None  # share of the reply; None: unknown
    resurrect_reason: Mapping[str, Json] | None  # why it was resurrected; None: it was live already


@dataclass(frozen=True, slots=True)
class TurnPage:
    """Some turns of a window in order, and their place among all."""

    total: int  # turns
    offset: int  # of the first
    chunks: tuple[StoredChunk, ...]


# Windows


@dataclass(frozen=True, slots=True)
class WindowRecord:
    id: str
    name: str
    system_prompt: str
    user_name: str
    ai_name: str
    settings: Mapping[str, Json]
    created: datetime
    modified: datetime
    deleted: datetime | None = None
    head: int | None = None  # the last turn of its current branch
    tags: tuple[str, ...] = ()
    pinned: bool = False  # first in lists
    archived: bool = False  # hidden in lists; what was said stays in memory
    inherits: tuple[str, ...] = ()  # which texts it inherits from PERSONA
    owner: str = OWNER  # id of the person it belongs to


@dataclass(frozen=True, slots=True)
class RecallableChunk:
    """Where a chunk is that can be resurrected, without its text."""

    key: ChunkKey
    start: int
    span: int  # positions
    thought: bool
    resurrections: int  # how often it was resurrected, in all windows


@dataclass(frozen=True, slots=True, eq=False)
class StoredLiveChunk(LiveChunk):
    """A chunk in a window's working set. Its tokens are the window's own, if it reads with another tokenizer."""

    number: int = 0
    tokenizer: str = ""  # of the tokens
    window: str = ""  # where it was said
    speaker: str = ""
    said: datetime = datetime.min
    since: datetime = datetime.min  # never pruned since it was said
    reason_json: str | None = None
    tags: tuple[str, ...] = ()

    @property
    def key(self) -> ChunkKey:
        return self.chunk.key

    @property
    def resurrect_reason(self) -> Mapping[str, Json] | None:
        """Why it was resurrected; None: it is live since it was said."""
        return None if self.reason_json is None else json.loads(self.reason_json)


@dataclass(frozen=True, slots=True)
class GraveyardChunk:
    """A chunk in a window's graveyard."""

    record: StoredChunk  # with the window's own tokens, if it reads with another tokenizer
    brightness: Brightness  # at deletion
    peak: float
    pruned_at: datetime
    reason: Mapping[str, Json]
    traces: Traces | None = None

    @property
    def key(self) -> ChunkKey:
        return self.record.key


@dataclass(frozen=True, slots=True, eq=False)
class ResurrectableChunk:
    """A chunk that is not live in a window, with the brightness it had there."""

    record: StoredChunk  # with the window's own tokens, if it reads with another tokenizer
    brightness: Brightness | None  # None: it was never live in this window
    traces: Traces | None = None
    retokenized: bool = False  # retokenized for this window, and not stored yet

    @property
    def key(self) -> ChunkKey:
        return self.record.key

    @property
    def chunk(self) -> Chunk:
        return self.record.chunk


@dataclass(frozen=True, slots=True)
class GraveyardPage:
    """Part of a window's graveyard, and its size."""

    items: tuple[GraveyardChunk, ...]
    total: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class ChunkMove:
    """A chunk that is pruned from a window or resurrected in it, with its brightness."""

    key: ChunkKey
    brightness: Brightness  # (tokens of the chunk in this window,)
    reason: Mapping[str, Json] = field(default_factory=dict)
    traces: Traces | None = None
    # Only for a chunk that is resurrected:
    pinned: bool = False
    tokens: Tokens | None = None  # the window's own tokens, if it reads with another tokenizer
    tokenizer: str | None = None  # of `tokens`


ChunkEventKind = Literal[
    "said",
    "slept",
    "woke",
    "pinned",
    "unpinned",
    "merged",
    "cleaned",
    "deleted",
    "undeleted",
    "reread",
    "aside",
    "returned",
]
# Names of stored kinds in APIs and in the terminal, where they differ.
PUBLIC_EVENT_KINDS = {"slept": "pruned", "woke": "resurrected", "undeleted": "restored"}


@dataclass(frozen=True, slots=True)
class ChunkEvent:
    key: ChunkKey
    window: str | None  # None: in all of memory
    happened: datetime
    event: ChunkEventKind
    detail: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class TimelineChunk:
    """A chunk in a timeline, without text."""

    key: ChunkKey
    tokens: int
    live: bool
    pinned: bool


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """What happened to a chunk in a window, and by whom or why, if known."""

    key: ChunkKey
    happened: datetime
    event: ChunkEventKind
    why: str


@dataclass(frozen=True, slots=True)
class WindowTimeline:
    """A window's current branch without text, with chunks that were resurrected from other windows, and all events."""

    turns: tuple[tuple[int, datetime], ...]  # in order: id, and when it was said
    chunks: tuple[TimelineChunk, ...]  # in time order
    events: tuple[TimelineEvent, ...]  # pruned, resurrected, pinned, unpinned; in order


# People


@dataclass(frozen=True, slots=True)
class Person:
    id: str
    name: str
    created: datetime
    revoked: datetime | None = None  # when the key was revoked


@dataclass(frozen=True, slots=True)
class Share:
    """A share by ids: its owner lets someone read a window, or write in it."""

    owner: str
    window: str  # empty: all windows of the owner, also future ones
    person: str
    writes: bool
    made: datetime


@dataclass(frozen=True, slots=True)
class Access:
    """The ids of the windows that a person may read and write; `own` are those that belong to them."""

    person: str
    own: frozenset[str]
    readable: frozenset[str]
    writable: frozenset[str]

    def with_own(self, window_id: str) -> Access:
        """This access, and a window that now belongs to the person."""
        new = frozenset({window_id})
        return Access(self.person, self.own | new, self.readable | new, self.writable | new)


# Search


class ChunkPlace(NamedTuple):
    """Where a chunk is, without text: small enough to hold those of all chunks in memory."""

    number: int
    turn_id: int
    chunk_id: int
    role: str
    window: str
    start: int
    said: int  # microseconds since 1970
    speaker: str
    informative: float = 1.0  # share of its words that state facts, see `core.informativeness`


@dataclass(frozen=True, slots=True)
class VectorGeneration:
    """All vectors made by one embedder."""

    id: int
    model: str
    dimension: int
    state: Literal["building", "current", "retired"]
    created: datetime
    completed: datetime | None
    vectors: int
    wanted: int  # chunks that lack a vector, or whose vector is out of date


class Serving(NamedTuple):
    """The current generation of vectors."""

    id: int
    model: str
    dimension: int


class VectorSearch(Protocol):
    """A store's own index over the vectors of one generation."""

    def nearest(
        self, vector: Vectors, *, limit: int, window: str | None = None, among: Numbers | None = None
    ) -> tuple[Numbers, Similarities]:
        """Numbers of the chunks nearest to a vector (dimension,), each once, nearest first, and their cosine
        similarity.

        Deleted and merged chunks are left out. `window`: only chunks of this window. `among`: only these chunks.
        """


@dataclass(frozen=True, slots=True, eq=False)
class ChunksToEmbed:
    """Chunks to embed. `seen` is the sequence number of this read; give it back with the vectors."""

    numbers: Numbers
    seen: int


@dataclass(frozen=True, slots=True, eq=False)
class IndexChanges:
    """Chunks whose text, vector or existence changed, in their current state."""

    sequence: int
    present: Numbers
    gone: Numbers


# Structured memory and notes


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEntry:
    """An entry of the structured memory, with the chunks that explain it."""

    path: str
    content: Json
    snapshot: Sequence[Mapping[str, Json]]
    model: str  # of the vectors
    vectors: Vectors  # (len(snapshot), dimension), or empty
    created: datetime
    modified: datetime
    accessed: datetime
    version: int
    ended: datetime | None = None  # when an older version was replaced or deleted


@dataclass(frozen=True, slots=True)
class Note:
    name: str
    content: Json
    created: datetime
    modified: datetime


# Maintenance


Progress = Callable[[int, int], None]  # done, total; 0: unknown


def silent(done: int, total: int) -> None:
    """A progress callback that does nothing."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync."""

    sent: int  # turns and changes written for others
    turns: int  # turns that were received
    changes: int  # changes that were received: windows, turns, notes and so on
    waiting: int  # files that are incomplete, or wait for others
    refused: tuple[str, ...] = ()  # files that were refused, and why


@dataclass(frozen=True, slots=True)
class WindowStats:
    window: WindowRecord
    live_chunks: int
    live_tokens: int
    pruned_chunks: int
    said_tokens: int
    last_text: str = ""  # time of its last chunk
    last_said: datetime | None = None


@dataclass(frozen=True, slots=True)
class MemoryStats:
    id: str
    created: datetime
    next_turn: int
    next_position: int
    turns: int
    chunks: int
    tokens: int
    deleted_chunks: int
    aside_chunks: int
    windows: int
    drafts: int
    entries: int
    notes: int
    generations: tuple[VectorGeneration, ...]
    schema: int
    bytes: int  # of the file and its write-ahead log


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """A fault that `verify` has found."""

    check: str
    sentence: str
    repaired: bool = False

    @classmethod
    def of(cls, error: StoreError, check: str = "file") -> VerifyFinding:
        """A finding about rows that cannot be read."""
        return cls(check, str(error).replace(VERIFY_FIRST, "Put a backup in its place."))


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Which part of a memory is exported. A question and its answer are never separated."""

    window: str | None = None
    first_turn: int | None = None
    last_turn: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    reader: str | None = (
        None  # limits the export to what this person may read, and to their notes and structured memory; None: no limit
    )

    @property
    def everything(self) -> bool:
        return self == ExportFilter(reader=self.reader)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result of an import."""

    turns: int
    chunks: int
    tokens: int
    windows: int
    entries: int
    notes: int
    known_turns: int  # were here already
    kept_ids: bool  # False: turns and positions got new ids
    ids: str = ""  # a sentence that says why turns or positions have other ids than in the file
    program: str = ""  # that wrote the file
    left: Mapping[str, int] = field(default_factory=dict)  # number of skipped elements, by reason
