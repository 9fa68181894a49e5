"""What happens in a window, for everyone who watches it: one stream per window, resumable.

Threads publish, clients read from what is kept; a slow client holds up nobody and holds no copy of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from halo_weave.server.refusals import Refusal, json_bytes

KEPT_EVENTS = 20_000  # of one window
KEPT_BYTES = 8_000_000
KEPT_IN_ALL = 32_000_000  # bytes, of all windows together
EACH = 200  # bytes that an event takes besides its data
STILL_HERE_SECONDS = 15.0
MOST_WATCHERS = 256
REF = "#/components/schemas/{model}"


def described(
    events: Iterable[tuple[str, type[BaseModel]]], example: str, *, numbered: bool = True
) -> dict[str, Any]:
    """What one event looks like, for the description of the API: its name, and what its data is as JSON."""
    number = {"type": "string", "description": "Name it as Last-Event-ID to go on after it."}
    more = {"id": number} if numbered else {}
    kinds = [
        {
            "properties": {
                **more,
                "event": {"type": "string", "const": name},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": REF.format(model=model.__name__)},
                },
            },
            "required": [*more, "event", "data"],
        }
        for name, model in events
    ]
    schema = {"type": "object", "oneOf": kinds}
    return {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": schema, "example": example}},
    }


@dataclass(frozen=True, slots=True)
class Kept:
    name: str
    data: bytes  # JSON: one line

    @property
    def size(self) -> int:
        return len(self.data) + EACH


class Stream:
    """The events of one window, numbered from 1. Their ids also name this run of the server.

    Ids of another run, or older than what is kept, are answered by `reset`: load the context anew.
    """

    def __init__(
        self,
        run: str,
        *,
        kept_events: int = KEPT_EVENTS,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._run = run
        self._kept_events, self._kept_bytes = kept_events, kept_bytes
        self._lock = Lock()
        self._kept: dict[int, Kept] = {}
        self._bytes = 0
        self._newest = 0
        self._dropped = 0  # up to here events were dropped to keep the bounds
        self._latest: dict[str, int] = {}  # number of the last event of a replaceable kind
        self._nudges: set[Callable[[], object]] = set()
        self._closed = False

    def publish(self, name: str, data: Any, *, replaces: bool = False) -> str:
        """Number an event and tell those who watch. `replaces`: earlier ones of its name are worth nothing now."""
        kept = Kept(name, json_bytes(data))
        with self._lock:
            self._newest += 1
            if replaces:
                self._drop(self._latest.get(name, 0))
                self._latest[name] = self._newest
            self._kept[self._newest] = kept
            self._bytes += kept.size
            while len(self._kept) > 1 and (
                len(self._kept) > self._kept_events or self._bytes > self._kept_bytes
            ):
                self._dropped = next(iter(self._kept))
                self._drop(self._dropped)
            nudges, number = tuple(self._nudges), self._newest
        for nudge in nudges:
            nudge()
        return self._id(number)

    def _drop(self, number: int) -> None:
        gone = self._kept.pop(number, None)
        self._bytes -= gone.size if gone else 0

    def forget(self) -> int:
        """Keep nothing. Gives how many bytes that frees."""
        with self._lock:
            held, self._bytes = self._bytes, 0
            self._kept.clear()
            self._dropped = self._newest
            return held

    @property
    def held(self) -> int:
        """Bytes of the events that are kept."""
        return self._bytes

    @property
    def last(self) -> str:
        """The id of the newest event: a client that has loaded the context goes on from here."""
        return self._id(self._newest)

    def _id(self, number: int) -> str:
        return f"{self._run}-{number}"

    def place(self, after: str | None) -> int | None:
        """The number of the event a client saw last; None if what came after it is not known any more."""
        with self._lock:
            if not after:
                return self._newest
            run, _, number = after.rpartition("-")
            if run != self._run or not number.isascii() or not number.isdigit() or len(number) > 18:
                return None
            return int(number) if self._dropped <= int(number) <= self._newest else None

    def since(self, place: int | None) -> tuple[list[bytes], int]:
        """What a client at this place has not seen, ready to send, and its new place."""
        with self._lock:
            newest = self._newest
            if place is None or place < self._dropped:
                return [self._lines(newest, Kept("reset", b"{}"))], newest
            fresh = ((number, self._kept.get(number)) for number in range(place + 1, newest + 1))
            return [self._lines(number, kept) for number, kept in fresh if kept], newest

    def _lines(self, number: int, kept: Kept) -> bytes:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (self._id(number).encode(), kept.name.encode(), kept.data)

    async def follow(
        self, after: str | None, *, pause: float = STILL_HERE_SECONDS
    ) -> AsyncGenerator[bytes, None]:
        """Everything after an event, then what comes, until the stream is closed."""
        woken = asyncio.Event()
        with self._watched(partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)):
            place = self.place(after)
            yield b"retry: 1000\n\n"  # the headers and this tell the client that it is heard
            while True:
                woken.clear()
                lines, place = self.since(place)
                if lines:
                    yield b"".join(lines)
                    continue
                if self._closed:
                    return
                try:
                    await asyncio.wait_for(woken.wait(), pause)
                except TimeoutError:
                    yield b": still here\n\n"

    @contextlib.contextmanager
    def _watched(self, nudge: Callable[[], object]) -> Iterator[None]:
        def safely() -> None:
            with contextlib.suppress(RuntimeError):  # the loop of a client may have ended
                nudge()

        with self._lock:
            self._nudges.add(safely)
        try:
            yield
        finally:
            with self._lock:
                self._nudges.discard(safely)

    @property
    def watchers(self) -> int:
        return len(self._nudges)

    def close(self) -> None:
        """Clients get what is left and are let go."""
        self._closed = True
        with self._lock:
            nudges = tuple(self._nudges)
        for nudge in nudges:
            nudge()


class Streams:
    """The streams of all windows, in one run of the server."""

    def __init__(self, *, kept_bytes: int = KEPT_IN_ALL) -> None:
        self._run = secrets.token_hex(4)
        self._kept_bytes = kept_bytes
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}  # those that were silent longest come first
        self._closed = False

    def of(self, window: str) -> Stream:
        with self._lock:
            if window not in self._streams:
                self._streams[window] = Stream(self._run)
                if self._closed:
                    self._streams[window].close()
            return self._streams[window]

    def bound(self, window: str) -> None:
        """A turn is over in this window. Those that were silent longest make room for it."""
        with self._lock:
            stream = self._streams.pop(window, None)
            over = sum(one.held for one in self._streams.values()) - self._kept_bytes
            if stream:
                over += stream.held
            for silent in self._streams.values():
                if over <= 0:
                    break
                over -= silent.forget()
            if stream:
                self._streams[window] = stream

    def drop(self, window: str) -> None:
        """A window is gone: those who watch it are told and let go."""
        with self._lock:
            stream = self._streams.pop(window, None)
        if stream:
            stream.publish("deleted", {})
            stream.close()

    @property
    def watchers(self) -> int:
        with self._lock:
            return sum(stream.watchers for stream in self._streams.values())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()

    def watch(self, window: str, after: str | None) -> EventStream:
        if self.watchers >= MOST_WATCHERS:
            raise Refusal(
                503, "too_many_clients", f"{MOST_WATCHERS} clients are listening already. Close some."
            )
        return EventStream(self.of(window).follow(after))


class Flow(Response):
    """A body that is made while it is sent. When the client goes, its source is closed at once."""

    def __init__(
        self, source: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        if "content-length" not in (headers or {}):
            del self.headers["content-length"]
        self.source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(gone)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async for piece in self.source:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                with anyio.CancelScope(shield=True):
                    await self.source.aclose()
            group.cancel_scope.cancel()


class EventStream(Flow):
    """Server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, "text/event-stream", {"x-accel-buffering": "no"})


async def hopping(pieces: Generator[bytes, None, None], first: bytes = b"") -> AsyncGenerator[bytes, None]:
    """A generator that works in threads, read from the event loop; closed when its reader goes."""
    try:
        if first:
            yield first
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(pieces.close)
