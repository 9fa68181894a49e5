"""Windows: made, changed, deleted, listed; what is in them and what is said in them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from halo_weave.core.tokens import Role
from halo_weave.errors import UnknownWindow
from halo_weave.server import shapes, wire
from halo_weave.server.events import EVENTS
from halo_weave.server.schema import WHOLE, Id
from halo_weave.server.service import Service
from halo_weave.server.sse import EventStream, described
from halo_weave.server.wire import WindowId
from halo_weave.settings import FIELDS

EventId = Annotated[str | None, Query(max_length=100, description="The id of the event seen last.")]
EXAMPLE = 'id: 3f9a01bc-17\nevent: token\ndata: {"id":260,"position":"42","text":" Mochi","tool":false}\n\n'


def own_settings(asked: BaseModel | None) -> tuple[dict[str, Any], list[str]]:
    """What a window sets, and what goes back to the setting for all: null where a setting cannot be empty."""
    given = wire.given(asked) if asked else {}
    reset = [name for name, value in given.items() if value is None and not FIELDS[name].metadata["optional"]]
    return {name: value for name, value in given.items() if name not in reset}, reset


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/windows", tags=["Windows"])

    def told(window_id: str) -> wire.WindowTold:
        weave = service.weave
        weave.window(window_id)
        stats = weave.store.window_stats(window_id)
        return shapes.window(stats, weave.settings(window_id), window_id in weave.generating())

    @router.get("", summary="All windows")
    def get_windows() -> wire.WindowsTold:
        windows = []
        for record in service.weave.store.windows():
            with suppress(UnknownWindow):  # cleared meanwhile
                windows.append(told(record.id))
        return wire.WindowsTold(windows=windows)

    @router.post("", summary="A new window", status_code=201)
    def post_window(asked: wire.NewWindow) -> wire.WindowTold:
        named = {name: value for name, value in wire.given(asked).items() if value is not None}
        settings, _ = own_settings(named.pop("settings", None))
        return told(service.weave.create_window(**named, settings=settings).id)

    @router.get("/{window_id}", summary="One window")
    def get_window(window_id: WindowId) -> wire.WindowTold:
        return told(window_id)

    @router.patch("/{window_id}", summary="Change a window")
    def patch_window(window_id: WindowId, asked: wire.WindowChange) -> wire.WindowTold:
        changes = wire.given(asked)
        own = changes.pop("settings", None)
        settings, reset = own_settings(own)
        service.weave.change_window(window_id, **changes, settings=settings, reset=[*asked.reset, *reset])
        service.changed(window_id)
        return told(window_id)

    @router.delete("/{window_id}", summary="Delete a window; what was said stays in memory", status_code=204)
    def delete_window(window_id: WindowId) -> None:
        service.weave.delete_window(window_id)
        service.streams.drop(window_id)

    # The turn

    @router.post("/{window_id}/say", summary="Say something", status_code=202, tags=["The turn"])
    async def post_say(window_id: WindowId, asked: wire.Say) -> wire.Saying:
        """The answer comes once the words are stored; the reply is told in the window's events.

        It is made whether or not anybody listens.
        """
        turns = service.turns
        await run_in_threadpool(service.weave.window, window_id)
        begun = await asyncio.wrap_future(turns.start(window_id, asked.text))
        return wire.Saying(
            turn=str(begun.heard.turn_id),
            reply_turn=str(begun.heard.reply_turn),
            last_event=begun.before,
            stream=f"/api/windows/{quote(window_id)}/events?after={begun.before}",
        )

    @router.post("/{window_id}/abort", summary="Stop the reply", tags=["The turn"])
    def post_abort(window_id: WindowId) -> wire.Stopped:
        """What was said so far is kept."""
        service.weave.window(window_id)
        return wire.Stopped(stopped=service.weave.abort(window_id))

    @router.get(
        "/{window_id}/events",
        summary="What happens in the window, as it happens",
        tags=["The turn"],
        response_class=EventStream,
        status_code=200,
        responses={200: described(EVENTS.items(), EXAMPLE)},
    )
    async def get_events(
        window_id: WindowId,
        after: EventId = None,
        last_event_id: Annotated[str | None, Header(max_length=100)] = None,
    ) -> EventStream:
        """From the event after the one named on, or with what comes. `reset`: load the context anew."""
        await run_in_threadpool(service.weave.window, window_id)
        return service.streams.watch(window_id, last_event_id or after)

    # Looking

    @router.get("/{window_id}/context", summary="What the model sees", tags=["Looking"])
    def get_context(window_id: WindowId) -> wire.ContextTold:
        service.weave.window(window_id)
        turns, last = service.turns, service.streams.of(window_id).last
        seen = service.weave.context(window_id)
        return shapes.context(
            seen,
            service.names(),
            last_event=last,
            last_turn=turns.last(window_id),
            tools=turns.tools(window_id),
        )

    @router.get("/{window_id}/graveyard", summary="What sleeps in the window", tags=["Looking"])
    def get_graveyard(
        window_id: WindowId,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        sort: Literal["slept", "peak", "tokens", "position"] = "slept",
        order: Literal["asc", "desc"] = "desc",
        role: Role | None = None,
        text: Annotated[str | None, Query(max_length=1000, pattern=WHOLE)] = None,
    ) -> wire.GraveyardTold:
        page = service.weave.graveyard(
            window_id,
            offset=offset,
            limit=limit,
            sort=sort,
            descending=order == "desc",
            role=role,
            text=text or None,
        )
        names = service.names()
        return wire.GraveyardTold(total=page.total, items=[shapes.sleeping(one, names) for one in page.items])

    @router.get("/{window_id}/gap", summary="What sleeps between two positions", tags=["Looking"])
    def get_gap(
        window_id: WindowId,
        after: Id | None = None,
        before: Id | None = None,
        offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> wire.GapItems:
        """In time order. Without `after` from the beginning, without `before` to the end."""
        first = 0 if after is None else wire.position(after)
        last = 2**63 - 1 if before is None else wire.position(before)
        whole, found = service.weave.gap(window_id, first, last, offset=offset, limit=limit)
        names = service.names()
        return wire.GapItems(
            total=whole.chunks, tokens=whole.tokens, items=[shapes.sleeping(one, names) for one in found]
        )

    @router.get("/{window_id}/preview", summary="What would wake up for this text", tags=["Looking"])
    def get_preview(
        window_id: WindowId, q: Annotated[str, Query(max_length=wire.LONGEST_QUESTION, pattern=WHOLE)] = ""
    ) -> wire.PreviewTold:
        return shapes.preview(service.weave.preview(window_id, q))

    @router.post(
        "/{window_id}/inject", summary="Wake up what explains a memory", tags=["The AI's own memory"]
    )
    def post_inject(window_id: WindowId, asked: wire.Inject) -> wire.Injected:
        woken, slept = service.weave.inject(window_id, asked.path)
        service.changed(window_id)
        return wire.Injected(
            keys=[str(one.chunk.key) for one in woken],
            cost=sum(one.cost for one in woken),
            asleep=[str(one.key) for one in slept],
        )

    return router
