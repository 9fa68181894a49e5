"""Compute the features of search candidates, and the weights of the model that ranks them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from halo_weave.core.terms import query_terms
from halo_weave.search.chunk_table import ChunkTable, Rows
from halo_weave.search.vector_index import FetchedVectors, VectorIndex, cosine_similarity
from halo_weave.store.sql_store import SqlStore

Floats = npt.NDArray[np.float32]
MAX_TERM_CHUNKS = 20_000  # a term in more chunks than this is ignored: it says little and is slow to look up
TERM_NEIGHBOUR_WEIGHTS = (0.75, 0.5, 0.25)  # of a term that occurs 1, 2, 3 chunks away
NEIGHBOUR_WEIGHTS = (0.5, 0.25)  # of the vectors of the chunks 1, 2 places away


@dataclass(frozen=True, slots=True, eq=False)
class TermHits:
    """The chunks that contain a term, and its BM25 score in each."""

    term: str
    rows: Rows
    scores: npt.NDArray[np.float64]


def find_terms(
    store: SqlStore, table: ChunkTable, words_by_stem: Mapping[str, str], *, window: str | None = None
) -> list[TermHits]:
    """Look up each stem of a query by itself, so that it is known which of them a chunk contains."""
    found = []
    hits = store.search_terms(list(words_by_stem), MAX_TERM_CHUNKS, window=window)
    for word, (numbers, scores) in zip(words_by_stem.values(), hits, strict=True):
        if not len(numbers):
            continue
        rows = table.rows(numbers)
        known = rows >= 0  # another process may have stored chunks since the table was read
        if known.any():
            found.append(TermHits(word, rows[known], scores[known]))
    return found


class TermMatch:
    """How well each chunk matches the terms of a query: arrays over the rows of the table."""

    def __init__(self, hits: Sequence[TermHits], term_count: int, table: ChunkTable) -> None:
        """`term_count`: how many terms the query has, including those that no chunk contains."""
        self.term_count, size = term_count, max(1, len(table))
        rarities = [math.log(1 + (size - len(hit.rows) + 0.5) / (len(hit.rows) + 0.5)) for hit in hits]
        unknown = math.log(1 + (size + 0.5) / 0.5)
        if size > MAX_TERM_CHUNKS:  # a term without hits may have been ignored because it is too frequent
            unknown = sum(rarities) / max(1, len(rarities))
        # The highest possible sum: of a chunk that has, for every term, the score of the best chunk for that term.
        best = sum(rarities) + unknown * (term_count - len(hits)) or 1.0
        shares = [
            TermHits(hit.term, hit.rows, hit.scores * (rarity / max(float(hit.scores.max()), 1e-9) / best))
            for hit, rarity in zip(hits, rarities, strict=True)
        ]
        self.coverage = sum_over_terms(shares, table, ())  # 0 to 1, of the chunk alone
        self.neighbours_coverage = sum_over_terms(shares, table, TERM_NEIGHBOUR_WEIGHTS)
        self.bm25 = sum_over_terms(hits, table, TERM_NEIGHBOUR_WEIGHTS)


def sum_over_terms(hits: Sequence[TermHits], table: ChunkTable, neighbour_weights: Sequence[float]) -> Floats:
    """(rows of the table,) each row's sum of its scores for all terms.

    A row's score for one term is the highest of its own and those of its neighbours, which are multiplied by the weight
    for their distance.
    """
    total = np.zeros(len(table["number"]), np.float32)
    of_term = np.zeros(len(table["number"]), np.float32)
    for hit in hits:
        scores = hit.scores.astype(np.float32)
        touched = [hit.rows]
        of_term[hit.rows] = scores
        for i, neighbours in enumerate(table.around(hit.rows, len(neighbour_weights))):
            exists = neighbours >= 0
            neighbours = neighbours[exists]
            of_term[neighbours] = np.maximum(of_term[neighbours], scores[exists] * neighbour_weights[i // 2])
            touched.append(neighbours)
        rows = np.unique(np.concatenate(touched))
        total[rows] += of_term[rows]
        of_term[rows] = 0
    return total


@dataclass(frozen=True, slots=True, eq=False)
class ChunkVectors:
    """The vectors of some chunks: of their passages, of each whole chunk, and of each chunk with its neighbours."""

    passages: Floats  # (passages, dimension), those of one chunk one after the other
    counts: Rows  # (chunks,) passages of each; 0 for a chunk that is not embedded yet
    whole: Floats  # (chunks, dimension) the normalized sum of the chunk's passages
    with_neighbours: (
        Floats  # (chunks, dimension) the same plus the weighted vectors of the neighbours, normalized
    )

    @classmethod
    def of(
        cls,
        rows: Rows,
        table: ChunkTable,
        index: VectorIndex | FetchedVectors,
        neighbour_weights: Sequence[float],
    ) -> ChunkVectors:
        neighbours = table.around(rows, len(neighbour_weights))
        all_rows = np.unique(np.concatenate([rows, *neighbours]))
        all_rows = all_rows[all_rows >= 0]
        vectors, counts = index.of(table["number"][all_rows])
        if counts.max(initial=0) <= 1 and len(vectors) == len(all_rows):
            all_whole = vectors
        else:
            all_whole = np.zeros((len(all_rows), index.dimension), np.float32)
            firsts = np.cumsum(counts) - counts
            all_whole[counts == 1] = vectors[firsts[counts == 1]]
            several = np.flatnonzero(counts > 1)
            if len(several):
                # `reduceat` sums from each bound to the next; every second sum lies between two chunks and is dropped.
                bounds = np.column_stack([firsts[several], firsts[several] + counts[several]]).ravel()
                padded = np.concatenate([vectors, np.zeros((1, index.dimension), np.float32)])
                all_whole[several] = _normalized(np.add.reduceat(padded, bounds, axis=0)[::2])
        places = np.searchsorted(all_rows, rows)
        whole = all_whole[places]
        with_neighbours, weighted = whole.copy(), np.empty_like(whole)
        for i, neighbour_rows in enumerate(neighbours):
            np.take(all_whole, np.searchsorted(all_rows, neighbour_rows), axis=0, out=weighted, mode="clip")
            weighted *= (np.float32(neighbour_weights[i // 2]) * (neighbour_rows >= 0))[:, None]  # 0 if none
            with_neighbours += weighted
        with_neighbours /= _lengths(with_neighbours)[:, None]
        if all_whole is vectors:
            return cls(whole, np.ones(len(rows), np.int64), whole, with_neighbours)
        own_counts = counts[places]
        firsts = (np.cumsum(counts) - counts)[places] - (np.cumsum(own_counts) - own_counts)
        passages = vectors[np.repeat(firsts, own_counts) + np.arange(own_counts.sum())]
        return cls(passages, own_counts, whole, with_neighbours)

    def best_passage_similarity(self, query: Floats) -> Floats:
        """(chunks,) cosine similarity of the chunk's passage that is nearest to the query; NaN without a vector."""
        best = np.full(len(self.counts), np.nan, np.float32)
        embedded = self.counts > 0
        if embedded.any():
            firsts = (np.cumsum(self.counts) - self.counts)[embedded]
            best[embedded] = np.maximum.reduceat(cosine_similarity(self.passages, query), firsts)
        return best

    def neighbours_similarity(self, query: Floats) -> Floats:
        """(chunks,) cosine similarity of each chunk with its neighbours."""
        return cosine_similarity(self.with_neighbours, query)


