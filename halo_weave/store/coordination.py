"""Several servers on one memory: which one may write a window, and what the others changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple, Protocol


class RemoteChange(NamedTuple):
    """What another server did to a window, or asks of the one that writes it. Without a window: to any of them."""

    window: str | None
    event: Literal["changed", "deleted", "erased", "stop"]


class Coordinator(Protocol):
    """This process among all that use the memory."""

    def lease(self, window_id: str) -> AbstractContextManager[None]:
        """While the block runs, no other process writes the window. Refused with WindowBusy if one does already.

        A process that is silent for too long loses the window; what it writes then is refused with LeaseLost.
        When the block ends, the others hear that the window has changed.
        """

    def tell(
        self, windows: Iterable[str], event: Literal["changed", "deleted", "erased"] = "changed"
    ) -> None:
        """Other processes hear of it within a second. Never fails: what is not told is seen when they look again."""

    def written(self, window_id: str) -> bool:
        """Whether another process, as far as is known a living one, writes the window now."""

    def stop(self, window_id: str) -> bool:
        """Ask the process that writes the window to end its reply; False if no other one does."""

    def listen(self, hear: Callable[[RemoteChange], object]) -> None:
        """Call this for what other processes tell, in a thread of its own."""


class SingleProcess:
    """One process has the memory for itself, as with a file."""

    def lease(self, window_id: str) -> AbstractContextManager[None]:
        return nullcontext()

    def tell(
        self, windows: Iterable[str], event: Literal["changed", "deleted", "erased"] = "changed"
    ) -> None:
        pass

    def written(self, window_id: str) -> bool:
        return False

    def stop(self, window_id: str) -> bool:
        return False

    def listen(self, hear: Callable[[RemoteChange], object]) -> None:
        pass
