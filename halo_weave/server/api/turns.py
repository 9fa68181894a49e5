"""Turns of a window: send a message with documents, regenerate, continue, stop, edit, branches."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from datetime import datetime
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from halo_weave.chat.documents import Document
from halo_weave.chat.turn_runner import TurnAccepted
from halo_weave.core.tokens import Role
from halo_weave.server import requests, views
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import NON_BLANK_PATTERN, Id, Number, Output
from halo_weave.server.service import Service


class MessageAccepted(Output):
    turn_id: Id = Field(description="The user's turn, which is stored.")
    reply_turn_id: Id
    last_event: str = Field(description="The newest event before this turn.")
    stream: str = Field(description="Path of the event stream, beginning with this turn's first event.")


class StopResult(Output):
    stopped: bool = Field(description="Whether there was a reply to stop.")


class AddedTurns(Output):
    turns: list[str] = Field(description="Their ids, in the same order.")


class EditedTurn(Output):
    """A user's turn gets a new reply, so it has events to follow; another turn is only replaced."""

    turn_id: Id | None = Field(description="The new turn in its place.")
    accepted: MessageAccepted | None


class CheckedOutTurn(Output):
    turn_id: Id = Field(description="The last turn of the branch.")


class TurnVersion(Output):
    turn_id: Number
    role: Role
    speaker: str
    said: datetime
    current: bool = Field(description="On the window's current branch.")
    text: str


class TurnVersions(Output):
    versions: list[TurnVersion]


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/windows/{window_id}", tags=["Turns"])

    async def accepted_turn(window_id: str, future: Future[TurnAccepted]) -> MessageAccepted:
        first = await asyncio.wrap_future(future)
        return MessageAccepted(
            turn_id=str(first.first_event.turn_id),
            reply_turn_id=str(first.first_event.reply_turn),
            last_event=first.last_event,
            stream=f"/api/windows/{quote(window_id)}/events?after={first.last_event}",
        )

    @router.post("/messages", summary="Send a message", status_code=202)
    async def post_message(window_id: WindowId, body: requests.NewMessage) -> MessageAccepted:
        """Answers once the message is stored; the reply arrives in the window's events. It is generated whether or not
        a client listens."""
        after = None if body.after is None else requests.parse_position(body.after)
        overrides = requests.recall_overrides_of(body.recall)
        documents = [Document(document.name, document.text) for document in body.documents]
        future = service.weave.turns.send_message(
            window_id, body.text, after=after, overrides=overrides, documents=documents
        )
        return await accepted_turn(window_id, future)

    @router.post("/turns", summary="Add turns without asking the model", status_code=201)
    def post_turns(window_id: WindowId, body: requests.AddTurns) -> AddedTurns:
        """They are appended to the window in order."""
        turns = [(Role(turn.role), turn.text) for turn in body.turns]
        return AddedTurns(turns=[str(turn.id) for turn in service.weave.turns.add(window_id, turns)])

    @router.post(
        "/regenerate", summary="Regenerate a reply, or answer a message that has none", status_code=202
    )
    async def post_regenerate(window_id: WindowId, body: requests.Regenerate) -> MessageAccepted:
        """The former reply stays in memory, as another version."""
        turn = None if body.turn_id is None else requests.parse_position(body.turn_id)
        return await accepted_turn(window_id, service.weave.turns.regenerate(window_id, turn))

    @router.post("/continue", summary="Continue the last reply", status_code=202)
    async def post_continue(window_id: WindowId) -> MessageAccepted:
        """The shorter reply stays in memory, as another version."""
        return await accepted_turn(window_id, service.weave.turns.continue_reply(window_id))

    @router.post("/edit", summary="Edit a turn", status_code=202)
    async def post_edit(window_id: WindowId, body: requests.EditTurn) -> EditedTurn:
        """A user's turn gets a new reply. The former text, and all that followed, stays in memory on another branch."""
        turn = requests.parse_position(body.turn_id)
        future = await run_in_threadpool(service.weave.turns.edit, window_id, turn, body.text)
        if future is not None:
            accepted = await accepted_turn(window_id, future)
            return EditedTurn(turn_id=accepted.turn_id, accepted=accepted)
        head = await run_in_threadpool(service.weave.windows.get, window_id)
        return EditedTurn(turn_id=str(head.head), accepted=None)

    @router.post("/checkout", summary="Check out the branch of a turn")
    def post_checkout(window_id: WindowId, body: requests.TurnReference) -> CheckedOutTurn:
        """Its chunks are live or pruned as when the branch was left. The current branch is kept."""
        last = service.weave.turns.switch(window_id, requests.parse_position(body.turn_id))
        return CheckedOutTurn(turn_id=str(last.id))

    @router.post("/rewind", summary="Rewind a window to a turn")
    def post_rewind(window_id: WindowId, body: requests.TurnReference) -> CheckedOutTurn:
        """The later turns stay on their own branch; `checkout` restores them."""
        last = service.weave.turns.rewind(window_id, requests.parse_position(body.turn_id))
        return CheckedOutTurn(turn_id=str(last.id))

    @router.post("/branch", summary="Branch off a new window at a turn", status_code=201)
    def post_branch(window_id: WindowId, body: requests.CreateBranch) -> views.Window:
        turns, turn = service.weave.turns, requests.parse_position(body.turn_id)
        branch = turns.branch(window_id, turn, body.name)
        return views.Window.model_validate(service.weave.windows.state(branch.id))

    @router.get("/turns/{turn_id}/versions", summary="List the versions of a turn, on all branches")
    def get_versions(window_id: WindowId, turn_id: Id) -> TurnVersions:
        versions = service.weave.turns.siblings(window_id, requests.parse_position(turn_id))
        return TurnVersions.model_validate({"versions": versions})

    @router.post("/stop", summary="Stop the reply")
    def post_stop(window_id: WindowId) -> StopResult:
        """The tokens so far are kept."""
        service.weave.windows.get(window_id)
        return StopResult(stopped=service.weave.turns.abort(window_id))

    return router


FILE_BODY = {
    "requestBody": {
        "required": True,
        "description": "The file as it is: a text in UTF-8, a PDF or a DOCX.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class ExtractedDocument(Output):
    name: str = Field(description="The file name without folders.")
    text: str
    tokens: int = Field(description="Length of the text in tokens.")


def document_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["Turns"])

    @router.post("/api/documents", summary="Extract the text of a file to attach", openapi_extra=FILE_BODY)
    async def post_document(
        request: Request,
        name: Annotated[str, Query(min_length=1, max_length=1000, pattern=NON_BLANK_PATTERN)],
        window: Annotated[WindowId | None, Query(description="The window whose limits apply.")] = None,
    ) -> ExtractedDocument:
        """Nothing is stored: send the name and the text with a message."""
        documents = service.weave.documents
        max_bytes = await run_in_threadpool(documents.most_bytes, window)
        data = bytearray()
        async for piece in request.stream():
            if len(data) <= max_bytes:  # the rest of a file that is too large is not stored
                data += piece
        document = await run_in_threadpool(documents.read, name, bytes(data), window)
        return ExtractedDocument.model_validate(document)

    return router
