"""One writer at a time within a process."""

from __future__ import annotations

import threading


class Turnstile:
    """A lock for one writer at a time. Whoever is `urgent` goes before all others that wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0  # how many of those wait

    def acquire(self, timeout: float | None = None, *, urgent: bool = False) -> bool:
        with self._changed:
            self._urgent += urgent
            try:
                free = self._changed.wait_for(
                    lambda: not self._taken and (urgent or not self._urgent), timeout
                )
            finally:
                self._urgent -= urgent
            self._taken = self._taken or free
            return free

    def release(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
