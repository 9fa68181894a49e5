"""What happens while a turn is made, in the order it happens. Frozen values; the skins put them into words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from halo_weave.core.pruning import SleepReason
from halo_weave.core.resurrection import WakeReason
from halo_weave.core.tokens import Brightness, Chunk, ChunkKey
from halo_weave.ports import Planned as Planned
from halo_weave.ports import Reason


@dataclass(frozen=True, slots=True)
class Searching:
    """Memory is searched with the user's words."""

    room: int  # tokens that may wake up


@dataclass(frozen=True, slots=True)
class WokenChunk:
    """A chunk that came back to its place, and why."""

    chunk: Chunk
    part: WakeReason  # itself a hit, or the pair of one
    hit: ChunkKey
    similarity: float
    cost: int
    words: tuple[str, ...]  # of the user's that it matches
    parts: Mapping[str, float]  # of the similarity
    window: str  # where it was said
    said: datetime
    slept: bool  # in this window; else it comes from another one


@dataclass(frozen=True, slots=True)
class Woken:
    chunks: tuple[WokenChunk, ...]
    cost: int
    room: int
    passed_over: int  # hits that did not fit


@dataclass(frozen=True, slots=True)
class SleptChunk:
    key: ChunkKey
    tokens: int
    brightness: float
    why: SleepReason


@dataclass(frozen=True, slots=True)
class Asleep:
    """Chunks fell asleep: before the turn since its words would not fit, or after it to keep the budget."""

    chunks: tuple[SleptChunk, ...]
    budget: int
    over: int  # tokens above the budget that nothing prunable is left for
    before_turn: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """The user's turn is stored; now it may be shown."""

    turn_id: int
    chunks: tuple[Chunk, ...]
    said: datetime
    reply_turn: int
    frames: int  # tokens of all frames that the model reads now


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt is in the model's cache."""

    reused: int
    restored: int
    computed: int
    seconds: float
    rebuilt: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """The reply's next token."""

    id: int
    position: int
    piece: bytes
    tool: bool = False  # part of a tool's result, not of the model's words


@dataclass(frozen=True, slots=True, eq=False)
class Brightened:
    """Brightness of all live tokens in position order, the reply's so far included; a few times a second."""

    brightness: Brightness


@dataclass(frozen=True, slots=True)
class ToolCalled:
    command: str


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    text: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Spoken:
    """The reply is stored, cut into chunks."""

    turn_id: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The turn is over: window, store and what was shown are the same."""

    reason: Reason
    stats: Mapping[str, Any] = field(default_factory=dict)


Event = (
    Searching
    | Woken
    | Asleep
    | Heard
    | Planned
    | Reading
    | Token
    | Brightened
    | ToolCalled
    | ToolAnswered
    | Spoken
    | Done
)
