"""text-generation-webui's histories: pairs of user and character messages, as the model and as the page saw them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from halo_weave.core.tokens import Role
from halo_weave.store.third_party.conversation import (
    Conversation,
    Message,
    MessageChain,
    Skipped,
    ai_parts,
    content_id,
    list_in,
    moment_of,
    object_in,
    text_in,
    user_parts,
)

NAME = "text-generation-webui"
_OPENING = "<|BEGIN-VISIBLE-CHAT|>"  # placeholder for the missing user message before the greeting
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|#x27|#39);")


def recognises(value: dict[str, Any]) -> bool:
    return any(
        isinstance(value.get(inside), list) and isinstance(value.get(shown), list)
        for inside, shown in (("internal", "visible"), ("data", "data_visible"))
    )


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        if not isinstance(value, dict) or not recognises(value):
            left["histories of an unknown shape"] += 1
            continue
        internal = list_in(value, "internal") or list_in(value, "data")
        visible = list_in(value, "visible") or list_in(value, "data_visible")
        count = max(len(internal), len(visible))
        pairs = [(_pair(internal, place), _pair(visible, place)) for place in range(count)]
        metadata = object_in(value, "metadata")
        names = text_in(value, "name1", "your_name"), text_in(value, "name2", "character", "bot_name")
        first = next((text for pair, _ in pairs for text in pair if text and text != _OPENING), "")
        times = (moment_of(one.get("timestamp")) for one in metadata.values() if isinstance(one, dict))
        begun = min((when for when in times if when), default=None)
        yield Conversation(
            content_id(*names, first), _messages(pairs, metadata, left, names), names[1], begun, *names
        )


def _pair(pairs: list[Any], place: int) -> tuple[str, str]:
    pair = pairs[place] if place < len(pairs) else None
    texts = [one if isinstance(one, str) else "" for one in (pair if isinstance(pair, list) else [])]
    return (*texts, "", "")[:2]  # type: ignore[return-value]


def _messages(
    pairs: list[tuple[tuple[str, str], tuple[str, str]]],
    metadata: Mapping[str, Any],
    left: Skipped,
    names: tuple[str, str],
) -> Iterator[Message]:
    line = MessageChain()
    for place, (internal, visible) in enumerate(pairs):
        for side, (role, key) in enumerate(((Role.USER, "user"), (Role.ASSISTANT, "assistant"))):
            about = object_in(metadata, f"{key}_{place}")
            text = _raw(internal[side], visible[side])
            when: datetime | None = moment_of(about.get("timestamp"))
            text = "\n\n".join(filter(None, (text, *_attached(about, left))))
            for version in list_in(about, "versions"):
                other = _raw(text_in(version, "content"), text_in(version, "visible_content"))
                if other.strip() and other != text:
                    parts = user_parts(other) if role is Role.USER else ai_parts(other)
                    one = line.beside(role, parts, names[side], moment_of(version.get("timestamp")) or when)
                    yield Message(one.id, one.parent, role, parts, names[side], one.said, aside=True)
            if text.strip():
                yield line.add(
                    role, user_parts(text) if role is Role.USER else ai_parts(text), names[side], when
                )


def _attached(about: Mapping[str, Any], left: Skipped) -> Iterator[str]:
    for file in list_in(about, "attachments"):
        content, name = text_in(file, "content"), text_in(file, "name")
        if content and not text_in(file, "image_data"):
            yield f"{name}:\n{content}" if name else content
        else:
            left["attachments without text"] += 1


def _raw(internal: str, visible: str) -> str:
    """The text of a message. What the page shows is escaped; older versions escaped both."""
    if internal.strip() == _OPENING:
        return ""
    if not internal:
        return html.unescape(visible)
    return html.unescape(internal) if internal == visible and _ENTITY.search(internal) else internal
