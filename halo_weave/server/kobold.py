"""The addresses of the prototype's inference server: tokenize, detokenize, generate with attention, abort.

They use the engine alone, without windows or memory. Their fields are those of the KoboldAI family of servers.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Event
from typing import Annotated, Any, Literal

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AliasPath, ConfigDict, Field, RootModel, ValidationError, model_validator

from halo_weave.core.tokens import Ids, Tokens
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.ports import Capture, Done, Engine, ModelInfo, Prompt, Read, Reason, Sampling, Segment, Step
from halo_weave.server.instruct import has_marks, ids_of_marked
from halo_weave.server.lending import LentRequest, lent
from halo_weave.server.refusals import json_bytes
from halo_weave.server.schema import WHOLE, Input, Output, nullable
from halo_weave.server.scratch import Scratch
from halo_weave.server.sse import EventStream, described, hopping
from halo_weave.templates.messages import ChatMessage

_MOST_IDS = 200_000
_MOST_STOPS = 256  # clients send the names of all who speak
_FAMILY_REASONS: dict[Reason | None, str] = {
    "length": "length",
    "context": "length",
    "abort": "stop",
    "eos": "stop",
    "stop": "stop",
}
MOST_TEXTS = 32  # generations whose text can be asked for
_Text = Annotated[str, Field(max_length=900_000, pattern=WHOLE)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=_MOST_IDS)]
_WITHOUT_EFFECT = Field(default=None, description="Without effect.")


class KoboldModel(Output):
    """Read from `ModelInfo`."""

    result: str = Field(
        validation_alias="name", description="The model's name, as KoboldAI's clients ask for it."
    )
    model_name: str = Field(validation_alias="name")
    architecture: str
    num_layers: int = Field(validation_alias="layers")
    num_attention_heads: int = Field(validation_alias="heads")
    num_key_value_heads: int = Field(validation_alias="kv_heads")
    vocab_size: int = Field(validation_alias="vocabulary")
    max_context_length: int = Field(validation_alias="context")
    max_trained_context: int = Field(validation_alias="trained_context")
    embedding_size: int = Field(validation_alias="embedding")
    rope_freq_base: float = Field(validation_alias="rope_base")
    rope_freq_scale: float = Field(validation_alias="rope_scale")
    bos_token_id: int | None = Field(default=None, validation_alias=AliasPath("special", "bos"))
    eos_token_id: int | None = Field(default=None, validation_alias=AliasPath("special", "eos"))
    eot_token_id: int | None = Field(default=None, validation_alias=AliasPath("special", "eot"))
    special_tokens: dict[str, int] = Field(validation_alias="special")


class FamilyInput(Input):
    """What clients of the family send. They send much: what is not known is passed over."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, json_schema_extra=nullable)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """They send null for what they do not choose."""
        told = isinstance(given, dict)
        return {key: one for key, one in given.items() if one is not None} if told else given


class TextToken(Output):
    token_id: int
    text: str | None = Field(description="Whole characters only: the token that ends a character carries it.")


class Tokenize(FamilyInput):
    text: _Text
    add_special_tokens: bool = Field(
        default=False, description="Begin as the model's texts begin, if they begin specially."
    )
    with_pieces: bool = Field(default=True, description="Whether each token comes with its text.")


class Tokenized(Output):
    tokens: list[TextToken]
    token_ids: list[int]
    token_count: int


class Detokenize(FamilyInput):
    token_ids: _TokenIds = Field(examples=[[1, 2, 3]])


class Detokenized(Output):
    text: str


class Generate(FamilyInput):
    """With both `prompt` and `input_ids`, the ids hold."""

    prompt: _Text | None = None
    input_ids: _TokenIds | None = None
    max_length: int = Field(default=256, ge=1, le=32_768)
    temperature: float = Field(default=0.7, ge=0, le=5, allow_inf_nan=False)
    top_p: float = Field(default=0.9, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=1_000)
    min_p: float = Field(default=0.0, ge=0, le=1)
    rep_pen: float = Field(default=1.0, ge=0.5, le=10)
    sampler_seed: int | None = Field(default=None, ge=-1, lt=2**32 - 1, description="-1 or null: random.")
    stop_sequence: list[Annotated[str, Field(min_length=1, max_length=200, pattern=WHOLE)]] = Field(
        default=[], max_length=_MOST_STOPS
    )
    output_attentions: bool = False
    output_hidden_states: bool = Field(default=False, description="Refused: hidden states are not given out.")
    attention_format: Literal["aggregated", "per_layer"] = Field(
        default="aggregated",
        description="One row, the mean over layers and heads; or all rows, layers × heads × context.",
    )
    request_id: str | None = Field(default=None, max_length=200, pattern=WHOLE)
    genkey: str | None = Field(
        default=None, max_length=200, pattern=WHOLE, description="Another name of request_id."
    )
    memory: _Text | None = Field(default=None, description="A text before the prompt.")
    trim_stop: bool = Field(default=False, description="Whether a stop text at the end is left out.")
    replace_instruct_placeholders: bool = Field(
        default=True,
        description="Whether {{[INPUT]}}, {{[OUTPUT]}} and {{[SYSTEM]}} in the prompt become turns of the model's template.",
    )
    halo: LentRequest | None = Field(default=None, description="What another Halo Weave asks besides.")
    # Sent by clients of the family; they have no effect here.
    max_context_length: Any = Field(None, description="Without effect: the model's own context holds.")
    quiet: Any = _WITHOUT_EFFECT
    sampler_order: Any = _WITHOUT_EFFECT

    @property
    def as_family(self) -> bool:
        """Whether a client of KoboldAI asks, which knows nothing of the prototype's messages."""
        prototype = {
            "input_ids",
            "output_attentions",
            "attention_format",
            "request_id",
            "output_hidden_states",
        }
        family = {
            "genkey",
            "max_context_length",
            "quiet",
            "sampler_order",
            "memory",
            "trim_stop",
            "replace_instruct_placeholders",
        }
        return bool(self.model_fields_set & family) and not self.model_fields_set & prototype

    @property
    def averages_itself(self) -> bool:
        """Whether the prototype's page asks: it takes the mean over layers and heads, so one of each will do."""
        return self.request_id is not None and "attention_format" not in self.model_fields_set

    @cached_property
    def name(self) -> str:
        return self.request_id or self.genkey or secrets.token_hex(8)

    @property
    def sampling(self) -> Sampling:
        seed = None if self.sampler_seed in (None, -1) else self.sampler_seed
        return Sampling(
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.rep_pen,
            seed,
            self.max_length,
        )


