"""The baseline of similarities in memories of unusual kinds."""

import numpy as np

from halo_weave.search.ranking import (
    BASELINE_SENTENCES,
    WITH_VECTORS,
    ChunkVectors,
    Floats,
    ScoreBaseline,
)


def units(count: int, seed: int) -> Floats:
    """Vectors in all directions, each of length 1."""
    some = np.random.default_rng(seed).normal(size=(count, 64))
    return np.asarray(some / np.linalg.norm(some, axis=1, keepdims=True), np.float32)


def chunk_vectors(vectors: Floats) -> ChunkVectors:
    return ChunkVectors(vectors, np.ones(len(vectors), np.int64), vectors, vectors)


SENTENCES = units(len(BASELINE_SENTENCES), seed=1)
REPEATED, FACT, *_ = np.eye(64, dtype=np.float32)


def z_score(baseline: ScoreBaseline, query: Floats, vector: Floats) -> float:
    """Standard deviations above the baseline."""
    (mean, spread), _ = baseline.measure(query)
    return float((vector @ query - mean) / spread)


def test_a_slight_likeness_does_not_outweigh_words_in_a_memory_that_is_mostly_one_text():
    question = np.zeros(64, np.float32)
    question[[1, 2]] = 0.3, np.sqrt(1 - 0.3**2)  # a little like the fact, not at all like what is repeated
    for memory in (np.stack([REPEATED] * 400), np.stack([*[REPEATED] * 399, FACT])):
        above = z_score(ScoreBaseline(chunk_vectors(memory), SENTENCES), question, FACT)
        assert 0 < WITH_VECTORS.ranking.best_passage * above < 3 * WITH_VECTORS.ranking.bm25


def test_what_fits_stands_out_as_far_in_a_memory_of_one_chunk_as_in_an_empty_one():
    question = units(1, seed=3)[0]
    alone = z_score(ScoreBaseline(None, SENTENCES), question, question)
    beside = z_score(ScoreBaseline(chunk_vectors(REPEATED[None]), SENTENCES), question, question)
    assert alone > 4
    assert np.isclose(alone, beside, rtol=0.1)


def test_the_spread_of_a_memory_of_many_texts_counts_as_it_is():
    chunks, question = chunk_vectors(units(1000, seed=2)), units(1, seed=3)[0]
    near = chunks.best_passage_similarity(question)
    above = z_score(ScoreBaseline(chunks, SENTENCES), question, chunks.whole[0])
    assert np.isclose(above, (near[0] - near.mean()) / near.std(), atol=0.2)
