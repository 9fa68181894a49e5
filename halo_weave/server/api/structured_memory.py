"""The structured memory and the notes of the AI."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from halo_weave.server import requests, views
from halo_weave.server.schema import TEXT_PATTERN
from halo_weave.server.service import Service

Path = Annotated[str, Query(min_length=1, max_length=512, pattern=TEXT_PATTERN, examples=["People/Mochi"])]
Heading = Annotated[str, Query(max_length=512, pattern=TEXT_PATTERN)]


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Notes and structured memory"])

    @router.get("/api/memory", summary="Show the memory tree, or the part below a heading")
    def get_tree(
        path: Heading = "",
        contents: Annotated[bool, Query(description="Include the contents of the entries.")] = False,
    ) -> views.MemoryTreeNode:
        tree = service.weave.memory_tools.tree.listing(path, contents=contents)
        return views.MemoryTreeNode.model_validate(tree)

    @router.get("/api/memory/entry", summary="Show a memory entry and its snapshot")
    def get_entry(path: Path) -> views.MemoryEntry:
        return views.MemoryEntry.model_validate(service.weave.memory_tools.tree.query(path, now=None))

    @router.put("/api/memory/entry", summary="Save a memory entry, or a new version of it")
    def put_entry(body: requests.SaveMemoryEntry) -> views.MemoryEntry:
        weave, tokens = service.weave, body.context_tokens
        entry = weave.memory_tools.tree.save(body.path, body.content, now=weave.now(), context_tokens=tokens)
        return views.MemoryEntry.model_validate(entry)

    @router.delete("/api/memory/entry", summary="Delete a memory entry; its versions stay in the history")
    def delete_entry(path: Path, recursive: bool = False) -> views.DeletedEntries:
        weave = service.weave
        return views.DeletedEntries(
            deleted=weave.memory_tools.tree.delete(path, now=weave.now(), recursive=recursive)
        )

    @router.get("/api/memory/history", summary="List versions of a memory entry, newest first")
    def get_history(path: Path) -> views.MemoryEntryVersions:
        return views.MemoryEntryVersions.model_validate(
            {"versions": service.weave.memory_tools.tree.history(path)}
        )

    @router.get("/api/memory/query", summary="Query memory entries by similarity and recency")
    def get_query(
        path: Heading = "",
        q: Annotated[str, Query(max_length=requests.MAX_QUESTION_LENGTH, pattern=TEXT_PATTERN)] = "",
        recency_bias: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 0.3,
    ) -> views.MemoryMatches:
        tree, now = service.weave.memory_tools.tree, service.weave.now()
        days = service.weave.windows.settings().memory_decay_days
        matches = tree.query_heading(path, q or None, now=now, recency_bias=recency_bias, decay_days=days)
        return views.MemoryMatches.model_validate({"matches": matches})

    @router.get("/api/notes", summary="Show the notes")
    def get_notes() -> views.Notes:
        content, version = service.weave.memory_tools.notes.latest(now=service.weave.now())
        return views.Notes(content=content, version=version)

    @router.put("/api/notes", summary="Replace the notes")
    def put_notes(body: requests.ReplaceNotes) -> views.Notes:
        notes, now = service.weave.memory_tools.notes, service.weave.now()
        written = notes.replace(body.content, now=now, version=body.version)
        return views.Notes(content=written.document, version=written.version)

    return router
