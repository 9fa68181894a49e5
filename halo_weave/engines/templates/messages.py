"""Messages as chat templates take them, and the pieces of a rendered prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["begin", "header", "content", "thought", "footer", "prompt"]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool call in the words of the template: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]
    id: str = "call00001"  # nine letters and digits, as some templates demand


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn as templates know it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    thought: str = ""
    calls: tuple[NativeCall, ...] = ()
    answers: NativeCall | None = None  # the call that a tool's message is the result of


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the prompt. Headers and footers are the template's; content and thoughts were said.

    `begin` stands once, before the header of the first turn: a token that begins a text, or words of the template. What was
    said is never read as control tokens. `start` is where the text stands in the message's content; -1: the template has
    changed the text.
    """

    text: str
    part: Part
    message: int  # which message it belongs to; the number of messages for the generation prompt
    start: int = 0

    @property
    def said(self) -> bool:
        return self.part in ("content", "thought")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A whole conversation up to the place where the model goes on."""

    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()  # what was done so that the template takes the conversation
    taken: Sequence[Mapping[str, Any]] = ()  # the messages as the template was given them

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)
