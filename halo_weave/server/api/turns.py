"""Turns of a window: send a message, regenerate, continue, stop, edit, branches."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from datetime import datetime
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from halo_weave.chat.documents import Document
from halo_weave.chat.turn_runner import TurnAccepted
from halo_weave.core.tokens import Role
from halo_weave.server import requests, views
from halo_weave.server.requests import WindowId
from halo_weave.server.schema import Id, Number, Output
from halo_weave.server.service import Service


class MessageAccepted(Output):
    turn: Id = Field(description="The user's turn: it is stored.")
    reply_turn: Id
    last_event: str = Field(description="The newest event before this turn.")
    stream: str = Field(description="Where the turn's events are, from the first on.")


class StopResult(Output):
    stopped: bool = Field(description="Whether there was a reply to stop.")


class AddedTurns(Output):
    turns: list[str] = Field(description="Their ids, in the same order.")


class EditedTurn(Output):
    """A turn of the user's is answered, so there is something to follow; another one is only replaced."""

    turn: Id | None = Field(description="The turn that stands there now.")
    saying: MessageAccepted | None


class CheckedOutTurn(Output):
    turn: Id = Field(description="The last turn of the branch.")


class TurnVersion(Output):
    turn_id: Number
    role: Role
    speaker: str
    said: datetime
    current: bool = Field(description="On the window's current branch.")
    text: str


class TurnVersions(Output):
    siblings: list[TurnVersion]


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/api/windows/{window_id}", tags=["The turn"])

    async def begun(window_id: str, future: Future[TurnAccepted]) -> MessageAccepted:
        first = await asyncio.wrap_future(future)
        return MessageAccepted(
            turn=str(first.heard.turn_id),
            reply_turn=str(first.heard.reply_turn),
            last_event=first.before,
            stream=f"/api/windows/{quote(window_id)}/events?after={first.before}",
        )

    @router.post("/say", summary="Say something", status_code=202)
    async def post_say(window_id: WindowId, asked: requests.NewMessage) -> MessageAccepted:
        """The answer comes once the words are stored; the reply is told in the window's events.

        It is made whether or not anybody listens.
        """
        after = None if asked.after is None else requests.parse_position(asked.after)
        wish = requests.recall_overrides_of(asked.wish)
        documents = [Document(one.name, one.text) for one in asked.documents]
        said = service.weave.turns.say(
            window_id, asked.text, after=after, overrides=wish, documents=documents
        )
        return await begun(window_id, said)

    @router.post("/turns", summary="Add turns that were said elsewhere", status_code=201)
    def post_turns(window_id: WindowId, asked: requests.AddTurns) -> AddedTurns:
        """They become the last ones of the window, one after the other. The model is not asked."""
        said = [(Role(one.role), one.text) for one in asked.turns]
        return AddedTurns(turns=[str(one.id) for one in service.weave.turns.add(window_id, said)])

    @router.post("/answer", summary="Answer what has no reply, or answer again", status_code=202)
    async def post_answer(window_id: WindowId, asked: requests.Regenerate) -> MessageAccepted:
        """The former answer stays in the record, as a sibling of the new one."""
        turn = None if asked.turn is None else requests.parse_position(asked.turn)
        return await begun(window_id, service.weave.turns.answer(window_id, turn))

    @router.post("/continue", summary="The last reply goes on where it ended", status_code=202)
    async def post_continue(window_id: WindowId) -> MessageAccepted:
        """The shorter one stays in the record, as a sibling of the new one."""
        return await begun(window_id, service.weave.turns.go_on(window_id))

    @router.post("/edit", summary="A turn says something else", status_code=202)
    async def post_edit(window_id: WindowId, asked: requests.EditTurn) -> EditedTurn:
        """A turn of the user's is answered. What it said, and all that followed, stays in the record, aside."""
        turn = requests.parse_position(asked.turn)
        future = await run_in_threadpool(service.weave.turns.edit, window_id, turn, asked.text)
        if future is not None:
            saying = await begun(window_id, future)
            return EditedTurn(turn=saying.turn, saying=saying)
        head = await run_in_threadpool(service.weave.windows.get, window_id)
        return EditedTurn(turn=str(head.head), saying=None)

    @router.post("/switch", summary="The branch through this turn comes back")
    def post_switch(window_id: WindowId, asked: requests.TurnReference) -> CheckedOutTurn:
        """What is on it and sleeps or is live is so again. What was current goes aside."""
        last = service.weave.turns.switch(window_id, requests.parse_position(asked.turn))
        return CheckedOutTurn(turn=str(last.id))

    @router.post("/rewind", summary="This turn becomes the last one")
    def post_rewind(window_id: WindowId, asked: requests.TurnReference) -> CheckedOutTurn:
        """What followed goes aside, and comes back with `switch`."""
        last = service.weave.turns.rewind(window_id, requests.parse_position(asked.turn))
        return CheckedOutTurn(turn=str(last.id))

    @router.post("/branch", summary="A new window that goes on from this turn", status_code=201)
    def post_branch(window_id: WindowId, asked: requests.CreateBranch) -> views.Window:
        turns, turn = service.weave.turns, requests.parse_position(asked.turn)
        made = turns.branch(window_id, turn, asked.name)
        return views.Window.model_validate(service.weave.windows.state(made.id))

    @router.get("/siblings", summary="What was said at the place of this turn, on all branches")
    def get_siblings(window_id: WindowId, turn: Annotated[Id, Query()]) -> TurnVersions:
        found = service.weave.turns.siblings(window_id, requests.parse_position(turn))
        return TurnVersions.model_validate({"siblings": found})

    @router.post("/abort", summary="Stop the reply")
    def post_abort(window_id: WindowId) -> StopResult:
        """What was said so far is kept."""
        service.weave.windows.get(window_id)
        return StopResult(stopped=service.weave.turns.abort(window_id))

    return router
