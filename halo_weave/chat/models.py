"""The loaded model, changing it, and the named engines that windows can choose."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread, current_thread
from typing import Literal

from halo_weave.chat.events import INTERNAL_ERROR_MESSAGE, ChangeStage, ModelChange, WindowChanged
from halo_weave.chat.privacy import remote_scope
from halo_weave.chat.reply_storage import recover_drafts
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.turn_runner import Turns
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, PENDING, Calibration
from halo_weave.engines.base import Engine, ModelInfo, remote_host
from halo_weave.engines.engine_list import EngineList, NamedEngine
from halo_weave.errors import (
    BadInput,
    HaloWeaveError,
    ModelError,
    ModelLoading,
    ModelNotFound,
    ServerFailed,
    StoreError,
    WindowBusy,
)
from halo_weave.settings import RemoteScope

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
# Opens the model of a name, pulled if it is not here; None: the one that the user started with. With its calibration, if
# that was made before.
OpenModel = Callable[[str | None, Progress], tuple[Engine, Calibration | None]]
Calibrate = Callable[[Engine, Progress], Calibration]
RememberModel = Callable[[str], None]  # the user's choice, for the next start
PROGRESS_INTERVAL = 0.2  # seconds between two reports of progress
STOP_TIMEOUT = 30.0  # seconds that a model under way gets to be let go of when the program ends


class _Stopped(Exception):
    """The user does not want the model any more that is on its way."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The model in use, and the one on its way or the last that could not be had."""

    state: Literal["ready", "loading", "missing"]
    info: ModelInfo
    efforts: tuple[
        str, ...
    ]  # how much it may think, as far as its template knows; with "off" if it can be silent
    thinks: bool
    native_tools: bool  # whether its template declares tools
    light: str  # where it is seen what it takes its words from
    change: ModelChange | None = None


