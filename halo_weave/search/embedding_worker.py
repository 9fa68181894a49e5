"""Embed chunks in a background thread, and re-embed the whole memory with another embedder."""

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

METHOD = 2  # version of `passages`; vectors of another version are outdated. Version 1 prefixed the date

MIN_WORDS = 10  # a shorter sentence is joined with the next: alone it says too little
MAX_WORDS = 60  # a longer sentence is cut: one vector cannot represent it well
MAX_PASSAGES = 16  # passages per chunk; the passages of a long chunk are larger
SENTENCE_BOUNDARY = re.compile(r"(?<=[.!?\]:;])\s+|(?<=[。！？])|\n+")


def _sentences(text: str) -> list[str]:
    """The sentences and lines of a text; long ones are cut."""
    sentences: list[str] = []
    for sentence in SENTENCE_BOUNDARY.split(text):
        words = sentence.split()
        sentences.extend(" ".join(words[i : i + MAX_WORDS]) for i in range(0, len(words), MAX_WORDS))
    return sentences


def passages(text: str, speaker: str) -> list[str]:
    """The passages of a chunk that are embedded, each with the speaker's name in front; at least one, even of an empty text.

    The date is not embedded: it would take up much of the meaning of a short passage.
    """
    text = text[
        : MAX_PASSAGES * MAX_WORDS * 16
    ]  # also limits text without spaces, which has no words to count
    min_words = max(MIN_WORDS, -(-len(text.split()) // MAX_PASSAGES))
    joined: list[str] = []
    for sentence in _sentences(text):
        if joined and len(joined[-1].split()) < min_words:
            joined[-1] += " " + sentence
        else:
            joined.append(sentence)
    if len(joined) > 1 and len(joined[-1].split()) < min_words:
        last = joined.pop()
        joined[-1] += " " + last
    prefix = f"{speaker}: " if speaker else ""
    return [f"{prefix}{passage}" for passage in (joined or [text.strip()])]


WORKER_BATCH = 16  # chunks embedded at a time; between batches the worker can stop
RETRY_SECONDS = 1.0
NICE = 5  # priority of the thread, below that of the model's threads

State = Literal["loading", "ready", "off"]


def generation_name(embedder: Embedder) -> str:
    """The name of a generation: its embedder, and the version of `passages`."""
    return f"{embedder.name}, passages {METHOD}"


def is_outdated(generation: VectorGeneration | Serving) -> bool:
    """Whether the vectors were made with another version of `passages`."""
    return not generation.model.endswith(f", passages {METHOD}")


def _same_embedder(generation: Serving, embedder: Embedder) -> bool:
    """Whether the vectors can be compared with those of this embedder. They can if only the version of `passages` differs."""
    name = generation.model.rpartition(", passages ")[0] or generation.model  # version 1 had no suffix
    return (name, generation.dimension) == (embedder.name, embedder.dimension)


def embed_batch(store: SqlStore, embedder: Embedder, generation: int, limit: int = WORKER_BATCH) -> int:
    """Embed some of the chunks that lack a vector. Returns how many; 0 if none does."""
    wanted = store.wanted(generation, limit)
    # Chunks that another process has deleted since are not among the records.
    records = store.chunks(wanted.numbers.tolist())
    if not records:
        return 0
    texts: list[str] = []
    counts: list[int] = []
    for record in records:
        parts = passages(record.chunk.text, record.speaker)
        texts.extend(parts)
        counts.append(len(parts))
    embedded = ChunksToEmbed(np.array([record.number for record in records], np.int64), wanted.seen)
    store.add_vectors(generation, embedded, embedder.embed(texts), counts)
    return len(records)


@dataclass(frozen=True, slots=True)
class OpenEmbedder:
    """An embedder, and the generation of vectors that it adds to and searches."""

    embedder: Embedder
    generation: int
    outdated: bool = False  # the vectors can be searched, but were made with another version of `passages`


class EmbeddingWorker:
    """Opens the embedder in a thread, and embeds new chunks."""

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
        """`writes`: False embeds nothing, for a memory that is only read. `when_idle`: called whenever all chunks are
        embedded, or embedding has failed.
        """
        self._store, self._open, self._now, self._writes = store, open_embedder, now, writes
        self.ready: OpenEmbedder | None = None
        self.state: State = "loading" if open_embedder else "off"
        self.sentence = (
            ""
            if open_embedder
            else "The embedder is off, so search goes by words only. To have one, start without: --embedder off"
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

    def notify(self) -> None:
        """Tell the thread that there may be chunks to embed."""
        with self._idle:
            if self._serving:
                self._busy = True
                self._work.set()

    def wait_until_opened(self, timeout: float | None = None) -> bool:
        """Wait until the embedder is open, or opening it has failed."""
        return self._opened.wait(timeout)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all chunks stored so far are embedded, or embedding has failed."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout)

    def restart_generation(self) -> None:
        """Begin a new generation of vectors, because the memory was cleared."""
        if self.ready:
            self.ready = self._choose_generation(self.ready.embedder)
            self.state = "ready" if self.ready else "off"
            self.notify()

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
        except Exception as error:  # damaged files beside the model can raise anything
            self.state = "off"
            self.sentence = (
                f"{_error_sentence(error, 'The embedder could not be opened')} Search goes by words only."
            )
        finally:
            self._opened.set()
        if self.ready:
            with contextlib.suppress(Exception):  # the next search has the same error and reports it
                self._when_opened()
        while self.ready and self._writes and not self._stop.is_set():
            self._work.wait()
            self._work.clear()
            ready = self.ready  # clearing the memory replaces it
            if ready:
                self._embed_pending(ready)
            with self._idle:
                self._busy = self._work.is_set()
                self._idle.notify_all()
            with contextlib.suppress(Exception):  # this thread must not end; it is tried again later
                self._when_idle()
        with self._idle:
            self._busy = self._serving = False
            self._idle.notify_all()

    def _choose_generation(self, embedder: Embedder) -> OpenEmbedder | None:
        """The embedder with the current generation, if that has its vectors; else None, and `sentence` says why.

        Vectors of different embedders cannot be compared.
        """
        current = self._store.serving()
        if current is None and self._writes:
            self._store.begin_generation(generation_name(embedder), embedder.dimension, now=self._now())
            current = self._store.serving()
        if current and _same_embedder(current, embedder):
            return OpenEmbedder(embedder, current.id, is_outdated(current))
        embedder.close()
        self.sentence = (
            f"The vectors of this memory were made by {current.model}, not by {embedder.name}. "
            "To use the new one, run: halo-weave reindex. Search goes by words only."
            if current
            else "Nothing in this memory is embedded yet, so search goes by words only."
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
                return  # the memory was cleared meanwhile; the next search begins a new generation
            except Exception as error:
                # After any error the thread goes on, and tries again when the next chunks are stored.
                reason = _error_sentence(error, "Embedding failed")
                self.sentence = f"{reason} The newest chunks are found by their words only."
                return


def _error_sentence(error: Exception, what: str) -> str:
    """An error as a sentence. Our own errors are sentences already."""
    if isinstance(error, HaloWeaveError | OSError):
        return f"{str(error).rstrip('.')}."  # another sentence follows
    return f"{what} ({type(error).__name__}: {error})."


REINDEX_BATCH = (
    256  # chunks: enough for the fast path of the embedder, few enough to lose little when interrupted
)


def reindex(
    store: SqlStore,
    embedder: Embedder,
    *,
    now: Callable[[], datetime],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VectorGeneration:
    """Embed all chunks with this embedder, or those that still lack a vector. Then make this generation the current one, and
    delete the older vectors."""
    generation = store.begin_generation(generation_name(embedder), embedder.dimension, now=now())
    done, total = 0, generation.wanted
    progress(done, total)
    while embedded := embed_batch(store, embedder, generation.id, REINDEX_BATCH):
        done += embedded
        progress(done, max(done, total))
    store.complete_generation(generation.id, now=now())
    store.delete_old_vectors()
    return next(current for current in store.generations() if current.id == generation.id)
