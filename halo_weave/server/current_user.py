"""Who sent the current request, as a context variable."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")

UNKNOWN_USER = "?"  # nobody asked for a key yet, since the memory was not open
# The id of the person; None: the program itself, or a server that only one person uses.
CURRENT_USER: ContextVar[str | None] = ContextVar("who", default=None)


class PerUser(Generic[T]):
    """Something that each person has for themselves."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make, self._lock = make, Lock()
        self._made: dict[str, T] = {}

    def __call__(self) -> T:
        who = CURRENT_USER.get() or ""
        with self._lock:
            if who not in self._made:
                self._made[who] = self._make(who)
            return self._made[who]
