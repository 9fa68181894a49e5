"""Embed chunks in a background thread, and re-embed all of memory with another embedder."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np

from halo_weave.engines.base import Embedder
from halo_weave.errors import HaloWeaveError, StoreBusy, UnknownGeneration
from halo_weave.store.records import ChunksToEmbed, Serving, VectorGeneration
from halo_weave.store.sql_store import SqlStore

METHOD = 2  # of making passages: vectors by another one are older. 1 put the date in front of each passage
LEAST_WORDS = 10  # a shorter sentence joins the next: alone it says too little to be found by
MOST_WORDS = 60  # a longer one is cut: one vector cannot hold it
MOST_PASSAGES = 16  # of one chunk; a chunk of more is cut into larger ones
SENTENCE = re.compile(r"(?<=[.!?\]:;])\s+|(?<=[。！？])|\n+")


def _sentences(text: str) -> list[str]:
    """Sentences and lines, long ones cut."""
    found: list[str] = []
    for sentence in SENTENCE.split(text):
        words = sentence.split()
        found.extend(" ".join(words[i : i + MOST_WORDS]) for i in range(0, len(words), MOST_WORDS))
    return found


def passages(text: str, speaker: str) -> list[str]:
    """At least one, even of an empty text. A date would take up much of the meaning of a short one."""
    text = text[: MOST_PASSAGES * MOST_WORDS * 16]  # a run without spaces has no words to count
    parts = _sentences(text)
    least = max(LEAST_WORDS, -(-len(text.split()) // MOST_PASSAGES))
    joined: list[str] = []
    for part in parts:
        if joined and len(joined[-1].split()) < least:
            joined[-1] += " " + part
        else:
            joined.append(part)
    if len(joined) > 1 and len(joined[-1].split()) < least:
        last = joined.pop()
        joined[-1] += " " + last
    who = f"{speaker}: " if speaker else ""
    return [f"{who}{part}" for part in (joined or [text.strip()])]


WORKER_BATCH = 16  # chunks between two looks at whether to stop
RETRY_SECONDS = 1.0
NICE = 5  # the model's own threads go first

State = Literal["loading", "ready", "off"]


def generation_name(embedder: Embedder) -> str:
    """What a generation is called: after its embedder, and after how passages were made for it."""
    return f"{embedder.name}, passages {METHOD}"


def is_outdated(generation: VectorGeneration | Serving) -> bool:
    """Whether passages were made otherwise for it than they are now."""
    return not generation.model.endswith(f", passages {METHOD}")


def _same_embedder(generation: Serving, embedder: Embedder) -> bool:
    """Its vectors can be compared with this embedder's, even if passages were made otherwise."""
    name = generation.model.rpartition(", passages ")[0] or generation.model  # the first method had no number
    return (name, generation.dimension) == (embedder.name, embedder.dimension)


def embed_batch(store: SqlStore, embedder: Embedder, generation: int, limit: int = WORKER_BATCH) -> int:
    """Embed some of the chunks that lack a vector; 0 when none does."""
    wanted = store.wanted(generation, limit)
    # Another process may have cleared the memory since: what is gone needs no vector.
    records = store.chunks(wanted.numbers.tolist())
    if not records:
        return 0
    texts: list[str] = []
    counts: list[int] = []
    for record in records:
        parts = passages(record.chunk.text, record.speaker)
        texts.extend(parts)
        counts.append(len(parts))
    found = ChunksToEmbed(np.array([record.number for record in records], np.int64), wanted.seen)
    store.add_vectors(generation, found, embedder.embed(texts), counts)
    return len(records)


@dataclass(frozen=True, slots=True)
class OpenEmbedder:
    """An embedder, and the generation of vectors that it makes and searches."""

    embedder: Embedder
    generation: int
    older: bool = (
        False  # passages were made otherwise for some of them: they serve, and new ones would serve better
    )


