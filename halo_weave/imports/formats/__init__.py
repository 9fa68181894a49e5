"""The formats, by name. One is registered by its file being here.

A module has the program's NAME, `recognises(value)` for one value of a file, and `conversations(values, left)`, which reads
all values of a file: the elements of a list, the lines of a JSONL file, or one object. It believes nothing of what it reads.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from halo_weave.imports.conversation import Conversation, Left


class ForeignFormat(Protocol):
    NAME: str

    def recognises(self, value: dict[str, Any]) -> bool: ...
    def conversations(self, values: Iterator[Any], left: Left) -> Iterator[Conversation]: ...


@cache
def formats() -> tuple[ForeignFormat, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(cast(ForeignFormat, import_module(f"{__name__}.{name}")) for name in names)


def format_of(value: Any) -> ForeignFormat | None:
    """The format that a value of a file belongs to."""
    if not isinstance(value, dict):
        return None
    return next((one for one in formats() if one.recognises(value)), None)
