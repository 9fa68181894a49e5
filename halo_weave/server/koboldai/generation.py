"""The API that the prototype used: tokenize, detokenize, generate with attention, abort. It uses the engine alone."""

from __future__ import annotations

import base64
import json
import re
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
from halo_weave.engines.base import (
    Capture,
    Engine,
    GenerationEnd,
    ModelInfo,
    PrefillResult,
    Prompt,
    Sampling,
    Segment,
    Step,
    StopReason,
)
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.server.errors import json_bytes
from halo_weave.server.remote_kv import RemoteKvRequest, check_may_send_grammar, stream_generation
from halo_weave.server.schema import TEXT_PATTERN, Input, Output, nullable
from halo_weave.server.sse import EventStream, describe_events, iterate_in_threads
from halo_weave.server.stateless_runs import StatelessRuns

_TAG = re.compile(r"\{\{\[(INPUT|OUTPUT|SYSTEM)\]\}\}")
_END_TAG = re.compile(r"\{\{\[(?:INPUT|OUTPUT|SYSTEM)_END\]\}\}")


def has_instruct_tags(text: str) -> bool:
    return _TAG.search(text) is not None


def tokenize_instruct(engine: Engine, text: str) -> Ids:
    """The tokens of a prompt with instruct tags. Text before the first tag is the system prompt; the last output is continued."""
    before, *parts_by_tag = _TAG.split(_END_TAG.sub("", text))
    system, messages = [before.strip()], list[ChatMessage]()
    reply_start = ""
    for place, (kind, said) in enumerate(zip(parts_by_tag[::2], parts_by_tag[1::2], strict=True)):
        words = said.strip()
        if kind == "SYSTEM":
            system.append(words)
        elif kind == "OUTPUT" and place == len(parts_by_tag) // 2 - 1:
            reply_start = said.lstrip()
        elif words:
            messages.append(ChatMessage("user" if kind == "INPUT" else "assistant", words))
    frame = "\n\n".join(part for part in system if part)
    talk = [ChatMessage("system", frame), *messages] if frame else messages
    pieces = engine.chat(talk or [ChatMessage("user", "")]).pieces
    parts = [engine.tokenize(piece.text, special=not piece.said).ids for piece in pieces if piece.text]
    if reply_start:
        parts.append(engine.tokenize(reply_start).ids)
    return np.concatenate(parts).astype(np.int32)


_MAX_IDS = 200_000
_MAX_STOPS = 256  # clients send the names of all speakers
_KOBOLD_REASONS: dict[StopReason | None, str] = {
    "length": "length",
    "context": "length",
    "abort": "stop",
    "eos": "stop",
    "stop": "stop",
}
MAX_TEXTS = 32  # generations whose text can be requested
_Text = Annotated[str, Field(max_length=900_000, pattern=TEXT_PATTERN)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=_MAX_IDS)]
_IGNORED = Field(default=None, description="Without effect.")


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


class KoboldInput(Input):
    """A request of a KoboldAI client. Unknown fields are ignored, because clients send many."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, json_schema_extra=nullable)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Drop fields that are null: clients send null for the default."""
        return (
            {key: value for key, value in body.items() if value is not None}
            if isinstance(body, dict)
            else body
        )


class TextToken(Output):
    token_id: int
    text: str | None = Field(
        description="Whole characters only: a character that spans tokens is in the last of them."
    )


class Tokenize(KoboldInput):
    text: _Text
    add_special_tokens: bool = Field(
        default=False, description="Begin with the model's first token, if it has one."
    )
    with_pieces: bool = Field(default=True, description="Whether each token comes with its text.")


class Tokenized(Output):
    tokens: list[TextToken]
    token_ids: list[int]
    token_count: int


class Detokenize(KoboldInput):
    token_ids: _TokenIds = Field(examples=[[1, 2, 3]])


class Detokenized(Output):
    text: str