class EmbeddingWorker:
    """Opens the embedder and keeps the vectors up with what is said."""

    def __init__(
        self,
        store: SqlStore,
        open_embedder: Callable[[], Embedder] | None,
        *,
        now: Callable[[], datetime],
        writes: bool = True,
        when_opened: Callable[[], None] = lambda: None,
        when_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """`writes`: False leaves the vectors as they are, for a memory that is only read. `when_idle`: called each time
        that all is embedded.
        """
        self._store, self._open, self._now, self._writes = store, open_embedder, now, writes
        self.ready: OpenEmbedder | None = None
        self.state: State = "loading" if open_embedder else "off"
        self.sentence = (
            ""
            if open_embedder
            else "The embedder is off: words alone serve. To have one, start without: --embedder off"
        )
        self._when_opened, self._when_idle = when_opened, when_idle
        self._work = threading.Event()
        self._opened = threading.Event()
        self._idle = threading.Condition()
        self._busy = self._serving = open_embedder is not None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedding", daemon=True)

    def start(self) -> None:
        if self._open:
            self._work.set()
            self._thread.start()
        else:
            self._opened.set()

    def note(self) -> None:
        """There may be chunks to embed."""
        with self._idle:
            if self._serving:
                self._busy = True
                self._work.set()

    def opened(self, timeout: float | None = None) -> bool:
        """Wait until the embedder is there, or it is known that it will not be."""
        return self._opened.wait(timeout)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was said before is embedded, or cannot be."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout)

    def restart_generation(self) -> None:
        """The memory was cleared: its vectors begin again."""
        if self.ready:
            self.ready = self._choose_generation(self.ready.embedder)
            self.state = "ready" if self.ready else "off"
            self.note()

    def close(self) -> None:
        self._stop.set()
        self._work.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.ready:
            self.ready.embedder.close()
            self.ready = None

    def _run(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # not on every system
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            assert self._open is not None
            self.ready = self._choose_generation(self._open())
            self.state = "ready" if self.ready else "off"
        except Exception as error:  # files beside the model may be wrong in unexpected ways
            self.state = "off"
            self.sentence = f"{_error_sentence(error, 'The embedder could not be opened')} Words alone serve."
        finally:
            self._opened.set()  # others wait for it
        if self.ready:
            with contextlib.suppress(Exception):  # the next search meets the same error, and reports it
                self._when_opened()
        while self.ready and self._writes and not self._stop.is_set():
            self._work.wait()
            self._work.clear()
            ready = self.ready  # the memory may be another one's by now
            if ready:
                self._embed_pending(ready)
            with self._idle:
                self._busy = self._work.is_set()
                self._idle.notify_all()
            with contextlib.suppress(Exception):  # it is tried again; this thread is the only one that embeds
                self._when_idle()
        with self._idle:
            self._busy = self._serving = False
            self._idle.notify_all()

    def _choose_generation(self, embedder: Embedder) -> OpenEmbedder | None:
        """Vectors of two embedders cannot be compared: another one than before needs a new generation."""
        current = self._store.serving()
        if current is None and self._writes:
            self._store.begin_generation(generation_name(embedder), embedder.dimension, now=self._now())
            current = self._store.serving()
        if current and _same_embedder(current, embedder):
            return OpenEmbedder(embedder, current.id, is_outdated(current))
        embedder.close()
        self.sentence = (
            f"The vectors of this memory were made by {current.model}, not by {embedder.name}. "
            "To use the new one, run: halo-weave reindex. Words alone serve."
            if current
            else "Nothing of this memory is embedded yet: words alone serve."
        )
        return None

    def _embed_pending(self, ready: OpenEmbedder) -> None:
        while not self._stop.is_set():
            try:
                if not embed_batch(self._store, ready.embedder, ready.generation):
                    self.sentence = ""
                    return
            except StoreBusy as error:
                self.sentence = str(error)
                if self._stop.wait(RETRY_SECONDS):
                    return
            except UnknownGeneration:
                return  # the memory was cleared meanwhile: whoever searches next begins its vectors again
            except Exception as error:
                # Search goes on with what is embedded; the rest is tried again when more is said. That holds for any
                # error, since this thread is the only one that embeds.
                told = _error_sentence(error, "Embedding failed")
                self.sentence = f"{told} What was said last is found by its words alone."
                return


def _error_sentence(error: Exception, what: str) -> str:
    """Our own errors are sentences already; others get one."""
    if isinstance(error, HaloWeaveError | OSError):
        return f"{str(error).rstrip('.')}."  # another sentence follows
    return f"{what} ({type(error).__name__}: {error})."


REINDEX_BATCH = (
    256  # chunks: enough to be a backlog for the embedder, few enough that an interruption loses little
)


def reindex(
    store: SqlStore,
    embedder: Embedder,
    *,
    now: Callable[[], datetime],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VectorGeneration:
    """Build the generation of this embedder and method, or what it lacks; then it serves, and older vectors are removed."""
    generation = store.begin_generation(generation_name(embedder), embedder.dimension, now=now())
    done, total = 0, generation.wanted
    progress(done, total)
    while embedded := embed_batch(store, embedder, generation.id, REINDEX_BATCH):
        done += embedded
        progress(done, max(done, total))
    store.complete_generation(generation.id, now=now())
    store.delete_old_vectors()
    return next(one for one in store.generations() if one.id == generation.id)
