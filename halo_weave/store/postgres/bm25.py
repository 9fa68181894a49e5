"""Fold terms, and rank them with BM25, as FTS5 does in SQLite."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from halo_weave.store.records import Scores

K1, B = 1.2, 0.75  # parameters of BM25, as in FTS5
MIN_TERM_WEIGHT = 1e-6  # weight of a term that more than half of all chunks contain


@lru_cache(maxsize=1 << 16)
def fold_term(term: str) -> str:
    """The term in lower case, Latin letters without diacritics."""
    return term.lower() if term.isascii() else "".join(map(_plain, term))


def _plain(sign: str) -> str:
    sign = sign.casefold() if len(sign.casefold()) == 1 else sign.lower()
    parts = unicodedata.normalize("NFD", sign)
    if parts[0].isascii():
        return parts[0]
    return "" if unicodedata.category(sign) == "Mn" else sign


def counted_terms(text: str) -> Counter[str]:
    """How often each term occurs in the terms of a chunk."""
    return Counter(fold_term(term) for term in text.split())


def bm25(
    counts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], holding: int, chunks: int, terms: int
) -> Scores:
    """The rank of each chunk, by how often it contains the term, and its number of terms.

    `holding`: number of chunks with the term; `chunks` and `terms`: of the whole index.
    """
    weight = math.log((chunks - holding + 0.5) / (holding + 0.5))
    mean = terms / max(1, chunks)
    often = counts.astype(np.float64)
    score = often * (K1 + 1) / (often + K1 * (1 - B + B * sizes / max(mean, 1e-9)))
    return np.asarray(max(weight, MIN_TERM_WEIGHT) * score, np.float64)
