"""Generations without a window: nothing is stored, and memory is not read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Event, Lock

from halo_weave.server.errors import ApiError

_MAX_RUNS = 4


@dataclass(slots=True)
class StatelessRuns:
    """Running generations, each in its own engine window.

    The windows are reused, so a client that sends the same beginning again profits from the KV cache.
    """

    purpose: str
    lock: Lock = field(default_factory=Lock)
    running: dict[str, Event] = field(default_factory=dict)
    free: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [f"{self.purpose} {i}" for i in range(_MAX_RUNS)]

    @contextlib.contextmanager
    def take(self, name: str) -> Iterator[tuple[str, Event]]:
        """An engine window, and the flag that stops the generation in it."""
        with self.lock:
            if name in self.running:
                raise ApiError(
                    409, "busy", f"A request named {name!r} is being answered. Use another request_id."
                )
            if not self.free:
                raise ApiError(503, "busy", f"{_MAX_RUNS} texts are being generated already. Try again soon.")
            window, stop = self.free.pop(), Event()
            self.running[name] = stop
        try:
            yield window, stop
        finally:
            stop.set()
            with self.lock:
                del self.running[name]
                self.free.append(window)

    def stop(self, name: str | None) -> bool:
        """Stop the generation with this name, or all. Returns whether there was one."""
        with self.lock:
            stops = [stop for running, stop in self.running.items() if name in (None, running)]
        for stop in stops:
            stop.set()
        return bool(stops)
