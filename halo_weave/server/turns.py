"""Turns under way: each runs in a thread of its own and tells the window's stream, whoever listens."""

from __future__ import annotations

import logging
import time
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from threading import Lock, Thread, current_thread
from typing import Any

from halo_weave.core.tokens import Chunk, ChunkKey
from halo_weave.errors import HaloWeaveError
from halo_weave.server import shapes
from halo_weave.server.refusals import INTERNAL
from halo_weave.server.sse import Stream, Streams
from halo_weave.weave import events
from halo_weave.weave.context import SeenChunk
from halo_weave.weave.weave import Weave

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds to wait for a reply to be stored when the server ends


@dataclass(frozen=True, slots=True)
class Begun:
    """The user's words are stored. The turn's events are those after `before`."""

    heard: events.Heard
    before: str


class Turns:
    def __init__(self, weave: Weave, streams: Streams) -> None:
        self.weave, self.streams = weave, streams
        self._lock = Lock()
        self._threads: dict[str, Thread] = {}  # the latest of each window
        self._last: dict[str, Mapping[str, Any]] = {}
        self._tools: dict[str, set[int]] = {}

    def start(self, window: str, text: str) -> Future[Begun]:
        """Begin a turn. The future holds until the user's words are stored, or says why they are not."""
        begun: Future[Begun] = Future()
        Thread(target=self._run, args=(window, text, begun), name=f"turn in {window}", daemon=True).start()
        return begun

    def last(self, window: str) -> Mapping[str, Any]:
        """What the window's last turn came to."""
        return self._last.get(window, {})

    def tools(self, window: str) -> frozenset[int]:
        """Positions of the reply in progress that a tool has said."""
        return frozenset(self._tools.get(window, ()))

    def close(self) -> None:
        """Stop every reply and wait until what was said is stored."""
        end = time.monotonic() + PATIENCE
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            while thread.is_alive() and time.monotonic() < end:
                for window in self.weave.generating():
                    self.weave.abort(window)
                thread.join(0.05)

    def _run(self, window: str, text: str, begun: Future[Begun]) -> None:
        stream, teller, done = self.streams.of(window), None, None
        try:
            for event in self.weave.say(window, text):
                if teller is None:
                    before, teller = self._enter(window, stream), Teller(self.weave, window, stream)
                    self._tools[window] = teller.tools
                if isinstance(event, events.Done):
                    done = event
                    continue
                teller.tell(event)
                if isinstance(event, events.Heard):
                    begun.set_result(Begun(event, before))
            if teller is not None and done is not None:
                # Only now is the window free: who hears this may speak at once.
                self._last[window] = done.stats
                teller.tell(done)
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            if not known:
                log.exception("The turn in window %s failed.", window)
            if teller is not None:
                stream.publish("failed", {"sentence": str(error) if known else INTERNAL})
            if not begun.done():
                begun.set_exception(error)
        self.streams.bound(window)

    def _enter(self, window: str, stream: Stream) -> str:
        """The window is ours. The turn before may have its last event still to tell; ours come after it."""
        with self._lock:
            previous = self._threads.get(window)
            self._threads[window] = current_thread()
        if previous is not None:
            previous.join()
        return stream.last


class Teller:
    """Puts the events of one turn into the window's stream."""

    def __init__(self, weave: Weave, window: str, stream: Stream) -> None:
        self.weave, self.window, self.stream = weave, window, stream
        self.decoder = getincrementaldecoder("utf-8")("replace")
        self.tools: set[int] = set()

    def tell(self, event: events.Event) -> None:
        name, data = self.told(event)
        self.stream.publish(name, data, replaces=name == "brightened")

    def told(self, event: events.Event) -> tuple[str, dict[str, Any]]:
        match event:
            case events.Token():
                if event.tool:
                    self.tools.add(event.position)
                return "token", shapes.token(event, self.decoder)
            case events.Brightened():
                return "brightened", shapes.brightened(event)
            case events.Searching():
                return "searching", asdict(event)
            case events.Woken():
                return "woken", shapes.woken(
                    event, self.seen(one.chunk for one in event.chunks), self.names()
                )
            case events.Asleep():
                return "asleep", shapes.asleep(event)
            case events.Heard():
                return "heard", shapes.heard(event, self.seen(event.chunks))
            case events.Planned():
                return "to_read", asdict(event)
            case events.Reading():
                return "reading", asdict(event)
            case events.ToolCalled():
                return "tool_called", asdict(event)
            case events.ToolAnswered():
                return "tool_answered", asdict(event)
            case events.Spoken():
                return "spoken", shapes.spoken(event, self.seen(event.chunks))
            case events.Done():
                return "done", {"reason": event.reason, "stats": dict(event.stats)}

    def seen(self, chunks: Iterable[Chunk]) -> dict[ChunkKey, SeenChunk]:
        """The event's chunks with their brightness, as they are now."""
        return self.weave.glimpse(self.window, [chunk.key for chunk in chunks])

    def names(self) -> dict[str, str]:
        return {window.id: window.name for window in self.weave.store.windows(deleted=True)}
