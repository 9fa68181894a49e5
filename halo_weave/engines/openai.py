"""A server with `/v1/chat/completions`: its tokens, template and attention are hidden; a reader lends it eyes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from halo_weave.core.heads import Calibration
from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines import counting
from halo_weave.engines.messages import (
    TEMPLATE,
    Message,
    alternating,
    kept_in_order,
    with_reply,
    written_call,
)
from halo_weave.engines.prompts import FlatPrompt
from halo_weave.engines.reader import ReadingAlong
from halo_weave.engines.remote import Refused, RemoteServer, checked_url
from halo_weave.engines.stops import Stops
from halo_weave.errors import BadInput, ServerFailed
from halo_weave.ports import (
    Abilities,
    Capture,
    Done,
    Engine,
    GenerationEvent,
    ModelInfo,
    Planned,
    Prompt,
    Read,
    Reason,
    Sampling,
    Seen,
    Step,
    named_by,
)
from halo_weave.templates.facts import TemplateFacts
from halo_weave.templates.messages import ChatMessage, ChatPrompt
from halo_weave.templates.model import ModelTemplate
from halo_weave.templates.renderer import TemplateRenderer

CONTEXT = 8192  # tokens, where the server does not tell
ASKING = 30.0  # seconds for an answer that needs no model
MOST_WINDOWS = 256  # whose last requests are remembered
CATCH_UP = 60.0  # seconds that the reader gets after a reply
# What not every server takes, by the name that it complains about: left out from then on, or sent under another name.
OPTIONAL = {
    "max_tokens": "max_completion_tokens",
    **dict.fromkeys(
        (
            "stream_options",
            "logprobs",
            "seed",
            "top_k",
            "min_p",
            "repeat_penalty",
            "reasoning_effort",
            "stop",
        ),
        "",
    ),
    **dict.fromkeys(("temperature", "top_p"), ""),
}
HIDDEN = Calibration(
    sentence="This model hides what it looks at, and nobody reads along: light comes from surprise, as far as the server "
    "tells it, and from recall."
)
ENDS: dict[str, Reason] = {"stop": "eos", "length": "length", "tool_calls": "eos", "content_filter": "stop"}


class OpenAiEngine:
    """Implements `ports.Engine`. Prompts are sent as messages; what is counted is counted with the reader's tokens."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        model: str = "",
        reader: Engine | None = None,
        context: int | None = None,
    ) -> None:
        """`reader` is this engine's own from now on."""
        url = checked_url(url).removesuffix("/chat/completions")
        self.server = RemoteServer(url if urlsplit(url).path else f"{url}/v1", key)
        self.reader = reader
        self.calibration = HIDDEN if reader is None else None  # else the reader's
        self._counting = counting.CountingTokenizer()
        self._renderer = TemplateRenderer()
        self._left_out: set[str] = set()
        self._asked: dict[str, Sequence[ChatMessage]] = {}  # what each window sent last, in its order
        try:
            self._template = ModelTemplate(
                TEMPLATE,
                self._renderer,
                specials={"bos_token": "", "eos_token": "<|im_end|>"},
                now=datetime.now(),
            )
            listed = self._models()
            self.model = model or next(iter(listed), "")
            if not self.model:
                raise BadInput(f"{self.server.url} lists no models. Name one: --model-name …")
            self._info = self._describe(listed.get(self.model, {}), context)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._renderer.close()
        self.server.close()
        if self.reader is not None:
            self.reader.close()

    def _models(self) -> dict[str, Mapping[str, Any]]:
        """What the server lists, by name. Not every server does."""
        try:
            told = self.server.ask("GET", "models", patience=ASKING)
        except Refused as error:
            if error.status in (404, 405, 501):
                return {}
            raise
        rows = told.get("data") if isinstance(told, dict) else None
        return {str(one["id"]): one for one in rows or () if isinstance(one, dict) and "id" in one}

    def _describe(self, listed: Mapping[str, Any], context: int | None) -> ModelInfo:
        meta = listed.get("meta")
        sizes = [listed.get("max_model_len"), listed.get("context_length")]
        sizes += [meta.get("n_ctx"), meta.get("n_ctx_train")] if isinstance(meta, dict) else []
        known = next((one for one in sizes if isinstance(one, int) and one > 0), CONTEXT)
        eyes = self.reader.info if self.reader else None
        room = context or (min(known, eyes.context) if eyes else known)
        return ModelInfo(
            name=self.model.rpartition("/")[2].removesuffix(".gguf") or self.model,
            architecture="",
            layers=eyes.layers if eyes else 0,
            heads=eyes.heads if eyes else 0,
            kv_heads=eyes.kv_heads if eyes else 0,
            vocabulary=eyes.vocabulary if eyes else counting.VOCABULARY,
            trained_context=max(room, known),
            context=room,
            special=dict(eyes.special) if eyes else {},
            tokenizer=eyes.tokenizer if eyes else counting.NAME,
            template="model",
            abilities=Abilities(
                attention=False,
                cuts=False,
                token_ids=eyes is not None,
                surprisal=False,
                reading=False,
                late=eyes is not None,
            ),
            url=self.server.url,
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def facts(self) -> TemplateFacts:
        return self._template.facts

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        if self.reader is not None:
            return self.reader.tokenize(text, special=special)
        return self._counting.tokenize(text)

    def pieces(self, ids: Ids) -> Tokens:
        return self.reader.pieces(ids) if self.reader is not None else self._counting.pieces(ids)

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return self.reader.controls(ids) if self.reader is not None else self._counting.controls(ids)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        return self._template.write(messages, tools=tools, now=datetime.now())

    def forget(self, window: str) -> None:
        for one in named_by(window, list(self._asked)):
            self._asked.pop(one, None)
        if self.reader is not None:
            self.reader.forget(window)

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        if self.reader is not None:
            self.reader.erase(spans, windows)

    def read_ahead(
        self,
        window: str,
        prompt: Prompt,
        *,
        room: int,
        mode: Literal["splice", "exact"] = "splice",
        most: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        """Not here: whoever runs the server may need it meanwhile."""

    # Speaking

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        sampling.check()
        flat = FlatPrompt.of(prompt, vocabulary=self._info.vocabulary, context=self._info.context)
        if capture and prompt.read_from is not None:
            flat.index_of(prompt.read_from)
        if not prompt.messages:
            raise BadInput("This model takes conversations, not bare tokens. Speak to it in a window.")
        if sampling.grammar:
            raise BadInput("This model's server takes no grammar. Ask for no form of the reply.")
        return self._generate(window, len(flat), prompt, sampling, capture, stopped)

    def _generate(
        self,
        window: str,
        size: int,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        stopped: Callable[[], bool],
    ) -> Iterator[GenerationEvent]:
        began = time.perf_counter()
        along = ReadingAlong(self.reader, window, prompt, capture) if self.reader and capture else None
        try:
            yield Planned(0, 0, size)
            reply = _StreamedReply(
                self.tokenize, prompt.next_label, Stops(sampling.stop), sampling.max_new_tokens
            )
            reply.most = min(reply.most, self._info.context - size + 1)
            reply.full = reply.most < sampling.max_new_tokens
            read = False
            for event in self._events(window, prompt, sampling, stopped):
                if not read:
                    read = True
                    yield Read(0, 0, size, False, "", time.perf_counter() - began)
                for step in reply.take(event):
                    yield step
                    if along:
                        along.say([step.id])
                if along:
                    yield from along.take()
                # Where it is as long as it was asked for, the server is about to tell what it had read.
                if reply.reason and (reply.reason != "length" or reply.longer):
                    break
            if not read:
                yield Read(0, 0, size, False, "", time.perf_counter() - began)
            if reply.reason is None and not reply.told and not stopped():
                raise ServerFailed(
                    f"{self.server.url} broke off in the middle of its answer. What it said so far is kept; try again."
                )
            for step in reply.finish():
                yield step
                if along:
                    along.say([step.id])
            if along:
                yield from self._caught_up(along, stopped)
            last = along.last if along and reply.told == "eos" else None
            reason = reply.reason or ("abort" if not reply.told else reply.told)
            yield Done(reason, reply.given, time.perf_counter() - began, last, reply.prompted, reply.cached)
        finally:
            if along:
                along.leave()

    def _caught_up(self, along: ReadingAlong, stopped: Callable[[], bool]) -> Iterator[Seen]:
        """The reply is whole: what the reader has not read of it yet."""
        along.end()
        end = time.monotonic() + CATCH_UP
        while not along.over and time.monotonic() < end and not stopped():
            along.wait(0.05)
            yield from along.take()
        yield from along.take()

    def _events(
        self, window: str, prompt: Prompt, sampling: Sampling, stopped: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """The server's events. What it complains about and can be left out is left out, and it is asked again."""
        body = self._body(window, prompt, sampling)
        while True:
            try:
                for event in self.server.stream("chat/completions", self._fitting(body), stopped):
                    if error := event.get("error"):
                        words = error.get("message") if isinstance(error, dict) else error
                        raise ServerFailed(f"{self.server.url} says: {self.server.told(words)}")
                    yield event
                return
            except Refused as error:
                told = error.told.lower()
                wrong = [
                    name for name in OPTIONAL if name in told and name in body and name not in self._left_out
                ]
                if error.status not in (400, 422) or not wrong:
                    raise
                self._left_out.update(wrong)

    def _fitting(self, body: Mapping[str, Any]) -> dict[str, Any]:
        renamed = {name: OPTIONAL[name] if name in self._left_out else name for name in body}
        return {renamed[name]: value for name, value in body.items() if renamed[name]}

    def _laid_out(self, window: str, prompt: Prompt) -> list[Message]:
        """What is said to the server: its beginning stays the same as far as possible, since servers cache it."""
        said, last = prompt.messages, prompt.messages[-1]
        if last.role == "assistant":
            said = said[:-1]
        said = self._asked[window] = kept_in_order(self._asked.pop(window, ()), said, prompt.guests)
        if len(self._asked) > MOST_WINDOWS:
            del self._asked[next(iter(self._asked))]
        return with_reply(alternating(said), last.content) if last.role == "assistant" else alternating(said)

    def _body(self, window: str, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        messages = self._laid_out(window, prompt)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        more = {
            "top_k": sampling.top_k or None,
            "min_p": sampling.min_p or None,
            "repeat_penalty": sampling.repeat_penalty if sampling.repeat_penalty != 1 else None,
            "seed": sampling.seed,
            "tools": list(prompt.tools) or None,
            "reasoning_effort": prompt.effort if prompt.effort in ("low", "high") else None,
            "logprobs": True if self.reader is None else None,
        }
        return body | {name: value for name, value in more.items() if value is not None}


@dataclass(slots=True)
class _StreamedReply:
    """A streamed reply in tokens of ours: thoughts and calls are written into it as the template writes them."""

    tokenize: Callable[[str], Tokens]
    label: int
    stops: Stops
    most: int
    full: bool = False  # whether the context, not the request, says how long it may be
    reason: Reason | None = None  # why no more of it is wanted
    longer: bool = False  # whether more of it came all the same
    told: Reason | None = None  # why the server ended it
    given: int = 0
    made: int = 0
    prompted: int | None = None
    cached: int | None = None
    thinking: bool = False
    calls: dict[int, list[str]] = field(default_factory=dict)  # name and arguments, as far as they have come

    def take(self, event: Mapping[str, Any]) -> Iterator[Step]:
        usage = event.get("usage")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int):
            self.prompted = usage["prompt_tokens"]
            self.cached = cached if isinstance(cached, int) else self.cached
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            yield from self._say(thought if self.thinking else f"<think>\n{thought}")
            self.thinking = True
        if isinstance(text := delta.get("content"), str) and text:
            yield from self._say(self._closed() + text, _surprisal(choice))
        for call in delta.get("tool_calls") or ():
            self._note_call(call)
        if choice.get("finish_reason"):
            self.told = ENDS.get(str(choice["finish_reason"]), "eos")

    def finish(self) -> Iterator[Step]:
        for name, arguments in self.calls.values():
            yield from self._say(self._closed() + written_call(name, arguments))
        self.calls = {}
        rest = self.stops.rest() if self.reason is None else []
        self.given += len(rest)
        yield from rest

    def _closed(self) -> str:
        thinking, self.thinking = self.thinking, False
        return "\n</think>\n\n" if thinking else ""

    def _note_call(self, call: Any) -> None:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            index = call.get("index")
            made = self.calls.setdefault(index if isinstance(index, int) else len(self.calls), ["", ""])
            made[0] += str(function.get("name") or "")
            made[1] += str(function.get("arguments") or "")

    def _say(self, text: str, surprisal: float = math.nan) -> Iterator[Step]:
        tokens = self.tokenize(text.encode(errors="replace").decode())
        for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
            if self.reason:
                self.longer = True
                return
            out, met = self.stops.feed(Step(id, self.label, piece, surprisal / len(tokens), None))
            self.label, self.made, self.given = self.label + 1, self.made + 1, self.given + len(out)
            yield from out
            if met:
                self.reason = "stop"
            elif self.made >= self.most:
                self.reason = "context" if self.full else "length"


def _surprisal(choice: Mapping[str, Any]) -> float:
    """Nats of what was said in one event, if the server tells."""
    told = choice.get("logprobs")
    rows = told.get("content") if isinstance(told, dict) else None
    try:
        return float(-sum(float(one["logprob"]) for one in rows)) if rows else math.nan
    except (TypeError, KeyError, ValueError):
        return math.nan
