"""Finds the conversation of a client's request and generates the reply, as a turn of its window or without a window."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from halo_weave.chat import events
from halo_weave.chat.prompt import parse_tool_declarations
from halo_weave.chat.reply import ReplyParser
from halo_weave.chat.turn_request import ClientOptions
from halo_weave.chat.turn_runner import TurnAccepted
from halo_weave.chat.weave import Weave
from halo_weave.core.tokens import Ids, Role
from halo_weave.engines.base import GenerationEnd, PrefillResult, Prompt, Sampling, Segment, Step
from halo_weave.engines.templates.tool_calls import ToolCallSplitter
from halo_weave.errors import BadInput, HaloWeaveError, UnknownWindow, WindowBusy
from halo_weave.server.errors import OpenAiError
from halo_weave.server.openai.forced_tools import tool_call_grammar
from halo_weave.server.openai.formats import EMPTY_PIECE, Choice, ReplyPiece, Usage
from halo_weave.server.openai.history import ClientHistory, chat_messages, reply_prefix
from halo_weave.server.openai.requests import ChatRequest
from halo_weave.server.stateless_runs import StatelessRuns

T = TypeVar("T")
BUSY_TIMEOUT = 120.0  # seconds to wait for a busy window
NAME_LENGTH_LIMIT = 60  # a new window is named after the first message, cut at this many characters
# Headers with the client's id of a chat. An unfilled placeholder like {{chat_id}} is ignored, and so are these values.
_CHAT_HEADERS = ("x-openwebui-chat-id", "x-conversation-id", "x-chat-id", "x-session-id")
_NO_CHAT_IDS = {"", "new", "null", "none", "undefined"}


@dataclass(slots=True)
class ClientConversation:
    """The window that a request continues, and which messages of the client's history it already has.

    `begin` starts the first reply to the request, `regenerate_reply` each further one; `choice` reads what they started.
    """

    weave: Weave
    request: ChatRequest
    history: ClientHistory
    window: str
    known_turns: int  # number of turns of the history that the window already has
    last_known_turn: int | None  # id of the turn that the new ones follow; None: the history begins anew
    window_is_empty: bool  # the window has no messages yet
    client_options: ClientOptions
    resurrected: list[dict[str, Any]] = field(default_factory=list)
    reply_turn: int = 0

    def begin(self) -> TurnAccepted:
        """Store the new messages, and start the first reply."""
        turns, units = self.weave.turns, self.history.units
        new = units[self.known_turns :]
        # The turn that new messages follow. None: the last one of the window. 0: none, they begin another branch.
        after = (
            None if self.window_is_empty or self.last_known_turn == self._head else self.last_known_turn or 0
        )
        options = self._turn_options()
        last = units[-1]
        # The last message is known: another version of its reply.
        if not new and last.role is Role.USER:
            return self._when_free(
                lambda: turns.regenerate(self.window, self.last_known_turn, **options).result()
            )
        if last.pending:  # it ends with results of tool calls
            return self._continue_after_tools(new[:-1], after, options)
        if last.role is Role.ASSISTANT:  # the beginning of a reply, to be continued
            if new:
                self._when_free(
                    lambda: turns.add(self.window, [(unit.role, unit.text) for unit in new], after=after)
                )
            elif after is not None and self.last_known_turn:
                self._when_free(lambda: turns.rewind(self.window, self.last_known_turn or 0))
            return self._when_free(lambda: turns.continue_reply(self.window, **options).result())
        if new[:-1]:
            said = [(unit.role, unit.text) for unit in new[:-1]]
            self._when_free(lambda: turns.add(self.window, said, after=after))
            after = None
        return self._when_free(
            lambda: turns.send_message(self.window, last.text, after=after, **options).result()
        )

    def regenerate_reply(self) -> TurnAccepted:
        """Start another reply to the same message."""
        options = self._turn_options()
        return self._when_free(lambda: self.weave.turns.regenerate(self.window, **options).result())

    def choice(self, accepted: TurnAccepted) -> Choice:
        """The reply of a turn that was accepted."""
        self.reply_turn = accepted.first_event.reply_turn
        for event in self.weave.turns.events_since(self.window, accepted.last_event):
            if isinstance(event, events.ChunksResurrected):
                self.resurrected += [_resurrected_json(chunk) for chunk in event.chunks]
        return _choice(lambda choice: self._pieces(accepted, choice))

    def _continue_after_tools(
        self, before: Sequence[Any], after: int | None, options: dict[str, Any]
    ) -> TurnAccepted:
        """Continue the reply whose tool calls the client has now answered.

        `before`: new messages before the user's message. `after`: as in `begin`.
        """
        turns, unit, user_turn = self.weave.turns, self.history.units[-1], self.last_known_turn
        if before:
            added = self._when_free(
                lambda: turns.add(self.window, [(unit.role, unit.text) for unit in before], after=after)
            )
            user_turn = added[-1].id
        if not user_turn:
            raise OpenAiError(
                400,
                "invalid_messages",
                "The user's message before the tool calls is missing.",
                param="messages",
            )
        effort = self.weave.windows.settings(self.window).effort
        opening = reply_prefix(self.weave.engine, unit, self.client_options.tools, effort)
        return self._when_free(
            lambda: turns.regenerate(self.window, user_turn, opening=opening, **options).result()
        )

    @property
    def polls(self) -> bool:
        """Whether the stream is polled instead of followed by a waiting thread, which is slower for each token."""
        return self.request.stream and self.request.n == 1

    @property
    def resurrected_before_reply(self) -> int:
        """How many chunks were resurrected for the turn."""
        return len(self.resurrected)

    @property
    def _head(self) -> int | None:
        return self.weave.windows.get(self.window).head

    def _turn_options(self) -> dict[str, Any]:
        """What the request changes in a turn."""
        default_max_tokens = self.weave.windows.settings(self.window).max_new_tokens
        return {
            "sampling": self.request.sampling(self.weave.engine.info.context, default_max_tokens),
            "stop": self.request.stop,
            "client_options": self.client_options,
        }

    def _when_free(self, action: Callable[[], T]) -> T:
        """Run the action when no other request uses the window."""
        end = time.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                return action()
            except WindowBusy:
                if (left := end - time.monotonic()) <= 0:
                    raise
                self.weave.turns.wait_until_free(self.window, left)

    def _pieces(self, accepted: TurnAccepted, choice: Choice) -> Generator[ReplyPiece, None, None]:
        turns, ended = self.weave.turns, False
        read_events = turns.poll if self.polls else turns.follow
        # How many tokens of the reply the client already has.
        prefix_tokens = getattr(accepted.first_event, "opened", 0)
        try:
            for event in read_events(self.window, accepted.last_event):
                match event:
                    case None:  # nothing new since the last poll
                        yield EMPTY_PIECE
                    case events.PrefillFinished() if not choice.usage.prompt:
                        kept = event.reused + event.restored
                        choice.usage.prompt, choice.usage.cached = kept + event.computed, kept
                    case events.TokenGenerated() if prefix_tokens:
                        prefix_tokens -= 1
                    case events.TokenGenerated():
                        choice.usage.thought += event.thought
                        if not event.tool and event.text:
                            yield ReplyPiece(
                                event.text,
                                event.piece,
                                event.thought,
                                -event.surprisal,
                                event.likely,
                            )
                    case events.ClientToolCalled():
                        yield ReplyPiece("", call=_call(event.name, event.arguments, self.window))
                    case events.TurnEnded():
                        ended = True
                        choice.finish, choice.usage.written = event.reason, event.stats["tokens"]
                    case events.TurnFailed():
                        ended = True
                        status, code = (502, "server_failed") if event.elsewhere else (500, "failed")
                        raise OpenAiError(status, code, event.sentence)
                    case events.WindowDeleted():
                        raise OpenAiError(500, "failed", "The window was deleted during the reply.")
                    case events.EventsLost():
                        raise OpenAiError(
                            500, "failed", "Parts of the reply are no longer kept: they were read too slowly."
                        )
        finally:
            if not ended:  # the client disconnected
                turns.abort(self.window)


def _choice(pieces: Callable[[Choice], Generator[ReplyPiece, None, None]]) -> Choice:
    """A choice whose pieces are generated with its own usage and finish at hand."""
    choice = Choice(_no_pieces(), Usage())
    choice.pieces = pieces(choice)
    return choice


def _no_pieces() -> Generator[ReplyPiece, None, None]:
    yield from ()


def _resurrected_json(chunk: events.ResurrectedChunk) -> dict[str, Any]:
    return {
        "key": str(chunk.key),
        "text": chunk.chunk.text,
        "speaker": chunk.speaker,
        "said": chunk.said.isoformat(),
        "window": chunk.window,
        "why": {"part": str(chunk.part), "similarity": chunk.similarity, "words": list(chunk.words)},
        "cost": chunk.cost,
    }


def _call(name: str, arguments: Mapping[str, Any], window: str = "") -> dict[str, Any]:
    """A tool call. Its id contains the window's id: the client sends it back with the result, and so the window is found."""
    return {
        "id": f"call_{secrets.token_hex(6)}_{window}".rstrip("_"),
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(dict(arguments), ensure_ascii=False)},
    }


