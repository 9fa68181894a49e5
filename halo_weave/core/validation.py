"""Checks of values before they are stored: JSON values, and paths of the structured memory."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from halo_weave.errors import BadInput

MAX_JSON_DEPTH = 64  # nesting of lists and objects; more could exhaust the stack when it is parsed


def is_shallow(value: Any) -> bool:
    """Whether lists and objects are nested at most `MAX_JSON_DEPTH` deep. Checked level by level, so no depth exhausts the
    stack."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH + 1):
        inner: list[Any] = []
        for element in level:
            if isinstance(element, dict):
                inner.extend(element.values())
            elif isinstance(element, list | tuple):
                inner.extend(element)
        if not inner:
            return True
        level = inner
    return False


def storable(value: Any, limit: int | None = None) -> Any:
    """The value, if it can be stored; otherwise a ValueError says why. `limit`: whole numbers must be smaller."""
    if not is_shallow(value):
        raise ValueError(f"It is nested more than {MAX_JSON_DEPTH} deep")
    unchecked = [value]
    while unchecked:
        element = unchecked.pop()
        if isinstance(element, dict):
            unchecked += [*element.keys(), *element.values()]
        elif isinstance(element, list | tuple):
            unchecked += element
        elif isinstance(element, str):
            if not element.isascii() and any("\ud800" <= sign <= "\udfff" for sign in element):
                raise ValueError("It holds half of a character (an unpaired surrogate)")
        elif isinstance(element, float) and not math.isfinite(element):
            raise ValueError("It holds a number that is not finite")
        elif limit is not None and isinstance(element, int) and abs(element) >= limit:
            raise ValueError(f"It holds a whole number beyond 2^{limit.bit_length() - 1}")
    return value


MAX_PATH_LENGTH = 512
MAX_HEADING_LENGTH = 100
MAX_PATH_DEPTH = 16
INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format, half characters, breaks
JOINERS = "\u200c\u200d"  # needed in Persian words and composed emoji


def checked_path(path: object) -> str:
    """The path as it is stored: in Unicode's composed form, without spaces around headings and outer slashes."""
    if not isinstance(path, str):
        raise BadInput('A path is text in quotes, such as "Project/Goals".')
    if len(path) > MAX_PATH_LENGTH:
        raise BadInput(f"This path has {len(path)} characters; at most {MAX_PATH_LENGTH} are kept.")
    headings = [heading.strip() for heading in unicodedata.normalize("NFC", path).strip(" ").split("/")]
    if len(headings) > 1 and not headings[0]:
        del headings[0]
    if len(headings) > 1 and not headings[-1]:
        del headings[-1]
    if len(headings) > MAX_PATH_DEPTH:
        raise BadInput(f"This path has {len(headings)} headings; at most {MAX_PATH_DEPTH} are kept.")
    for heading in headings:
        _check_heading(heading)
    whole = "/".join(headings)
    if len(whole) > MAX_PATH_LENGTH:
        raise BadInput(f"This path has {len(whole)} characters; at most {MAX_PATH_LENGTH} are kept.")
    return whole


def _check_heading(heading: str) -> None:
    if not heading:
        raise BadInput('A path needs a heading between its slashes, such as "Project/Goals".')
    if heading in (".", ".."):
        raise BadInput(f"A path names its headings in full; {heading} is not one.")
    if len(heading) > MAX_HEADING_LENGTH:
        raise BadInput(f"A heading has at most {MAX_HEADING_LENGTH} characters.")
    without_joiners = heading.translate(dict.fromkeys(map(ord, JOINERS)))
    if not without_joiners or any(
        unicodedata.category(character) in INVISIBLE_CATEGORIES for character in without_joiners
    ):
        raise BadInput("A path has visible characters only.")


def is_root(path: object) -> bool:
    """Whether the path means all of the memory."""
    return path is None or (isinstance(path, str) and path.strip() in ("", "/", "."))
