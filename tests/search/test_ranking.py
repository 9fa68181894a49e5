"""What counts as ordinary in memories of odd kinds, and how words are counted."""

import numpy as np

from halo_weave.search.ranking import ORDINARY, WITH_VECTORS, ChunkVectors, Floats, Ordinary


def units(count: int, seed: int) -> Floats:
    """Vectors in all directions, each of length 1."""
    some = np.random.default_rng(seed).normal(size=(count, 64))
    return np.asarray(some / np.linalg.norm(some, axis=1, keepdims=True), np.float32)


def meaning(vectors: Floats) -> ChunkVectors:
    return ChunkVectors(vectors, np.ones(len(vectors), np.int64), vectors, vectors)


SENTENCES = units(len(ORDINARY), seed=1)
REPEATED, FACT, *_ = np.eye(64, dtype=np.float32)


def standing(ordinary: Ordinary, query: Floats, vector: Floats) -> float:
    """Spreads above ordinary texts."""
    (middle, spread), _ = ordinary.measure(query)
    return float((vector @ query - middle) / spread)


def test_a_slight_likeness_does_not_outweigh_words_in_a_memory_that_is_mostly_one_text():
    question = np.zeros(64, np.float32)
    question[[1, 2]] = 0.3, np.sqrt(1 - 0.3**2)  # a little like the fact, not at all like what is repeated
    for memory in (np.stack([REPEATED] * 400), np.stack([*[REPEATED] * 399, FACT])):
        above = standing(Ordinary(meaning(memory), SENTENCES), question, FACT)
        assert 0 < WITH_VECTORS.passage * above < 3 * WITH_VECTORS.bm25


def test_what_fits_stands_out_as_far_in_a_memory_of_one_chunk_as_in_an_empty_one():
    question = units(1, seed=3)[0]
    alone = standing(Ordinary(None, SENTENCES), question, question)
    beside = standing(Ordinary(meaning(REPEATED[None]), SENTENCES), question, question)
    assert alone > 4
    assert np.isclose(alone, beside, rtol=0.1)


def test_the_spread_of_a_memory_of_many_texts_counts_as_it_is():
    chunks, question = meaning(units(1000, seed=2)), units(1, seed=3)[0]
    near = chunks.best_passages(question)
    above = standing(Ordinary(chunks, SENTENCES), question, chunks.whole[0])
    assert np.isclose(above, (near[0] - near.mean()) / near.std(), atol=0.2)
