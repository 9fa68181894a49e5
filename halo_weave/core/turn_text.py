"""The text of a turn: a hash that identifies it, and time stamps at its beginning that are removed."""

from __future__ import annotations

import re
from hashlib import blake2b

from halo_weave.core.tokens import Role

# Parts of a reply that some clients add or leave out: thoughts and folded blocks.
_FOLDED = re.compile(
    r"<(think|thinking|reasoning|details)\b[^>]*>.*?(</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE
)


def turn_hash(role: Role, text: str) -> int:
    """A signed 64-bit hash that ignores white space, thoughts and folded blocks."""
    words = "".join(_FOLDED.sub(" ", text).split())
    digest = blake2b(f"{role}\n{words}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_STAMP = re.compile(rf"\s*\[(?:\d{{4}}-\d\d-\d\d[^\]\n]{{0,120}}|{_DAY}, \d\d? \w{{3,9}} \d{{4}})\]\s*")
_INCOMPLETE_STAMP = re.compile(
    r"\s*(?:\[(?:\d[\d-]{0,9}(?:(?<=-\d\d)[^\]\n]{0,120})?|[MTWFS][a-z]{0,8}(?:, ?(?:\d\d? ?(?:\w{1,9} ?\d{0,4})?)?)?)?)?"
)


def leading_stamps_length(text: str) -> int:
    """The length in characters of the time stamps that a text begins with."""
    at = 0
    while match := _STAMP.match(text, at):
        at = match.end()
    return at


def may_be_stamp(text: str) -> bool:
    """Whether a text is the beginning of a stamp, or could continue with another one."""
    return bool(_INCOMPLETE_STAMP.fullmatch(text, leading_stamps_length(text)))
