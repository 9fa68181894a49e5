"""Engine for servers with `/v1/chat/completions`. They expose no tokens or attention: tokens are estimated, and a shadow model supplies attention."""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from threading import Lock
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines.base import (
    Capabilities,
    Capture,
    Engine,
    GenerationEnd,
    GenerationEvent,
    LateAttention,
    ModelInfo,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Step,
    StopReason,
    matching_windows,
)
from halo_weave.engines.flat_prompt import FlatPrompt
from halo_weave.engines.remote_server import RemoteServer, RequestRejected, check_url
from halo_weave.engines.shadow_model import ShadowRun
from halo_weave.engines.stop_strings import StopStrings
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt, NativeCall
from halo_weave.engines.templates.model_template import ModelTemplate, TemplateFacts
from halo_weave.engines.templates.renderer import TemplateRenderer
from halo_weave.errors import BadInput, ServerFailed

COUNTED_TOKENIZER = "counted"
COUNTED_VOCABULARY = 1 << 24
_COUNTED_PIECE = re.compile(r"\s?\w{1,6}|\s+|[^\w\s]{1,3}", re.UNICODE)


class CountingTokenizer:
    """Assigns a number to each piece when it first occurs. The numbers mean nothing to a model."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._pieces: list[bytes] = []
        self._lock = Lock()

    def tokenize(self, text: str) -> Tokens:
        try:
            pieces = [match.group().encode() for match in _COUNTED_PIECE.finditer(text)]
        except UnicodeEncodeError as error:
            raise BadInput("The text holds half of a surrogate pair, which is not a character.") from error
        return Tokens.of([self._id(piece) for piece in pieces], pieces)

    def pieces(self, ids: Ids) -> Tokens:
        known = len(self._pieces)
        if len(ids) and not 0 <= ids.min() <= ids.max() < known:
            raise BadInput("The token ids are unknown: this process has not tokenized their text.")
        return Tokens.of(ids, [self._pieces[id] for id in ids.tolist()])

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return (ids < 0) | (ids >= COUNTED_VOCABULARY)

    def _id(self, piece: bytes) -> int:
        id = self._ids.get(piece)
        if id is None:
            with self._lock:
                id = self._ids.setdefault(piece, len(self._pieces) % COUNTED_VOCABULARY)
                if id == len(self._pieces):
                    self._pieces.append(piece)
        return id


Message = dict[str, Any]

# How thoughts, tool calls and tool output are written in a reply. Servers send and take them in separate fields.
TOOL_TEMPLATE = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Call one with <tool_call>
{"name": "…", "arguments": {}}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OMITTED = "[…]"  # in place of a pruned question whose answer is live
_CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_TOOL_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>(?=<\|im_end\|>|\Z)", re.DOTALL)
_FRAME = re.compile(r"\A\s*(<\|im_end\|>\s*)?(<\|im_start\|>assistant\s*)?")
_THOUGHT = re.compile(r"\A\s*<think>.*?(</think>\s*|\Z)", re.DOTALL)


def in_cached_order(
    before: Sequence[ChatMessage],
    now: Sequence[ChatMessage],
    recently_resurrected: Container[ChatMessage] = (),
) -> list[ChatMessage]:
    """The messages `now` in an order that lets the server reuse its prompt cache from the previous request, `before`.

    Messages of the previous request keep their order up to the first that was pruned since. If less than half of them can
    keep it, chronological order is used. Recently resurrected messages come after them, right before the new ones.
    """
    *earlier, newest = now
    indices = defaultdict[ChatMessage, deque[int]](deque)
    for index, message in enumerate(earlier):
        indices[message].append(index)
    matches = [indices[message].popleft() if indices[message] else None for message in before]
    prefix = [index for index in takewhile(lambda index: index is not None, matches) if index is not None]
    if len(prefix) < len(before) / 2:
        prefix = []
    last = -1 if not matches or matches[-1] is None else matches[-1]
    rest = sorted(set(range(len(earlier))).difference(prefix))
    old = [index for index in rest if index <= last and earlier[index] not in recently_resurrected]
    recent = [index for index in rest if index <= last and earlier[index] in recently_resurrected]
    since = [index for index in rest if index > last]
    reply = list(takewhile(lambda index: earlier[index].role == "assistant", since))
    order = [*prefix, *old, *reply, *recent, *since[len(reply) :]]
    return [*(earlier[index] for index in order), newest]


def alternate_roles(messages: Iterable[ChatMessage]) -> list[Message]:
    """The system prompt, then user and assistant messages in turn.

    If messages in between are pruned, neighbours may have the same role. User messages are then joined, and a placeholder
    is inserted before an answer whose question is pruned.
    """
    system, talk = [], list[Message]()
    for message in messages:
        text = message.content
        if message.role == "system":
            system.append(text)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if role == "assistant" and (not talk or talk[-1]["role"] == role):
            talk.append({"role": "user", "content": OMITTED})
        if talk and talk[-1]["role"] == role:
            talk[-1]["content"] += f"\n\n{text}"
        else:
            talk.append({"role": role, "content": text})
    first = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return [*first, *talk]


def with_reply(talk: Sequence[Message], reply: str) -> list[Message]:
    """The conversation with the reply so far. Tool calls and tool output become messages of their own."""
    messages, rest, number = list(talk), _THOUGHT.sub("", reply), 0
    while first := _CALL.search(rest):
        calls = list[Message]()
        before, end = rest[: first.start()].strip(), first.start()
        while (match := _CALL.match(rest, end)) and (call := _call_in(match.group(1))):
            number, end = number + 1, match.end()
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            calls.append({"id": f"call_{number}", "type": "function", "function": function})
        if not calls:
            break
        messages.append({"role": "assistant", "content": before or None, "tool_calls": calls})
        rest = rest[end:]
        for message in calls:
            response = _TOOL_RESPONSE.search(rest)
            output, end = (response.group(1), response.end()) if response else (rest, len(rest))
            messages.append({"role": "tool", "tool_call_id": message["id"], "content": output.strip("\n")})
            rest = rest[end:]
        rest = _THOUGHT.sub("", _FRAME.sub("", rest))
    if rest.strip():
        messages.append({"role": "assistant", "content": rest.strip()})
    return messages


def format_call(name: str, arguments: str) -> str:
    """A tool call that the server sent as a field, as text of the reply."""
    try:
        values = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        values = {}
    call = json.dumps(
        {"name": name, "arguments": values if isinstance(values, dict) else {}}, ensure_ascii=False
    )
    return f"\n<tool_call>\n{call}\n</tool_call>"


def _call_in(text: str) -> NativeCall | None:
    try:
        call = json.loads(text)
        return NativeCall(str(call["name"]), dict(call.get("arguments") or {}))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


DEFAULT_CONTEXT = 8192  # context in tokens, if the server does not report it
REQUEST_TIMEOUT = 30.0  # seconds for a request that does not run the model
MAX_WINDOWS = 256  # number of windows whose last requests are remembered
SHADOW_TIMEOUT = 60.0  # seconds that the shadow model may take after a reply
# Request fields that some servers reject. If the error names one, it is sent under the other name from then on, or omitted.
OPTIONAL_FIELDS = {
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
NO_ATTENTION = Calibration(
    sentence="This server does not expose attention, and there is no shadow model: brightness comes from surprisal, as far as "
    "the server reports it, and from recall."
)
FINISH_REASONS: dict[str, StopReason] = {
    "stop": "eos",
    "length": "length",
    "tool_calls": "eos",
    "content_filter": "stop",
}


class OpenAiEngine(Engine):
    """Sends prompts as messages. The shadow model's tokenizer counts tokens; without a shadow model they are estimated."""

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        model: str = "",
        shadow_model: Engine | None = None,
        context: int | None = None,
    ) -> None:
        """The engine owns `shadow_model` and closes it."""
        url = check_url(url).removesuffix("/chat/completions")
        self.server = RemoteServer(url if urlsplit(url).path else f"{url}/v1", key)
        self.shadow_model = shadow_model
        self.calibration = NO_ATTENTION if shadow_model is None else None  # else the shadow model's
        self._counting = CountingTokenizer()
        self._renderer = TemplateRenderer()
        self._rejected_fields: set[str] = set()
        self._last_messages: dict[
            str, Sequence[ChatMessage]
        ] = {}  # messages of each window's last request, in order
        try:
            self._template = ModelTemplate(
                TOOL_TEMPLATE,
                self._renderer,
                specials={"bos_token": "", "eos_token": "<|im_end|>"},
                now=datetime.now(),
            )
            listed = self._models()
            self.model = model or next(iter(listed), "")
            if not self.model:
                raise BadInput(f"{self.server.url} lists no models. Name a model with --model-name.")
            self._info = self._describe(listed.get(self.model, {}), context)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._renderer.close()
        self.server.close()
        if self.shadow_model is not None:
            self.shadow_model.close()

    def _models(self) -> dict[str, Mapping[str, Any]]:
        """The models that the server lists, by name. Some servers have no list."""
        try:
            response = self.server.request("GET", "models", timeout=REQUEST_TIMEOUT)
        except RequestRejected as error:
            if error.status in (404, 405, 501):
                return {}
            raise
        models = response.get("data") if isinstance(response, dict) else None
        return {
            str(model["id"]): model for model in models or () if isinstance(model, dict) and "id" in model
        }

    def _describe(self, listed: Mapping[str, Any], context: int | None) -> ModelInfo:
        meta = listed.get("meta")
        sizes = [listed.get("max_model_len"), listed.get("context_length")]
        sizes += [meta.get("n_ctx"), meta.get("n_ctx_train")] if isinstance(meta, dict) else []
        reported = next((size for size in sizes if isinstance(size, int) and size > 0), DEFAULT_CONTEXT)
        shadow_info = self.shadow_model.info if self.shadow_model else None
        room = context or (min(reported, shadow_info.context) if shadow_info else reported)
        return ModelInfo(
            name=self.model.rpartition("/")[2].removesuffix(".gguf") or self.model,
            architecture="",
            layers=shadow_info.layers if shadow_info else 0,
            heads=shadow_info.heads if shadow_info else 0,
            kv_heads=shadow_info.kv_heads if shadow_info else 0,
            vocabulary=shadow_info.vocabulary if shadow_info else COUNTED_VOCABULARY,
            trained_context=max(room, reported),
            context=room,
            special=dict(shadow_info.special) if shadow_info else {},
            tokenizer=shadow_info.tokenizer if shadow_info else COUNTED_TOKENIZER,
            template="model",
            abilities=Capabilities(
                attention=False,
                cuts=False,
                token_ids=shadow_info is not None,
                surprisal=False,
                reading=False,
                late=shadow_info is not None,
            ),
            url=self.server.url,
        )

    @property
    def facts(self) -> TemplateFacts:
        return self._template.facts

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        if self.shadow_model is not None:
            return self.shadow_model.tokenize(text, special=special)
        return self._counting.tokenize(text)

    def pieces(self, ids: Ids) -> Tokens:
        return self.shadow_model.pieces(ids) if self.shadow_model is not None else self._counting.pieces(ids)

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return (
            self.shadow_model.controls(ids) if self.shadow_model is not None else self._counting.controls(ids)
        )

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        return self._template.write(messages, tools=tools, now=datetime.now())

    def forget(self, window: str) -> None:
        for name in matching_windows(window, list(self._last_messages)):
            self._last_messages.pop(name, None)
        if self.shadow_model is not None:
            self.shadow_model.forget(window)

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        if self.shadow_model is not None:
            self.shadow_model.erase(spans, windows)

    # Generation

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
            raise BadInput("This server takes conversations, not single prompts. Use it in a window.")
        if sampling.grammar:
            raise BadInput("This server takes no grammar. Send the request without a response format.")
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
        shadow_run = (
            ShadowRun(self.shadow_model, window, prompt, capture) if self.shadow_model and capture else None
        )
        try:
            yield PrefillPlanned(0, 0, size)
            reply = _StreamedReply(
                self.tokenize, prompt.next_label, StopStrings(sampling.stop), sampling.max_new_tokens
            )
            reply.max_tokens = min(reply.max_tokens, self._info.context - size + 1)
            reply.context_full = reply.max_tokens < sampling.max_new_tokens
            read = False
            for event in self._events(window, prompt, sampling, stopped):
                if not read:
                    read = True
                    yield PrefillResult(0, 0, size, False, "", time.perf_counter() - began)
                for step in reply.feed(event):
                    yield step
                    if shadow_run:
                        shadow_run.add_tokens([step.id])
                if shadow_run:
                    yield from shadow_run.take()
                # After the last token the server still sends the usage figures.
                if reply.reason and (reply.reason != "length" or reply.has_more):
                    break
            if not read:
                yield PrefillResult(0, 0, size, False, "", time.perf_counter() - began)
            if reply.reason is None and not reply.finish_reason and not stopped():
                raise ServerFailed(
                    f"The connection to {self.server.url} was lost during the reply. The reply so far is kept; try again."
                )
            for step in reply.finish():
                yield step
                if shadow_run:
                    shadow_run.add_tokens([step.id])
            if shadow_run:
                yield from self._wait_for_shadow_run(shadow_run, stopped)
            last = shadow_run.last if shadow_run and reply.finish_reason == "eos" else None
            reason = reply.reason or ("abort" if not reply.finish_reason else reply.finish_reason)
            yield GenerationEnd(
                reason, reply.released, time.perf_counter() - began, last, reply.prompted, reply.cached
            )
        finally:
            if shadow_run:
                shadow_run.stop()

    def _wait_for_shadow_run(
        self, shadow_run: ShadowRun, stopped: Callable[[], bool]
    ) -> Iterator[LateAttention]:
        """The reply has ended: wait until the shadow model has read all of it."""
        shadow_run.end()
        end = time.monotonic() + SHADOW_TIMEOUT
        while not shadow_run.over and time.monotonic() < end and not stopped():
            shadow_run.wait(0.05)
            yield from shadow_run.take()
        yield from shadow_run.take()

    def _events(
        self, window: str, prompt: Prompt, sampling: Sampling, stopped: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """The server's events. If it rejects a field of the request, the request is repeated without it."""
        body = self._body(window, prompt, sampling)
        while True:
            try:
                for event in self.server.stream("chat/completions", self._accepted_fields(body), stopped):
                    if error := event.get("error"):
                        message = error.get("message") if isinstance(error, dict) else error
                        raise ServerFailed(f"{self.server.url} reports: {self.server.clean_message(message)}")
                    yield event
                return
            except RequestRejected as error:
                message = error.message.lower()
                rejected = [
                    name
                    for name in OPTIONAL_FIELDS
                    if name in message and name in body and name not in self._rejected_fields
                ]
                if error.status not in (400, 422) or not rejected:
                    raise
                self._rejected_fields.update(rejected)

    def _accepted_fields(self, body: Mapping[str, Any]) -> dict[str, Any]:
        renamed = {name: OPTIONAL_FIELDS[name] if name in self._rejected_fields else name for name in body}
        return {renamed[name]: value for name, value in body.items() if renamed[name]}

    def _ordered_messages(self, window: str, prompt: Prompt) -> list[Message]:
        """The messages for the server. Their beginning changes as little as possible, since servers cache it."""
        messages, last = prompt.messages, prompt.messages[-1]
        if last.role == "assistant":
            messages = messages[:-1]
        messages = self._last_messages[window] = in_cached_order(
            self._last_messages.pop(window, ()), messages, prompt.recently_resurrected
        )
        if len(self._last_messages) > MAX_WINDOWS:
            del self._last_messages[next(iter(self._last_messages))]
        return (
            with_reply(alternate_roles(messages), last.content)
            if last.role == "assistant"
            else alternate_roles(messages)
        )

    def _body(self, window: str, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        messages = self._ordered_messages(window, prompt)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        optional = {
            "top_k": sampling.top_k or None,
            "min_p": sampling.min_p or None,
            "repeat_penalty": sampling.repeat_penalty if sampling.repeat_penalty != 1 else None,
            "seed": sampling.seed,
            "tools": list(prompt.tools) or None,
            "reasoning_effort": prompt.effort if prompt.effort in ("low", "high") else None,
            "logprobs": True if self.shadow_model is None else None,
        }
        return body | {name: value for name, value in optional.items() if value is not None}


@dataclass(slots=True)
class _StreamedReply:
    """Converts a streamed reply to tokens. Thoughts and tool calls become text, as in `TOOL_TEMPLATE`."""

    tokenize: Callable[[str], Tokens]
    label: int
    stops: StopStrings
    max_tokens: int
    context_full: bool = False  # whether the context, not the request, limits the reply
    reason: StopReason | None = None  # why the rest of the reply is not needed
    has_more: bool = False  # whether the server sent more than needed
    finish_reason: StopReason | None = None  # why the server ended it
    released: int = 0
    generated: int = 0
    prompted: int | None = None
    cached: int | None = None
    thinking: bool = False
    calls: dict[int, list[str]] = field(default_factory=dict)  # name and arguments received so far

    def feed(self, event: Mapping[str, Any]) -> Iterator[Step]:
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
            yield from self._add(thought if self.thinking else f"<think>\n{thought}")
            self.thinking = True
        if isinstance(text := delta.get("content"), str) and text:
            yield from self._add(self._closed() + text, _surprisal(choice))
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        if choice.get("finish_reason"):
            self.finish_reason = FINISH_REASONS.get(str(choice["finish_reason"]), "eos")

    def finish(self) -> Iterator[Step]:
        for name, arguments in self.calls.values():
            yield from self._add(self._closed() + format_call(name, arguments))
        self.calls = {}
        rest = self.stops.rest() if self.reason is None else []
        self.released += len(rest)
        yield from rest

    def _closed(self) -> str:
        thinking, self.thinking = self.thinking, False
        return "\n</think>\n\n" if thinking else ""

    def _add_call(self, call: Any) -> None:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            index = call.get("index")
            received = self.calls.setdefault(index if isinstance(index, int) else len(self.calls), ["", ""])
            received[0] += str(function.get("name") or "")
            received[1] += str(function.get("arguments") or "")

    def _add(self, text: str, surprisal: float = math.nan) -> Iterator[Step]:
        tokens = self.tokenize(text.encode(errors="replace").decode())
        for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
            if self.reason:
                self.has_more = True
                return
            out, found_stop = self.stops.feed(Step(id, self.label, piece, surprisal / len(tokens), None))
            self.label, self.generated, self.released = (
                self.label + 1,
                self.generated + 1,
                self.released + len(out),
            )
            yield from out
            if found_stop:
                self.reason = "stop"
            elif self.generated >= self.max_tokens:
                self.reason = "context" if self.context_full else "length"


def _surprisal(choice: Mapping[str, Any]) -> float:
    """The surprisal of an event's text in nats, if the server sends log-probabilities."""
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    try:
        return float(-sum(float(token["logprob"]) for token in tokens)) if tokens else math.nan
    except (TypeError, KeyError, ValueError):
        return math.nan
