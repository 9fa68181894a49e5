"""The base models of the API and the forms of its texts: what is not described is refused, and what no file can hold."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from halo_weave.core.tokens import ID_LIMIT

WHOLE = r"^[^\x00]*$"  # no NUL
SAID = r"^[^\x00]*[^\s\x00][^\x00]*$"  # and not only blanks
ID = "^[0-9]{1,19}$"
KEY = r"^[0-9]{1,40}\.[0-9]{1,40}\.(system|user|assistant)$"
DAY = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"

_DEEPEST = 64


class Input(BaseModel):
    """What a request carries. Fields that are not described are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Output(BaseModel):
    """An answer, an event, or a part of one. All its fields are always there."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, from_attributes=True, json_schema_serialization_defaults_required=True
    )


def _storable(value: Any, depth: int = 0) -> Any:
    """Refuse what a request's JSON can hold and a file cannot: half characters, endless numbers, deep nesting."""
    if depth > _DEEPEST:
        raise ValueError(f"It is nested more than {_DEEPEST} deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("It holds half of a character (an unpaired surrogate)") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("It holds a number that is not finite")
    elif isinstance(value, int) and abs(value) >= ID_LIMIT:
        raise ValueError("It holds a whole number beyond 2^63")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _storable(name, depth + 1)
            _storable(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _storable(inner, depth + 1)
    return value


Json = Annotated[Any, AfterValidator(_storable)]
Id = Annotated[str, Field(pattern=ID, examples=["12"])]