class Abort(FamilyInput):
    request_id: str | None = Field(
        default=None, max_length=200, description="Without one, all of these are stopped."
    )
    genkey: str | None = Field(default=None, max_length=200)


class Aborted(Output):
    success: bool = Field(description="Whether anything was there to stop.")


class GeneratedMessage(RootModel[Any]):
    """`token` for each token, then `done` or `error`."""

    class Attention(Output):
        """What a token looked at: the rows as little-endian float32."""

        format: Literal["aggregated", "per_layer"]
        shape: list[int]
        context_length: int
        encoding: Literal["base64"]
        dtype: Literal["float32"]
        data: str = Field(json_schema_extra={"contentEncoding": "base64"})

    class TokenMessage(Output):
        model_config = ConfigDict(json_schema_serialization_defaults_required=False)

        type: Literal["token"]
        request_id: str
        token: TextToken
        attention: GeneratedMessage.Attention | None = Field(
            default=None, description="Only with output_attentions; null when the engine had none to give."
        )

    class DoneMessage(Output):
        type: Literal["done"]
        request_id: str
        finish_reason: Reason
        total_tokens: int

    class ErrorMessage(Output):
        type: Literal["error"]
        request_id: str
        message: str

    class FamilyMessage(Output):
        """What a client of the KoboldAI family gets instead."""

        token: str
        finish_reason: Literal["length", "stop"] | None

    root: TokenMessage | DoneMessage | ErrorMessage | FamilyMessage


def _tokenize(engine: Engine, asked: Tokenize) -> Tokenized:
    tokens = engine.tokenize(asked.text, special=True)
    if asked.add_special_tokens:
        tokens = _beginning(engine) + tokens
    ids = tokens.ids.tolist()
    texts = tokens.spelled() if asked.with_pieces else [None] * len(ids)
    pairs = [TextToken(token_id=id, text=text) for id, text in zip(ids, texts, strict=True)]
    return Tokenized(tokens=pairs, token_ids=ids, token_count=len(ids))


def _beginning(engine: Engine) -> Tokens:
    """The token that the model's texts begin with, if its template puts one before the first turn and no other."""
    first = engine.chat([ChatMessage("user", "a")]).pieces[0]
    begin = engine.tokenize(first.text if first.part == "begin" else "", special=True)
    opens = len(begin) == 1 and begin.ids[0] == engine.info.special.get("bos")
    return begin if opens else begin.part(0, 0)


