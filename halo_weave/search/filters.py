"""Which rows a search considers, and which were said in a time span."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, time, timedelta

import numpy as np

from halo_weave.engines.base import SearchFilter
from halo_weave.search.chunk_table import ROLES, Bools, ChunkTable, Rows
from halo_weave.search.query_analysis import Span

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def searched_rows(outline: ChunkTable, window: str | None, only: SearchFilter) -> Bools:
    """(rows of the outline,) whether a search looks at it."""
    mask = outline["present"].copy()
    if window is not None:
        mask &= outline["window"] == outline.window_codes.get(window, -1)
    if only.windows is not None:
        mask &= _in_windows(outline, only.windows)
    for tagged in only.tagged:
        with_tag = _in_windows(outline, tagged.windows)
        rows = outline.rows(np.array(sorted(tagged.chunks.values()), np.int64))
        with_tag[rows[rows >= 0]] = True
        mask &= with_tag
    if only.role is not None:
        mask &= outline["role"] == ROLES.index(only.role)
    if only.speaker:
        called = only.speaker.casefold()
        codes = [code for name, code in outline.speaker_codes.items() if name.casefold() == called]
        mask &= np.isin(outline["speaker"], codes)
    if only.since is not None:
        mask &= outline["said"] >= (only.since - _EPOCH) // timedelta(microseconds=1)
    if only.before is not None:
        mask &= outline["said"] < (only.before - _EPOCH) // timedelta(microseconds=1)
    return np.asarray(mask)


def _in_windows(outline: ChunkTable, windows: Collection[str]) -> Bools:
    codes = [outline.window_codes[one] for one in windows if one in outline.window_codes]
    return np.isin(outline["window"], codes)


def said_within(outline: ChunkTable, rows: Rows, named: Sequence[Span], now: datetime) -> Bools:
    """(rows,) whether it was said in one of these spans of days, which begin and end where `now` is."""
    said = outline["said"][rows]
    inside = np.zeros(len(rows), bool)
    for first, last in named:
        begin, end = _micros(first, now), _micros(last, now) + 24 * 3600 * 1_000_000
        inside |= (said >= begin) & (said < end)
    return inside


def _micros(day: date, now: datetime) -> int:
    """Midnight of a day where `now` is, in microseconds since 1970."""
    return (datetime.combine(day, time(), now.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
