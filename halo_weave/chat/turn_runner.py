"""Start and stop turns, each in its own thread, and publish their events."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, fields, replace
from threading import Lock, Thread, current_thread
from typing import Any

from halo_weave.chat.branches import Branches
from halo_weave.chat.documents import Document, Documents
from halo_weave.chat.entry_filer import EntryFiler, UnfiledEntry
from halo_weave.chat.event_hub import EventHub
from halo_weave.chat.events import (
    INTERNAL_ERROR_MESSAGE,
    MessageStored,
    RegenerationStarted,
    ReplyStored,
    TurnEnded,
    TurnEvent,
    TurnFailed,
    WindowChanged,
    WindowEvent,
)
from halo_weave.chat.prefetch import Prefetcher
from halo_weave.chat.recall_plan import NO_OVERRIDES, RecallOverrides
from halo_weave.chat.remote_replies import RemoteReplies
from halo_weave.chat.reply import ReplyKind
from halo_weave.chat.reply_storage import recover_drafts
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.turn import COUNTS, TurnRun
from halo_weave.chat.turn_request import (
    ClientOptions,
    TurnRequest,
    continue_request,
    hide_replaced_turns,
    message_request,
    regenerate_request,
)
from halo_weave.core.tokens import Role, Tokens
from halo_weave.engines.base import Sampling
from halo_weave.errors import AnotherModel, BadInput, BadSetting, HaloWeaveError, ServerFailed, StoreError
from halo_weave.store.database import RemoteChange

log = logging.getLogger(__name__)
CLOSE_TIMEOUT = 10.0  # seconds to wait for a reply to be stored when the program ends
OVERRIDES = {field.name for field in fields(Sampling)} - {"stop", "grammar", "likely"}


@dataclass(frozen=True, slots=True)
class TurnAccepted:
    """The user's message is stored, and the reply is being generated."""

    first_event: MessageStored | RegenerationStarted
    last_event: str  # the id of the window's last event before the turn; the turn's events follow it


