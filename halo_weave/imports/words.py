"""Text of other programs: characters that can be kept, and thoughts and tools told apart from what was answered."""

from __future__ import annotations

import html
import re

from halo_weave.imports.conversation import Part

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
    """Without what cannot be kept: NUL and halves of characters."""
    text = text.replace("\0", "")
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def one_line(text: str, length: int = 200) -> str:
    """A name or title, no longer than names are here."""
    return " ".join(clean(text[: 4 * length]).split())[:length].strip()


def said(text: str) -> tuple[Part, ...]:
    """A user's words."""
    return (Part("answer", text),) if text.strip() else ()


def thought(text: str) -> tuple[Part, ...]:
    return (Part("thought", text.strip()),) if text.strip() else ()


def by_tool(text: str) -> tuple[Part, ...]:
    return (Part("tool", text.strip()),) if text.strip() else ()


def answered(text: str) -> tuple[Part, ...]:
    """An AI's words: its thoughts and tool calls may stand between marks. Every step goes forward in the text."""
    begin = text.lstrip()
    if begin.startswith(("<|channel|>", "<|start|>")):
        return _channels(begin)
    parts: list[Part] = []
    if begin.startswith("[THINK]") and "[/THINK]" in begin:
        inside, _, text = begin.removeprefix("[THINK]").partition("[/THINK]")
        parts += thought(inside)
        begin = text.lstrip()
    close = begin.find("</think>")
    if close >= 0 and begin.find("<think>", 0, close) < 0:  # the prompt had opened the thought
        parts += thought(begin[:close])
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
                parts += thought(text[opened:])
                return tuple(parts)
            break
        plain.append(text[at : match.start()])
        flush()
        inside = text[opened:end]
        if match[1]:
            parts += thought(inside)
        elif match[2] == "reasoning":
            lines = html.unescape(_SUMMARY.sub("", inside, count=1)).splitlines()
            parts += thought("\n".join(line.removeprefix(">").removeprefix(" ") for line in lines))
        else:
            parts += by_tool(_call(text[match.end() : opened], inside))
        at = end + len(name) + 3
    plain.append(text[at:])
    flush()
    return tuple(parts)


def _channels(text: str) -> tuple[Part, ...]:
    begun, *found = _CHANNELS.split(text)
    if not found:
        return said(text)
    parts = list(said(_ENDED.sub("", begun)))
    for name, inside in zip(found[::2], found[1::2], strict=True):
        whole = _ENDED.sub("", inside).strip()
        parts += said(whole) if name == "final" else thought(whole)
    return tuple(parts)


def _call(attributes: str, inside: str) -> str:
    found = {name: html.unescape(html.unescape(value)) for name, value in _ATTRIBUTE.findall(attributes)}
    head = f"{found.get('name', '')}({found.get('arguments', '')})" if found.get("name") else ""
    rest = _SUMMARY.sub("", inside, count=1).strip()
    lines = [head, found.get("code", ""), rest, found.get("result", "") or found.get("output", "")]
    return "\n".join(line for line in lines if line)
