"""A tool's answer as one line of the conversation: `⚙️【command】→ answer`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from halo_weave.core.tokens import ChunkKey
from halo_weave.memory.literals import Json

TOOL_MARK = "⚙️【"  # begins the answer: by this the skins know it again
COMMAND_LENGTH = 200
RESULT_LENGTH = 1500
MARKS = "⚙【】✓❌→"
BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
TAG = re.compile(r"<(?=/?tool>)")
SHOWN_CHANGES = 8
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model reads of a call, and what is left to do for it."""

    text: str
    ok: bool
    wake: tuple[ChunkKey, ...] = ()  # wanted in the window, the most relevant first
    changed: Literal["", "notes", "memory"] = ""  # what is not as it was


def answered(command: str, answer: str, **more: object) -> ToolResult:
    return ToolResult(f"{TOOL_MARK}{echo(command)}】→ {answer}", True, **more)  # type: ignore[arg-type]


def refused(command: str, sentence: str) -> ToolResult:
    return ToolResult(f"{TOOL_MARK}{echo(command)}】→ ❌ {bounded(one_line(sentence), RESULT_LENGTH)}", False)


def echo(command: str) -> str:
    """The command on one line, without the marks that frame it, and short."""
    return bounded(one_line(command), COMMAND_LENGTH)


def one_line(text: str) -> str:
    """Text that cannot be taken for the frame of a result: no breaks, no marks, no tags."""
    text = BREAKS.sub(" ", text).translate(dict.fromkeys(map(ord, MARKS)))
    return TAG.sub("", text).strip()


def bounded(text: str, limit: int) -> str:
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}… ({more} more characters)"


def compact(value: Json) -> str:
    """JSON on one line. Marks and tags within strings are escaped, so it reads back as the same value."""
    return quoted(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def quoted(text: str) -> str:
    """A JSON text with what could be taken for the frame of a result written as escapes."""
    text = "".join(f"\\u{ord(character):04x}" if must_escape(character) else character for character in text)
    return TAG.sub(r"\\u003c", text)


def must_escape(character: str) -> bool:
    return character in MARKS or "\x7f" <= character <= "\x9f" or character in "\u2028\u2029"


# Changes of a document


def changes(old: Json, new: Json) -> str:
    """What is different in a JSON document, as `.path = value`."""
    found = [*differences(old, new, "")]
    if not found:
        return "nothing changed"
    more = len(found) - SHOWN_CHANGES
    return ", ".join(found[:SHOWN_CHANGES]) + (f", … ({more} more changes)" if more > 0 else "")


def differences(old: Json, new: Json, path: str) -> Iterator[str]:
    """Down to the smallest parts that differ. A list is looked into as long as it did not get shorter."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            if key not in old:
                yield f"{path}{step(key)} = {compact(value)}"
            else:
                yield from differences(old[key], value, path + step(key))
        for key in old:
            if key not in new:
                yield f"deleted {path}{step(key)}"
    elif isinstance(old, list) and isinstance(new, list) and old and len(old) <= len(new):
        for i, value in enumerate(new):
            if i >= len(old):
                yield f"{path or '.'}[{i}] = {compact(value)}"
            else:
                yield from differences(old[i], value, f"{path or '.'}[{i}]")
    elif not same(old, new):
        yield f"{path or '.'} = {compact(new)}"


def same(old: Json, new: Json) -> bool:
    """Equal as JSON: 1 and true are not, in Python they are."""
    return type(old) is type(new) and bool(old == new)


def step(key: str) -> str:
    return f".{key}" if NAME.fullmatch(key) else f".[{compact(key)}]"
