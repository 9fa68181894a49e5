"""The system behind the server. It is assembled in the background, so that the page can say how far it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from halo_weave import __version__
from halo_weave.errors import HaloWeaveError, WindowBusy
from halo_weave.ports import Engine
from halo_weave.server import shapes, wire
from halo_weave.server.refusals import INTERNAL, Refusal, kind
from halo_weave.server.sse import Streams
from halo_weave.server.turns import Turns
from halo_weave.store import Store
from halo_weave.weave.weave import Weave

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much
Assemble = Callable[[Progress], Weave]
EmbedAnew = Callable[[Weave, Callable[[int, int], None]], None]  # with how many chunks are done, of how many


class Service:
    def __init__(self, assemble: Assemble, embed_anew: EmbedAnew | None = None) -> None:
        self.streams = Streams()
        self._assemble, self._embed_anew = assemble, embed_anew
        self._embedding: wire.ReindexTold | None = None  # of another embedder, under way or failed
        self._lock = Lock()
        self._loading: Thread | None = None
        self._turns: Turns | None = None
        self._closed = False
        self._failure: HaloWeaveError | None = None
        self._told = wire.ModelTold(state="loading", sentence="The model is being loaded.")

    # Coming and going

    def begin(self) -> Thread:
        """Assemble the system in the background, unless that is under way or done."""
        with self._lock:
            if self._loading is None or not (self._loading.is_alive() or self._turns or self._closed):
                self._told = wire.ModelTold(state="loading", sentence="The model is being loaded.")
                self._loading = Thread(target=self._load, name="assemble", daemon=True)
                self._loading.start()
            return self._loading

    def _load(self) -> None:
        try:
            weave = self._assemble(self._progress)
        except Exception as error:
            if not isinstance(error, HaloWeaveError):
                log.exception("The system could not be assembled.")
            self._failure = error if isinstance(error, HaloWeaveError) else Refusal(503, "failed", INTERNAL)
            self._told = wire.ModelTold(state="missing", sentence=str(self._failure))
            return
        with self._lock:
            if not self._closed:
                self._failure = None
                self._turns = Turns(weave, self.streams)
                return
        weave.close()  # nobody waits for it any more

    def _progress(self, what: str, done: int, total: int) -> None:
        share = done / total if total else None
        self._told = wire.ModelTold(state="loading", sentence=f"{what}…", progress=share)

    @property
    def failure(self) -> HaloWeaveError | None:
        """Why the system could not be assembled, if so."""
        return self._failure

    def quiet(self) -> None:
        """Let go of those who listen, and stop every reply so that what was said of it is stored."""
        with self._lock:
            self._closed = True
        self.streams.close()
        if self._turns:
            self._turns.close()

    def close(self) -> None:
        """Let go of the model and the memory."""
        self.quiet()
        with self._lock:
            turns, self._turns = self._turns, None
        if turns:
            turns.weave.close()

    # What the routes need

    @property
    def turns(self) -> Turns:
        turns = self._turns
        if self._closed:
            raise Refusal(503, "ending", "The server is ending.")
        if turns is None:
            code = "model_loading" if self._told.state == "loading" else kind_of(self._failure)
            raise Refusal(503, code, self._told.sentence)
        return turns

    @property
    def weave(self) -> Weave:
        return self.turns.weave

    def engine(self) -> Engine:
        return self.weave.engine

    @property
    def toolbox(self) -> Any:
        if self.weave.toolbox is None:
            raise Refusal(404, "not_found", "There is no memory of the AI's own here: its tools are off.")
        return self.weave.toolbox

    @property
    def archive(self) -> Store:
        return self.weave.store

    def clear(self) -> None:
        """Delete everything, unless something is being said."""
        gone = [window.id for window in self.weave.store.windows()]
        try:
            self.weave.clear()
        except WindowBusy:
            raise WindowBusy("A reply is being written. Stop it first.") from None
        for window in gone:
            self.streams.drop(window)

    # Embedding

    def reindex(self) -> wire.ReindexTold:
        """Every chunk is embedded again, in the background."""
        now = self.embedding()
        if now.state == "running":
            return now
        if now.state == "idle":
            self.archive.want_again(place.number for place in self.archive.outline())
            self.weave.recall.note_said()
            return self.embedding()
        if self._embed_anew is None:
            raise Refusal(409, "embedder_off", now.sentence or "There is no embedder: search goes by words.")
        self._embedding = wire.ReindexTold(state="running", model="", done=0, total=now.total, sentence="")
        Thread(target=self._build, args=(self.weave, self._embed_anew), name="reindex", daemon=True).start()
        return self._embedding

    def _build(self, weave: Weave, embed_anew: EmbedAnew) -> None:
        """The vectors of another embedder; once they are there, they serve."""

        def progress(done: int, total: int) -> None:
            self._embedding = wire.ReindexTold(state="running", model="", done=done, total=total, sentence="")

        try:
            embed_anew(weave, progress)
            weave.recall.reopen()
            self._embedding = None
        except Exception as error:
            if not isinstance(error, HaloWeaveError):
                log.exception("Embedding failed.")
            sentence = str(error) if isinstance(error, HaloWeaveError) else INTERNAL
            self._embedding = wire.ReindexTold(state="failed", model="", done=0, total=0, sentence=sentence)

    def embedding(self) -> wire.ReindexTold:
        """How many chunks have the vector they should have."""
        if self._embedding is not None:
            return self._embedding
        embedder = shapes.embedder(self.weave.recall.status())
        total = self.weave.store.stats().chunks
        busy = embedder.state == "loading" or embedder.wanted > 0
        return wire.ReindexTold(
            state="off" if embedder.state == "off" else "running" if busy else "idle",
            model=embedder.model,
            done=max(0, total - embedder.wanted),
            total=total,
            sentence=embedder.sentence,
        )

    def names(self) -> dict[str, str]:
        """Of all windows that ever were."""
        return self.weave.store.window_names()

    def changed(self, window: str) -> None:
        """Tell those who watch a window that it is not what they last saw."""
        self.streams.of(window).publish("changed", {})

    def status(self) -> wire.Status:
        if self._turns is None:
            return wire.Status(
                version=__version__,
                model=self._told,
                embedder=wire.EmbedderTold(state="loading"),
                memory=wire.MemoryTold(),
                generating=[],
            )
        now = self.weave.status()
        memory = now["memory"]
        return wire.Status(
            version=__version__,
            model=shapes.model(now["model"]),
            embedder=shapes.embedder(now["embedder"]),
            memory=wire.MemoryTold(
                chunks=memory.chunks,
                tokens=memory.tokens,
                windows=memory.windows,
                deleted=memory.deleted_chunks,
                bytes=memory.bytes,
            ),
            generating=now["generating"],
        )


def kind_of(error: HaloWeaveError | None) -> str:
    return error.code if isinstance(error, Refusal) else kind(error)[1] if error else "model_missing"
