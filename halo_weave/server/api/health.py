"""Health checks and Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from starlette.responses import PlainTextResponse

from halo_weave import __version__
from halo_weave.chat import Weave
from halo_weave.errors import HaloWeaveError
from halo_weave.server.service import Service

TEXT = "text/plain; version=0.0.4; charset=utf-8"
# By the name of a sum: how it is called, and what it says.
COUNTERS = {
    "turns": ("turns_total", "Turns that ended."),
    "failures": ("turn_failures_total", "Turns that failed."),
    "tokens": ("tokens_total", "Tokens written."),
    "seconds": ("turn_seconds_total", "Seconds that turns took."),
    "writing_seconds": ("generation_seconds_total", "Seconds in which tokens were written."),
    "own_seconds": ("overhead_seconds_total", "Seconds before the model was asked, recall among them."),
    "recall_seconds": ("recall_seconds_total", "Seconds of that for finding what should be resurrected."),
    "woken": ("chunks_resurrected_total", "Chunks that were resurrected."),
    "asleep": ("chunks_pruned_total", "Chunks that were pruned."),
    "store_errors": ("store_errors_total", "Turns that failed because of the store."),
}
PREFILL_KINDS = ("reused", "restored", "computed")


def routes(service: Service) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    def get_health() -> PlainTextResponse:
        """The process answers."""
        return PlainTextResponse("ok\n")

    @router.get("/readyz")
    def get_readiness() -> PlainTextResponse:
        """The memory can be read and the model speaks; else 503 with the reason."""
        try:
            service.check()
        except HaloWeaveError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ready\n")

    @router.get("/metrics")
    def get_metrics() -> PlainTextResponse:
        return PlainTextResponse("".join(_lines(service.whole)), media_type=TEXT)

    return router


def _lines(weave: Weave) -> Iterator[str]:
    sums = weave.turns.totals.read()
    for key, (name, about) in COUNTERS.items():
        yield _metric(name, "counter", about, f"{sums[key]:.10g}")
    yield _head(
        "prompt_tokens_total", "counter", "Tokens of prompts, by where their keys and values came from."
    )
    for how in PREFILL_KINDS:
        yield f'halo_weave_prompt_tokens_total{{from="{how}"}} {sums[how]}\n'
    yield _metric(
        "turns_running", "gauge", "Turns under way or waiting for the model.", len(weave.turns.generating())
    )
    yield _metric(
        "turns_waiting", "gauge", "Of these, turns that wait for their first token.", weave.turns.waiting
    )
    pace = sums["tokens"] / sums["writing_seconds"] if sums["writing_seconds"] else 0
    yield _metric(
        "tokens_per_second", "gauge", "Tokens written a second, on average since the start.", f"{pace:.4g}"
    )
    yield _metric(
        "event_clients", "gauge", "Clients that follow the events of a window.", weave.turns.watchers
    )
    yield _head("info", "gauge", "The version.") + f'halo_weave_info{{version="{__version__}"}} 1\n'


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP halo_weave_{name} {about}\n# TYPE halo_weave_{name} {kind}\n"


def _metric(name: str, kind: str, about: str, value: object) -> str:
    return f"{_head(name, kind, about)}halo_weave_{name} {value}\n"
