"""What all windows share: engines, store, search, tools, effective settings, locks and the open windows."""

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
from typing import Any, Literal, NamedTuple

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
# Opens the engine with this name. Its calibration is pending if none is stored.
OpenEngine = Callable[[str], tuple[Engine, Calibration]]
ToolFormat = Literal["native", "tags", "off"]  # declared to the template; described in the prompt
CalibrateLater = Callable[[str, Engine], None]
LOCK_WAIT = 0.05  # seconds to wait for a window's lock before the window counts as busy
REMOTE_WAIT = 1.0  # seconds after which a window that another server holds is tried again
STOP_TIMEOUT = 30.0  # seconds that running replies get to end when the model changes or the program closes


class Sharing(NamedTuple):
    """How the person who uses this runtime may use a window."""

    owner_name: str  # the name of the person who shares it; empty: it is their own
    writable: bool


class _RecorderKey(NamedTuple):
    """A recording has one window, one model, and the settings that it began with."""

    window_id: str
    capture: str
    megabytes: int
    model: str


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
    # Counts the tokens of private windows whose model is on another machine.
    local_tokenizer: LoadedModel | None = None


class Runtime:
    """What all windows share.

    The server's own runtime may see everything. A copy made by `with_access` has a store, a search and tools that see only
    what one person may see; it shares everything else.
    """

    def __init__(
        self,
        engine: Engine,
        store: SqlStore,
        memory_search: MemorySearch,
        toolbox: Toolbox | None,
        *,
        defaults: Settings,
        calibration: Calibration,
        now: Callable[[], datetime],
    ) -> None:
        self.store, self.memory_search, self.toolbox, self.now = store, memory_search, toolbox, now
        self.unrestricted = self  # the runtime whose access is not limited
        self.state = ModelState(self._loaded_model(engine, calibration))
        self.models_by_engine: dict[str, LoadedModel] = {}  # engines that windows have chosen, by name
        self.engine_list: EngineList | None = None
        self.open_other: OpenEngine | None = None
        self.calibrate_later: CalibrateLater = lambda name, engine: None
        self.retry_loading: Callable[[], None] = lambda: None
        self.reload_model: Callable[[], object] = lambda: None
        self.shutdown_deadline = inf  # monotonic clock; replies that cannot be stored until then are dropped
        self._opening: dict[str, Lock] = {}  # by engine name, so that a slow engine does not delay others
        self.hubs = EventHubs()
        self.drafts = DraftWriter(store, now)
        self.busy_windows: dict[str, OpenWindow] = {}  # windows whose turn is running, by id
        self.new_recorder: NewRecorder | None = None  # for windows whose turns are recorded
        self.delete_recording_files: DeleteRecordings | None = None
        self._recorders: dict[_RecorderKey, TurnRecorder] = {}
        self._defaults = defaults
        self._locks: dict[str, Lock] = {}
        self._entering = Lock()
        self._freed = Condition()  # notified when a window is free again
        self.last_activity = time.monotonic()  # when somebody typed or a turn began or ended
        self.accepting_turns = Event()  # cleared while all windows are locked
        self.accepting_turns.set()
        # Each with the version of the store that it was loaded from.
        self._open_windows: dict[str, tuple[int, OpenWindow]] = {}

    def with_access(self, access: Access) -> Runtime:
        """The same runtime, limited to the access of one person."""
        limited = copy(self.unrestricted)
        limited.store = self.unrestricted.store.with_access(access)
        limited.toolbox = limited.toolbox and limited.toolbox.of(limited.store, access.readable)
        return limited

    def note_activity(self) -> None:
        """Somebody types, or a turn begins or ends: the model stops reading in idle time."""
        self.unrestricted.last_activity = time.monotonic()

    @property
    def access(self) -> Access | None:
        """The access of the person who uses this runtime; None: no limits."""
        return self.store.access

    def search(self, text: str, *, only: SearchFilter = NO_FILTER, **options: Any) -> Sequence[RecallHit]:
        """Search all that the person may read. Takes the options of `MemorySearch.search`."""
        if self.access is not None:
            only = only.within(self.access.readable)
        return self.memory_search.search(text, only=only, **options)

    def close(self) -> None:
        for lock in list(self._locks.values()):
            if lock.acquire(timeout=STOP_TIMEOUT):
                lock.release()
        self.drafts.close()
        self.memory_search.close()
        for engine in self.engines:
            engine.close()
        self.store.close()

    # The model

    @property
    def default_model(self) -> LoadedModel:
        return self.state.loaded

    @property
    def engine(self) -> Engine:
        return self.default_model.engine

    @property
    def calibration(self) -> Calibration:
        return self.default_model.calibration

    @property
    def engines(self) -> list[Engine]:
        """All open engines."""
        return [self.engine, *(model.engine for model in list(self.models_by_engine.values()))]

    def model_for_settings(self, settings: Settings) -> LoadedModel:
        """The model of a window with these settings. If its engine is not open yet: the default model, for reading only."""
        model = self._model_chosen_in(settings)
        local_tokenizer = self.state.local_tokenizer
        return (
            local_tokenizer if settings.private and model.engine.info.elsewhere and local_tokenizer else model
        )

    def _model_chosen_in(self, settings: Settings) -> LoadedModel:
        return self.models_by_engine.get(settings.engine_name, self.default_model)

    def model_for_window(self, window_id: str) -> LoadedModel:
        return self.model_for_settings(self.settings(self.window(window_id)))

    def open_engine_for(self, window_id: str) -> None:
        """Open the engine that the window has chosen. Raises an error if there is no model."""
        self.store.check_writes(window_id)
        record = self.window(window_id)
        settings = self.settings(record)
        if name := settings.engine_name:
            urls = {engine.name: engine.url for engine in self.engine_list or ()}
            # Before anything is sent to the server.
            check_private(record, settings, remote_host(urls.get(name, "")))
            self._open_chosen(name)
        else:
            if isinstance(self.state.error, ServerFailed):  # another thread may have opened it
                self.retry_loading()
            self.check_model_loaded()
        check_private(record, settings, self._model_chosen_in(settings).engine.info.elsewhere)

    def _open_chosen(self, name: str) -> None:
        with self._opening.setdefault(name, Lock()):
            if name in self.models_by_engine:
                return
            if self.open_other is None:
                raise BadInput("Windows cannot choose their engine here.")
            engine, calibration = self.open_other(name)
            self.models_by_engine[name] = self._loaded_model(engine, calibration)
        if calibration.pending:
            self.calibrate_later(name, engine)

    def use_local_tokenizer(self, engine: Engine) -> None:
        """Use this engine to count the tokens of private windows whose model is on another machine."""
        self.state.local_tokenizer = self._loaded_model(engine, NOT_CALIBRATED)

    def close_engine(self, name: str) -> None:
        """Close an engine; its windows open it again with their next turn."""
        with self._opening.setdefault(name, Lock()):
            if any(open_window.settings.engine_name == name for open_window in self.busy_windows.values()):
                raise WindowBusy(f"{name} is answering. Stop that first, or wait for it.")
            model = self.models_by_engine.pop(name, None)
        if model is not None:
            model.engine.close()

    def is_private(self, window_id: str) -> bool:
        """Whether text of a window must not be sent to another machine."""
        try:
            return self.settings(self.unrestricted.store.window(window_id)).private
        except UnknownWindow:
            return False

    def _loaded_model(self, engine: Engine, calibration: Calibration) -> LoadedModel:
        tools = self.toolbox.declarations() if self.toolbox else ()
        return LoadedModel(engine, calibration, PromptBuilder(engine, tools))

    def change_engine(
        self, engine: Engine, calibration: Calibration, *, stop_replies: Callable[[], object]
    ) -> Engine:
        """Use another model in all windows; running replies end, and their tokens so far are kept. Returns the old
        engine."""
        before = self.engine
        with self._lock_all(stop_replies):
            self.state.loaded, self.state.error = self._loaded_model(engine, calibration), None
            self._open_windows.clear()
        return before

    def use_calibration(self, engine: Engine, calibration: Calibration) -> bool:
        """Use these retrieval heads from the next turn on, if the model is still the one they were found in."""
        name = next((name for name, one in list(self.models_by_engine.items()) if one.engine is engine), "")
        with self._opening.setdefault(name, Lock()):
            model = self.models_by_engine.get(name, self.default_model)
            if model.engine is not engine:
                return False
            model = replace(model, calibration=calibration)
            if name:
                self.models_by_engine[name] = model
            else:
                self.state.loaded = model
        self._open_windows.clear()
        self._recorders.clear()  # a recording uses the heads known at its start, so new ones are begun
        return True

    def check_model_loaded(self) -> None:
        """Raise an error if there is no model."""
        if self.state.error is not None:
            raise self.state.error

    # Windows

    def window(self, window_id: str) -> WindowRecord:
        """The record of a window. Raises UnknownWindow if it was deleted."""
        record = self.store.window(window_id)
        if record.deleted is not None:
            raise UnknownWindow(f"Window {record.name!r} was deleted.")
        return record

    def window_names(self) -> dict[str, str]:
        """The names of all windows, deleted ones too, by id."""
        return self.store.window_names()

    def settings(self, window: WindowRecord | None = None) -> Settings:
        """The settings for all windows of the person, or of one window."""
        person = self.access.person if self.access else OWNER
        return effective_settings(self.unrestricted.store, window, self._defaults, person)

    def people_names(self) -> frozenset[str]:
        return frozenset({OWNER_NAME, *(person.name for person in self.unrestricted.store.people())})

    def _name_of(self, person: str) -> str:
        return next((one.name for one in self.unrestricted.store.people() if one.id == person), OWNER_NAME)

    def sharing_of(self, window: WindowRecord) -> Sharing:
        if self.access is None:
            return Sharing("", True)
        owner_name = "" if window.owner == self.access.person else self._name_of(window.owner)
        return Sharing(owner_name, window.id in self.access.writable)

    def speaker_name(self, window: WindowRecord) -> str:
        """The user's name, if several people write in a window; otherwise empty."""
        if self.access is None:
            return ""
        person = self.access.person
        if window.owner == person:
            shares = self.unrestricted.store.shares()
            with_writers = (share for share in shares if share.owner == window.owner and share.writes)
            if not any(share.window in ("", window.id) for share in with_writers):
                return ""  # nobody else writes here
            if person == OWNER and window.user_name != PERSONA["user_name"]:
                return ""  # the window has a name for its user
        return self._name_of(person)

    def filter_readable(self, windows: Collection[str]) -> list[str]:
        """Those of these windows that the person may read."""
        return [id for id in windows if self.access is None or id in self.access.readable]

    def readable_by_readers(self, record: WindowRecord) -> frozenset[str] | None:
        """Ids of the windows that everybody who reads this one may read; None: all. Only their chunks are resurrected here."""
        store = self.unrestricted.store
        if not store.several():
            return None
        readers = (record.owner, *store.readers(record.id))
        return frozenset.intersection(*(store.access_of(person).readable for person in readers))

    def toolbox_for(self, record: WindowRecord) -> Toolbox | None:
        """The tools of a window's owner. They expose the owner's notes and structured memory, so a shared window has none."""
        toolbox, store = self.unrestricted.toolbox, self.unrestricted.store
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

    def tool_format(self, settings: Settings, record: WindowRecord | None = None) -> ToolFormat:
        """How the model may call its tools in a turn.

        Small models get worse with declared tools. Notes and structured memory belong to all windows, so a model that
        may read only some windows has no tools.
        """
        engine = self.model_for_settings(settings).engine
        toolbox = self.toolbox if record is None else self.toolbox_for(record)
        if toolbox is None or not settings.tool_rounds or remote_scope(settings, engine.info) != "all":
            return "off"
        if settings.tools == "tags":
            return "tags"
        declares_tools = engine.facts.declares_tools and engine.facts.tools is not None
        is_large = engine.info.parameters >= LARGE_MODEL_PARAMETERS
        if declares_tools and (settings.tools == "native" or (settings.tools == "auto" and is_large)):
            return "native"
        return "off"

    def system_prompt(
        self, prompt_builder: PromptBuilder, record: WindowRecord, settings: Settings, tool_format: ToolFormat
    ) -> SystemPrompt:
        """The window's system prompt, with the description of the tools and an overview of the memory."""
        prompt = record.system_prompt
        if tool_format != "off" and settings.memory_tree_in_prompt and (toolbox := self.toolbox_for(record)):
            about_tools = toolbox.instructions() if tool_format == "tags" else toolbox.overview()
            prompt = f"{prompt}\n\n{about_tools}".strip()
        return prompt_builder.system_prompt(
            prompt, prompt_builder.tools_json if tool_format == "native" else ""
        )

    @contextmanager
    def exclusive(self, window_id: str) -> Iterator[None]:
        """Lock a window for one turn or change: in this process, and by a lease among all servers. Raises WindowBusy if it is
        locked already."""
        self.store.check_writes(window_id)
        with self._entering:
            if not self.accepting_turns.is_set():
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
        """Wait until no turn or change has locked a window. If another server has, wait for its next notification."""
        self.accepting_turns.wait(timeout)
        lock = self._locks.setdefault(window_id, Lock())
        with self._freed:
            if lock.locked():
                self._freed.wait_for(lambda: not lock.locked(), timeout)
            elif not isinstance(self.store.fleet, SingleProcess):
                self._freed.wait(min(timeout, REMOTE_WAIT))

    @contextmanager
    def try_lock(self, window_id: str) -> Iterator[bool]:
        """Lock a window in this process, without waiting. Yields whether it could be locked."""
        with self._entering:
            lock = self._locks.setdefault(window_id, Lock())
            free = lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._release(lock)

    @contextmanager
    def _lock_all(self, stop_replies: Callable[[], object]) -> Iterator[None]:
        """Lock all windows: no turn or change begins, and running ones are stopped and waited for."""
        with self._entering:
            self.accepting_turns.clear()
            locks = list(self._locks.values())
        acquired, deadline = [], time.monotonic() + STOP_TIMEOUT
        try:
            for lock in locks:
                while not lock.acquire(timeout=LOCK_WAIT):
                    stop_replies()
                    if time.monotonic() > deadline:
                        raise WindowBusy("A reply could not be ended in time, so the model was not changed.")
                acquired.append(lock)
            yield
        finally:
            self._release(*acquired)
            self.accepting_turns.set()

    @contextmanager
    def exclusive_change(self, window_id: str) -> Iterator[None]:
        """Lock a window for a change by the user, and notify its watchers afterwards."""
        with self.exclusive(window_id):
            self.window(window_id)
            yield
        self.hubs.of(window_id).publish(WindowChanged())

    def delete(self, keys: Sequence[ChunkKey]) -> tuple[str, ...]:
        """Delete chunks, also from the KV caches of all engines. Returns the windows where they were live."""
        holders = self.store.holders(keys)
        spans = [
            (min(part.chunk.start for part in self.store.turn(record.key.turn_id)), record.chunk.stop)
            for record in self.store.chunks_by_key(keys)
        ]
        for one in self.store.chunks_by_key(keys):  # its own window may have been read in idle time only
            holders.setdefault(one.window, False)
        windows = self.store.delete(keys, now=self.now())
        for engine in self.engines:
            engine.erase(spans, list(holders))
            for window, other_tokens in holders.items():
                if other_tokens:  # retokenized there, so some labels in its KV cache may have no positions
                    engine.forget(window)
        self.store.fleet.tell(holders, "erased")
        return windows

    def publish_changed(self, windows: Iterable[str]) -> None:
        """Notify watchers of these windows, on any server, that the content has changed."""
        window_ids = list(windows)
        for window_id in window_ids:
            self.hubs.of(window_id).publish(WindowChanged())
        self.store.fleet.tell(window_ids)

    def publish_deleted(self, windows: Iterable[str]) -> None:
        """Notify watchers of these windows, on any server, that they were deleted."""
        window_ids = list(windows)
        for window_id in window_ids:
            self.hubs.drop(window_id)
        self.store.fleet.tell(window_ids, "deleted")

    def on_remote_change(self, change: RemoteChange) -> None:
        """Another server has changed something: notify the watchers here."""
        if change.event == "erased" and change.window is not None:  # text in the window's cache was deleted
            for engine in self.engines:
                engine.erase((), [change.window])
                engine.forget(change.window)
        elif change.window is None:
            self.hubs.publish(WindowChanged())
        elif change.event == "deleted":
            self.hubs.drop(change.window)
        else:
            self.hubs.publish(WindowChanged(), change.window)
        with self._freed:
            self._freed.notify_all()

    def report_unstored(self, open_window: OpenWindow, error: str) -> None:
        """Publish why the reply is not stored yet. An empty error: it is stored now."""
        if open_window.storage_error != error:
            open_window.storage_error = error
            self.hubs.of(open_window.record.id).publish(ReplyNotStored(error))

    # Open windows

    def window_for_reading(self, window_id: str) -> OpenWindow:
        """The open window, for reading only: that of the running turn, or the one loaded last, if the store has not changed
        since then."""
        self.store.check_reads(window_id)
        running = self.busy_windows.get(window_id)
        if running is not None:
            return running
        version = self.store.version()
        loaded_version, open_window = self._open_windows.get(window_id, (None, None))
        if (
            open_window is None
            or loaded_version != version
            or open_window.engine is not self.model_for_settings(open_window.settings).engine
        ):
            open_window = self._open(window_id, read_only=True)
            self._open_windows.pop(window_id, None)
            self._open_windows[window_id] = version, open_window
            for oldest in list(self._open_windows)[:-MAX_OPEN_WINDOWS]:
                self._open_windows.pop(oldest, None)
        return open_window

    def window_for_change(self, window_id: str) -> OpenWindow:
        """The open window, for a caller that has locked it by `exclusive`. It is not given to other callers
        until the lock is released."""
        self.store.check_writes(window_id)
        open_window = self.window_for_reading(window_id)
        self._open_windows.pop(window_id, None)
        if open_window.engine is not self.model_for_settings(open_window.settings).engine:
            open_window = self._open(window_id)  # the model's server could not be reached when it was loaded
        open_window.store_retokenized_chunks(now=self.now())
        return open_window

    def load_window(self, window_id: str) -> OpenWindow:
        """A window for reading only, which is not kept: so it does not displace another open window."""
        return self.busy_windows.get(window_id) or self._open(window_id, read_only=True)

    def _open(self, window_id: str, *, read_only: bool = False) -> OpenWindow:
        """Load a window. `read_only`: if the model's server cannot be reached, the local tokenizer is used instead."""
        record = self.window(window_id)
        settings = self.settings(record)
        model = self.model_for_settings(settings)
        try:
            return self._opened(record, settings, model)
        except EngineError as error:
            if model is not self.model_for_settings(settings):  # it has just been changed
                return self._open(window_id, read_only=read_only)
            local_tokenizer = self.state.local_tokenizer
            if not (read_only and local_tokenizer and isinstance(error, ServerFailed)):
                raise
            return self._opened(record, settings, local_tokenizer)

    def _opened(self, record: WindowRecord, settings: Settings, model: LoadedModel) -> OpenWindow:
        readable = self.readable_by_readers(record)
        return OpenWindow.open(
            record,
            settings,
            self.system_prompt(model.prompt_builder, record, settings, self.tool_format(settings, record)),
            store=self.unrestricted.store,  # the caller has checked the access
            engine=model.engine,
            prompt_builder=model.prompt_builder,
            window_names=self.unrestricted.store.window_names(
                reader=None if readable is None else record.owner
            ),
            calibration=model.calibration,
            is_private=self.is_private,
            readable_by_readers=readable,
            people=frozenset() if readable is None else self.people_names(),
        )

    def recording(self, window_id: str, settings: Settings) -> TurnRecorder | None:
        """The recorder of the window's turns, if they are recorded."""
        if settings.capture == "off" or self.new_recorder is None:
            return None
        model = self.model_for_settings(settings)
        key = _RecorderKey(window_id, settings.capture, settings.capture_megabytes, model.engine.info.name)
        if key not in self._recorders:
            try:
                self._recorders[key] = self.new_recorder(window_id, settings, model.engine, model.calibration)
            except (HaloWeaveError, OSError) as error:  # turns work without it
                log.warning("Window %s is not recorded: %s", window_id, error)
                return None
        return self._recorders[key]

    def delete_recordings(self, window_id: str | None = None) -> None:
        """Delete the recordings of a window, or of all."""
        for key in [key for key in self._recorders if window_id in (None, key.window_id)]:
            del self._recorders[key]
        if self.delete_recording_files:
            self.delete_recording_files(window_id)

    def remove_timestamps(self) -> None:
        """Remove time stamps at the beginning of replies that earlier versions have stored."""
        with suppress(StoreError):  # at the next start, if the store is busy or full
            if self.unrestricted.store.remove_timestamps(now=self.now()):
                self.memory_search.embed_soon()

    def split_long_chunks(self) -> None:
        """Split pruned chunks that are too long to be resurrected whole, so that parts of them fit."""
        settings = self.unrestricted.settings()
        most, budget = settings.max_chunk_tokens, settings.resurrection_budget
        if budget is not None:
            most = min(most, max(settings.min_chunk_tokens, budget // 2))
        with suppress(StoreError):  # later, if the store is busy or full
            if self.unrestricted.store.split_long_chunks(most, now=self.now()):
                self.memory_search.embed_soon()


def effective_settings(
    store: SqlStore, window: WindowRecord | None, defaults: Settings, person: str = OWNER
) -> Settings:
    """The default settings, changed by those stored for all windows of a person, then by the window's own."""
    person = person if window is None else window.owner
    person_store = store.for_owner(person) if person != OWNER else store
    shared = defaults.restored(person_store.settings().get(SHARED_KEY))
    return shared if window is None else shared.restored(window.settings)
