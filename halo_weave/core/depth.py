"""Which JSON values can be stored: how deep they may be nested, and which numbers and characters they may hold."""

from __future__ import annotations

import math
from typing import Any

DEPTH = 64  # lists and objects within each other: more could exhaust the stack of who reads them later


def shallow(value: Any) -> bool:
    """Whether lists and objects lie at most `DEPTH` deep. It looks level by level, so that no depth exhausts the stack."""
    level = [value]
    for _ in range(DEPTH + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list | tuple):
                inner.extend(one)
        if not inner:
            return True
        level = inner
    return False


def storable(value: Any, limit: int | None = None) -> Any:
    """The value, if it can be kept; a ValueError says why not. `limit`: whole numbers stay below it."""
    if not shallow(value):
        raise ValueError(f"It is nested more than {DEPTH} deep")
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            rest += one
        elif isinstance(one, str):
            if not one.isascii() and any("\ud800" <= sign <= "\udfff" for sign in one):
                raise ValueError("It holds half of a character (an unpaired surrogate)")
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError("It holds a number that is not finite")
        elif limit is not None and isinstance(one, int) and abs(one) >= limit:
            raise ValueError(f"It holds a whole number beyond 2^{limit.bit_length() - 1}")
    return value
