"""Base classes of request and response models, and the patterns of ids, keys, times and texts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from halo_weave.core.tokens import ID_LIMIT
from halo_weave.core.validation import storable

TEXT_PATTERN = r"^[^\x00]*$"  # no NUL
NON_BLANK_PATTERN = r"^[^\x00]*[^\s\x00][^\x00]*$"  # not only white space
ID_PATTERN = "^[0-9]{1,19}$"
KEY_PATTERN = r"^[0-9]{1,40}\.[0-9]{1,40}\.(system|user|assistant)$"
TIME_PATTERN = "^[0-9]{4}-[0-9]{2}-[0-9]{2}"


class Input(BaseModel):
    """Base of requests. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Output(BaseModel):
    """Base of responses and events, read from the attributes of a value. All fields are always present."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, from_attributes=True, json_schema_serialization_defaults_required=True
    )


Json = Annotated[Any, AfterValidator(partial(storable, limit=ID_LIMIT))]
Id = Annotated[str, Field(pattern=ID_PATTERN, examples=["12"])]
Number = Annotated[
    str, BeforeValidator(str), Field(pattern=ID_PATTERN, examples=["12"])
]  # an id as a decimal string
KeyText = Annotated[str, BeforeValidator(str)]


def nullable(schema: dict[str, Any]) -> None:
    """Describe that every optional field may be null."""
    for name, about in schema["properties"].items():
        if name not in schema.get("required", ()):
            schema["properties"][name] = {"anyOf": [about, {"type": "null"}]}
