"""A question as the one it is about would say it, since that is how what was said is embedded."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SHE = re.compile(r"\b(?:he|she)\b", re.I)
_HER = re.compile(r"\b(?:his|her)\b", re.I)
_NO_NAMES = {"", "i", "me", "you", "user", "ai", "assistant"}  # as somebody may be called whom nobody names


def as_said_by(question: str, names: Iterable[str]) -> str:
    """`What did Ada paint for her son?` becomes `Ada: What did I paint for my son?`.

    Of several names the one that stands first; without any, the question stays as it is. English only: in other
    languages the name comes in front, and that is all.
    """
    called = [name for name in names if name.strip().casefold() not in _NO_NAMES]
    found = [(at.start(), name) for name in called if (at := _whole(name).search(question))]
    if not found:
        return question
    name = min(found)[1]
    own = _whole(name, "['\u2019]s").sub("my", question)
    return f"{name}: {_HER.sub('my', _SHE.sub('I', _whole(name).sub('I', own)))}"


def _whole(name: str, ending: str = "") -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}{ending}(?!\w)", re.I)
