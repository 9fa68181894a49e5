"""Time stamps at the beginning of a reply. A model that has read stamps may write some itself: they are not part of what it says."""

from __future__ import annotations

import re

_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_STAMP = re.compile(rf"\s*\[(?:\d{{4}}-\d\d-\d\d[^\]\n]{{0,120}}|{_DAY}, \d\d? \w{{3,9}} \d{{4}})\]\s*")
# What a stamp may look like as long as it is not complete.
_PART = re.compile(
    r"\s*(?:\[(?:\d[\d-]{0,9}(?:(?<=-\d\d)[^\]\n]{0,120})?|[MTWFS][a-z]{0,8}(?:, ?(?:\d\d? ?(?:\w{1,9} ?\d{0,4})?)?)?)?)?"
)


def stamps_length(text: str) -> int:
    """How many characters the stamps take that a text begins with."""
    at = 0
    while match := _STAMP.match(text, at):
        at = match.end()
    return at


def may_be_stamp(text: str) -> bool:
    """Whether a text is the beginning of a stamp, or could go on with another one."""
    return bool(_PART.fullmatch(text, stamps_length(text)))