# Find the conversation of a request


def client_options_of(weave: Weave, request: ChatRequest, history: ClientHistory) -> ClientOptions:
    tools = request.declared_tools
    template = weave.engine.facts
    if tools and (template.tools is None or not template.declares_tools):
        raise OpenAiError(
            400,
            "tools_unsupported",
            f"{weave.engine.info.name} has no format for tool calls. Send the request without tools, or use another model.",
            param="tools",
        )
    forced_tool, top_logprobs = request.forced_tool, request.top_logprobs or 0
    if forced_tool is None:
        return ClientOptions(history.system, tools, request.grammar, top_logprobs)
    if not tools:
        raise OpenAiError(
            400,
            "invalid_value",
            "tool_choice forces a tool call, but the request has no tools.",
            param="tool_choice",
        )
    effort = weave.windows.settings().effort
    return ClientOptions(
        history.system, tools, tool_call_grammar(weave.engine, tools, forced_tool, effort), top_logprobs
    )


def find_conversation(
    weave: Weave, request: ChatRequest, history: ClientHistory, headers: Mapping[str, str]
) -> ClientConversation:
    """The window of a request: named by our header or by the client's chat id, recognised by the history, or a new one."""
    client_options = client_options_of(weave, request, history)
    units = history.units[:-1] if history.units[-1].pending else history.units
    said = [(unit.role, unit.text) for unit in units]
    turns = weave.turns
    # 1. Our own header.
    requested = headers.get("x-halo-window", "").strip()
    if requested:
        window = weave.windows.get(requested)
        found = turns.recognise(said, requested)
        if found is not None and found.turn is not None:
            return ClientConversation(
                weave,
                request,
                history,
                requested,
                known_turns=found.known,
                last_known_turn=found.turn.id,
                window_is_empty=False,
                client_options=client_options,
            )
        if len(said) == 1 or window.head is None:  # only new messages were sent
            return ClientConversation(
                weave,
                request,
                history,
                requested,
                known_turns=0,
                last_known_turn=window.head,
                window_is_empty=window.head is None,
                client_options=client_options,
            )
        return ClientConversation(
            weave,
            request,
            history,
            requested,
            known_turns=0,
            last_known_turn=None,
            window_is_empty=False,
            client_options=client_options,
        )
    # 2. The client's id of the chat in a header, the tool calls that the request answers, or an id in the body. A window found
    # by an id in a header counts even if it has none of the history.
    header_ids = [
        f"{name}:{value}"
        for name in _CHAT_HEADERS
        if (value := headers.get(name, "").strip()[:200]).lower() not in _NO_CHAT_IDS and "{{" not in value
    ]
    window_of_calls = _window_of_calls(weave, history)
    # An empty id stands for the window of the tool calls.
    for chat_id in [*header_ids, *([""] if window_of_calls else []), *request.chat_names]:
        known = turns.chat(chat_id) if chat_id else window_of_calls
        if known is None:
            continue
        found = turns.recognise(said, known)
        is_empty = weave.windows.get(known).head is None
        if found is not None and (found.turn is not None or is_empty or chat_id in header_ids):
            turn = found.turn.id if found.turn else None
            return ClientConversation(
                weave,
                request,
                history,
                known,
                known_turns=found.known,
                last_known_turn=turn,
                window_is_empty=is_empty,
                client_options=client_options,
            )
    # 3. The history.
    found = turns.recognise(said) if not header_ids else None
    if found is not None and found.turn is not None:
        window_id, known_turns, turn = found.window, found.known, found.turn.id
        try:
            weave.windows.get(window_id)
        except UnknownWindow:  # the window was deleted
            found = None
        else:
            conversation = ClientConversation(
                weave,
                request,
                history,
                window_id,
                known_turns=known_turns,
                last_known_turn=turn,
                window_is_empty=False,
                client_options=client_options,
            )
            _remember_chat_ids(weave, conversation.window, header_ids, request)
            return conversation
    # 4. A new window.
    first = next((text for role, text in said if role is Role.USER), "A chat")
    name = " ".join(first.split())[:NAME_LENGTH_LIMIT] or "A chat"
    # Clients do not know the dates that are added to messages.
    window = weave.windows.create(name, system_prompt=history.system, settings={"timestamps": False})
    _remember_chat_ids(weave, window.id, header_ids, request)
    return ClientConversation(
        weave,
        request,
        history,
        window.id,
        known_turns=0,
        last_known_turn=None,
        window_is_empty=True,
        client_options=client_options,
    )