class Turns(Branches):
    """`weave.turns`: start and stop turns, and read their events."""

    def __init__(self, runtime: Runtime, prefetcher: Prefetcher) -> None:
        self._runtime, self._prefetcher = runtime, prefetcher
        self._lock = Lock()
        self._threads: dict[str, Thread] = {}  # by window, the thread of its latest turn
        self._running: dict[str, TurnRun] = {}  # by window
        self._last_stats: dict[str, Mapping[str, Any]] = {}
        self.totals = Totals()
        self._documents = Documents(runtime)
        self.remote_replies = RemoteReplies(runtime)
        self.entry_filer = EntryFiler(
            lambda: bool(self._running),
            lambda window_id, event: runtime.hubs.of(window_id).publish(event),
            runtime.now,
        )

    def within(self, runtime: Runtime) -> Turns:
        """The same turns, limited to what the person of this runtime may see and change."""
        other = copy(self)
        other._runtime, other._documents = runtime, Documents(runtime)
        return other

    def send_message(
        self,
        window_id: str,
        text: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        after: int | None = None,
        client_options: ClientOptions | None = None,
        overrides: RecallOverrides = NO_OVERRIDES,
        documents: Sequence[Document] = (),
    ) -> Future[TurnAccepted]:
        """Begin a turn in a thread of its own. The future is done when the message is stored, or raises why it is not.

        `sampling`: settings such as temperature or max_new_tokens, for this turn only. `stop`: the reply ends before
        one of these strings. `after`: the id of the turn that the message follows, instead of the last one; 0: it begins the
        conversation. `client_options`: options of an API client, which replace the window's for this turn. `overrides`: chunks
        that must or must not be resurrected for this turn. `documents` become turns of their own, right before the message.
        """

        def make_request() -> TurnRequest:
            attached = self._documents.checked(documents, window_id) if documents else ()
            request = self._message_request(window_id, text, stop, after)
            return replace(request, client=client_options, overrides=overrides, documents=attached)

        return self._start_turn(window_id, make_request, sampling)

    def regenerate(
        self,
        window_id: str,
        turn_id: int | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        client_options: ClientOptions | None = None,
        opening: tuple[tuple[ReplyKind, Tokens], ...] = (),
    ) -> Future[TurnAccepted]:
        """Generate a reply to a message that has none, or another reply; the earlier reply stays stored.

        `turn_id`: the user's turn, or a reply to it; by default the last one. `opening`: tokens that the reply begins with.
        """

        def make_request() -> TurnRequest:
            return replace(
                regenerate_request(self._runtime, window_id, turn_id, stop),
                client=client_options,
                opening=opening,
            )

        return self._start_turn(window_id, make_request, sampling)

    def continue_reply(
        self,
        window_id: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        client_options: ClientOptions | None = None,
    ) -> Future[TurnAccepted]:
        """Continue the last reply where it ended. The shorter version stays stored."""

        def make_request() -> TurnRequest:
            return replace(continue_request(self._runtime, window_id, stop), client=client_options)

        return self._start_turn(window_id, make_request, sampling)

    def edit(
        self,
        window_id: str,
        turn_id: int,
        text: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
    ) -> Future[TurnAccepted] | None:
        """Replace the text of a turn. A message of the user gets a new reply; for other turns the result is None."""
        turn = self._runtime.store.turn_record(turn_id)
        if turn.role is Role.USER:
            return self.send_message(window_id, text, sampling=sampling, stop=stop, after=turn.parent or 0)
        self.replace(window_id, turn_id, storable_text(text))
        return None

    def steps(
        self,
        window_id: str,
        text: str,
        sampling: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        after: int | None = None,
    ) -> Iterator[TurnEvent]:
        """Run one turn in the caller's thread: each `next` on the iterator runs it up to its next event."""
        yield from self._turn_events(
            window_id, lambda: self._message_request(window_id, text, stop, after), sampling
        )

    def _message_request(
        self, window_id: str, text: str, stop: Sequence[str], after: int | None
    ) -> TurnRequest:
        text = storable_text(text)
        if not text.strip():
            raise BadInput("There is nothing to say. Write something first.")
        request = message_request(self._runtime, window_id, text, stop, after)
        return replace(request, speaker=self._runtime.speaker_name(self._runtime.window(window_id)))

    def _turn_events(
        self, window_id: str, make_request: Callable[[], TurnRequest], sampling: Mapping[str, Any] | None
    ) -> Iterator[TurnEvent]:
        """Open the engine, lock and open the window, and run one turn in it."""
        runtime = self._runtime
        if unknown := sorted((sampling or {}).keys() - OVERRIDES):
            raise BadSetting(
                f"{unknown[0]!r} cannot be set for one turn. Use: {', '.join(sorted(OVERRIDES))}."
            )
        began = time.perf_counter()
        runtime.note_activity()
        runtime.accepting_turns.wait(CLOSE_TIMEOUT)
        runtime.open_engine_for(window_id)
        with _reopen_changed_model(runtime.unrestricted, window_id), runtime.exclusive(window_id):
            recover_drafts(runtime.unrestricted, held=window_id)
            request = make_request()
            runtime.memory_search.prefetch_query(request.text)
            open_window = runtime.window_for_change(window_id)
            open_window.settings = open_window.settings.changed(sampling or {})
            hide_replaced_turns(runtime, open_window, request)
            # Access was checked above. The turn itself is not limited to what one person may see.
            turn_run = TurnRun(runtime.unrestricted, open_window, request, began)
            runtime.busy_windows[window_id], self._running[window_id] = open_window, turn_run
            try:
                yield from turn_run.run()
            finally:
                del runtime.busy_windows[window_id], self._running[window_id]
                runtime.note_activity()
                self.entry_filer.turn_ended()
        change = turn_run.memory_change
        if change is not None and change.change == "saved" and turn_run.memory is not None:
            self.entry_filer.add(UnfiledEntry(window_id, change, turn_run.memory, turn_run.engine))
        if request.client is None:  # the next prompt of an API client cannot be predicted
            self._prefetcher.request(window_id, speaker=request.speaker)

    def wait_until_free(self, window_id: str, timeout: float) -> None:
        """Wait until no turn or change is under way in a window."""
        self._runtime.wait_until_free(window_id, timeout)

    def follow(self, window_id: str, after: str | None = None) -> Iterator[WindowEvent]:
        """Yield the events after event `after`, then wait for new ones, until a turn ends."""
        for numbered in self.hub(window_id).follow(after):
            yield numbered.event
            if isinstance(numbered.event, TurnEnded | TurnFailed):
                return

    def poll(self, window_id: str, after: str) -> Iterator[WindowEvent | None]:
        """Like `follow`, but yields None instead of waiting when there is no new event."""
        for numbered in self.hub(window_id).poll(after, lambda: None):
            yield None if numbered is None else numbered.event
            if numbered is not None and isinstance(numbered.event, TurnEnded | TurnFailed):
                return

    def events_since(self, window_id: str, after: str) -> list[WindowEvent]:
        """The events that were published after event `after`."""
        hub = self.hub(window_id)
        return [numbered.event for numbered in hub.since(hub.place(after))[0]]

    def hub(self, window_id: str) -> EventHub:
        """The hub that publishes the events of a window."""
        self._runtime.window(window_id)
        return self._runtime.hubs.of(window_id)

    @property
    def watchers(self) -> int:
        """The number of clients that follow the events of a window."""
        return self._runtime.hubs.watchers

    def abort(self, window_id: str) -> bool:
        """Stop the reply at its next token, whichever server generates it. Its tokens so far stay."""
        self._runtime.store.check_writes(window_id)
        return self._stop(window_id) or self._runtime.store.fleet.stop(window_id)

    def abort_all(self) -> None:
        """Stop every reply of this process at its next token."""
        for window_id in self.generating():
            self._stop(window_id)

    def _stop(self, window_id: str) -> bool:
        turn_run = self._running.get(window_id)
        if turn_run is not None:
            turn_run.stop_flag.set()
        return turn_run is not None

    def on_remote_change(self, change: RemoteChange) -> None:
        """Another server has changed something, or asks to stop a reply."""
        if change.event == "stop" and change.window is not None:
            self._stop(change.window)
            return
        self._runtime.on_remote_change(change)
        if change.event == "changed" and change.window is not None:
            self.remote_replies.on_window_changed(change.window)

    def generating(self) -> list[str]:
        """The windows whose turn is running in this process."""
        return self._runtime.filter_readable(list(self._running))

    @property
    def waiting(self) -> int:
        """The number of running turns that have no generated token yet."""
        return sum(not turn.stats["tokens"] for turn in list(self._running.values()))

    def last_stats(self, window_id: str) -> Mapping[str, Any]:
        """The statistics of the window's last turn."""
        return self._last_stats.get(window_id, {})

    def close(self) -> None:
        """End the event streams, stop every reply, and wait until the replies are stored."""
        self.entry_filer.close()
        self._runtime.hubs.close()
        self.remote_replies.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        runtime = self._runtime.unrestricted
        runtime.shutdown_deadline = min(runtime.shutdown_deadline, deadline - CLOSE_TIMEOUT / 4)
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                self.abort_all()
                thread.join(0.05)

    # In the turn's thread

    def _start_turn(
        self, window_id: str, make_request: Callable[[], TurnRequest], sampling: Mapping[str, Any] | None
    ) -> Future[TurnAccepted]:
        begun: Future[TurnAccepted] = Future()
        arguments = (window_id, make_request, sampling or {}, begun)
        Thread(target=self._publish_turn, args=arguments, name=f"turn in {window_id}", daemon=True).start()
        return begun

    def _publish_turn(
        self,
        window_id: str,
        make_request: Callable[[], TurnRequest],
        sampling: Mapping[str, Any],
        begun: Future[TurnAccepted],
    ) -> None:
        hub, ended, is_empty = None, None, False
        try:
            for event in self._turn_events(window_id, make_request, sampling):
                if hub is None:
                    hub = self._wait_for_previous_turn(window_id)
                    last_event = hub.last
                if isinstance(event, TurnEnded):
                    ended = event
                    continue
                hub.publish(event)
                if isinstance(event, MessageStored | RegenerationStarted):
                    begun.set_result(TurnAccepted(event, last_event))
                    self._runtime.store.fleet.tell(
                        [window_id]
                    )  # other servers read the message from the store
                    is_regeneration = isinstance(event, RegenerationStarted)
                is_empty = is_empty or (
                    isinstance(event, ReplyStored) and is_regeneration and not event.chunks
                )
            if hub is not None and ended is not None:
                # The window is free now: a client that gets this event may send a message at once.
                self._last_stats[window_id] = ended.stats
                self.totals.add_turn(ended.stats)
                log.info("A turn ended.", extra={"figures": {"window": window_id, **ended.stats}})
                hub.publish(ended)
                if is_empty:  # the earlier reply is the current one again
                    hub.publish(WindowChanged())
        except Exception as error:
            is_expected = isinstance(error, HaloWeaveError)
            self.totals.add_failure(error)
            if not is_expected:
                log.exception("The turn in window %s failed.", window_id)
            if hub is not None:
                hub.publish(
                    TurnFailed(
                        str(error) if is_expected else INTERNAL_ERROR_MESSAGE, isinstance(error, ServerFailed)
                    )
                )
            if not begun.done():
                begun.set_exception(error)
        self._runtime.hubs.bound(window_id)

    def _wait_for_previous_turn(self, window_id: str) -> EventHub:
        """The previous turn may not have published its last event yet: wait for it, so that this turn's events follow."""
        with self._lock:
            previous = self._threads.get(window_id)
            self._threads[window_id] = current_thread()
        if previous is not None:
            previous.join()
        return self._runtime.hubs.of(window_id)


