"""Search all stored chunks by embedding similarity and by BM25. One instance serves all windows of a process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.core.informativeness import is_first_person, is_general_request, question_share
from halo_weave.core.resurrection import RecallHit
from halo_weave.core.terms import query_terms, terms
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import NO_FILTER, Embedder, SearchFilter
from halo_weave.errors import BadSetting, EngineError
from halo_weave.search.chunk_table import ROLES, Bools, Rows
from halo_weave.search.embedding_worker import EmbeddingWorker, OpenEmbedder
from halo_weave.search.filters import filter_mask, said_in_spans
from halo_weave.search.index_snapshot import delete_snapshot
from halo_weave.search.index_state import CHANGED_SHARE_AT_CLOSE, IndexState
from halo_weave.search.query_analysis import DateSpan, mentioned_dates, rephrase_as_speaker
from halo_weave.search.ranking import (
    BASELINE_SENTENCES,
    EVIDENCE,
    NEIGHBOUR_WEIGHTS,
    WITH_VECTORS,
    WITHOUT_VECTORS,
    Candidates,
    ChunkVectors,
    Floats,
    ScoreBaseline,
    TermMatch,
    find_terms,
)
from halo_weave.search.vector_index import BLOCK, FetchedVectors, VectorIndex, cosine_similarity
from halo_weave.store.sql_store import SqlStore

SHORTLIST = 400  # most candidates from each of: vector index, word index, mentioned dates
EXPANDED_NEAREST = 100  # of the nearest by embedding; their neighbours become candidates, too
BASELINE_CHUNKS = 400  # sampled for the baseline of the similarities
# A longer query is cut here before it is embedded or searched for dates and names. Its terms are taken from all of it.
MAX_QUERY_CHARACTERS = 4_000
# If many chunks are not allowed, the store is asked for up to this many times the shortlist.
MAX_OVERFETCH = 10
MAX_STORE_COMPARISONS = 20_000  # with at most so many allowed chunks, the store compares exactly these
CACHED_QUERIES = 8  # query vectors kept
OUTDATED_MESSAGE = (
    "The vectors were made by an earlier version and are still used. To renew them, run: halo-weave reindex"
)
MAX_QUERY_TERMS = 64  # terms looked up in the word index
USER_WEIGHT = 2.5  # default of `user_weight`, as in the settings


class MemorySearch(IndexState):
    """Hybrid search over one store. Safe to use from any thread."""

    def __init__(
        self,
        store: SqlStore,
        open_embedder: Callable[[], Embedder] | None,
        *,
        writes: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        snapshot_path: Path | None = None,
    ) -> None:
        """The parameters are those of `IndexState`."""
        super().__init__(store, open_embedder, writes=writes, now=now, snapshot_path=snapshot_path)
        self.model = WITH_VECTORS
        self._query_executor = ThreadPoolExecutor(1, "query-embedding")
        self._query_vectors: dict[tuple[str, EmbeddingWorker], Future[Floats | None]] = {}  # oldest first
        self._baseline: ScoreBaseline | None = None
        self._baseline_sentences: dict[str, Floats] = {}  # vectors of `BASELINE_SENTENCES`, by embedder
        self._embedding.start()

    # Public methods

    def prefetch_query(self, text: str) -> None:
        """Begin to embed a text that will soon be searched for."""
        if text.strip():
            self._query_vector(text)

    def search(
        self,
        text: str,
        *,
        window: str | None = None,
        limit: int = 50,
        now: datetime,
        user_weight: float = USER_WEIGHT,
        only: SearchFilter = NO_FILTER,
    ) -> list[RecallHit]:
        """The chunks that are most likely to help with a message, best first, from one window or all.

        Without an embedder, only the word index is searched.
        """
        if user_weight <= 0:
            raise BadSetting(f"user_weight is {user_weight}; use a number above 0.")
        if not text.strip() or limit < 1:
            return []
        words_by_stem = query_terms(text, MAX_QUERY_TERMS)  # each stem with a word of the query that has it
        query_vector = self._query_vector(text)  # computed while the word index is searched

        def find() -> list[RecallHit]:
            return self._find(text, words_by_stem, query_vector, window, limit, now, user_weight, only)

        with self._lock:
            return self._retry_without_snapshot(find)

    def candidates(self, text: str, *, now: datetime) -> tuple[list[ChunkKey], Candidates]:
        """The candidates for a text with their features: what a `RecallModel` is fitted on."""
        with self._lock:
            found = self._candidates_with_features(
                text, query_terms(text, MAX_QUERY_TERMS), self._query_vector(text), None, now, NO_FILTER
            )
            return [self._table.key(row) for row in found.rows.tolist()], found

    def embed_soon(self) -> None:
        """Tell the background thread that new chunks are stored."""
        self._embedding.notify()

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all chunks are embedded, or embedding has failed."""
        return self._embedding.settle(timeout)

    def embedder(self, timeout: float | None = None) -> Embedder | None:
        """The embedder, after waiting until it is open. None: there is none, or it could not be opened."""
        self._embedding.wait_until_opened(timeout)
        return self._embedding.ready.embedder if self._embedding.ready else None

    def status(self) -> Mapping[str, Any]:
        ready = self._embedding.ready
        outdated = ready is not None and ready.outdated
        wanted = vectors = 0
        for generation in self._store.generations() if ready else ():
            if ready and generation.id == ready.generation:
                wanted, vectors = generation.wanted, generation.vectors
        return {
            "state": self._embedding.state,
            "model": ready.embedder.name if ready else "",
            "file": ready.embedder.file if ready else "",
            "sentence": self._embedding.sentence or (OUTDATED_MESSAGE if outdated and not wanted else ""),
            "older": outdated,
            "wanted": wanted,
            "vectors": vectors,
            "bytes": self._index.bytes if self._index else 0,
        }

    def forget(self) -> None:
        """Drop the loaded index, because the memory was cleared."""
        with self._lock:
            self._reset()
            if self._snapshot_path:
                delete_snapshot(self._snapshot_path)

    def reopen(self) -> None:
        """Open the embedder again, because the memory now has vectors of another one. Until it is open, the old one is used."""
        old, new = self._embedding, self._new_embedding()
        new.start()
        new.wait_until_opened()
        self._embedding = new
        old.close()
        if new.ready:
            self._preload()

    def close(self) -> None:
        self._query_executor.shutdown()
        self._embedding.close()
        self._save_snapshot(share=CHANGED_SHARE_AT_CLOSE)

    # Query vectors, and loading

    def _query_vector(self, text: str) -> Future[Floats | None]:
        """The vector of a query: cached, for example from a preview, or being computed. None: there is no embedder."""
        key = text, self._embedding
        future = self._query_vectors.pop(key, None)
        if future is None or (future.done() and (future.exception() or future.result() is None)):
            future = self._query_executor.submit(self._embed_query, text)  # not cached, or it failed
        self._query_vectors[key] = future
        for oldest in list(self._query_vectors)[:-CACHED_QUERIES]:
            self._query_vectors.pop(oldest, None)
        return future

    def _embed_query(self, text: str) -> Floats | None:
        ready = self._embedding.ready
        if ready is None:
            return None
        try:
            query = rephrase_as_speaker(text[:MAX_QUERY_CHARACTERS], list(self._table.speaker_codes))
            return np.asarray(ready.embedder.embed([query], query=True)[0])
        except EngineError as error:
            self._embedding.sentence = f"{error} The last query was searched for by words only."
            return None

    def _reset(self) -> None:
        super()._reset()
        self._baseline = None

    def _load(self, ready: OpenEmbedder) -> None:
        super()._load(ready)
        self._baseline = None

    def _preload(self) -> None:
        def load() -> None:
            self._refresh()
            if len(self._table):
                self._current_baseline()

        with self._lock:
            self._retry_without_snapshot(load)

    # Searching

    def _find(
        self,
        text: str,
        words_by_stem: Mapping[str, str],
        query_vector: Future[Floats | None],
        window: str | None,
        limit: int,
        now: datetime,
        user_weight: float,
        only: SearchFilter,
    ) -> list[RecallHit]:
        found = self._candidates_with_features(text, words_by_stem, query_vector, window, now, only)
        if not len(found.rows):
            return []
        model = self.model if "best_passage" in found.features else WITHOUT_VECTORS
        return self._hits(found, found.score(model, user_weight), limit)

    def _candidates_with_features(
        self,
        text: str,
        words_by_stem: Mapping[str, str],
        query_vector: Future[Floats | None],
        window: str | None,
        now: datetime,
        only: SearchFilter,
    ) -> Candidates:
        self._refresh()
        term_hits = find_terms(self._store, self._table, words_by_stem, window=window)
        match = TermMatch(term_hits, len(words_by_stem), self._table)
        dates = mentioned_dates(text[:MAX_QUERY_CHARACTERS], now)
        allowed = filter_mask(self._table, window, only)
        first_rows = self._first_candidates(match.bm25, dates, now, allowed)
        # Fetch the vectors of these rows while the query is still being embedded.
        blocks = self._vector_blocks(first_rows, self._index) if self._index else []
        query = query_vector.result()
        rows = self._candidates(query, first_rows, window, allowed)
        index = None if query is None or not len(rows) else self._vectors_with_neighbours(rows)
        z_scores = None
        if query is not None and index:
            blocks += self._vector_blocks(np.setdiff1d(rows, first_rows) if blocks else rows, index)
            z_scores = self._z_scores(query, rows, blocks)
        features = self._features(query, rows, z_scores, match, dates, text, now)
        informative = features["uninformative"] == 0
        message = {
            "question_share": question_share(text),
            "first_person": float(is_first_person(text)),
            "general_request": float(is_general_request(text)),
            "term_count": math.log1p(match.term_count),
            "top_coverage": _highest(match.neighbours_coverage[rows], informative),
            "memory_size": math.log1p(np.count_nonzero(allowed)),
        }
        return Candidates(rows, features, message, term_hits)

    def _first_candidates(
        self, bm25: Floats, dates: Sequence[DateSpan], now: datetime, allowed: Bools
    ) -> Rows:
        """The candidates that are known before the query vector is: rows with the best BM25, and the latest rows of the mentioned
        dates. Of a small memory all rows."""
        table = self._table
        if len(table) <= 2 * SHORTLIST:
            return np.flatnonzero(allowed)
        matching = np.flatnonzero((bm25 > 0) & allowed)
        rows = matching[np.argsort(-bm25[matching], kind="stable")[:SHORTLIST]]
        if dates:
            dated = np.flatnonzero(
                said_in_spans(table, np.arange(len(table["number"])), dates, now) & allowed
            )
            latest = dated[np.argsort(-table["said"][dated], kind="stable")[:SHORTLIST]]
            rows = np.concatenate([rows, latest])
        return np.unique(rows)

    def _candidates(self, query: Floats | None, first_rows: Rows, window: str | None, allowed: Bools) -> Rows:
        """The first candidates, and the rows nearest to the query with their neighbours; each once, in order."""
        if query is None or len(self._table) <= 2 * SHORTLIST:
            return first_rows
        nearest = self._nearest(query, window, allowed)
        neighbours = self._table.around(nearest[:EXPANDED_NEAREST], 1)
        rows = np.unique(np.concatenate([first_rows, nearest, *neighbours]))
        rows = rows[rows >= 0]
        return np.asarray(rows[allowed[rows]])

    def _nearest(self, query: Floats, window: str | None, allowed: Bools) -> Rows:
        """The allowed rows nearest to the query vector, nearest first."""
        if self._vector_search:
            # With few allowed chunks, the store compares exactly these. With many, it is asked for more than are
            # needed, since it also returns chunks that are not allowed.
            size, allowed_count = len(self._table), int(np.count_nonzero(allowed))
            among = (
                self._table["number"][np.flatnonzero(allowed)]
                if allowed_count <= min(MAX_STORE_COMPARISONS, size - 1)
                else None
            )
            limit = (
                SHORTLIST
                if among is not None or window
                else SHORTLIST * min(MAX_OVERFETCH, math.ceil(size / max(1, allowed_count)))
            )
            numbers, _ = self._vector_search.nearest(query, limit=limit, window=window, among=among)
            rows = self._table.rows(numbers)
            return rows[(rows >= 0) & allowed[rows]][:SHORTLIST]
        if self._index is None:
            return np.zeros(0, np.int64)
        if np.count_nonzero(allowed) == len(self._table):
            return self._table.rows(self._index.nearest(query, SHORTLIST))
        rows = np.flatnonzero(allowed)
        rows = rows[self._index.has(self._table["number"][rows])]
        best = [np.zeros(0, np.float32)]
        for start in range(0, len(rows), BLOCK):
            vectors, counts = self._index.of(self._table["number"][rows[start : start + BLOCK]])
            best.append(np.maximum.reduceat(cosine_similarity(vectors, query), np.cumsum(counts) - counts))
        return np.asarray(rows[np.argsort(-np.concatenate(best), kind="stable")[:SHORTLIST]])

    def _z_scores(
        self, query: Floats, rows: Rows, blocks: Sequence[tuple[Rows, ChunkVectors]]
    ) -> tuple[Floats, Floats]:
        """Similarities in standard deviations above the baseline: of each row's best passage, and of the row with its
        neighbours."""
        best_passage, with_neighbours = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
        (mean, spread), (neighbours_mean, neighbours_spread) = self._current_baseline().measure(query)
        for block, vectors in blocks:
            i = np.searchsorted(rows, block)
            best_passage[i] = np.nan_to_num((vectors.best_passage_similarity(query) - mean) / spread, nan=0)
            with_neighbours[i] = (vectors.neighbours_similarity(query) - neighbours_mean) / neighbours_spread
        return best_passage, with_neighbours

    def _features(
        self,
        query: Floats | None,
        rows: Rows,
        z_scores: tuple[Floats, Floats] | None,
        match: TermMatch,
        dates: Sequence[DateSpan],
        text: str,
        now: datetime,
    ) -> dict[str, Floats]:
        """The features of each row, by the names in `RankingWeights`. `z_scores`: see `_z_scores`; None without vectors."""
        table = self._table
        # The best values are taken over informative rows only: the nearest row to a question is often the same question.
        informative = table["told"][rows] > 0
        features: dict[str, Any] = {
            "user": table["role"][rows] == ROLES.index(Role.USER),
            "uninformative": ~informative,
        }
        if z_scores:
            features["best_passage"], features["with_neighbours"] = z_scores
        best_bm25 = _highest(match.bm25[rows], informative)
        if not best_bm25:
            best_bm25 = _highest(match.bm25[rows])
        if best_bm25:
            features["term_coverage"] = match.coverage[rows]
            features["bm25"] = np.minimum(match.bm25[rows] / np.float32(best_bm25), 1)
        if speakers := self._mentioned_speakers(text):
            features["speaker"] = np.isin(table["speaker"][rows], speakers)
        if dates:
            features["time"] = said_in_spans(table, rows, dates, now)
        feedback = self._feedback.similarity(table["number"][rows], text[:MAX_QUERY_CHARACTERS], query)
        if feedback is not None:
            features["feedback"] = feedback
        return {name: np.asarray(values, np.float32) for name, values in features.items()}

    def _mentioned_speakers(self, text: str) -> list[int]:
        """Codes of the speakers whose name a query mentions first: several speakers can have the same name."""
        query = terms(text[:MAX_QUERY_CHARACTERS])
        mentioned = []
        for name, code in self._table.speaker_codes.items():
            name_terms = terms(name)
            if name_terms and set(query).issuperset(name_terms):
                mentioned.append((query.index(name_terms[0]), code))
        first = min(mentioned, default=(0, 0))[0]
        return [code for index, code in mentioned if index == first]

    def _vectors_with_neighbours(self, rows: Rows) -> VectorIndex | FetchedVectors | None:
        """The vectors of at least these rows and their neighbours; None if no vectors are loaded."""
        if self._vector_search and self._generation is not None:
            neighbours = self._table.around(rows, len(NEIGHBOUR_WEIGHTS))
            wanted = np.unique(np.concatenate([rows, *neighbours]))
            numbers = self._table["number"][wanted[wanted >= 0]]
            owners, vectors = self._store.vectors_of(self._generation, numbers.tolist())
            return FetchedVectors(owners, vectors)
        return self._index

    def _vector_blocks(
        self, rows: Rows, index: VectorIndex | FetchedVectors
    ) -> list[tuple[Rows, ChunkVectors]]:
        """The vectors of the rows in blocks so small that they stay in the processor's cache."""
        blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        return [(block, self._chunk_vectors(block, index)) for block in blocks]

    def _chunk_vectors(self, rows: Rows, index: VectorIndex | FetchedVectors) -> ChunkVectors:
        return ChunkVectors.of(rows, self._table, index, NEIGHBOUR_WEIGHTS)

    def _current_baseline(self) -> ScoreBaseline:
        """The baseline; its chunks are sampled again after a tenth of the memory has changed."""
        size, ready = len(self._table), self._embedding.ready
        assert ready is not None
        if self._baseline is None or self._changed > size // 10:
            present = np.flatnonzero(self._table["present"])
            sample = present[:: max(1, len(present) // BASELINE_CHUNKS)]
            index = self._vectors_with_neighbours(sample)
            if ready.embedder.name not in self._baseline_sentences:
                self._baseline_sentences = {ready.embedder.name: ready.embedder.embed(BASELINE_SENTENCES)}
            chunks = self._chunk_vectors(sample, index) if index and len(sample) else None
            self._baseline = ScoreBaseline(chunks, self._baseline_sentences[ready.embedder.name])
            self._changed = 0
        return self._baseline

    def _hits(self, found: Candidates, parts: Mapping[str, Floats], limit: int) -> list[RecallHit]:
        rows, term_hits = found.rows, found.term_hits
        zeros = np.zeros(len(rows), np.float32)
        total = sum(parts.values(), zeros)
        # A row without evidence fits no better than any other, so it is no hit, even if the user said it.
        evidence = sum((part for name, part in parts.items() if name in EVIDENCE), zeros)
        relevant = np.flatnonzero(evidence > 0)
        order = relevant[np.lexsort((-self._table["said"][rows[relevant]], -total[relevant]))][:limit]
        matched_terms: dict[int, list[str]] = {}
        for hit in term_hits:
            for row in np.intersect1d(hit.rows, rows[order]).tolist():
                matched_terms.setdefault(row, []).append(hit.term)
        return [
            RecallHit(
                self._table.key(int(rows[i])),
                round(float(total[i]), 4),
                {name: round(float(part[i]), 4) for name, part in parts.items() if part[i]},
                tuple(matched_terms.get(int(rows[i]), ())),
            )
            for i in order.tolist()
        ]


def _highest(values: Floats, among: Bools | None = None) -> float:
    """The highest of the values, or of those that `among` selects, and at least 0."""
    return float((values if among is None else values[among]).max(initial=0))
