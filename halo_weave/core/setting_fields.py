"""Settings as dataclass fields with default, range and meaning, and the check of a value."""

from __future__ import annotations

import math
from dataclasses import Field, field
from datetime import date
from typing import Any, Literal

from halo_weave.errors import BadSetting

Day = str  # the type of a setting that is a day, such as 2026-05-04


def setting(
    default: Any,
    meaning: str,
    *,
    group: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    optional: bool = False,
    common: bool = False,
) -> Any:
    """A field with default, range and meaning. For text, `high` is the greatest length. `common`: one of the few
    settings that most people change."""
    about = {
        "meaning": meaning,
        "group": group,
        "low": low,
        "high": high,
        "choices": choices,
        "optional": optional,
        "common": common,
    }
    return field(default=default, metadata=about)


def is_setting(one: Field[Any]) -> bool:
    return "meaning" in one.metadata


def description(one: Field[Any]) -> dict[str, Any]:
    """Everything that defines a setting. Two settings with the same description are the same."""
    return {"name": one.name, "default": one.default, "type": _kind(one), **one.metadata}


def checked_value(one: Field[Any], value: Any) -> Any:
    """The value in its right type. Raises BadSetting with a sentence that says what is allowed."""
    name, about, kind = one.name, one.metadata, _kind(one)
    if value is None:
        if about["optional"]:
            return None
        raise BadSetting(f"{name} cannot be empty.")
    if kind == "choice":
        if value not in about["choices"]:
            empty = ", or leave it empty" if about["optional"] else ""
            raise BadSetting(f"{name} is {value!r}; use one of {', '.join(about['choices'])}{empty}.")
        return value
    if kind == "boolean":
        if not isinstance(value, bool):
            raise BadSetting(f"{name} is {value!r}; use true or false.")
        return value
    if kind == "text":
        if not isinstance(value, str) or len(value) > about["high"] or "\0" in value:
            raise BadSetting(f"{name} is a text of at most {about['high']:,} characters.")
        return value
    if kind == "day":
        try:
            return date.fromisoformat(value).isoformat()
        except (TypeError, ValueError):
            raise BadSetting(
                f"{name} is {value!r}; use a day such as 2026-05-04, or leave it empty."
            ) from None
    whole = kind == "integer"
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not -math.inf < value < math.inf
        or (whole and value != int(value))
    ):
        raise BadSetting(f"{name} is {value!r}; use a {'whole ' if whole else ''}number.")
    if not about["low"] <= value <= about["high"]:
        raise BadSetting(f"{name} is {value}; use {about['low']:,} to {about['high']:,}.")
    return int(value) if whole else float(value)


def _kind(one: Field[Any]) -> Literal["choice", "boolean", "integer", "number", "text", "day"]:
    written = str(one.type)
    if written == "bool":
        return "boolean"
    if one.metadata["choices"]:
        return "choice"
    if written.startswith("Day"):
        return "day"
    if written == "str":
        return "text"
    return "integer" if written.startswith("int") else "number"
