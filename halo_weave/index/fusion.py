"""How meaning, words, speaker and time become one number.

The number reads like the logarithm of odds: each part adds to it, and 0 is a chunk like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from halo_weave.index.outline import Outline, Rows
from halo_weave.index.vectors import SomeVectors, VectorIndex, likeness
from halo_weave.store import SearchIndex

Floats = npt.NDArray[np.float32]
FREQUENT = 20_000  # a term that more chunks hold tells little and costs much: it is left out


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
    store: SearchIndex,
    outline: Outline,
    terms: Mapping[str, str],
    *,
    most: int = FREQUENT,
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


def word_scores(hits: Sequence[TermHits], outline: Outline, reach: Sequence[float]) -> Floats:
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
class Meaning:
    """The vectors of some chunks: of their passages, of each as a whole, and of each mixed with its neighbours."""

    passages: Floats  # (passages, dimension), those of one chunk together
    counts: Rows  # (chunks,) passages of each; 0 for a chunk that is not embedded yet
    whole: Floats  # (chunks, dimension) each alone as one vector, for comparing chunks
    amid: Floats  # (chunks, dimension) the same mixed with its neighbours

    @classmethod
    def of(
        cls, rows: Rows, outline: Outline, index: VectorIndex | SomeVectors, context: Sequence[float]
    ) -> Meaning:
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
        amid, beside = whole.copy(), np.empty_like(whole)
        for i, near in enumerate(around):
            np.take(all_whole, np.searchsorted(everyone, near), axis=0, out=beside, mode="clip")
            beside *= (np.float32(context[i // 2]) * (near >= 0))[:, None]  # nothing where the talk ends
            amid += beside
        amid /= _lengths(amid)[:, None]
        if all_whole is vectors:
            return cls(whole, np.ones(len(rows), np.int64), whole, amid)
        own = counts[places]
        firsts = (np.cumsum(counts) - counts)[places] - (np.cumsum(own) - own)
        passages = vectors[np.repeat(firsts, own) + np.arange(own.sum())]
        return cls(passages, own, whole, amid)

    def nearness(self, query: Floats) -> Floats:
        """(chunks,) mean likeness of the best passage and of the whole amid its neighbours; NaN without a vector."""
        found = np.full(len(self.counts), np.nan, np.float32)
        has = self.counts > 0
        if has.any():
            firsts = (np.cumsum(self.counts) - self.counts)[has]
            found[has] = np.maximum.reduceat(likeness(self.passages, query), firsts)
        return (found + likeness(self.amid, query)) / np.float32(2)


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / _lengths(vectors)[:, None], np.float32)


def _lengths(vectors: Floats) -> Floats:
    """Of each vector; 1 of one that is all zeros, since it is divided by."""
    lengths = np.sqrt(np.vecdot(vectors, vectors))
    return np.asarray(np.where(lengths == 0, 1, lengths), np.float32)


def varied(scores: Floats, whole: Floats, balance: float, count: int) -> list[int]:
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
        alike = np.maximum(alike, likeness(whole, whole[best]))
    return chosen
