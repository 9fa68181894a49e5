"""Separates thoughts from the answer while a reply streams, by the delimiters of the chat template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from halo_weave.engines.templates.tool_calls import partial_match_length

TextKind = Literal["thought", "answer", "mark"]


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The delimiters of thoughts, and of answers if they have their own.

    Channels are delimiters, too: `<|channel|>analysis<|message|>` opens a thought, `<|end|>` closes it, and
    `<|start|>assistant<|channel|>final<|message|>` is one of `answer_opens`.
    """

    open: str = "<think>"
    close: str = "</think>"
    answer_opens: tuple[str, ...] = ()
    answer_close: str = ""

    def opened_by(self, prompt: str) -> bool:
        """Whether a generation prompt ends inside a thought."""
        return prompt.rfind(self.open) > prompt.rfind(self.close)


class ThoughtSplitter:
    """Splits a reply, fed in pieces of bytes, into thought, answer and delimiters; all bytes are returned.

    A thought comes before the answer, so a delimiter inside the answer is a quotation. What could be the beginning of a
    delimiter is held back until the next piece. White space between thought and answer belongs to the delimiters.
    """

    def __init__(self, marks: ThoughtMarks | None = None, *, opened: bool = False) -> None:
        """`opened`: the generation prompt ends inside a thought."""
        marks = marks or ThoughtMarks()
        self._open, self._close = marks.open.encode(), marks.close.encode()
        self._starts = [mark.encode() for mark in marks.answer_opens if mark]
        self._end = marks.answer_close.encode()
        self._held = b""
        self._state: Literal["before", "begun", "thought", "answer", "ended"] = (
            "begun" if opened else "before"
        )

    def feed(self, piece: bytes) -> list[tuple[TextKind, bytes]]:
        self._held += piece
        return _joined(self._steps(last=False))

    def finish(self) -> list[tuple[TextKind, bytes]]:
        """What was held back, when the reply has ended."""
        return _joined(self._steps(last=True))

    def _steps(self, *, last: bool) -> Iterator[tuple[TextKind, bytes]]:
        while self._held:
            if self._state in ("before", "begun"):
                step = self._begin(last=last)
            elif self._state == "ended":
                step = "mark", len(self._held)
            elif self._state == "thought":
                step = self._until(self._close, "thought", "before", last=last)
            else:
                step = self._until(self._end, "answer", "ended", last=last)
            if step is None:
                return
            kind, size = step
            if size:
                yield kind, self._held[:size]
                self._held = self._held[size:]

    def _begin(self, *, last: bool) -> tuple[TextKind, int] | None:
        """At the beginning of a reply: white space, a delimiter that opens a thought or the answer, or the text itself."""
        space = len(self._held) - len(self._held.lstrip())
        rest = self._held[space:]
        inside = self._state == "begun"
        marks = [self._open] if inside else [self._open, *self._starts]
        if not inside:  # a model may close a thought that the prompt has opened
            marks.append(self._close)
        met = max((mark for mark in marks if rest.startswith(mark)), key=len, default=None)
        longer = any(len(mark) > len(met or b"") and mark.startswith(rest) for mark in marks)
        if longer and not last:
            return ("mark", space) if space and not inside else None
        if met is not None:
            if met == self._open:
                self._state = "thought"
            elif met in self._starts:
                self._state = "answer"
            return "mark", space + len(met)
        if inside:
            self._state = "thought"
            return "thought", 0
        if not rest:
            return "mark", space
        self._state = "answer"
        return "mark", space

    def _until(
        self, mark: bytes, kind: TextKind, then: Literal["before", "ended"], *, last: bool
    ) -> tuple[TextKind, int] | None:
        at = self._held.find(mark) if mark else -1
        if at == 0:
            self._state = then
            return "mark", len(mark)
        if at > 0:
            return kind, at
        held = 0 if last else partial_match_length(self._held, mark)
        size = len(self._held) - held
        return (kind, size) if size else None


def _joined(steps: Iterator[tuple[TextKind, bytes]]) -> list[tuple[TextKind, bytes]]:
    found: list[tuple[TextKind, bytes]] = []
    for kind, text in steps:
        if found and found[-1][0] == kind:
            found[-1] = kind, found[-1][1] + text
        else:
            found.append((kind, text))
    return found