def _known_ids(engine: Engine, ids: Sequence[int]) -> Ids:
    wrong = next((id for id in ids if id >= engine.info.vocabulary), None)
    if wrong is not None:
        raise BadInput(f"Token {wrong} is not in the model's vocabulary of {engine.info.vocabulary}.")
    return np.array(ids, np.int32)


def prompt_of(engine: Engine, asked: Generate) -> Prompt:
    if asked.prompt is None and asked.input_ids is None:
        raise BadInput("Send a prompt, as text or as input_ids.")
    text = (asked.memory or "") + (asked.prompt or "")
    if asked.input_ids is not None:
        ids = _known_ids(engine, asked.input_ids)
    elif asked.replace_instruct_placeholders and has_marks(text):
        ids = ids_of_marked(engine, text)
    else:
        ids = engine.tokenize(text, special=True).ids
    if not len(ids):
        raise BadInput("The prompt is empty. Send at least one token.")
    if len(ids) >= engine.info.context:
        raise BadInput(f"The prompt has {len(ids)} tokens; this model takes less than {engine.info.context}.")
    return Prompt([Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)], len(ids))


def _attention(step: Step | None, asked: Generate, model: ModelInfo) -> dict[str, Any] | None:
    """One step's rows as the prototype sends them; None when the engine had none to give."""
    row, form = None if step is None else step.row, asked.attention_format
    values = None if row is None else row.raw if form == "per_layer" else row.tokens
    if values is None:
        return None
    if form == "per_layer":
        values = values.reshape(model.layers, model.heads, -1)
    elif asked.averages_itself:
        values = values.reshape(1, 1, -1)
    return {
        "format": form,
        "shape": list(values.shape),
        "context_length": values.shape[-1],
        "encoding": "base64",
        "dtype": "float32",
        "data": base64.b64encode(values.astype("<f4").tobytes()).decode(),
    }


def _message(data: dict[str, Any]) -> bytes:
    return b"event: message\ndata: %b\n\n" % json_bytes(data)


def _generated(
    engine: Engine, running: Scratch, asked: Generate, prompt: Prompt, past: Generations
) -> Generator[bytes, None, None]:
    """The text as server-sent events, token by token. A stop text is sent too: clients look for it."""
    name, family = asked.name, asked.as_family
    if asked.output_hidden_states:
        sentence = "Hidden states are not given out here: llama.cpp keeps them inside. Ask without them."
        yield _message({"type": "error", "request_id": name, "message": sentence})
        return
    with running.take(name) as (window, stop):
        yield b": reading\n\n"
        try:
            for token in written(engine, window, stop, asked, prompt, past):
                if family:
                    yield _message({"token": token.shown, "finish_reason": _FAMILY_REASONS.get(token.reason)})
                elif token.reason is None:
                    pair = {"token_id": token.id, "text": token.text}
                    said: dict[str, Any] = {"type": "token", "request_id": name, "token": pair}
                    if asked.output_attentions:
                        said["attention"] = _attention(token.step, asked, engine.info)
                    yield _message(said)
                else:
                    ended = {"finish_reason": token.reason, "total_tokens": token.count}
                    yield _message({"type": "done", "request_id": name, **ended})
        except HaloWeaveError as error:
            yield _message({"type": "error", "request_id": name, "message": str(error)})


@dataclass(slots=True)
class Written:
    """A token of a generation, or with a reason its end."""

    id: int = 0
    text: str = ""  # whole characters only
    shown: str = ""  # the same without a stop text, where that is to be left out
    count: int = 0
    reason: Reason | None = None
    step: Step | None = None


@dataclass(slots=True)
class Generations:
    """What was generated, as the family's clients ask for it: texts by name while they grow, figures of the last one."""

    texts: dict[str, str] = field(default_factory=dict)
    count: int = 0
    last_tokens: int = 0
    last_reading: float = 0.0
    last_writing: float = 0.0
    last_reason: str = ""
    began: float = field(default_factory=time.monotonic)

    def note(self, name: str, text: str) -> None:
        self.texts[name] = text
        while len(self.texts) > MOST_TEXTS:
            self.texts.pop(next(iter(self.texts)))


