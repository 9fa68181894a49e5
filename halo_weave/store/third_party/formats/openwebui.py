"""Open WebUI's export: a list of chats, each a tree of messages."""

from __future__ import annotations

import json
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
    object_in,
    text_in,
    thought_parts,
    tool_parts,
    user_parts,
)

NAME = "Open WebUI"


def recognises(value: dict[str, Any]) -> bool:
    chat = value.get("chat") if isinstance(value.get("chat"), dict) else value
    return _is_chat(chat) if isinstance(chat, dict) else False


def _is_chat(chat: Mapping[str, Any]) -> bool:
    if isinstance(object_in(chat, "history").get("messages"), dict):
        return True
    messages = [one for one in list_in(chat, "messages") if isinstance(one, dict)]
    return bool(messages) and all(
        "role" in one and "content" in one and "parentId" in one for one in messages
    )


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        chat = object_in(value, "chat") or (value if isinstance(value, dict) else {})
        if not _is_chat(chat):
            left["conversations without messages"] += 1
            continue
        history = object_in(chat, "history")
        messages = object_in(history, "messages") or {
            id_in(one, "id") or str(place): one
            for place, one in enumerate(list_in(chat, "messages"))
            if isinstance(one, dict)
        }
        nodes = {
            str(key): _node(str(key), message, left)
            for key, message in messages.items()
            if isinstance(message, dict)
        }
        yield Conversation(
            id_in(value, "id") or id_in(chat, "id") or content_id(*sorted(nodes)),
            messages_of_tree(nodes, id_in(history, "currentId") or None),
            text_in(value, "title") or text_in(chat, "title"),
            moment_of(value.get("created_at")) or moment_of(chat.get("timestamp")),
        )


def _node(key: str, message: Mapping[str, Any], left: Skipped) -> MessageNode:
    parent, when = id_in(message, "parentId") or None, moment_of(message.get("timestamp"))
    content = message.get("content")
    if isinstance(content, list):
        left["images, sounds and other attachments"] += sum(not text_in(part, "text") for part in content)
        content = "\n".join(filter(None, (text_in(part, "text") for part in content)))
    text = content if isinstance(content, str) else ""
    left["images, sounds and other attachments"] += len(list_in(message, "files"))
    match message.get("role"):
        case "user":
            return MessageNode(key, parent, Role.USER, user_parts(text), "", when)
        case "assistant":
            speaker = text_in(message, "modelName", "model")
            parts = _output(list_in(message, "output"))
            if not any(part.kind == "answer" for part in parts):
                first = () if parts else thought_parts(text_in(message, "reasoning_content", "reasoning"))
                parts = (*first, *parts, *ai_parts(text))
            left["empty messages"] += not parts
            return MessageNode(key, parent, Role.ASSISTANT, parts, speaker, when)
        case _:
            left["system messages"] += bool(text.strip())
            return MessageNode(key, parent)


def _output(items: list[Any]) -> tuple[Part, ...]:
    """The steps of an answer in newer versions; the content of the message may then be empty."""
    parts: list[Part] = []
    for item in items:
        match item.get("type") if isinstance(item, dict) else None:
            case "message":
                parts += ai_parts(_joined(item.get("content")))
            case "reasoning":
                parts += thought_parts(_joined(item.get("summary")) or _joined(item.get("content")))
            case "function_call":
                shown = item.get("arguments")
                shown = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
                parts += tool_parts(f"{text_in(item, 'name')}({shown})")
            case "function_call_output":
                parts += tool_parts(_joined(item.get("output")))
            case "open_webui:code_interpreter":
                result = item.get("output")
                shown = "\n".join(text_in(result, name) for name in ("stdout", "result"))
                parts += tool_parts(f"{text_in(item, 'code')}\n{shown}")
    return tuple(parts)


def _joined(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "".join(text_in(part, "text") for part in value) if isinstance(value, list) else ""
