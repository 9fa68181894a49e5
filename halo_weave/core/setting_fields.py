"""Settings as dataclass fields with default, range and meaning, and the check of a value."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import Field
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
    metadata = {
        "meaning": meaning,
        "group": group,
        "low": low,
        "high": high,
        "choices": choices,
        "optional": optional,
        "common": common,
    }
    return dataclasses.field(default=default, metadata=metadata)


def is_setting(field: Field[Any]) -> bool:
    return "meaning" in field.metadata


def description(field: Field[Any]) -> dict[str, Any]:
    """Everything that defines a setting. Two settings with the same description are the same."""
    return {"name": field.name, "default": field.default, "type": _kind(field), **field.metadata}


def checked_value(field: Field[Any], value: Any) -> Any:
    """The value in its right type. Raises BadSetting with a sentence that says what is allowed."""
    name, metadata, kind = field.name, field.metadata, _kind(field)
    if value is None:
        if metadata["optional"]:
            return None
        raise BadSetting(f"{name} cannot be empty.")
    if kind == "choice":
        if value not in metadata["choices"]:
            empty = ", or leave it empty" if metadata["optional"] else ""
            raise BadSetting(f"{name} is {value!r}; use one of {', '.join(metadata['choices'])}{empty}.")
        return value
    if kind == "boolean":
        if not isinstance(value, bool):
            raise BadSetting(f"{name} is {value!r}; use true or false.")
        return value
    if kind == "text":
        if not isinstance(value, str) or len(value) > metadata["high"] or "\0" in value:
            raise BadSetting(f"{name} is a text of at most {metadata['high']:,} characters.")
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
    if not metadata["low"] <= value <= metadata["high"]:
        raise BadSetting(f"{name} is {value}; use {metadata['low']:,} to {metadata['high']:,}.")
    return int(value) if whole else float(value)


def _kind(field: Field[Any]) -> Literal["choice", "boolean", "integer", "number", "text", "day"]:
    written = str(field.type)
    if written == "bool":
        return "boolean"
    if field.metadata["choices"]:
        return "choice"
    if written.startswith("Day"):
        return "day"
    if written == "str":
        return "text"
    return "integer" if written.startswith("int") else "number"
