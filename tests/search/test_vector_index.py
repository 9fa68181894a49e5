"""Nearest vectors, exactly and through the narrow view."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.core.quantization import dequantize, quantize
from halo_weave.errors import BadInput
from halo_weave.search import vector_index
from halo_weave.search import vector_index as module
from halo_weave.search.vector_index import VectorIndex


def unit(rng: np.random.Generator, count: int, dimension: int = 8) -> np.ndarray:
    found = rng.standard_normal((count, dimension)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def clustered(rng: np.random.Generator, count: int, dimension: int = 128) -> np.ndarray:
    """Vectors around some topics, more spread in some directions than in others, as real ones are."""
    scale = 1 / np.sqrt(1 + np.arange(dimension) / 8)
    topics = rng.standard_normal((50, dimension)) * scale
    found = topics[rng.integers(0, 50, count)] + 0.7 * rng.standard_normal((count, dimension)) * scale
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def brute(held: dict[int, np.ndarray], query: np.ndarray) -> list[int]:
    return sorted(held, key=lambda number: -float((held[number] @ query).max()))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_nearest_are_those_of_comparing_all(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    index, held = VectorIndex(8), dict[int, np.ndarray]()
    for _ in range(data.draw(st.integers(1, 8))):
        numbers = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True))
        if data.draw(st.booleans()):
            index.remove(np.array(numbers))
            for number in numbers:
                held.pop(number, None)
        else:
            counts = [data.draw(st.integers(1, 3)) for _ in numbers]
            some = unit(rng, sum(counts))
            index.put(np.repeat(numbers, counts), some)
            held.update(zip(numbers, np.split(some, np.cumsum(counts)[:-1]), strict=True))
    query = unit(rng, 1)[0]
    held = {
        number: dequantize(*quantize(vectors)) for number, vectors in held.items()
    }  # as precise as it keeps them
    assert index.nearest(query, 100).tolist() == brute(held, query)
    assert len(index) == len(held)
    got, counts = index.of(np.array([*held, 99]))
    assert counts.tolist() == [*map(len, held.values()), 0]
    assert np.array_equal(got, np.concatenate([np.zeros((0, 8), np.float32), *held.values()]))
    assert index.bytes < 1024 * 1.5 * (8 + 4 + 8) + 100


def test_closing_the_gaps_ends_the_image_whose_rows_have_other_places():
    index, told = VectorIndex(8), []
    index.put(np.arange(1500), np.ones((1500, 8), np.float32))
    index._erase = told.append
    index.remove(np.arange(1200))
    assert told[-1] is None
    index.remove(np.arange(1200, 1210))
    assert told[-1] is None, "nothing is erased by places that are not the file's"
    assert len(told) == 2


def test_removing_much_closes_the_gaps():
    rng = np.random.default_rng(1)
    index = VectorIndex(8)
    some = unit(rng, 8000)
    index.put(np.arange(8000), some)
    index.remove(np.arange(6000))
    assert index.size < 4000
    query = some[7000]
    assert index.nearest(query, 1).tolist() == [7000]


def test_the_narrow_view_finds_nearly_all_of_the_nearest(monkeypatch):
    monkeypatch.setattr(module, "EXACT_BELOW", 1000)
    rng = np.random.default_rng(2)
    some = clustered(rng, 30_000)
    index = VectorIndex(128)
    index.put(np.arange(20_000), some[:20_000])
    index.nearest(some[0], 50)  # learns the directions
    index.put(np.arange(20_000, 30_000), some[20_000:])  # more come in after that
    index.remove(np.arange(0, 30_000, 10))
    kept = np.setdiff1d(np.arange(30_000), np.arange(0, 30_000, 10))
    found = wanted = 0
    for query in clustered(rng, 30):
        nearest = kept[np.argsort(-(some[kept] @ query))[:50]]
        got = index.nearest(query, 50)
        assert len(got) == 50
        found += len(set(got.tolist()) & set(nearest.tolist()))
        wanted += 50
    assert found / wanted > 0.98


def test_vectors_of_another_dimension_are_refused_with_what_to_do():
    with pytest.raises(BadInput, match="halo-weave reindex"):
        VectorIndex(8).put(np.array([1]), np.zeros((1, 9), np.float32))


def test_an_empty_index_has_nothing_near():
    assert VectorIndex(8).nearest(np.ones(8, np.float32), 5).tolist() == []


def test_the_narrow_view_multiplies_alike_with_and_without_the_module_in_c():
    rng = np.random.default_rng(5)
    codes = rng.integers(-127, 128, (10_001, vector_index.COMPONENTS), np.int8)
    weights = rng.integers(
        -vector_index.MAX_WEIGHT, vector_index.MAX_WEIGHT + 1, vector_index.COMPONENTS
    ).astype(np.int16)
    found, exact = np.empty(10_001, np.int32), codes.astype(np.int64) @ weights.astype(np.int64)
    vector_index._multiply(codes, weights, found)
    assert np.array_equal(found, exact)
    if vector_index.native is None:
        pytest.skip("there was no compiler")
    vector_index.native.products(codes, weights, found)
    assert np.array_equal(found, exact)
    for wrong in ((codes[:5], weights, found), (codes, weights[:5], found)):
        with pytest.raises(ValueError, match="do not match"):
            vector_index.native.products(*wrong)
