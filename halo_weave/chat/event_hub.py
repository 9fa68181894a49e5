"""Publish the events of each window to its watchers: numbered, bounded, resumable."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from halo_weave.chat.events import (
    BrightnessChanged,
    EventsLost,
    ModelChange,
    PrunedChunk,
    WindowDeleted,
    WindowEvent,
)
from halo_weave.chat.views import ChunkView

KEPT_EVENTS = 20_000  # events kept for one window
KEPT_BYTES = 8_000_000
KEPT_IN_ALL = 32_000_000  # bytes, of all windows together
EACH = 300  # estimated bytes of an event
EACH_TOKEN = 24  # and for each token in it


@dataclass(slots=True)
class NumberedEvent:
    """An event at its place in a window's stream."""

    id: str
    event: WindowEvent
    size: int = 0  # estimated bytes, with its rendered form
    rendered: bytes | None = None  # rendered once, by the first connection that sends it


class EventHub:
    """The events of one window, numbered from 1.

    Event ids also name this run of the program. Ids of another run, and ids older than the events kept, are answered
    with `EventsLost`.
    """

    def __init__(self, run: str, *, kept_events: int = KEPT_EVENTS, kept_bytes: int = KEPT_BYTES) -> None:
        self._run = run
        self._kept_events, self._kept_bytes = kept_events, kept_bytes
        self._lock = threading.Lock()
        self._kept: dict[int, NumberedEvent] = {}
        self._bytes = 0
        self._newest = 0
        self._dropped = 0  # the number of the last event that was dropped to keep the limits
        self._reports: dict[
            str, int
        ] = {}  # for kinds of events that replace the one before: the number of the last
        self._nudges: set[Callable[[], object]] = set()
        self.closed = False

    def publish(self, event: WindowEvent) -> str:
        """Number an event and notify the watchers."""
        with self._lock:
            self._newest += 1
            number = self._newest
            if isinstance(event, BrightnessChanged | ModelChange):
                kind = event.state if isinstance(event, ModelChange) else "brightened"
                self._drop(self._reports.get(kind, 0))
                self._reports[kind] = number
            kept = self._kept[number] = NumberedEvent(self._id(number), event, _size(event))
            self._bytes += kept.size
            while len(self._kept) > 1 and (
                len(self._kept) > self._kept_events or self._bytes > self._kept_bytes
            ):
                self._dropped = next(iter(self._kept))
                self._drop(self._dropped)
        self._nudge()
        return kept.id

    def _drop(self, number: int) -> None:
        gone = self._kept.pop(number, None)
        self._bytes -= gone.size if gone else 0

    def _nudge(self) -> None:
        with self._lock:
            nudges = tuple(self._nudges)
        for nudge in nudges:
            with suppress(RuntimeError):  # the event loop of a watcher may have ended
                nudge()

    def forget(self) -> int:
        """Drop all events. Returns the number of freed bytes."""
        with self._lock:
            held, self._bytes = self._bytes, 0
            self._kept.clear()
            self._dropped = self._newest
            return held

    @property
    def held(self) -> int:
        """Estimated bytes of the events that are kept."""
        return self._bytes

    @property
    def last(self) -> str:
        """The id of the newest event: a client that has just loaded the context continues from here."""
        return self._id(self._newest)

    def _id(self, number: int) -> str:
        return f"{self._run}-{number}"

    # Watching

    def place(self, after: str | None) -> int | None:
        """The number of the event that a watcher saw last; None if the events after it are no longer known."""
        with self._lock:
            if not after:
                return self._newest
            run, _, number = after.rpartition("-")
            if run != self._run or not number.isascii() or not number.isdigit() or len(number) > 18:
                return None
            return int(number) if self._dropped <= int(number) <= self._newest else None

    def since(self, place: int | None) -> tuple[list[NumberedEvent], int]:
        """The events after this place, and the new place."""
        with self._lock:
            newest = self._newest
            if place is None or place < self._dropped:
                return [NumberedEvent(self._id(newest), EventsLost())], newest
            fresh = (self._kept.get(number) for number in range(place + 1, newest + 1))
            return [kept for kept in fresh if kept], newest

    @contextmanager
    def watched(self, nudge: Callable[[], object]) -> Iterator[None]:
        """While the block runs, `nudge` is called after each event, in the thread that publishes it."""
        with self._lock:
            self._nudges.add(nudge)
        try:
            yield
        finally:
            with self._lock:
                self._nudges.discard(nudge)

    def follow(self, after: str | None = None) -> Iterator[NumberedEvent]:
        """Yield the events after an event, then wait for new ones, until the hub is closed. Blocks the caller's thread."""
        fresh = threading.Event()
        with self.watched(fresh.set):
            for numbered in self.poll(after, fresh.clear):
                if numbered is None:
                    fresh.wait()
                else:
                    yield numbered

    def poll(self, after: str | None, look: Callable[[], object]) -> Iterator[NumberedEvent | None]:
        """Like `follow`, but yields None instead of waiting when there is no new event. Calls `look` before each check."""
        place = self.place(after)
        while True:
            look()
            ended = self.closed
            found, place = self.since(place)
            yield from found
            if not found:
                if ended:
                    return
                yield None

    @property
    def watchers(self) -> int:
        return len(self._nudges)

    def close(self) -> None:
        """End all streams after their remaining events."""
        self.closed = True
        self._nudge()


