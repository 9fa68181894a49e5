"""Text to the terms that the word index holds and is asked for. Pure, so that store and index agree."""

from __future__ import annotations

import re
from datetime import datetime

WORD = re.compile(r"[^\W_]+", re.UNICODE)
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=\D)(?=\d)|(?<=\d)(?=\D)")


def terms(text: str) -> list[str]:
    """Words in lower case; an identifier also gives its parts (parseURL2 -> parseurl2, parse, url, 2)."""
    found = []
    for match in WORD.finditer(text):
        word = match.group()
        found.append(word.lower())
        parts = HUMP.split(word)
        if len(parts) > 1:
            found.extend(part.lower() for part in parts)
    return found


def index_terms(text: str, *, speaker: str = "", said: datetime | None = None) -> str:
    """What the word index holds of a chunk: who said it, when, and its words."""
    when = said.strftime("%d %B %Y") if said else ""
    return " ".join(terms(f"{speaker} {when} {text}"))
