"""Claude's export: a list of conversations; newer ones name the parent of each message."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from halo_weave.core.tokens import Role
from halo_weave.store.third_party.conversation import (
    Conversation,
    MessageNode,
    Part,
    Skipped,
    ai_parts,
    content_id,
    id_in,
    list_in,
    messages_of_tree,
    moment_of,
    text_in,
    thought_parts,
    tool_parts,
    user_parts,
)

NAME = "Claude"
# Stands in `text` for a block of another kind.
_UNSHOWN = re.compile(r"```\s*This block is not supported on your current device yet\.\s*```")
_SPEAKERS = {"human": Role.USER, "user": Role.USER, "assistant": Role.ASSISTANT}


def recognises(value: dict[str, Any]) -> bool:
    return isinstance(value.get("chat_messages"), list)


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        if not isinstance(value, dict) or not isinstance(value.get("chat_messages"), list):
            left["conversations without messages"] += 1
            continue
        messages = [one for one in value["chat_messages"] if isinstance(one, dict)]
        ids = [
            id_in(one, "uuid", "id") or content_id(str(place), text_in(one, "text"))
            for place, one in enumerate(messages)
        ]
        linked = any("parent_message_uuid" in one for one in messages)
        nodes: dict[str, MessageNode] = {}
        before: str | None = None
        for key, message in zip(ids, messages, strict=True):
            above = message.get("parent_message_uuid")
            parent = (above if isinstance(above, str) else None) if linked else before
            nodes[key] = _node(key, parent, message, left)
            before = key
        named = id_in(value, "current_leaf_message_uuid")
        head = named if named in nodes else None if linked else before
        yield Conversation(
            id_in(value, "uuid", "id") or content_id(*ids[:1]),
            messages_of_tree(nodes, head),
            text_in(value, "name", "title"),
            moment_of(value.get("created_at")),
            ai_name=NAME,
        )


def _node(key: str, parent: str | None, message: Mapping[str, Any], left: Skipped) -> MessageNode:
    role = _SPEAKERS.get(str(message.get("sender") or message.get("role")))
    when = moment_of(message.get("created_at"))
    if role is None:
        left["system messages"] += 1
        return MessageNode(key, parent)
    parts = [part for block in list_in(message, "content") for part in _block(block, left)]
    if not any(part.kind == "answer" for part in parts):
        parts += ai_parts(_UNSHOWN.sub("", text_in(message, "text")))
    for file in list_in(message, "attachments"):
        if text := text_in(file, "extracted_content"):
            name = text_in(file, "file_name")
            parts += user_parts(f"{name}:\n{text}" if name else text)
        else:
            left["attachments without text"] += 1
    left["attachments without text"] += max(len(list_in(message, name)) for name in ("files", "files_v2"))
    if not parts:
        left["empty messages"] += 1
    return MessageNode(key, parent, role, tuple(parts), NAME if role is Role.ASSISTANT else "", when)


def _block(block: Any, left: Skipped) -> tuple[Part, ...]:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            return ai_parts(text_in(block, "text"))
        case "thinking":
            return thought_parts(text_in(block, "thinking", "text"))
        case "tool_use":
            arguments = json.dumps(block.get("input"), ensure_ascii=False) if block.get("input") else ""
            return tool_parts(f"{text_in(block, 'name')}({arguments})")
        case "tool_result":
            content = block.get("content")
            if isinstance(content, list):
                content = "\n".join(filter(None, (text_in(one, "text", "title") for one in content)))
            return tool_parts(content if isinstance(content, str) else "")
        case "voice_note":
            return user_parts(text_in(block, "text"))
        case _:
            left["blocks of an unknown kind"] += kind not in ("token_budget", "flag")
            return ()
