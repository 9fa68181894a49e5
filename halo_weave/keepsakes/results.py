"""A tool's answer as one line of the conversation: `⚙️【command】→ answer`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from halo_weave.core.tokens import ChunkKey
from halo_weave.keepsakes.literals import Json

TOOL_MARK = "⚙️【"  # begins the answer: by this the skins know it again
COMMAND_LENGTH = 200
RESULT_LENGTH = 1500
_MARKS = "⚙【】✓❌→"
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_TAG = re.compile(r"<(?=/?tool>)")
_ESCAPED = re.compile(rf"[{_MARKS}\x7f-\x9f\u2028\u2029]")
_SHOWN_CHANGES = 8
_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of a command."""

    command: str
    answer: str  # fit to stand in one line, or if it was refused, the reason in a sentence
    ok: bool = True
    wake: tuple[ChunkKey, ...] = ()  # chunks wanted in the window, the most relevant first

    @property
    def text(self) -> str:
        """What the model reads of it."""
        answer = self.answer if self.ok else f"❌ {bounded(_one_line(self.answer), RESULT_LENGTH)}"
        return f"{TOOL_MARK}{bounded(_one_line(self.command), COMMAND_LENGTH)}】→ {answer}"


def bounded(text: str, limit: int) -> str:
    """At most so many characters, and how many more there were."""
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}… ({more} more characters)"


def compact(value: Json) -> str:
    """JSON on one line. Marks and tags within strings are escaped, so it reads back as the same value."""
    return quoted(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def quoted(text: str) -> str:
    """A JSON text in which escapes stand for what could be taken for the frame of a result."""
    return _TAG.sub(r"\\u003c", _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def changes(old: Json, new: Json) -> str:
    """What is different in a JSON document, as `.path = value`."""
    found = [*_differences(old, new, "")]
    if not found:
        return "nothing changed"
    more = len(found) - _SHOWN_CHANGES
    return ", ".join(found[:_SHOWN_CHANGES]) + (f", … ({more} more changes)" if more > 0 else "")


def _one_line(text: str) -> str:
    """Text that cannot be taken for the frame of a result: no breaks, no marks, no tags."""
    text = _BREAKS.sub(" ", text).translate(dict.fromkeys(map(ord, _MARKS)))
    return _TAG.sub("", text).strip()


def _differences(old: Json, new: Json, path: str) -> Iterator[str]:
    """Down to the smallest parts that differ. A list is looked into as long as it did not get shorter."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            if key not in old:
                yield f"{path}{_step(key)} = {compact(value)}"
            else:
                yield from _differences(old[key], value, path + _step(key))
        for key in old:
            if key not in new:
                yield f"deleted {path}{_step(key)}"
    elif isinstance(old, list) and isinstance(new, list) and old and len(old) <= len(new):
        for i, value in enumerate(new):
            if i >= len(old):
                yield f"{path or '.'}[{i}] = {compact(value)}"
            else:
                yield from _differences(old[i], value, f"{path or '.'}[{i}]")
    elif type(old) is not type(new) or old != new:  # 1 and true are equal in Python, and not in JSON
        yield f"{path or '.'} = {compact(new)}"


def _step(key: str) -> str:
    return f".{key}" if _KEY.fullmatch(key) else f".[{compact(key)}]"
