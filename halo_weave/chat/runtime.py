"""What all windows share: engines, store, search, tools, effective settings, locks and the open windows.

`Runtime.with_access` gives what one person may use of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from threading import Condition, Event, Lock
from typing import Any, Literal

from halo_weave.chat.capture import DeleteRecordings, NewRecorder, TurnRecorder
from halo_weave.chat.drafts import DraftWriter
from halo_weave.chat.event_hub import EventHubs
from halo_weave.chat.events import ReplyNotStored, WindowChanged
from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.privacy import check_private, remote_scope
from halo_weave.chat.prompt import PromptBuilder, SystemPrompt
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.core.resurrection import RecallHit
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, Calibration
from halo_weave.core.tokens import ChunkKey
from halo_weave.engines.base import NO_FILTER, Engine, SearchFilter, remote_host
from halo_weave.engines.engine_list import EngineList
from halo_weave.errors import (
    BadInput,
    EngineError,
    HaloWeaveError,
    ServerFailed,
    StoreError,
    UnknownWindow,
    WindowBusy,
)
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import SHARED_KEY, Settings
from halo_weave.store.database import RemoteChange, SingleProcess
from halo_weave.store.records import OWNER, OWNER_NAME, PERSONA, Access, WindowRecord
from halo_weave.store.sql_store import SqlStore

log = logging.getLogger(__name__)
MAX_OPEN_WINDOWS = 16  # open windows that are kept between turns
LARGE_MODEL_PARAMETERS = (
    7_000_000_000  # parameters from which on a model decides well when to use its tools (docs/tools.md)
)
# Opens the engine of a name. Its calibration is pending if there is no stored one.
OpenEngine = Callable[[str], tuple[Engine, Calibration]]
CalibrateLater = Callable[[str, Engine], None]
LOCK_WAIT = (
    0.05  # seconds that a turn or change waits for a window, which may be held for a moment (`held_if_free`)
)
REMOTE_WAIT = 1.0  # seconds after which a window that another server holds is tried again
STOP_TIMEOUT = 30.0  # seconds that running replies get to end when the model changes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything derived from it; replaced as a whole."""

    engine: Engine
    calibration: Calibration
    prompt_builder: PromptBuilder


@dataclass(slots=True)
class ModelState:
    """The default model of all windows. It changes while the server runs."""

    loaded: LoadedModel
    error: HaloWeaveError | None = None  # why there is no model
    token_counter: LoadedModel | None = (
        None  # counts tokens of private windows whose model is on another machine
    )
    store_deadline: float = (
        inf  # by the monotonic clock: replies that cannot be stored until then are given up
    )


