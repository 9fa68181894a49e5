"""LM Studio's conversations: messages in versions, of one step or of several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
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
    list_in,
    moment_of,
    object_in,
    text_in,
    tool_parts,
    user_parts,
)

NAME = "LM Studio"
_MOMENT = re.compile(r"(\d{13})-")  # a step's id begins with its time


def recognises(value: dict[str, Any]) -> bool:
    messages = value.get("messages")
    if not isinstance(messages, list):
        return False
    if messages:
        return any(isinstance(one, dict) and isinstance(one.get("versions"), list) for one in messages)
    return "systemPrompt" in value and "createdAt" in value


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        if not isinstance(value, dict) or not recognises(value):
            left["conversations of an unknown shape"] += 1
            continue
        left["system messages"] += bool(text_in(value, "systemPrompt"))
        created = value.get("createdAt")
        yield Conversation(
            str(created)
            if isinstance(created, int)
            else content_id(json.dumps(value["messages"][:1])[:100_000]),
            _messages(value["messages"], left),
            text_in(value, "name"),
            moment_of(created),
        )


def _messages(values: list[Any], left: Skipped) -> Iterator[Message]:
    line = MessageChain()
    for value in values:
        versions = [one for one in list_in(value, "versions") if isinstance(one, dict)]
        if not versions:
            left["messages of an unknown shape"] += 1
            continue
        chosen = value.get("currentlySelected")
        chosen = chosen if isinstance(chosen, int) and 0 <= chosen < len(versions) else len(versions) - 1
        for place, version in enumerate(versions):
            if place != chosen and (found := _read(version, left)):
                role, parts, speaker, when = found
                one = line.beside(role, parts, speaker, when)
                yield Message(one.id, one.parent, role, parts, speaker, when, aside=True)
        if found := _read(versions[chosen], left):
            yield line.add(*found)


def _read(
    version: Mapping[str, Any], left: Skipped
) -> tuple[Role, tuple[Part, ...], str, datetime | None] | None:
    version = object_in(version, "singleStep") or object_in(version, "multiStep") or version
    role = version.get("role") or ("assistant" if list_in(version, "steps") else None)
    speaker = text_in(object_in(version, "senderInfo"), "senderName")
    if role == "user":
        parts = user_parts("\n".join(part.text for part in _content(version, left)))
        return (Role.USER, parts, speaker, _when(version)) if parts else None
    if role != "assistant":
        left["system messages"] += 1
        return None
    steps = list_in(version, "steps") or [version]
    found: list[Part] = []
    for step in steps:
        if isinstance(step, dict) and step.get("type") != "debugInfoBlock":
            parts = _content(step, left)
            thinks = text_in(object_in(step, "style"), "type") == "thinking"
            found += [Part("thought", part.text) for part in parts] if thinks else parts
    whens = [when for step in steps if isinstance(step, dict) and (when := _when(step))]
    kept = tuple(part for part in found if part.text.strip())
    return (Role.ASSISTANT, kept, speaker, whens[0] if whens else None) if kept else None


def _content(value: Mapping[str, Any], left: Skipped) -> tuple[Part, ...]:
    parts: list[Part] = []
    text = ""
    for piece in list_in(value, "content"):
        match piece.get("type") if isinstance(piece, dict) else None:
            case "text":
                text += text_in(piece, "text")
            case "toolCallRequest":
                arguments = piece.get("parameters") or piece.get("arguments")
                parts += tool_parts(
                    f"{text_in(piece, 'name')}({json.dumps(arguments, ensure_ascii=False) if arguments else ''})"
                )
            case "toolCallResult":
                parts += tool_parts(text_in(piece, "content", "result"))
            case _:
                left["images, sounds and other attachments"] += 1
    return (*ai_parts(text), *parts) if value.get("role") != "user" else (*user_parts(text), *parts)


def _when(value: Mapping[str, Any]) -> datetime | None:
    match = _MOMENT.match(text_in(value, "stepIdentifier"))
    return moment_of(int(match[1])) if match else moment_of(value.get("createdAt"))
