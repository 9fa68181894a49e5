"""Turns: each runs in a thread of its own and publishes its events to the window's hub."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from threading import Lock, Thread, current_thread
from typing import Any

from halo_weave.core.tokens import Role, Tokens
from halo_weave.errors import AnotherModel, BadInput, BadSetting, HaloWeaveError, ServerFailed
from halo_weave.fleet import News
from halo_weave.ports import Sampling
from halo_weave.weave.ahead import ReadAhead
from halo_weave.weave.branches import TurnBranches
from halo_weave.weave.documents import Document, WeaveDocuments
from halo_weave.weave.events import (
    INTERNAL,
    Answering,
    Heard,
    Spoken,
    TurnEnded,
    TurnEvent,
    TurnFailed,
    WindowChanged,
    WindowEvent,
)
from halo_weave.weave.hub import Hub
from halo_weave.weave.orders import Asked, GuestTerms, answering, going_on, saying, step_back
from halo_weave.weave.overhearing import Overhearing
from halo_weave.weave.recovery import recover
from halo_weave.weave.reply import ReplyKind
from halo_weave.weave.system import System
from halo_weave.weave.totals import Totals
from halo_weave.weave.turn import Turn
from halo_weave.weave.waking import NO_WISH, WakeWish

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds to wait for a reply to be stored when the program ends
OVERRIDES = {field.name for field in fields(Sampling)} - {"stop", "grammar", "likely"}


@dataclass(frozen=True, slots=True)
class Begun:
    """The user's words are stored, and a reply to them comes. The turn's events are those after `before`."""

    heard: Heard | Answering
    before: str


class WeaveTurns(TurnBranches):
    """`weave.turns`: what is said, and what is told of it."""

    def __init__(self, system: System, ahead: ReadAhead) -> None:
        self._system, self._ahead = system, ahead
        self._lock = Lock()
        self._threads: dict[str, Thread] = {}  # the latest of each window
        self._running: dict[str, Turn] = {}
        self._last: dict[str, Mapping[str, Any]] = {}
        self.totals = Totals()
        self._documents = WeaveDocuments(system)
        self.overhearing = Overhearing(system)

    def within(self, system: System) -> WeaveTurns:
        """The same turns, for someone who reaches only a part of the system."""
        other = copy(self)
        other._system, other._documents = system, WeaveDocuments(system)
        return other

    def say(
        self,
        window_id: str,
        text: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        after: int | None = None,
        terms: GuestTerms | None = None,
        wish: WakeWish = NO_WISH,
        documents: Sequence[Document] = (),
    ) -> Future[Begun]:
        """Begin a turn in a thread. The future holds until the user's words are stored, or says why they are not.

        `sampling`: settings such as temperature or max_new_tokens, for this turn alone. `stop`: the reply ends before
        one of these texts. `after`: the turn that these words follow, instead of the last one; 0: none. `terms`: what
        another program wants to hold for this reply. `wish`: what is to wake up for it, and what not. `documents` become
        turns of their own, right before the words.
        """

        def order() -> Asked:
            attached = self._documents.checked(documents, window_id) if documents else ()
            asked = self._saying(window_id, text, stop, after)
            return replace(asked, terms=terms, wish=wish, documents=attached)

        return self._begin(window_id, order, sampling)

    def answer(
        self,
        window_id: str,
        turn_id: int | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        terms: GuestTerms | None = None,
        opening: tuple[tuple[ReplyKind, Tokens], ...] = (),
    ) -> Future[Begun]:
        """A reply to words that have none, or another reply; the former one stays in the record.

        `turn_id`: the user's turn, or a reply to it; by default the last one. `opening`: how the reply begins.
        """

        def order() -> Asked:
            return replace(answering(self._system, window_id, turn_id, stop), terms=terms, opening=opening)

        return self._begin(window_id, order, sampling)

    def go_on(
        self,
        window_id: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        terms: GuestTerms | None = None,
    ) -> Future[Begun]:
        """The last reply goes on where it ended. The shorter one stays in the record."""

        def order() -> Asked:
            return replace(going_on(self._system, window_id, stop), terms=terms)

        return self._begin(window_id, order, sampling)

    def edit(
        self,
        window_id: str,
        turn_id: int,
        text: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
    ) -> Future[Begun] | None:
        """The turn says something else. Words of the user's are answered; for others there is no future to wait for."""
        turn = self._system.store.turn_record(turn_id)
        if turn.role is Role.USER:
            return self.say(window_id, text, sampling=sampling, stop=stop, after=turn.parent or 0)
        self.replace(window_id, turn_id, plain(text))
        return None

    def steps(
        self,
        window_id: str,
        text: str,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        after: int | None = None,
    ) -> Iterator[TurnEvent]:
        """One turn in the caller's thread: it goes on as long as the caller asks for the next event."""
        yield from self._steps(window_id, lambda: self._saying(window_id, text, stop, after), sampling)

    def _saying(self, window_id: str, text: str, stop: Sequence[str], after: int | None) -> Asked:
        text = plain(text)
        if not text.strip():
            raise BadInput("There is nothing to say. Write something first.")
        asked = saying(self._system, window_id, text, stop, after)
        return replace(asked, speaker=self._system.speaks_as(self._system.window(window_id)))

    def _steps(
        self, window_id: str, order: Callable[[], Asked], sampling: Mapping[str, Any] | None
    ) -> Iterator[TurnEvent]:
        system = self._system
        if unknown := sorted((sampling or {}).keys() - OVERRIDES):
            raise BadSetting(
                f"{unknown[0]!r} cannot be set for one turn. Use: {', '.join(sorted(OVERRIDES))}."
            )
        began = time.perf_counter()
        system.open.wait(PATIENCE)
        system.ready(window_id)
        with _opened_anew(system.root, window_id), system.alone(window_id):
            recover(system.root, held=window_id)
            asked = order()
            system.recall.expect(asked.text)
            desk = system.desk_to_change(window_id)
            desk.settings = desk.settings.changed(sampling or {})
            step_back(system, desk, asked)
            turn = Turn(system.root, desk, asked, began)  # what it may touch was decided
            system.at_work[window_id], self._running[window_id] = desk, turn
            try:
                yield from turn.run()
            finally:
                del system.at_work[window_id], self._running[window_id]
        if asked.terms is None:  # what another program will send begins as it likes
            self._ahead.wish(window_id, speaker=asked.speaker)

    def follow(self, window_id: str, after: str | None = None) -> Iterator[WindowEvent]:
        """The events after one, then those that come, up to the end of a turn."""
        for numbered in self.hub(window_id).follow(after):
            yield numbered.event
            if isinstance(numbered.event, TurnEnded | TurnFailed):
                return

    def polled(self, window_id: str, after: str) -> Iterator[WindowEvent | None]:
        """The same without waiting: None where nothing has come yet."""
        for numbered in self.hub(window_id).polled(after, lambda: None):
            yield None if numbered is None else numbered.event
            if numbered is not None and isinstance(numbered.event, TurnEnded | TurnFailed):
                return

    def told_since(self, window_id: str, after: str) -> list[WindowEvent]:
        """The events after one that were told already."""
        hub = self.hub(window_id)
        return [one.event for one in hub.since(hub.place(after))[0]]

    def hub(self, window_id: str) -> Hub:
        """The events of a window."""
        self._system.window(window_id)
        return self._system.hubs.of(window_id)

    @property
    def watchers(self) -> int:
        """How many follow the events of any window."""
        return self._system.hubs.watchers

    def abort(self, window_id: str) -> bool:
        """Stop the reply at its next token, whichever server writes it. What was said so far stays."""
        self._system.check_writes(window_id)
        return self._stop(window_id) or self._system.store.fleet.stop(window_id)

    def abort_all(self) -> None:
        """Stop every reply of this process at its next token."""
        for window_id in self.generating():
            self._stop(window_id)

    def _stop(self, window_id: str) -> bool:
        turn = self._running.get(window_id)
        if turn is not None:
            turn.flag.set()
        return turn is not None

    def hear(self, news: News) -> None:
        """Another server tells something of a window."""
        if news.event == "stop" and news.window is not None:
            self._stop(news.window)
            return
        self._system.hear(news)
        if news.event == "changed" and news.window is not None:
            self.overhearing.hear(news.window)

    def generating(self) -> list[str]:
        return self._system.mine(list(self._running))

    @property
    def waiting(self) -> int:
        """Turns of which the model has not said anything yet."""
        return sum(not turn.stats["tokens"] for turn in list(self._running.values()))

    def last(self, window_id: str) -> Mapping[str, Any]:
        """What the window's last turn came to."""
        return self._last.get(window_id, {})

    def close(self) -> None:
        """Let go of those who watch, stop every reply, and wait until what was said is stored."""
        self._system.hubs.close()
        self.overhearing.close()
        end = time.monotonic() + PATIENCE
        self._system.give_up = min(self._system.give_up, end - PATIENCE / 4)
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            while thread.is_alive() and time.monotonic() < end:
                self.abort_all()
                thread.join(0.05)

    # In the turn's thread

    def _begin(
        self, window_id: str, order: Callable[[], Asked], sampling: Mapping[str, Any] | None
    ) -> Future[Begun]:
        begun: Future[Begun] = Future()
        asked = (window_id, order, sampling or {}, begun)
        Thread(target=self._run, args=asked, name=f"turn in {window_id}", daemon=True).start()
        return begun

    def _run(
        self,
        window_id: str,
        order: Callable[[], Asked],
        sampling: Mapping[str, Any],
        begun: Future[Begun],
    ) -> None:
        hub, ended, empty = None, None, False
        try:
            for event in self._steps(window_id, order, sampling):
                if hub is None:
                    hub = self._enter(window_id)
                    before = hub.last
                if isinstance(event, TurnEnded):
                    ended = event
                    continue
                hub.publish(event)
                if isinstance(event, Heard | Answering):
                    begun.set_result(Begun(event, before))
                    self._system.store.fleet.tell([window_id])  # the user's words
                    again = isinstance(event, Answering)
                empty = empty or (isinstance(event, Spoken) and again and not event.chunks)
            if hub is not None and ended is not None:
                # Only now is the window free: whoever hears this may speak at once.
                self._last[window_id] = ended.stats
                self.totals.add_turn(ended.stats)
                log.info("A turn ended.", extra={"figures": {"window": window_id, **ended.stats}})
                hub.publish(ended)
                if empty:  # the former answer is there again
                    hub.publish(WindowChanged())
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            self.totals.add_failure(error)
            if not known:
                log.exception("The turn in window %s failed.", window_id)
            if hub is not None:
                hub.publish(TurnFailed(str(error) if known else INTERNAL, isinstance(error, ServerFailed)))
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


@contextmanager
def _opened_anew(system: System, window_id: str) -> Iterator[None]:
    """An engine whose server runs another model now is opened again: the next turn speaks with that one."""
    try:
        yield
    except AnotherModel:
        with suppress(HaloWeaveError):  # another window speaks with it
            name = system.settings(system.window(window_id)).answered_by
            if name:
                system.close_other(name)
            else:
                system.reopen()
        raise


def plain(text: str) -> str:
    """Text as it can be stored: no NUL, no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", errors="replace").decode("utf-8")
