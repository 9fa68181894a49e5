"""What a model's KV cache allows, found by trying it: whether parts can leave and return, which layers see everything."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from halo_weave.core.brightness import Capture
from halo_weave.engines.cache import LIVE, Cache, Shape
from halo_weave.llama import abi
from halo_weave.llama.model import Model

TOKENS = 8  # that are read; the second half of them then stands beyond the sliding window


@dataclass(frozen=True, slots=True)
class CacheTraits:
    cuts: bool  # cells can leave, return and be shifted
    wide_layers: tuple[int, ...] = ()  # those that see everything, if others do not


def has_state(model: Model) -> bool:
    """A recurrent state holds all that went before; no part of it can be taken out."""
    return bool(model.c.llama_model_is_recurrent(model.handle) or model.c.llama_model_is_hybrid(model.handle))


def probe(model: Model, shape: Shape) -> CacheTraits:
    """M-RoPE and recurrent states cannot be cut."""
    c, handle = model.c, model.handle
    if has_state(model) or c.llama_model_rope_type(handle) not in (abi.ROPE_NORMAL, abi.ROPE_NEOX):
        return CacheTraits(cuts=False)
    with contextlib.closing(Cache(model, shape, 256, attention=bool(shape.sliding))) as cache:
        if not c.llama_memory_can_shift(cache.memory):
            return CacheTraits(cuts=False)
        return CacheTraits(cuts=True, wide_layers=_wide_layers(cache, shape.sliding) if shape.sliding else ())


def _wide_layers(cache: Cache, sliding: int) -> tuple[int, ...]:
    """A few tokens, then one that is further away than a window is wide: some layers do not see the first ones."""
    assert cache.reader is not None
    reader, places = cache.reader, np.arange(TOKENS, dtype=np.int32)
    layers, heads = reader.pairs.shape
    ids, nothing = np.zeros(1, np.int32), np.zeros(TOKENS, np.bool_)
    cache.decode(np.zeros(TOKENS, np.int32), places, LIVE, nothing, 0)
    cache.c.llama_memory_seq_add(cache.memory, LIVE, TOKENS // 2, TOKENS, sliding)
    cache.cells.rewind()
    reader.choose(Capture(raw=True))
    cache.decode(ids, np.array([TOKENS + sliding], np.int32), LIVE, np.ones(1, np.bool_), 1)
    if cache.last_raw is None:
        return ()
    seen = cache.last_raw[-1, :, : TOKENS // 2].reshape(layers, heads, -1)
    return tuple(np.flatnonzero((seen > 0).any(axis=(1, 2))).tolist())
