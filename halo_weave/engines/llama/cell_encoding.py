"""Keys and values with 8 bits for the disk: blocks of 32 numbers with one scale, as in llama.cpp's q8_0."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
F16 = 1  # `ggml_type` of the numbers that are encoded; others stay as they are
BLOCK = 32  # numbers with one scale
_BLOCK_BYTES = 2 * BLOCK
# Bytes of llama.cpp's state: its mark and version, and those between the number of layers and the first one.
_FRONT, _BEFORE_LAYERS = 8, 8
# Type and size of a layer's keys, and of its values if they are transposed: of one number, and how many a cell has.
_HEADS = {False: struct.Struct("<iQ"), True: struct.Struct("<iII")}


def encode(state: Bytes) -> Bytes | None:
    """The state with 8-bit numbers, about half as long. None: it has another form, and is written as it is."""
    try:
        spans = _numbers_in(state)
    except (struct.error, ValueError):
        return None
    outside, at, scales, numbers = [], 0, [], []
    for start, stop in spans:
        outside.append(state[at:start])
        values = state[start:stop].view(np.float16).astype(np.float32).reshape(-1, BLOCK)
        scale = (np.abs(values).max(axis=1) / 127).astype(np.float16)
        if not np.isfinite(scale).all():
            return None
        divisor = np.where(scale > 0, scale, 1).astype(np.float32)[:, None]
        numbers.append(np.clip(np.rint(values / divisor), -127, 127).astype(np.int8).ravel().view(np.uint8))
        scales.append(scale.view(np.uint8))
        at = stop
    outside.append(state[at:])
    head = np.array([len(spans), *(edge for span in spans for edge in span)], "<u8").view(np.uint8)
    return np.concatenate([head, *outside, *scales, *numbers])


def decode(encoded: Bytes) -> Bytes:
    """The state that was encoded, with rounded numbers."""
    count = int(encoded[:8].view("<u8")[0])
    edges = encoded[8 : 8 + 16 * count].view("<u8").astype(np.int64)
    starts, stops = edges[::2], edges[1::2]
    blocks = (stops - starts) // _BLOCK_BYTES
    rest = len(encoded) - 8 - 16 * count - int(blocks.sum()) * (2 + BLOCK)
    if rest < 0 or (np.diff(edges) < 0).any():
        raise ValueError("its cells are not encoded as expected")
    outside = encoded[8 + 16 * count :][:rest]
    scales = encoded[8 + 16 * count + rest :][: 2 * int(blocks.sum())].view(np.float16)
    numbers = encoded[len(encoded) - BLOCK * int(blocks.sum()) :].view(np.int8).reshape(-1, BLOCK)
    state = np.empty(rest + int((stops - starts).sum()), np.uint8)
    taken = at = done = 0
    for start, stop, size in zip(starts.tolist(), stops.tolist(), blocks.tolist(), strict=True):
        state[at:start] = outside[taken : taken + start - at]
        taken += start - at
        part = slice(done, done + size)
        values = numbers[part] * scales[part].astype(np.float32)[:, None]
        state[start:stop] = values.astype(np.float16).view(np.uint8).ravel()
        at, done = stop, done + size
    state[at:] = outside[taken:]
    return state


def _numbers_in(state: Bytes) -> list[tuple[int, int]]:
    """Where the state of one sequence has f16 numbers: the first byte of each run, and the one after its last."""
    raw = state.data
    streams, cells = struct.unpack_from("<II", raw, _FRONT)
    if streams != 1 or not cells:
        raise ValueError("not one stream of cells")
    at, transposed, layers = _first_layer(raw, cells)
    spans = []
    for values in (False, True):
        head = _HEADS[values and transposed]
        for _ in range(layers):
            kind, *sizes = head.unpack_from(raw, at)
            at += head.size
            size = cells * math.prod(sizes)
            if kind == F16:
                spans.append((at, at + size // _BLOCK_BYTES * _BLOCK_BYTES))
            at += size
    if at != len(state):
        raise ValueError("its length is not that of its layers")
    return spans


def _first_layer(raw: memoryview, cells: int) -> tuple[int, bool, int]:
    """Where the layers begin, after the place and the sequences of each cell; and how many there are."""
    at = _FRONT + 8
    for _ in range(cells):
        _, sequences = struct.unpack_from("<iI", raw, at)
        if sequences > 8:
            raise ValueError("the places of cells have another form")
        at += 8 + 4 * sequences
    transposed, layers = struct.unpack_from("<II", raw, at)
    if transposed > 1 or not 0 < layers < 1000:
        raise ValueError("the layers have another form")
    return at + 8 + _BEFORE_LAYERS, bool(transposed), layers
