"""Combine meaning, words, speaker, time and feedback into one score, measured against the scores of ordinary chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from halo_weave.core.terms import query_terms
from halo_weave.search.chunk_table import ChunkTable, Rows
from halo_weave.search.vector_index import FetchedVectors, VectorIndex, cosine_similarity
from halo_weave.store.sql_store import SqlStore

Floats = npt.NDArray[np.float32]
MAX_TERM_CHUNKS = 20_000  # a term that more chunks hold tells little and costs much: it is left out


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each part of the similarity counts. They are the same for every question."""

    meaning: float = 1.0  # for each standard deviation above an ordinary chunk
    words: float = 5.0  # for the chunk that holds the user's words best
    akin: float = 0.5  # of a word, for one that is akin to it
    speaker: float = 1.5  # for a chunk of the one whom the question names
    time: float = 2.0  # for a chunk said in the time that the question names
    leads: float = 3.0  # for a chunk that holds all the words to which the best hits lead
    asking: float = 5.0  # taken away from a chunk that tells nothing: questions, answers that know nothing
    wrong: float = 20.0  # taken away from what was marked as wrong for such a question: it is no hit any more
    word_reach: tuple[float, ...] = (0.75, 0.5, 0.25)  # of a word that stands 1, 2, 3 chunks away
    context: tuple[float, ...] = (0.5, 0.25)  # of the meaning of what stands 1, 2 chunks away


@dataclass(frozen=True, slots=True, eq=False)
class TermHits:
    """The chunks that hold a term, and its BM25 in each."""

    term: str
    rows: Rows
    scores: npt.NDArray[np.float64]


def find_terms(
    store: SqlStore,
    outline: ChunkTable,
    terms: Mapping[str, str],
    *,
    most: int = MAX_TERM_CHUNKS,
    window: str | None = None,
) -> list[TermHits]:
    """Each stem is asked of the word index by itself: that tells which of the question's words a chunk holds.

    `most`: a term that more chunks hold is left out.
    """
    found = []
    hits = store.search_terms(list(terms), most, window=window)
    for term, (numbers, scores) in zip(terms.values(), hits, strict=True):
        if not len(numbers):
            continue
        rows = outline.rows(numbers)
        known = rows >= 0  # another process may have said something since the outline was read
        if known.any():
            found.append(TermHits(term, rows[known], scores[known]))
    return found


