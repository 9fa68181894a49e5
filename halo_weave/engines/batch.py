"""Tokens on their way into llama.cpp."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Ids
from halo_weave.engines.cells import Places
from halo_weave.llama import abi


class TokenBatch:
    """The arrays behind a llama_batch, made once."""

    def __init__(self, size: int) -> None:
        self.tokens, self.places, self.ones, self.sequences = (
            np.ones(size, dtype=np.int32) for _ in range(4)
        )
        self.wanted = np.zeros(size, dtype=np.int8)
        integers = ctypes.POINTER(ctypes.c_int32)
        each = [ctypes.cast(self.sequences.ctypes.data + 4 * i, integers) for i in range(size)]
        self.lists = (integers * size)(*each)
        self.struct = abi.Batch(
            n_tokens=0,
            token=self.tokens.ctypes.data_as(integers),
            embd=None,
            pos=self.places.ctypes.data_as(integers),
            n_seq_id=self.ones.ctypes.data_as(integers),
            seq_id=self.lists,
            logits=self.wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, ids: Ids, places: Places, sequence: int, wanted: npt.NDArray[np.bool_]) -> abi.Batch:
        count = len(ids)
        self.tokens[:count] = ids
        self.places[:count] = places
        self.sequences[:count] = sequence
        self.wanted[:count] = wanted
        self.struct.n_tokens = count
        return self.struct
