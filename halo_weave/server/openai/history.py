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

TASK_PREFIX = "### Task:"  # the beginning of a front-end's request for a title, tags or follow-up questions
_CONTEXT_END = "</context>"  # the end of the document excerpts that Open WebUI adds before a user's message


@dataclass(slots=True)
class ToolRound:
    """A text of the model, its tool calls after it, and their results in the same order."""

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
        return "".join(round.text for round in self.rounds)

    @property
    def pending(self) -> bool:
        """Whether the turn ends with tool results, so the model has to continue it."""
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
        """Whether it is a task of a front-end, such as a title for the chat."""
        return self.units[-1].role is Role.USER and self.units[-1].text.lstrip().startswith(TASK_PREFIX)


def read_messages(messages: Sequence[ClientMessage]) -> ClientHistory:
    """Convert messages to turns. Blank messages are dropped."""
    system: list[str] = []
    units: list[HistoryTurn] = []
    for message in messages:
        text = storable_text(message.text)
        last = units[-1] if units else None
        match message.role:
            case "system" | "developer":
                system.append(text)
            case "user":
                excerpts, text = _without_documents(text)
                system.append(excerpts)
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
                        "A tool message must follow the assistant message with its call.",
                        param="messages",
                    )
                last.rounds[-1].results.append(text)
    spoken = [
        unit for i, unit in enumerate(units) if unit.text.strip() or (unit.pending and i == len(units) - 1)
    ]
    if not spoken:
        raise OpenAiError(
            400, "invalid_messages", "All messages are empty. Send a user message.", param="messages"
        )
    return ClientHistory("\n\n".join(text for text in system if text.strip()), spoken)


def _without_documents(text: str) -> tuple[str, str]:
    """The document excerpts that a front-end has added to a message, and the user's own message.

    Later requests have only the user's own message, so only that is compared and stored.
    """
    excerpts, end, message = text.rpartition(_CONTEXT_END)
    if end and message.strip() and excerpts.lstrip().startswith(TASK_PREFIX):
        return excerpts + end, message.strip()
    return "", text


def chat_messages(sent: ClientHistory) -> list[ChatMessage]:
    """The whole conversation for the model's template."""
    messages = [ChatMessage("system", sent.system)] if sent.system else []
    for unit in sent.units:
        messages += _messages_of_turn(unit)
    return messages


def _messages_of_turn(unit: HistoryTurn) -> list[ChatMessage]:
    if unit.role is not Role.ASSISTANT:
        return [ChatMessage("user", unit.text)]
    messages = []
    for round in unit.rounds:
        calls = tuple(_with_call_id(call, i) for i, call in enumerate(round.calls))
        messages.append(ChatMessage("assistant", round.text, calls=calls))
        for call, result in zip(calls, round.results, strict=False):
            messages.append(ChatMessage("tool", result, answers=call))
    return messages


def _with_call_id(call: NativeCall, number: int) -> NativeCall:
    """The message with a call id of nine letters and digits, which some templates require."""
    return NativeCall(call.name, call.arguments, f"call{number:05d}")


def reply_prefix(
    engine: Engine, unit: HistoryTurn, tools: str, effort: str | None
) -> tuple[tuple[ReplyKind, Tokens], ...]:
    """The reply up to the last tool result, as the model's template writes it after its generation prompt."""
    declared = parse_tool_declarations(tools)
    question = ChatMessage("user", "a")
    alone = engine.chat([question], effort=effort, tools=declared).pieces
    whole = engine.chat([question, *_messages_of_turn(unit)], effort=effort, tools=declared).pieces
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
