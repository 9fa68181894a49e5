"""Find the features of each chunk, and the probability that it helps with a message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from halo_weave.core.terms import query_terms
from halo_weave.search.chunk_table import ChunkTable, Rows
from halo_weave.search.vector_index import FetchedVectors, VectorIndex, cosine_similarity
from halo_weave.store.sql_store import SqlStore

Floats = npt.NDArray[np.float32]
MAX_TERM_CHUNKS = 20_000  # a term that more chunks hold tells little and costs much: it is left out
WORD_REACH = (0.75, 0.5, 0.25)  # of a word that stands 1, 2, 3 chunks away
CONTEXT = (0.5, 0.25)  # of the meaning of what stands 1, 2 chunks away


@dataclass(frozen=True, slots=True, eq=False)
class TermHits:
    """The chunks that hold a term, and its BM25 in each."""

    term: str
    rows: Rows
    scores: npt.NDArray[np.float64]


def find_terms(
    store: SqlStore, outline: ChunkTable, terms: Mapping[str, str], *, window: str | None = None
) -> list[TermHits]:
    """Each stem is asked of the word index by itself: that tells which of the question's words a chunk holds."""
    found = []
    hits = store.search_terms(list(terms), MAX_TERM_CHUNKS, window=window)
    for term, (numbers, scores) in zip(terms.values(), hits, strict=True):
        if not len(numbers):
            continue
        rows = outline.rows(numbers)
        known = rows >= 0  # another process may have said something since the outline was read
        if known.any():
            found.append(TermHits(term, rows[known], scores[known]))
    return found


class WordMatch:
    """How well chunks hold the words of a message."""

    def __init__(self, hits: Sequence[TermHits], terms: int, outline: ChunkTable) -> None:
        """`terms`: how many the message has, those included that no chunk holds."""
        self.terms, size = terms, max(1, len(outline))
        rarity = [math.log(1 + (size - len(hit.rows) + 0.5) / (len(hit.rows) + 0.5)) for hit in hits]
        unknown = math.log(1 + (size + 0.5) / 0.5)
        if size > MAX_TERM_CHUNKS:  # a term that is not found may be one that nearly all chunks hold
            unknown = sum(rarity) / max(1, len(rarity))
        # What the best possible chunk would reach: it holds all terms, each as well as any chunk does.
        best = sum(rarity) + unknown * (terms - len(hits)) or 1.0
        shares = [
            TermHits(hit.term, hit.rows, hit.scores * (rare / max(float(hit.scores.max()), 1e-9) / best))
            for hit, rare in zip(hits, rarity, strict=True)
        ]
        self.own = word_scores(shares, outline, ())  # (rows of the outline,) 0 to 1, of the chunk alone
        self.near = word_scores(shares, outline, WORD_REACH)  # the same, with the words of its neighbours
        self.bm25 = word_scores(hits, outline, WORD_REACH)