class Generate(KoboldInput):
    """If both `prompt` and `input_ids` are sent, `input_ids` is used."""

    prompt: _Text | None = None
    input_ids: _TokenIds | None = None
    max_length: int = Field(default=256, ge=1, le=32_768)
    temperature: float = Field(default=0.7, ge=0, le=5, allow_inf_nan=False)
    top_p: float = Field(default=0.9, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=1_000)
    min_p: float = Field(default=0.0, ge=0, le=1)
    rep_pen: float = Field(default=1.0, ge=0.5, le=10)
    sampler_seed: int | None = Field(default=None, ge=-1, lt=2**32 - 1, description="-1 or null: random.")
    stop_sequence: list[Annotated[str, Field(min_length=1, max_length=200, pattern=TEXT_PATTERN)]] = Field(
        default=[], max_length=_MAX_STOPS
    )
    output_attentions: bool = False
    output_hidden_states: bool = Field(default=False, description="Not supported.")
    attention_format: Literal["aggregated", "per_layer"] = Field(
        default="aggregated",
        description="`aggregated`: one row, the mean over layers and heads. `per_layer`: layers × heads × context.",
    )
    request_id: str | None = Field(default=None, max_length=200, pattern=TEXT_PATTERN)
    genkey: str | None = Field(
        default=None, max_length=200, pattern=TEXT_PATTERN, description="Same as request_id."
    )
    memory: _Text | None = Field(default=None, description="A text before the prompt.")
    trim_stop: bool = Field(default=False, description="Whether a stop text at the end is left out.")
    replace_instruct_placeholders: bool = Field(
        default=True,
        description="Whether {{[INPUT]}}, {{[OUTPUT]}} and {{[SYSTEM]}} in the prompt become turns of the model's template.",
    )
    remote_kv: RemoteKvRequest | None = Field(
        default=None, description="Additional fields of another Halo Weave."
    )
    # Sent by KoboldAI clients; without effect.
    max_context_length: Any = Field(None, description="Without effect: the model's own context holds.")
    quiet: Any = _IGNORED
    sampler_order: Any = _IGNORED

    @property
    def is_koboldai_client(self) -> bool:
        """Whether it is a KoboldAI client, which does not know the prototype's messages."""
        prototype = {
            "input_ids",
            "output_attentions",
            "attention_format",
            "request_id",
            "output_hidden_states",
        }
        koboldai_client = {
            "genkey",
            "max_context_length",
            "quiet",
            "sampler_order",
            "memory",
            "trim_stop",
            "replace_instruct_placeholders",
        }
        return bool(self.model_fields_set & koboldai_client) and not self.model_fields_set & prototype

    @property
    def wants_mean_only(self) -> bool:
        """Whether it is the prototype's page, which uses only the mean over layers and heads."""
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


class Abort(KoboldInput):
    request_id: str | None = Field(
        default=None,
        max_length=200,
        description="Without an id, all of the client's generations are stopped.",
    )
    genkey: str | None = Field(default=None, max_length=200)


class Aborted(Output):
    success: bool = Field(description="Whether there was something to stop.")


class GeneratedMessage(RootModel[Any]):
    """`token` for each token, then `done` or `error`."""

    class Attention(Output):
        """The attention row of a token, as little-endian float32."""

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
            default=None, description="Only with output_attentions; null if the engine has none."
        )

    class DoneMessage(Output):
        type: Literal["done"]
        request_id: str
        finish_reason: StopReason
        total_tokens: int

    class ErrorMessage(Output):
        type: Literal["error"]
        request_id: str
        message: str

    class FamilyMessage(Output):
        """The message for KoboldAI clients."""

        token: str
        finish_reason: Literal["length", "stop"] | None

    root: TokenMessage | DoneMessage | ErrorMessage | FamilyMessage


def _tokenize(engine: Engine, request: Tokenize) -> Tokenized:
    tokens = engine.tokenize(request.text, special=True)
    if request.add_special_tokens:
        tokens = _bos_token(engine) + tokens
    ids = tokens.ids.tolist()
    texts = tokens.spelled() if request.with_pieces else [None] * len(ids)
    pairs = [TextToken(token_id=id, text=text) for id, text in zip(ids, texts, strict=True)]
    return Tokenized(tokens=pairs, token_ids=ids, token_count=len(ids))


def _bos_token(engine: Engine) -> Tokens:
    """The token that begins a text, if the template writes one before the first turn only."""
    first = engine.chat([ChatMessage("user", "a")]).pieces[0]
    begin = engine.tokenize(first.text if first.part == "begin" else "", special=True)
    opens = len(begin) == 1 and begin.ids[0] == engine.info.special.get("bos")
    return begin if opens else begin.part(0, 0)


def _known_ids(engine: Engine, ids: Sequence[int]) -> Ids:
    wrong = next((id for id in ids if id >= engine.info.vocabulary), None)
    if wrong is not None:
        raise BadInput(f"Token {wrong} is not in the model's vocabulary of {engine.info.vocabulary}.")
    return np.array(ids, np.int32)


