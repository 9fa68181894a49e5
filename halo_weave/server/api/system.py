"""Status, health, settings and statistics; export, import, clearing and reindexing of the memory; browser sessions."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from halo_weave import __version__
from halo_weave.chat import Weave
from halo_weave.chat.export import ExportFormat
from halo_weave.chat.memory import EmbeddingState, ImportState
from halo_weave.errors import HaloWeaveError, StoreFull
from halo_weave.server import requests, views
from halo_weave.server.api.models import check_embedder
from halo_weave.server.auth import CURRENT_USER, UNKNOWN_USER, Policy
from halo_weave.server.requests import TimeText, WindowId
from halo_weave.server.schema import Id
from halo_weave.server.service import Service
from halo_weave.server.sse import StreamedBody, iterate_in_threads
from halo_weave.settings import described_settings
from halo_weave.store.records import OWNER, ExportFilter, ImportResult

BLOCK = 1 << 18
FILE = {
    "description": "One JSON value, made to be read as a stream; or Markdown.",
    "content": {
        "application/json": {"schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {}}]}},
        "text/markdown": {"schema": {"type": "string"}},
    },
}
FILE_BODY = {
    "requestBody": {
        "required": True,
        "description": "An export of Halo Weave or of another program, a zip of such files, or a character card.",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "application/json": {"schema": {"type": "object"}},
        },
    }
}


def routes(service: Service, policy: Policy) -> APIRouter:
    router = APIRouter(tags=["Maintenance"])

    def all_settings(values: dict[str, Any]) -> views.SettingsView:
        described = [
            views.SettingDescription(**{**setting, "choices": list(setting["choices"])})
            for setting in described_settings()
        ]
        auto = service.weave.windows.automatic()
        return views.SettingsView(described=described, values=values, auto=auto)

    @router.get("/api/status", summary="Show the status of model, embedder and memory")
    def get_status() -> views.Status:
        return service.status()

    @router.get("/api/settings", summary="List settings with their values for all windows")
    def get_settings() -> views.SettingsView:
        return all_settings(service.weave.windows.settings().as_mapping())

    @router.patch("/api/settings", summary="Change settings of all windows")
    def patch_settings(body: requests.SettingsChange) -> views.SettingsView:  # type: ignore[valid-type]
        changes = requests.given_fields(body)
        values = service.weave.windows.change_settings(changes, reset=body.reset)  # type: ignore[attr-defined]
        return all_settings(values.as_mapping())

    @router.get("/api/stats", summary="Show statistics of the memory")
    def get_stats() -> views.MemoryStats:
        stats_view = views.MemoryStats.model_validate(service.weave.memory.stats())
        return stats_view.model_copy(update={"clients": service.weave.turns.watchers})

    @router.get(
        "/api/export",
        summary="Export the memory as a file",
        response_class=StreamedBody,
        status_code=200,
        responses={200: FILE},
    )
    def get_export(
        window: WindowId | None = None,
        first_turn: Id | None = None,
        last_turn: Id | None = None,
        since: TimeText | None = None,
        until: TimeText | None = None,
        embeddings: bool = False,
        format: ExportFormat = "halo-weave",
    ) -> StreamedBody:
        """Times without a zone are UTC. A question and its answer are never separated. `markdown` exports one window,
        `chatgpt` has the format of ChatGPT's export; both use only the field `window`."""
        subset = ExportFilter(
            window,
            None if first_turn is None else requests.parse_position(first_turn),
            None if last_turn is None else requests.parse_position(last_turn),
            requests.parse_time(since),
            requests.parse_time(until),
        )
        memory = service.weave.memory
        with _spool_file(memory.folder) as file:
            write = lambda text: file.write(text.encode())  # noqa: E731
            if format == "halo-weave":
                memory.export(write, subset=subset, vectors=embeddings)
            else:
                memory.tell(write, format, window)
        size = file.tell()
        kind, ending = (
            ("text/markdown; charset=utf-8", "md") if format == "markdown" else ("application/json", "json")
        )
        name = f"halo-weave-{datetime.now(UTC):%Y-%m-%d}.{ending}"
        headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(size)}
        pieces = _blocks(file)
        first = next(pieces)  # started, so that it closes the file even if the client disconnects at once
        return StreamedBody(iterate_in_threads(pieces, first), kind, headers)

    @router.post("/api/import", summary="Import a file into the memory", openapi_extra=FILE_BODY)
    async def post_import(request: Request) -> ImportResult:
        """The format is recognised. Stored conversations stay unchanged; importing again adds what is new."""
        memory = service.unrestricted_weave.memory
        with _spool_file(memory.folder) as file:
            async for piece in request.stream():
                await run_in_threadpool(file.write, piece)
        with file:
            return await run_in_threadpool(memory.import_file, file)

    @router.get("/api/import", summary="Show the progress of an import")
    def get_import() -> ImportState:
        return service.unrestricted_weave.memory.importing()

    @router.post("/api/clear", summary="Delete the whole memory", status_code=204)
    def post_clear(body: requests.ClearMemory) -> None:
        service.unrestricted_weave.memory.clear()

    @router.post("/api/reindex", summary="Embed everything again", status_code=202)
    def post_reindex(body: requests.Reindex | None = None) -> EmbeddingState:
        """Runs in the background, with another embedder if one is named. Search keeps using the existing vectors
        meanwhile."""
        memory = service.unrestricted_weave.memory
        name = body.embedder.strip() if body and body.embedder else None
        if name is not None:
            check_embedder(name, any_path=not policy.key)
        return memory.embed_anew(name)

    @router.get("/api/reindex", summary="Show the progress of embedding")
    def get_reindex() -> EmbeddingState:
        return service.weave.memory.embedding()

    @router.post("/api/session", summary="Start a session: exchange the key for a cookie", status_code=204)
    def post_session(request: Request) -> Response:
        """For requests of the page that cannot send the key in a header: links and event sources. Sessions end with the
        server."""
        answer = Response(status_code=204)
        person = CURRENT_USER.get()
        if person not in (None, UNKNOWN_USER):
            policy.sessions.end(policy.session_of(request.headers))
            mark = "" if person == OWNER else service.weave.people.key_mark(person) or ""
            session = policy.sessions.begin(person, mark)
            answer.set_cookie(policy.cookie, session, httponly=True, samesite="strict")
        return answer

    @router.delete("/api/session", summary="End the session", status_code=204)
    def delete_session(request: Request) -> Response:
        """The session's cookie is no longer valid."""
        policy.sessions.end(policy.session_of(request.headers))
        answer = Response(status_code=204)
        answer.delete_cookie(policy.cookie, httponly=True, samesite="strict")
        return answer

    return router


