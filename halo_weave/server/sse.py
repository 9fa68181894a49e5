"""Server-sent events and other streamed responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from halo_weave.chat.event_hub import EventHub
from halo_weave.server.events import render_event

KEEPALIVE_SECONDS = 15.0
REF = "#/components/schemas/{model}"


def describe_events(
    events: Iterable[tuple[str, type[BaseModel]]], example: str, *, numbered: bool = True
) -> dict[str, Any]:
    """The events of a stream for the API description: name, and data as JSON."""
    number = {"type": "string", "description": "Send it as Last-Event-ID to continue after this event."}
    id_property = {"id": number} if numbered else {}
    kinds = [
        {
            "properties": {
                **id_property,
                "event": {"type": "string", "const": name},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {"$ref": REF.format(model=model.__name__)},
                },
            },
            "required": [*id_property, "event", "data"],
        }
        for name, model in events
    ]
    schema = {"type": "object", "oneOf": kinds}
    return {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": schema, "example": example}},
    }


async def follow_events(
    hub: EventHub, after: str | None, *, pause: float = KEEPALIVE_SECONDS
) -> AsyncGenerator[bytes, None]:
    """The events after the event with the id `after`, then new ones, until the hub is closed."""
    changed = asyncio.Event()
    with hub.watched(partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)):
        place = hub.place(after)
        yield b"retry: 1000\n\n"  # confirms the connection to the client
        while True:
            changed.clear()
            ended = hub.closed
            events, place = hub.since(place)
            if events:
                yield b"".join(map(render_event, events))
                continue
            if ended:
                return
            try:
                await asyncio.wait_for(changed.wait(), pause)
            except TimeoutError:
                yield b": still here\n\n"


async def poll_on_events(
    pieces: Generator[bytes, None, None], hub: EventHub, *, pause: float = KEEPALIVE_SECONDS
) -> AsyncGenerator[bytes, None]:
    """Read a generator that never blocks. When it yields nothing, wait for the next event of the hub."""
    changed = asyncio.Event()
    try:
        with hub.watched(partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)):
            while True:
                changed.clear()
                piece = next(pieces, None)
                if piece is None:
                    return
                if piece:
                    yield piece
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), pause)
                except TimeoutError:
                    yield b": still here\n\n"
    finally:
        pieces.close()


class StreamedBody(Response):
    """A response body that is generated while it is sent. If the client disconnects, its source is closed at once."""

    def __init__(
        self, source: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        if "content-length" not in (headers or {}):
            del self.headers["content-length"]
        self.source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def wait_for_disconnect() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(wait_for_disconnect)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async for piece in self.source:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                with anyio.CancelScope(shield=True):
                    await self.source.aclose()
            group.cancel_scope.cancel()


class EventStream(StreamedBody):
    """Server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, "text/event-stream", {"x-accel-buffering": "no"})


async def iterate_in_threads(
    pieces: Generator[bytes, None, None], first: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Read a blocking generator from the event loop, in threads. It is closed when the caller stops reading."""
    try:
        if first:
            yield first
        while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(pieces.close)
