"""Chunks: pin, prune, resurrect, tag, explain, delete; search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from halo_weave.chat.injection import Injection
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import SearchFilter
from halo_weave.errors import BadInput
from halo_weave.server import requests, views
from halo_weave.server.requests import TimeText, WindowId
from halo_weave.server.schema import ID_PATTERN, KEY_PATTERN, TEXT_PATTERN
from halo_weave.server.service import Service

ChunkAction = Literal["pin", "unpin", "prune", "resurrect", "undo-prune", "merge"]
Position = Annotated[str, Query(pattern=ID_PATTERN, examples=["0"])]
MAX_POSITIONS = 10_000
Key = Annotated[str, InPath(pattern=KEY_PATTERN, examples=["12.0.user"])]


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Chunks"])
    base = "/api/windows/{window_id}/chunks"

    @router.post(base + "/restore", summary="Restore deleted chunks")
    def post_restore(window_id: WindowId, body: requests.RestoreChunks) -> views.RestoredChunks:
        service.weave.chunks.undelete(window_id, [ChunkKey.parse(key) for key in body.keys])
        return views.RestoredChunks(keys=body.keys)

    @router.post(
        base + "/{key}/negative-feedback", summary="Mark a chunk as wrong for a question", status_code=204
    )
    def post_negative_feedback(window_id: WindowId, key: Key, body: requests.NegativeFeedback) -> None:
        """It is not resurrected for similar questions any more."""
        service.weave.chunks.add_negative_feedback(window_id, ChunkKey.parse(key), body.question)

    @router.delete(base + "/{key}/negative-feedback", summary="Remove negative feedback", status_code=204)
    def delete_negative_feedback(window_id: WindowId, key: Key) -> None:
        service.weave.chunks.remove_negative_feedback(window_id, ChunkKey.parse(key))

    @router.put(base + "/{key}/tags", summary="Replace the tags of a chunk")
    def put_tags(window_id: WindowId, key: Key, body: requests.ChunkTags) -> views.ChunkTagsView:
        """Tags are per person: others who may read the chunk do not see yours."""
        tags = service.weave.chunks.tag(window_id, ChunkKey.parse(key), body.tags)
        return views.ChunkTagsView.model_validate({"key": key, "tags": tags})

    @router.get("/api/tags", summary="List tags of windows and chunks", tags=["Context and search"])
    def get_tags() -> views.TagCounts:
        return views.TagCounts.model_validate({"tags": service.weave.memory.tags()})

    @router.post(base + "/{key}/{act}", summary="Pin, unpin, prune, resurrect or merge a chunk")
    def post_act(window_id: WindowId, key: Key, act: ChunkAction) -> views.ChunkActionResult:
        """A chunk that is resurrected by hand is pinned, and its question or answer and the first chunk of its turn are
        resurrected, too. `undo-prune` restores a chunk that was pruned by hand as it was. A merged chunk has the key of
        the one before it."""
        chunks, chunk_key = service.weave.chunks, ChunkKey.parse(key)
        acts: dict[ChunkAction, Callable[[str, ChunkKey], Any]] = {
            "pin": chunks.pin,
            "unpin": chunks.unpin,
            "prune": chunks.prune,
            "resurrect": chunks.resurrect,
            "undo-prune": chunks.undo_prune,
            "merge": chunks.merge,
        }
        done = acts[act](window_id, chunk_key)
        why = chunks.why(window_id, done if act == "merge" else chunk_key)
        changes = done if isinstance(done, Injection) else Injection()
        return views.ChunkActionResult(
            key=str(why.key),
            live=why.live,
            pinned=why.pinned,
            resurrected=[str(chunk.key) for chunk in changes.resurrected],
            pruned=[str(chunk.key) for chunk in changes.pruned],
        )

    @router.get(base + "/{key}/explanation", summary="Explain a chunk's brightness and history")
    def get_explanation(window_id: WindowId, key: Key) -> views.ChunkExplanation:
        why = service.weave.chunks.why(window_id, ChunkKey.parse(key))
        return views.ChunkExplanation.model_validate(why, context=service.weave.windows.names())

    @router.get(base + "/{key}/deletion", summary="Preview what deleting a chunk would delete")
    def get_deletion(window_id: WindowId, key: Key) -> views.Deletion:
        deletion = service.weave.chunks.preview_delete(window_id, ChunkKey.parse(key))
        return views.Deletion.model_validate(deletion)

    @router.delete(base + "/{key}", summary="Delete a chunk, with what belongs to it")
    def delete_chunk(window_id: WindowId, key: Key) -> views.Deletion:
        deletion = service.weave.chunks.delete(window_id, ChunkKey.parse(key))
        return views.Deletion.model_validate(deletion)

    @router.get("/api/tokens", summary="List the tokens at a range of positions", tags=["Context and search"])
    def get_tokens(first: Position, stop: Position) -> views.Tokens:
        """The tokens from position `first` on and before `stop`, at most 10,000."""
        begin, end = requests.parse_position(first), requests.parse_position(stop)
        if end - begin > MAX_POSITIONS:
            raise BadInput(f"Ask for at most {MAX_POSITIONS:,} positions at once.")
        return views.Tokens.model_validate({"tokens": service.weave.memory.tokens(begin, end)})

    @router.get("/api/search", summary="Search all of memory", tags=["Context and search"])
    def get_search(
        q: Annotated[str, Query(max_length=requests.MAX_QUESTION_LENGTH, pattern=TEXT_PATTERN)],
        window: Annotated[
            WindowId | None, Query(description="The window for which `live` is reported.")
        ] = None,
        only_window: Annotated[bool, Query(description="Only chunks of `window`.")] = False,
        role: Annotated[Role | None, Query(description="Only chunks of this role.")] = None,
        speaker: Annotated[
            str, Query(max_length=200, description="Only chunks of the speaker with this name.")
        ] = "",
        since: Annotated[
            TimeText | None, Query(description="Only chunks said at this time or later.")
        ] = None,
        before: Annotated[TimeText | None, Query(description="Only chunks said before this time.")] = None,
        tag: Annotated[
            str,
            Query(max_length=40, description="Only chunks with this tag, or of a window with it."),
        ] = "",
        budget: Annotated[
            int | None,
            Query(ge=0, le=10**9, description="Return what recall would resurrect within this many tokens."),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> views.SearchResults:
        if only_window and window is None:
            raise BadInput("only_window needs window: name the one to search.")
        only = SearchFilter(role, speaker, requests.parse_time(since), requests.parse_time(before))
        memory, cost = service.weave.memory, None
        where: Any = {"window_id": window, "only_window": only_window, "tag": tag}
        if budget is None:
            found = memory.search(q, limit=limit, only=only, **where)
        else:
            found, cost = memory.would_resurrect(q, budget, only=only, **where)
        results = {"hits": found, "cost": cost}
        return views.SearchResults.model_validate(results, context=service.weave.windows.names())

    return router
