"""A conversation as servers with `/v1/chat/completions` take it: messages whose roles alternate. Pure."""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Sequence
from itertools import takewhile
from typing import Any

from halo_weave.templates.messages import ChatMessage, NativeCall

Message = dict[str, Any]

# How thoughts, tool calls and the answers of tools stand in a reply. Servers send and take them in fields of their own.
TEMPLATE = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Call one with <tool_call>
{"name": "…", "arguments": {}}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ABSENT = "[…]"  # what stands for a question that sleeps while its answer is live
_CALL = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_ANSWER = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>(?=<\|im_end\|>|\Z)", re.DOTALL)
_FRAME = re.compile(r"\A\s*(<\|im_end\|>\s*)?(<\|im_start\|>assistant\s*)?")
_THOUGHT = re.compile(r"\A\s*<think>.*?(</think>\s*|\Z)", re.DOTALL)


def kept_in_order(
    before: Sequence[ChatMessage], now: Sequence[ChatMessage], guests: Container[ChatMessage] = ()
) -> list[ChatMessage]:
    """What is live `now`, in the order that lets a server use again what it has read: the request `before`, and its reply.

    What was sent before stays where it was, as far as nothing of it fell asleep; if less than half of it can stay, it
    returns to the order of time. `guests`, which woke up lately, come after it, with their dates, right before what is new.
    """
    *said, newest = now
    places = defaultdict[ChatMessage, deque[int]](deque)
    for place, one in enumerate(said):
        places[one].append(place)
    found = [places[one].popleft() if places[one] else None for one in before]
    kept = [place for place in takewhile(lambda place: place is not None, found) if place is not None]
    if len(kept) < len(before) / 2:
        kept = []
    last = -1 if not found or found[-1] is None else found[-1]
    rest = sorted(set(range(len(said))).difference(kept))
    stays = [place for place in rest if place <= last and said[place] not in guests]
    woken = [place for place in rest if place <= last and said[place] in guests]
    since = [place for place in rest if place > last]
    reply = list(takewhile(lambda place: said[place].role == "assistant", since))
    order = [*kept, *stays, *reply, *woken, *since[len(reply) :]]
    return [*(said[place] for place in order), newest]


def alternating(messages: Iterable[ChatMessage]) -> list[Message]:
    """What was said, the system prompt first, then user and assistant in turn.

    Where something sleeps, two of one speaker may meet: what users said becomes one message, and an answer that stands
    alone gets a mark in place of its question.
    """
    system, talk = [], list[Message]()
    for message in messages:
        text = message.content
        if message.role == "system":
            system.append(text)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if role == "assistant" and (not talk or talk[-1]["role"] == role):
            talk.append({"role": "user", "content": ABSENT})
        if talk and talk[-1]["role"] == role:
            talk[-1]["content"] += f"\n\n{text}"
        else:
            talk.append({"role": role, "content": text})
    told = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return [*told, *talk]


def with_reply(talk: Sequence[Message], reply: str) -> list[Message]:
    """The conversation with what was written of its last reply: calls and answers of tools as messages of their own."""
    messages, rest, number = list(talk), _THOUGHT.sub("", reply), 0
    while made := _CALL.search(rest):
        calls = list[Message]()
        before, end = rest[: made.start()].strip(), made.start()
        while (call := _CALL.match(rest, end)) and (one := _call_in(call.group(1))):
            number, end = number + 1, call.end()
            function = {"name": one.name, "arguments": json.dumps(dict(one.arguments))}
            calls.append({"id": f"call_{number}", "type": "function", "function": function})
        if not calls:
            break
        messages.append({"role": "assistant", "content": before or None, "tool_calls": calls})
        rest = rest[end:]
        for asked in calls:
            answer = _ANSWER.search(rest)
            told, end = (answer.group(1), answer.end()) if answer else (rest, len(rest))
            messages.append({"role": "tool", "tool_call_id": asked["id"], "content": told.strip("\n")})
            rest = rest[end:]
        rest = _THOUGHT.sub("", _FRAME.sub("", rest))
    if rest.strip():
        messages.append({"role": "assistant", "content": rest.strip()})
    return messages


def written_call(name: str, arguments: str) -> str:
    """A call that a server sends in fields, as it stands in a reply."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        given = {}
    told = json.dumps(
        {"name": name, "arguments": given if isinstance(given, dict) else {}}, ensure_ascii=False
    )
    return f"\n<tool_call>\n{told}\n</tool_call>"


def _call_in(text: str) -> NativeCall | None:
    try:
        found = json.loads(text)
        return NativeCall(str(found["name"]), dict(found.get("arguments") or {}))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
