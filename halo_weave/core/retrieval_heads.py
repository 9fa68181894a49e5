"""Retrieval heads: the (layer, head) pairs of a model that attend to the text its next token is copied from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MIN_HEADS, MAX_HEADS = 4, 16
MIN_SHARE_OF_BEST = 1 / 3  # a head is chosen if its strength is at least this share of the best head's
MIN_COPYING = 0.1  # lowest mean attention of the best head to the token that it copies
MIN_RATIO_TO_MEAN = 3.0  # and its lowest ratio to the mean over all heads

Strengths = npt.NDArray[np.float64]  # (layers, heads)


class RetrievalHead(NamedTuple):
    """One head, and its mean attention to the right token in two tests."""

    layer: int
    head: int
    copying: float  # copying random text
    needles: float  # finding a fact in a story
    weight: float  # weight among the chosen heads; all add up to 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """The retrieval heads of a model, strongest first, or why there are none."""

    heads: tuple[RetrievalHead, ...] = ()
    sentence: str = "This model was not calibrated."
    pending: bool = False  # calibration is running: attribution is unknown until it ends

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((head.layer, head.head) for head in self.heads)

    @property
    def weights(self) -> tuple[float, ...]:
        return tuple(head.weight for head in self.heads)


NOT_CALIBRATED = Calibration()
PENDING = Calibration(
    sentence="The model is being calibrated. Until that is done, the sources of its replies are unknown.",
    pending=True,
)


def choose_heads(copying: Strengths, needles: Strengths) -> Calibration:
    """The heads that stand out in both tests, by the same rule for every model."""
    best = float(copying.max())
    if best < MIN_COPYING or best < MIN_RATIO_TO_MEAN * float(copying.mean()):
        return Calibration(
            sentence="No head of this model attends to the words that it copies, so brightness comes from the mean "
            "of all heads minus the attention that each token gets whatever is generated."
        )
    strength = (_standardized(copying) + _standardized(needles)).ravel()
    order = np.argsort(-strength, kind="stable")
    count = int(np.clip((strength >= MIN_SHARE_OF_BEST * strength.max()).sum(), MIN_HEADS, MAX_HEADS))
    chosen: Sequence[int] = [int(i) for i in order[: min(count, len(order))] if strength[i] > 0]
    total = float(strength[chosen].sum())
    width = copying.shape[1]
    return Calibration(
        tuple(
            RetrievalHead(
                i // width,
                i % width,
                round(float(copying.flat[i]), 4),
                round(float(needles.flat[i]), 4),
                float(strength[i]) / total,
            )
            for i in chosen
        ),
        f"Brightness comes from {len(chosen)} retrieval heads, which were found by the copying and the needle test.",
    )


def _standardized(values: Strengths) -> Strengths:
    """The values in standard deviations from their mean."""
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)
