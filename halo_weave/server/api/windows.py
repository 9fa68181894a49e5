"""Windows: list, create, change, delete; context, transcript, graveyard, events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from halo_weave.core.tokens import Role
from halo_weave.server import requests, views
from halo_weave.server.errors import ApiError
from halo_weave.server.events import EVENTS
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import TEXT_PATTERN, Id
from halo_weave.server.service import Service
from halo_weave.server.sse import EventStream, describe_events, follow_events
from halo_weave.settings import FIELDS

EventId = Annotated[
    str | None, Query(max_length=100, description="The id of the last event that the client has.")
]
MAX_WATCHERS = 256
EXAMPLE = 'id: 3f9a01bc-17\nevent: token\ndata: {"id":260,"position":"42","text":" Mochi","tool":false}\n\n'


def _own_settings(body: BaseModel | None) -> tuple[dict[str, Any], list[str]]:
    """The window's own settings, and the names of those to reset: null for a setting that cannot be empty."""
    fields = requests.given_fields(body) if body else {}
    reset = [
        name for name, value in fields.items() if value is None and not FIELDS[name].metadata["optional"]
    ]
    return {name: value for name, value in fields.items() if name not in reset}, reset


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/windows", tags=["Windows"])

    def state(window_id: str) -> views.Window:
        return views.Window.model_validate(service.weave.windows.state(window_id))

    @router.get("", summary="List windows")
    def get_windows() -> views.Windows:
        return views.Windows.model_validate({"windows": service.weave.windows.list()})

    @router.post("", summary="Create a window", status_code=201)
    def post_window(body: requests.NewWindow) -> views.Window:
        named = {name: value for name, value in requests.given_fields(body).items() if value is not None}
        settings, _ = _own_settings(named.pop("settings", None))
        return state(service.weave.windows.create(**named, settings=settings).id)

    @router.get("/{window_id}", summary="Show a window")
    def get_window(window_id: WindowId) -> views.Window:
        return state(window_id)

    @router.patch("/{window_id}", summary="Change a window")
    def patch_window(window_id: WindowId, body: requests.WindowChange) -> views.Window:
        changes = requests.given_fields(body)
        own = changes.pop("settings", None)
        settings, reset = _own_settings(own)
        service.weave.windows.change(window_id, **changes, settings=settings, reset=[*body.reset, *reset])
        return state(window_id)

    @router.delete("/{window_id}", summary="Delete a window; its text stays in memory", status_code=204)
    def delete_window(window_id: WindowId) -> None:
        service.weave.windows.delete(window_id)

    # Turns

    @router.post("/{window_id}/prune", summary="Prune a window to its budget now", tags=["Turns"])
    def post_prune(window_id: WindowId) -> views.PruneResult:
        """Prunes now what would be pruned after the next reply."""
        return views.PruneResult.model_validate(service.weave.windows.prune(window_id))

    @router.get(
        "/{window_id}/events",
        summary="Follow the events of a window",
        tags=["Turns"],
        response_class=EventStream,
        status_code=200,
        responses={200: describe_events(EVENTS.items(), EXAMPLE)},
    )
    async def get_events(
        window_id: WindowId,
        after: EventId = None,
        last_event_id: Annotated[str | None, Header(max_length=100)] = None,
    ) -> EventStream:
        """Starts after the named event, or with the next one. After `reset`, load the context again."""
        turns = service.weave.turns
        hub = await run_in_threadpool(turns.hub, window_id)
        if turns.watchers >= MAX_WATCHERS:
            raise ApiError(
                503, "too_many_clients", f"{MAX_WATCHERS} clients are listening already. Close some."
            )
        return EventStream(follow_events(hub, last_event_id or after))

    # Reading

    @router.get(
        "/{window_id}/context",
        summary="Show the context: exactly what the model sees",
        tags=["Context and search"],
    )
    def get_context(window_id: WindowId) -> views.WindowContext:
        return views.WindowContext.of(service.weave.windows.context(window_id))

    @router.get("/{window_id}/turns", summary="List the turns of a window", tags=["Context and search"])
    def get_turns(
        window_id: WindowId,
        offset: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        around: Id | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> views.Transcript:
        """From an offset on, around a turn, or by default the last ones. Pruned chunks are included."""
        turn = None if around is None else requests.parse_position(around)
        page = service.weave.windows.said(window_id, offset=offset, around=turn, limit=limit)
        return views.Transcript.model_validate(page)

    @router.get(
        "/{window_id}/turns/{turn_id}/sources",
        summary="Show the sources of a reply",
        tags=["Context and search"],
    )
    def get_sources(window_id: WindowId, turn_id: Id) -> views.ReplySources:
        start, use = service.weave.windows.use(window_id, requests.parse_position(turn_id))
        return views.ReplySources.model_validate({"start": start, "attribution": use})

    @router.get(
        "/{window_id}/graveyard",
        summary="List the graveyard: pruned chunks of a window",
        tags=["Context and search"],
    )
    def get_graveyard(
        window_id: WindowId,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        sort: Literal["pruned", "peak", "tokens", "position"] = "pruned",
        order: Literal["asc", "desc"] = "desc",
        role: Role | None = None,
        text: Annotated[str | None, Query(max_length=1000, pattern=TEXT_PATTERN)] = None,
    ) -> views.Graveyard:
        page = service.weave.windows.graveyard(
            window_id,
            offset=offset,
            limit=limit,
            sort="slept" if sort == "pruned" else sort,
            descending=order == "desc",
            role=role,
            text=text or None,
        )
        return views.Graveyard.model_validate(page, context=service.weave.windows.names())

    @router.get(
        "/{window_id}/deleted", summary="List deleted chunks of a window", tags=["Context and search"]
    )
    def get_deleted(
        window_id: WindowId,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> views.DeletedChunks:
        """Most recently deleted first."""
        total, chunks = service.weave.windows.deleted(window_id, offset=offset, limit=limit)
        return views.DeletedChunks.model_validate({"total": total, "items": chunks})

    @router.get(
        "/{window_id}/pruned", summary="List pruned chunks between two positions", tags=["Context and search"]
    )
    def get_pruned(
        window_id: WindowId,
        first: Annotated[Id | None, Query(alias="from")] = None,
        last: Annotated[Id | None, Query(alias="to")] = None,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> views.PrunedBetween:
        """In order of time. Without `from` from the beginning, without `to` to the end."""
        start = 0 if first is None else requests.parse_position(first)
        end = 2**63 - 1 if last is None else requests.parse_position(last)
        gap, chunks = service.weave.windows.gap(window_id, start, end, offset=offset, limit=limit)
        pruned_page = {"total": gap.chunks, "tokens": gap.tokens, "items": chunks}
        return views.PrunedBetween.model_validate(pruned_page, context=service.weave.windows.names())

    @router.get(
        "/{window_id}/recall-preview",
        summary="Preview what a message would resurrect",
        tags=["Context and search"],
    )
    def get_recall_preview(
        window_id: WindowId,
        exclude: Annotated[list[requests.Key], Query(max_length=1000, default_factory=list)],
        include: Annotated[list[requests.Key], Query(max_length=1000, default_factory=list)],
        q: Annotated[str, Query(max_length=requests.MAX_QUESTION_LENGTH, pattern=TEXT_PATTERN)] = "",
        make_room: bool = False,
    ) -> views.RecallPreview:
        """`exclude`, `include`, `make_room`: as in the `recall` of a message."""
        choice = requests.RecallChoice(exclude=exclude, include=include, make_room=make_room)
        overrides = requests.recall_overrides_of(choice)
        return views.RecallPreview.of(service.weave.memory.preview(window_id, q, overrides, prefetch=True))

    @router.get(
        "/{window_id}/timeline",
        summary="Show when each chunk was pruned and resurrected",
        tags=["Context and search"],
    )
    def get_timeline(window_id: WindowId) -> views.WindowTimeline:
        """Without text: which chunks are live or pruned, and when each was pruned and resurrected."""
        return views.WindowTimeline.model_validate(service.weave.windows.life(window_id))

    @router.post(
        "/{window_id}/inject",
        summary="Resurrect the chunks behind a memory entry",
        tags=["Notes and structured memory"],
    )
    def post_inject(window_id: WindowId, body: requests.InjectMemoryEntry) -> views.InjectionResult:
        """The newest exchange is never pruned. If none of it fits, nothing is pruned, and the response says what is
        missing."""
        injection = service.weave.memory_tools.inject(window_id, body.path)
        return views.InjectionResult(
            resurrected=[str(chunk.key) for chunk in injection.resurrected],
            cost=sum(chunk.cost for chunk in injection.resurrected),
            pruned=[str(chunk.key) for chunk in injection.pruned],
        )

    return router
