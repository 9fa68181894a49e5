"""The routes under `/v1`: chat completions, completions, responses, embeddings, models."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

import anyio.to_thread
import numpy as np
from fastapi import APIRouter, Request
from starlette.responses import Response

from halo_weave.chat.reply import ReplyParser
from halo_weave.chat.turn_runner import storable_text
from halo_weave.chat.weave import Weave
from halo_weave.core.tokens import Ids
from halo_weave.errors import HaloWeaveError, UnknownWindow
from halo_weave.server.errors import OpenAiError, json_bytes, openai_error
from halo_weave.server.openai import formats
from halo_weave.server.openai.formats import Choice
from halo_weave.server.openai.history import read_messages
from halo_weave.server.openai.replies import (
    ClientConversation,
    client_options_of,
    complete_tokens,
    find_conversation,
    reply_incognito,
    sampling_of,
)
from halo_weave.server.openai.requests import ChatRequest, EmbeddingRequest, ResponseRequest, TextRequest
from halo_weave.server.service import Service
from halo_weave.server.sse import EventStream, iterate_in_threads, poll_on_events
from halo_weave.server.stateless_runs import StatelessRuns
from halo_weave.store.records import WINDOW_ID

_ID = re.compile(rf"resp_({WINDOW_ID.strip('^$')})_([0-9]{{1,19}})")


class ResponseRun:
    """One request to `/v1/responses`. With `store: false` it is answered by the engine alone."""

    def __init__(
        self, weave: Weave, runs: StatelessRuns, body: ResponseRequest, headers: Mapping[str, str]
    ) -> None:
        self.weave, self.body = weave, body
        request = body.as_chat()
        sent = read_messages(request.messages)
        self.headers: dict[str, str] = {}
        self.created = formats.unix_time()
        self.message = f"msg_{secrets.token_hex(12)}"
        if not body.store or request.incognito:
            self.id = f"resp_{secrets.token_hex(16)}"
            self.choice = reply_incognito(weave, runs, request, sent)
            return
        conversation = self._before(request, sent) or find_conversation(weave, request, sent, headers)
        self.choice = conversation.choice(conversation.begin())
        self.id = f"resp_{conversation.window}_{conversation.reply_turn}"
        self.headers = {
            "x-halo-window": conversation.window,
            "x-halo-woken": str(conversation.resurrected_before_reply),
        }

    def _before(self, request: Any, sent: Any) -> ClientConversation | None:
        """The conversation after the previous response, if the request names one."""
        previous = self.body.previous_response_id
        if previous is None:
            return None
        match = _ID.fullmatch(previous)
        try:
            if match is None:
                raise UnknownWindow("")
            window, turn = match[1], self.weave.turns.last_of(match[1], int(match[2]))
        except HaloWeaveError:
            raise OpenAiError(
                404,
                "previous_response_not_found",
                f"There is no response {previous[:80]!r}.",
                param="previous_response_id",
            ) from None
        return ClientConversation(
            self.weave, request, sent, window, 0, turn, False, client_options_of(self.weave, request, sent)
        )

    def whole(self) -> dict[str, Any]:
        self.choice.read()
        return self._response("completed")

    def stream(self) -> Generator[bytes, None, None]:
        number = 0

        def event(kind: str, **data: Any) -> bytes:
            nonlocal number
            number += 1
            return formats.sse_event({"type": kind, "sequence_number": number - 1, **data}, kind)

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
            problem = openai_error(error)[1]
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
        done, body = status == "completed", self.body
        cut = done and self.choice.finish_reason == "length"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "incomplete" if cut else status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "instructions": body.instructions,
            "model": self.weave.engine.info.name,
            "output": [self._item("completed")] if done else [],
            "previous_response_id": body.previous_response_id,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "temperature": body.temperature,
            "top_p": body.top_p,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "text": body.text or {"format": {"type": "text"}},
            "usage": self.choice.usage.as_response() if done else None,
        }


MAX_TEXTS = 2048
Lines = Generator[bytes, None, None]


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", include_in_schema=False)
    runs = StatelessRuns("v1")

    @router.get("/models")
    def get_models() -> Response:
        return _json(
            {"object": "list", "data": [_model(service.weave, name) for name in _models(service.weave)]}
        )

    @router.get("/models/{name:path}")
    def get_model(name: str) -> Response:
        return _json(_model(service.weave, name))

    @router.post("/chat/completions")
    async def post_chat(body: ChatRequest, request: Request) -> Response:
        chat = await anyio.to_thread.run_sync(_ChatRun, service.weave, runs, body, request)
        if chat.conversation is not None and chat.conversation.polls:
            stream = EventStream(
                poll_on_events(chat.stream(), service.weave.turns.hub(chat.conversation.window))
            )
            stream.headers.update(chat.headers)
            return stream
        return await _start_response(lambda: (chat.stream(), chat.headers) if body.stream else chat.whole())

    @router.post("/completions")
    async def post_text(body: TextRequest) -> Response:
        def begin() -> Response | tuple[Lines, dict[str, str]]:
            text = _CompletionRun(service.weave, runs, body)
            return (text.stream(), {}) if body.stream else text.whole()

        return await _start_response(begin)

    @router.post("/responses")
    async def post_response(body: ResponseRequest, request: Request) -> Response:
        def begin() -> Response | tuple[Lines, dict[str, str]]:
            run = ResponseRun(service.weave, runs, body, request.headers)
            if body.stream:
                return run.stream(), run.headers
            return _json(run.whole(), run.headers)

        return await _start_response(begin)

    @router.post("/embeddings")
    def post_embeddings(body: EmbeddingRequest) -> Response:
        return _json(_embeddings(service.weave, body))

    return router


async def _start_response(begin: Any) -> Response:
    """A complete response, or a stream from its first event on. Errors before that are ordinary error responses."""
    started = await anyio.to_thread.run_sync(begin)
    if isinstance(started, Response):
        return started
    lines, headers = started
    first = await anyio.to_thread.run_sync(next, lines)
    stream = EventStream(iterate_in_threads(lines, first))
    stream.headers.update(headers)
    return stream


def _json(value: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(value), headers=headers, media_type="application/json")


def _models(weave: Weave) -> list[str]:
    return [weave.engine.info.name, f"{weave.engine.info.name}:incognito"]


def _model(weave: Weave, name: str) -> dict[str, Any]:
    if name not in _models(weave):
        raise OpenAiError(
            404, "model_not_found", f"There is no model {name[:80]!r} here. See /v1/models.", param="model"
        )
    return {"id": name, "object": "model", "created": 0, "owned_by": "halo-weave"}


class _ChatRun:
    """One request to `/v1/chat/completions`."""

    def __init__(self, weave: Weave, runs: StatelessRuns, body: ChatRequest, request: Request) -> None:
        if body.top_logprobs and not body.logprobs:
            raise OpenAiError(
                400, "invalid_value", "top_logprobs needs logprobs to be true.", param="top_logprobs"
            )
        self.weave, self.runs, self.body = weave, runs, body
        self.sent = read_messages(body.messages)
        task = request.headers.get("x-halo-task", "").strip()
        private = request.headers.get("x-halo-incognito", "").strip().lower() not in ("", "0", "false")
        self.explain = request.headers.get("x-halo-explain", "").strip().lower() not in ("", "0", "false")
        self.conversation: ClientConversation | None = None
        self.headers: dict[str, str] = {}
        # Tasks are not streamed; a streamed message that begins like a task is the user's.
        is_task = self.sent.is_task and not body.stream
        if not (body.incognito or private or is_task or (task and "{{" not in task)):
            self.conversation = find_conversation(weave, body, self.sent, request.headers)
            self.first = self.conversation.choice(self.conversation.begin())
            self.headers = {
                "x-halo-window": self.conversation.window,
                "x-halo-woken": str(self.conversation.resurrected_before_reply),
            }
        else:
            self.first = reply_incognito(weave, runs, body, self.sent)
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = formats.unix_time()

    def choices(self) -> Iterator[Choice]:
        """The choices, one after the other. In a window, they are versions of the same reply."""
        yield self.first
        for _ in range(self.body.n - 1):
            if self.conversation is not None:
                yield self.conversation.choice(self.conversation.regenerate_reply())
            else:
                yield reply_incognito(self.weave, self.runs, self.body, self.sent)

    def whole(self) -> Response:
        choices, usages = [], []
        for i, choice in enumerate(self.choices()):
            choice.read()
            choices.append(formats.chat_choice(choice, i, logprobs=self.body.logprobs))
            usages.append(choice.usage)
        return _json(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.weave.engine.info.name,
                "choices": choices,
                "usage": formats.sum_usages(usages).as_json(),
                "system_fingerprint": None,
                **self._halo(),
            },
            self.headers,
        )

    def _halo(self) -> dict[str, Any]:
        if self.conversation is None or not self.explain:
            return {}
        return {
            "halo": {
                "window": self.conversation.window,
                "reply_turn": str(self.conversation.reply_turn),
                "woken": self.conversation.resurrected,
            }
        }

    def stream(self) -> Lines:
        more: dict[str, Any] = {"usage": None} if self.body.with_usage else {}
        usages = []

        def chunk(index: int, delta: dict[str, Any], finish: str | None = None, **own: Any) -> bytes:
            logprobs = own.pop("logprobs", None)
            choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            return formats.sse_event({**self._head(), "choices": [choice], **more, **own})

        try:
            for i, choice in enumerate(self.choices()):
                with closing(choice):
                    yield chunk(i, {"role": "assistant", "content": ""})
                    for piece in choice:
                        if piece is formats.EMPTY_PIECE:
                            yield b""
                            continue
                        wants_logprobs = piece.call is None and not piece.thought and self.body.logprobs
                        logprobs = (
                            {"content": [formats.logprob_of(piece)], "refusal": None}
                            if wants_logprobs
                            else None
                        )
                        yield chunk(i, formats.delta_of(piece, len(choice.calls)), logprobs=logprobs)
                usages.append(choice.usage)
                last = i == self.body.n - 1
                yield chunk(i, {}, choice.finish_reason, **(self._halo() if last else {}))
            if self.body.with_usage:
                yield formats.sse_event(
                    {**self._head(), "choices": [], "usage": formats.sum_usages(usages).as_json()}
                )
        except HaloWeaveError as error:
            yield formats.sse_event({"error": openai_error(error)[1]})
        yield formats.DONE

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.weave.engine.info.name,
            "system_fingerprint": None,
        }


class _CompletionRun:
    """One request to `/v1/completions`: the engine alone continues a text."""

    def __init__(self, weave: Weave, runs: StatelessRuns, body: TextRequest) -> None:
        for name, unsupported in (("suffix", body.suffix), ("best_of", (body.best_of or 1) > body.n)):
            if unsupported:
                raise OpenAiError(400, "unsupported_value", f"{name} is not supported.", param=name)
        self.weave, self.runs, self.body = weave, runs, body
        self.prompts = [_ids_of(weave, text) for text in _texts(body.prompt)]
        if not 0 < len(self.prompts) * body.n <= MAX_TEXTS:
            raise OpenAiError(400, "invalid_prompt", f"Send 1 to {MAX_TEXTS} texts.", param="prompt")
        changes = body.sampling(weave.engine.info.context, 16)
        changes["max_new_tokens"] = max(1, body.max_tokens or 16)
        self.sampling = sampling_of(weave, changes, body.stop, "", body.logprobs or 0)
        self.id, self.created = f"cmpl-{secrets.token_hex(12)}", formats.unix_time()
        self.all = [self._choice(ids) for ids in self.prompts for _ in range(body.n)]

    def _choice(self, ids: Ids) -> Choice:
        choice = complete_tokens(self.weave, self.runs, ids, self.sampling, ReplyParser(0, stamps=False))
        if self.body.echo:
            choice.text = self.weave.engine.pieces(ids).text
        return choice

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.weave.engine.info.name,
        }

    def whole(self) -> Response:
        choices = []
        for i, choice in enumerate(self.all):
            choice.read()
            logprobs = None if self.body.logprobs is None else formats.text_logprobs(choice.logprobs)
            choices.append(
                {"index": i, "text": choice.text, "logprobs": logprobs, "finish_reason": choice.finish_reason}
            )
        return _json({**self._head(), "choices": choices, "usage": self._usage()})

    def stream(self) -> Lines:
        def chunk(index: int, text: str, finish: str | None = None, logprobs: Any = None) -> bytes:
            choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
            return formats.sse_event({**self._head(), "choices": [choice]})

        try:
            for i, choice in enumerate(self.all):
                if choice.text:
                    yield chunk(i, choice.text)
                with closing(choice):
                    for piece in choice:
                        wants_logprobs = (
                            [formats.logprob_of(piece)] if self.body.logprobs is not None else None
                        )
                        yield chunk(
                            i, piece.text, logprobs=wants_logprobs and formats.text_logprobs(wants_logprobs)
                        )
                yield chunk(i, "", choice.finish_reason)
            if self.body.with_usage:
                yield formats.sse_event({**self._head(), "choices": [], "usage": self._usage()})
        except HaloWeaveError as error:
            yield formats.sse_event({"error": openai_error(error)[1]})
        yield formats.DONE

    def _usage(self) -> dict[str, Any]:
        usages = [choice.usage for choice in self.all]
        total = formats.sum_usages(usages)
        total.prompt = sum(usage.prompt for usage in usages[:: self.body.n])
        return total.as_json()


def _texts(prompt: Any) -> list[str | list[int]]:
    """The prompts of a request: one or several, as texts or token ids."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    return list(prompt)


