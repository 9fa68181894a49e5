"""Character cards, versions 1 to 3: a window for the character, with its greeting."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
)

NAME = "character cards"
_USER = "User"
_NAMES = re.compile(r"\{\{(char|user)\}\}|<(BOT|USER)>", re.I)
# Fields of a card, in older forms under other names, and the headings under which the model reads them.
_SECTIONS = (
    (("description", "char_persona"), ""),
    (("personality",), "Personality"),
    (("scenario", "world_scenario"), "Scenario"),
    (("mes_example", "example_dialogue"), "Examples"),
)
_GREETING = ("first_mes", "char_greeting")


def recognises(value: dict[str, Any]) -> bool:
    fields = _fields(value)
    if str(value.get("spec", "")).startswith("chara_card"):
        return True
    if "mes" in value:
        return False
    return {"name", "description", "first_mes"} <= fields.keys() or {
        "char_name",
        "char_greeting",
    } <= fields.keys()


def _fields(value: Any) -> dict[str, Any]:
    return dict(object_in(value, "data") or (value if isinstance(value, dict) else {}))


def conversations(values: Iterator[Any], left: Skipped) -> Iterator[Conversation]:
    for value in values:
        card = _fields(value)
        name = text_in(card, "name", "char_name") or text_in(value, "name")
        if not name:
            left["cards without a name"] += 1
            continue

        def filled_in(text: str, name: str = text_in(card, "nickname") or name) -> str:
            return _NAMES.sub(
                lambda found: name if (found[1] or found[2]).lower() in ("char", "bot") else _USER, text
            )

        always, book = _book(object_in(card, "character_book"), left)
        sections = [filled_in(text_in(card, "system_prompt").replace("{{original}}", ""))]
        for fields, heading in _SECTIONS:
            if text := filled_in(text_in(card, *fields)):
                sections.append(f"{heading}:\n{text}" if heading else text)
        sections += [filled_in(text) for text in always]
        prompt = "\n\n".join(section.strip() for section in sections if section.strip())
        greetings = [
            text_in(card, *_GREETING),
            *(one for one in list_in(card, "alternate_greetings") if isinstance(one, str)),
        ]
        yield Conversation(
            content_id(name, text_in(card, "creator"), text_in(card, "description"), greetings[0]),
            _turns([filled_in(text) for text in book], [filled_in(text) for text in greetings], name),
            name,
            moment_of(card.get("creation_date")),
            _USER,
            name,
            prompt or f"You are {name}.",
        )


def _book(book: Mapping[str, Any], left: Skipped) -> tuple[list[str], list[str]]:
    """Entries of the character's book: those that are always in the prompt, and those that are recalled by their keys."""
    listed = list_in(book, "entries") or [*object_in(book, "entries").values()]
    always, sometimes = [], []
    for entry in listed:
        lines = text_in(entry, "content").splitlines()
        text = "\n".join(
            line for line in lines if not line.startswith("@@")
        ).strip()  # such entries are for other programs
        if not text or entry.get("enabled") is False or entry.get("disable") is True:
            left["entries of a character book that are empty or switched off"] += 1
        elif entry.get("constant") is True:
            always.append(text)
        else:
            keys = [key for key in list_in(entry, "keys") or list_in(entry, "key") if isinstance(key, str)]
            sometimes.append(f"{', '.join(keys)}: {text}" if keys else text)
    return always, sometimes


def _turns(book: list[str], texts: list[str], name: str) -> Iterator[Message]:
    """The entries of the book, pruned at first, then the first greeting, with the others as its versions."""
    line = MessageChain()
    if book:
        parts = [Part("answer", text) for text in book]
        yield replace(line.add(Role.ASSISTANT, parts, f"{name}'s book"), asleep=True)
    for text in texts[1:]:
        if text.strip():
            one = line.beside(Role.ASSISTANT, ai_parts(text), name)
            yield Message(one.id, one.parent, one.role, one.parts, name, aside=True)
    if texts[0].strip():
        yield line.add(Role.ASSISTANT, ai_parts(texts[0]), name)
