"""Scripted days: how their files are read and checked, and how a reply is judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

Pattern = re.Pattern[str]

_KINDS: dict[str, type] = {
    "window": str,
    "say": str,
    "tells": list,
    "replaces": str,
    "needs": list,
    "answers": list,
    "never": list,
    "update": bool,
    "told": bool,
    "remember": str,
}
_NAMES = {str: "a text", list: "a list of texts", bool: "true or false"}


class BadDay(Exception):
    """A day's file cannot be used; the message is a sentence that says why."""


@dataclass(frozen=True)
class Message:
    """One message of the user's, with its labels."""

    window: str
    say: str
    tells: tuple[str, ...] = ()
    replaces: str | None = None
    needs: tuple[str, ...] = ()
    answers: tuple[Pattern, ...] = ()
    never: tuple[Pattern, ...] = ()
    update: bool = False
    told: bool = True
    remember: Pattern | None = None

    @property
    def asks_memory(self) -> bool:
        """A question that can only be answered with something told before."""
        return bool(self.needs and self.answers and self.told)

    @property
    def needs_nothing(self) -> bool:
        return not self.needs and not self.answers and self.told


@dataclass(frozen=True)
class Day:
    name: str
    about: str
    messages: tuple[Message, ...]

    def first(self, count: int | None) -> Day:
        """The day with only so many messages."""
        return self if count is None else Day(self.name, self.about, self.messages[:count])

    def sources(self, label: str, before: int) -> frozenset[int]:
        """The messages before this one that tell what the label means by then; any one of them suffices.

        What was told before a correction does not count any more.
        """
        since, corrected = 0, None
        for number, message in enumerate(self.messages[:before]):
            if message.replaces == label:
                since, corrected = number, number
        found = {
            number
            for number, message in enumerate(self.messages[:before])
            if number >= since and label in message.tells
        }
        if corrected is not None:
            found.add(corrected)
            for newer in self.messages[corrected].tells:
                again = (one.replaces for one in self.messages[corrected + 1 : before])
                if newer != label and newer in again:
                    found = set(self.sources(newer, before))
        return frozenset(found)


def mixed(days: list[Day], count: int | None) -> Day:
    """All days as one: a window for each, and their messages in turn. Labels say which day they are of.

    The days are of different people, so in one memory their facts contradict each other: what counts here is how the
    replies look, not what they answer.
    """
    messages = [
        replace(
            message,
            window=day.name,
            tells=tuple(f"{day.name}/{one}" for one in message.tells),
            needs=tuple(f"{day.name}/{one}" for one in message.needs),
            replaces=message.replaces and f"{day.name}/{message.replaces}",
        )
        for row in zip_longest(*(day.messages for day in days))
        for day, message in zip(days, row, strict=True)
        if message is not None
    ]
    return Day("mixed", "All days in one memory, a window for each.", tuple(messages)).first(count)


