"""`/v1/responses`: a response's id names the window and the turn, so that the next request goes on from there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any

from halo_weave.errors import HaloWeaveError, UnknownWindow
from halo_weave.records import WINDOW_ID
from halo_weave.server.refusals import ApiRefusal, api_problem
from halo_weave.server.scratch import Scratch
from halo_weave.server.v1 import answers
from halo_weave.server.v1.history import read_messages
from halo_weave.server.v1.requests import ResponseRequest
from halo_weave.server.v1.writing import GuestTalk, incognito, locate, terms_of
from halo_weave.weave.weave import Weave

_ID = re.compile(rf"resp_({WINDOW_ID.strip('^$')})_([0-9]{{1,19}})")


class GuestResponse:
    """One request and its answer. What is not to be stored is answered by the engine alone."""

    def __init__(
        self, weave: Weave, scratch: Scratch, asked: ResponseRequest, headers: Mapping[str, str]
    ) -> None:
        self.weave, self.asked = weave, asked
        request = asked.as_chat()
        sent = read_messages(request.messages)
        self.headers: dict[str, str] = {}
        self.created = answers.stamp()
        self.message = f"msg_{secrets.token_hex(12)}"
        if not asked.store or request.incognito:
            self.id = f"resp_{secrets.token_hex(16)}"
            self.choice = incognito(weave, scratch, request, sent)
            return
        talk = self._before(request, sent) or locate(weave, request, sent, headers)
        self.choice = talk.choice(talk.begin())
        self.id = f"resp_{talk.window}_{talk.reply_turn}"
        self.headers = {"x-halo-window": talk.window, "x-halo-woken": str(talk.woken_before)}

    def _before(self, request: Any, sent: Any) -> GuestTalk | None:
        """Where the previous response ended."""
        named = self.asked.previous_response_id
        if named is None:
            return None
        found = _ID.fullmatch(named)
        try:
            if found is None:
                raise UnknownWindow("")
            window, turn = found[1], self.weave.turns.last_of(found[1], int(found[2]))
        except HaloWeaveError:
            raise ApiRefusal(
                404,
                "previous_response_not_found",
                f"There is no response {named[:80]!r}.",
                param="previous_response_id",
            ) from None
        return GuestTalk(
            self.weave, request, sent, window, 0, turn, False, terms_of(self.weave, request, sent)
        )

    def whole(self) -> dict[str, Any]:
        self.choice.read()
        return self._response("completed")

    def stream(self) -> Generator[bytes, None, None]:
        number = 0

        def event(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return answers.event({"type": kind, "sequence_number": number - 1, **data}, kind)

        place: dict[str, Any] = {"item_id": self.message, "output_index": 0, "content_index": 0}
        yield event("response.created", response=self._response("in_progress"))
        yield event("response.in_progress", response=self._response("in_progress"))
        yield event("response.output_item.added", output_index=0, item=self._item("in_progress"))
        yield event("response.content_part.added", **place, part=self._part(""))
        try:
            with closing(self.choice):
                for piece in self.choice:
                    if not piece.thought and piece.call is None:
                        yield event("response.output_text.delta", **place, delta=piece.text, logprobs=[])
        except HaloWeaveError as error:
            problem = api_problem(error)[1]
            yield event("error", code=problem["code"], message=problem["message"], param=None)
            return
        text = self.choice.text
        yield event("response.output_text.done", **place, text=text, logprobs=[])
        yield event("response.content_part.done", **place, part=self._part(text))
        yield event("response.output_item.done", output_index=0, item=self._item("completed"))
        yield event("response.completed", response=self._response("completed"))

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _item(self, status: str) -> dict[str, Any]:
        content = [self._part(self.choice.text)] if status == "completed" else []
        return {
            "id": self.message,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _response(self, status: str) -> dict[str, Any]:
        done, asked = status == "completed", self.asked
        cut = done and self.choice.finish_reason == "length"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "incomplete" if cut else status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "instructions": asked.instructions,
            "model": self.weave.engine.info.name,
            "output": [self._item("completed")] if done else [],
            "previous_response_id": asked.previous_response_id,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "text": asked.text or {"format": {"type": "text"}},
            "usage": self.choice.usage.as_response() if done else None,
        }
