"""KoboldAI Lite's saves: a prompt and the text after it, with markers or names in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
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
    object_in,
    text_in,
    user_parts,
)

NAME = "KoboldAI Lite"
_INPUT, _OUTPUT, _SYSTEM = "{{[INPUT]}}", "{{[OUTPUT]}}", "{{[SYSTEM]}}"
_ENDS = re.compile(r"\{\{\[(?:INPUT|OUTPUT|SYSTEM)_END\]\}\}")
_TAGS = ("### Instruction:", "### Response:")  # unless the save has others
_SPOKEN = re.compile(r"(?:^|\n)([^\n:]{1,40}): ")
_USERS = ("User", "You")
_PICTURE = re.compile(r"\[<\|[a-z]\|[^|]*\|[a-z]\|>\]")
_BETWEEN = "||$||"  # separates the names of several opponents


def recognises(value: dict[str, Any]) -> bool:
    return isinstance(value.get("actions"), list) and isinstance(value.get("prompt"), str)


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        if not isinstance(value, dict) or not recognises(value):
            left["saves of an unknown shape"] += 1
            continue
        left["texts of memory, author's note and world info"] += sum(
            bool(value.get(name)) for name in ("memory", "authorsnote", "worldinfo")
        )
        settings = object_in(value, "savedsettings")
        user = text_in(settings, "chatname")
        others = [name.strip() for name in text_in(settings, "chatopponent").split(_BETWEEN) if name.strip()]
        pieces = []
        for piece in (value["prompt"], *list_in(value, "actions")):
            if isinstance(piece, str):
                text, pictures = _PICTURE.subn("", piece) if "[<|" in piece else (piece, 0)
                pieces.append(text)
                left["images, sounds and other attachments"] += pictures
        yield Conversation(
            content_id(user, *others, value["prompt"]),
            _messages(pieces, settings, user, others),
            text_in(settings, "title") or ", ".join(others),
            None,
            user,
            others[0] if len(others) == 1 else "",
        )


def _messages(
    pieces: list[str], settings: Mapping[str, Any], user: str, others: list[str]
) -> Iterator[Message]:
    line = MessageChain()
    whole = "".join(pieces)
    tags = (text_in(settings, f"instruct_{name}tag").replace("\\n", "\n") for name in ("start", "end"))
    start, end = (tag.strip() or usual for tag, usual in zip(tags, _TAGS, strict=True))
    if not others:
        user, others = _speakers(whole, user)
    if _INPUT not in whole and _OUTPUT not in whole and start in whole and end in whole:
        whole = whole.replace(start, _INPUT).replace(end, _OUTPUT)
    whole = _ENDS.sub("", whole)
    if _INPUT in whole or _OUTPUT in whole:
        turns = _marked(whole)
    elif user and others and re.search(_names([user, *others]), whole):
        turns = _named(whole, user, others)
    else:
        turns = _story_turns(pieces)
    for role, name, text in turns:
        parts = user_parts(text.strip()) if role is Role.USER else ai_parts(text)
        if parts:
            speaker = name or (user if role is Role.USER else others[0] if len(others) == 1 else "")
            yield line.add(role, parts, speaker)


def _speakers(whole: str, user: str) -> tuple[str, list[str]]:
    """The names in a save without settings: those before several lines, one of them the user's."""
    found = Counter(_SPOKEN.findall(whole))
    named = next((name for name in (user, *_USERS) if name in found), "")
    others = [name for name, count in found.items() if name != named and count > 1]
    return (named, others) if named and others else (user, [])


def _marked(whole: str) -> Iterator[tuple[Role, str, str]]:
    role = Role.ASSISTANT
    for piece in re.split(r"(\{\{\[(?:INPUT|OUTPUT|SYSTEM)\]\}\})", whole):
        if piece in (_INPUT, _SYSTEM, _OUTPUT):
            role = Role.ASSISTANT if piece == _OUTPUT else Role.SYSTEM if piece == _SYSTEM else Role.USER
        elif role is not Role.SYSTEM:
            yield role, "", piece


def _names(names: list[str]) -> str:
    return rf"(?:^|\n)({'|'.join(re.escape(name) for name in sorted(names, key=len, reverse=True))}):"


def _named(whole: str, user: str, others: list[str]) -> Iterator[tuple[Role, str, str]]:
    found = re.split(_names([user, *others]), whole)
    yield Role.ASSISTANT, "", found[0]
    for name, text in zip(found[1::2], found[2::2], strict=False):
        yield Role.USER if name == user else Role.ASSISTANT, name, text


def _story_turns(pieces: list[str]) -> Iterator[tuple[Role, str, str]]:
    """A story, or an adventure, where the player's actions begin with `>`."""
    for place, piece in enumerate(pieces):
        does = piece.strip().startswith(">")
        text = piece.strip().removeprefix(">").strip() if does else piece
        yield Role.USER if does or not place else Role.ASSISTANT, "", text