def word_scores(hits: Sequence[TermHits], outline: ChunkTable, reach: Sequence[float]) -> Floats:
    """(rows of the outline,) the sum over the terms; a term counts for the chunks around as well, less with distance.

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

    def best_passages(self, query: Floats) -> Floats:
        """(chunks,) likeness of the passage that is nearest to the query; NaN without a vector."""
        found = np.full(len(self.counts), np.nan, np.float32)
        has = self.counts > 0
        if has.any():
            firsts = (np.cumsum(self.counts) - self.counts)[has]
            found[has] = np.maximum.reduceat(cosine_similarity(self.passages, query), firsts)
        return found

    def amid_neighbours(self, query: Floats) -> Floats:
        """(chunks,) likeness of each whole chunk mixed with its neighbours."""
        return cosine_similarity(self.with_neighbours, query)


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / _lengths(vectors)[:, None], np.float32)


def _lengths(vectors: Floats) -> Floats:
    """Of each vector; 1 of one that is all zeros, since it is divided by."""
    lengths = np.sqrt(np.vecdot(vectors, vectors))
    return np.asarray(np.where(lengths == 0, 1, lengths), np.float32)


ORDINARY = (  # unrelated sentences, of which some are said in any talk
    "I made pancakes for breakfast this morning.",
    "The train was late again today.",
    "My brother lives in a small town.",
    "We watched a film last night and went to bed early.",
    "The meeting was moved to Thursday afternoon.",
    "I bought a new pair of shoes.",
    "It has been raining here all week.",
    "The update fixes a problem with the login page.",
    "She is studying for her exams at the university.",
    "I would like to learn how to play the guitar.",
    "The doctor said that I should rest for a few days.",
    "We are planning a holiday by the sea.",
    "My favourite colour is green.",
    "The price of the flat is too high for us.",
    "He works as an engineer for a large company.",
    "Our dog likes to sleep on the sofa.",
    "I finished the first chapter of the book.",
    "The garden needs more water in summer.",
    "Our team won the game on Saturday.",
    "I am worried about my presentation tomorrow.",
    "Here is a list of steps that you can follow.",
    "Start with a simple plan and review it every week.",
    "The function returns an error when the input is empty.",
    "Make sure that you save your work before you close the file.",
    "You could try a different approach and compare the results.",
    "That sounds like a great idea, good luck with it!",
    "Thank you so much, this is really helpful.",
    "Can you help me to write a letter to my landlord?",
    "What do you think about it?",
    "I am going to cook dinner for some friends.",
)
MIN_SPREAD = 1e-3


class Ordinary:
    """Texts by which others are measured: some chunks of this memory, and the sentences of `ORDINARY`.

    The likeness to a message is told in standard deviations above what these reach. So it means the same for every
    embedder and every message; the fixed sentences keep that true in a memory of ten chunks, or of one text said again
    and again.
    """

    def __init__(self, chunks: ChunkVectors | None, sentences: Floats) -> None:
        self._chunks, self._sentences = chunks, sentences

    def measure(self, query: Floats) -> tuple[tuple[float, float], tuple[float, float]]:
        """Mean and spread of the best passages, and of the chunks amid their neighbours."""
        alone = cosine_similarity(self._sentences, query)
        if self._chunks is None:
            return _mean_and_spread(alone), _mean_and_spread(alone)
        passages = np.concatenate([self._chunks.best_passages(query), alone])
        amid = np.concatenate([self._chunks.amid_neighbours(query), alone])
        return _mean_and_spread(passages), _mean_and_spread(amid)


def _mean_and_spread(values: Floats) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    return (float(known.mean()), max(float(known.std()), MIN_SPREAD)) if len(known) else (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """A logistic regression: the log-odds that a chunk helps with a message are the sum of these, each times its feature.

    Fitted by `scripts/bench recall --all --fit` on four sets of talk with equal weight for each, and rounded
    (docs/recall.md). Meaning is counted in standard deviations above ordinary texts, words as shares from 0 to 1.
    """

    passage: float  # the chunk's best passage
    amid: float  # the chunk mixed with its neighbours
    share: float  # words of the message that it holds, of what the best possible chunk would hold
    bm25: float  # the same with its neighbours, of what the best chunk of this memory holds
    speaker: float  # its speaker is the one whom the message names
    time: float  # it was said when the message says
    asking: float  # it states nothing: short questions, courtesies, answers that know nothing
    # The same for every chunk: what the message is like, and how well the best chunks fit.
    question: float  # the share of the message that asks
    mine: float  # the message speaks of those who talk: "my", "did I"
    terms: float  # the logarithm of how many search terms it has, and one
    nearest: float  # the highest `passage` of all chunks
    fullest: float  # the highest `share` of all chunks, with neighbours
    base: float


WITH_VECTORS = Weights(0.65, 0.55, 2.9, 2.9, 1.3, 0.65, -5.0, 1.65, 0.8, 0.4, -0.5, -0.9, -10.2)
WORDS_ALONE = Weights(0.0, 0.0, 5.5, 3.5, 1.25, 0.65, -5.0, 1.5, 0.85, 0.25, 0.0, -1.0, -9.3)
WRONG = 20.0  # taken off for what was marked as wrong for such a message: it is no hit any more


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
