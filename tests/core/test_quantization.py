"""Vectors with one byte for each number."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.quantization import dequantize, pack_codes, packed_size, quantize, unpack_codes


@given(st.integers(0, 20), st.integers(1, 40), st.integers(0, 1000))
def test_a_vector_returns_nearly_as_it_was_and_a_second_time_exactly(count, dimension, seed):
    vectors = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    again = unpack_codes(pack_codes(vectors), dimension)
    assert again.shape == vectors.shape
    assert np.all(np.abs(again - vectors) <= np.abs(vectors).max(axis=1, initial=0)[:, None] / 250)
    assert np.array_equal(dequantize(*quantize(again)), again)


def test_a_vector_of_zeros_stays_so_and_a_vector_takes_a_byte_for_each_number():
    assert not dequantize(*quantize(np.zeros((1, 4), np.float32))).any()
    assert packed_size(384) == 388
