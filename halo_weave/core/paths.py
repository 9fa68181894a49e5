"""Paths of the structured memory: `Project/Goals/First`. Headings separated by slashes, of visible characters only."""

from __future__ import annotations

import unicodedata

from halo_weave.errors import BadInput

PATH_LENGTH = 512
HEADING_LENGTH = 100
DEPTH = 16
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format, half characters, breaks
JOINERS = "\u200c\u200d"  # within Persian words and composed emoji


def checked_path(path: object) -> str:
    """The path as it is kept: in Unicode's composed form, spaces around headings and outer slashes left out."""
    if not isinstance(path, str):
        raise BadInput('A path is text in quotes, such as "Project/Goals".')
    if len(path) > PATH_LENGTH:
        raise BadInput(f"This path has {len(path)} characters; at most {PATH_LENGTH} are kept.")
    headings = [heading.strip() for heading in unicodedata.normalize("NFC", path).strip(" ").split("/")]
    if len(headings) > 1 and not headings[0]:
        del headings[0]
    if len(headings) > 1 and not headings[-1]:
        del headings[-1]
    if len(headings) > DEPTH:
        raise BadInput(f"This path has {len(headings)} headings; at most {DEPTH} are kept.")
    for heading in headings:
        _check_heading(heading)
    whole = "/".join(headings)
    if len(whole) > PATH_LENGTH:
        raise BadInput(f"This path has {len(whole)} characters; at most {PATH_LENGTH} are kept.")
    return whole


def _check_heading(heading: str) -> None:
    if not heading:
        raise BadInput('A path needs a heading between its slashes, such as "Project/Goals".')
    if heading in (".", ".."):
        raise BadInput(f"A path names its headings in full; {heading} is not one.")
    if len(heading) > HEADING_LENGTH:
        raise BadInput(f"A heading has at most {HEADING_LENGTH} characters.")
    seen = heading.translate(dict.fromkeys(map(ord, JOINERS)))
    if not seen or any(unicodedata.category(character) in UNSEEN for character in seen):
        raise BadInput("A path holds visible characters only.")


def is_root(path: object) -> bool:
    """Whether this means all of the memory."""
    return path is None or (isinstance(path, str) and path.strip() in ("", "/", "."))
