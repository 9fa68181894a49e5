"""The user's words, each asked of the word index by itself: that tells which of them a chunk holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from halo_weave.index.outline import Outline, Rows
from halo_weave.store import SearchIndex

FREQUENT = 20_000  # a term that more chunks hold tells little and costs much: it is left out
MOST_TERMS = 64


@dataclass(frozen=True, slots=True, eq=False)
class TermHits:
    """The chunks that hold a term, and its BM25 in each."""

    term: str
    rows: Rows
    scores: npt.NDArray[np.float64]


def find_terms(
    store: SearchIndex, outline: Outline, terms: Sequence[str], *, window: str | None = None
) -> list[TermHits]:
    found = []
    hits = store.search_terms(terms, FREQUENT, window=window)
    for term, (numbers, scores) in zip(terms, hits, strict=True):
        rows = outline.rows(numbers)
        known = rows >= 0  # another process may have said something since the outline was read
        if known.any():
            found.append(TermHits(term, rows[known], scores[known]))
    return found