def written(
    engine: Engine, window: str, stop: Event, asked: Generate, prompt: Prompt, past: Generations
) -> Iterator[Written]:
    """Token by token up to a stop text, which is part of it."""
    capture = Capture(raw=asked.attention_format == "per_layer") if asked.output_attentions else None
    decoder = getincrementaldecoder("utf-8")("replace")
    name, text, count, began, met = asked.name, "", 0, time.perf_counter(), False
    holding = bool(asked.stop_sequence) and asked.trim_stop
    longest = max((len(one) for one in asked.stop_sequence), default=0)
    told = 0  # characters of the text that were shown
    steps = engine.generate(
        window, prompt, asked.sampling, capture, mode="exact", stopped=lambda: met or stop.is_set()
    )
    try:
        for step in steps:
            if isinstance(step, Read):
                past.last_reading, began = step.seconds, time.perf_counter()
            elif isinstance(step, Step) and not met:
                piece = decoder.decode(step.piece)
                text, count = text + piece, count + 1
                reach = text[-(longest + len(piece)) :]
                at = min(
                    (place for one in asked.stop_sequence if (place := reach.find(one)) >= 0), default=-1
                )
                met = at >= 0
                end = len(text)
                if holding:
                    end = len(text) - len(reach) + at if met else max(told, len(text) - longest + 1)
                shown, told = text[told:end], max(told, end)
                past.note(name, text[:end])
                yield Written(step.id, piece, shown, count, None, step)
            elif isinstance(step, Done):
                reason: Reason = "stop" if met else step.reason
                rest = "" if met else text[told:]
                past.count, past.last_tokens, past.last_reason = past.count + 1, count, reason
                past.last_writing = time.perf_counter() - began
                yield Written(shown=rest, count=count, reason=reason)
    finally:
        close = getattr(steps, "close", None)
        if close:
            close()


async def _text_asked(request: Request) -> Tokenize:
    """The request as JSON, or the text itself as text/plain."""
    plain = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/plain"
    try:
        asked = await _plain_text(request) if plain else await request.json()
    except (ValueError, RecursionError):
        raise BadInput(
            'The body is neither JSON like {"text": …} nor, as text/plain, text in UTF-8.'
        ) from None
    try:
        return Tokenize.model_validate(asked)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None


async def _plain_text(request: Request) -> Any:
    """The prototype's page sends its JSON as text/plain, so that a browser does not ask first. Other text is meant so."""
    text = (await request.body()).decode()
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) and isinstance(found.get("text"), str) else {"text": text}


_EXAMPLE = 'event: message\ndata: {"type":"token","token":{"token_id":260,"text":" Mochi"}}\n\n'
_TEXT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": Tokenize.model_json_schema()},
            "text/plain": {"schema": {"type": "string", "pattern": WHOLE}},
        },
    }
}


def routes(
    engine: Callable[[], Engine], running: Callable[[], Scratch], past: Callable[[], Generations]
) -> APIRouter:
    """The prototype's addresses. `engine` raises while there is none."""
    router = APIRouter(tags=["Prototype"])

    @router.get("/api/v1/model", summary="The model")
    def describe_model() -> KoboldModel:
        return KoboldModel.model_validate(engine().info)

    @router.post("/api/v1/tokenize", summary="Text to tokens", openapi_extra=_TEXT_BODY)
    async def tokenize_text(request: Request) -> Tokenized:
        asked = await _text_asked(request)
        return await anyio.to_thread.run_sync(_tokenize, engine(), asked)

    @router.post("/api/v1/detokenize", summary="Tokens to text")
    def detokenize_ids(asked: Detokenize) -> Detokenized:
        ids = _known_ids(engine(), asked.token_ids)
        return Detokenized(text=engine().pieces(ids).text)

    @router.post(
        "/api/extra/generate/stream",
        summary="Generate, token by token, with attention",
        response_class=EventStream,
        status_code=200,
        responses={200: described([("message", GeneratedMessage)], _EXAMPLE, numbered=False)},
    )
    async def generate_text(asked: Generate) -> EventStream:
        def begin() -> tuple[Generator[bytes, None, None], bytes]:
            prompt = prompt_of(engine(), asked)
            if asked.halo:
                sampling = replace(asked.sampling, grammar=asked.halo.grammar)
                ids = prompt.segments[0].ids
                lines = lent(engine(), running(), asked.name, ids, sampling, asked.halo)
            else:
                lines = _generated(engine(), running(), asked, prompt, past())
            return lines, next(lines)

        return EventStream(hopping(*await anyio.to_thread.run_sync(begin)))

    @router.post("/api/extra/abort", summary="Stop generating")
    def stop_generating(asked: Abort | None = None) -> Aborted:
        name = (asked.request_id or asked.genkey) if asked else None
        return Aborted(success=running().stop(name))

    return router
