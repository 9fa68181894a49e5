"""Turns under way: each runs in a thread of its own and tells the window's stream, whoever listens."""

from __future__ import annotations

import logging
import time
from codecs import getincrementaldecoder
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict
from threading import Lock, Thread, current_thread
from typing import Any

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import HaloWeaveError
from halo_weave.server import shapes
from halo_weave.server.refusals import INTERNAL
from halo_weave.server.sse import Stream, Streams
from halo_weave.weave import events
from halo_weave.weave.context import SeenChunk
from halo_weave.weave.weave import Weave

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds to wait for a reply to be stored when the server ends


class Turns:
    def __init__(self, weave: Weave, streams: Streams) -> None:
        self.weave, self.streams = weave, streams
        self._lock = Lock()
        self._threads: set[Thread] = set()
        self._last: dict[str, Mapping[str, Any]] = {}
        self._tools: dict[str, set[int]] = {}

    def start(self, window: str, text: str) -> Future[events.Heard]:
        """Begin a turn. The future holds until the user's words are stored, or says why they are not."""
        heard: Future[events.Heard] = Future()
        thread = Thread(target=self._run, args=(window, text, heard), name=f"turn in {window}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()
        return heard

    def last(self, window: str) -> Mapping[str, Any]:
        """What the window's last turn came to."""
        return self._last.get(window, {})

    def tools(self, window: str) -> frozenset[int]:
        """Positions of the reply in progress that a tool has said."""
        return frozenset(self._tools.get(window, ()))

    def close(self) -> None:
        """Stop every reply and wait until what was said is stored."""
        with self._lock:
            threads = list(self._threads)
        end = time.monotonic() + PATIENCE
        for thread in threads:
            while thread.is_alive() and time.monotonic() < end:
                # Again and again: a turn can only be stopped once it has begun.
                for window in self.weave.generating():
                    self.weave.abort(window)
                thread.join(0.05)

    def _run(self, window: str, text: str, heard: Future[events.Heard]) -> None:
        stream, told = self.streams.of(window), False
        teller = Teller(self.weave, window, stream)
        self._tools[window] = teller.tools
        try:
            for event in self.weave.say(window, text):
                teller.tell(event)
                told = True
                if isinstance(event, events.Heard):
                    heard.set_result(event)
                if isinstance(event, events.Done):
                    self._last[window] = event.stats
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            if not known:
                log.exception("The turn in window %s failed.", window)
            if told:
                stream.publish("failed", {"sentence": str(error) if known else INTERNAL})
            if not heard.done():
                heard.set_exception(error)
        finally:
            with self._lock:
                self._threads.discard(current_thread())


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
                return "woken", shapes.woken(event, self.seen(), self.names())
            case events.Asleep():
                return "asleep", shapes.asleep(event)
            case events.Heard():
                return "heard", shapes.heard(event, self.seen())
            case events.Reading():
                return "reading", asdict(event)
            case events.ToolCalled():
                return "tool_called", asdict(event)
            case events.ToolAnswered():
                return "tool_answered", asdict(event)
            case events.Spoken():
                return "spoken", shapes.spoken(event, self.seen())
            case events.Done():
                return "done", {"reason": event.reason, "stats": dict(event.stats)}

    def seen(self) -> dict[ChunkKey, SeenChunk]:
        """The window's chunks as they are at this event."""
        turns = self.weave.context(self.window).turns
        return {one.chunk.key: one for turn in turns for one in turn.chunks}

    def names(self) -> dict[str, str]:
        return {window.id: window.name for window in self.weave.store.windows(deleted=True)}
