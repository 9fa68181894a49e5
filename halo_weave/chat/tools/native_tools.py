"""Tool calls in the format of the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from halo_weave.chat.prompt import PromptBuilder
from halo_weave.chat.reply import ReplyKind, generation_prompt
from halo_weave.engines.base import Engine
from halo_weave.engines.templates.messages import ChatMessage, NativeCall
from halo_weave.engines.templates.tool_calls import PROBE_CALL, ToolCallReader, ToolCallSplitter

Parts = list[tuple[ReplyKind, str]]


class NativeTools:
    """The tool calls of one reply. A message may hold several calls, one after the other."""

    def __init__(self, engine: Engine, prompt_builder: PromptBuilder, effort: str | None) -> None:
        self._engine, self._prompt_builder, self._effort = engine, prompt_builder, effort
        self._after = b""  # what the model has written after its last call

    def call_splitter(self, tools: Sequence[Mapping[str, Any]]) -> ToolCallSplitter | None:
        """A splitter that finds calls of these tools in a reply; None if the template has no format for calls."""
        facts = self._engine.facts
        if facts.tools is None or not tools:
            return None
        prompt = generation_prompt(self._engine, self._effort)
        return ToolCallSplitter(facts.tools, tools, header=prompt.strip().rpartition("\n")[2])

    def note_call(self, rest: str) -> None:
        """Note that a call is complete; `rest` is the text after it in its last token."""
        self._after = rest.encode()

    @property
    def several(self) -> bool:
        """Whether the template writes several calls one after the other."""
        return bool(self._between)

    def continues_calls(self, piece: bytes) -> bool:
        """Whether the next token may belong to a further call of the same message."""
        text, between = _squashed(self._after + piece), self._between
        if not between.startswith(text) and not text.startswith(between):
            return False
        self._after += piece
        return True

    def format_results(self, calls: Sequence[NativeCall], answers: Sequence[str]) -> Parts | None:
        """The results of the calls as the template writes them, all in one message or each in its own."""
        together = self._round_trip(calls, answers)
        if together or len(calls) == 1:
            return together
        each = [self._round_trip([call], [text]) for call, text in zip(calls, answers, strict=True)]
        return [part for one in each if one for part in one] or None

    def _round_trip(self, calls: Sequence[NativeCall], answers: Sequence[str]) -> Parts | None:
        """The template's text around the tool output, and the output, up to where the model continues. None if the
        template has no such form."""
        facts, tools = self._engine.facts, self._prompt_builder.tools
        talk = [ChatMessage("user", "a"), ChatMessage("assistant", "", calls=tuple(calls))]
        talk += [ChatMessage("tool", text, answers=call) for call, text in zip(calls, answers, strict=True)]
        pieces = self._engine.chat(talk, effort=self._effort, tools=tools).pieces

        def places(message: int) -> list[int]:
            return [i for i, one in enumerate(pieces) if one.part == "content" and one.message == message]

        asked, said = places(0), [places(2 + number) for number in range(len(calls))]
        if not asked or not all(said) or facts.tools is None:
            return None
        before = "".join(piece.text for piece in pieces[asked[-1] + 1 : said[0][0]])
        reader = ToolCallReader(facts.tools, tools, only_declared=False)
        if facts.tools.open and len(reader.feed(before)) < len(calls):
            return None
        frame, written = reader.rest if facts.tools.open else before, self._after.decode(errors="replace")
        frame = frame.removeprefix(written) if not written.strip() or frame.startswith(written) else frame
        parts: Parts = [("mark", frame)]
        for own, end in zip(said, [*(one[0] for one in said[1:]), len(pieces)], strict=True):
            parts.append(("tool", "".join(pieces[i].text for i in own)))
            parts.append(("mark", "".join(piece.text for piece in pieces[own[-1] + 1 : end])))
        return parts

    @cached_property
    def _between(self) -> bytes:
        return _squashed(_between_calls(self._engine, self._prompt_builder, self._effort).encode())


def _between_calls(engine: Engine, prompt_builder: PromptBuilder, effort: str | None) -> str:
    """The template's text between two calls of one message; empty if it allows only one, or writes them as a list."""
    facts, other = (
        engine.facts,
        NativeCall(PROBE_CALL.name, {**PROBE_CALL.arguments, "qzWhole": 732}, "call00002"),
    )
    if facts.tools is None or not facts.tools.open:
        return ""
    talk = [ChatMessage("user", "a"), ChatMessage("assistant", "", calls=(PROBE_CALL, other))]
    talk += [ChatMessage("tool", "b", answers=call) for call in (PROBE_CALL, other)]
    pieces = engine.chat(talk, effort=effort, tools=prompt_builder.tools).pieces
    asked = [i for i, piece in enumerate(pieces) if piece.part == "content" and piece.message == 0]
    text = "".join(piece.text for piece in pieces[asked[-1] + 1 :]) if asked else ""
    reader, ends = ToolCallReader(facts.tools, only_declared=False), list[int]()
    for place, letter in enumerate(text):
        ends += [place + 1 for call in reader.feed(letter) if call.name == PROBE_CALL.name]
    if len(ends) != 2 or ends[0] == ends[1]:
        return ""
    rest = text[ends[0] : ends[1]]
    mark = rest.find(facts.tools.open)
    return rest[: mark + len(facts.tools.open)] if mark >= 0 else ""


def _squashed(raw: bytes) -> bytes:
    """The text without white space, which models write in different ways."""
    return b"".join(raw.split())
