"""Vectors quantized to int8 with one scale for each vector."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float32]
MAX_CODE = 127


def quantize(vectors: Floats) -> tuple[Codes, Floats]:
    """(vectors, dimension) as integers from -127 to 127, and the scale of each vector."""
    scales = np.abs(vectors).max(axis=1, initial=0).astype(np.float32) / np.float32(MAX_CODE)
    codes = np.rint(vectors / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8)
    return codes, scales


def dequantize(codes: Codes, scales: Floats) -> Floats:
    """The vectors, with an error of at most 1/254 of their largest value. Quantizing them again gives the same codes."""
    return np.asarray(codes.astype(np.float32) * scales[:, None], np.float32)


def pack_codes(vectors: Floats) -> bytes:
    """The quantized vectors as bytes, for each its scale and its codes."""
    codes, scales = quantize(vectors)
    rows = np.empty(len(vectors), _packed_dtype(vectors.shape[1]))
    rows["scale"], rows["codes"] = scales, codes
    return rows.tobytes()


def unpack_codes(blob: bytes, dimension: int) -> Floats:
    """The inverse of `pack_codes`: (vectors, dimension)."""
    rows = np.frombuffer(blob, _packed_dtype(dimension))
    return dequantize(rows["codes"].reshape(-1, dimension), rows["scale"])


def packed_size(dimension: int) -> int:
    """Bytes of one packed vector."""
    return int(_packed_dtype(dimension).itemsize)


def _packed_dtype(dimension: int) -> np.dtype[np.void]:
    return np.dtype([("scale", "<f4"), ("codes", "i1", (dimension,))])
