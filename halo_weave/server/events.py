"""Events of a window as they are sent to clients: their names and their models."""

from __future__ import annotations

import base64
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, Field, create_model

from halo_weave.chat import events
from halo_weave.chat.event_hub import NumberedEvent
from halo_weave.chat.views import ChunkView, ReplySourceView
from halo_weave.core.attribution import Attribution
from halo_weave.core.tokens import Brightness, ChunkKey
from halo_weave.engines.base import PrefillPlanned
from halo_weave.server.errors import json_bytes
from halo_weave.server.schema import KeyText, Number, Output
from halo_weave.server.views import AttributionView, LiveChunkView, RememberedChunk

_IDS = {"turn_id", "reply_turn", "position"}


class TurnStats(Output):
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
    recall_ms: float = Field(
        description="Of what came before the model was asked: finding what should wake up."
    )
    own_ms_after: float = Field(description="After its last token.")
    own_ms_per_token: float
    thought_tokens: int = Field(description="Of the tokens, those that the model thought.")
    only_thought: bool = Field(description="The reply ended before there was an answer.")
    nothing_added: bool = Field(
        description="The model had nothing to add to the reply that should go on; it stays as it was."
    )
    faults: int = Field(description="Rows of attention that could not be used.")
    prompted: int = Field(
        description="Tokens of the prompt, as a server elsewhere counts; 0: it does not tell."
    )
    cached: int = Field(description="Of those, the ones that it says it had read before.")


def _encode_floats(row: Brightness) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _event_model(
    name: str, kind: type, base: type[Output] = Output, leave_out: tuple[str, ...] = (), **about: Any
) -> type[Output]:
    """A model of an event with the event's own fields. `about`: a description, or another type with one."""
    made: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in fields(kind):
        if field.name in base.model_fields or field.name in (*leave_out, "chunk"):
            continue
        given = about.get(field.name)
        shape = Number if field.name in _IDS else _FIELD_TYPES.get(hints[field.name], hints[field.name])
        made[field.name] = (
            given if isinstance(given, tuple) else (shape, Field(description=given) if given else ...)
        )
    for other in about.keys() - made.keys():
        made[other] = about[other]
    return create_model(name, __base__=base, __doc__=kind.__doc__, **made)


_FIELD_TYPES: dict[Any, Any] = {
    ChunkKey: KeyText,
    tuple[ChunkView, ...]: list[LiveChunkView],
    tuple[ReplySourceView, ...] | None: list[RememberedChunk] | None,
    Attribution | None: AttributionView | None,
}
_FIELD_TYPES[tuple[events.ResurrectedChunk, ...]] = list[  # type: ignore[misc]
    _event_model(
        "WokenChunk",
        events.ResurrectedChunk,
        LiveChunkView,
        part="Itself a hit, or the pair of one.",
        hit=(KeyText, Field(description="The key of the hit.")),
        words=(
            Annotated[list[str], BeforeValidator(list)],
            Field(description="Of the user's that it matches."),
        ),
        parts=(dict[str, float], Field(description="Of the similarity.")),
        window="Where it was said.",
        slept="In this window; else it comes from another one.",
    )
]
_FIELD_TYPES[tuple[events.PrunedChunk, ...]] = list[_event_model("SleptChunk", events.PrunedChunk)]  # type: ignore[misc]

# By the name that an event has on the wire.
_EVENT_TABLE: list[tuple[str, type, dict[str, Any]]] = [
    ("searching", events.SearchStarted, {"room": "Tokens that may wake up."}),
    ("woken", events.ChunksResurrected, {"passed_over": "Hits that did not fit."}),
    ("asleep", events.ChunksPruned, {"over": "Tokens above the budget that nothing prunable is left for."}),
    ("heard", events.MessageStored, {"frames": "Tokens of all frames that the model reads now."}),
    (
        "answering",
        events.RegenerationStarted,
        {
            "reply_turn": "The turn that the answer will be.",
            "opened": "Tokens that the answer begins with: the model said them before.",
        },
    ),
    (
        "to_read",
        PrefillPlanned,
        {"reused": "Tokens that are still in its cache.", "restored": "Tokens that come back to it."},
    ),
    (
        "reading",
        events.PrefillFinished,
        {"rebuilt": "Why the window was read anew from the start, or nothing."},
    ),
    (
        "token",
        events.TokenGenerated,
        {
            "leave_out": ("piece", "surprisal", "likely"),
            "text": "Whole characters only: the token that ends one carries it.",
            "tool": "Part of a tool's answer, not of the model's words.",
            "thought": "Part of what the model thinks before it answers.",
        },
    ),
    (
        "brightened",
        events.BrightnessChanged,
        {
            "leave_out": ("brightness",),
            "data": (
                Annotated[str, BeforeValidator(_encode_floats)],
                Field(
                    validation_alias="brightness",
                    description="Little-endian float32, one for each live token in time order, the reply's included.",
                    json_schema_extra={"contentEncoding": "base64"},
                ),
            ),
            "attention": (
                Annotated[str, BeforeValidator(_encode_floats)],
                Field(
                    description="What the reply took so far from each token before its exchange; packed the same.",
                    json_schema_extra={"contentEncoding": "base64"},
                ),
            ),
        },
    ),
    ("tool_called", events.ToolCalled, {}),
    (
        "call_made",
        events.ClientToolCalled,
        {"arguments": (dict[str, Any], Field(description="As the model wrote them."))},
    ),
    ("tool_answered", events.ToolAnswered, {}),
    ("memory", events.MemoryChanged, {"content": (Any, Field(description="What is saved there, or was."))}),
    ("spoken", events.ReplyStored, {}),
    (
        "unstored",
        events.ReplyNotStored,
        {"sentence": "Why what was shown is not stored yet; empty: it is stored again."},
    ),
    (
        "done",
        events.TurnEnded,
        {
            "stats": (TurnStats, ...),
            "ranks": (
                dict[str, int],
                Field(description="How bright each live chunk is now: 0 the dimmest, 100 the brightest."),
            ),
        },
    ),
    ("failed", events.TurnFailed, {"elsewhere": "Whether the server that runs the model failed."}),
    ("model", events.ModelChange, {"model": "The one that is wanted."}),
    ("changed", events.WindowChanged, {}),
    ("deleted", events.WindowDeleted, {}),
    ("reset", events.EventsLost, {}),
]
_MODELS = {
    kind: (name, _event_model("".join(part.title() for part in name.split("_")) + "Event", kind, **about))
    for name, kind, about in _EVENT_TABLE
}
EVENTS: dict[str, type[Output]] = dict(_MODELS.values())


def render_event(numbered: NumberedEvent) -> bytes:
    """An event as it is sent; made once, however many watch."""
    if numbered.rendered is None:
        name, model = _MODELS[type(numbered.event)]
        data = json_bytes(model.model_validate(numbered.event).model_dump(mode="json"))
        numbered.rendered = b"id: %b\nevent: %b\ndata: %b\n\n" % (numbered.id.encode(), name.encode(), data)
    return numbered.rendered
