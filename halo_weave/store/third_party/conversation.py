"""A conversation of another program as values, with parsers for its dates and texts."""

from __future__ import annotations

import hashlib
import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from halo_weave.core.tokens import Role

Skipped = Counter[str]  # number of skipped elements, by reason
_Kind = Literal["answer", "thought", "tool"]


class Part(NamedTuple):
    """Text of one kind. The text of a user's message is of kind "answer", too."""

    kind: _Kind
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    id: str  # id in its program, or a hash of the conversation so far
    parent: str | None  # the message before it on its branch
    role: Role
    parts: tuple[Part, ...]
    speaker: str = ""
    said: datetime | None = None
    aside: bool = False  # not on the current branch
    asleep: bool = False  # always pruned in its window, however short the conversation is


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation. Each message comes after its parent; messages may be read from the file while they are used."""

    id: str  # the same whenever this conversation is exported
    messages: Iterable[Message] = ()
    title: str = ""
    created: datetime | None = None
    user_name: str = ""
    ai_name: str = ""
    system_prompt: str = ""  # of an imported character; never of a conversation


# Values of unknown shape


def text_in(value: Any, *names: str) -> str:
    """The first of these members that is a non-empty text."""
    if isinstance(value, Mapping):
        for name in names:
            found = value.get(name)
            if isinstance(found, str) and found.strip():
                return found
    return ""


def object_in(value: Any, name: str) -> Mapping[str, Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def list_in(value: Any, name: str) -> list[Any]:
    found = value.get(name) if isinstance(value, Mapping) else None
    return found if isinstance(found, list) else []


def id_in(value: Any, *names: str) -> str:
    """An id as text; programs write texts and numbers."""
    if isinstance(value, Mapping):
        for name in names:
            found = value.get(name)
            if isinstance(found, str | int) and not isinstance(found, bool) and str(found)[:200].strip():
                return str(found)[:200].strip()
    return ""


def content_id(*texts: str) -> str:
    """An id made from the content, for programs without ids."""
    joined = "\0".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "replace")).hexdigest()[:24]


# Lists and trees of messages


class MessageChain:
    """A list of messages of a program without ids: each is identified by all messages up to it."""

    def __init__(self, start: str = "") -> None:
        self.last: str | None = None
        self._known_by = start

    def add(
        self, role: Role, parts: Iterable[Part], speaker: str = "", said: datetime | None = None, id: str = ""
    ) -> Message:
        message = self.beside(role, parts, speaker, said, id)
        self.last = self._known_by = message.id
        return message

    def beside(
        self, role: Role, parts: Iterable[Part], speaker: str = "", said: datetime | None = None, id: str = ""
    ) -> Message:
        """Add an alternative to the next message: one that was swiped or regenerated."""
        parts = tuple(parts)
        made = id or content_id(self._known_by, role, *(part.text for part in parts))
        return Message(made, self.last, role, parts, speaker, said)


@dataclass(frozen=True, slots=True)
class MessageNode:
    """A message in a tree. Without a role it is left out, and its children follow its parent."""

    id: str
    parent: str | None
    role: Role | None = None
    parts: tuple[Part, ...] = ()
    speaker: str = ""
    said: datetime | None = None
    carried: bool = False  # thoughts and tool calls: they become part of the following answer


def messages_of_tree(nodes: Mapping[str, MessageNode], head: str | None) -> Iterator[Message]:
    """A tree as messages, parents first; what is not on the path to `head` is aside."""
    children: dict[str | None, list[MessageNode]] = {}
    for node in nodes.values():
        parent = node.parent if node.parent in nodes and node.parent != node.id else None
        children.setdefault(parent, []).append(node)
    current = _way_to(head if head in nodes else _newest(nodes), nodes)
    above: dict[str | None, str | None] = {None: None}
    waiting: dict[str | None, tuple[Part, ...]] = {None: ()}
    rest = list(reversed(children.get(None, [])))
    while rest:
        node = rest.pop()
        after = children.get(node.id, [])
        rest += reversed(after)
        before, carried = above[node.parent if node.parent in above else None], waiting.get(node.parent, ())
        above[node.id], waiting[node.id] = before, ()
        parts = (*carried, *node.parts) if node.role is not Role.USER else node.parts
        passes = node.role is None or node.carried
        if passes and after and not any(child.role is Role.USER for child in after):
            waiting[node.id] = parts if node.carried else carried
        elif (node.role or (parts and Role.ASSISTANT)) and any(part.text.strip() for part in parts):
            above[node.id] = node.id
            role = node.role or Role.ASSISTANT
            yield Message(node.id, before, role, parts, node.speaker, node.said, node.id not in current)


def _way_to(head: str | None, nodes: Mapping[str, MessageNode]) -> set[str]:
    found: set[str] = set()
    while head is not None and head in nodes and head not in found:
        found.add(head)
        head = nodes[head].parent
    return found


def _newest(nodes: Mapping[str, MessageNode]) -> str | None:
    """The newest leaf."""
    followed = {node.parent for node in nodes.values() if node.parent != node.id}
    newest, when = None, None
    for node in nodes.values():
        if node.id not in followed and (when is None or node.said is None or node.said >= when):
            newest, when = node.id, node.said or when
    return newest


_FIRST, _LAST = 1980, 2200  # a year outside these is not a time
_STAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})\s*@\s*(\d{1,2})h\s*(\d{1,2})m\s*(\d{1,2})s(?:\s*(\d{1,3})ms)?"
)
_WORDS = re.compile(
    r"([a-z]{3})[a-z]*\.? (\d{1,2})(?:st|nd|rd|th)?,? (\d{4}),?(?: at)? (\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?",
    re.I,
)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_NUMBER = re.compile(r"\d{9,19}(?:\.\d{1,9})?")


def moment_of(value: Any) -> datetime | None:
    """A time in any form that programs use; None: unknown."""
    try:
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int | float):
            return _within(_of_number(float(value)))
        if not isinstance(value, str) or len(value) > 64:
            return None
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return _within(_of_number(float(text)))
        found = _of_words(text) or datetime.fromisoformat(text)
        return _within(found if found.tzinfo else found.astimezone())
    except (ValueError, OverflowError, OSError):
        return None


def _of_number(number: float) -> datetime:
    """Seconds, or milliseconds, microseconds or nanoseconds, by their size."""
    for step in (1e17, 1e14, 1e11):
        if number >= step:
            number /= step / 1e8
            break
    return datetime.fromtimestamp(number, UTC)


def _of_words(text: str) -> datetime | None:
    if match := _STAMP.match(text):
        year, month, day, hour, minute, second, part = (int(one or 0) for one in match.groups())
        return datetime(year, month, day, hour, minute, second, part * 1000)
    if (match := _WORDS.match(text)) and match[1].lower() in _MONTHS:
        hour = int(match[4])
        if match[7]:
            hour = hour % 12 + (12 if match[7].lower() == "pm" else 0)
        month = _MONTHS.index(match[1].lower()) + 1
        return datetime(int(match[3]), month, int(match[2]), hour, int(match[5]), int(match[6] or 0))
    return None


def _within(when: datetime) -> datetime | None:
    return when.astimezone(UTC) if _FIRST <= when.year <= _LAST else None


_HALVES = re.compile("[\ud800-\udfff]")
_MARKS = re.compile(
    r"<(think|thinking|thought|reasoning|antThinking|seed:think)>"
    r'|<details\s+type="(reasoning|tool_calls|code_interpreter)"'
)
# Channels, as gpt-oss writes them: what is not the final one is a thought.
_CHANNELS = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>(\w{1,20})[^<]{0,80}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>"
)
_ENDED = re.compile(r"<\|(?:end|return|call)\|>")
_ATTRIBUTE = re.compile(r'(name|arguments|result|output|code)="([^"]*)"')
_SUMMARY = re.compile(r"\s*<summary>[^<]{0,500}</summary>\s?")


def clean(text: str) -> str:
    """The text without NUL and single surrogates, which cannot be stored."""
    text = text.replace("\0", "")
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def one_line(text: str, length: int = 200) -> str:
    """A name or title on one line, cut to our limit."""
    return " ".join(clean(text[: 4 * length]).split())[:length].strip()


def user_parts(text: str) -> tuple[Part, ...]:
    """The parts of a user's message."""
    return (Part("answer", text),) if text.strip() else ()


