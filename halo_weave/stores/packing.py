"""Arrays and times as a database keeps them: little-endian bytes, microseconds since 1970."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from halo_weave.core.tokens import Brightness, Tokens
from halo_weave.errors import BadInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadInput(f"The time {moment} has no time zone. Give one, such as UTC.")
    return (moment - EPOCH) // MICROSECOND


def moment(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def maybe_moment(micros: int | None) -> datetime | None:
    return None if micros is None else moment(micros)


def pack_tokens(tokens: Tokens) -> tuple[bytes, bytes, bytes]:
    """Ids, piece lengths and bytes; each in the narrowest width that holds them."""
    lengths = np.diff(tokens.ends, prepend=np.int32(0))
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
    """Many runs of tokens at once. Their arrays are read-only views of two shared ones.

    The boundaries were checked when the tokens were stored, so they are not checked again for each run.
    """
    if not runs:
        return []
    ids = np.concatenate(
        [np.frombuffer(ids, "<u2" if len(ids) == 2 * n else "<i4") for ids, _, _, n in runs], dtype=np.int32
    )
    lengths = np.concatenate(
        [np.frombuffer(blob, "u1" if len(blob) == n else "<i4") for _, blob, _, n in runs], dtype=np.int32
    )
    counts = np.array([n for *_, n in runs])
    stops = np.cumsum(counts)
    sums = np.cumsum(lengths, dtype=np.int64)
    before = np.concatenate([[0], sums])[stops - counts]  # bytes of all runs before each one
    ends = (sums - np.repeat(before, counts)).astype(np.int32)
    ids.flags.writeable = False
    ends.flags.writeable = False
    found = []
    at = 0
    for run, stop in zip(runs, stops.tolist(), strict=True):
        tokens = object.__new__(Tokens)
        object.__setattr__(tokens, "ids", ids[at:stop])
        object.__setattr__(tokens, "raw", run[2])
        object.__setattr__(tokens, "ends", ends[at:stop])
        found.append(tokens)
        at = stop
    return found


def pack_floats(values: npt.NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(values, "<f4").tobytes()


def unpack_floats(blob: bytes) -> Brightness:
    """A read-only view of the bytes."""
    return np.frombuffer(blob, "<f4")
