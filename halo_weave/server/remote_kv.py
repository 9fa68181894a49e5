"""The API for another Halo Weave that uses this server's model (`/api/remote-kv`): KV caches by window, attention of chosen heads."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter
from pydantic import Field

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.engines.base import (
    Capture,
    Engine,
    GenerationEnd,
    GenerationEvent,
    LateAttention,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Segment,
    Step,
)
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.server.auth import CURRENT_USER
from halo_weave.server.errors import ApiError, json_bytes
from halo_weave.server.schema import TEXT_PATTERN, Input, Output
from halo_weave.server.stateless_runs import StatelessRuns
from halo_weave.store.records import OWNER

SHARES_PER_HEAD = (
    64  # largest values that are sent of each row; the receiver spreads the rest of the sum evenly
)
_MOST_IDS = 200_000
_LABEL = 2**62
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=TEXT_PATTERN)]
_Pair = Annotated[list[Annotated[int, Field(ge=0, lt=4096)]], Field(min_length=2, max_length=2)]
_Label = Annotated[int, Field(ge=-_LABEL, le=_LABEL)]


class RemoteKvRequest(Input):
    """Fields that another Halo Weave adds to a request."""

    window: _Name = Field(description="The window whose cache is used and kept.")
    tokenizer: str = Field(
        max_length=200, description="Tokenizer of the expected model; another one is refused."
    )
    labels: list[_Label] = Field(
        max_length=_MOST_IDS, description="One for each of input_ids, all different."
    )
    next_label: _Label = Field(description="Label of the first generated token; they count up from there.")
    read_from: int | None = Field(
        default=None, ge=0, description="Index of input_ids from which attention of the prompt is reported."
    )
    splice: bool = Field(
        default=True,
        description="Whether cells may be removed from the KV cache and restored; else the prompt is computed from the first change on.",
    )
    heads: list[_Pair] | None = Field(
        default=None, max_length=512, description="(layer, head) pairs whose rows are captured."
    )
    mean: bool = Field(default=False, description="Whether the mean over all heads is captured.")
    reply: bool = Field(default=True, description="Whether rows of generated tokens are captured.")
    reading: bool = Field(default=False, description="Whether rows are captured from read_from on.")
    surprisal: bool = Field(default=False, description="Whether surprisal is reported from read_from on.")
    grammar: str = Field(default="", max_length=200_000, pattern=TEXT_PATTERN)
    temporary: bool = Field(default=False, description="Whether the cells are never written to disk.")

    @property
    def capture(self) -> Capture | None:
        if not (self.reply or self.reading or self.surprisal):
            return None
        pairs = tuple((layer, head) for layer, head in self.heads) if self.heads else None
        return Capture(
            pairs=None if self.mean else pairs,
            raw=pairs is not None,
            raw_pairs=pairs if self.mean else None,
            reply=self.reply,
            reading=self.reading,
            reading_surprisal=self.surprisal,
        )

    def prompt(self, ids: npt.NDArray[np.int32]) -> Prompt:
        if len(self.labels) != len(ids):
            raise BadInput(f"There are {len(self.labels)} labels for {len(ids)} tokens. Send one for each.")
        if self.read_from is not None and self.read_from >= len(ids):
            raise BadInput(f"read_from is {self.read_from}, and the prompt has {len(ids)} tokens.")
        labels = np.array(self.labels, np.int64)
        first = None if self.read_from is None else int(labels[self.read_from])
        return Prompt([Segment("chunk", labels, ids)], self.next_label, first, temporary=self.temporary)


def check_may_send_grammar(grammar: str) -> None:
    """Refuse grammars of people other than the owner: a hostile grammar can keep llama.cpp busy for hours."""
    if grammar and CURRENT_USER.get() not in (None, OWNER):
        raise ApiError(
            403,
            "forbidden",
            "Only the owner of this server may send a grammar. Send the request without one.",
        )


class RemoteKvModel(Output):
    """What another Halo Weave needs to build prompts for this model."""

    tokenizer: str
    chat_template: str = Field(description="Its source; empty: ChatML.")
    template_words: dict[str, str] = Field(description="The template's bos_token and eos_token.")
    adds_bos: bool
    parameters: int
    wide_layers: list[int]
    abilities: dict[str, bool]
    heads: list[dict[str, float]] = Field(description="The retrieval heads; empty before calibration.")
    attention_source: str = Field(description="Where the attention comes from.")


class ModelProps(Output):
    """The chat template, in the format of KoboldCpp servers."""

    chat_template: str
    bos_token: str
    eos_token: str


class TokenBytes(Output):
    """Tokens with their bytes."""

    ids: list[int]
    raw: str = Field(json_schema_extra={"contentEncoding": "base64"})
    ends: list[int] = Field(description="Where each token ends in the bytes.")
    controls: list[int] = Field(description="Which of them are control tokens.")


class TokenBytesRequest(Input):
    text: str | None = Field(default=None, max_length=900_000)
    special: bool = Field(default=False, description="Whether control tokens in the text are recognised.")
    ids: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(default=None, max_length=_MOST_IDS)


class RemoteKvForget(Input):
    window: _Name | None = Field(default=None, description="The window whose cache is dropped.")
    spans: list[Annotated[list[_Label], Field(min_length=2, max_length=2)]] = Field(
        default=[],
        max_length=10_000,
        description="Labels of deleted text: the first, and the one after the last.",
    )
    windows: list[_Name] = Field(
        default=[],
        max_length=10_000,
        description="The windows whose prompts have contained it: later text in them is computed again.",
    )


class RemoteKvForgotten(Output):
    done: Literal[True] = True


def routes(engine: Callable[[], Engine], calibration: Callable[[], Calibration]) -> APIRouter:
    router = APIRouter(tags=["Remote KV"])

    @router.get("/api/remote-kv", summary="Describe the model for another Halo Weave")
    def get_remote_model() -> RemoteKvModel:
        info, known = engine().info, calibration()
        return RemoteKvModel(
            tokenizer=info.tokenizer,
            chat_template=info.chat_template,
            template_words=dict(info.template_words),
            adds_bos=info.adds_bos,
            parameters=info.parameters,
            wide_layers=list(info.wide_layers),
            abilities=asdict(info.abilities),
            heads=[head._asdict() for head in known.heads],
            attention_source=known.sentence,
        )

    @router.get("/props", summary="Show the chat template")
    def get_props() -> ModelProps:
        info = engine().info
        words = {name: info.template_words.get(name, "") for name in ("bos_token", "eos_token")}
        return ModelProps(chat_template=info.chat_template, **words)

    @router.post("/api/remote-kv/tokens", summary="Convert text to tokens, or token ids to bytes")
    def post_bytes(body: TokenBytesRequest) -> TokenBytes:
        model = engine()
        if (body.text is None) == (body.ids is None):
            raise BadInput("Send either a text or ids.")
        if body.text is not None:
            tokens = model.tokenize(body.text, special=body.special)
        else:
            ids = np.array(body.ids, np.int32)
            if len(ids) and ids.max() >= model.info.vocabulary:
                raise BadInput(f"The model's vocabulary ends at {model.info.vocabulary}.")
            tokens = model.pieces(ids)
        return TokenBytes(
            ids=tokens.ids.tolist(),
            raw=base64.b64encode(tokens.raw).decode(),
            ends=tokens.ends.tolist(),
            controls=np.flatnonzero(model.controls(tokens.ids)).tolist(),
        )

    @router.post("/api/remote-kv/forget", summary="Drop the cache of a window, or of deleted chunks")
    def post_forget(body: RemoteKvForget) -> RemoteKvForgotten:
        if body.window is not None:
            if body.window.endswith("/"):
                raise BadInput("The name of a window does not end with a /. Send the name of one window.")
            engine().forget(_engine_window(body.window))
        if body.spans and CURRENT_USER.get() in (None, OWNER):
            spans = [(first, last) for first, last in body.spans]
            engine().erase(spans, [_engine_window(name) for name in body.windows])
        elif body.spans:  # labels of different windows may be equal: drop all caches of this person
            engine().forget(_engine_window(""))
        return RemoteKvForgotten()

    return router


def _engine_window(name: str) -> str:
    """The engine's name for a window of the current person; for an empty name, all of the person's windows."""
    return f"remote {CURRENT_USER.get() or OWNER}/{name}"


def stream_generation(
    engine: Engine,
    running: StatelessRuns,
    name: str,
    ids: npt.NDArray[np.int32],
    sampling: Sampling,
    body: RemoteKvRequest,
) -> Generator[bytes, None, None]:
    """One generation as server-sent events: `planned`, `read`, a `token` for each token, `done`."""
    return _event_lines(engine, running, name, _engine_window(body.window), ids, sampling, body)


def _event_lines(
    engine: Engine,
    running: StatelessRuns,
    name: str,
    window: str,
    ids: npt.NDArray[np.int32],
    sampling: Sampling,
    body: RemoteKvRequest,
) -> Generator[bytes, None, None]:
    if body.tokenizer != engine.info.tokenizer:
        raise ApiError(
            409, "another_model", f"This server now runs {engine.info.name}, which has another tokenizer."
        )
    prompt = body.prompt(ids)
    with running.take(name) as (_, stop):
        yield b": reading\n\n"
        steps = engine.generate(
            window,
            prompt,
            sampling,
            body.capture,
            mode="splice" if body.splice else "exact",
            stopped=stop.is_set,
        )
        try:
            for step in steps:
                yield b"event: message\ndata: %b\n\n" % json_bytes(
                    {"request_id": name, **_event_json(step, body.mean)}
                )
        except HaloWeaveError as error:
            failure = {"type": "error", "request_id": name, "message": str(error)}
            yield b"event: message\ndata: %b\n\n" % json_bytes(failure)
        finally:
            close = getattr(steps, "close", None)
            if close:
                close()


def _event_json(step: GenerationEvent, mean: bool) -> dict[str, Any]:
    match step:
        case PrefillPlanned():
            return {"type": "planned", **asdict(step)}
        case PrefillResult():
            return {
                "type": "read",
                **{
                    name: getattr(step, name)
                    for name in ("reused", "restored", "computed", "shifted", "rebuilt")
                },
                "seconds": step.seconds,
                "surprisal": None if step.surprisal is None else _base64(step.surprisal, np.float32),
                "attention": [_attention(row, mean) for row in step.rows],
            }
        case Step():
            known = np.isfinite(step.surprisal)
            return {
                "type": "token",
                "token": {"token_id": step.id, "text": step.piece.decode("utf-8", "replace")},
                "raw": base64.b64encode(step.piece).decode(),
                "surprisal": step.surprisal if known else None,
                "attention": _attention(step.row, mean),
            }
        case LateAttention():
            return {"type": "seen"}
        case GenerationEnd():
            ended = {"type": "done", "finish_reason": step.reason, "total_tokens": step.tokens}
            return {**ended, "attention": _attention(step.row, mean)}


def _attention(row: AttentionRow | None, mean: bool) -> dict[str, Any] | None:
    """The largest values of each chosen head's row. Without chosen heads, or if `mean`, also the mean row."""
    if row is None:
        return None
    count = row.tokens.size
    sent_row: dict[str, Any] = {
        "format": "heads",
        "context_length": count,
        "encoding": "base64",
        "dtype": "float16",
    }
    if mean or row.raw is None:
        sent_row["mean"] = _base64(row.tokens, np.float16)
    if row.raw is None:
        return sent_row
    size = min(SHARES_PER_HEAD, count)
    indices = np.argpartition(row.raw, count - size, axis=1)[:, count - size :]
    shares = np.take_along_axis(row.raw, indices, axis=1)
    sent_row |= {
        "shape": [len(row.raw), size],
        "indices": _base64(indices, np.int32),
        "data": _base64(shares, np.float16),
    }
    return sent_row


def _base64(values: npt.NDArray[Any], kind: type[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, np.dtype(kind).newbyteorder("<")).tobytes()).decode()