def _window_of_calls(weave: Weave, history: ClientHistory) -> str | None:
    """The window whose last reply made the tool calls that this request answers."""
    for call in history.units[-1].rounds[-1].calls:
        found = re.fullmatch(r"call_[0-9a-f]{12}_([0-9a-zA-Z_-]{1,64})", call.id)
        if found:
            with suppress(UnknownWindow):
                return weave.windows.get(found[1]).id
    return None


def _remember_chat_ids(weave: Weave, window: str, header_ids: Sequence[str], request: ChatRequest) -> None:
    """Store that the client's ids of this chat mean this window."""
    for chat_id in [*header_ids, *request.chat_names]:
        weave.turns.chat(chat_id, window)


# Without a window: nothing is stored


def sampling_of(
    weave: Weave, changes: Mapping[str, Any], stop: Sequence[str], grammar: str, likely: int
) -> Sampling:
    settings = weave.windows.settings().changed(changes)
    return Sampling(
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        repeat_penalty=settings.repeat_penalty,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        stop=tuple(stop),
        grammar=grammar,
        likely=likely,
    )


def reply_incognito(
    weave: Weave, runs: StatelessRuns, request: ChatRequest, history: ClientHistory
) -> Choice:
    """A reply to the conversation of the request. Nothing is stored, and memory is not used."""
    client_options = client_options_of(weave, request, history)
    engine, tools = weave.engine, parse_tool_declarations(client_options.tools)
    settings = weave.windows.settings()
    prompt = engine.chat(chat_messages(history), effort=settings.effort, tools=tools)
    parts = [engine.tokenize(piece.text, special=not piece.said).ids for piece in prompt.pieces if piece.text]
    ids = np.concatenate(parts).astype(np.int32)
    changes = request.sampling(engine.info.context, settings.max_new_tokens)
    thought_delimiters, tool_format = engine.facts.marks, engine.facts.tools
    generation_prompt = prompt.pieces[-1].text
    last_line = generation_prompt.strip().rpartition("\n")[2]
    call_splitter = ToolCallSplitter(tool_format, tools, header=last_line) if tool_format and tools else None
    parser = ReplyParser(0, thought_delimiters, calls=call_splitter, calls_end=True, stamps=False)
    parser.begin(thought_delimiters is not None and thought_delimiters.opened_by(generation_prompt))
    sampling = sampling_of(weave, changes, request.stop, client_options.grammar, client_options.likely)
    return complete_tokens(weave, runs, ids, sampling, parser)


