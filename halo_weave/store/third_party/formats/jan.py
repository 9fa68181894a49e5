"""Jan's threads: thread.json has the name, messages.jsonl one message a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
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

NAME = "Jan"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def recognises(value: dict[str, Any]) -> bool:
    if value.get("object") == "thread.message" or ("thread_id" in value and "role" in value):
        return True
    return value.get("object") == "thread" or ("assistants" in value and "title" in value and "id" in value)


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    found = [value for value in values if isinstance(value, dict)]
    for value in found:
        if "thread_id" not in value and "role" not in value:  # thread.json
            assistants = list_in(value, "assistants")
            ai = text_in(assistants[0], "assistant_name", "name") if assistants else ""
            created = moment_of(value.get("created")) or moment_of(value.get("created_at"))
            yield Conversation(
                id_in(value, "id"), (), text_in(value, "title", "summary"), created, ai_name=ai
            )
    spoken = [value for value in found if "thread_id" in value or "role" in value]
    spoken.sort(
        key=lambda one: moment_of(one.get("created_at")) or _LONG_AGO
    )  # stable; some versions write newest first
    spoken.sort(key=lambda one: id_in(one, "thread_id"))
    for thread, group in groupby(spoken, key=lambda one: id_in(one, "thread_id")):
        messages = list(group)
        known_by = thread or content_id(id_in(messages[0], "id"), json.dumps(messages[0])[:10_000])
        yield Conversation(known_by, _messages(messages, left), "", moment_of(messages[0].get("created_at")))


def _messages(values: list[dict[str, Any]], left: Skipped) -> Iterator[Message]:
    line = MessageChain()
    for value in values:
        role = {"user": Role.USER, "assistant": Role.ASSISTANT, "tool": Role.ASSISTANT}.get(
            str(value.get("role"))
        )
        if role is None:
            left["system messages"] += 1
            continue
        content = value.get("content")
        pieces = content if isinstance(content, list) else [{"type": "text", "text": content}]
        parts = [part for piece in pieces for part in _piece(piece, role, left)]
        if value.get("role") == "tool":
            parts = [Part("tool", part.text) for part in parts]
        metadata = object_in(value, "metadata")
        for call in list_in(metadata, "tool_calls"):
            name = text_in(object_in(object_in(call, "tool"), "function"), "name")
            result = object_in(call, "response")
            texts = "\n".join(text_in(one, "text") for one in list_in(result, "content"))
            parts += tool_parts(f"{name}: {texts}" if name else texts)
        if not parts:
            left["empty messages"] += 1
            continue
        speaker = text_in(object_in(metadata, "assistant"), "name")
        yield line.add(role, parts, speaker, moment_of(value.get("created_at")), id_in(value, "id"))


def _piece(piece: Any, role: Role, left: Skipped) -> tuple[Part, ...]:
    kind = piece.get("type") if isinstance(piece, dict) else None
    text = text_in(object_in(piece, "text"), "value") or text_in(piece, "text")
    if kind == "reasoning":
        return thought_parts(text)
    if kind == "tool_call":
        arguments, result = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value else ""
            for value in (piece.get("input"), piece.get("output"))
        )
        return tool_parts(f"{text_in(piece, 'tool_name')}({arguments})\n{result}")
    if kind not in ("text", None):
        left["images, sounds and other attachments"] += 1
        return ()
    return user_parts(text) if role is Role.USER else ai_parts(text)
