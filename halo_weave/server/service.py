"""Holds the running system behind the server: builds it in the background, reports progress, closes it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock, Thread

from halo_weave import __version__
from halo_weave.chat.events import INTERNAL_ERROR_MESSAGE
from halo_weave.chat.people import People
from halo_weave.chat.weave import Weave
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.engines.base import Engine
from halo_weave.errors import HaloWeaveError, StoreUnreachable
from halo_weave.models import catalogue
from halo_weave.server import views
from halo_weave.server.auth import CURRENT_USER, UNKNOWN_USER
from halo_weave.server.errors import ApiError, status_and_code
from halo_weave.store.records import OWNER

log = logging.getLogger(__name__)
RETRY_SECONDS = 2.0  # pause before connecting again to a database that could not be reached
MAX_STEP_SECONDS = (
    60.0  # for one decode (a token, or a batch of the prompt) until the model counts as unresponsive
)

Progress = Callable[[str, int, int], None]  # the current step, the amount done, the total amount
BuildSystem = Callable[[Progress], Weave]


class Service:
    """The running system, while it is being built, in use, or failed."""

    def __init__(self, assemble: BuildSystem) -> None:
        self._assemble = assemble
        self._lock = Lock()
        self._loading: Thread | None = None
        self._weave: Weave | None = None
        self._closed = False
        self._ending = Event()
        self._failure: HaloWeaveError | None = None
        self._loading_view = views.ModelView(state="loading", message="The model is being loaded.")

    # Start and shutdown

    def begin(self) -> Thread:
        """Build the system and load its model in the background, unless that is running or done."""
        with self._lock:
            if self._loading is None or not (self._loading.is_alive() or self._closed):
                if self._weave is None:
                    self._loading_view = views.ModelView(
                        state="loading", message="The model is being loaded."
                    )
                self._loading = Thread(target=self._load, name="assemble", daemon=True)
                self._loading.start()
            return self._loading

    def _load(self) -> None:
        weave = self._weave or self._try_assemble()
        while (
            weave is None
            and isinstance(self._failure, StoreUnreachable)
            and not self._ending.wait(RETRY_SECONDS)
        ):
            weave = self._try_assemble()  # when the database is back, the server needs no restart
        if weave:
            weave.models.load()
            self._failure = weave.models.failure

    def _try_assemble(self) -> Weave | None:
        try:
            weave = self._assemble(self._progress)
        except Exception as error:
            if not isinstance(error, HaloWeaveError):
                log.exception("The system could not be assembled.")
            self._failure = (
                error
                if isinstance(error, HaloWeaveError)
                else ApiError(503, "failed", INTERNAL_ERROR_MESSAGE)
            )
            if isinstance(error, StoreUnreachable) and self._loading_view.message != str(error):
                log.warning("%s", error)
            self._loading_view = views.ModelView(state="missing", message=str(self._failure))
            return None
        with self._lock:
            if not self._closed:
                self._failure, self._weave = None, weave
                weave.idle_reader.start()
                return weave
        weave.close()  # the server was closed meanwhile
        return None

    def _progress(self, what: str, done: int, total: int) -> None:
        share = done / total if total else None
        self._loading_view = views.ModelView(state="loading", message=f"{what}…", progress=share)

    @property
    def failure(self) -> HaloWeaveError | None:
        """Why the system could not be built or the model not be loaded; None if there was no error."""
        return self._failure

    def stop_turns(self) -> None:
        """End all event streams, and stop every reply so that its tokens so far are stored."""
        with self._lock:
            self._closed = True
        self._ending.set()
        if self._weave:
            self._weave.turns.close()

    def close(self) -> None:
        """Close the model and the memory."""
        self.stop_turns()
        with self._lock:
            weave, self._weave = self._weave, None
        if weave:
            weave.close()

    # What the routes need

    @property
    def weave(self) -> Weave:
        """The system with the access of the current person."""
        weave, person = self._open(), CURRENT_USER.get()
        if person == UNKNOWN_USER and weave.people.several():
            raise ApiError(503, "model_loading", "The memory is still being opened. Try again.")
        return weave if person in (None, UNKNOWN_USER) else weave.of(str(person))

    @property
    def unrestricted_weave(self) -> Weave:
        """The system with access to everything; only for the owner of the server."""
        if CURRENT_USER.get() not in (None, OWNER):
            raise ApiError(403, "not_yours", "Only the owner of this server may do this.")
        return self._open()

    def people(self) -> People | None:
        """The people with keys, once they are known."""
        weave = self._weave
        return None if weave is None or self._closed else weave.people

    def _open(self) -> Weave:
        weave = self._weave
        if self._closed:
            raise ApiError(503, "ending", "The server is shutting down.")
        if weave is None:
            error = self._failure
            code = (
                error.code
                if isinstance(error, ApiError)
                else status_and_code(error)[1]
                if error
                else "model_missing"
            )
            raise ApiError(
                503,
                "model_loading" if self._loading_view.state == "loading" else code,
                self._loading_view.message,
            )
        return weave

    def check(self) -> None:
        """Raise an error if the memory cannot be read, or if the model is not loaded or does not answer."""
        self._open().memory.check()
        waited = self.engine().step_seconds
        if waited > MAX_STEP_SECONDS:
            raise ApiError(
                503,
                "model_busy",
                f"The model has been computing one step for {waited:.0f} s. If that continues, restart Halo Weave.",
            )

    def engine(self) -> Engine:
        """The engine, for the prototype's API."""
        weave = self._open()
        weave.models.check_model_loaded()
        return weave.engine

    def calibration(self) -> Calibration:
        return self._open().calibration

    def model(self) -> views.ModelView:
        """The state of the model, with the progress of a change."""
        if self._weave is None:
            return self._loading_view
        now = self._open().models.state()
        model_view = views.ModelView.of(now, catalogue.note_of(Path(now.info.file)))
        return model_view if self.is_owner else model_view.model_copy(update={"file": ""})

    @property
    def is_owner(self) -> bool:
        """Whether the current person is the owner of the server."""
        return CURRENT_USER.get() in (None, OWNER)

    def status(self) -> views.Status:
        if self._weave is None:
            return views.Status(version=__version__, model=self._loading_view)
        weave = self.weave
        now = weave.memory.status()
        return views.Status(
            version=__version__,
            model=self.model(),
            embedder=views.EmbedderView.model_validate(now.embedder),
            memory=views.MemoryView.model_validate(now.memory).model_copy(
                update={"location": weave.memory.place if self.is_owner else ""}
            ),
            idle_reading=views.IdleReadingView.model_validate(self.unrestricted_weave.idle_reader.progress)
            if self.is_owner
            else views.IdleReadingView(),
            generating=weave.turns.generating(),
        )
