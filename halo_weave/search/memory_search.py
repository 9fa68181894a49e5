"""Search everything ever said, by meaning and by words; shared by all windows of a process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.core.informativeness import asking_share, speaks_of_us
from halo_weave.core.resurrection import RecallHit
from halo_weave.core.terms import query_terms, terms
from halo_weave.core.tokens import Role
from halo_weave.engines.base import NO_FILTER, Embedder, SearchFilter
from halo_weave.errors import BadSetting, EngineError
from halo_weave.search.chunk_table import ROLES, Bools, Rows
from halo_weave.search.embedding_worker import EmbeddingWorker, OpenEmbedder
from halo_weave.search.filters import said_within, searched_rows
from halo_weave.search.index_snapshot import delete_snapshot
from halo_weave.search.index_state import CHANGED_SHARE_AT_CLOSE, IndexState
from halo_weave.search.query_analysis import Span, days_named, rephrase_as_speaker
from halo_weave.search.ranking import (
    CONTEXT,
    ORDINARY,
    WITH_VECTORS,
    WORDS_ALONE,
    WRONG,
    ChunkVectors,
    Floats,
    Ordinary,
    TermHits,
    WordMatch,
    find_terms,
)
from halo_weave.search.vector_index import BLOCK, FetchedVectors, VectorIndex, cosine_similarity
from halo_weave.store.sql_store import SqlStore

SHORTLIST = 400  # chunks that each way of searching may put forward
EXPANDED_NEAREST = 100  # of the nearest in meaning, whose neighbours are looked at as well
SAMPLE = 400  # chunks that tell what likeness is ordinary for a message
MAX_QUERY_CHARACTERS = 4_000  # characters of a question that are embedded
MAX_STORE_COMPARISONS = 20_000  # chunks that a store is asked to compare one by one
CACHED_QUERIES = 8  # whose vectors are remembered
OUTDATED_MESSAGE = (
    "The vectors were made by an earlier version and still serve. To renew them, run: halo-weave reindex"
)
MOST_TERMS = 64  # of a question, that the word index is asked for
EVIDENCE = (
    "meaning",
    "words",
    "speaker",
    "time",
    "wrong",
)  # parts that say what a chunk has to do with a message
USER_WEIGHT = 2.5  # `user_weight` where nobody chose another one


class MemorySearch(IndexState):
    """Meaning and words over one store. Safe from any thread."""

    def __init__(
        self,
        store: SqlStore,
        open_embedder: Callable[[], Embedder] | None,
        *,
        writes: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        image: Path | None = None,
    ) -> None:
        """`writes`, `now` and `image` are as for `IndexState`."""
        super().__init__(store, open_embedder, writes=writes, now=now, image=image)
        self.weights = WITH_VECTORS
        self._beside = ThreadPoolExecutor(1, "question")
        self._questions: dict[tuple[str, EmbeddingWorker], Future[Floats | None]] = {}  # the latest, by text
        self._ordinary: Ordinary | None = None
        self._sentences: dict[str, Floats] = {}  # vectors of `ORDINARY`, by embedder
        self._embedding.start()

    # What others call

    def expect(self, text: str) -> None:
        """This text will be searched for soon: it is embedded while the caller gets ready."""
        if text.strip():
            self._vector_of(text)

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
        """The chunks that answer to a text, best first, out of all windows or one. Words alone serve without vectors."""
        if user_weight <= 0:
            raise BadSetting(f"user_weight is {user_weight}; use a number above 0.")
        if not text.strip() or limit < 1:
            return []
        asked = query_terms(text, MOST_TERMS)
        embedding = self._vector_of(text)  # while the words are looked up

        def find() -> list[RecallHit]:
            return self._find(text, asked, embedding, window, limit, now, user_weight, only)

        with self._lock:
            return self._retry_without_snapshot(find)

    def embed_soon(self) -> None:
        """New chunks are in the store: embed them when there is time."""
        self._embedding.note()

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until all that was said is embedded, or cannot be."""
        return self._embedding.settle(timeout)

    def embedder(self, timeout: float | None = None) -> Embedder | None:
        """The embedder once it is there, for whoever needs vectors of other texts."""
        self._embedding.opened(timeout)
        return self._embedding.ready.embedder if self._embedding.ready else None

    def status(self) -> Mapping[str, Any]:
        ready = self._embedding.ready
        older = ready is not None and ready.older
        wanted = vectors = 0
        for generation in self._store.generations() if ready else ():
            if ready and generation.id == ready.generation:
                wanted, vectors = generation.wanted, generation.vectors
        return {
            "state": self._embedding.state,
            "model": ready.embedder.name if ready else "",
            "file": ready.embedder.file if ready else "",
            "sentence": self._embedding.sentence or (OUTDATED_MESSAGE if older and not wanted else ""),
            "older": older,
            "wanted": wanted,
            "vectors": vectors,
            "bytes": self._index.bytes if self._index else 0,
        }

    def forget(self) -> None:
        """The memory was cleared."""
        with self._lock:
            self._reset()
            if self._image:
                delete_snapshot(self._image)

    def reopen(self) -> None:
        """The memory has the vectors of another embedder now: open that one. The old one serves until it is there."""
        before, after = self._embedding, self._new_embedding()
        after.start()
        after.opened()
        self._embedding = after
        before.close()
        if after.ready:
            self._preload()

    def close(self) -> None:
        self._beside.shutdown()
        self._embedding.close()
        self._save(share=CHANGED_SHARE_AT_CLOSE)

    # Keeping up

    def _vector_of(self, text: str) -> Future[Floats | None]:
        """A question's vector, which may be known, as from a preview, or on its way. None: words alone serve."""
        key = text, self._embedding
        known = self._questions.pop(key, None)
        if known is None or (known.done() and (known.exception() or known.result() is None)):
            known = self._beside.submit(self._embed, text)
        self._questions[key] = known
        for oldest in list(self._questions)[:-CACHED_QUERIES]:
            self._questions.pop(oldest, None)
        return known

    def _embed(self, text: str) -> Floats | None:
        ready = self._embedding.ready
        if ready is None:
            return None
        try:
            asked = rephrase_as_speaker(text[:MAX_QUERY_CHARACTERS], list(self._outline.speaker_codes))
            return np.asarray(ready.embedder.embed([asked], query=True)[0])
        except EngineError as error:
            self._embedding.sentence = f"{error} Words alone served the last question."
            return None

    def _reset(self) -> None:
        super()._reset()
        self._ordinary = None

    def _load(self, ready: OpenEmbedder) -> None:
        super()._load(ready)
        self._ordinary = None

    def _preload(self) -> None:
        def load() -> None:
            self._refresh()
            if len(self._outline):
                self._ordinary_texts()

        with self._lock:
            self._retry_without_snapshot(load)

    # Searching

    def _find(
        self,
        text: str,
        asked: Mapping[str, str],
        embedding: Future[Floats | None],
        window: str | None,
        limit: int,
        now: datetime,
        user_weight: float,
        only: SearchFilter,
    ) -> list[RecallHit]:
        self._refresh()
        found = find_terms(self._store, self._outline, asked, window=window)
        words = WordMatch(found, len(asked), self._outline)
        named = days_named(text[:MAX_QUERY_CHARACTERS], now)
        within = searched_rows(self._outline, window, only)
        early = self._early_candidates(words.bm25, named, now, within)
        meanings = self._meanings(early, self._index) if self._index else []
        query = embedding.result()
        rows = self._candidates(query, early, window, within)
        if not len(rows):
            return []
        index = None if query is None else self._vectors_with_neighbours(rows)
        meaning = None
        if query is not None and index:
            meanings += self._meanings(np.setdiff1d(rows, early) if meanings else rows, index)
            meaning = self._standing(query, rows, meanings)
        parts = self._parts(query, rows, meaning, words, named, text, now, user_weight)
        return self._hits(rows, parts, found, limit)

    def _early_candidates(self, words: Floats, named: Sequence[Span], now: datetime, within: Bools) -> Rows:
        """Rows worth a closer look whatever the question means: strong in words, of the time that is named."""
        outline = self._outline
        if len(outline) <= 2 * SHORTLIST:
            return np.flatnonzero(within)
        strong = np.flatnonzero((words > 0) & within)
        rows = strong[np.argsort(-words[strong], kind="stable")[:SHORTLIST]]
        if named:
            inside = np.flatnonzero(
                said_within(outline, np.arange(len(outline["number"])), named, now) & within
            )
            latest = inside[np.argsort(-outline["said"][inside], kind="stable")[:SHORTLIST]]
            rows = np.concatenate([rows, latest])
        return np.unique(rows)

    def _candidates(self, query: Floats | None, early: Rows, window: str | None, within: Bools) -> Rows:
        """Those, and what is near in meaning, with its neighbours; each once, in order."""
        if query is None or len(self._outline) <= 2 * SHORTLIST:
            return early
        near = self._nearest(query, window, within)
        rows = np.unique(np.concatenate([early, near, *self._outline.around(near[:EXPANDED_NEAREST], 1)]))
        rows = rows[rows >= 0]
        return np.asarray(rows[within[rows]])

    def _nearest(self, query: Floats, window: str | None, within: Bools) -> Rows:
        """Rows of the chunks nearest in meaning, nearest first, out of all or some."""
        if self._vector_search:
            # Of few, each is compared; of many, more are asked for, since those that are left out come back as well.
            size, some = len(self._outline), int(np.count_nonzero(within))
            among = (
                self._outline["number"][np.flatnonzero(within)]
                if some <= min(MAX_STORE_COMPARISONS, size - 1)
                else None
            )
            limit = (
                SHORTLIST if among is not None or window else SHORTLIST * min(10, -(-size // max(1, some)))
            )
            found, _ = self._vector_search.nearest(query, limit=limit, window=window, among=among)
            rows = self._outline.rows(found)
            return rows[(rows >= 0) & within[rows]][:SHORTLIST]
        if self._index is None:
            return np.zeros(0, np.int64)
        if np.count_nonzero(within) == len(self._outline):
            return self._outline.rows(self._index.nearest(query, SHORTLIST))
        rows = np.flatnonzero(within)
        rows = rows[self._index.has(self._outline["number"][rows])]
        best = [np.zeros(0, np.float32)]
        for start in range(0, len(rows), BLOCK):
            vectors, counts = self._index.of(self._outline["number"][rows[start : start + BLOCK]])
            best.append(np.maximum.reduceat(cosine_similarity(vectors, query), np.cumsum(counts) - counts))
        return np.asarray(rows[np.argsort(-np.concatenate(best), kind="stable")[:SHORTLIST]])

    def _standing(
        self, query: Floats, rows: Rows, meanings: Sequence[tuple[Rows, ChunkVectors]]
    ) -> tuple[Floats, Floats]:
        """How far the best passage of each row, and the row amid its neighbours, stand above ordinary texts."""
        alone, amid = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
        (middle, spread), (middle_amid, spread_amid) = self._ordinary_texts().measure(query)
        for part, vectors in meanings:
            at = np.searchsorted(rows, part)
            alone[at] = np.nan_to_num((vectors.best_passages(query) - middle) / spread, nan=0)
            amid[at] = (vectors.amid_neighbours(query) - middle_amid) / spread_amid
        return alone, amid

    def _parts(
        self,
        query: Floats | None,
        rows: Rows,
        meaning: tuple[Floats, Floats] | None,
        words: WordMatch,
        named: Sequence[Span],
        text: str,
        now: datetime,
        user_weight: float,
    ) -> dict[str, Floats]:
        """What each part adds to the log-odds of each row."""
        outline, weights = self._outline, self.weights if meaning else WORDS_ALONE
        parts: dict[str, Floats] = {}
        # An earlier question is the nearest to this one, and must not set the measure for what tells something.
        tells = outline["told"][rows] > 0
        message = weights.base + weights.fullest * _highest(words.near[rows], tells)
        message += weights.question * asking_share(text) + weights.mine * speaks_of_us(text)
        message += weights.terms * math.log1p(words.terms)
        if meaning:
            alone, amid = meaning
            parts["meaning"] = weights.passage * alone + weights.amid * amid
            message += weights.nearest * _highest(alone, tells)
        best = _highest(words.bm25[rows], tells) or _highest(words.bm25[rows])
        if best:
            relative = np.minimum(words.bm25[rows] / np.float32(best), 1)
            parts["words"] = weights.share * words.own[rows] + weights.bm25 * relative
        heard = self._speakers_named(text)
        if heard:
            parts["speaker"] = weights.speaker * np.isin(outline["speaker"][rows], heard)
        if named:
            parts["time"] = weights.time * said_within(outline, rows, named, now)
        wrong = self._marks.weigh(outline["number"][rows], text[:MAX_QUERY_CHARACTERS], query)
        if wrong is not None:
            parts["wrong"] = -WRONG * wrong
        parts["user"] = np.float32(math.log(user_weight)) * (outline["role"][rows] == ROLES.index(Role.USER))
        parts["asking"] = weights.asking * ~tells
        parts["message"] = np.full(len(rows), message)
        return {name: np.asarray(part, np.float32) for name, part in parts.items()}

    def _speakers_named(self, text: str) -> list[int]:
        """Codes of the speakers that a question is about: of several that it names, the one it names first."""
        spoken = terms(text[:MAX_QUERY_CHARACTERS])
        named = []
        for name, code in self._outline.speaker_codes.items():
            parts = terms(name)
            if parts and set(spoken).issuperset(parts):
                named.append((spoken.index(parts[0]), code))
        first = min(named, default=(0, 0))[0]
        return [code for place, code in named if place == first]

    def _vectors_with_neighbours(self, rows: Rows) -> VectorIndex | FetchedVectors | None:
        """Vectors of at least these chunks and what stands around them; None without vectors."""
        if self._vector_search and self._generation is not None:
            around = self._outline.around(rows, len(CONTEXT))
            wanted = np.unique(np.concatenate([rows, *around]))
            numbers = self._outline["number"][wanted[wanted >= 0]]
            owners, vectors = self._store.vectors_of(self._generation, numbers.tolist())
            return FetchedVectors(owners, vectors)
        return self._index

    def _meanings(self, rows: Rows, index: VectorIndex | FetchedVectors) -> list[tuple[Rows, ChunkVectors]]:
        """A few rows at a time: their vectors then stay in the processor's cache."""
        parts = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        return [(part, self._meaning(part, index)) for part in parts]

    def _meaning(self, rows: Rows, index: VectorIndex | FetchedVectors) -> ChunkVectors:
        return ChunkVectors.of(rows, self._outline, index, CONTEXT)

    def _ordinary_texts(self) -> Ordinary:
        """A large memory looks at the same chunks until a tenth of it has changed."""
        size, ready = len(self._outline), self._embedding.ready
        assert ready is not None
        if self._ordinary is None or self._changed > size // 10:
            everyone = np.flatnonzero(self._outline["present"])
            some = everyone[:: max(1, len(everyone) // SAMPLE)]
            index = self._vectors_with_neighbours(some)
            if ready.embedder.name not in self._sentences:
                self._sentences = {ready.embedder.name: ready.embedder.embed(ORDINARY)}
            chunks = self._meaning(some, index) if index and len(some) else None
            self._ordinary, self._changed = Ordinary(chunks, self._sentences[ready.embedder.name]), 0
        return self._ordinary

    def _hits(
        self, rows: Rows, parts: Mapping[str, Floats], found: Sequence[TermHits], limit: int
    ) -> list[RecallHit]:
        nothing = np.zeros(len(rows), np.float32)
        total = sum(parts.values(), nothing)
        # What fits no better than any other chunk is no hit, whoever said it.
        fits = sum((part for name, part in parts.items() if name in EVIDENCE), nothing)
        good = np.flatnonzero(fits > 0)
        order = good[np.lexsort((-self._outline["said"][rows[good]], -total[good]))][:limit]
        holds: dict[int, list[str]] = {}
        for hit in found:
            for row in np.intersect1d(hit.rows, rows[order]).tolist():
                holds.setdefault(row, []).append(hit.term)
        return [
            RecallHit(
                self._outline.key(int(rows[i])),
                round(float(total[i]), 4),
                {name: round(float(part[i]), 4) for name, part in parts.items() if part[i]},
                tuple(holds.get(int(rows[i]), ())),
            )
            for i in order.tolist()
        ]


def _highest(values: Floats, among: Bools | None = None) -> float:
    """The highest of some values; 0 of none."""
    return float((values if among is None else values[among]).max(initial=0))
