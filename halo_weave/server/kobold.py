"""The addresses of the prototype's inference server: tokenize, detokenize, generate with attention, abort.

They use the engine alone, without windows or memory. Their fields are those of the KoboldAI family of servers.
"""

from __future__ import annotations

import base64
import secrets
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, Literal

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field, RootModel, ValidationError

from halo_weave.core.tokens import Ids, Tokens
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.ports import Capture, Done, Engine, ModelInfo, Prompt, Read, Reason, Sampling, Segment, Step
from halo_weave.server.refusals import json_bytes
from halo_weave.server.schema import WHOLE, Input, Output
from halo_weave.server.scratch import Scratch
from halo_weave.server.sse import EventStream, described, hopping
from halo_weave.templates.messages import ChatMessage

_MOST_IDS = 200_000
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
    special_tokens: dict[str, int] = Field(validation_alias="special")


class TextToken(Output):
    token_id: int
    text: str = Field(description="Whole characters only: the token that ends a character carries it.")


class Tokenize(Input):
    text: _Text
    add_special_tokens: bool = Field(
        default=False, description="Begin as the model's texts begin, if they begin specially."
    )


class Tokenized(Output):
    tokens: list[TextToken]
    token_ids: list[int]
    token_count: int


class Detokenize(Input):
    token_ids: _TokenIds = Field(examples=[[1, 2, 3]])


class Detokenized(Output):
    text: str


class Generate(Input):
    """Either `prompt` or `input_ids`."""

    prompt: _Text | None = None
    input_ids: _TokenIds | None = None
    max_length: int = Field(default=256, ge=1, le=32_768)
    temperature: float = Field(default=0.7, ge=0, le=5, allow_inf_nan=False)
    top_p: float = Field(default=0.9, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=1_000)
    min_p: float = Field(default=0.0, ge=0, le=1)
    rep_pen: float = Field(default=1.0, ge=0.5, le=2)
    sampler_seed: int | None = Field(default=None, ge=-1, lt=2**32 - 1, description="-1 or null: random.")
    stop_sequence: list[Annotated[str, Field(min_length=1, max_length=200, pattern=WHOLE)]] = Field(
        default=[], max_length=16
    )
    output_attentions: bool = False
    attention_format: Literal["aggregated", "per_layer"] = Field(
        default="aggregated",
        description="One row, the mean over layers and heads; or all rows, layers × heads × context.",
    )
    request_id: str | None = Field(default=None, max_length=200, pattern=WHOLE)
    genkey: str | None = Field(
        default=None, max_length=200, pattern=WHOLE, description="Another name of request_id."
    )
    # Sent by clients of the family; they have no effect here.
    max_context_length: Any = Field(None, description="Without effect: the model's own context holds.")
    n: Any = Field(None, description="Without effect: one text is generated.")
    rep_pen_range: Any = _WITHOUT_EFFECT
    rep_pen_slope: Any = _WITHOUT_EFFECT
    top_a: Any = _WITHOUT_EFFECT
    typical: Any = _WITHOUT_EFFECT
    tfs: Any = _WITHOUT_EFFECT
    quiet: Any = _WITHOUT_EFFECT
    trim_stop: Any = _WITHOUT_EFFECT
    sampler_order: Any = _WITHOUT_EFFECT

    @property
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
            tuple(self.stop_sequence),
        )


class Abort(Input):
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
        token: TextToken
        attention: GeneratedMessage.Attention | None = Field(
            default=None, description="Only with output_attentions; null when the engine had none to give."
        )

    class DoneMessage(Output):
        type: Literal["done"]
        finish_reason: Reason
        total_tokens: int

    class ErrorMessage(Output):
        type: Literal["error"]
        message: str

    root: TokenMessage | DoneMessage | ErrorMessage


def _tokenize(engine: Engine, asked: Tokenize) -> Tokenized:
    tokens = engine.tokenize(asked.text, special=True)
    if asked.add_special_tokens:
        tokens = _beginning(engine) + tokens
    ids = tokens.ids.tolist()
    pairs = [TextToken(token_id=id, text=text) for id, text in zip(ids, tokens.spelled(), strict=True)]
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


def _prompt_of(engine: Engine, asked: Generate) -> Prompt:
    if (asked.prompt is None) == (asked.input_ids is None):
        raise BadInput("Send either prompt or input_ids.")
    ids = (
        _known_ids(engine, asked.input_ids)
        if asked.input_ids is not None
        else engine.tokenize(asked.prompt or "", special=True).ids
    )
    if not len(ids):
        raise BadInput("The prompt is empty. Send at least one token.")
    if len(ids) >= engine.info.context:
        raise BadInput(f"The prompt has {len(ids)} tokens; this model takes less than {engine.info.context}.")
    return Prompt([Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)], len(ids))


def _attention(step: Step, form: str, model: ModelInfo) -> dict[str, Any] | None:
    """One step's rows as the prototype sends them; None when the engine had none to give."""
    row = step.row
    values = None if row is None else row.raw if form == "per_layer" else row.tokens
    if values is None:
        return None
    if form == "per_layer":
        values = values.reshape(model.layers, model.heads, -1)
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
    engine: Engine, running: Scratch, asked: Generate, prompt: Prompt
) -> Generator[bytes, None, None]:
    """The text as server-sent events, token by token."""
    capture = Capture(raw=asked.attention_format == "per_layer") if asked.output_attentions else None
    decoder = getincrementaldecoder("utf-8")("replace")
    with running.take(asked.name) as (window, stop):
        yield b": reading\n\n"
        steps = engine.generate(window, prompt, asked.sampling, capture, mode="exact", stopped=stop.is_set)
        try:
            for step in steps:
                match step:
                    case Step():
                        token = {"token_id": step.id, "text": decoder.decode(step.piece)}
                        said: dict[str, Any] = {"type": "token", "token": token}
                        if asked.output_attentions:
                            said["attention"] = _attention(step, asked.attention_format, engine.info)
                        yield _message(said)
                    case Done():
                        yield _message(
                            {"type": "done", "finish_reason": step.reason, "total_tokens": step.tokens}
                        )
                    case Read():
                        yield b": read\n\n"
        except HaloWeaveError as error:
            yield _message({"type": "error", "message": str(error)})
        finally:
            close = getattr(steps, "close", None)
            if close:
                close()


async def _text_asked(request: Request) -> Tokenize:
    """The request as JSON, or the text itself as text/plain."""
    plain = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/plain"
    try:
        asked = {"text": (await request.body()).decode()} if plain else await request.json()
    except (ValueError, RecursionError):
        raise BadInput(
            'The body is neither JSON like {"text": …} nor, as text/plain, text in UTF-8.'
        ) from None
    try:
        return Tokenize.model_validate(asked)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(wrong) from None


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


def routes(engine: Callable[[], Engine]) -> APIRouter:
    """The prototype's addresses. `engine` raises while there is none."""
    router = APIRouter(tags=["Prototype"])
    running = Scratch("prototype")

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
            prompt = _prompt_of(engine(), asked)
            lines = _generated(engine(), running, asked, prompt)
            return lines, next(lines)

        return EventStream(hopping(*await anyio.to_thread.run_sync(begin)))

    @router.post("/api/extra/abort", summary="Stop generating")
    def stop_generating(asked: Abort | None = None) -> Aborted:
        name = (asked.request_id or asked.genkey) if asked else None
        return Aborted(success=running.stop(name))

    return router
