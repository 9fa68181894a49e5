"""The user's words, each asked of the word index by itself: that tells which of them a chunk holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from halo_weave.index.outline import Outline, Rows

FREQUENT = 20_000  # a term that more chunks hold tells little and costs much: it is left out
MOST_TERMS = 64


class WordStore(Protocol):
    def search_words(
        self, match: str, limit: int, *, window: str | None = None
    ) -> list[tuple[int, float]]: ...
    def count_words(self, match: str, limit: int) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class TermHits:
    """The chunks that hold a term, and its BM25 in each."""

    term: str
    rows: Rows
    scores: npt.NDArray[np.float64]


def quoted(term: str) -> str:
    """A term as a phrase of FTS5, in which nothing is an operator."""
    return '"' + term.replace('"', " ").replace("\x00", " ") + '"'


def find_terms(
    store: WordStore, outline: Outline, terms: Sequence[str], *, window: str | None = None
) -> list[TermHits]:
    found = []
    for term in terms:
        match = quoted(term)
        if len(outline) > FREQUENT and store.count_words(match, FREQUENT + 1) > FREQUENT:
            continue
        hits = store.search_words(match, FREQUENT, window=window)
        rows = outline.rows(np.array([number for number, _ in hits], np.int64))
        scores = np.array([score for _, score in hits], np.float64)
        known = rows >= 0  # another process may have said something since the outline was read
        if known.any():
            found.append(TermHits(term, rows[known], scores[known]))
    return found
