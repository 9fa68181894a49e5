"""ChatGPT's export: a list of conversations, each a tree of messages."""

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
    object_in,
    text_in,
    thought_parts,
    tool_parts,
    user_parts,
)

NAME = "ChatGPT"
# Citations and names as its page shows them, between characters that have no meaning elsewhere.
_SHOWN = re.compile("\ue200([^\ue200-\ue202]{0,40})\ue202?([^\ue200\ue201]*)\ue201")
_CONTEXT = ("user_editable_context", "model_editable_context")


def recognises(value: dict[str, Any]) -> bool:
    mapping = value.get("mapping")
    if not isinstance(mapping, dict):
        return False
    return all(
        isinstance(node, dict) and ("message" in node or "children" in node) for node in mapping.values()
    )


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        if not isinstance(value, dict) or not isinstance(value.get("mapping"), dict):
            left["conversations without messages"] += 1
            continue
        nodes = {
            str(key): _node(str(key), node, left)
            for key, node in value["mapping"].items()
            if isinstance(node, dict)
        }
        head = value.get("current_node")
        yield Conversation(
            id_in(value, "conversation_id", "id") or content_id(*sorted(nodes)),
            messages_of_tree(nodes, head if isinstance(head, str) else None),
            text_in(value, "title"),
            moment_of(value.get("create_time")),
            ai_name=NAME,
        )


def _node(key: str, node: Mapping[str, Any], left: Skipped) -> MessageNode:
    parent = node.get("parent") if isinstance(node.get("parent"), str) else None
    message = object_in(node, "message")
    content, metadata, author = (object_in(message, name) for name in ("content", "metadata", "author"))
    kind, role = content.get("content_type"), author.get("role")
    nothing = MessageNode(key, parent)
    if not message:
        return nothing
    if kind in _CONTEXT or metadata.get("is_user_system_message"):
        left["custom instructions"] += 1
        return nothing
    parts = _parts(content, kind, left)
    if not parts:
        return nothing
    if metadata.get("is_visually_hidden_from_conversation"):
        left["hidden messages"] += 1
        return nothing
    if role not in ("user", "assistant", "tool"):
        left["system messages"] += 1
        return nothing
    when = moment_of(message.get("create_time"))
    if role == "user":
        return MessageNode(
            key,
            parent,
            Role.USER,
            user_parts("\n".join(part.text for part in parts)),
            text_in(author, "name"),
            when,
        )
    speaker = text_in(author, "name") if role == "assistant" else ""
    recipient = message.get("recipient")
    if role == "tool" or (isinstance(recipient, str) and recipient not in ("", "all")):
        name = text_in(author, "name") if role == "tool" else str(recipient)
        text = "\n".join(part.text for part in parts)
        return MessageNode(
            key,
            parent,
            Role.ASSISTANT,
            tool_parts(f"{name}: {text}" if name else text),
            speaker or NAME,
            when,
            True,
        )
    if all(part.kind == "thought" for part in parts):
        return MessageNode(key, parent, Role.ASSISTANT, parts, speaker or NAME, when, carried=True)
    return MessageNode(key, parent, Role.ASSISTANT, parts, speaker or NAME, when)


def _parts(content: Mapping[str, Any], kind: Any, left: Skipped) -> tuple[Part, ...]:
    if kind == "thoughts":
        thoughts = [one for one in list_in(content, "thoughts") if isinstance(one, dict)]
        lines = [
            "\n".join(filter(None, (text_in(one, "summary"), text_in(one, "content")))) for one in thoughts
        ]
        return thought_parts("\n\n".join(line for line in lines if line))
    if kind == "reasoning_recap":  # contains only a duration
        return ()
    texts = []
    for part in list_in(content, "parts"):
        if isinstance(part, str):
            texts.append(part)
        elif text := text_in(part, "text", "content"):
            texts.append(text)
        elif part:
            left["images, sounds and other attachments"] += 1
    text = "\n".join(text for text in texts if text.strip()) or text_in(content, "text", "result", "content")
    language = text_in(content, "language")
    if kind == "code" and text and language not in ("", "unknown", "json"):
        text = f"```{language}\n{text}\n```"
    elif kind == "tether_quote" and (title := text_in(content, "title", "url")):
        text = f"{title}\n{text}"
    return ai_parts(_SHOWN.sub(_shown, text))


def _shown(found: re.Match[str]) -> str:
    """The shown form: of a name the name, of a citation nothing."""
    if found[1] != "entity":
        return ""
    try:
        named = json.loads(found[2])
    except (ValueError, RecursionError):
        return ""
    return next((one for one in named[1:] if isinstance(one, str)), "") if isinstance(named, list) else ""