def prompt_of(engine: Engine, request: Generate) -> Prompt:
    if request.prompt is None and request.input_ids is None:
        raise BadInput("Send a prompt, as text or as input_ids.")
    text = (request.memory or "") + (request.prompt or "")
    if request.input_ids is not None:
        ids = _known_ids(engine, request.input_ids)
    elif request.replace_instruct_placeholders and has_instruct_tags(text):
        ids = tokenize_instruct(engine, text)
    else:
        ids = engine.tokenize(text, special=True).ids
    if not len(ids):
        raise BadInput("The prompt is empty. Send at least one token.")
    if len(ids) >= engine.info.context:
        raise BadInput(f"The prompt has {len(ids)} tokens; this model takes less than {engine.info.context}.")
    return Prompt([Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)], len(ids), temporary=True)


def _attention(step: Step | None, request: Generate, model: ModelInfo) -> dict[str, Any] | None:
    """One step's rows in the prototype's format; None if the engine has none."""
    row, form = None if step is None else step.row, request.attention_format
    values = None if row is None else row.raw if form == "per_layer" else row.tokens
    if values is None:
        return None
    if form == "per_layer":
        values = values.reshape(model.layers, model.heads, -1)
    elif request.wants_mean_only:
        values = values.reshape(1, 1, -1)
    return {
        "format": form,
        "shape": list(values.shape),
        "context_length": values.shape[-1],
        "encoding": "base64",
        "dtype": "float32",
        "data": base64.b64encode(values.astype("<f4").tobytes()).decode(),
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"event: message\ndata: %b\n\n" % json_bytes(data)


def _event_lines(
    engine: Engine,
    running: StatelessRuns,
    request: Generate,
    prompt: Prompt,
    generation_history: GenerationHistory,
) -> Generator[bytes, None, None]:
    """The generated tokens as server-sent events. A stop string is sent, too, since clients look for it."""
    name, koboldai_client = request.name, request.is_koboldai_client
    if request.output_hidden_states:
        sentence = "output_hidden_states is not supported. Send the request without it."
        yield _event({"type": "error", "request_id": name, "message": sentence})
        return
    with running.take(name) as (window, stop):
        yield b": reading\n\n"
        try:
            for token in generate_tokens(engine, window, stop, request, prompt, generation_history):
                if koboldai_client:
                    yield _event({"token": token.shown, "finish_reason": _KOBOLD_REASONS.get(token.reason)})
                elif token.reason is None:
                    pair = {"token_id": token.id, "text": token.text}
                    said: dict[str, Any] = {"type": "token", "request_id": name, "token": pair}
                    if request.output_attentions:
                        said["attention"] = _attention(token.step, request, engine.info)
                    yield _event(said)
                else:
                    ended = {"finish_reason": token.reason, "total_tokens": token.count}
                    yield _event({"type": "done", "request_id": name, **ended})
        except HaloWeaveError as error:
            yield _event({"type": "error", "request_id": name, "message": str(error)})


@dataclass(slots=True)
class GeneratedToken:
    """A token of a generation, or its end with a reason."""

    id: int = 0
    text: str = ""  # whole characters only
    shown: str = ""  # the text to show: without the stop string, if `trim_stop`
    count: int = 0
    reason: StopReason | None = None
    step: Step | None = None


@dataclass(slots=True)
class GenerationHistory:
    """Recent generations, for clients that poll them: text by key while it grows, and statistics of the last one."""

    texts: dict[str, str] = field(default_factory=dict)
    count: int = 0
    last_tokens: int = 0
    last_reading: float = 0.0
    last_writing: float = 0.0
    last_reason: str = ""
    started: float = field(default_factory=time.monotonic)

    def note(self, name: str, text: str) -> None:
        self.texts[name] = text
        while len(self.texts) > MAX_TEXTS:
            self.texts.pop(next(iter(self.texts)))


def generate_tokens(
    engine: Engine,
    window: str,
    stop: Event,
    request: Generate,
    prompt: Prompt,
    generation_history: GenerationHistory,
) -> Iterator[GeneratedToken]:
    """Generate token by token, up to and including a stop string."""
    capture = Capture(raw=request.attention_format == "per_layer") if request.output_attentions else None
    decoder = getincrementaldecoder("utf-8")("replace")
    name, text, count, started, found_stop = request.name, "", 0, time.perf_counter(), False
    trims = bool(request.stop_sequence) and request.trim_stop
    longest = max((len(stop_text) for stop_text in request.stop_sequence), default=0)
    sent = 0  # number of characters that were sent
    steps = engine.generate(
        window, prompt, request.sampling, capture, mode="exact", stopped=lambda: found_stop or stop.is_set()
    )
    try:
        for step in steps:
            if isinstance(step, PrefillResult):
                generation_history.last_reading, started = step.seconds, time.perf_counter()
            elif isinstance(step, Step) and not found_stop:
                piece = decoder.decode(step.piece)
                text, count = text + piece, count + 1
                recent = text[-(longest + len(piece)) :]
                at = min(
                    (place for stop_text in request.stop_sequence if (place := recent.find(stop_text)) >= 0),
                    default=-1,
                )
                found_stop = at >= 0
                end = len(text)
                if trims:
                    end = len(text) - len(recent) + at if found_stop else max(sent, len(text) - longest + 1)
                shown, sent = text[sent:end], max(sent, end)
                generation_history.note(name, text[:end])
                yield GeneratedToken(step.id, piece, shown, count, None, step)
            elif isinstance(step, GenerationEnd):
                reason: StopReason = "stop" if found_stop else step.reason
                rest = "" if found_stop else text[sent:]
                generation_history.count, generation_history.last_tokens, generation_history.last_reason = (
                    generation_history.count + 1,
                    count,
                    reason,
                )
                generation_history.last_writing = time.perf_counter() - started
                yield GeneratedToken(shown=rest, count=count, reason=reason)
    finally:
        close = getattr(steps, "close", None)
        if close:
            close()


async def _read_text_request(request: Request) -> Tokenize:
    """The request as JSON, or as plain text."""
    plain = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/plain"
    try:
        body = await _read_plain_text(request) if plain else await request.json()
    except (ValueError, RecursionError):
        raise BadInput(
            'The body is neither JSON like {"text": …} nor, as text/plain, text in UTF-8.'
        ) from None
    try:
        return Tokenize.model_validate(body)
    except ValidationError as error:
        details = [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors()]
        raise RequestValidationError(details) from None


async def _read_plain_text(request: Request) -> Any:
    """The body of a text/plain request: JSON from the prototype's page, which avoids a CORS preflight this way, or a prompt."""
    text = (await request.body()).decode()
    try:
        body = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) and isinstance(body.get("text"), str) else {"text": text}


