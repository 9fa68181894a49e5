"""What counts as ordinary, and as near, in memories of odd kinds."""

import numpy as np

from halo_weave.search.ranking import SMALL_TALK, ChunkVectors, Floats, ScoreBaseline, Weights


def units(count: int, seed: int) -> Floats:
    """Vectors in all directions, each of length 1."""
    some = np.random.default_rng(seed).normal(size=(count, 64))
    return np.asarray(some / np.linalg.norm(some, axis=1, keepdims=True), np.float32)


def meaning(vectors: Floats) -> ChunkVectors:
    return ChunkVectors(vectors, np.ones(len(vectors), np.int64), vectors, vectors)


MESSAGES = units(len(SMALL_TALK), seed=1)
REPEATED, FACT, *_ = np.eye(64, dtype=np.float32)


def test_a_slight_likeness_does_not_outweigh_words_in_a_memory_that_is_mostly_one_text():
    question = np.zeros(64, np.float32)
    question[[1, 2]] = 0.3, np.sqrt(1 - 0.3**2)  # a little like the fact, not at all like what is repeated
    for memory in (np.stack([REPEATED] * 400), np.stack([*[REPEATED] * 399, FACT])):
        ordinary = ScoreBaseline(meaning(memory), MESSAGES)
        near = meaning(FACT[None]).nearness(question)
        assert 0 < ordinary.above(question, near)[0] < Weights().words


def test_the_spread_of_a_memory_of_many_texts_counts_as_it_is():
    chunks = meaning(units(100, seed=2))
    question = units(1, seed=3)[0]
    near = chunks.nearness(question)
    assert np.allclose(
        ScoreBaseline(chunks, MESSAGES).above(question, near), (near - near.mean()) / near.std(), atol=1e-4
    )


def test_small_talk_reaches_three_with_the_nearest_chunk_and_nothing_with_an_ordinary_one():
    chunks = meaning(units(100, seed=2))
    ordinary = ScoreBaseline(chunks, MESSAGES)
    reached = [ordinary.above_small_talk(chunks.nearness(message)) for message in MESSAGES]
    assert all(one is not None for one in reached)
    assert np.isclose(np.mean([one.max() for one in reached if one is not None]), 3, atol=1e-4)
    assert np.isclose(np.mean([one.mean() for one in reached if one is not None]), 0, atol=1e-4)


def test_without_an_embedder_nothing_is_known_of_small_talk():
    assert ScoreBaseline(meaning(REPEATED[None]), None).above_small_talk(np.zeros(1, np.float32)) is None
