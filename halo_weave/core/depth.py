"""How deep JSON may be nested to be kept: everything that reads it later has a stack that ends."""

from __future__ import annotations

from typing import Any

DEPTH = 64  # of lists and objects within each other


def shallow(value: Any) -> bool:
    """Whether lists and objects lie at most `DEPTH` deep; found level by level, so that no depth hurts."""
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
