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
Progress = Callable[[str, int, int], None]  # what is being done, the amount done, the whole amount
# Opens a model by name, and downloads it first if necessary; None: the model that the program was started with. Also returns
# its calibration, if the model was calibrated before.
OpenModel = Callable[[str | None, Progress], tuple[Engine, Calibration | None]]
Calibrate = Callable[[Engine, Progress], Calibration]
RememberModel = Callable[[str], None]  # stores the name of the chosen model for the next start
PROGRESS_INTERVAL = 0.2  # seconds between two reports of progress
STOP_TIMEOUT = 30.0  # seconds that `close` waits for each thread that loads or calibrates a model


class _Stopped(Exception):
    """Loading or calibration was stopped: by the user, by another model, or because the program ends."""


@dataclass(frozen=True, slots=True)
class ModelState:
    """The model in use, and the latest change of the model: under way, done or failed."""

    state: Literal["ready", "loading", "missing"]
    info: ModelInfo
    efforts: tuple[
        str, ...
    ]  # levels of thinking that its template offers, with "off" if thinking can be turned off
    thinks: bool
    native_tools: bool  # whether its template declares tools
    light: str  # a sentence: which attention heads brightness and attribution are read from
    change: ModelChange | None = None


class Models:
    """`weave.models`: load, change and calibrate the model that all windows use by default."""

    def __init__(
        self,
        runtime: Runtime,
        turns: Turns,
        open_model: OpenModel | None,
        calibrate: Calibrate | None,
        remember: RememberModel | None,
    ) -> None:
        self._runtime, self._turns = runtime, turns
        self._open, self._make_calibration, self._remember = open_model, calibrate, remember
        self._calibrations: list[Thread] = []
        self._calibrating = Lock()  # one engine is calibrated at a time
        runtime.calibrate_later, runtime.retry_loading = self._calibrate_later, self.load
        runtime.reload_model = lambda: self._begin(None)
        self._lock = Lock()
        self._loading_thread: Thread | None = None
        self._stop_requested = Event()
        self._closed = False
        self._last_change: ModelChange | None = None
        self._last_published = 0.0
        self.failure: HaloWeaveError | None = None  # why the last change failed
        if not runtime.engine.info.abilities.speaks:
            runtime.state.error = ModelLoading("The model is being loaded.")

    def state(self) -> ModelState:
        model, change = self._runtime.default_model, self._last_change
        info, facts = model.engine.info, model.engine.facts
        ready = info.abilities.speaks
        loading = isinstance(self._runtime.state.error, ModelLoading)
        efforts = [*facts.thinking, *facts.thinking_words]
        return ModelState(
            "ready" if ready else "loading" if loading else "missing",
            info,
            tuple(dict.fromkeys(efforts)),
            facts.marks is not None,
            facts.declares_tools and facts.tools is not None,
            model.calibration.sentence,
            change,
        )

    def check_model_loaded(self) -> None:
        """Raise an error if no model is loaded."""
        self._runtime.check_model_loaded()

    # Changing

    def load(self) -> None:
        """Open the model that the program was started with, unless one is loaded, and wait for it. See `failure` afterwards."""
        if not self._runtime.engine.info.abilities.speaks and (thread := self._begin(None)):
            thread.join()

    def choose(self, name: str, progress: Progress = lambda what, done, total: None) -> Thread:
        """Begin to change the model. Progress and result are published as events in all windows."""
        thread = self._begin(name, progress)
        if thread is None:
            wanted = self._last_change.model if self._last_change else ""
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
        """Stop loading the model; what was downloaded of it is kept. Returns whether one was loading."""
        with self._lock:
            was_loading = self._loading
        if was_loading:
            self._stop_requested.set()
        return was_loading

    def close(self) -> None:
        self._closed = True
        self._stop_requested.set()
        for thread in (self._loading_thread, *self._calibrations):
            if thread is not None and thread is not current_thread():
                thread.join(STOP_TIMEOUT)

    def _begin(self, name: str | None, also: Progress = lambda what, done, total: None) -> Thread | None:
        """Start the thread that opens the model; None if one is running already."""
        with self._lock:
            if self._loading:
                return None
            self._stop_requested.clear()
            self._loading_thread = Thread(target=self._run, args=(name, also), name="model", daemon=True)
            self._loading_thread.start()
            return self._loading_thread

    def _run(self, name: str | None, also: Progress) -> None:
        wanted = name or ""

        def progress(what: str, done: int, total: int) -> None:
            if self._stop_requested.is_set():
                raise _Stopped
            also(what, done, total)
            self._publish_change(wanted, "loading", what, done / total if total else None)

        self.failure = None
        if self._runtime.state.error is not None:
            self._runtime.state.error = ModelLoading("The model is being loaded.")
        self._publish_change(wanted, "loading", "Looking for the model")
        try:
            calibrated = self._change(name, progress)
        except _Stopped:
            now = self._runtime.engine.info.name
            stays = f"{now} stays." if now else "There is no model yet: choose one."
            self._fail(wanted, "stopped", ModelNotFound(f"That was stopped. {stays}"))
        except HaloWeaveError as error:
            self._fail(wanted, "failed", error)
        except Exception:
            log.exception("The model could not be changed.")
            self._fail(wanted, "failed", ModelError(INTERNAL_ERROR_MESSAGE))
        else:
            engine = self._runtime.engine
            self._publish_change(wanted, "done", f"{engine.info.name} is ready.")
            if not calibrated:
                self._calibrate_later(wanted, engine)

    @property
    def _loading(self) -> bool:
        return self._loading_thread is not None and self._loading_thread.is_alive()

    def _calibrate_later(self, wanted: str, engine: Engine) -> None:
        """Begin to find the model's retrieval heads; the model can answer during this time."""
        if self._make_calibration is None:
            return
        thread = Thread(target=self._calibrate, args=(wanted, engine), name="calibration", daemon=True)
        self._calibrations = [*(one for one in self._calibrations if one.is_alive()), thread]
        thread.start()

    def _calibrate(self, wanted: str, engine: Engine) -> None:
        """Calibrate between turns, and while no other model is loading."""

        def obsolete() -> bool:
            return self._closed or not any(one is engine for one in self._runtime.engines)

        def progress(what: str, done: int, total: int) -> None:
            while (self._turns.generating() or self._loading) and not obsolete():
                time.sleep(PROGRESS_INTERVAL)
            if obsolete():
                raise _Stopped
            self._publish_change(wanted, "calibrating", what, done / total if total else None)

        assert self._make_calibration is not None
        with self._calibrating, suppress(_Stopped):
            found = self._make_calibration(engine, progress)
            if not self._closed and self._runtime.use_calibration(engine, found):
                self._publish_change(wanted, "calibrated", found.sentence)

    def _change(self, name: str | None, progress: Progress) -> bool:
        """Change the engine. Returns whether the new model was calibrated before."""
        if self._open is None:
            raise BadInput("The model cannot be changed here.")
        engine, calibration = self._open(name, progress)
        try:
            if self._closed or self._stop_requested.is_set():
                raise _Stopped
            known = calibration or (PENDING if self._make_calibration else NOT_CALIBRATED)
            before = self._runtime.change_engine(engine, known, stop_replies=self._turns.abort_all)
        except BaseException:
            engine.close()
            raise
        before.close()
        with suppress(StoreError):  # recovers drafts of a killed process: otherwise the next turn tries again
            recover_drafts(self._runtime)
        self._runtime.hubs.publish(WindowChanged())
        if name is not None and self._remember:
            self._remember(name)
        return calibration is not None

    def _fail(self, wanted: str, stage: ChangeStage, error: HaloWeaveError) -> None:
        self.failure = error
        if self._runtime.state.error is not None:
            known = isinstance(error, ModelError | ServerFailed)
            self._runtime.state.error = error if known else ModelError(str(error))
        self._publish_change(wanted, stage, str(error))

    def _publish_change(
        self, wanted: str, stage: ChangeStage, what: str, progress: float | None = None
    ) -> None:
        sentence = f"{what}…" if stage in ("loading", "calibrating") else what
        before, self._last_change = self._last_change, ModelChange(wanted, stage, sentence, progress)
        if stage == "loading" and self._runtime.state.error is not None:
            self._runtime.state.error = ModelLoading(sentence)
        step = before is None or (before.state, before.sentence) != (stage, sentence)
        if step or time.monotonic() - self._last_published > PROGRESS_INTERVAL:
            self._last_published = time.monotonic()
            self._runtime.hubs.publish(self._last_change)


THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """An engine in the list of named engines. Its API key is never shown."""

    engine: NamedEngine
    open: bool
    elsewhere: str  # the host that prompts are sent to; empty: none, it runs in this process
    light: str  # which attention is read, once the engine is open

    @property
    def has_key(self) -> bool:
        return bool(self.engine.key)


@dataclass(frozen=True, slots=True)
class WindowEngine:
    """The engine that answers in a window, and which chunks may be sent to it."""

    name: str  # of the engine; empty: the model of all windows
    known: bool  # whether the list has an engine of this name
    model: str  # empty: the engine is not open yet
    elsewhere: str
    rule: RemoteScope  # which chunks may be sent to it
    private: bool  # whether the window is private
    light: str
    malformed: int  # how many attention rows could not be used since it was opened


class Engines:
    """`weave.engines`: the named engines that a window can choose instead of the default model."""

    def __init__(self, runtime: Runtime, listed: EngineList | None) -> None:
        self._runtime, self._listed = runtime, listed

    def within(self, runtime: Runtime) -> Engines:
        """The same operations, limited to what the person of this runtime may see and change."""
        return Engines(runtime, self._listed)

    def list(self) -> list[ListedEngine]:
        found = []
        for one in self._listed or ():
            model = self._runtime.models_by_engine.get(one.name)
            light = model.calibration.sentence if model else ""
            found.append(ListedEngine(one, model is not None, remote_host(one.url), light))
        return found

    @property
    def notice(self) -> str:
        """What is wrong with the file that lists the engines; empty: nothing."""
        return self._listed.notice if self._listed else ""

    def add(self, one: NamedEngine) -> None:
        """Add an engine, or change the address or key of one; windows that use it open it again."""
        if self._listed is None:
            raise BadInput("Engines cannot be added here.")
        self._runtime.close_engine(one.name)
        self._listed.add(one)
        self._runtime.hubs.publish(
            WindowChanged()
        )  # pages show which host the prompts of their window are sent to

    def remove(self, name: str) -> None:
        if self._listed is None:
            raise BadInput("Engines cannot be removed here.")
        self._listed.get(name)
        self._runtime.close_engine(name)
        self._listed.remove(name)
        self._runtime.hubs.publish(WindowChanged())

    def where(self, window_id: str) -> WindowEngine:
        """The engine that answers in a window."""
        runtime = self._runtime
        settings = runtime.settings(runtime.window(window_id))
        name = settings.engine_name
        model = runtime.models_by_engine.get(name) if name else runtime.default_model
        info = model.engine.info if model else None
        known = {one.name: one.url for one in self._listed or ()}
        if info is None:  # the engine is not open yet, but its address is known
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
