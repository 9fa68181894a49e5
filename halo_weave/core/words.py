"""How text becomes terms, the same for the word index of a store and for questions to it."""

from __future__ import annotations

import re
from datetime import datetime

from halo_weave.core.languages import STOP_WORDS, language_of, stems

WORD = re.compile(r"[^\W_]+", re.UNICODE)
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d])(?=\d)|(?<=\d)(?=[^\W\d])")
# Scripts that are written without spaces between words: Han, Kana, Thai, Lao, Khmer, Burmese.
UNSPACED = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f\u3040-\u30ff\u31f0-\u31ff"
    "\u0e00-\u0eff\u1780-\u17ff\u1000-\u109f]+"
)
LONGEST = 64  # characters of a term; longer runs are keys and hashes, which nobody searches by their end


def terms(text: str) -> list[str]:
    """Words in lower case; an identifier also gives its parts (parseURL2 -> parseurl2, parse, url, 2).

    A script without spaces gives overlapping pairs of characters.
    """
    found = []
    for match in WORD.finditer(text):
        word = match.group()
        if (
            word.isascii() and word.isalpha() and (len(word) == 1 or word[1:].islower())
        ):  # most words, quickly
            found.append(word.lower()[:LONGEST])
            continue
        if UNSPACED.search(word):
            found.extend(_pairs(word))
            continue
        found.append(word.lower()[:LONGEST])
        parts = HUMP.split(word)
        if len(parts) > 1:
            found.extend(part.lower()[:LONGEST] for part in parts)
    return found


def _pairs(word: str) -> list[str]:
    found, at = [], 0
    for match in UNSPACED.finditer(word):
        found.append(word[at : match.start()].lower())
        run = match.group()
        found.extend([run] if len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)])
        at = match.end()
    found.append(word[at:].lower())
    return [part[:LONGEST] for part in found if part]


def question_terms(text: str, limit: int) -> dict[str, str]:
    """What the word index is asked for: each stem once, without stop words, and the word it comes from.

    Of a long text the longest words are taken, since they are the rarest on the whole.
    """
    asked = list(dict.fromkeys(terms(text)))
    language = language_of(asked)
    stops = STOP_WORDS["english"] | STOP_WORDS[language]
    wanted = [term for term in asked if term not in stops]
    if len(wanted) > limit:
        kept = set(sorted(wanted, key=len, reverse=True)[:limit])
        wanted = [term for term in wanted if term in kept]
    found: dict[str, str] = {}
    for stem, word in zip(stems(wanted, language), wanted, strict=True):
        found.setdefault(stem, word)
    return found


def spoken_date(said: datetime) -> str:
    """A date as people write it, so that the words of a question can match it."""
    return f"{said.day} {said:%B %Y}"


def index_terms(text: str, *, speaker: str = "", said: datetime | None = None) -> str:
    """What the word index holds of a chunk: who said it, when, and the stems of its words."""
    when = spoken_date(said) if said else ""
    words = terms(text)
    return " ".join(stems([*terms(f"{speaker} {when}"), *words], language_of(words)))
