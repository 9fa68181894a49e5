"""The events of a window as they go over the wire, for the description of the API.

They are told as plain mappings, since one is made for every token; a test holds them to what is described here.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from halo_weave.core.pruning import SleepReason
from halo_weave.ports import Reason
from halo_weave.server.asked import Id, Told
from halo_weave.server.wire import ChunkTold, Part


class SearchingEvent(Told):
    """Memory is searched with the user's words."""

    room: int = Field(description="Tokens that may wake up.")


class WokenChunk(ChunkTold):
    """A chunk that came back to its place, and why."""

    part: Part = Field(description="Itself a hit, or the pair of one.")
    hit: str = Field(description="The key of the hit.")
    similarity: float
    cost: int
    words: list[str] = Field(description="Of the user's that it matches.")
    parts: dict[str, float] = Field(description="Of the similarity.")
    window: str = Field(description="Where it was said.")
    window_name: str
    said: datetime
    slept: bool = Field(description="In this window; else it comes from another one.")


class WokenEvent(Told):
    chunks: list[WokenChunk]
    cost: int
    room: int
    passed_over: int = Field(description="Hits that did not fit.")


class SleptChunk(Told):
    key: str
    tokens: int
    brightness: float
    why: SleepReason


class AsleepEvent(Told):
    """Chunks fell asleep: before the turn since its words would not fit, or after it to keep the budget."""

    chunks: list[SleptChunk]
    budget: int
    over: int = Field(description="Tokens above the budget that nothing prunable is left for.")
    before_turn: bool


class HeardEvent(Told):
    """The user's turn is stored; now it may be shown."""

    turn_id: Id
    reply_turn: Id
    said: datetime
    frames: int = Field(description="Tokens of all frames that the model reads now.")
    chunks: list[ChunkTold]


class ToReadEvent(Told):
    """The model begins to read."""

    reused: int = Field(description="Tokens that are still in its cache.")
    restored: int = Field(description="Tokens that come back to it.")
    computed: int


class ReadingEvent(ToReadEvent):
    """The model has read."""

    seconds: float
    rebuilt: str = Field(description="Why the window was read anew from the start, or nothing.")


class TokenEvent(Told):
    """The reply's next token."""

    id: int
    position: Id
    text: str = Field(description="Whole characters only: the token that ends one carries it.")
    tool: bool = Field(description="Part of a tool's answer, not of the model's words.")


class BrightenedEvent(Told):
    """Each replaces those before it."""

    data: str = Field(
        description="Little-endian float32, one for each live token in time order, the reply's included.",
        json_schema_extra={"contentEncoding": "base64"},
    )


class ToolCalledEvent(Told):
    command: str


class ToolAnsweredEvent(Told):
    text: str
    ok: bool


class SpokenEvent(Told):
    """The reply is stored, cut into chunks."""

    turn_id: Id
    chunks: list[ChunkTold]


class TurnStats(Told):
    """What a turn came to."""

    tokens: int
    woken: int
    asleep: int
    reused: int
    restored: int
    computed: int
    seconds: float
    tokens_per_second: float
    own_ms_per_turn: float = Field(description="Without the model's time, until it was handed the prompt.")
    own_ms_after: float = Field(description="After its last token.")
    own_ms_per_token: float
    faults: int = Field(description="Rows of attention that could not be used.")


class DoneEvent(Told):
    """The turn is over: window, store and what was told are the same."""

    reason: Reason
    stats: TurnStats


class FailedEvent(Told):
    """The turn ended before it was done."""

    sentence: str


class ChangedEvent(Told):
    """Something else changed the window: load the context anew."""


class DeletedEvent(Told):
    """The window is gone, and its events end."""


class ResetEvent(Told):
    """What came after the event that was named is not known any more: load the context anew."""


EVENTS: dict[str, type[Told]] = {
    "searching": SearchingEvent,
    "woken": WokenEvent,
    "asleep": AsleepEvent,
    "heard": HeardEvent,
    "to_read": ToReadEvent,
    "reading": ReadingEvent,
    "token": TokenEvent,
    "brightened": BrightenedEvent,
    "tool_called": ToolCalledEvent,
    "tool_answered": ToolAnsweredEvent,
    "spoken": SpokenEvent,
    "done": DoneEvent,
    "failed": FailedEvent,
    "changed": ChangedEvent,
    "deleted": DeletedEvent,
    "reset": ResetEvent,
}
