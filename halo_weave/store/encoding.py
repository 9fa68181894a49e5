"""Encode tokens, times, traces and vectors as column values, and derive a chunk's search terms and informativeness."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from halo_weave.core.attribution import TokenSource
from halo_weave.core.informativeness import informative_share
from halo_weave.core.quantization import pack_codes, unpack_codes
from halo_weave.core.terms import index_terms
from halo_weave.core.tokens import Brightness, Tokens
from halo_weave.errors import BadInput

new, put = object.__new__, object.__setattr__
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadInput(f"The time {moment} has no time zone. Give one, such as UTC.")
    return (moment - EPOCH) // MICROSECOND


@lru_cache(maxsize=4096)  # the chunks of a turn share their time
def moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def maybe_moment(micros: int | None) -> datetime | None:
    return None if micros is None else moment(micros)


def pack_tokens(tokens: Tokens) -> tuple[bytes, bytes, bytes]:
    """Ids, piece lengths and bytes; each in the narrowest width that holds them."""
    lengths = tokens.ends.copy()
    lengths[1:] -= tokens.ends[:-1]
    narrow_ids = len(tokens) and tokens.ids.min() >= 0 and tokens.ids.max() < 1 << 16
    narrow_lengths = len(tokens) and lengths.max() < 1 << 8
    return (
        tokens.ids.astype("<u2" if narrow_ids else "<i4").tobytes(),
        lengths.astype("u1" if narrow_lengths else "<i4").tobytes(),
        tokens.raw,
    )


def unpack_tokens(ids: bytes, lengths: bytes, raw: bytes, count: int) -> Tokens:
    return unpack_runs([(ids, lengths, raw, count)])[0]


def unpack_runs(runs: Sequence[tuple[bytes, bytes, bytes, int]]) -> list[Tokens]:
    """Unpack many runs of tokens at once. Their arrays are read-only views of two shared ones.

    The boundaries were checked when the tokens were stored, and are not checked again.
    """
    if not runs:
        return []
    blobs, pieces, raws, sizes = zip(*runs, strict=True)
    ids = _widened(blobs, sizes, "<u2")
    lengths = _widened(pieces, sizes, "u1")
    counts = np.array(sizes)
    stops = np.cumsum(counts)
    sums = np.cumsum(lengths, dtype=np.int64)
    before = np.concatenate([[0], sums])[stops - counts]  # offset of each run in bytes
    ends = (sums - np.repeat(before, counts)).astype(np.int32)
    ids.flags.writeable = False
    ends.flags.writeable = False
    found = []
    at = 0
    for raw, stop in zip(raws, stops.tolist(), strict=True):
        tokens = new(Tokens)
        put(tokens, "ids", ids[at:stop])
        put(tokens, "raw", raw)
        put(tokens, "ends", ends[at:stop])
        found.append(tokens)
        at = stop
    return found


def _widened(blobs: Sequence[bytes], counts: Sequence[int], narrow: str) -> npt.NDArray[np.int32]:
    """Blobs of numbers with one or four bytes each, as one array. Usually all have the same width."""
    joined = b"".join(blobs)
    width = np.dtype(narrow).itemsize
    if len(joined) == width * sum(counts):
        return np.frombuffer(joined, narrow).astype(np.int32)
    parts = [
        np.frombuffer(blob, narrow if len(blob) == width * n else "<i4")
        for blob, n in zip(blobs, counts, strict=True)
    ]
    return np.concatenate(parts, dtype=np.int32)


def pack_floats(values: npt.NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(values, "<f4").tobytes()


def quantized_blob(floats: bytes, dimension: int) -> bytes:
    """Vectors from an export, in the form in which they are stored."""
    return pack_codes(np.frombuffer(floats, "<f4").reshape(-1, dimension))


def dequantized_floats(codes: bytes, dimension: int) -> bytes:
    """Stored vectors in the form of an export."""
    return pack_floats(unpack_codes(codes, dimension))


def pack_traces(traces: npt.NDArray[np.float32] | None, tokens: int | None = None) -> bytes | None:
    """(traces, tokens) as bytes. `tokens`: the expected number of tokens."""
    if traces is not None and (traces.ndim != 2 or tokens not in (None, traces.shape[1])):
        raise BadInput(f"Traces of shape {traces.shape} do not fit {tokens} tokens.")
    return None if traces is None else pack_floats(traces)


def unpack_traces(blob: bytes | None, tokens: int) -> npt.NDArray[np.float32] | None:
    return None if blob is None else unpack_floats(blob).reshape(-1, tokens)


def unpack_floats(blob: bytes) -> Brightness:
    """The floats as a read-only view of the bytes."""
    return np.frombuffer(blob, "<f4")


# Sources of a reply's tokens: how many tokens (4 bytes), how many sources each has (1 byte each), then of all sources
# the place of the chunk (2 bytes each), the offset within it (4) and the share in 255ths (1).


def pack_sources(tokens: Sequence[Sequence[TokenSource]]) -> bytes:
    flat = [source for sources in tokens for source in sources if source.place < 1 << 16]
    kept = [sum(source.place < 1 << 16 for source in sources) for sources in tokens]
    return b"".join(
        (
            len(tokens).to_bytes(4, "little"),
            np.array(kept, "u1").tobytes(),
            np.array([source.place for source in flat], "<u2").tobytes(),
            np.array([source.offset for source in flat], "<u4").tobytes(),
            np.array([min(255, round(source.share * 255)) for source in flat], "u1").tobytes(),
        )
    )


def unpack_sources(blob: bytes) -> tuple[tuple[TokenSource, ...], ...]:
    """The inverse of `pack_sources`. Raises ValueError for other bytes."""
    tokens = int.from_bytes(blob[:4], "little")
    counts = np.frombuffer(blob[4 : 4 + tokens], "u1")
    total = int(counts.sum())
    if len(counts) != tokens or len(blob) != 4 + tokens + 7 * total:
        raise ValueError("should be the sources of a reply's tokens in base64")
    at = 4 + tokens
    places = np.frombuffer(blob, "<u2", total, at).tolist()
    offsets = np.frombuffer(blob, "<u4", total, at + 2 * total).tolist()
    shares = (np.frombuffer(blob, "u1", total, at + 6 * total) / 255).tolist()
    flat = [TokenSource(*one) for one in zip(places, offsets, shares, strict=True)]
    ends = np.cumsum(counts).tolist()
    return tuple(tuple(flat[end - count : end]) for end, count in zip(ends, counts.tolist(), strict=True))


def word_terms(raw: bytes, speaker: str, said: int) -> str:
    return index_terms(raw.decode("utf-8", errors="replace"), speaker=speaker, said=moment(said))


def informativeness_of(raw: bytes) -> float:
    return informative_share(raw.decode("utf-8", errors="replace"))
