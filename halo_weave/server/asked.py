"""What every request body has in common: unknown fields are refused, and so is text that no file could hold."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from halo_weave.core.tokens import ID_LIMIT

DEEPEST = 64

WHOLE = r"^[^\x00]*$"  # no NUL
SAID = r"^[^\x00]*[^\s\x00][^\x00]*$"  # and not only blanks
ID = "^[0-9]{1,19}$"
KEY = r"^[0-9]{1,40}\.[0-9]{1,40}\.(system|user|assistant)$"
DAY = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"


class Asked(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Told(BaseModel):
    """A part of an answer, read from a value's attributes."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


def storable(value: Any, depth: int = 0) -> Any:
    """JSON as it comes in may hold halves of characters and numbers that JSON does not have."""
    if depth > DEEPEST:
        raise ValueError(f"It is nested more than {DEEPEST} deep")
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
            storable(name, depth + 1)
            storable(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            storable(inner, depth + 1)
    return value


Json = Annotated[Any, AfterValidator(storable)]
Line = Annotated[str, Field(max_length=200, pattern=WHOLE)]
Id = Annotated[str, Field(pattern=ID, examples=["12"])]