class Runtime:
    """What all windows share.

    The server's own runtime has no limits. One made by `with_access` shares everything with it except store, search and
    tools, which see only what the person may see.
    """

    def __init__(
        self,
        engine: Engine,
        store: SqlStore,
        recall: MemorySearch,
        toolbox: Toolbox | None,
        *,
        defaults: Settings,
        calibration: Calibration,
        now: Callable[[], datetime],
    ) -> None:
        self.store, self.recall, self.toolbox, self.now = store, recall, toolbox, now
        self.root = self  # the runtime without limits
        self.state = ModelState(self._at_work(engine, calibration))
        self.others: dict[str, LoadedModel] = {}  # of windows that have chosen another engine, by its name
        self.listed: EngineList | None = None
        self.open_other: OpenEngine | None = None
        self.calibrate_later: CalibrateLater = lambda name, engine: None
        self.load_again: Callable[[], None] = lambda: None
        self.reopen: Callable[[], object] = lambda: None
        self._opening: dict[
            str, Lock
        ] = {}  # one lock per name: an engine that does not answer delays no other
        self.hubs = EventHubs()
        self.drafts = DraftWriter(store, now)
        self.busy_windows: dict[str, OpenWindow] = {}  # drafts of the running turns
        self.new_recorder: NewRecorder | None = None  # for windows that are captured
        self.erase_recordings: DeleteRecordings | None = None
        self._recorders: dict[tuple[str, str, int, str], TurnRecorder] = {}
        self._defaults = defaults
        self._locks: dict[str, Lock] = {}
        self._entering = Lock()
        self._freed = Condition()  # notified when a window is free again
        self.last_activity = time.monotonic()  # when somebody typed or a turn began or ended
        self.open = Event()  # cleared while all windows are held
        self.open.set()
        self._open_windows: dict[
            str, tuple[int, OpenWindow]
        ] = {}  # with the store's version they were loaded from

    def with_access(self, access: Access) -> Runtime:
        """The same runtime, limited to the access of one person."""
        limited = copy(self.root)
        limited.store = self.root.store.with_access(access)
        limited.toolbox = limited.toolbox and limited.toolbox.of(limited.store, access.readable)
        return limited

    def note_activity(self) -> None:
        """Somebody types, or a turn begins or ends: the model stops reading in idle time."""
        self.root.last_activity = time.monotonic()

    @property
    def access(self) -> Access | None:
        """The access of the person who uses this runtime; None: no limits."""
        return self.store.access

    def search(self, text: str, *, only: SearchFilter = NO_FILTER, **options: Any) -> Sequence[RecallHit]:
        """Search all that the person may read. Takes the options of `MemorySearch.search`."""
        if self.access is not None:
            only = only.within(self.access.readable)
        return self.recall.search(text, only=only, **options)

    def close(self) -> None:
        for lock in list(self._locks.values()):
            if lock.acquire(timeout=30):
                lock.release()
        self.drafts.close()
        self.recall.close()
        for engine in self.engines:
            engine.close()
        self.store.close()

    # The model

    @property
    def model(self) -> LoadedModel:
        return self.state.loaded

    @property
    def engine(self) -> Engine:
        return self.model.engine

    @property
    def calibration(self) -> Calibration:
        return self.model.calibration

    @property
    def engines(self) -> list[Engine]:
        """All open engines."""
        return [self.engine, *(model.engine for model in list(self.others.values()))]

    def model_of(self, settings: Settings) -> LoadedModel:
        """The model that answers in a window. If its engine is not open yet, the default model is used to look at the
        window."""
        model = self._chosen(settings)
        counter = self.state.token_counter
        return counter if settings.private and model.engine.info.elsewhere and counter else model

    def _chosen(self, settings: Settings) -> LoadedModel:
        return self.others.get(settings.engine_name, self.model)

    def model_in(self, window_id: str) -> LoadedModel:
        return self.model_of(self.settings(self.window(window_id)))

    def ready(self, window_id: str) -> None:
        """Open the engine that the window has chosen. Raises an error if there is no model."""
        self.store.check_writes(window_id)
        record = self.window(window_id)
        settings = self.settings(record)
        if name := settings.engine_name:
            known = {one.name: one.url for one in self.listed or ()}
            check_private(
                record, settings, remote_host(known.get(name, ""))
            )  # before the server is asked for its model
            self._open_chosen(name)
        else:
            if isinstance(self.state.error, ServerFailed):  # another thread may have opened it
                self.load_again()
            self.check_model_loaded()
        check_private(record, settings, self._chosen(settings).engine.info.elsewhere)

    def _open_chosen(self, name: str) -> None:
        with self._opening.setdefault(name, Lock()):
            if name in self.others:
                return
            if self.open_other is None:
                raise BadInput("Windows cannot choose their engine here.")
            engine, calibration = self.open_other(name)
            self.others[name] = self._at_work(engine, calibration)
        if calibration.pending:
            self.calibrate_later(name, engine)

    def use_token_counter(self, engine: Engine) -> None:
        """Use this engine to count the tokens of private windows whose model is on another machine."""
        self.state.token_counter = self._at_work(engine, NOT_CALIBRATED)

    def close_engine(self, name: str) -> None:
        """Close an engine; its windows open it again with their next turn."""
        with self._opening.setdefault(name, Lock()):
            if any(open_window.settings.engine_name == name for open_window in self.busy_windows.values()):
                raise WindowBusy(f"{name} is answering. Stop that first, or wait for it.")
            model = self.others.pop(name, None)
        if model is not None:
            model.engine.close()

    def is_private(self, window_id: str) -> bool:
        """Whether text of a window must not be sent to another machine."""
        try:
            return self.settings(self.root.store.window(window_id)).private
        except UnknownWindow:
            return False

    def _at_work(self, engine: Engine, calibration: Calibration) -> LoadedModel:
        tools = self.toolbox.declarations() if self.toolbox else ()
        return LoadedModel(engine, calibration, PromptBuilder(engine, tools))

    def change_engine(
        self, engine: Engine, calibration: Calibration, *, stop_replies: Callable[[], object]
    ) -> Engine:
        """Use another model in all windows; running replies end, and their tokens so far are kept. Returns the old
        engine."""
        before = self.engine
        with self._all_exclusive(stop_replies):
            self.state.loaded, self.state.error = self._at_work(engine, calibration), None
            self._open_windows.clear()
        return before

    def use_calibration(self, engine: Engine, calibration: Calibration) -> bool:
        """Use these retrieval heads from the next turn on, if the model is still the one they were found in."""
        name = next((name for name, one in list(self.others.items()) if one.engine is engine), "")
        with self._opening.setdefault(name, Lock()):
            model = self.others.get(name, self.model)
            if model.engine is not engine:
                return False
            model = replace(model, calibration=calibration)
            if name:
                self.others[name] = model
            else:
                self.state.loaded = model
        self._open_windows.clear()
        self._recorders.clear()  # a capture has the rows of the heads that were known when it began
        return True

    def check_model_loaded(self) -> None:
        """Raise an error if there is no model."""
        if self.state.error is not None:
            raise self.state.error

    # Windows

    def window(self, window_id: str) -> WindowRecord:
        """The record of a window that was not deleted."""
        record = self.store.window(window_id)
        if record.deleted is not None:
            raise UnknownWindow(f"Window {record.name!r} was deleted.")
        return record

    def names(self) -> dict[str, str]:
        """The names of all windows, deleted ones too, by id."""
        return self.store.window_names()

    def settings(self, window: WindowRecord | None = None) -> Settings:
        """The settings for all windows of the person, or of one window."""
        person = self.access.person if self.access else OWNER
        return effective_settings(self.root.store, window, self._defaults, person)

    def people_names(self) -> frozenset[str]:
        return frozenset({OWNER_NAME, *(one.name for one in self.root.store.people())})

    def _name_of(self, person: str) -> str:
        return next((one.name for one in self.root.store.people() if one.id == person), OWNER_NAME)

    def sharing_of(self, window: WindowRecord) -> tuple[str, bool]:
        """The name of the person who shares a window, empty for an own one; and whether the user may write there."""
        if self.access is None:
            return "", True
        owner = "" if window.owner == self.access.person else self._name_of(window.owner)
        return owner, window.id in self.access.writable

    def speaker_name(self, window: WindowRecord) -> str:
        """The user's name, if several people write in a window; otherwise empty."""
        if self.access is None:
            return ""
        person = self.access.person
        if window.owner == person:
            shared = (one for one in self.root.store.shares() if one.owner == window.owner and one.writes)
            if not any(one.window in ("", window.id) for one in shared):
                return ""
            if person == OWNER and window.user_name != PERSONA["user_name"]:
                return ""
        return self._name_of(person)

    def readable(self, windows: Collection[str]) -> list[str]:
        """Those of these windows that the person may read."""
        return [one for one in windows if self.access is None or one in self.access.readable]

    def recallable_windows(self, record: WindowRecord) -> frozenset[str] | None:
        """The windows whose chunks may be resurrected in one: those that everybody who reads it may read. None: all."""
        store = self.root.store
        if not store.several():
            return None
        readers = (record.owner, *store.readers(record.id))
        return frozenset.intersection(*(store.access_of(one).readable for one in readers))

    def toolbox_for(self, record: WindowRecord) -> Toolbox | None:
        """The tools of a window's owner. They read notes and structured memory, so a shared window has none."""
        toolbox, store = self.root.toolbox, self.root.store
        if toolbox is None or not store.several():
            return toolbox
        if store.readers(record.id):
            return None
        return toolbox.of(store.for_owner(record.owner)) if record.owner else toolbox

    def structured_memory_for(self, open_window: OpenWindow) -> StructuredMemory | None:
        """The structured memory for a window; None if the window's model may read only some windows."""
        if remote_scope(open_window.settings, open_window.engine.info) != "all":
            return None
        toolbox = self.toolbox_for(open_window.record)
        return toolbox.tree if toolbox else None

    def tool_format(
        self, settings: Settings, record: WindowRecord | None = None
    ) -> Literal["native", "tags", "off"]:
        """How the model may call its tools in a turn.

        Small models get worse with declared tools. Notes and structured memory belong to all windows, so a model that
        may read only some windows has no tools.
        """
        engine = self.model_of(settings).engine
        if remote_scope(settings, engine.info) != "all":
            return "off"
        facts = engine.facts
        toolbox = self.toolbox if record is None else self.toolbox_for(record)
        native = facts.declares_tools and facts.tools is not None
        match settings.tools:
            case "tags" if toolbox and settings.tool_rounds:
                return "tags"
            case "native" if toolbox and settings.tool_rounds and native:
                return "native"
            case "auto" if (
                toolbox
                and settings.tool_rounds
                and native
                and engine.info.parameters >= LARGE_MODEL_PARAMETERS
            ):
                return "native"
        return "off"

    def system_prompt(
        self, prompt_builder: PromptBuilder, record: WindowRecord, settings: Settings, form: str
    ) -> SystemPrompt:
        """The window's system prompt, with the description of the tools and an overview of the memory."""
        prompt = record.system_prompt
        if form != "off" and settings.memory_tree_in_prompt and (toolbox := self.toolbox_for(record)):
            about_tools = toolbox.instructions() if form == "tags" else toolbox.overview()
            prompt = f"{prompt}\n\n{about_tools}".strip()
        return prompt_builder.system(prompt, prompt_builder.declared if form == "native" else "")

    @contextmanager
    def exclusive(self, window_id: str) -> Iterator[None]:
        """Hold a window for one turn or change, among all servers. If another one holds it, WindowBusy is raised."""
        self.store.check_writes(window_id)
        with self._entering:
            if not self.open.is_set():
                raise WindowBusy("The model is being changed. Try again in a moment.")
            lock = self._locks.setdefault(window_id, Lock())
        if not lock.acquire(timeout=LOCK_WAIT):
            open_window = self.busy_windows.get(window_id)
            if (
                open_window is not None
                and open_window.storage_error
                and open_window.working_set.reply is None
            ):
                raise WindowBusy(open_window.storage_error)
            raise WindowBusy("This window is being written to. Stop the reply first, or wait for it.")
        try:
            with self.store.fleet.lease(window_id):
                yield
        finally:
            self._release(lock)

    def _release(self, *locks: Lock) -> None:
        for lock in locks:
            lock.release()
        with self._freed:
            self._freed.notify_all()

    def wait_until_free(self, window_id: str, timeout: float) -> None:
        """Wait until no turn or change holds a window. If another server holds it, wait for its next notification."""
        self.open.wait(timeout)
        lock = self._locks.setdefault(window_id, Lock())
        with self._freed:
            if lock.locked():
                self._freed.wait_for(lambda: not lock.locked(), timeout)
            elif not isinstance(self.store.fleet, SingleProcess):
                self._freed.wait(min(timeout, REMOTE_WAIT))

    @contextmanager
    def held_if_free(self, window_id: str) -> Iterator[bool]:
        """While the block runs, no turn or change begins in the window on this server. Yields False if one is running."""
        with self._entering:
            lock = self._locks.setdefault(window_id, Lock())
            free = lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._release(lock)

    @contextmanager
    def _all_exclusive(self, stop_replies: Callable[[], object]) -> Iterator[None]:
        """Hold all windows: no turn or change begins, and running ones are stopped and waited for."""
        with self._entering:
            self.open.clear()
            locks = list(self._locks.values())
        held, end = [], time.monotonic() + STOP_TIMEOUT
        try:
            for lock in locks:
                while not lock.acquire(timeout=0.05):
                    stop_replies()
                    if time.monotonic() > end:
                        raise WindowBusy("A reply could not be ended in time, so the model was not changed.")
                held.append(lock)
            yield
        finally:
            self._release(*held)
            self.open.set()

    @contextmanager
    def exclusive_change(self, window_id: str) -> Iterator[None]:
        """Hold a window for a change by the user, and notify its watchers afterwards."""
        with self.exclusive(window_id):
            self.window(window_id)
            yield
        self.hubs.of(window_id).publish(WindowChanged())

    def delete(self, keys: Sequence[ChunkKey]) -> tuple[str, ...]:
        """Delete chunks, also from the KV caches of all engines. Returns the windows where they were live."""
        held = self.store.holders(keys)
        spans = [
            (min(part.chunk.start for part in self.store.turn(one.key.turn_id)), one.chunk.stop)
            for one in self.store.chunks_by_key(keys)
        ]
        for one in self.store.chunks_by_key(keys):  # its own window may have been read in idle time only
            held.setdefault(one.window, False)
        windows = self.store.delete(keys, now=self.now())
        for engine in self.engines:
            engine.erase(spans, list(held))
            for window, other_tokens in held.items():
                if other_tokens:  # some of its labels may have no positions
                    engine.forget(window)
        self.store.fleet.tell(held, "erased")
        return windows

    def publish_changed(self, windows: Iterable[str]) -> None:
        """Notify watchers of these windows, on any server, that the content has changed."""
        each = list(windows)
        for window_id in each:
            self.hubs.of(window_id).publish(WindowChanged())
        self.store.fleet.tell(each)

    def publish_deleted(self, windows: Iterable[str]) -> None:
        """Notify watchers of these windows, on any server, that they were deleted."""
        each = list(windows)
        for window_id in each:
            self.hubs.drop(window_id)
        self.store.fleet.tell(each, "deleted")

    def on_remote_change(self, news: RemoteChange) -> None:
        """Another server has changed something: notify the watchers here."""
        if news.event == "erased" and news.window is not None:  # text in the window's cache was deleted
            for engine in self.engines:
                engine.erase((), [news.window])
                engine.forget(news.window)
        elif news.window is None:
            self.hubs.publish(WindowChanged())
        elif news.event == "deleted":
            self.hubs.drop(news.window)
        else:
            self.hubs.publish(WindowChanged(), news.window)
        with self._freed:
            self._freed.notify_all()

    def report_unstored(self, open_window: OpenWindow, sentence: str) -> None:
        """Publish why the reply is not stored yet; an empty message: it is stored again."""
        if open_window.storage_error != sentence:
            open_window.storage_error = sentence
            self.hubs.of(open_window.record.id).publish(ReplyNotStored(sentence))

    # Open windows

    def open_window(self, window_id: str) -> OpenWindow:
        """The open window, for reading only: the one of the running turn, or the one loaded last if it is still up to
        date."""
        self.store.check_reads(window_id)
        busy = self.busy_windows.get(window_id)
        if busy is not None:
            return busy
        version = self.store.version()
        known, open_window = self._open_windows.get(window_id, (None, None))
        if (
            open_window is None
            or known != version
            or open_window.engine is not self.model_of(open_window.settings).engine
        ):
            open_window = self._open(window_id, looking=True)
            self._open_windows.pop(window_id, None)
            self._open_windows[window_id] = version, open_window
            for oldest in list(self._open_windows)[:-MAX_OPEN_WINDOWS]:
                self._open_windows.pop(oldest, None)
        return open_window

    def open_window_to_change(self, window_id: str) -> OpenWindow:
        """The open window, for a caller that holds it by `exclusive`. No other caller gets it meanwhile."""
        self.store.check_writes(window_id)
        open_window = self.open_window(window_id)
        self._open_windows.pop(window_id, None)
        if (
            open_window.engine is not self.model_of(open_window.settings).engine
        ):  # its server could not be reached when it was loaded
            open_window = self._open(window_id)
        open_window.store_retokenized_chunks(now=self.now())
        return open_window

    def load_window(self, window_id: str) -> OpenWindow:
        """A window for reading only, which is not kept: so it does not displace another open window."""
        return self.busy_windows.get(window_id) or self._open(window_id, looking=True)

    def _open(self, window_id: str, *, looking: bool = False) -> OpenWindow:
        """Load a window. `looking`: if the model's server cannot be reached, the local engine counts tokens instead."""
        record = self.window(window_id)
        settings = self.settings(record)
        model = self.model_of(settings)
        try:
            return self._opened(record, settings, model)
        except EngineError as error:
            if model is not self.model_of(settings):  # it was changed meanwhile
                return self._open(window_id, looking=looking)
            counter = self.state.token_counter
            if not (looking and counter and isinstance(error, ServerFailed)):
                raise
            return self._opened(record, settings, counter)

    def _opened(self, record: WindowRecord, settings: Settings, model: LoadedModel) -> OpenWindow:
        form, reach = self.tool_format(settings, record), self.recallable_windows(record)
        return OpenWindow.open(
            record,
            settings,
            self.system_prompt(model.prompt_builder, record, settings, form),
            store=self.root.store,
            engine=model.engine,
            prompt_builder=model.prompt_builder,
            names=self.root.store.window_names(reader=None if reach is None else record.owner),
            calibration=model.calibration,
            is_private=self.is_private,
            readable_windows=reach,
            people=frozenset() if reach is None else self.people_names(),
        )

    def recording(self, window_id: str, settings: Settings) -> TurnRecorder | None:
        """The recorder of the window's turns, if they are captured."""
        if settings.capture == "off" or self.new_recorder is None:
            return None
        model = self.model_of(settings)
        key = window_id, settings.capture, settings.capture_megabytes, model.engine.info.name
        if key not in self._recorders:
            try:
                self._recorders[key] = self.new_recorder(window_id, settings, model.engine, model.calibration)
            except (HaloWeaveError, OSError) as error:  # turns work without it
                log.warning("%s is not captured: %s", window_id, error)
                return None
        return self._recorders[key]

    def delete_recordings(self, window_id: str | None = None) -> None:
        """Delete the captures of a window, or of all."""
        for key in [key for key in self._recorders if window_id in (None, key[0])]:
            del self._recorders[key]
        if self.erase_recordings:
            self.erase_recordings(window_id)

    def remove_timestamps(self) -> None:
        """Remove time stamps at the beginning of replies that earlier versions have stored."""
        with suppress(StoreError):  # at the next start, if the store is busy or full
            if self.root.store.remove_timestamps(now=self.now()):
                self.recall.embed_soon()

    def split_long_chunks(self) -> None:
        """Split pruned chunks that are too long to be resurrected whole, so that parts of them fit."""
        settings = self.root.settings()
        most, budget = settings.max_chunk_tokens, settings.resurrection_budget
        if budget is not None:
            most = min(most, max(settings.min_chunk_tokens, budget // 2))
        with suppress(StoreError):  # later, if the store is busy or full
            if self.root.store.split_long_chunks(most, now=self.now()):
                self.recall.embed_soon()


def effective_settings(
    store: SqlStore, window: WindowRecord | None, defaults: Settings, owner: str = OWNER
) -> Settings:
    """The default settings, changed by those stored for all windows of a person, then by the window's own."""
    owner = owner if window is None else window.owner
    kept = store.for_owner(owner) if owner != OWNER else store
    shared = defaults.restored(kept.settings().get(SHARED_KEY))
    return shared if window is None else shared.restored(window.settings)
