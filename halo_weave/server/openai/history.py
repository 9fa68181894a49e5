"""Converts the messages of a client to turns: text, system prompt, and tool calls with their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from halo_weave.chat.prompt import parse_tool_declarations
from halo_weave.chat.reply import ReplyKind
from halo_weave.chat.turn_runner import storable_text
from halo_weave.core.tokens import Role, Tokens
from halo_weave.engines.base import Engine
from halo_weave.engines.templates.messages import ChatMessage, NativeCall
from halo_weave.server.errors import OpenAiError
from halo_weave.server.openai.requests import ClientMessage

TASK_PREFIX = "### Task:"  # how requests of front-ends for titles, tags and follow-ups begin
_CONTEXT_END = "</context>"  # the end of what Open WebUI puts before a user's message about documents


@dataclass(slots=True)
class ToolRound:
    """Text of the model, the calls after it, and their results in the same order."""

    text: str
    calls: list[NativeCall] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


@dataclass(slots=True)
class HistoryTurn:
    """One turn. A reply that called tools has several rounds."""

    role: Role
    rounds: list[ToolRound]

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.rounds)

    @property
    def pending(self) -> bool:
        """Whether tools have answered, and the model has not continued yet."""
        return bool(self.rounds[-1].calls)


@dataclass(frozen=True, slots=True)
class ClientHistory:
    """The conversation of a request. System messages are not part of it."""

    system: str
    units: list[HistoryTurn]

    @property
    def said(self) -> list[tuple[Role, str]]:
        return [(unit.role, unit.text) for unit in self.units]

    @property
    def is_task(self) -> bool:
        """Whether a front-end asks for something about the chat, such as a title."""
        return self.units[-1].role is Role.USER and self.units[-1].text.lstrip().startswith(TASK_PREFIX)


def read_messages(messages: Sequence[ClientMessage]) -> ClientHistory:
    """Messages as turns. Messages of white space only are left out."""
    system: list[str] = []
    units: list[HistoryTurn] = []
    for message in messages:
        text = storable_text(message.text)
        last = units[-1] if units else None
        match message.role:
            case "system" | "developer":
                system.append(text)
            case "user":
                about, text = _without_documents(text)
                system.append(about)
                units.append(HistoryTurn(Role.USER, [ToolRound(text)]))
            case "assistant":
                calls = [
                    NativeCall(call.function.name, call.arguments, call.id)
                    for call in message.tool_calls or ()
                ]
                if last is not None and last.role is Role.ASSISTANT and last.pending:
                    last.rounds.append(ToolRound(text, calls))
                else:
                    units.append(HistoryTurn(Role.ASSISTANT, [ToolRound(text, calls)]))
            case _:
                if last is None or not last.pending:
                    raise OpenAiError(
                        400,
                        "invalid_messages",
                        "A tool's message has to follow the assistant's message that called it.",
                        param="messages",
                    )
                last.rounds[-1].results.append(text)
    spoken = [
        unit for i, unit in enumerate(units) if unit.text.strip() or (unit.pending and i == len(units) - 1)
    ]
    if not spoken:
        raise OpenAiError(
            400, "invalid_messages", "No message says anything. Send one of the user.", param="messages"
        )
    return ClientHistory("\n\n".join(one for one in system if one.strip()), spoken)


def _without_documents(text: str) -> tuple[str, str]:
    """The user's own message, without what a front-end adds about documents: the next request has only that message."""
    about, end, words = text.rpartition(_CONTEXT_END)
    if end and words.strip() and about.lstrip().startswith(TASK_PREFIX):
        return about + end, words.strip()
    return "", text


def chat_messages(sent: ClientHistory) -> list[ChatMessage]:
    """The whole conversation for the model's template."""
    found = [ChatMessage("system", sent.system)] if sent.system else []
    for unit in sent.units:
        found += _messages_of_turn(unit)
    return found


def _messages_of_turn(unit: HistoryTurn) -> list[ChatMessage]:
    if unit.role is not Role.ASSISTANT:
        return [ChatMessage("user", unit.text)]
    found = []
    for one in unit.rounds:
        calls = tuple(_with_call_id(call, i) for i, call in enumerate(one.calls))
        found.append(ChatMessage("assistant", one.text, calls=calls))
        for call, result in zip(calls, one.results, strict=False):
            found.append(ChatMessage("tool", result, answers=call))
    return found


def _with_call_id(call: NativeCall, number: int) -> NativeCall:
    """The message with a call id of nine letters and digits, which some templates require."""
    return NativeCall(call.name, call.arguments, f"call{number:05d}")


def reply_prefix(
    engine: Engine, unit: HistoryTurn, tools: str, effort: str | None
) -> tuple[tuple[ReplyKind, Tokens], ...]:
    """The reply up to the last tool result, as the model's template writes it after its generation prompt."""
    declared = parse_tool_declarations(tools)
    asked = ChatMessage("user", "a")
    alone = engine.chat([asked], effort=effort, tools=declared).pieces
    whole = engine.chat([asked, *_messages_of_turn(unit)], effort=effort, tools=declared).pieces
    start = next(i for i, piece in enumerate(alone) if piece.part == "content" and piece.message == 0)
    skip = "".join(piece.text for piece in alone[start + 1 :])
    kinds = {"assistant": "answer", "tool": "tool"}
    roles = ["user", *(message.role for message in _messages_of_turn(unit))]
    parts: list[tuple[ReplyKind, Tokens]] = []
    for piece in whole[start + 1 :]:
        text = piece.text
        common = next(
            (i for i, (a, b) in enumerate(zip(skip, text, strict=False)) if a != b), min(len(skip), len(text))
        )
        text, skip = text[common:], skip[common:] if common == len(text) else ""
        if text:
            role = roles[piece.message] if piece.part == "content" else ""
            kind: ReplyKind = kinds.get(role, "mark")  # type: ignore[assignment]
            parts.append((kind, engine.tokenize(text, special=kind == "mark")))
    return tuple(parts)