def thought_parts(text: str) -> tuple[Part, ...]:
    return (Part("thought", text.strip()),) if text.strip() else ()


def tool_parts(text: str) -> tuple[Part, ...]:
    return (Part("tool", text.strip()),) if text.strip() else ()


def ai_parts(text: str) -> tuple[Part, ...]:
    """The parts of an AI's message: thoughts and tool calls may be between delimiters. It takes linear time."""
    begin = text.lstrip()
    if begin.startswith(("<|channel|>", "<|start|>")):
        return _channels(begin)
    parts: list[Part] = []
    if begin.startswith("[THINK]") and "[/THINK]" in begin:
        inside, _, text = begin.removeprefix("[THINK]").partition("[/THINK]")
        parts += thought_parts(inside)
        begin = text.lstrip()
    close = begin.find("</think>")
    if close >= 0 and begin.find("<think>", 0, close) < 0:  # the prompt had opened the thought
        parts += thought_parts(begin[:close])
        text = begin[close + len("</think>") :]
    at = 0
    plain: list[str] = []

    def flush() -> None:
        if "".join(plain).strip():
            parts.append(Part("answer", "".join(plain).strip()))
        plain.clear()

    while match := _MARKS.search(text, at):
        name = match[1] or "details"
        opened = match.end() if match[1] else text.find(">", match.end()) + 1
        end = text.find(f"</{name}>", opened) if opened else -1
        if end < 0:
            if match[1] and not text[at : match.start()].strip() and not plain:  # it ends within its thoughts
                plain.clear()
                parts += thought_parts(text[opened:])
                return tuple(parts)
            break
        plain.append(text[at : match.start()])
        flush()
        inside = text[opened:end]
        if match[1]:
            parts += thought_parts(inside)
        elif match[2] == "reasoning":
            lines = html.unescape(_SUMMARY.sub("", inside, count=1)).splitlines()
            parts += thought_parts("\n".join(line.removeprefix(">").removeprefix(" ") for line in lines))
        else:
            parts += tool_parts(_call(text[match.end() : opened], inside))
        at = end + len(name) + 3
    plain.append(text[at:])
    flush()
    return tuple(parts)


def _channels(text: str) -> tuple[Part, ...]:
    begun, *found = _CHANNELS.split(text)
    if not found:
        return user_parts(text)
    parts = list(user_parts(_ENDED.sub("", begun)))
    for name, inside in zip(found[::2], found[1::2], strict=True):
        whole = _ENDED.sub("", inside).strip()
        parts += user_parts(whole) if name == "final" else thought_parts(whole)
    return tuple(parts)


def _call(attributes: str, inside: str) -> str:
    found = {name: html.unescape(html.unescape(value)) for name, value in _ATTRIBUTE.findall(attributes)}
    head = f"{found.get('name', '')}({found.get('arguments', '')})" if found.get("name") else ""
    rest = _SUMMARY.sub("", inside, count=1).strip()
    lines = [head, found.get("code", ""), rest, found.get("result", "") or found.get("output", "")]
    return "\n".join(line for line in lines if line)