def _ids_of(weave: Weave, text: str | list[int]) -> Ids:
    if isinstance(text, str):
        return weave.engine.tokenize(storable_text(text), special=True).ids
    if any(not 0 <= id < weave.engine.info.vocabulary for id in text):
        raise OpenAiError(400, "invalid_prompt", "A token is not in the model's vocabulary.", param="prompt")
    return np.array(text, np.int32)


def _embeddings(weave: Weave, body: EmbeddingRequest) -> dict[str, Any]:
    texts = [
        storable_text(text) if isinstance(text, str) else weave.engine.pieces(_ids_of(weave, text)).text
        for text in _texts(body.input)
    ]
    if not 0 < len(texts) <= MAX_TEXTS or not all(text.strip() for text in texts):
        raise OpenAiError(
            400, "invalid_input", f"Send 1 to {MAX_TEXTS} texts, none of them empty.", param="input"
        )
    name, vectors = weave.memory.embed(texts)
    if body.dimensions not in (None, vectors.shape[1]):
        raise OpenAiError(
            400,
            "unsupported_value",
            f"The vectors of {name} have {vectors.shape[1]} dimensions.",
            param="dimensions",
        )
    tokens = sum(len(weave.engine.tokenize(text)) for text in texts)

    def encoded(vector: Any) -> Any:
        raw = vector.astype("<f4")
        return base64.b64encode(raw.tobytes()).decode() if body.encoding_format == "base64" else raw.tolist()

    return {
        "object": "list",
        "model": name,
        "data": [
            {"object": "embedding", "index": i, "embedding": encoded(vector)}
            for i, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
