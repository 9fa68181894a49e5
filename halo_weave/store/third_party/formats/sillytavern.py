"""SillyTavern's chats: one message a line, after a line about the chat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from halo_weave.core.tokens import Role
from halo_weave.store.third_party.conversation import (
    Conversation,
    Message,
    MessageChain,
    Part,
    Skipped,
    ai_parts,
    content_id,
    id_in,
    list_in,
    moment_of,
    object_in,
    text_in,
    thought_parts,
    tool_parts,
    user_parts,
)

NAME = "SillyTavern"


def recognises(value: dict[str, Any]) -> bool:
    return ("chat_metadata" in value or {"user_name", "character_name"} <= value.keys()) or (
        isinstance(_text(value.get("mes")), str) and ("is_user" in value or "name" in value)
    )


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    first = next(values, None)
    header = first if isinstance(first, dict) and _text(first.get("mes")) is None else {}
    if first is not None and not header:
        values = chain([first], values)
    opening = next(values, None)  # identifies a chat without an id
    names = (text_in(header, "user_name"), text_in(header, "character_name"))
    metadata = object_in(header, "chat_metadata")
    known_by = id_in(metadata, "integrity", "chat_id_hash") or content_id(
        *names, str(header.get("create_date")), text_in(opening, "mes")
    )
    messages = chain([opening], values) if opening is not None else iter(())
    ai = names[1] if names[1] != "unused" else ""
    if not ai and isinstance(opening, dict) and not opening.get("is_user"):
        ai = text_in(opening, "name")
    user = names[0] if names[0] != "unused" else ""
    yield Conversation(
        known_by, _messages(messages, left), ai, moment_of(header.get("create_date")), user, ai
    )


def _messages(values: Iterator[Any], left: Skipped) -> Iterator[Message]:
    line = MessageChain()
    called: list[Part] = []  # tool calls, which belong to the following answer
    for value in values:
        text = _text(value.get("mes")) if isinstance(value, dict) else None
        if text is None:
            left["lines that are no messages"] += 1
            continue
        extra = object_in(value, "extra")
        if value.get("is_system") is True:
            calls = _calls(list_in(extra, "tool_invocations"))
            called += calls
            left["hidden messages"] += not calls
            continue
        left["images, sounds and other attachments"] += sum(
            len(found) if isinstance(found := extra.get(name), list) else bool(found)
            for name in ("image", "video", "file", "files", "media")
        )
        role = Role.USER if value.get("is_user") is True else Role.ASSISTANT
        name, when = text_in(value, "name"), moment_of(value.get("send_date"))
        parts = user_parts(text) if role is Role.USER else (*called, *_answer(text, extra))
        called = []
        if not any(part.text.strip() for part in parts):
            left["empty messages"] += 1
            continue
        swipes, chosen = list_in(value, "swipes"), value.get("swipe_id")
        infos = list_in(value, "swipe_info")
        for place, swipe in enumerate(map(_text, swipes)):
            if swipe and swipe.strip() and place != chosen and swipe != text:
                info = infos[place] if place < len(infos) and isinstance(infos[place], dict) else {}
                others = _answer(swipe, object_in(info, "extra"))
                one = line.beside(role, others, name, moment_of(info.get("send_date")) or when)
                yield Message(one.id, one.parent, role, one.parts, name, one.said, aside=True)
        yield line.add(role, parts, name, when)


def _text(value: Any) -> str | None:
    """The text of a message; some sites that write this format put it into an object."""
    found = value.get("message") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def _calls(values: list[Any]) -> tuple[Part, ...]:
    texts = (
        f"{text_in(one, 'name', 'displayName')}({text_in(one, 'parameters')})\n{text_in(one, 'result')}"
        for one in values
        if isinstance(one, dict)
    )
    return tuple(part for text in texts for part in tool_parts(text))


def _answer(text: str, extra: Mapping[str, Any]) -> tuple[Part, ...]:
    return (*thought_parts(text_in(extra, "reasoning")), *ai_parts(text))
