"""The formats, by name. Each file in this package registers one.

A module has the program's NAME, `recognises(value)` for one value of a file, and `conversations(values, left)`, which
reads all values of a file: the elements of a list, the lines of a JSONL file, or one object. It validates all that
it reads. `left` counts what is skipped.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from halo_weave.store.third_party.conversation import Conversation, Skipped


class ConversationFormat(Protocol):
    NAME: str

    def recognises(self, value: dict[str, Any]) -> bool: ...
    def conversations(self, values: Iterator[Any], left: Skipped) -> Iterator[Conversation]: ...


@cache
def formats() -> tuple[ConversationFormat, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(cast(ConversationFormat, import_module(f"{__name__}.{name}")) for name in names)


def format_of(value: Any) -> ConversationFormat | None:
    """The format of a value of a file."""
    if not isinstance(value, dict):
        return None
    return next((one for one in formats() if one.recognises(value)), None)