_EXAMPLE = 'event: message\ndata: {"type":"token","token":{"token_id":260,"text":" Mochi"}}\n\n'
_TEXT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": Tokenize.model_json_schema()},
            "text/plain": {"schema": {"type": "string", "pattern": TEXT_PATTERN}},
        },
    }
}


def routes(
    engine: Callable[[], Engine],
    running: Callable[[], StatelessRuns],
    generation_history: Callable[[], GenerationHistory],
) -> APIRouter:
    """The prototype's API. `engine` raises an error while no model is loaded."""
    router = APIRouter(tags=["Prototype"])

    @router.get("/api/v1/model", summary="Show the model")
    def describe_model() -> KoboldModel:
        return KoboldModel.model_validate(engine().info)

    @router.post("/api/v1/tokenize", summary="Convert text to tokens", openapi_extra=_TEXT_BODY)
    async def tokenize_text(request: Request) -> Tokenized:
        return await anyio.to_thread.run_sync(_tokenize, engine(), await _read_text_request(request))

    @router.post("/api/v1/detokenize", summary="Convert tokens to text")
    def detokenize_ids(request: Detokenize) -> Detokenized:
        ids = _known_ids(engine(), request.token_ids)
        return Detokenized(text=engine().pieces(ids).text)

    @router.post(
        "/api/extra/generate/stream",
        summary="Generate, token by token, with attention",
        response_class=EventStream,
        status_code=200,
        responses={200: describe_events([("message", GeneratedMessage)], _EXAMPLE, numbered=False)},
    )
    async def generate_text(request: Generate) -> EventStream:
        def begin() -> tuple[Generator[bytes, None, None], bytes]:
            prompt = prompt_of(engine(), request)
            if request.remote_kv:
                check_may_send_grammar(request.remote_kv.grammar)
                sampling = replace(request.sampling, grammar=request.remote_kv.grammar)
                ids = prompt.segments[0].ids
                lines = stream_generation(engine(), running(), request.name, ids, sampling, request.remote_kv)
            else:
                lines = _event_lines(engine(), running(), request, prompt, generation_history())
            return lines, next(lines)

        return EventStream(iterate_in_threads(*await anyio.to_thread.run_sync(begin)))

    @router.post("/api/extra/abort", summary="Stop generating")
    def stop_generating(request: Abort | None = None) -> Aborted:
        name = (request.request_id or request.genkey) if request else None
        return Aborted(success=running().stop(name))

    return router