def complete_tokens(
    weave: Weave, runs: StatelessRuns, ids: Ids, sampling: Sampling, parser: ReplyParser
) -> Choice:
    """Continue these tokens. Nothing is stored, and memory is not used."""
    room = weave.engine.info.context - len(ids)
    if not len(ids):
        raise OpenAiError(
            400, "invalid_prompt", "The prompt is empty. Send at least one token.", param="prompt"
        )
    if room < 2:
        raise OpenAiError(
            400,
            "context_length_exceeded",
            f"The request has {len(ids)} tokens; the model's context, which must also hold the reply, has {weave.engine.info.context}.",
            param="messages",
        )
    return _choice(lambda choice: _complete_tokens(weave, runs, ids, sampling, parser, choice))


def _complete_tokens(
    weave: Weave, runs: StatelessRuns, ids: Ids, sampling: Sampling, parser: ReplyParser, choice: Choice
) -> Generator[ReplyPiece, None, None]:
    # One segment; the labels are just the indexes of the tokens.
    prompt = Prompt([Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)], len(ids), temporary=True)
    with runs.take(secrets.token_hex(8)) as (window, stop):
        steps = weave.engine.generate(window, prompt, sampling, None, mode="exact", stopped=stop.is_set)
        try:
            for step in steps:
                match step:
                    case PrefillResult():
                        kept = step.reused + step.restored
                        choice.usage.prompt, choice.usage.cached = kept + step.computed, kept
                    case Step():
                        choice.usage.written += 1
                        parsed_tokens = parser.feed(step.id, step.piece)
                        parser.tokens[-1].surprisal, parser.tokens[-1].likely = step.surprisal, step.likely
                        yield from _pieces_of(parser, parsed_tokens, choice)
                    case GenerationEnd():
                        yield from _pieces_of(parser, parser.finish(), choice)
                        choice.finish = step.reason
        except BadInput:
            raise
        except HaloWeaveError as error:
            raise OpenAiError(500, "engine_failed", str(error)) from error
        finally:
            close = getattr(steps, "close", None)
            if close:
                close()


def _pieces_of(
    parser: ReplyParser, parsed_tokens: Sequence[Any], choice: Choice
) -> Generator[ReplyPiece, None, None]:
    for token in parsed_tokens:
        thought = token.kind == "thought"
        choice.usage.thought += thought
        if token.text:
            yield ReplyPiece(token.text, token.piece, thought, -token.surprisal, token.likely)
    calls, parser.calls = parser.calls, []
    for call in calls:
        yield ReplyPiece("", call=_call(call.name, call.arguments))
