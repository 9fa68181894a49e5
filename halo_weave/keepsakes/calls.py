"""Finding tool calls in a reply while it streams: `<tool>…</tool>`, however the text falls into pieces."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

_OPEN, _CLOSE = "<tool>", "</tool>"
CALL_LIMIT = 100_000  # characters; what is longer is not kept, and refused when it ends
_FENCES = ("```", "~~~")
_LIKE_A_COMMAND = re.compile(r"\s*(?:jq\s|[A-Za-z]\w*\s*\()")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What stands between the tags."""

    command: str
    too_long: bool = False


class ToolDetector:
    """Feed it a reply piece by piece; it tells of each call as soon as its closing tag is complete.

    A tag inside a code fence or right after a backtick is an example, not a call. The first `</tool>` ends a call,
    and fences within it mean nothing.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tail = ""  # the last characters, as many as a tag has and one before
        self._line = ""  # the line's first characters, indent left out
        self._fence = ""  # the marks of the open fence
        self._body: list[str] | None = None  # of the open call
        self._too_long = False

    def feed(self, piece: str | bytes) -> tuple[ToolCall, ...]:
        """The calls that this piece completes: nearly always none, or one."""
        text = self._decoder.decode(piece) if isinstance(piece, bytes) else piece
        calls = (self._step(character) for character in text)
        return tuple(call for call in calls if call is not None)

    def _step(self, character: str) -> ToolCall | None:
        self._tail = (self._tail + character)[-len(_CLOSE) :]
        fence = self._meets_fence(character)
        if self._body is not None:
            return self._step_inside(self._body, character, fence)
        if fence and self._fence in ("", fence):
            self._fence = "" if self._fence else fence
        elif not self._fence and self._tail.endswith(_OPEN) and not self._tail.startswith("`"):
            self._begin()
        return None

    def _step_inside(self, body: list[str], character: str, fence: str) -> ToolCall | None:
        if len(body) < CALL_LIMIT:
            body.append(character)
        else:
            self._too_long = True
        if self._tail == _CLOSE:
            self._body = None
            whole = "".join(body)
            command = whole if self._too_long else whole[: -len(_CLOSE)]
            return ToolCall(command.strip(), self._too_long)
        # "The <tool> tag …" is prose: it neither hides the call after it nor turns an example into one.
        prose = fence or self._tail.endswith(_OPEN)
        if prose and not _LIKE_A_COMMAND.match("".join(body)):
            if fence:
                self._body, self._fence = None, fence
            else:
                self._begin()
        return None

    def _begin(self) -> None:
        self._body, self._too_long = [], False

    def _meets_fence(self, character: str) -> str:
        """The marks of a fence, when this character is the third of them at the start of a line."""
        if character == "\n":
            self._line = ""
        elif len(self._line) < 3 and (self._line or not character.isspace()):
            self._line += character
            if self._line in _FENCES:
                return self._line
        return ""
