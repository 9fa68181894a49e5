"""Messages for chat templates, and the pieces of a rendered prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["begin", "header", "content", "thought", "footer", "prompt"]


@dataclass(frozen=True, slots=True)
class NativeCall:
    """A tool call in the template's format: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]
    id: str = "call00001"  # nine letters and digits, as some templates demand


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message for the template."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    thought: str = ""
    calls: tuple[NativeCall, ...] = ()
    answers: NativeCall | None = None  # the call that a tool message answers


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the rendered prompt.

    Headers and footers are the template's text; content and thoughts are text of messages, and are never read as
    control tokens. `begin` occurs once, before the header of the first turn: a token that begins a text, or text of the
    template. `start` is where the text begins in the message's content; -1: the template has changed the text.
    """

    text: str
    part: Part
    message: int  # index of its message; the number of messages for the generation prompt
    start: int = 0

    @property
    def said(self) -> bool:
        return self.part in ("content", "thought")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A whole conversation up to where the model continues."""

    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()  # how the conversation was rearranged for the template
    taken: Sequence[Mapping[str, Any]] = ()  # the messages as they were passed to the template

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)