@contextmanager
def _spool_file(folder: Path) -> Iterator[IO[bytes]]:
    """A temporary file, closed if the block fails.

    It is beside the memory, since the system's temporary folder may be in RAM. It has no name, so it disappears if the
    process is killed.
    """
    try:
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
        try:
            yield file
            file.flush()
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise StoreFull(
            f"The temporary file cannot be written to {folder}: {error.strerror or error}. Free some space there, then "
            "try again."
        ) from error


def _blocks(file: IO[bytes]) -> Generator[bytes, None, None]:
    with file:
        file.seek(0)
        while block := file.read(BLOCK):
            yield block


TEXT = "text/plain; version=0.0.4; charset=utf-8"
# By the name of a counter: its metric and description.
COUNTERS = {
    "turns": ("turns_total", "Turns that ended."),
    "failures": ("turn_failures_total", "Turns that failed."),
    "tokens": ("tokens_total", "Tokens generated."),
    "seconds": ("turn_seconds_total", "Seconds that turns took."),
    "writing_seconds": ("generation_seconds_total", "Seconds in which tokens were generated."),
    "own_seconds": (
        "overhead_seconds_total",
        "Seconds of turns before the model was called, including recall.",
    ),
    "recall_seconds": ("recall_seconds_total", "Seconds of recall: search and the recall plan."),
    "resurrected": ("chunks_resurrected_total", "Chunks that were resurrected."),
    "pruned": ("chunks_pruned_total", "Chunks that were pruned."),
    "store_errors": ("store_errors_total", "Turns that failed because of the store."),
}
PREFILL_KINDS = ("reused", "restored", "computed")


def health_routes(service: Service) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/healthz")
    def get_health() -> PlainTextResponse:
        """The process answers requests."""
        return PlainTextResponse("ok\n")

    @router.get("/readyz")
    def get_readiness() -> PlainTextResponse:
        """The memory can be read and the model is loaded; else 503 with the reason."""
        try:
            service.check()
        except HaloWeaveError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ready\n")

    @router.get("/metrics")
    def get_metrics() -> PlainTextResponse:
        return PlainTextResponse("".join(_lines(service.unrestricted_weave)), media_type=TEXT)

    return router


def _lines(weave: Weave) -> Iterator[str]:
    sums = weave.turns.totals.read()
    for key, (name, about) in COUNTERS.items():
        yield _metric(name, "counter", about, f"{sums[key]:.10g}")
    yield _head(
        "prompt_tokens_total", "counter", "Tokens of prompts, by where their keys and values came from."
    )
    for kind in PREFILL_KINDS:
        yield f'halo_weave_prompt_tokens_total{{from="{kind}"}} {sums[kind]}\n'
    yield _metric(
        "turns_running",
        "gauge",
        "Turns that are running or waiting for the model.",
        len(weave.turns.generating()),
    )
    yield _metric(
        "turns_waiting", "gauge", "Of these, turns that wait for their first token.", weave.turns.waiting
    )
    rate = sums["tokens"] / sums["writing_seconds"] if sums["writing_seconds"] else 0
    yield _metric(
        "tokens_per_second",
        "gauge",
        "Generated tokens per second, on average since the start.",
        f"{rate:.4g}",
    )
    yield _metric(
        "event_clients", "gauge", "Clients that follow the events of a window.", weave.turns.watchers
    )
    yield _head("info", "gauge", "The version.") + f'halo_weave_info{{version="{__version__}"}} 1\n'


def _head(name: str, kind: str, about: str) -> str:
    return f"# HELP halo_weave_{name} {about}\n# TYPE halo_weave_{name} {kind}\n"


def _metric(name: str, kind: str, about: str, value: object) -> str:
    return f"{_head(name, kind, about)}halo_weave_{name} {value}\n"
