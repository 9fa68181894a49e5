"""What is ordinary in a memory: how near its chunks are to a question, and to messages that speak of nothing."""

from __future__ import annotations

import numpy as np

from halo_weave.index.fusion import Floats, Meaning

SMALL_TALK = (  # messages that speak of nothing: what they reach is not relevant
    *("cool", "alright then", "got it", "hey", "yep", "nope", "good evening", "that is nice to hear"),
    *("one moment please", "as you like", "well done", "let me think about it"),
)
LEAST = 0.5  # of the spread of these messages among themselves: measured spreads are hardly ever smaller
NEAREST = 3.0  # where the chunk nearest to such a message stands, and 0 any other
LEAST_STEP = 0.3  # of the same spread, in a memory of few or like texts


class Ordinary:
    """Some chunks out of all, by which others are measured.

    A memory that is mostly one text said again and again hardly spreads. Divided by that, any difference would look
    large; so no spread counts as smaller than a share of what the embedder gives to unlike messages.
    """

    def __init__(self, chunks: Meaning, messages: Floats | None) -> None:
        """`messages`: the vectors of `SMALL_TALK`, if there is an embedder."""
        self._chunks = chunks
        self._least, self._calm = 1e-3, (0.0, 0.0)  # `_calm`: where 0 is, and how large a step is
        if messages is None:
            return
        alike = messages @ messages.T
        unlike = float(alike[np.triu_indices(len(messages), 1)].std())
        self._least = max(self._least, LEAST * unlike)
        reached = np.stack([chunks.nearness(one) for one in messages])  # (messages, chunks)
        embedded = reached[:, ~np.isnan(reached).any(axis=0)]
        if embedded.size:
            middle = float(embedded.mean())
            nearest = float(embedded.max(axis=1).mean())
            self._calm = middle, max((nearest - middle) / NEAREST, LEAST_STEP * unlike, 1e-3)

    def above(self, query: Floats, near: Floats) -> Floats:
        """Spreads above what an ordinary chunk reaches for this question; 0 for one that is not embedded yet."""
        middle, spread = self._middle_and_spread(self._chunks.nearness(query))
        return np.asarray(np.nan_to_num((near - middle) / (spread or 1.0), nan=0.0), np.float32)

    def above_small_talk(self, near: Floats) -> Floats | None:
        """How near, on a scale on which small talk reaches 0 with any chunk and 3 with the nearest; None if not known.

        Cosines have another scale with every embedder; this measures it, on what is in this memory.
        """
        middle, step = self._calm
        return np.asarray((near - np.float32(middle)) / np.float32(step)) if step else None

    def _middle_and_spread(self, reached: Floats) -> tuple[float, float]:
        known = reached[~np.isnan(reached)]
        if not len(known):
            return 0.0, 0.0
        return float(known.mean()), max(float(known.std()), self._least)