def read_days(folder: Path, only: str | None = None) -> list[Day]:
    """All days of a folder, by the names of their files."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise BadDay(f"There is no day in {folder}. A day is a JSON file.")
    days = [read_day(file) for file in files]
    if only is None:
        return days
    named = [day for day in days if day.name == only]
    if not named:
        raise BadDay(f"There is no day named {only}. There are: {', '.join(day.name for day in days)}.")
    return named


def read_day(file: Path) -> Day:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadDay(f"{file.name} cannot be read as JSON: {error}.") from error
    if not isinstance(found, dict):
        raise BadDay(f"{file.name} is not a JSON object.")
    if unknown := found.keys() - {"name", "about", "messages"}:
        raise BadDay(f"{file.name} has an unknown key: {min(unknown)}.")
    name, about, messages = found.get("name"), found.get("about", ""), found.get("messages")
    if not isinstance(name, str) or not name.strip():
        raise BadDay(f"{file.name} has no name.")
    if not isinstance(about, str):
        raise BadDay(f"{file.name}: about must be a text.")
    if not isinstance(messages, list) or not messages:
        raise BadDay(f"{file.name} has no messages.")
    day = Day(
        name, about, tuple(_message(one, f"{file.name}, message {i}") for i, one in enumerate(messages, 1))
    )
    _check_labels(day, file.name)
    return day


def _message(found: Any, place: str) -> Message:
    if not isinstance(found, dict):
        raise BadDay(f"{place} is not a JSON object.")
    if unknown := found.keys() - _KINDS.keys():
        raise BadDay(f"{place} has an unknown key: {min(unknown)}.")
    for key, kind in _KINDS.items():
        if key not in found:
            continue
        value: Any = found[key]
        texts = value if isinstance(value, list) else []
        if not isinstance(value, kind) or not all(isinstance(one, str) and one for one in texts):
            raise BadDay(f"{place}: {key} must be {_NAMES[kind]}.")
    for key in ("window", "say"):
        if not found.get(key, "").strip():
            raise BadDay(f"{place} has no {key}.")
    remember = found.get("remember")
    return Message(
        window=found["window"],
        say=found["say"],
        tells=tuple(found.get("tells", ())),
        replaces=found.get("replaces"),
        needs=tuple(found.get("needs", ())),
        answers=tuple(_pattern(one, place) for one in found.get("answers", ())),
        never=tuple(_pattern(one, place) for one in found.get("never", ())),
        update=found.get("update", False),
        told=found.get("told", True),
        remember=None if remember is None else _pattern(remember, place),
    )


def _pattern(text: str, place: str) -> Pattern:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise BadDay(f"{place}: {text!r} is not a regular expression: {error}.") from error


def _check_labels(day: Day, file: str) -> None:
    told: set[str] = set()
    for number, message in enumerate(day.messages, 1):
        for label in message.needs:
            if label not in told:
                raise BadDay(f"{file}, message {number} needs {label}, which no message before it tells.")
        if message.replaces is not None and message.replaces not in told:
            raise BadDay(
                f"{file}, message {number} replaces {message.replaces}, which no message before it tells."
            )
        told.update(message.tells)


# Judging a reply

_STAMP = re.compile(r"\[\s*\d{4}-\d\d-\d\d[ T,]+\d\d:\d\d[^\]\n]*\]?")
_LEADING_STAMP = re.compile(r"\s*[\[(]\s*(?:\d{4}-\d\d-\d\d|in [^\]\n]{1,60}\])")
_SCAFFOLDING = (
    _STAMP,
    # Marks of templates.
    re.compile(
        r"<\|[^|>\n]{1,40}\|>|<｜[^>\n]{1,40}>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|</s>|</?think>"
    ),
    # Calls of tools and what they answer.
    re.compile(
        r"</?tool[\w-]*>|</?function[\w=-]*>|\"arguments\"\s*:\s*\{|"
        r"\b(?:save|query|list|delete|inject)_(?:memory|memories|heading|headings|notes)\b|⚙|\bnotes\.json\b",
        re.IGNORECASE,
    ),
)
# What counts as saying that one does not know: a negation and, in the same clause, a word for knowing or being told;
# a question back for it; and the same in German, Spanish and French.
ABSTAINED = re.compile(
    r"\b(?:not|never|no|none|without|unable|cannot|\w+n't)\b[^.,;:!?\n]{0,60}?\b(?:know|known|told|tell|said|say|says|"
    r"mention\w*|information|info|record\w*|access|memory|aware|sure|certain|provide\w*|specif\w+|details?|shared?|"
    r"given|find|found|recall|remember|idea|context|data|stated|discussed|talked|have (?:that|this|your))\b"
    r"|\b(?:could|can|would) you (?:please |kindly )?(?:tell|provide|share|give|let me know|remind|clarify|specify)\b"
    r"|\bplease (?:tell|provide|share|let me know|remind)\b"
    r"|\bwei(?:ß|ss) (?:ich )?(?:das |es )?(?:leider )?nicht\b|\bnicht (?:gesagt|erwähnt|erzählt|bekannt|mitgeteilt)\b"
    r"|\bkeine (?:information\w*|angaben?|ahnung)\b"
    r"|\bno (?:lo )?(?:sé|tengo|dispongo|has|me has)\b|\bno me (?:ha|ha[sb]\w*)\b"
    r"|\bne (?:sais|connais|dispose) pas\b|\bn'ai pas\b|\bne m'(?:as|avez) pas\b|\bpas (?:dit|mentionné|précisé)\b",
    re.IGNORECASE,
)
REFUSED = re.compile(
    r"\bsorry,? but (?:i|as an ai)[^.!?\n]{0,20}(?:can't|cannot|can not|unable|not able|won't)"
    r"|\bi(?: am|'m)? (?:can't|cannot|can not|unable to|not able to|won't) (?:assist|help|fulfil|comply|engage|do that|"
    r"answer|provide|continue|discuss|be able)"
    r"|\bas an? (?:ai|artificial intelligence|language model|virtual assistant)\b"
    r"|\bi(?: am|'m) (?:just |only |simply )?an? (?:ai|artificial intelligence|language model)\b",
    re.IGNORECASE,
)


def plain_text(reply: str) -> str:
    """A reply with the plain forms of quotes, dashes and spaces, so that patterns need to name only those."""
    return reply.translate(str.maketrans("’‘“”‑–\u00a0\u202f", "''\"\"--  "))


def is_right(message: Message, reply: str) -> bool:
    text = plain_text(reply)
    accepted = any(one.search(text) for one in message.answers)
    return accepted and not any(one.search(text) for one in message.never)


def abstains(message: Message, reply: str) -> bool:
    """It says that it does not know, or what the message accepts, and nothing that it must not."""
    text = plain_text(reply)
    accepted = ABSTAINED.search(text) or any(one.search(text) for one in message.answers)
    return bool(accepted) and not any(one.search(text) for one in message.never)


def refuses(reply: str) -> bool:
    return bool(REFUSED.search(plain_text(reply)))


def has_leading_stamp(reply: str) -> bool:
    return bool(_LEADING_STAMP.match(reply))


def scaffolding(reply: str, said: str) -> list[str]:
    """What of a reply is a stamp, a mark of the template, a call or its result, unless the user wrote it."""
    return [found for found in _marks(reply) if found not in said]


def _marks(reply: str) -> Iterator[str]:
    if match := _LEADING_STAMP.match(reply):
        yield match[0].strip()
    for pattern in _SCAFFOLDING:
        yield from (match[0] for match in pattern.finditer(reply))
