"""The events of a window."""

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
    """The search for memories that match the message has begun."""

    room: int  # tokens that may be resurrected


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ResurrectedChunk(ChunkView):
    """A chunk that was resurrected at its original position, and why."""

    part: ResurrectReason  # whether it is a hit itself, or the pair of a hit
    hit: ChunkKey
    similarity: float
    cost: int
    words: tuple[str, ...]  # words of the message that it matches
    parts: Mapping[str, float]  # parts of the similarity
    window: str  # where it was said
    window_name: str
    speaker: str
    said: datetime
    pruned_here: bool  # whether it was pruned in this window; otherwise it comes from another one
    document: bool = False  # a part of a file that was attached; its name is the speaker


@dataclass(frozen=True, slots=True)
class ChunksResurrected:
    """Chunks were resurrected."""

    chunks: tuple[ResurrectedChunk, ...]
    cost: int
    room: int
    passed_over: int  # hits that did not fit into the budget


@dataclass(frozen=True, slots=True)
class PrunedChunk:
    """A chunk that was pruned, and why."""

    key: ChunkKey
    tokens: int
    brightness: float
    why: PruneReason


@dataclass(frozen=True, slots=True)
class ChunksPruned:
    """Chunks were pruned: before the turn because the message would not fit, or after it to keep the budget."""

    chunks: tuple[PrunedChunk, ...]
    budget: int
    over: int  # tokens over the budget although nothing more can be pruned
    before_turn: bool


@dataclass(frozen=True, slots=True)
class MessageStored:
    """The user's turn is stored; now it may be shown."""

    turn_id: int
    reply_turn: int
    said: datetime
    speaker: str
    frames: int  # tokens of all frames in the prompt
    chunks: tuple[ChunkView, ...]


@dataclass(frozen=True, slots=True)
class RegenerationStarted:
    """A stored message of the user is answered, perhaps again; `reply_turn` will be the id of the reply."""

    turn_id: int
    reply_turn: int
    opened: int = 0  # tokens that the reply begins with, from an earlier version


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
    text: str  # whole characters only: a character that spans tokens is in the last of them
    tool: bool = False  # whether it is part of a tool's output
    thought: bool = False  # whether it is part of a thought
    surprisal: float = nan  # nats, under the model's own distribution; NaN: unknown
    likely: Sequence[tuple[bytes, float]] = ()  # the likeliest tokens at this place, if requested


@dataclass(frozen=True, slots=True, eq=False)
class BrightnessChanged:
    """Brightness of all live tokens in position order, the reply's so far included; a few times a second."""

    brightness: Brightness
    attention: Brightness = field(  # attribution of the reply so far, by token before its exchange
        default_factory=lambda: np.zeros(0, np.float32)
    )


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """The reply calls a tool."""

    command: str


@dataclass(frozen=True, slots=True)
class ClientToolCalled:
    """The reply calls a tool of the API client."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolAnswered:
    """The tool has returned its output, which becomes part of the reply."""

    text: str
    ok: bool


@dataclass(frozen=True, slots=True)
class MemoryChanged:
    """The user asked to remember or to forget something, and it was saved or deleted."""

    change: Literal["saved", "forgotten"]
    path: str
    content: Any  # JSON: what is saved there, or was
    moved_from: str = ""  # the path that the entry had before it was filed under a heading


@dataclass(frozen=True, slots=True)
class ReplyStored:
    """The reply is stored and cut into chunks."""

    turn_id: int
    said: datetime
    speaker: str
    chunks: tuple[ChunkView, ...]
    use: Attribution | None  # None: unknown, because the model is not calibrated yet
    remembered: tuple[ReplySourceView, ...] | None
    unfinished: bool = False  # it stopped at max_new_tokens or at the end of the model's context


@dataclass(frozen=True, slots=True)
class ReplyNotStored:
    """The reply cannot be stored for now, and why; an empty message means that it is stored now."""

    sentence: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn has ended. Page, working set and store agree again."""

    reason: StopReason
    budget: TokenBudget
    stats: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(
        default_factory=dict
    )  # how bright each live chunk is now, 0 to 100, by key


@dataclass(frozen=True, slots=True)
class TurnFailed:
    """The turn has failed."""

    sentence: str
    elsewhere: bool = False  # whether the server that runs the model failed


@dataclass(frozen=True, slots=True)
class ModelChange:
    """Progress of loading another model, published in every window; each event replaces the one before of its state."""

    model: str  # the model that is being loaded
    state: ChangeStage
    sentence: str
    progress: float | None = None  # 0 to 1; None: unknown


@dataclass(frozen=True, slots=True)
class WindowChanged:
    """The window was changed by something other than a turn, or turns left it: clients load its context again."""


@dataclass(frozen=True, slots=True)
class WindowDeleted:
    """The window was deleted; its event stream ends."""


@dataclass(frozen=True, slots=True)
class EventsLost:
    """The events after the requested one are no longer kept: clients load the context again."""


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
