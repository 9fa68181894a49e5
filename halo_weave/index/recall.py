"""Search over all that was said, shared by all windows of a process."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.core.languages import stems
from halo_weave.core.resurrection import RecallHit
from halo_weave.core.tokens import Role
from halo_weave.core.words import question_terms, terms
from halo_weave.errors import BadSetting, EngineError, UnknownGeneration
from halo_weave.index.akin import with_akin
from halo_weave.index.asking import as_said_by
from halo_weave.index.embedding import Embedding, Ready
from halo_weave.index.fusion import Floats, Meaning, TermHits, Weights, find_terms, varied, word_scores
from halo_weave.index.leads import led_to
from halo_weave.index.marks import Marks
from halo_weave.index.narrowing import looked_at, said_in
from halo_weave.index.ordinary import SMALL_TALK, Ordinary
from halo_weave.index.outline import ROLES, Bools, Outline, Rows
from halo_weave.index.times import Span, spans
from halo_weave.index.vectors import BLOCK, SomeVectors, VectorIndex, likeness
from halo_weave.ports import EVERYTHING, Embedder, Only
from halo_weave.store import Store, VectorSearch

SHORTLIST = 400  # chunks that each way of searching may put forward
STRONG = 100  # of the nearest in meaning, whose neighbours are looked at as well
ORDINARY = 400  # chunks that tell what likeness is ordinary for a question
RARE = 200  # a word that at most one of so many chunks holds says enough by itself
READ = 4_000  # characters of a question that are embedded
FEW = 20_000  # chunks that a store is asked to compare one by one
QUESTIONS = 8  # whose vectors are remembered
OLDER = "The vectors were made by an earlier version and still serve. To renew them, run: halo-weave reindex"
MOST_TERMS = 64  # of a question, that the word index is asked for


class Recall:
    """Meaning and words over one store. Safe from any thread."""

    def __init__(
        self,
        store: Store,
        open_embedder: Callable[[], Embedder] | None,
        *,
        weights: Weights | None = None,
        writes: bool = True,
        akin: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """The embedder is opened in the background. `writes`: False embeds nothing, for a memory that is only read.

        `akin`: the folder of the tables of akin words; None: there are none.
        """
        self._akin_folder = akin
        self._store, self._open, self._writes, self._now = store, open_embedder, writes, now
        self.weights = weights or Weights()
        self._lock = threading.Lock()
        self._beside = ThreadPoolExecutor(1, "question")
        self._questions: dict[tuple[str, Embedding], Future[Floats | None]] = {}  # the latest, by text
        self._outline = Outline()
        self._index: VectorIndex | None = None  # all vectors, if the store cannot search them itself
        self._vector_search: VectorSearch | None = None  # the store's own index, if it has one
        self._generation: int | None = None
        self._usual: Ordinary | None = None
        self._messages: dict[str, Floats] = {}  # vectors of `SMALL_TALK`, by embedder
        self._marks = Marks()
        self._changed = 0  # chunks that changed since the usual ones were looked at
        self._sequence = 0
        self._embedding = self._new_embedding()
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
        user_weight: float = 1.5,
        mmr_lambda: float | None = None,
        only: Only = EVERYTHING,
    ) -> list[RecallHit]:
        """The chunks that answer to a text, best first, out of all windows or one. Words alone serve without vectors."""
        if user_weight <= 0:
            raise BadSetting(f"user_weight is {user_weight}; use a number above 0.")
        if not text.strip() or limit < 1:
            return []
        asked = question_terms(text, MOST_TERMS)
        embedding = self._vector_of(text)  # while the words are looked up
        with self._lock:
            self._refresh()
            found = find_terms(self._store, self._outline, asked, window=window)
            words = word_scores(self._with_akin(found, asked, window), self._outline, self.weights.word_reach)
            named = spans(text[:READ], now)
            within = looked_at(self._outline, window, only)
            early = self._early_candidates(words, named, now, within)
            meanings = self._meanings(early, self._index) if self._index else []
            query = embedding.result()
            rows = self._candidates(query, early, window, within)
            if not len(rows):
                return []
            index = None if query is None else self._vectors_around(rows)
            near = None
            if query is not None and index:
                meanings += self._meanings(np.setdiff1d(rows, early) if meanings else rows, index)
                near = np.full(len(rows), np.nan, np.float32)
                for part, meaning in meanings:
                    near[np.searchsorted(rows, part)] = meaning.nearness(query)
            parts = self._parts(query, rows, near, words, named, text, now, user_weight)
            self._follow_leads(rows, parts, asked, window)
            if near is not None:
                near = self._ordinary().above_small_talk(near)
            return self._hits(rows, parts, near, index, found, limit, mmr_lambda)

    def note_said(self) -> None:
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
            "sentence": self._embedding.sentence or (OLDER if older and not wanted else ""),
            "older": older,
            "wanted": wanted,
            "vectors": vectors,
            "bytes": self._index.bytes if self._index else 0,
        }

    def forget(self) -> None:
        """The memory was cleared."""
        with self._lock:
            self._start_anew()

    def reopen(self) -> None:
        """The memory has the vectors of another embedder now: open that one. The old one serves until it is there."""
        before, after = self._embedding, self._new_embedding()
        after.start()
        after.opened()
        self._embedding = after
        before.close()
        if after.ready:
            self._load_early()

    def close(self) -> None:
        self._beside.shutdown()
        self._embedding.close()

    # Keeping up

    def _new_embedding(self) -> Embedding:
        return Embedding(
            self._store,
            self._open,
            now=self._now,
            writes=self._writes,
            akin=self._akin_folder,
            when_opened=self._load_early,
        )

    def _vector_of(self, text: str) -> Future[Floats | None]:
        """A question's vector, which may be known, as from a preview, or on its way. None: words alone serve."""
        key = text, self._embedding
        known = self._questions.pop(key, None)
        if known is None or (known.done() and (known.exception() or known.result() is None)):
            known = self._beside.submit(self._embed, text)
        self._questions[key] = known
        for oldest in list(self._questions)[:-QUESTIONS]:
            self._questions.pop(oldest, None)
        return known

    def _embed(self, text: str) -> Floats | None:
        ready = self._embedding.ready
        if ready is None:
            return None
        try:
            asked = as_said_by(text[:READ], list(self._outline.speaker_codes))
            return np.asarray(ready.embedder.embed([asked], query=True)[0])
        except EngineError as error:
            self._embedding.sentence = f"{error} Words alone served the last question."
            return None

    def _refresh(self) -> None:
        """What changed since the last look. If another process cleared the memory, all of it."""
        try:
            self._follow()
        except UnknownGeneration:
            self._start_anew()
            self._follow()

    def _start_anew(self) -> None:
        self._outline = Outline()
        self._index = self._vector_search = self._usual = self._generation = None
        self._sequence = 0
        self._embedding.adopt_anew()

    def _follow(self) -> None:
        """One cheap question when nothing changed, here or in another process."""
        ready = self._embedding.ready
        if ready and self._generation != ready.generation:
            self._load(ready)
        sequence = self._store.sequence()
        if sequence == self._sequence:
            return
        changes = self._store.changes(self._sequence)
        self._read_marks()
        self._outline.drop(changes.gone)
        self._outline.put(self._store.outline(self._sequence))
        self._changed += len(changes.present) + len(changes.gone)
        if self._index is not None and self._generation is not None:
            self._index.remove(changes.gone)
            self._index.put(*self._store.vectors_of(self._generation, changes.present.tolist()))
        if self._index is None or not self._index.has(changes.present).all():
            self._embedding.note()
        self._sequence = changes.sequence

    def _read_marks(self) -> None:
        marks, ready = self._store.wrong_marks(), self._embedding.ready
        asked = list(dict.fromkeys(question for _, question in marks))
        vectors = ready.embedder.embed(asked, query=True) if ready and asked else ()
        self._marks.put(marks, dict(zip(asked, vectors, strict=False)))

    def _load_early(self) -> None:
        """Before anyone asks: a large memory takes seconds to load."""
        with self._lock:
            self._refresh()
            if len(self._outline):
                self._ordinary()

    def _load(self, ready: Ready) -> None:
        """All vectors of a generation, unless the store searches them. What changes meanwhile the next refresh sees."""
        sequence = self._store.sequence()
        self._vector_search, index = self._store.vector_search(ready.generation), None
        if self._vector_search is None:
            counted = {one.id: one.vectors for one in self._store.generations()}
            index = VectorIndex(ready.embedder.dimension)
            # Room that is not used costs no memory; without it the first new vector would copy all of them.
            index.reserve(counted.get(ready.generation, 0) * 9 // 8)
            for numbers, vectors in self._store.vectors(ready.generation):
                index.put(numbers, vectors)
            index.learn()
        if not self._sequence:
            self._outline.put(self._store.outline())
            self._sequence = sequence
        self._sequence = min(self._sequence, sequence)
        self._index, self._generation = index, ready.generation
        self._usual = None

    # Searching

    def _early_candidates(self, words: Floats, named: Sequence[Span], now: datetime, within: Bools) -> Rows:
        """Rows worth a closer look whatever the question means: strong in words, of the time that is named."""
        outline = self._outline
        if len(outline) <= 2 * SHORTLIST:
            return np.flatnonzero(within)
        strong = np.flatnonzero((words > 0) & within)
        rows = strong[np.argsort(-words[strong], kind="stable")[:SHORTLIST]]
        if named:
            inside = np.flatnonzero(said_in(outline, np.arange(len(outline["number"])), named, now) & within)
            latest = inside[np.argsort(-outline["said"][inside], kind="stable")[:SHORTLIST]]
            rows = np.concatenate([rows, latest])
        return np.unique(rows)

    def _candidates(self, query: Floats | None, early: Rows, window: str | None, within: Bools) -> Rows:
        """Those, and what is near in meaning, with its neighbours; each once, in order."""
        if query is None or len(self._outline) <= 2 * SHORTLIST:
            return early
        near = self._nearest(query, window, within)
        rows = np.unique(np.concatenate([early, near, *self._outline.around(near[:STRONG], 1)]))
        rows = rows[rows >= 0]
        return np.asarray(rows[within[rows]])

    def _nearest(self, query: Floats, window: str | None, within: Bools) -> Rows:
        """Rows of the chunks nearest in meaning, nearest first, out of all or some."""
        if self._vector_search:
            # Of few, each is compared; of many, more are asked for, since those that are left out come back as well.
            size, some = len(self._outline), int(within.sum())
            among = self._outline["number"][np.flatnonzero(within)] if some <= min(FEW, size - 1) else None
            limit = (
                SHORTLIST if among is not None or window else SHORTLIST * min(10, -(-size // max(1, some)))
            )
            found, _ = self._vector_search.nearest(query, limit=limit, window=window, among=among)
            rows = self._outline.rows(found)
            return rows[(rows >= 0) & within[rows]][:SHORTLIST]
        if self._index is None:
            return np.zeros(0, np.int64)
        if within.sum() == len(self._outline):
            return self._outline.rows(self._index.nearest(query, SHORTLIST))
        rows = np.flatnonzero(within)
        rows = rows[self._index.has(self._outline["number"][rows])]
        best = [np.zeros(0, np.float32)]
        for start in range(0, len(rows), BLOCK):
            vectors, counts = self._index.of(self._outline["number"][rows[start : start + BLOCK]])
            best.append(np.maximum.reduceat(likeness(vectors, query), np.cumsum(counts) - counts))
        return np.asarray(rows[np.argsort(-np.concatenate(best), kind="stable")[:SHORTLIST]])

    def _parts(
        self,
        query: Floats | None,
        rows: Rows,
        near: Floats | None,
        words: Floats,
        named: Sequence[Span],
        text: str,
        now: datetime,
        user_weight: float,
    ) -> dict[str, Floats]:
        """What each part adds to the similarity of each row."""
        outline, weights = self._outline, self.weights
        parts: dict[str, Floats] = {}
        if query is not None and near is not None:
            parts["meaning"] = weights.meaning * self._ordinary().above(query, near)
        told = outline["told"]
        # An earlier question holds the words of this one best, and must not set the measure for what tells something.
        peak = float(words[rows].max(initial=0, where=told[rows] > 0) or words[rows].max(initial=0))
        if peak:
            parts["words"] = weights.words * np.minimum(words[rows] / np.float32(peak), 1)
        heard = self._spoken_of(text)
        if heard:
            parts["speaker"] = weights.speaker * np.isin(outline["speaker"][rows], heard).astype(np.float32)
        asking = told[rows] == 0
        if asking.any():
            parts["asking"] = -weights.asking * asking.astype(np.float32)
        wrong = self._marks.weigh(outline["number"][rows], text[:READ], query)
        if wrong is not None:
            parts["wrong"] = -weights.wrong * wrong
        if named:
            parts["time"] = weights.time * said_in(outline, rows, named, now).astype(np.float32)
        if user_weight != 1:
            # Added to the logarithm of the odds: it decides between equals, and cannot outweigh what fits far better.
            parts["user"] = np.float32(math.log(user_weight)) * (
                outline["role"][rows] == ROLES.index(Role.USER)
            )
        return parts

    def _follow_leads(
        self, rows: Rows, parts: dict[str, Floats], asked: Collection[str], window: str | None
    ) -> None:
        """Add what the words of the best hits tell."""
        if not self.weights.leads or not parts:
            return
        held = led_to(self._store, self._outline, rows, _evidence(parts), {*asked, *self._names()}, window)
        if held is not None and held.any():
            parts["leads"] = self.weights.leads * held

    def _with_akin(
        self, found: list[TermHits], asked: Mapping[str, str], window: str | None
    ) -> list[TermHits]:
        """Also what holds words akin to those of the question."""
        table, share = self._embedding.akin, self.weights.akin
        if table is None or not share:
            return found
        return with_akin(
            found,
            asked,
            self._names(),
            table,
            share,
            store=self._store,
            outline=self._outline,
            window=window,
        )

    def _names(self) -> set[str]:
        """Stems of the names of all who spoke."""
        spoken = (terms(name) for name in self._outline.speaker_codes)
        return {stem for name in spoken for stem in stems(name, "english")}

    def _spoken_of(self, text: str) -> list[int]:
        """Codes of the speakers that a question is about: of several that it names, the one it names first."""
        spoken = terms(text[:READ])
        named = []
        for name, code in self._outline.speaker_codes.items():
            parts = terms(name)
            if parts and set(spoken).issuperset(parts):
                named.append((spoken.index(parts[0]), code))
        first = min(named, default=(0, 0))[0]
        return [code for place, code in named if place == first]

    def _vectors_around(self, rows: Rows) -> VectorIndex | SomeVectors | None:
        """Vectors of at least these chunks and what stands around them; None without vectors."""
        if self._vector_search and self._generation is not None:
            around = self._outline.around(rows, len(self.weights.context))
            wanted = np.unique(np.concatenate([rows, *around]))
            numbers = self._outline["number"][wanted[wanted >= 0]]
            owners, vectors = self._store.vectors_of(self._generation, numbers.tolist())
            return SomeVectors(owners, vectors)
        return self._index

    def _meanings(self, rows: Rows, index: VectorIndex | SomeVectors) -> list[tuple[Rows, Meaning]]:
        """A few rows at a time: their vectors then stay in the processor's cache."""
        parts = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        return [(part, self._meaning(part, index)) for part in parts]

    def _meaning(self, rows: Rows, index: VectorIndex | SomeVectors) -> Meaning:
        return Meaning.of(rows, self._outline, index, self.weights.context)

    def _ordinary(self) -> Ordinary:
        """A large memory looks at the same chunks until a tenth of it has changed."""
        size = len(self._outline)
        if self._usual is None or self._changed > size // 10:
            everyone = np.flatnonzero(self._outline["present"])
            some = everyone[:: max(1, len(everyone) // ORDINARY)]
            index, ready = self._vectors_around(some), self._embedding.ready
            assert index is not None
            if ready and ready.embedder.name not in self._messages:
                self._messages = {ready.embedder.name: ready.embedder.embed(SMALL_TALK, query=True)}
            messages = self._messages[ready.embedder.name] if ready else None
            self._usual, self._changed = Ordinary(self._meaning(some, index), messages), 0
        return self._usual

    def _hits(
        self,
        rows: Rows,
        parts: Mapping[str, Floats],
        near: Floats | None,
        index: VectorIndex | SomeVectors | None,
        found: Sequence[TermHits],
        limit: int,
        mmr_lambda: float | None,
    ) -> list[RecallHit]:
        if not parts:
            return []
        evidence = _evidence(parts)
        total = evidence + parts.get("user", np.float32(0))
        # What is no better than any other chunk is no hit, whoever said it.
        good = np.flatnonzero(evidence > 0)
        order = good[np.lexsort((-self._outline["said"][rows[good]], -total[good]))]
        if mmr_lambda is not None and mmr_lambda < 1 and index is not None:
            pool = order[: max(4 * limit, 200)]
            whole = self._meaning(rows[pool], index).whole
            order = pool[varied(total[pool], whole, mmr_lambda, limit)]
            # The plan goes by similarity, so the order that variety gives is written into it.
            total = total.copy()
            total[order] = np.minimum.accumulate(total[order])
        order = order[:limit]
        holds: dict[int, list[str]] = {}
        rare: set[int] = set()
        few = max(2, len(self._outline) // RARE)
        for hit in found:
            holding = np.intersect1d(hit.rows, rows[order]).tolist()
            for row in holding:
                holds.setdefault(row, []).append(hit.term)
            if len(hit.rows) <= few:
                rare.update(holding)
        known = np.full(len(rows), np.nan) if near is None else near
        return [
            RecallHit(
                self._outline.key(int(rows[i])),
                round(float(total[i]), 4),
                {name: round(float(part[i]), 4) for name, part in parts.items() if part[i]},
                tuple(holds.get(int(rows[i]), ())),
                None if np.isnan(known[i]) else round(float(known[i]), 4),
                int(rows[i]) in rare,
            )
            for i in order.tolist()
        ]


def _evidence(parts: Mapping[str, Floats]) -> Floats:
    """What speaks for each row, whoever said it."""
    spoken = [part for name, part in parts.items() if name != "user"]
    return np.asarray(sum(spoken, np.zeros(len(next(iter(parts.values()))), np.float32)), np.float32)
