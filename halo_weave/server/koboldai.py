"""The KoboldAI API, as far as SillyTavern, KoboldAI Lite and others of its clients need it.

They bring their own prompts, so it uses the engine alone; nothing of it is remembered. Streaming is in `kobold`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Request
from pydantic import Field

from halo_weave import __version__
from halo_weave.ports import Engine
from halo_weave.server.kobold import FamilyInput, Generate, Generations, prompt_of, written
from halo_weave.server.schema import WHOLE, Output
from halo_weave.server.scratch import Scratch

# Clients switch on what a version has: 1.2.5 of the API, and streaming by events since 1.40 of KoboldCpp.
_API, _FAMILY = "1.2.5", "1.60"
_USUAL_LENGTH = 256


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


class CountTokens(FamilyInput):
    prompt: Annotated[str, Field(max_length=900_000, pattern=WHOLE)]


class TokenCount(Output):
    value: int
    ids: list[int]


class KoboldText(Output):
    text: str
    finish_reason: str | None = None


class KoboldTexts(Output):
    results: list[KoboldText]


class KoboldPerf(Output):
    """Figures of the last generation, in seconds and tokens."""

    last_process: float
    last_eval: float
    last_token_count: int
    stop_reason: int = Field(description="-1: none, 0: out of tokens, 1: the end, 2: a stop text.")
    total_gens: int
    queue: int
    idle: int = Field(description="1 if nothing is being generated.")
    uptime: float


_STOPS = {"length": 0, "context": 0, "eos": 1, "stop": 2}


def routes(
    engine: Callable[[], Engine], running: Callable[[], Scratch], past: Callable[[], Generations]
) -> APIRouter:
    router = APIRouter(tags=["KoboldAI"])

    @router.get("/api/v1/info/version", summary="The version of the API")
    def get_api_version() -> KoboldResult:
        return KoboldResult(result=_API)

    @router.get("/api/extra/version", summary="The server, as its clients know it")
    def get_server_version() -> KoboldVersion:
        return KoboldVersion(result="KoboldCpp", version=_FAMILY)

    @router.get("/api/v1/config/max_context_length", summary="Tokens that the model can read")
    def get_max_context() -> KoboldValue:
        return KoboldValue(value=engine().info.context)

    @router.get("/api/extra/true_max_context_length", summary="Tokens that the model can read, really")
    def get_true_max_context() -> KoboldValue:
        return KoboldValue(value=engine().info.context)

    @router.get("/api/v1/config/max_length", summary="Tokens of a text where a request names none")
    def get_max_length() -> KoboldValue:
        return KoboldValue(value=_USUAL_LENGTH)

    @router.post("/api/extra/tokencount", summary="How many tokens a text has")
    def post_token_count(asked: CountTokens) -> TokenCount:
        ids = engine().tokenize(asked.prompt, special=True).ids.tolist()
        return TokenCount(value=len(ids), ids=ids)

    @router.post("/api/v1/generate", summary="Generate a text")
    async def post_generate(asked: Generate, request: Request) -> KoboldTexts:
        return await anyio.to_thread.run_sync(_whole, engine(), running(), past(), asked)

    @router.post("/api/extra/generate/check", summary="What was generated so far")
    def post_check(asked: CheckText | None = None) -> KoboldTexts:
        """By the genkey of the request; without one, of the last that began."""
        name = asked.genkey if asked else None
        texts = past().texts
        text = texts.get(name, "") if name else next(reversed(texts.values()), "")
        return KoboldTexts(results=[KoboldText(text=text)])

    @router.get("/api/extra/perf", summary="Figures of the last generation")
    def get_perf() -> KoboldPerf:
        busy, own = len(running().running), past()
        return KoboldPerf(
            last_process=own.last_reading,
            last_eval=own.last_writing,
            last_token_count=own.last_tokens,
            stop_reason=_STOPS.get(own.last_reason, -1),
            total_gens=own.count,
            queue=busy,
            idle=int(not busy),
            uptime=time.monotonic() - own.began,
        )

    return router


class CheckText(FamilyInput):
    genkey: str | None = Field(default=None, max_length=200)


def _whole(engine: Engine, running: Scratch, past: Generations, asked: Generate) -> KoboldTexts:
    prompt = prompt_of(engine, asked)
    with running.take(asked.name) as (window, stop):
        tokens: list[Any] = list(written(engine, window, stop, asked, prompt, past))
    reason = "length" if tokens[-1].reason in ("length", "context") else "stop"
    text = "".join(token.shown for token in tokens)
    return KoboldTexts(results=[KoboldText(text=text, finish_reason=reason)])
