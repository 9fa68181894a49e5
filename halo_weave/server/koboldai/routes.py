"""The rest of the KoboldAI API: version, limits, token counts, text generation without streaming."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import Field

from halo_weave import __version__
from halo_weave.engines.base import Engine
from halo_weave.server.koboldai.generation import (
    Generate,
    GenerationHistory,
    KoboldInput,
    generate_tokens,
    prompt_of,
)
from halo_weave.server.schema import TEXT_PATTERN, Output
from halo_weave.server.stateless_runs import StatelessRuns

# Clients enable features by version: 1.2.5 of the API, and streaming by events since KoboldCpp 1.40.
_API_VERSION, _KOBOLDCPP_VERSION = "1.2.5", "1.60"
_DEFAULT_LENGTH = 256


class KoboldResult(Output):
    result: str


class KoboldVersion(Output):
    result: Literal["KoboldCpp"] = Field(description="The server whose API this is.")
    version: str
    protected: bool = False
    txt2img: bool = False
    vision: bool = False
    halo_weave: str = __version__


class KoboldValue(Output):
    value: int


class CountTokens(KoboldInput):
    prompt: Annotated[str, Field(max_length=900_000, pattern=TEXT_PATTERN)]


class TokenCount(Output):
    value: int
    ids: list[int]


class KoboldText(Output):
    text: str
    finish_reason: str | None = None


class KoboldTexts(Output):
    results: list[KoboldText]


class KoboldPerf(Output):
    """Statistics of the last generation, in seconds and tokens."""

    last_process: float
    last_eval: float
    last_token_count: int
    stop_reason: int = Field(description="-1: none, 0: length limit, 1: end of generation, 2: stop string.")
    total_gens: int
    queue: int
    idle: int = Field(description="1 if nothing is being generated.")
    uptime: float


_STOP_REASONS = {"length": 0, "context": 0, "eos": 1, "stop": 2}


def routes(
    engine: Callable[[], Engine],
    running: Callable[[], StatelessRuns],
    generation_history: Callable[[], GenerationHistory],
) -> APIRouter:
    router = APIRouter(tags=["KoboldAI"])

    @router.get("/api/v1/info/version", summary="Show the version of the API")
    def get_api_version() -> KoboldResult:
        return KoboldResult(result=_API_VERSION)

    @router.get("/api/extra/version", summary="Show the version of the server")
    def get_server_version() -> KoboldVersion:
        return KoboldVersion(result="KoboldCpp", version=_KOBOLDCPP_VERSION)

    @router.get("/api/v1/config/max_context_length", summary="Show how many tokens the model can read")
    def get_max_context() -> KoboldValue:
        return KoboldValue(value=engine().info.context)

    @router.get("/api/extra/true_max_context_length", summary="Show the context length of the model")
    def get_true_max_context() -> KoboldValue:
        return KoboldValue(value=engine().info.context)

    @router.get("/api/v1/config/max_length", summary="Show the default length of a generated text")
    def get_max_length() -> KoboldValue:
        return KoboldValue(value=_DEFAULT_LENGTH)

    @router.post("/api/extra/tokencount", summary="Count the tokens of a text")
    def post_token_count(request: CountTokens) -> TokenCount:
        ids = engine().tokenize(request.prompt, special=True).ids.tolist()
        return TokenCount(value=len(ids), ids=ids)

    @router.post("/api/v1/generate", summary="Generate a text")
    async def post_generate(body: Generate, request: Request) -> KoboldTexts:
        return await anyio.to_thread.run_sync(_generate_text, engine(), running(), generation_history(), body)

    @router.post("/api/extra/generate/check", summary="Show what was generated so far")
    def post_check(request: CheckText | None = None) -> KoboldTexts:
        """By the genkey of the request; without one, the last generation."""
        name = request.genkey if request else None
        texts = generation_history().texts
        text = texts.get(name, "") if name else next(reversed(texts.values()), "")
        return KoboldTexts(results=[KoboldText(text=text)])

    @router.get("/api/extra/perf", summary="Show statistics of the last generation")
    def get_perf() -> KoboldPerf:
        busy, own = len(running().running), generation_history()
        return KoboldPerf(
            last_process=own.last_reading,
            last_eval=own.last_writing,
            last_token_count=own.last_tokens,
            stop_reason=_STOP_REASONS.get(own.last_reason, -1),
            total_gens=own.count,
            queue=busy,
            idle=int(not busy),
            uptime=time.monotonic() - own.started,
        )

    return router


class CheckText(KoboldInput):
    genkey: str | None = Field(default=None, max_length=200)


def _generate_text(
    engine: Engine, running: StatelessRuns, generation_history: GenerationHistory, request: Generate
) -> KoboldTexts:
    prompt = prompt_of(engine, request)
    with running.take(request.name) as (window, stop):
        tokens: list[Any] = list(generate_tokens(engine, window, stop, request, prompt, generation_history))
    reason = "length" if tokens[-1].reason in ("length", "context") else "stop"
    text = "".join(token.shown for token in tokens)
    return KoboldTexts(results=[KoboldText(text=text, finish_reason=reason)])
