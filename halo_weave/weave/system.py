"""What the parts of a Weave share: engine, store, recall and tools, the settings, and the windows at work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from threading import Event, Lock
from typing import Literal

from halo_weave.core.heads import NOT_CALIBRATED, Calibration
from halo_weave.core.tokens import ChunkKey
from halo_weave.engine_list import EngineList
from halo_weave.errors import (
    BadInput,
    EngineError,
    HaloWeaveError,
    ServerFailed,
    StoreError,
    UnknownWindow,
    WindowBusy,
)
from halo_weave.fleet import News
from halo_weave.keepsakes.structured_memory import StructuredMemory
from halo_weave.keepsakes.tools import Toolbox
from halo_weave.ports import Engine, RecallPort, machine_of
from halo_weave.records import OWNER, OWNER_NAME, WindowRecord
from halo_weave.settings import Settings
from halo_weave.store import Store
from halo_weave.weave.desk import Desk
from halo_weave.weave.drafts import DraftWriter
from halo_weave.weave.effective import stored_settings
from halo_weave.weave.events import ReplyUnstored, WindowChanged
from halo_weave.weave.hub import Hubs
from halo_weave.weave.leaving import check_private, leaving
from halo_weave.weave.prompt import Scribe, SystemPrompt
from halo_weave.weave.taping import DropTapes, NewTape, TurnTape

log = logging.getLogger(__name__)
MOST_DESKS = 16  # working sets that are kept between turns
LARGE = (
    7_000_000_000  # parameters from which on a model knows by itself when to use its tools (docs/tools.md)
)
# The engine of a name. Its calibration is pending if that was not made before.
OpenOther = Callable[[str], tuple[Engine, Calibration]]
CalibrateLater = Callable[[str, Engine], None]
MOMENT = 0.05  # seconds that whoever enters a window waits, since it may be held only to tell something (`untouched`)
PATIENCE = 30.0  # seconds that replies get to end when the model changes


@dataclass(frozen=True, slots=True)
class ModelAtWork:
    """A model with what follows from it; changed as one."""

    engine: Engine
    calibration: Calibration
    scribe: Scribe


class System:
    def __init__(
        self,
        engine: Engine,
        store: Store,
        recall: RecallPort,
        toolbox: Toolbox | None,
        *,
        defaults: Settings,
        calibration: Calibration,
        now: Callable[[], datetime],
    ) -> None:
        self.store, self.recall, self.toolbox, self.now = store, recall, toolbox, now
        self.model = self._at_work(engine, calibration)
        self.others: dict[str, ModelAtWork] = {}  # of windows that have chosen another engine, by its name
        self.listed: EngineList | None = None
        self.open_other: OpenOther | None = None
        self.calibrate_later: CalibrateLater = lambda name, engine: None
        self.load_again: Callable[[], None] = lambda: None
        self.reopen: Callable[[], object] = lambda: None
        self.silent: ModelAtWork | None = None
        self._opening: dict[str, Lock] = {}  # by name: one that does not answer holds up no other
        self.silence: HaloWeaveError | None = None  # why nobody can speak, while there is no model
        self.hubs = Hubs()
        self.drafts = DraftWriter(store, now)
        # By the monotonic clock: when replies that cannot be stored are not tried any more.
        self.give_up = inf
        self.at_work: dict[str, Desk] = {}  # of the turns under way
        self.new_tape: NewTape | None = None  # for windows that are captured
        self.erase_tapes: DropTapes | None = None
        self._tapes: dict[tuple[str, str, int, str], TurnTape] = {}
        self._defaults = defaults
        self._locks: dict[str, Lock] = {}
        self._entering = Lock()
        self.open = Event()  # cleared while all windows are held
        self.open.set()
        self._desks: dict[str, tuple[int, Desk]] = {}  # with the store's version they were loaded from

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
    def engine(self) -> Engine:
        return self.model.engine

    @property
    def calibration(self) -> Calibration:
        return self.model.calibration

    @property
    def engines(self) -> list[Engine]:
        """All that are open."""
        return [self.engine, *(model.engine for model in list(self.others.values()))]

    def model_of(self, settings: Settings) -> ModelAtWork:
        """The model that answers in a window. One that is not open yet is looked at with that of all windows."""
        model = self._chosen(settings)
        return self.silent if settings.private and model.engine.info.elsewhere and self.silent else model

    def _chosen(self, settings: Settings) -> ModelAtWork:
        return self.others.get(settings.answered_by, self.model)

    def model_in(self, window_id: str) -> ModelAtWork:
        return self.model_of(self.settings(self.window(window_id)))

    def ready(self, window_id: str) -> None:
        """Refuse what needs a model where there is none. An engine that the window has chosen is opened."""
        record = self.window(window_id)
        settings = self.settings(record)
        if name := settings.answered_by:
            known = {one.name: one.url for one in self.listed or ()}
            check_private(
                record, settings, machine_of(known.get(name, ""))
            )  # before it is even asked for its model
            self._open_chosen(name)
        else:
            if isinstance(self.silence, ServerFailed):  # by now it may be there
                self.load_again()
            self.check_speaks()
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

    def use_silent(self, engine: Engine) -> None:
        """This one counts the words of private windows whose model is elsewhere: they are looked at here alone."""
        self.silent = self._at_work(engine, NOT_CALIBRATED)

    def close_other(self, name: str) -> None:
        """Let go of an engine; its windows open it again when they speak."""
        with self._opening.setdefault(name, Lock()):
            if any(desk.settings.answered_by == name for desk in self.at_work.values()):
                raise WindowBusy(f"{name} is answering. Stop that first, or wait for it.")
            model = self.others.pop(name, None)
        if model is not None:
            model.engine.close()

    def is_private(self, window_id: str) -> bool:
        """Whether what was said in a window must not reach another machine."""
        try:
            return self.settings(self.store.window(window_id)).private
        except UnknownWindow:
            return False

    def _at_work(self, engine: Engine, calibration: Calibration) -> ModelAtWork:
        tools = self.toolbox.declarations() if self.toolbox else ()
        return ModelAtWork(engine, calibration, Scribe(engine, tools))

    def change_engine(
        self, engine: Engine, calibration: Calibration, *, stop_replies: Callable[[], object]
    ) -> Engine:
        """Every window goes on with another model; what was shown of replies under way is kept. Returns the old engine."""
        before = self.engine
        with self._all_alone(stop_replies):
            self.model, self.silence = self._at_work(engine, calibration), None
            self._desks.clear()
        return before

    def use_calibration(self, engine: Engine, calibration: Calibration) -> bool:
        """From the next turn on, windows are lit by these heads, if the model is still the one they were found in."""
        name = next((name for name, one in list(self.others.items()) if one.engine is engine), "")
        with self._opening.setdefault(name, Lock()):
            model = self.others.get(name, self.model)
            if model.engine is not engine:
                return False
            model = replace(model, calibration=calibration)
            if name:
                self.others[name] = model
            else:
                self.model = model
        self._desks.clear()
        self._tapes.clear()  # a capture holds rows of the heads that were known when it began
        return True

    def check_speaks(self) -> None:
        """Refuse what needs a model while there is none."""
        if self.silence is not None:
            raise self.silence

    # Windows

    def window(self, window_id: str) -> WindowRecord:
        """A window that was not deleted."""
        record = self.store.window(window_id)
        if record.deleted is not None:
            raise UnknownWindow(f"Window {record.name!r} was deleted.")
        return record

    def names(self) -> dict[str, str]:
        """The names of all windows that ever were, by id."""
        return self.store.window_names()

    def settings(self, window: WindowRecord | None = None, *, owner: str = OWNER) -> Settings:
        """What holds for all windows of someone, or in one window."""
        return stored_settings(self.store, window, self._defaults, owner)

    @property
    def root(self) -> System:
        """The system itself, whoever uses it."""
        return self

    def people_names(self) -> frozenset[str]:
        return frozenset({OWNER_NAME, *(one.name for one in self.store.people())})

    def access(self, window: WindowRecord) -> tuple[str, bool]:
        """The name of whoever shares a window with the one who asks, empty if it is theirs; whether they may write there."""
        return "", True

    def speaks_as(self, window: WindowRecord) -> str:
        """The name of the one who asks, if several people write in a window; empty: the window's own for its user."""
        return ""

    def mine(self, windows: Collection[str]) -> list[str]:
        """Those of these windows that may be told."""
        return list(windows)

    def check_writes(self, window_id: str) -> None:
        """Refuse what only those may do who may write in a window."""

    def check_owns(self, window_id: str) -> None:
        """Refuse what only the one may do whom a window belongs to."""

    def reach_in(self, record: WindowRecord) -> frozenset[str] | None:
        """The windows whose talk may wake up in one: those that everybody who may read it may read. None: all."""
        if not self.store.several():
            return None
        readers = (record.owner, *self.store.readers(record.id))
        return frozenset.intersection(*(self.store.reach(one).readable for one in readers))

    def toolbox_in(self, record: WindowRecord) -> Toolbox | None:
        """The tools of a window's owner. They tell of keepsakes, so a window that others may read has none."""
        if self.toolbox is None or not self.store.several():
            return self.toolbox
        if self.store.readers(record.id):
            return None
        return self.toolbox.of(self.store.kept_by(record.owner)) if record.owner else self.toolbox

    def tree_in(self, desk: Desk) -> StructuredMemory | None:
        """The structured memory that a window may use: it stays here where only some words may leave."""
        if leaving(desk.settings, desk.engine.info) != "all":
            return None
        toolbox = self.toolbox_in(desk.record)
        return toolbox.tree if toolbox else None

    def tool_form(
        self, settings: Settings, record: WindowRecord | None = None
    ) -> Literal["native", "tags", "off"]:
        """How the model may call its tools in a turn. Smaller models are spoiled by tools that are declared to them.

        Notes and structured memory belong to all windows: they stay here where only some words may leave.
        """
        engine = self.model_of(settings).engine
        if leaving(settings, engine.info) != "all":
            return "off"
        facts = engine.facts
        toolbox = self.toolbox if record is None else self.toolbox_in(record)
        native = facts.declares_tools and facts.tools is not None
        match settings.tools:
            case "tags" if toolbox and settings.tool_rounds:
                return "tags"
            case "native" if toolbox and settings.tool_rounds and native:
                return "native"
            case "auto" if toolbox and settings.tool_rounds and native and engine.info.parameters >= LARGE:
                return "native"
        return "off"

    def system_prompt(
        self, scribe: Scribe, record: WindowRecord, settings: Settings, form: str
    ) -> SystemPrompt:
        """The window's own, with what the model is told of its tools and of its memory."""
        prompt = record.system_prompt
        if form != "off" and settings.memory_tree_in_prompt and (toolbox := self.toolbox_in(record)):
            told = toolbox.instructions() if form == "tags" else toolbox.overview()
            prompt = f"{prompt}\n\n{told}".strip()
        return scribe.system(prompt, scribe.declared if form == "native" else "")

    @contextmanager
    def alone(self, window_id: str) -> Iterator[None]:
        """Only one turn or change at a time in a window, among all servers: a second one is refused with WindowBusy."""
        with self._entering:
            if not self.open.is_set():
                raise WindowBusy("The model is being changed. Try again in a moment.")
            lock = self._locks.setdefault(window_id, Lock())
        if not lock.acquire(timeout=MOMENT):
            desk = self.at_work.get(window_id)
            if desk is not None and desk.unstored and desk.window.reply is None:
                raise WindowBusy(desk.unstored)
            raise WindowBusy("This window is being written to. Stop the reply first, or wait for it.")
        try:
            with self.store.fleet.lease(window_id):
                yield
        finally:
            lock.release()

    @contextmanager
    def untouched(self, window_id: str) -> Iterator[bool]:
        """While the block runs, no turn or change begins here in the window. False if one is under way."""
        with self._entering:
            lock = self._locks.setdefault(window_id, Lock())
            free = lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                lock.release()

    @contextmanager
    def _all_alone(self, stop_replies: Callable[[], object]) -> Iterator[None]:
        """All windows at once: nothing begins in them, and what is under way is stopped and waited for."""
        with self._entering:
            self.open.clear()
            locks = list(self._locks.values())
        held, end = [], time.monotonic() + PATIENCE
        try:
            for lock in locks:
                while not lock.acquire(timeout=0.05):
                    stop_replies()
                    if time.monotonic() > end:
                        raise WindowBusy("A reply could not be ended in time, so the model was not changed.")
                held.append(lock)
            yield
        finally:
            for lock in held:
                lock.release()
            self.open.set()

    @contextmanager
    def changing(self, window_id: str) -> Iterator[None]:
        """The window alone, for a change by the user; those who watch it are told after it."""
        with self.alone(window_id):
            self.window(window_id)
            yield
        self.hubs.of(window_id).publish(WindowChanged())

    def delete(self, keys: Sequence[ChunkKey]) -> tuple[str, ...]:
        """Delete chunks, and all that the caches of the engines hold of them. Returns where they were live."""
        held = self.store.holders(keys)
        spans = [
            (min(part.chunk.start for part in self.store.turn(one.key.turn_id)), one.chunk.stop)
            for one in self.store.chunks_by_key(keys)
        ]
        windows = self.store.delete(keys, now=self.now())
        for engine in self.engines:
            engine.erase(spans, [window for window, other_tokens in held.items() if not other_tokens])
            for window, other_tokens in held.items():
                if other_tokens:  # there positions are no labels
                    engine.forget(window)
        self.store.fleet.tell(held, "erased")
        return windows

    def changed(self, windows: Iterable[str]) -> None:
        """Tell those who watch these windows, on any server, that they are not what they last saw."""
        each = list(windows)
        for window_id in each:
            self.hubs.of(window_id).publish(WindowChanged())
        self.store.fleet.tell(each)

    def dropped(self, windows: Iterable[str]) -> None:
        """Tell those who watch these windows, on any server, that they are gone."""
        each = list(windows)
        for window_id in each:
            self.hubs.drop(window_id)
        self.store.fleet.tell(each, "deleted")

    def hear(self, news: News) -> None:
        """Another server has changed something: those who watch it here are told."""
        if news.event == "erased" and news.window is not None:  # text that the window has read was deleted
            for engine in self.engines:
                engine.forget(news.window)
        elif news.window is None:
            self.hubs.publish(WindowChanged())
        elif news.event == "deleted":
            self.hubs.drop(news.window)
        else:
            self.hubs.publish(WindowChanged(), news.window)

    def note_unstored(self, desk: Desk, sentence: str) -> None:
        """Tell those who watch why the reply is not stored yet, or with nothing that it is."""
        if desk.unstored != sentence:
            desk.unstored = sentence
            self.hubs.of(desk.record.id).publish(ReplyUnstored(sentence))

    # Desks

    def desk(self, window_id: str) -> Desk:
        """The window's working set, to look at: of the turn under way, or the one loaded last if it still holds."""
        at_work = self.at_work.get(window_id)
        if at_work is not None:
            return at_work
        version = self.store.version()
        known, desk = self._desks.get(window_id, (None, None))
        if desk is None or known != version or desk.engine is not self.model_of(desk.settings).engine:
            desk = self._open(window_id, looking=True)
            self._desks.pop(window_id, None)
            self._desks[window_id] = version, desk
            for oldest in list(self._desks)[:-MOST_DESKS]:
                self._desks.pop(oldest, None)
        return desk

    def desk_to_change(self, window_id: str) -> Desk:
        """The window's working set for whoever has it `alone`. Nobody else gets this desk any more."""
        desk = self.desk(window_id)
        self._desks.pop(window_id, None)
        if desk.engine is not self.model_of(desk.settings).engine:  # its server could not be reached then
            desk = self._open(window_id)
        desk.begin(now=self.now())
        return desk

    def _open(self, window_id: str, *, looking: bool = False) -> Desk:
        """`looking`: where the model's server cannot be reached, words are counted here."""
        record = self.window(window_id)
        settings = self.settings(record)
        model = self.model_of(settings)
        try:
            return self._opened(record, settings, model)
        except EngineError as error:
            if model is not self.model_of(settings):  # it was changed in between
                return self._open(window_id, looking=looking)
            if not (looking and self.silent and isinstance(error, ServerFailed)):
                raise
            return self._opened(record, settings, self.silent)

    def _opened(self, record: WindowRecord, settings: Settings, model: ModelAtWork) -> Desk:
        form, reach = self.tool_form(settings, record), self.reach_in(record)
        return Desk.open(
            record,
            settings,
            self.system_prompt(model.scribe, record, settings, form),
            store=self.store,
            engine=model.engine,
            scribe=model.scribe,
            names=self.names() if reach is None else self.store.window_names(reader=record.owner),
            calibration=model.calibration,
            is_private=self.is_private,
            reach=reach,
            people=frozenset() if reach is None else self.people_names(),
        )

    def tape(self, window_id: str, settings: Settings) -> TurnTape | None:
        """What takes the window's turns down, if it is captured."""
        if settings.capture == "off" or self.new_tape is None:
            return None
        model = self.model_of(settings)
        key = window_id, settings.capture, settings.capture_megabytes, model.engine.info.name
        if key not in self._tapes:
            try:
                self._tapes[key] = self.new_tape(window_id, settings, model.engine, model.calibration)
            except (HaloWeaveError, OSError) as error:  # talking goes on without it
                log.warning("%s is not captured: %s", window_id, error)
                return None
        return self._tapes[key]

    def drop_tapes(self, window_id: str | None = None) -> None:
        """Delete what was captured of a window, or of all."""
        self._tapes = {key: tape for key, tape in self._tapes.items() if window_id not in (None, key[0])}
        if self.erase_tapes:
            self.erase_tapes(window_id)

    def remove_stamps(self) -> None:
        """Replies that earlier versions stored with a time stamp lose it."""
        with suppress(StoreError):  # at the next start, if the store is busy or full
            if self.store.remove_stamps(now=self.now()):
                self.recall.note_said()

    def divide_long(self) -> None:
        """What sleeps and is too long to wake up whole is cut into parts: then those that fit wake up, at their places."""
        settings = self.settings(None)
        most, budget = settings.max_chunk_tokens, settings.resurrection_budget
        if budget is not None:
            most = min(most, max(settings.min_chunk_tokens, budget // 2))
        with suppress(StoreError):  # another time, if the store is busy or full
            if self.store.divide_long(most, now=self.now()):
                self.recall.note_said()