class EventHubs:
    """The hubs of all windows, in one run of the program."""

    def __init__(self, *, kept_bytes: int = KEPT_IN_ALL) -> None:
        self._run = secrets.token_hex(4)
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._hubs: dict[str, EventHub] = {}  # least recently used first
        self._closed = False

    def of(self, window_id: str) -> EventHub:
        with self._lock:
            if window_id not in self._hubs:
                self._hubs[window_id] = EventHub(self._run)
                if self._closed:
                    self._hubs[window_id].close()
            return self._hubs[window_id]

    def bound(self, window_id: str) -> None:
        """Drop events of the windows that were idle longest, after a turn has ended in this one."""
        with self._lock:
            hub = self._hubs.pop(window_id, None)
            over = sum(one.held for one in self._hubs.values()) - self._kept_bytes
            if hub:
                over += hub.held
            for silent in self._hubs.values():
                if over <= 0:
                    break
                over -= silent.forget()
            if hub:
                self._hubs[window_id] = hub

    def drop(self, window_id: str) -> None:
        """The window was deleted: notify its watchers and end their streams."""
        with self._lock:
            hub = self._hubs.pop(window_id, None)
        if hub:
            hub.publish(WindowDeleted())
            hub.close()

    def publish(self, event: WindowEvent, window_id: str | None = None) -> None:
        """Publish an event in one window, or in all, if it was ever watched."""
        with self._lock:
            hubs = [hub for name, hub in self._hubs.items() if window_id in (None, name)]
        for hub in hubs:
            hub.publish(event)

    @property
    def watchers(self) -> int:
        with self._lock:
            return sum(hub.watchers for hub in self._hubs.values())

    def watchers_of(self, window_id: str) -> int:
        with self._lock:
            hub = self._hubs.get(window_id)
        return hub.watchers if hub else 0

    def close(self) -> None:
        with self._lock:
            self._closed = True
            hubs = list(self._hubs.values())
        for hub in hubs:
            hub.close()


def _size(event: WindowEvent) -> int:
    """Estimated bytes of an event: mostly its tokens."""
    if isinstance(event, BrightnessChanged):
        return EACH + 4 * event.brightness.nbytes
    chunks: tuple[ChunkView | PrunedChunk, ...] = getattr(event, "chunks", ())
    return EACH + EACH_TOKEN * sum(chunk.tokens for chunk in chunks)
