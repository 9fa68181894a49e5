"""Select the rows of the chunk table that match a filter, or were said in given days."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, time, timedelta

import numpy as np

from halo_weave.engines.base import SearchFilter
from halo_weave.search.chunk_table import ROLES, Bools, ChunkTable, Rows
from halo_weave.search.query_analysis import DateSpan

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def filter_mask(table: ChunkTable, window: str | None, only: SearchFilter) -> Bools:
    """(rows of the table,) True for chunks of the window, or of all windows, that match the filter."""
    mask = table["present"].copy()
    if window is not None:
        mask &= table["window"] == table.window_codes.get(window, -1)
    if only.windows is not None:
        mask &= _in_windows(table, only.windows)
    for tagged in only.tagged:
        with_tag = _in_windows(table, tagged.windows)
        rows = table.rows(np.array(sorted(tagged.chunks.values()), np.int64))
        with_tag[rows[rows >= 0]] = True
        mask &= with_tag
    if only.role is not None:
        mask &= table["role"] == ROLES.index(only.role)
    if only.speaker:
        wanted = only.speaker.casefold()
        codes = [code for name, code in table.speaker_codes.items() if name.casefold() == wanted]
        mask &= np.isin(table["speaker"], codes)
    if only.since is not None:
        mask &= table["said"] >= (only.since - _EPOCH) // timedelta(microseconds=1)
    if only.before is not None:
        mask &= table["said"] < (only.before - _EPOCH) // timedelta(microseconds=1)
    return np.asarray(mask)


def _in_windows(table: ChunkTable, windows: Collection[str]) -> Bools:
    codes = [table.window_codes[window] for window in windows if window in table.window_codes]
    return np.isin(table["window"], codes)


def said_in_spans(table: ChunkTable, rows: Rows, spans: Sequence[DateSpan], now: datetime) -> Bools:
    """(rows,) True for chunks that were said in one of these spans. Days begin at midnight in the time zone of `now`."""
    said = table["said"][rows]
    inside = np.zeros(len(rows), bool)
    for first, last in spans:
        begin, end = _midnight(first, now), _midnight(last, now) + 24 * 3600 * 1_000_000
        inside |= (said >= begin) & (said < end)
    return inside


def _midnight(day: date, now: datetime) -> int:
    """The beginning of a day in the time zone of `now`, in microseconds since 1970."""
    return (datetime.combine(day, time(), now.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)
