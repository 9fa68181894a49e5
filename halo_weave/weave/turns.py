"""Turns: each runs in a thread of its own and publishes its events to the window's hub."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from threading import Lock, Thread, current_thread
from typing import Any

from halo_weave.errors import BadInput, BadSetting, HaloWeaveError
from halo_weave.ports import Sampling
from halo_weave.weave.events import INTERNAL, Heard, TurnEnded, TurnEvent, TurnFailed, WindowEvent
from halo_weave.weave.hub import Hub
from halo_weave.weave.system import System
from halo_weave.weave.turn import Turn

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds to wait for a reply to be stored when the program ends
OVERRIDES = {field.name for field in fields(Sampling)} - {"stop"}


@dataclass(frozen=True, slots=True)
class Begun:
    """The user's words are stored. The turn's events are those after `before`."""

    heard: Heard
    before: str


class WeaveTurns:
    """`weave.turns`: what is said, and what is told of it."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._lock = Lock()
        self._threads: dict[str, Thread] = {}  # the latest of each window
        self._running: dict[str, Turn] = {}
        self._last: dict[str, Mapping[str, Any]] = {}

    def say(
        self,
        window_id: str,
        text: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
    ) -> Future[Begun]:
        """Begin a turn in a thread. The future holds until the user's words are stored, or says why they are not.

        `sampling`: settings such as temperature or max_new_tokens, for this turn alone. `stop`: the reply ends before
        one of these texts.
        """
        begun: Future[Begun] = Future()
        asked = (window_id, text, sampling or {}, tuple(stop), begun)
        Thread(target=self._run, args=asked, name=f"turn in {window_id}", daemon=True).start()
        return begun

    def steps(
        self, window_id: str, text: str, sampling: Mapping[str, Any] | None = None, stop: Sequence[str] = ()
    ) -> Iterator[TurnEvent]:
        """One turn in the caller's thread: it goes on as long as the caller asks for the next event."""
        text, system = plain(text), self._system
        if not text.strip():
            raise BadInput("There is nothing to say. Write something first.")
        if unknown := sorted((sampling or {}).keys() - OVERRIDES):
            raise BadSetting(
                f"{unknown[0]!r} cannot be set for one turn. Use: {', '.join(sorted(OVERRIDES))}."
            )
        began = time.perf_counter()
        system.check_speaks()
        system.open.wait(PATIENCE)
        with system.alone(window_id):
            system.recover(held=window_id)
            desk = system.desk_to_change(window_id)
            desk.settings = desk.settings.changed(sampling or {})
            turn = Turn(system, desk, text, tuple(stop), began)
            system.at_work[window_id], self._running[window_id] = desk, turn
            try:
                yield from turn.run()
            finally:
                del system.at_work[window_id], self._running[window_id]

    def follow(self, window_id: str, after: str | None = None) -> Iterator[WindowEvent]:
        """The events after one, then those that come, up to the end of a turn."""
        for numbered in self.hub(window_id).follow(after):
            yield numbered.event
            if isinstance(numbered.event, TurnEnded | TurnFailed):
                return

    def hub(self, window_id: str) -> Hub:
        """The events of a window."""
        self._system.window(window_id)
        return self._system.hubs.of(window_id)

    @property
    def watchers(self) -> int:
        """How many follow the events of any window."""
        return self._system.hubs.watchers

    def abort(self, window_id: str) -> bool:
        """Stop the reply at its next token. What was said so far stays."""
        turn = self._running.get(window_id)
        if turn is not None:
            turn.flag.set()
        return turn is not None

    def abort_all(self) -> None:
        """Stop every reply at its next token."""
        for window_id in self.generating():
            self.abort(window_id)

    def generating(self) -> list[str]:
        return list(self._running)

    def last(self, window_id: str) -> Mapping[str, Any]:
        """What the window's last turn came to."""
        return self._last.get(window_id, {})

    def close(self) -> None:
        """Let go of those who watch, stop every reply, and wait until what was said is stored."""
        self._system.hubs.close()
        end = time.monotonic() + PATIENCE
        self._system.give_up = min(self._system.give_up, end - PATIENCE / 4)
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            while thread.is_alive() and time.monotonic() < end:
                self.abort_all()
                thread.join(0.05)

    # In the turn's thread

    def _run(
        self,
        window_id: str,
        text: str,
        sampling: Mapping[str, Any],
        stop: tuple[str, ...],
        begun: Future[Begun],
    ) -> None:
        hub, ended = None, None
        try:
            for event in self.steps(window_id, text, sampling, stop):
                if hub is None:
                    hub = self._enter(window_id)
                    before = hub.last
                if isinstance(event, TurnEnded):
                    ended = event
                    continue
                hub.publish(event)
                if isinstance(event, Heard):
                    begun.set_result(Begun(event, before))
            if hub is not None and ended is not None:
                # Only now is the window free: whoever hears this may speak at once.
                self._last[window_id] = ended.stats
                hub.publish(ended)
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            if not known:
                log.exception("The turn in window %s failed.", window_id)
            if hub is not None:
                hub.publish(TurnFailed(str(error) if known else INTERNAL))
            if not begun.done():
                begun.set_exception(error)
        self._system.hubs.bound(window_id)

    def _enter(self, window_id: str) -> Hub:
        """The window is ours. The turn before may have its last event still to tell; ours come after it."""
        with self._lock:
            previous = self._threads.get(window_id)
            self._threads[window_id] = current_thread()
        if previous is not None:
            previous.join()
        return self._system.hubs.of(window_id)


def plain(text: str) -> str:
    """Text as it can be stored: no NUL, no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", errors="replace").decode("utf-8")
