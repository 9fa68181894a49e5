"""From the best hits to others: a question may name one thing and need what was said of another.

"Where does the owner of Rex live?" finds "Lene has a dog called Rex", and the name in it leads to "Lene lives in Bergen".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from halo_weave.core.words import question_terms
from halo_weave.index.fusion import Floats, find_terms
from halo_weave.index.outline import Outline, Rows
from halo_weave.store import Store

BEST = 3  # hits that lead on
READ = 12  # words of each
TAKEN = 8  # words of all of them together
COMMON = 20  # a word that more than one in so many chunks holds leads nowhere
MOST = 200  # chunks that hold a word, in a memory of any size: more would take long to weigh


def led_to(
    store: Store, outline: Outline, rows: Rows, evidence: Floats, known: Collection[str], window: str | None
) -> Floats | None:
    """(rows,) how much each holds of the words to which the best of them lead; None without any such words.

    It tells which hits are better than others and makes no hits: without other evidence it is 0. `known`: words that
    say nothing new: the question's own, and names of speakers. A word counts by how likely the hits are that hold it,
    and by its BM25; the best do not lead to each other.
    """
    telling = np.flatnonzero((evidence > 0) & (outline["told"][rows] > 0))
    best = telling[np.argsort(-evidence[telling], kind="stable")[:BEST]]
    if not len(best):
        return None
    odds = np.exp(evidence[best] - evidence[best[0]])
    texts = {one.number: one.chunk.text for one in store.chunks(outline["number"][rows[best]].tolist())}
    words = [
        question_terms(texts.get(number, ""), READ).keys() - set(known)
        for number in outline["number"][rows[best]].tolist()
    ]
    shares: dict[str, float] = defaultdict(float)
    for held, odd in zip(words, odds.tolist(), strict=True):
        for word in held:
            shares[word] += odd
    most = min(MOST, max(4, len(outline) // COMMON))
    found = find_terms(store, outline, {word: word for word in sorted(shares)}, most=most, window=window)
    worth = {hit.term: shares[hit.term] * float(hit.scores.max()) for hit in found if len(hit.rows) > 1}
    taken = sorted(worth, key=lambda word: -worth[word])[:TAKEN]
    if not taken:
        return None
    total = np.zeros(len(rows), np.float32)
    for hit in found:
        if hit.term in taken:
            _, place, found_at = np.intersect1d(rows, hit.rows, assume_unique=True, return_indices=True)
            total[place] += (shares[hit.term] * hit.scores[found_at]).astype(np.float32)
    total[best] = 0
    total /= np.float32(sum(worth[word] for word in taken))
    return np.where(evidence > 0, total, np.float32(0))