class Models:
    """`weave.models`."""

    def __init__(
        self,
        system: Runtime,
        turns: Turns,
        open_model: OpenModel | None,
        calibrate: Calibrate | None,
        remember: RememberModel | None,
    ) -> None:
        self._system, self._turns = system, turns
        self._open, self._make_calibration, self._remember = open_model, calibrate, remember
        self._calibrations: list[Thread] = []
        self._calibrating = Lock()  # one engine after the other
        system.calibrate_later, system.load_again = self._calibrate_later, self.load
        system.reopen = lambda: self._begin(None)
        self._lock = Lock()
        self._under_way: Thread | None = None
        self._unwanted = Event()
        self._closed = False
        self._news: ModelChange | None = None
        self._told = 0.0
        self.failure: HaloWeaveError | None = None  # why there is no model, or why the last was not taken
        if not system.engine.info.abilities.speaks:
            system.state.error = ModelLoading("The model is being loaded.")

    def state(self) -> ModelState:
        model, news = self._system.model, self._news
        info, facts = model.engine.info, model.engine.facts
        ready = info.abilities.speaks
        loading = isinstance(self._system.state.error, ModelLoading)
        efforts = [*facts.thinking, *facts.thinking_words]
        return ModelState(
            "ready" if ready else "loading" if loading else "missing",
            info,
            tuple(dict.fromkeys(efforts)),
            facts.marks is not None,
            facts.declares_tools and facts.tools is not None,
            model.calibration.sentence,
            news,
        )

    def check_model_loaded(self) -> None:
        """Refuse what needs a model while there is none."""
        self._system.check_model_loaded()

    # Changing

    def load(self) -> None:
        """Open the model that the user started with, unless there is one. Waits for it; `failure` says what went wrong."""
        if not self._system.engine.info.abilities.speaks and (thread := self._begin(None)):
            thread.join()

    def choose(self, name: str, progress: Progress = lambda what, done, total: None) -> Thread:
        """Begin to change the model; how far it is and what came of it is told in the events of all windows."""
        thread = self._begin(name, progress)
        if thread is None:
            wanted = self._news.model if self._news else ""
            raise WindowBusy(
                f"{wanted or 'The model'} is on its way already. Stop that first, or wait for it."
            )
        return thread

    def change(self, name: str, progress: Progress) -> None:
        """Change the model, and wait for it."""
        self.choose(name, progress).join()
        if self.failure:
            raise self.failure

    def stop(self) -> bool:
        """Leave the model that is on its way; what was downloaded of it is kept. Whether there was one."""
        with self._lock:
            going = self._loading
        if going:
            self._unwanted.set()
        return going

    def close(self) -> None:
        self._closed = True
        self._unwanted.set()
        for thread in (self._under_way, *self._calibrations):
            if thread is not None and thread is not current_thread():
                thread.join(STOP_TIMEOUT)

    def _begin(self, name: str | None, also: Progress = lambda what, done, total: None) -> Thread | None:
        """A thread that opens the model; None if another one is under way."""
        with self._lock:
            if self._loading:
                return None
            self._unwanted.clear()
            self._under_way = Thread(target=self._run, args=(name, also), name="model", daemon=True)
            self._under_way.start()
            return self._under_way

    def _run(self, name: str | None, also: Progress) -> None:
        wanted = name or ""

        def progress(what: str, done: int, total: int) -> None:
            if self._unwanted.is_set():
                raise _Stopped
            also(what, done, total)
            self._tell(wanted, "loading", what, done / total if total else None)

        self.failure = None
        if self._system.state.error is not None:
            self._system.state.error = ModelLoading("The model is being loaded.")
        self._tell(wanted, "loading", "Looking for the model")
        try:
            calibrated = self._change(name, progress)
        except _Stopped:
            now = self._system.engine.info.name
            stays = f"{now} stays." if now else "There is no model yet: choose one."
            self._fail(wanted, "stopped", ModelNotFound(f"That was stopped. {stays}"))
        except HaloWeaveError as error:
            self._fail(wanted, "failed", error)
        except Exception:
            log.exception("The model could not be changed.")
            self._fail(wanted, "failed", ModelError(INTERNAL_ERROR_MESSAGE))
        else:
            engine = self._system.engine
            self._tell(wanted, "done", f"{engine.info.name} is ready.")
            if not calibrated:
                self._calibrate_later(wanted, engine)

    @property
    def _loading(self) -> bool:
        return self._under_way is not None and self._under_way.is_alive()

    def _calibrate_later(self, wanted: str, engine: Engine) -> None:
        """Begin to find out where the light of a model comes from; it speaks meanwhile."""
        if self._make_calibration is None:
            return
        thread = Thread(target=self._calibrate, args=(wanted, engine), name="calibration", daemon=True)
        self._calibrations = [*(one for one in self._calibrations if one.is_alive()), thread]
        thread.start()

    def _calibrate(self, wanted: str, engine: Engine) -> None:
        """Between the turns, and while no other model is on its way."""

        def unwanted() -> bool:
            return self._closed or not any(one is engine for one in self._system.engines)

        def progress(what: str, done: int, total: int) -> None:
            while (self._turns.generating() or self._loading) and not unwanted():
                time.sleep(PROGRESS_INTERVAL)
            if unwanted():
                raise _Stopped
            self._tell(wanted, "calibrating", what, done / total if total else None)

        assert self._make_calibration is not None
        with self._calibrating, suppress(_Stopped):
            found = self._make_calibration(engine, progress)
            if not self._closed and self._system.use_calibration(engine, found):
                self._tell(wanted, "calibrated", found.sentence)

    def _change(self, name: str | None, progress: Progress) -> bool:
        """Whether the model that is in use now was calibrated before."""
        if self._open is None:
            raise BadInput("The model cannot be changed here.")
        engine, calibration = self._open(name, progress)
        try:
            if self._closed or self._unwanted.is_set():
                raise _Stopped
            known = calibration or (PENDING if self._make_calibration else NOT_CALIBRATED)
            before = self._system.change_engine(engine, known, stop_replies=self._turns.abort_all)
        except BaseException:
            engine.close()
            raise
        before.close()
        with suppress(StoreError):  # what a killed process left is looked at again with the next turn
            recover_drafts(self._system)
        self._system.hubs.publish(WindowChanged())
        if name is not None and self._remember:
            self._remember(name)
        return calibration is not None

    def _fail(self, wanted: str, stage: ChangeStage, error: HaloWeaveError) -> None:
        self.failure = error
        if self._system.state.error is not None:
            known = isinstance(error, ModelError | ServerFailed)
            self._system.state.error = error if known else ModelError(str(error))
        self._tell(wanted, stage, str(error))

    def _tell(self, wanted: str, stage: ChangeStage, what: str, progress: float | None = None) -> None:
        sentence = f"{what}…" if stage in ("loading", "calibrating") else what
        before, self._news = self._news, ModelChange(wanted, stage, sentence, progress)
        if stage == "loading" and self._system.state.error is not None:
            self._system.state.error = ModelLoading(sentence)
        step = before is None or (before.state, before.sentence) != (stage, sentence)
        if step or time.monotonic() - self._told > PROGRESS_INTERVAL:
            self._told = time.monotonic()
            self._system.hubs.publish(self._news)


THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """An engine by name. Its key is never told."""

    engine: NamedEngine
    open: bool
    elsewhere: str  # the machine that words are sent to; empty: none
    light: str  # which eyes are in use, once it is open

    @property
    def has_key(self) -> bool:
        return bool(self.engine.key)


@dataclass(frozen=True, slots=True)
class WindowEngine:
    """What answers in a window, and what of memory it may read."""

    name: str  # of the engine; empty: the model of all windows
    known: bool  # whether there is one of this name
    model: str  # empty: it is not open yet
    elsewhere: str
    rule: RemoteScope
    private: bool
    light: str
    malformed: int  # rows of attention that could not be used since it was opened


class Engines:
    """`weave.engines`."""

    def __init__(self, system: Runtime, listed: EngineList | None) -> None:
        self._system, self._listed = system, listed

    def within(self, system: Runtime) -> Engines:
        return Engines(system, self._listed)

    def list(self) -> list[ListedEngine]:
        found = []
        for one in self._listed or ():
            model = self._system.others.get(one.name)
            light = model.calibration.sentence if model else ""
            found.append(ListedEngine(one, model is not None, remote_host(one.url), light))
        return found

    @property
    def notice(self) -> str:
        """What was wrong with the file of engines; empty: nothing."""
        return self._listed.notice if self._listed else ""

    def add(self, one: NamedEngine) -> None:
        """A new engine, or another address or key for one; its windows open it anew."""
        if self._listed is None:
            raise BadInput("Engines cannot be added here.")
        self._system.close_engine(one.name)
        self._listed.add(one)
        self._system.hubs.publish(WindowChanged())  # pages tell where the words of their window go

    def remove(self, name: str) -> None:
        if self._listed is None:
            raise BadInput("Engines cannot be removed here.")
        self._listed.get(name)
        self._system.close_engine(name)
        self._listed.remove(name)
        self._system.hubs.publish(WindowChanged())

    def where(self, window_id: str) -> WindowEngine:
        system = self._system
        settings = system.settings(system.window(window_id))
        name = settings.engine_name
        model = system.others.get(name) if name else system.model
        info = model.engine.info if model else None
        known = {one.name: one.url for one in self._listed or ()}
        if info is None:  # it is not open yet: where its words would go is known all the same
            info = _unopened(known.get(name, ""))
        return WindowEngine(
            name,
            not name or name in known,
            model.engine.info.name if model else "",
            info.elsewhere,
            remote_scope(settings, info),
            settings.private,
            model.calibration.sentence if model else "",
            int(getattr(model.engine, "malformed", 0)) if model else 0,
        )


def _unopened(url: str) -> ModelInfo:
    return ModelInfo("", "", 0, 0, 0, 0, 0, 0, {}, "", "chatml", url=url)