@contextmanager
def _reopen_changed_model(runtime: Runtime, window_id: str) -> Iterator[None]:
    """If the engine's server has loaded another model, open the engine again, so that the next turn uses that model."""
    try:
        yield
    except AnotherModel:
        with suppress(HaloWeaveError):  # another window is using the engine
            name = runtime.settings(runtime.window(window_id)).engine_name
            if name:
                runtime.close_engine(name)
            else:
                runtime.reload_model()
        raise


def storable_text(text: str) -> str:
    """Text as it can be stored: no NUL, no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", errors="replace").decode("utf-8")


class Totals:
    """Sums that only grow. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sums: Counter[str] = Counter()

    def add_turn(self, stats: Mapping[str, Any]) -> None:
        """Add the statistics of a turn that ended."""
        pace = stats.get("tokens_per_second") or 0
        with self._lock:
            self._sums["turns"] += 1
            for name in COUNTS:
                self._sums[name] += stats.get(name, 0)
            self._sums["seconds"] += stats.get("seconds", 0)
            self._sums["own_seconds"] += stats.get("own_ms_per_turn", 0) / 1e3
            self._sums["recall_seconds"] += stats.get("recall_ms", 0) / 1e3
            self._sums["writing_seconds"] += stats.get("tokens", 0) / pace if pace else 0

    def add_failure(self, error: Exception) -> None:
        with self._lock:
            self._sums["failures"] += 1
            self._sums["store_errors"] += isinstance(error, StoreError)

    def read(self) -> Counter[str]:
        with self._lock:
            return self._sums.copy()
