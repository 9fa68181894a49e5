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
from halo_weave.server.views import AttributionView, LiveChunk, PrunedChunk, ReplySource

_IDS = {"turn_id", "reply_turn", "position"}
# Names of event fields in the API, by attribute.
_KEYS = {
    "elsewhere": "remote",
    "gap": "pruned_before",
    "opened": "prefix_tokens",
    "over": "tokens_over_budget",
    "passed_over": "skipped",
    "remembered": "sources",
    "reply_turn": "reply_turn_id",
    "sentence": "message",
    "thoughts": "pruned_thoughts",
    "use": "attribution",
    "why": "reason",
    "resurrect_reason": "resurrected",
}


class TurnStats(Output):
    """Figures of a turn."""

    tokens: int
    resurrected: int = Field(description="Chunks.")
    pruned: int = Field(description="Chunks.")
    reused: int
    restored: int
    computed: int
    seconds: float
    tokens_per_second: float
    overhead_ms_per_turn: float = Field(
        validation_alias="own_ms_per_turn",
        description="Halo Weave's own time before the engine got the prompt.",
    )
    recall_ms: float = Field(
        description="Time for search and the recall plan, part of the time before the model was called."
    )
    overhead_ms_after: float = Field(
        validation_alias="own_ms_after", description="Halo Weave's own time after the last token."
    )
    overhead_ms_per_token: float = Field(validation_alias="own_ms_per_token")
    thought_tokens: int = Field(description="The number of these tokens that belong to thoughts.")
    only_thought: bool = Field(description="The reply ended during a thought, without an answer.")
    nothing_added: bool = Field(
        description="The model added nothing to the continued reply, which is unchanged."
    )
    overhead_tokens: int = Field(
        validation_alias="overhead",
        description="Tokens of the prompt that declare tools, describe the memory or note origin and time.",
    )
    malformed_rows: int = Field(
        validation_alias="faults", description="Malformed attention rows, which were not used."
    )
    server_prompt_tokens: int = Field(
        validation_alias="prompted",
        description="Tokens of the prompt, as a remote server reports them; 0: unknown.",
    )
    server_cached_tokens: int = Field(
        validation_alias="cached", description="Those of them that came from the server's cache."
    )


def _encode_floats(row: Brightness) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _event_model(
    name: str, kind: type, base: type[Output] = Output, leave_out: tuple[str, ...] = (), **descriptions: Any
) -> type[Output]:
    """A model with the fields of the event. `descriptions`: by field, its description, or its type and description."""
    fields_of_model: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in fields(kind):
        key = _KEYS.get(field.name, field.name)
        if key in base.model_fields or field.name in (*leave_out, "chunk"):
            continue
        description = descriptions.get(key)
        shape = Number if field.name in _IDS else _FIELD_TYPES.get(hints[field.name], hints[field.name])
        read_from = None if key == field.name else field.name
        described = (shape, Field(description=description, validation_alias=read_from))
        fields_of_model[key] = description if isinstance(description, tuple) else described
    for other in descriptions.keys() - fields_of_model.keys():
        fields_of_model[other] = descriptions[other]
    return create_model(name, __base__=base, __doc__=kind.__doc__, **fields_of_model)


_FIELD_TYPES: dict[Any, Any] = {
    ChunkKey: KeyText,
    tuple[ChunkView, ...]: list[LiveChunk],
    tuple[ReplySourceView, ...] | None: list[ReplySource] | None,
    Attribution | None: AttributionView | None,
}
_FIELD_TYPES[tuple[events.ResurrectedChunk, ...]] = list[  # type: ignore[misc]
    _event_model(
        "ResurrectedChunk",
        events.ResurrectedChunk,
        LiveChunk,
        part="Whether it is a hit, or was resurrected together with a hit.",
        hit=(KeyText, Field(description="The key of the hit.")),
        words=(
            Annotated[list[str], BeforeValidator(list)],
            Field(description="Words of the query that it contains."),
        ),
        parts=(dict[str, float], Field(description="Parts of the similarity.")),
        window="The window in which it was said.",
        pruned_here="Whether it was pruned in this window; else it comes from another one.",
    )
]
_FIELD_TYPES[tuple[events.PrunedChunk, ...]] = list[PrunedChunk]