def word_scores(hits: Sequence[TermHits], outline: ChunkTable, reach: Sequence[float]) -> Floats:
    """(rows of the outline,) BM25, where a term counts for the chunks around as well, less with distance.

    Where a term stands in several of these chunks, only the best place counts.
    """
    total = np.zeros(len(outline["number"]), np.float32)
    one = np.zeros(len(outline["number"]), np.float32)
    for hit in hits:
        scores = hit.scores.astype(np.float32)
        touched = [hit.rows]
        one[hit.rows] = scores
        for i, rows in enumerate(outline.around(hit.rows, len(reach))):
            there = rows >= 0
            near = rows[there]
            one[near] = np.maximum(one[near], scores[there] * reach[i // 2])
            touched.append(near)
        rows = np.unique(np.concatenate(touched))
        total[rows] += one[rows]
        one[rows] = 0
    return total


@dataclass(frozen=True, slots=True, eq=False)
class ChunkVectors:
    """The vectors of some chunks: of their passages, of each as a whole, and of each mixed with its neighbours."""

    passages: Floats  # (passages, dimension), those of one chunk together
    counts: Rows  # (chunks,) passages of each; 0 for a chunk that is not embedded yet
    whole: Floats  # (chunks, dimension) each alone as one vector, for comparing chunks
    with_neighbours: Floats  # (chunks, dimension) the same mixed with its neighbours

    @classmethod
    def of(
        cls, rows: Rows, outline: ChunkTable, index: VectorIndex | FetchedVectors, context: Sequence[float]
    ) -> ChunkVectors:
        around = outline.around(rows, len(context))
        everyone = np.unique(np.concatenate([rows, *around]))
        everyone = everyone[everyone >= 0]
        vectors, counts = index.of(outline["number"][everyone])
        if counts.max(initial=0) <= 1 and len(vectors) == len(everyone):
            all_whole = vectors
        else:
            all_whole = np.zeros((len(everyone), index.dimension), np.float32)
            firsts = np.cumsum(counts) - counts
            all_whole[counts == 1] = vectors[firsts[counts == 1]]
            several = np.flatnonzero(counts > 1)
            if len(several):
                # Each of them and all that follow it up to the next: what lies between is left out again.
                bounds = np.column_stack([firsts[several], firsts[several] + counts[several]]).ravel()
                padded = np.concatenate([vectors, np.zeros((1, index.dimension), np.float32)])
                all_whole[several] = _unit(np.add.reduceat(padded, bounds, axis=0)[::2])
        places = np.searchsorted(everyone, rows)
        whole = all_whole[places]
        with_neighbours, beside = whole.copy(), np.empty_like(whole)
        for i, near in enumerate(around):
            np.take(all_whole, np.searchsorted(everyone, near), axis=0, out=beside, mode="clip")
            beside *= (np.float32(context[i // 2]) * (near >= 0))[:, None]  # nothing where the talk ends
            with_neighbours += beside
        with_neighbours /= _lengths(with_neighbours)[:, None]
        if all_whole is vectors:
            return cls(whole, np.ones(len(rows), np.int64), whole, with_neighbours)
        own = counts[places]
        firsts = (np.cumsum(counts) - counts)[places] - (np.cumsum(own) - own)
        passages = vectors[np.repeat(firsts, own) + np.arange(own.sum())]
        return cls(passages, own, whole, with_neighbours)

    def nearness(self, query: Floats) -> Floats:
        """(chunks,) mean likeness of the best passage and of the whole amid its neighbours; NaN without a vector."""
        found = np.full(len(self.counts), np.nan, np.float32)
        has = self.counts > 0
        if has.any():
            firsts = (np.cumsum(self.counts) - self.counts)[has]
            found[has] = np.maximum.reduceat(cosine_similarity(self.passages, query), firsts)
        return (found + cosine_similarity(self.with_neighbours, query)) / np.float32(2)


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / _lengths(vectors)[:, None], np.float32)


def _lengths(vectors: Floats) -> Floats:
    """Of each vector; 1 of one that is all zeros, since it is divided by."""
    lengths = np.sqrt(np.vecdot(vectors, vectors))
    return np.asarray(np.where(lengths == 0, 1, lengths), np.float32)


def diversify(scores: Floats, whole: Floats, balance: float, count: int) -> list[int]:
    """Maximal marginal relevance: each next one is good, and unlike those chosen before it.

    `balance` 1 asks for relevance alone, 0 for variety alone.
    """
    relevance = scores / max(float(scores.max(initial=0)), 1e-9)
    alike = np.zeros(len(scores), np.float32)
    chosen: list[int] = []
    left = np.ones(len(scores), bool)
    for _ in range(min(count, len(scores))):
        value = np.where(left, balance * relevance - (1 - balance) * alike, -np.inf)
        best = int(value.argmax())
        chosen.append(best)
        left[best] = False
        alike = np.maximum(alike, cosine_similarity(whole, whole[best]))
    return chosen


SMALL_TALK = (  # messages that speak of nothing: what they reach is not relevant
    *("cool", "alright then", "got it", "hey", "yep", "nope", "good evening", "that is nice to hear"),
    *("one moment please", "as you like", "well done", "let me think about it"),
)
MIN_SPREAD = 0.5  # of the spread of these messages among themselves: measured spreads are hardly ever smaller
NEAREST_SCORE = 3.0  # where the chunk nearest to such a message stands, and 0 any other
MIN_STEP = 0.3  # of the same spread, in a memory of few or like texts


class ScoreBaseline:
    """Some chunks out of all, by which others are measured.

    A memory that is mostly one text said again and again hardly spreads. Divided by that, any difference would look
    large; so no spread counts as smaller than a share of what the embedder gives to unlike messages.
    """

    def __init__(self, chunks: ChunkVectors, messages: Floats | None) -> None:
        """`messages`: the vectors of `SMALL_TALK`, if there is an embedder."""
        self._chunks = chunks
        self._least, self._calm = 1e-3, (0.0, 0.0)  # `_calm`: where 0 is, and how large a step is
        if messages is None:
            return
        alike = messages @ messages.T
        unlike = float(alike[np.triu_indices(len(messages), 1)].std())
        self._least = max(self._least, MIN_SPREAD * unlike)
        reached = np.stack([chunks.nearness(one) for one in messages])  # (messages, chunks)
        embedded = reached[:, ~np.isnan(reached).any(axis=0)]
        if embedded.size:
            middle = float(embedded.mean())
            nearest = float(embedded.max(axis=1).mean())
            self._calm = middle, max((nearest - middle) / NEAREST_SCORE, MIN_STEP * unlike, 1e-3)

    def above(self, query: Floats, near: Floats) -> Floats:
        """Spreads above what an ordinary chunk reaches for this question; 0 for one that is not embedded yet."""
        middle, spread = self._middle_and_spread(self._chunks.nearness(query))
        return np.asarray(np.nan_to_num((near - middle) / (spread or 1.0), nan=0.0), np.float32)

    def above_small_talk(self, near: Floats) -> Floats | None:
        """How near, on a scale on which small talk reaches 0 with any chunk and 3 with the nearest; None if not known.

        Cosines have another scale with every embedder; this measures it, on what is in this memory.
        """
        middle, step = self._calm
        return np.asarray((near - np.float32(middle)) / np.float32(step)) if step else None

    def _middle_and_spread(self, reached: Floats) -> tuple[float, float]:
        known = reached[~np.isnan(reached)]
        if not len(known):
            return 0.0, 0.0
        return float(known.mean()), max(float(known.std()), self._least)


EXPANDED_HITS = 3  # hits that lead on
WORDS_PER_HIT = 12  # words of each
MAX_EXPANSION_WORDS = 8  # words of all of them together
COMMON_WORD_SHARE = 20  # a word that more than one in so many chunks holds leads nowhere
MAX_WORD_CHUNKS = 200  # chunks that hold a word, in a memory of any size: more would take long to weigh


def expand_from_hits(
    store: SqlStore,
    outline: ChunkTable,
    rows: Rows,
    evidence: Floats,
    known: Collection[str],
    window: str | None,
) -> Floats | None:
    """(rows,) how much each holds of the words to which the best of them lead; None without any such words.

    It tells which hits are better than others and makes no hits: without other evidence it is 0. `known`: words that
    say nothing new: the question's own, and names of speakers. A word counts by how likely the hits are that hold it,
    and by its BM25; the best do not lead to each other.
    """
    telling = np.flatnonzero((evidence > 0) & (outline["told"][rows] > 0))
    best = telling[np.argsort(-evidence[telling], kind="stable")[:EXPANDED_HITS]]
    if not len(best):
        return None
    odds = np.exp(evidence[best] - evidence[best[0]])
    texts = {one.number: one.chunk.text for one in store.chunks(outline["number"][rows[best]].tolist())}
    words = [
        query_terms(texts.get(number, ""), WORDS_PER_HIT).keys() - set(known)
        for number in outline["number"][rows[best]].tolist()
    ]
    shares: dict[str, float] = defaultdict(float)
    for held, odd in zip(words, odds.tolist(), strict=True):
        for word in held:
            shares[word] += odd
    most = min(MAX_WORD_CHUNKS, max(4, len(outline) // COMMON_WORD_SHARE))
    found = find_terms(store, outline, {word: word for word in sorted(shares)}, most=most, window=window)
    worth = {hit.term: shares[hit.term] * float(hit.scores.max()) for hit in found if len(hit.rows) > 1}
    taken = sorted(worth, key=lambda word: -worth[word])[:MAX_EXPANSION_WORDS]
    if not taken:
        return None
    total = np.zeros(len(rows), np.float32)
    for hit in found:
        if hit.term in taken:
            _, place, found_at = np.intersect1d(rows, hit.rows, assume_unique=True, return_indices=True)
            total[place] += (shares[hit.term] * hit.scores[found_at]).astype(np.float32)
    total[best] = 0
    total /= np.float32(sum(worth[word] for word in taken))
    return np.where(evidence > 0, total, np.float32(0))


Vector = Floats | None
MAX_QUESTION_TERMS = 64  # of a question, that are compared
SIMILAR_FROM, SAME_FROM = 0.5, 0.8  # likeness from which two questions are a little, and altogether, alike


class NegativeFeedback:
    """The marks of one memory. Questions are compared by meaning, and by words as long as they have no vector."""

    def __init__(self) -> None:
        self._of: dict[int, list[str]] = {}  # questions by the number of the chunk
        self._terms: dict[str, frozenset[str]] = {}
        self._vectors: dict[str, Floats] = {}

    def put(self, marks: Iterable[tuple[int, str]], vectors: Mapping[str, Floats]) -> None:
        """All marks there are; `vectors` of questions as far as they are known."""
        self._of, self._vectors = {}, dict(vectors)
        for number, question in marks:
            self._of.setdefault(number, []).append(question)
        asked = {question for questions in self._of.values() for question in questions}
        self._terms = {question: frozenset(query_terms(question, MAX_QUESTION_TERMS)) for question in asked}

    @property
    def questions(self) -> list[str]:
        return list(self._terms)

    def weigh(self, numbers: npt.NDArray[np.int64], text: str, query: Vector) -> Floats | None:
        """(numbers,) 0 to 1: how much the text is like a question for which the chunk is wrong; None without any."""
        marked = [i for i, number in enumerate(numbers.tolist()) if number in self._of] if self._of else []
        if not marked:
            return None
        asked = frozenset(query_terms(text, MAX_QUESTION_TERMS))
        alike = {question: self._alike(question, asked, query) for question in self._terms}
        found = np.zeros(len(numbers), np.float32)
        for i in marked:
            found[i] = max(alike[question] for question in self._of[int(numbers[i])])
        return found

    def _alike(self, question: str, asked: frozenset[str], query: Vector) -> float:
        own, vector = self._terms[question], self._vectors.get(question)
        shared = len(own & asked) / len(own | asked) if own | asked else 0.0
        if vector is None or query is None:
            return shared
        near = (float(vector @ query) - SIMILAR_FROM) / (SAME_FROM - SIMILAR_FROM)
        return max(shared, min(1.0, max(0.0, near)))
