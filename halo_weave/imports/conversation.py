"""Conversations of other programs as values: who said what when, and after what."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from halo_weave.core.tokens import Role

Left = Counter[str]  # what was not taken, by reason
_Kind = Literal["answer", "thought", "tool"]


class Part(NamedTuple):
    """Text of one kind. A user's words are of kind "answer", too."""

    kind: _Kind
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    id: str  # of its program, or made from what was said so far
    parent: str | None  # the message before it on its branch
    role: Role
    parts: tuple[Part, ...]
    speaker: str = ""
    said: datetime | None = None
    aside: bool = False  # not on the branch that was last in use
    asleep: bool = False  # not live where it was said, however short the conversation is


@dataclass(frozen=True, slots=True)
class Conversation:
    """Each message comes after its parent. They may come from the file while they are read."""

    id: str  # the same whenever this conversation is exported
    messages: Iterable[Message] = ()
    title: str = ""
    created: datetime | None = None
    user_name: str = ""
    ai_name: str = ""
    system_prompt: str = ""  # of a character that the user brings; never of a conversation


# Values of unknown shape


def text_in(value: Any, *names: str) -> str:
    """The first of these members that is a text with something in it."""
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


def digest(*texts: str) -> str:
    """An id for what has none: the same for the same texts."""
    joined = "\0".join(f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(joined.encode("utf-8", "replace")).hexdigest()[:24]


# One line of messages, and trees of them


class Line:
    """Messages one after the other, of a program that gives them no ids: each is known by all that was said up to it."""

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
        """Another message at the place of the next one: what was swiped or generated again."""
        parts = tuple(parts)
        made = id or digest(self._known_by, role, *(part.text for part in parts))
        return Message(made, self.last, role, parts, speaker, said)


@dataclass(frozen=True, slots=True)
class Node:
    """A message in a tree. Without a role it is left out, and what follows it follows the one before it."""

    id: str
    parent: str | None
    role: Role | None = None
    parts: tuple[Part, ...] = ()
    speaker: str = ""
    said: datetime | None = None
    carried: bool = False  # thoughts and calls of tools: they become part of the answer that follows


def branches(nodes: Mapping[str, Node], head: str | None) -> Iterator[Message]:
    """A tree as messages, parents first; what is not on the way to `head` is aside."""
    children: dict[str | None, list[Node]] = {}
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


def _way_to(head: str | None, nodes: Mapping[str, Node]) -> set[str]:
    found: set[str] = set()
    while head is not None and head in nodes and head not in found:
        found.add(head)
        head = nodes[head].parent
    return found


def _newest(nodes: Mapping[str, Node]) -> str | None:
    """The last one said that nothing follows."""
    followed = {node.parent for node in nodes.values() if node.parent != node.id}
    newest, when = None, None
    for node in nodes.values():
        if node.id not in followed and (when is None or node.said is None or node.said >= when):
            newest, when = node.id, node.said or when
    return newest
