"""A client's messages as turns: what is said, what frames it, and tool calls with their results as one reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from halo_weave.core.tokens import Role, Tokens
from halo_weave.ports import Engine
from halo_weave.server.refusals import ApiRefusal
from halo_weave.server.v1.requests import GuestMessage
from halo_weave.templates.messages import ChatMessage, NativeCall
from halo_weave.weave.prompt import declarations
from halo_weave.weave.reply import ReplyKind
from halo_weave.weave.turns import plain

TASK = "### Task:"  # how title, tag and follow-up requests of front-ends begin
_DOCUMENTS = "</context>"  # ends what Open WebUI puts before a user's words when they ask about documents


@dataclass(slots=True)
class Round:
    """Words of the model, the calls that it made after them, and their results in the same order."""

    text: str
    calls: list[NativeCall] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """One turn. A reply that called tools has several rounds."""

    role: Role
    rounds: list[Round]

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.rounds)

    @property
    def pending(self) -> bool:
        """Tools have answered, and the model has not gone on yet."""
        return bool(self.rounds[-1].calls)


@dataclass(frozen=True, slots=True)
class Sent:
    """A request's conversation. What the system says is its frame, never part of it."""

    system: str
    units: list[Unit]

    @property
    def said(self) -> list[tuple[Role, str]]:
        return [(unit.role, unit.text) for unit in self.units]

    @property
    def is_task(self) -> bool:
        """Whether a front-end asks for something about the chat, such as a title."""
        return self.units[-1].role is Role.USER and self.units[-1].text.lstrip().startswith(TASK)


def read_messages(messages: Sequence[GuestMessage]) -> Sent:
    """White space alone is nothing said."""
    system: list[str] = []
    units: list[Unit] = []
    for message in messages:
        text = plain(message.text)
        last = units[-1] if units else None
        match message.role:
            case "system" | "developer":
                system.append(text)
            case "user":
                about, text = _without_documents(text)
                system.append(about)
                units.append(Unit(Role.USER, [Round(text)]))
            case "assistant":
                calls = [
                    NativeCall(call.function.name, call.arguments, call.id)
                    for call in message.tool_calls or ()
                ]
                if last is not None and last.role is Role.ASSISTANT and last.pending:
                    last.rounds.append(Round(text, calls))
                else:
                    units.append(Unit(Role.ASSISTANT, [Round(text, calls)]))
            case _:
                if last is None or not last.pending:
                    raise ApiRefusal(
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
        raise ApiRefusal(
            400, "invalid_messages", "No message says anything. Send one of the user.", param="messages"
        )
    return Sent("\n\n".join(one for one in system if one.strip()), spoken)


def _without_documents(text: str) -> tuple[str, str]:
    """What a front-end tells the model about documents, and the user's own words, which it sends alone the next time."""
    about, end, words = text.rpartition(_DOCUMENTS)
    if end and words.strip() and about.lstrip().startswith(TASK):
        return about + end, words.strip()
    return "", text


def chat_messages(sent: Sent) -> list[ChatMessage]:
    """The whole conversation for the model's template."""
    found = [ChatMessage("system", sent.system)] if sent.system else []
    for unit in sent.units:
        found += _of_unit(unit)
    return found


def _of_unit(unit: Unit) -> list[ChatMessage]:
    if unit.role is not Role.ASSISTANT:
        return [ChatMessage("user", unit.text)]
    found = []
    for one in unit.rounds:
        calls = tuple(_named(call, i) for i, call in enumerate(one.calls))
        found.append(ChatMessage("assistant", one.text, calls=calls))
        for call, result in zip(calls, one.results, strict=False):
            found.append(ChatMessage("tool", result, answers=call))
    return found


def _named(call: NativeCall, number: int) -> NativeCall:
    """Some templates demand ids of nine letters and digits."""
    return NativeCall(call.name, call.arguments, f"call{number:05d}")


def opening_of(
    engine: Engine, unit: Unit, tools: str, effort: str | None
) -> tuple[tuple[ReplyKind, Tokens], ...]:
    """A reply up to where tools have answered, as the model's template writes it after its generation prompt."""
    declared = declarations(tools)
    asked = ChatMessage("user", "a")
    alone = engine.chat([asked], effort=effort, tools=declared).pieces
    whole = engine.chat([asked, *_of_unit(unit)], effort=effort, tools=declared).pieces
    start = next(i for i, piece in enumerate(alone) if piece.part == "content" and piece.message == 0)
    skip = "".join(piece.text for piece in alone[start + 1 :])
    kinds = {"assistant": "answer", "tool": "tool"}
    roles = ["user", *(message.role for message in _of_unit(unit))]
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
