"""Times as other programs write them. A time without a zone is local: programs that write such times mean those of their clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

_FIRST, _LAST = 1980, 2200  # years; outside of them it is not a time
_STAMP = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})\s*@\s*(\d{1,2})h\s*(\d{1,2})m\s*(\d{1,2})s(?:\s*(\d{1,3})ms)?"
)
_WORDS = re.compile(
    r"([a-z]{3})[a-z]*\.? (\d{1,2})(?:st|nd|rd|th)?,? (\d{4}),?(?: at)? (\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?",
    re.I,
)
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_NUMBER = re.compile(r"\d{9,19}(?:\.\d{1,9})?")


def moment_of(value: Any) -> datetime | None:
    """None if it is not known when: a time in any form that programs use, or something else."""
    try:
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int | float):
            return _within(_of_number(float(value)))
        if not isinstance(value, str) or len(value) > 64:
            return None
        text = value.strip()
        if _NUMBER.fullmatch(text):
            return _within(_of_number(float(text)))
        found = _of_words(text) or datetime.fromisoformat(text)
        return _within(found if found.tzinfo else found.astimezone())
    except (ValueError, OverflowError, OSError):
        return None


def _of_number(number: float) -> datetime:
    """Seconds, or thousandths, millionths or billionths of them, as large as it is."""
    for step in (1e17, 1e14, 1e11):
        if number >= step:
            number /= step / 1e8
            break
    return datetime.fromtimestamp(number, UTC)


def _of_words(text: str) -> datetime | None:
    if match := _STAMP.match(text):
        year, month, day, hour, minute, second, part = (int(one or 0) for one in match.groups())
        return datetime(year, month, day, hour, minute, second, part * 1000)
    if (match := _WORDS.match(text)) and match[1].lower() in _MONTHS:
        hour = int(match[4])
        if match[7]:
            hour = hour % 12 + (12 if match[7].lower() == "pm" else 0)
        month = _MONTHS.index(match[1].lower()) + 1
        return datetime(int(match[3]), month, int(match[2]), hour, int(match[5]), int(match[6] or 0))
    return None


def _within(when: datetime) -> datetime | None:
    return when.astimezone(UTC) if _FIRST <= when.year <= _LAST else None
