"""The search index of one store in this process: loaded from the store or a snapshot, and kept up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from halo_weave.engines.base import Embedder
from halo_weave.errors import HaloWeaveError, UnknownGeneration
from halo_weave.search.chunk_table import ChunkTable
from halo_weave.search.embedding_worker import EmbeddingWorker, OpenEmbedder
from halo_weave.search.index_snapshot import (
    IndexSnapshot,
    LoadedIndex,
    delete_snapshot,
    open_snapshot,
    write_snapshot,
)
from halo_weave.search.ranking import NegativeFeedback
from halo_weave.search.vector_index import SnapshotDamaged, VectorIndex
from halo_weave.store.records import VectorSearch
from halo_weave.store.sql_store import SqlStore

log = logging.getLogger(__name__)
T = TypeVar("T")
MIN_SNAPSHOT_CHUNKS = 20_000  # chunks from which on an image is kept; fewer are read as soon
MIN_SNAPSHOT_CHANGES = (
    1_000  # changes since the image was written that are read from the store at a start, whatever the size
)
CHANGED_SHARE, CHANGED_SHARE_AT_CLOSE = (
    8,
    64,
)  # one of so many chunks changed: a new image is written behind the turn, or at the end


class IndexState:
    """The outline and the vectors of one store. Whoever uses them holds the lock."""

    def __init__(
        self,
        store: SqlStore,
        open_embedder: Callable[[], Embedder] | None,
        *,
        writes: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        image: Path | None = None,
    ) -> None:
        """The embedder is opened in the background. `writes`: False embeds nothing, for a memory that is only read.

        `image`: the file that keeps what was loaded
        for the next start; None for none.
        """
        self._store, self._open, self._writes, self._now = store, open_embedder, writes, now
        self._lock = threading.Lock()
        self._outline = ChunkTable()
        self._index: VectorIndex | None = None  # all vectors, if the store cannot search them itself
        self._vector_search: VectorSearch | None = None  # the store's own index, if it has one
        self._generation: int | None = None
        self._marks = NegativeFeedback()
        self._changed = 0  # chunks that changed since the usual ones were looked at
        self._sequence = 0
        self._image = image
        self._saving = threading.Lock()
        self._unsaved = 0  # chunks of which the image knows nothing or something else
        self._unproven = False  # the image was just opened, and may be of a later state than the memory
        self._embedding = self._new_embedding()

    def _new_embedding(self) -> EmbeddingWorker:
        return EmbeddingWorker(
            self._store,
            self._open,
            now=self._now,
            writes=self._writes,
            when_opened=self._preload,
            when_idle=self._save,
        )

    def _preload(self) -> None:
        """Before anyone asks: a large memory takes seconds to load."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        """What changed since the last look. If another process cleared the memory, all of it."""
        try:
            self._follow()
        except UnknownGeneration:
            self._reset()
            self._follow()

    def _reset(self) -> None:
        self._outline = ChunkTable()
        self._index = self._vector_search = self._generation = None
        self._sequence = self._unsaved = 0
        self._embedding.restart_generation()

    def _follow(self) -> None:
        """What changed since. A backup that was put back may have chunks that were erased from the image after it."""
        self._catch_up()
        if self._unproven:
            self._unproven = False
            try:
                lacking = self._index is not None and self._index.lacks_vectors()
            except SnapshotDamaged:
                lacking = True
            if lacking:
                self._discard_snapshot()
                self._catch_up()

    def _catch_up(self) -> None:
        """One cheap question when nothing changed, here or in another process."""
        ready = self._embedding.ready
        if ready and self._generation != ready.generation:
            self._load(ready)
        sequence = self._store.sequence()
        if sequence == self._sequence:
            return
        changes = self._store.changes(self._sequence)
        self._read_negative_feedback()
        self._outline.drop(changes.gone)
        self._outline.put(self._store.outline(self._sequence))
        count = len(changes.present) + len(changes.gone)
        self._changed, self._unsaved = self._changed + count, self._unsaved + count
        if self._index is not None and self._generation is not None:
            self._index.remove(changes.gone)
            self._index.put(*self._store.vectors_of(self._generation, changes.present.tolist()))
        if self._index is None or not self._index.has(changes.present).all():
            self._embedding.note()
        self._sequence = changes.sequence

    def _read_negative_feedback(self) -> None:
        marks, ready = self._store.negative_feedback(), self._embedding.ready
        asked = list(dict.fromkeys(question for _, question in marks))
        vectors = ready.embedder.embed(asked, query=True) if ready and asked else ()
        self._marks.put(marks, dict(zip(asked, vectors, strict=False)))

    def _load(self, ready: OpenEmbedder) -> None:
        """All of a generation, but for the vectors if the store searches them. What changes meanwhile the next refresh
        sees."""
        self._vector_search = self._store.vector_search(ready.generation)
        loaded = self._image and open_snapshot(
            self._image,
            self._store,
            ready.generation,
            vectors=self._vector_search is None,
            writes=self._writes,
        )
        self._unsaved, self._unproven = 0, bool(loaded)
        if not loaded:
            if self._image and self._writes:
                delete_snapshot(self._image)  # it may hold what is not in this memory any more
            loaded = self._from_store(ready)
            self._unsaved = len(loaded.outline)
        self._outline, self._index, self._sequence = loaded.outline, loaded.index, loaded.sequence
        self._generation = ready.generation
        self._read_negative_feedback()

    def _from_store(self, ready: OpenEmbedder) -> LoadedIndex:
        sequence, index = self._store.sequence(), None
        if self._vector_search is None:
            counted = {one.id: one.vectors for one in self._store.generations()}
            index = VectorIndex(ready.embedder.dimension)
            # Room that is not used costs no memory; without it the first new vector would copy all of them.
            index.reserve(counted.get(ready.generation, 0) * 9 // 8)
            for numbers, vectors in self._store.vectors(ready.generation):
                index.put(numbers, vectors)
            index.learn()
        outline = self._outline
        if self._sequence:  # words alone served until now
            sequence = min(sequence, self._sequence)
        else:
            outline.put(self._store.outline())
        return LoadedIndex(outline, index, sequence)

    # The image

    def _save(self, *, share: int = CHANGED_SHARE) -> None:
        """Write the image anew if many chunks changed since, and go on with that one: it needs less memory."""
        with self._saving:
            with self._lock:
                generation, size = self._generation, len(self._outline)
                due = size >= MIN_SNAPSHOT_CHUNKS and self._unsaved >= max(
                    MIN_SNAPSHOT_CHANGES, size // share
                )
                if self._image is None or not self._writes or generation is None or not due:
                    return
                unsaved, self._unsaved = self._unsaved, 0
                snapshot = IndexSnapshot(LoadedIndex(self._outline, self._index, self._sequence))
            try:
                write_snapshot(self._image, self._store, generation, snapshot)
            except SnapshotDamaged:
                with self._lock:
                    self._discard_snapshot()
            except (HaloWeaveError, OSError) as error:  # without it a start takes longer, and that is all
                log.info("%s was not written: %s", self._image, error)
                self._unsaved += unsaved  # the next time
                return
            del snapshot
            with self._lock:
                self._generation = None
        if self._embedding.ready:
            self._preload()

    def _retry_without_snapshot(self, step: Callable[[], T]) -> T:
        """A step that reads vectors, repeated without the image if that turns out to be damaged."""
        try:
            return step()
        except SnapshotDamaged:
            self._discard_snapshot()
            return step()

    def _discard_snapshot(self) -> None:
        """All is read from the store; the image goes, or is not used here if this process may not delete it."""
        assert self._image is not None
        log.warning("%s does not fit the memory, which is read from its store.", self._image)
        if self._writes:
            delete_snapshot(self._image)
        if self._image.exists():
            self._image = None
        self._outline, self._index, self._generation, self._sequence = ChunkTable(), None, None, 0
