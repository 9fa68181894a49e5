"""The search index of one store in this process: loaded from the store or from a snapshot file, and kept up to date."""

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
MIN_SNAPSHOT_CHUNKS = 20_000  # smaller memories need no snapshot: the store is read as fast
MIN_SNAPSHOT_CHANGES = 1_000  # with fewer changes since the last snapshot, no new one is written
CHANGED_SHARE = 8  # a new snapshot is written in the background when one in so many chunks has changed
CHANGED_SHARE_AT_CLOSE = 64  # the same when the program ends


class IndexState:
    """The chunk table and the vector index of one store. Callers must hold the lock while they use them."""

    def __init__(
        self,
        store: SqlStore,
        open_embedder: Callable[[], Embedder] | None,
        *,
        writes: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        snapshot_path: Path | None = None,
    ) -> None:
        """The embedder is opened in a background thread.

        `writes`: False embeds nothing, for a memory that is only read. `snapshot_path`: the file with the index snapshot,
        from which the next start loads; None: no snapshot.
        """
        self._store, self._open, self._writes, self._now = store, open_embedder, writes, now
        self._lock = threading.Lock()
        self._table = ChunkTable()
        self._index: VectorIndex | None = None  # all vectors, if the store cannot search them itself
        self._vector_search: VectorSearch | None = None  # the store's own vector index, if it has one
        self._generation: int | None = None
        self._feedback = NegativeFeedback()
        self._changed = 0  # chunks that changed since the baseline of the scores was computed
        self._sequence = 0
        self._snapshot_path = snapshot_path
        self._saving = threading.Lock()
        self._unsaved = 0  # chunks that changed since the snapshot
        self._unverified = False  # a snapshot was just loaded, and may be of a later state than the memory
        self._embedding = self._new_embedding()

    def _new_embedding(self) -> EmbeddingWorker:
        return EmbeddingWorker(
            self._store,
            self._open,
            now=self._now,
            writes=self._writes,
            when_opened=self._preload,
            when_idle=self._save_snapshot,
        )

    def _preload(self) -> None:
        """Load before the first search: a large memory takes seconds."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        """Apply all changes of the store. If another process cleared the memory, load again."""
        try:
            self._verify_and_catch_up()
        except UnknownGeneration:
            self._reset()
            self._verify_and_catch_up()

    def _reset(self) -> None:
        self._table = ChunkTable()
        self._index = self._vector_search = self._generation = None
        self._sequence = self._unsaved = 0
        self._embedding.restart_generation()

    def _verify_and_catch_up(self) -> None:
        """Apply all changes. After a backup was restored, a snapshot may lack vectors that were erased after the backup:
        then it is discarded."""
        self._catch_up()
        if self._unverified:
            self._unverified = False
            try:
                lacking = self._index is not None and self._index.lacks_vectors()
            except SnapshotDamaged:
                lacking = True
            if lacking:
                self._discard_snapshot()
                self._catch_up()

    def _catch_up(self) -> None:
        """Apply the changes of this and other processes. One cheap query if nothing changed."""
        ready = self._embedding.ready
        if ready and self._generation != ready.generation:
            self._load(ready)
        sequence = self._store.sequence()
        if sequence == self._sequence:
            return
        changes = self._store.changes(self._sequence)
        self._read_negative_feedback()
        self._table.drop(changes.gone)
        self._table.put(self._store.chunk_places(self._sequence))
        count = len(changes.present) + len(changes.gone)
        self._changed, self._unsaved = self._changed + count, self._unsaved + count
        if self._index is not None and self._generation is not None:
            self._index.remove(changes.gone)
            self._index.put(*self._store.vectors_of(self._generation, changes.present.tolist()))
        if self._index is None or not self._index.has(changes.present).all():
            self._embedding.notify()
        self._sequence = changes.sequence

    def _read_negative_feedback(self) -> None:
        feedback, ready = self._store.negative_feedback(), self._embedding.ready
        queries = list(dict.fromkeys(query for _, query in feedback))
        vectors = ready.embedder.embed(queries, query=True) if ready and queries else ()
        self._feedback.replace(feedback, dict(zip(queries, vectors, strict=False)))

    def _load(self, ready: OpenEmbedder) -> None:
        """Load the index of a generation, without vectors if the store has its own vector index. The next refresh applies
        what changes meanwhile."""
        self._vector_search = self._store.vector_search(ready.generation)
        loaded = self._snapshot_path and open_snapshot(
            self._snapshot_path,
            self._store,
            ready.generation,
            vectors=self._vector_search is None,
            writes=self._writes,
        )
        self._unsaved, self._unverified = 0, bool(loaded)
        if not loaded:
            if self._snapshot_path and self._writes:
                delete_snapshot(self._snapshot_path)  # it may contain text that was deleted from this memory
            loaded = self._load_from_store(ready)
            self._unsaved = len(loaded.table)
        self._table, self._index, self._sequence = loaded.table, loaded.index, loaded.sequence
        self._generation = ready.generation
        self._read_negative_feedback()

    def _load_from_store(self, ready: OpenEmbedder) -> LoadedIndex:
        sequence, index = self._store.sequence(), None
        if self._vector_search is None:
            vector_counts = {generation.id: generation.vectors for generation in self._store.generations()}
            index = VectorIndex(ready.embedder.dimension)
            # Unused room takes no memory; without it, the first new vector would copy all others.
            index.reserve(vector_counts.get(ready.generation, 0) * 9 // 8)
            for numbers, vectors in self._store.vectors(ready.generation):
                index.put(numbers, vectors)
            index.learn()
        table = self._table
        if self._sequence:  # the table was loaded before the embedder was ready
            sequence = min(sequence, self._sequence)
        else:
            table.put(self._store.chunk_places())
        return LoadedIndex(table, index, sequence)

    # The snapshot

    def _save_snapshot(self, *, share: int = CHANGED_SHARE) -> None:
        """Write a new snapshot if many chunks have changed since the last, and load it: it needs less memory."""
        with self._saving:
            with self._lock:
                generation, size = self._generation, len(self._table)
                due = size >= MIN_SNAPSHOT_CHUNKS and self._unsaved >= max(
                    MIN_SNAPSHOT_CHANGES, size // share
                )
                if self._snapshot_path is None or not self._writes or generation is None or not due:
                    return
                unsaved, self._unsaved = self._unsaved, 0
                snapshot = IndexSnapshot(LoadedIndex(self._table, self._index, self._sequence))
            try:
                write_snapshot(self._snapshot_path, self._store, generation, snapshot)
            except SnapshotDamaged:
                with self._lock:
                    self._discard_snapshot()
            except (HaloWeaveError, OSError) as error:  # without a snapshot, only the start takes longer
                log.info("%s was not written: %s", self._snapshot_path, error)
                self._unsaved += unsaved  # it is tried again next time
                return
            del snapshot
            with self._lock:
                self._generation = None  # so that `_preload` loads the new snapshot
        if self._embedding.ready:
            self._preload()

    def _retry_without_snapshot(self, step: Callable[[], T]) -> T:
        """Run a step that reads vectors. If the snapshot is damaged, discard it and run the step again."""
        try:
            return step()
        except SnapshotDamaged:
            self._discard_snapshot()
            return step()

    def _discard_snapshot(self) -> None:
        """Delete the snapshot, or ignore it if this process may not delete it. The next refresh loads from the store."""
        assert self._snapshot_path is not None
        log.warning("%s does not match the memory: the index is loaded from the store.", self._snapshot_path)
        if self._writes:
            delete_snapshot(self._snapshot_path)
        if self._snapshot_path.exists():
            self._snapshot_path = None
        self._table, self._index, self._generation, self._sequence = ChunkTable(), None, None, 0
