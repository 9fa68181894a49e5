"""A chunk, and what a user can do with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput
from halo_weave.server import shapes, wire
from halo_weave.server.schema import WHOLE
from halo_weave.server.service import Service
from halo_weave.server.wire import WindowId, chunk_key

Act = Literal["pin", "unpin", "sleep", "wake", "merge"]
Key = Annotated[str, InPath(pattern=wire.KEY, examples=["12.0.user"])]


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Chunks"])
    base = "/api/windows/{window_id}/chunks"

    @router.post(base + "/undelete", summary="Take a deletion back")
    def post_undelete(window_id: WindowId, asked: wire.Undelete) -> wire.Undeleted:
        service.weave.window(window_id)
        windows = service.weave.undelete(window_id, [chunk_key(key) for key in asked.keys])
        for changed in {window_id, *windows}:
            service.changed(changed)
        return wire.Undeleted(keys=asked.keys)

    @router.post(base + "/{key}/{act}", summary="Pin, unpin, put to sleep, wake up, merge into the previous")
    def post_act(window_id: WindowId, key: Key, act: Act) -> wire.Acted:
        """A chunk woken up by hand is pinned. A merged chunk goes by the key of the one before it."""
        weave, named = service.weave, chunk_key(key)
        weave.window(window_id)
        done: dict[Act, Callable[[str, ChunkKey], Any]] = {
            "pin": weave.pin,
            "unpin": weave.unpin,
            "sleep": weave.sleep,
            "wake": weave.wake,
            "merge": weave.merge,
        }
        now_named = done[act](window_id, named)
        service.changed(window_id)
        if act == "merge":
            named = now_named
        why = weave.why(window_id, named)
        return wire.Acted(key=str(named), live=why.live, pinned=why.pinned)

    @router.get(base + "/{key}/why", summary="Why it is as bright as it is, why it slept, what woke it")
    def get_why(window_id: WindowId, key: Key) -> wire.WhyTold:
        service.weave.window(window_id)
        return shapes.why(service.weave.why(window_id, chunk_key(key)), service.names())

    @router.get(base + "/{key}/delete", summary="What deleting it would take along")
    def get_delete(window_id: WindowId, key: Key) -> wire.DeletionTold:
        service.weave.window(window_id)
        return shapes.deletion(service.weave.would_delete(window_id, chunk_key(key)))

    @router.delete(base + "/{key}", summary="Delete it, with what belongs to it")
    def delete_chunk(window_id: WindowId, key: Key) -> wire.DeletionTold:
        service.weave.window(window_id)
        gone = service.weave.delete(window_id, chunk_key(key))
        for changed in {window_id, *gone.windows}:
            service.changed(changed)
        return shapes.deletion(gone)

    @router.get("/api/search", summary="Search all that was ever said", tags=["Looking"])
    def get_search(
        q: Annotated[str, Query(max_length=wire.LONGEST_QUESTION, pattern=WHOLE)],
        window: Annotated[WindowId | None, Query(description="Tells what is live there.")] = None,
        only_window: Annotated[bool, Query(description="Only what was said in `window`.")] = False,
        budget: Annotated[int | None, Query(ge=0, le=10**9, description="At most this many tokens.")] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> wire.SearchTold:
        if only_window and window is None:
            raise BadInput("only_window needs window: name the one to search.")
        if window is not None:
            service.weave.window(window)
        found = service.weave.search(q, window_id=window, only_window=only_window, limit=limit)
        names, hits, left = service.names(), [], budget
        for one in found:
            size = len(one.record.chunk)
            if left is not None:
                if size > left:
                    continue
                left -= size
            hits.append(shapes.hit(one, names))
        return wire.SearchTold(hits=hits)

    return router
