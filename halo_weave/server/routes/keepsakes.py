"""The AI's own memory: the tree of what it keeps on purpose, and its notes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from halo_weave.server import shapes, wire
from halo_weave.server.schema import WHOLE
from halo_weave.server.service import Service

Path = Annotated[str, Query(min_length=1, max_length=512, pattern=WHOLE, examples=["People/Mochi"])]
Heading = Annotated[str, Query(max_length=512, pattern=WHOLE)]


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["The AI's own memory"])

    @router.get("/api/memory", summary="The tree below a heading, or all of it")
    def get_tree(path: Heading = "") -> wire.BranchTold:
        return shapes.branch(service.toolbox.tree.listing(path))

    @router.get("/api/memory/entry", summary="One memory, with what explains it")
    def get_entry(path: Path) -> wire.EntryTold:
        return shapes.entry(service.toolbox.tree.query(path, now=service.weave.now()))

    @router.put("/api/memory/entry", summary="Keep something, or a new version of it")
    def put_entry(asked: wire.Keep) -> wire.EntryTold:
        kept = service.toolbox.tree.save(
            asked.path, asked.content, now=service.weave.now(), context_tokens=asked.context_tokens
        )
        return shapes.entry(kept)

    @router.delete("/api/memory/entry", summary="Delete a memory; its versions stay in the history")
    def delete_entry(path: Path, recursive: bool = False) -> wire.Forgotten:
        gone = service.toolbox.tree.delete(path, now=service.weave.now(), recursive=recursive)
        return wire.Forgotten(deleted=gone)

    @router.get("/api/memory/history", summary="All versions of a memory, the newest first")
    def get_history(path: Path) -> wire.VersionsTold:
        return wire.VersionsTold(versions=[shapes.entry(one) for one in service.toolbox.tree.history(path)])

    @router.get("/api/memory/query", summary="Memories below a heading, by similarity and recency")
    def get_query(
        path: Heading = "",
        q: Annotated[str, Query(max_length=wire.LONGEST_QUESTION, pattern=WHOLE)] = "",
        recency_bias: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 0.3,
    ) -> wire.MatchesTold:
        matches = service.toolbox.tree.query_heading(
            path, q or None, now=service.weave.now(), recency_bias=recency_bias
        )
        return wire.MatchesTold(matches=[shapes.match(one) for one in matches])

    @router.get("/api/notes", summary="The AI's notes")
    def get_notes() -> wire.NotesTold:
        content, version = service.toolbox.notes.latest(now=service.weave.now())
        return wire.NotesTold(content=content, version=version)

    @router.put("/api/notes", summary="Replace the notes, or one version of them")
    def put_notes(asked: wire.NotesChange) -> wire.NotesTold:
        written = service.toolbox.notes.replace(asked.content, now=service.weave.now(), version=asked.version)
        return wire.NotesTold(content=written.document, version=written.version)

    return router