def _normalized(vectors: Floats) -> Floats:
    return np.asarray(vectors / _lengths(vectors)[:, None], np.float32)


def _lengths(vectors: Floats) -> Floats:
    """The length of each vector; 1 for a zero vector, so that it can be divided by."""
    lengths = np.sqrt(np.vecdot(vectors, vectors))
    return np.asarray(np.where(lengths == 0, 1, lengths), np.float32)


BASELINE_SENTENCES = (  # unrelated sentences as they occur in any conversation
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


class ScoreBaseline:
    """The similarities that unrelated texts have to a query: sampled chunks of this memory, and `BASELINE_SENTENCES`.

    A similarity is counted in standard deviations above their mean, so it means the same for every embedder and query.
    The fixed sentences keep that true in a memory of ten chunks, or of one text that was repeated again and again.
    """

    def __init__(self, chunks: ChunkVectors | None, sentences: Floats) -> None:
        self._chunks, self._sentences = chunks, sentences

    def measure(self, query: Floats) -> tuple[tuple[float, float], tuple[float, float]]:
        """Mean and standard deviation of the best passages' similarities, and of the chunks' with their neighbours."""
        sentences = cosine_similarity(self._sentences, query)
        if self._chunks is None:
            return _mean_and_spread(sentences), _mean_and_spread(sentences)
        passages = np.concatenate([self._chunks.best_passage_similarity(query), sentences])
        with_neighbours = np.concatenate([self._chunks.neighbours_similarity(query), sentences])
        return _mean_and_spread(passages), _mean_and_spread(with_neighbours)


def _mean_and_spread(values: Floats) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    return (float(known.mean()), max(float(known.std()), MIN_SPREAD)) if len(known) else (0.0, 1.0)


# The features of a chunk by the part of its score that they make up. The parts are shown to users.
PARTS = {
    "meaning": ("best_passage", "with_neighbours"),
    "words": ("term_coverage", "bm25"),
    "speaker": ("speaker",),
    "time": ("time",),
    "user": ("user",),
    "asking": ("uninformative",),
    "wrong": ("feedback",),
}
RANKED_ROWS = 150  # the probability that the message needs memory is shared by so many rows, as when the weights were fitted
EVIDENCE = ("meaning", "words", "speaker", "time", "wrong")  # the parts that relate a chunk to the query


@dataclass(frozen=True, slots=True)
class RankingWeights:
    """Which chunk helps: a chunk's score is the sum of its features, each times its weight.

    Differences of scores are log-odds: a chunk whose score is 2 higher is e² times as likely to be the one that helps.
    Similarities are z-scores (see `ScoreBaseline`), coverages are shares from 0 to 1.
    """

    best_passage: float  # similarity of its best passage
    with_neighbours: float  # similarity of the chunk with its neighbours
    term_coverage: float  # how many of the query's terms it contains, weighted by rarity
    bm25: float  # its BM25 with its neighbours, relative to the best candidate's
    speaker: float  # the query mentions its speaker
    time: float  # the query mentions the time when it was said
    uninformative: float  # it states nothing: short questions, courtesies, "I don't know"
    feedback: float = -20.0  # similarity to a query that the chunk was wrong for: then it is no hit

    def parts(self, features: Mapping[str, Floats], user_weight: float) -> dict[str, Floats]:
        """What each part adds to the scores. Features that are not known add nothing."""
        weights = {one.name: getattr(self, one.name) for one in fields(self)} | {
            "user": math.log(user_weight)
        }
        return {
            part: np.asarray(
                sum(weights[name] * features[name] for name in names if name in features), np.float32
            )
            for part, names in PARTS.items()
            if any(name in features for name in names)
        }


@dataclass(frozen=True, slots=True)
class NeedWeights:
    """Whether a message needs memory: a logistic regression on the message and on the best chunk for it."""

    question_share: float  # the share of its words that stand in questions and requests
    first_person: float  # it is about its author or both parties: "my", "did I"
    general_request: float  # anybody could ask it: "How do I boil an egg?"
    term_count: float  # log(1 + number of terms)
    top_coverage: float  # the highest `term_coverage` among the candidates, neighbours included
    memory_size: float  # log(1 + number of chunks that are searched)
    best_passage: float  # of the best chunk
    best_score: float  # of the best chunk, without the user's weight
    intercept: float

    def log_odds(self, features: Mapping[str, float]) -> float:
        return float(self.intercept + sum(getattr(self, name) * value for name, value in features.items()))


@dataclass(frozen=True, slots=True)
class RecallModel:
    """The weights of a search. They are fitted by `scripts/bench recall --all --fit`."""

    ranking: RankingWeights
    need: NeedWeights


WITH_VECTORS = RecallModel(
    RankingWeights(
        best_passage=0.23,
        with_neighbours=0.69,
        term_coverage=2.8,
        bm25=2.1,
        speaker=1.1,
        time=1.65,
        uninformative=-5.0,
    ),
    NeedWeights(
        question_share=3.9,
        first_person=1.3,
        general_request=-1.6,
        term_count=1.4,
        top_coverage=2.5,
        memory_size=0.47,
        best_passage=0.27,
        best_score=0.39,
        intercept=-12.3,
    ),
)
WITHOUT_VECTORS = RecallModel(
    RankingWeights(
        best_passage=0.0,
        with_neighbours=0.0,
        term_coverage=4.1,
        bm25=3.1,
        speaker=1.75,
        time=1.2,
        uninformative=-5.0,
    ),
    NeedWeights(
        question_share=3.9,
        first_person=1.5,
        general_request=-1.35,
        term_count=1.45,
        top_coverage=3.1,
        memory_size=0.49,
        best_passage=0.0,
        best_score=0.26,
        intercept=-11.2,
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The rows that a search compares, with their features and those of the message, by name."""

    rows: Rows
    features: Mapping[str, Floats]
    message: Mapping[str, float]
    term_hits: Sequence[TermHits]

    def score(self, model: RecallModel, user_weight: float) -> dict[str, Floats]:
        """The parts of the logarithm of each row's probability to help. The probabilities of all rows add up to the probability
        that the message needs memory: the part `message`, the same for every row, sees to that."""
        parts = model.ranking.parts(self.features, user_weight)
        scores = np.asarray(sum(parts.values(), np.zeros(len(self.rows), np.float32)), np.float64)
        # An earlier question may be the most similar row, but it answers nothing.
        informative = self.features["uninformative"] == 0
        best = int(np.argmax(np.where(informative, scores, -np.inf) if informative.any() else scores))
        of_best = {"best_score": float(scores[best] - parts["user"][best])}
        if "best_passage" in self.features:
            of_best["best_passage"] = float(self.features["best_passage"][best])
        log_odds = model.need.log_odds({**self.message, **of_best})
        highest = np.sort(scores)[-RANKED_ROWS:]
        message = -np.logaddexp(0.0, -log_odds) - np.logaddexp.reduce(highest)
        return parts | {"message": np.full(len(self.rows), message, np.float32)}


MAX_FEEDBACK_TERMS = 64  # terms of a query that are compared with those of earlier queries
SIMILAR_FROM, SAME_FROM = (
    0.5,
    0.8,
)  # cosine similarities from which queries count as similar at all, and as the same


class NegativeFeedback:
    """The negative feedback of users: chunks that were wrong results, each with the queries they were wrong for.

    Two queries are compared by their terms and, once both are embedded, by their vectors.
    """

    def __init__(self) -> None:
        self._queries: dict[int, list[str]] = {}  # by number of the chunk
        self._terms: dict[str, frozenset[str]] = {}  # by query
        self._vectors: dict[str, Floats] = {}  # by query

    def replace(self, feedback: Iterable[tuple[int, str]], vectors: Mapping[str, Floats]) -> None:
        """Replace all feedback: numbers of chunks with queries, and the vectors of the queries that are embedded."""
        self._queries, self._vectors = {}, dict(vectors)
        for number, query in feedback:
            self._queries.setdefault(number, []).append(query)
        queries = {query for queries in self._queries.values() for query in queries}
        self._terms = {query: frozenset(query_terms(query, MAX_FEEDBACK_TERMS)) for query in queries}

    def similarity(self, numbers: npt.NDArray[np.int64], text: str, vector: Floats | None) -> Floats | None:
        """(numbers,) 0 to 1: how similar a query is to those that the chunk was wrong for; None if there is no feedback
        on these chunks."""
        with_feedback = (
            [i for i, number in enumerate(numbers.tolist()) if number in self._queries]
            if self._queries
            else []
        )
        if not with_feedback:
            return None
        text_terms = frozenset(query_terms(text, MAX_FEEDBACK_TERMS))
        by_query = {query: self._query_similarity(query, text_terms, vector) for query in self._terms}
        similarities = np.zeros(len(numbers), np.float32)
        for i in with_feedback:
            similarities[i] = max(by_query[query] for query in self._queries[int(numbers[i])])
        return similarities

    def _query_similarity(self, query: str, text_terms: frozenset[str], vector: Floats | None) -> float:
        terms, query_vector = self._terms[query], self._vectors.get(query)
        by_terms = len(terms & text_terms) / len(terms | text_terms) if terms | text_terms else 0.0
        if query_vector is None or vector is None:
            return by_terms
        by_vectors = (float(query_vector @ vector) - SIMILAR_FROM) / (SAME_FROM - SIMILAR_FROM)
        return max(by_terms, min(1.0, max(0.0, by_vectors)))
