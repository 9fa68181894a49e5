"""What every request body has in common: unknown fields are refused, and so is text that no file could hold."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from halo_weave.core.depth import storable
from halo_weave.core.tokens import ID_LIMIT

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


Json = Annotated[Any, AfterValidator(partial(storable, limit=ID_LIMIT))]
Line = Annotated[str, Field(max_length=200, pattern=WHOLE)]
Id = Annotated[str, Field(pattern=ID, examples=["12"])]