# By the event's name in the API.
_EVENT_TABLE: list[tuple[str, type, dict[str, Any]]] = [
    ("searching", events.SearchStarted, {"room": "Tokens that may be resurrected."}),
    ("resurrected", events.ChunksResurrected, {"skipped": "Hits that did not fit."}),
    (
        "pruned",
        events.ChunksPruned,
        {"tokens_over_budget": "Tokens over the budget although nothing more can be pruned."},
    ),
    ("message_stored", events.MessageStored, {"frames": "Tokens of all frames in the prompt."}),
    (
        "regenerating",
        events.RegenerationStarted,
        {
            "reply_turn_id": "The id of the reply's turn.",
            "prefix_tokens": "Tokens at the beginning of the reply that were generated before.",
        },
    ),
    (
        "prefill_planned",
        PrefillPlanned,
        {
            "reused": "Tokens that are still in the KV cache.",
            "restored": "Tokens whose saved cells are copied back.",
        },
    ),
    (
        "prefill",
        events.PrefillFinished,
        {"rebuilt": "Why the whole prompt was computed again; empty: it was not."},
    ),
    (
        "token",
        events.TokenGenerated,
        {
            "leave_out": ("piece", "surprisal", "likely"),
            "text": "Whole characters only: a character that spans tokens is in the last of them.",
            "tool": "Whether it is part of a tool's output.",
            "thought": "Whether it is part of a thought.",
        },
    ),
    (
        "brightness",
        events.BrightnessChanged,
        {
            "brightness": (
                Annotated[str, BeforeValidator(_encode_floats)],
                Field(
                    description="Little-endian float32, one for each live token in time order, the reply's included.",
                    json_schema_extra={"contentEncoding": "base64"},
                ),
            ),
            "attention": (
                Annotated[str, BeforeValidator(_encode_floats)],
                Field(
                    description="Attribution of the reply so far, by token before its exchange; in the same format.",
                    json_schema_extra={"contentEncoding": "base64"},
                ),
            ),
        },
    ),
    ("tool_called", events.ToolCalled, {}),
    (
        "client_tool_called",
        events.ClientToolCalled,
        {"arguments": (dict[str, Any], Field(description="The arguments of the call."))},
    ),
    ("tool_answered", events.ToolAnswered, {}),
    (
        "memory_changed",
        events.MemoryChanged,
        {
            "content": (
                Any,
                Field(description="The content of the entry; after a deletion, its last content."),
            )
        },
    ),
    ("reply_stored", events.ReplyStored, {}),
    (
        "reply_not_stored",
        events.ReplyNotStored,
        {"message": "Why the reply is not stored yet; empty: it is stored now."},
    ),
    (
        "done",
        events.TurnEnded,
        {
            "stats": (TurnStats, ...),
            "ranks": (
                dict[str, int],
                Field(description="Rank of each live chunk: 0 the dimmest, 100 the brightest."),
            ),
        },
    ),
    ("failed", events.TurnFailed, {"remote": "Whether the server that runs the model failed."}),
    ("model", events.ModelChange, {"model": "The requested model."}),
    ("changed", events.WindowChanged, {}),
    ("deleted", events.WindowDeleted, {}),
    ("reset", events.EventsLost, {}),
]
_MODELS = {
    kind: (
        name,
        _event_model("".join(part.title() for part in name.split("_")) + "Event", kind, **descriptions),
    )
    for name, kind, descriptions in _EVENT_TABLE
}
EVENTS: dict[str, type[Output]] = dict(_MODELS.values())


def render_event(numbered: NumberedEvent) -> bytes:
    """An event as it is sent; rendered once for all clients."""
    if numbered.rendered is None:
        name, model = _MODELS[type(numbered.event)]
        data = json_bytes(model.model_validate(numbered.event).model_dump(mode="json"))
        numbered.rendered = b"id: %b\nevent: %b\ndata: %b\n\n" % (numbered.id.encode(), name.encode(), data)
    return numbered.rendered
