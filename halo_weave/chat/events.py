"""What happens in a window, as events in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import nan
from typing import Any, Literal

import numpy as np

from halo_weave.chat.views import ChunkView, ReplySourceView, TokenBudget
from halo_weave.core.attribution import Attribution
from halo_weave.core.pruning import PruneReason
from halo_weave.core.resurrection import ResurrectReason
from halo_weave.core.tokens import Brightness, ChunkKey
from halo_weave.engines.base import PrefillPlanned, StopReason

ChangeStage = Literal["loading", "done", "failed", "stopped", "calibrating", "calibrated"]
INTERNAL_ERROR_MESSAGE = (
    "Something went wrong inside Halo Weave; its log has the details. What was stored is safe."
)


@dataclass(frozen=True, slots=True)
class SearchStarted:
    """Memory is searched with the user's words."""

    room: int  # tokens that may wake up


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResurrectedChunk(ChunkView):
    """A chunk that came back to its place, and why."""

    part: ResurrectReason  # itself a hit, or the pair of one
    hit: ChunkKey
    similarity: float
    cost: int
    words: tuple[str, ...]  # of the user's that it matches
    parts: Mapping[str, float]  # of the similarity
    window: str  # where it was said
    window_name: str
    speaker: str
    said: datetime
    slept: bool  # in this window; else it comes from another one
    document: bool = False  # a part of a file that was attached; its name is the speaker


@dataclass(frozen=True, slots=True)
class ChunksResurrected:
    """Sleeping chunks came back to their places."""

    chunks: tuple[ResurrectedChunk, ...]
    cost: int
    room: int
    passed_over: int  # hits that did not fit


@dataclass(frozen=True, slots=True)
class PrunedChunk:
    """A chunk that fell asleep, and why."""

    key: ChunkKey
    tokens: int
    brightness: float
    why: PruneReason


@dataclass(frozen=True, slots=True)
class ChunksPruned:
    """Chunks fell asleep: before the turn since its words would not fit, or after it to keep the budget."""

    chunks: tuple[PrunedChunk, ...]
    budget: int
    over: int  # tokens above the budget that nothing prunable is left for
    before_turn: bool


@dataclass(frozen=True, slots=True)
class MessageStored:
    """The user's turn is stored; now it may be shown."""

    turn_id: int
    reply_turn: int
    said: datetime
    speaker: str
    frames: int  # tokens of all frames that the model reads now
    chunks: tuple[ChunkView, ...]


@dataclass(frozen=True, slots=True)
class RegenerationStarted:
    """A turn of the user's that is stored already is answered, perhaps again; `reply_turn` will be the answer."""

    turn_id: int
    reply_turn: int
    opened: int = 0  # tokens that the answer begins with: the model said them before


@dataclass(frozen=True, slots=True)
class PrefillFinished:
    """The prompt is in the model's cache."""

    reused: int
    restored: int
    computed: int
    seconds: float
    rebuilt: str = ""


@dataclass(frozen=True, slots=True)
class TokenGenerated:
    """The reply's next token."""

    id: int
    position: int
    piece: bytes
    text: str  # whole characters only: the token that ends one carries it
    tool: bool = False  # part of a tool's answer, not of the model's words
    thought: bool = False  # part of what the model thinks before it answers
    surprisal: float = nan  # nats, by the model's own distribution; not a number if it is not known
    likely: Sequence[tuple[bytes, float]] = ()  # the likeliest in its place, if they were asked for


@dataclass(frozen=True, slots=True, eq=False)
class BrightnessChanged:
    """Brightness of all live tokens in position order, the reply's so far included; a few times a second."""

    brightness: Brightness
    attention: Brightness = field(  # what the reply took so far from each token before its exchange
        default_factory=lambda: np.zeros(0, np.float32)
    )


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The reply calls a tool."""

    command: str


@dataclass(frozen=True, slots=True)
class ClientToolCalled:
    """The reply calls a tool of the program that asked for it."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    """The tool has answered; its answer becomes part of the reply."""

    text: str
    ok: bool


@dataclass(frozen=True, slots=True)
class MemoryChanged:
    """The user asked to remember or to forget something, and that was done."""

    change: Literal["saved", "forgotten"]
    path: str
    content: Any  # JSON: what is saved there, or was
    moved_from: str = ""  # the path that the entry had before it was filed under a heading


@dataclass(frozen=True, slots=True)
class ReplyStored:
    """The reply is stored, cut into chunks."""

    turn_id: int
    said: datetime
    speaker: str
    chunks: tuple[ChunkView, ...]
    use: Attribution | None  # None: it is not known, since the model is not calibrated yet
    remembered: tuple[ReplySourceView, ...] | None
    unfinished: bool = False  # it reached its longest length, or the model's context was full


@dataclass(frozen=True, slots=True)
class ReplyNotStored:
    """What was shown of the reply cannot be stored for now, and why; an empty sentence: it is stored again."""

    sentence: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over. What was shown is what the window holds and what is stored."""

    reason: StopReason
    budget: TokenBudget
    stats: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(
        default_factory=dict
    )  # how bright each live chunk is now, 0 to 100, by key


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn ended before it was done."""

    sentence: str
    elsewhere: bool = False  # whether the server that runs the model failed


@dataclass(frozen=True, slots=True)
class ModelChange:
    """How far a change of the model is, in every window; each replaces the one before of its state."""

    model: str  # the one that is wanted
    state: ChangeStage
    sentence: str
    progress: float | None = None  # 0 to 1, if it is known


@dataclass(frozen=True, slots=True)
class WindowChanged:
    """The window was changed by something else than a turn, or turns left it: load its context again."""


@dataclass(frozen=True, slots=True)
class WindowDeleted:
    """The window is gone, and its events end."""


@dataclass(frozen=True, slots=True)
class EventsLost:
    """The events after the one that was named are not kept any more: load the context again."""


TurnEvent = (
    SearchStarted
    | ChunksResurrected
    | ChunksPruned
    | MessageStored
    | RegenerationStarted
    | PrefillPlanned
    | PrefillFinished
    | TokenGenerated
    | BrightnessChanged
    | ToolCalled
    | ClientToolCalled
    | ToolAnswered
    | MemoryChanged
    | ReplyStored
    | WindowChanged
    | TurnEnded
)
WindowEvent = TurnEvent | ReplyNotStored | TurnFailed | ModelChange | WindowDeleted | EventsLost
