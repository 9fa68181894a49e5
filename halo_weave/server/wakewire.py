"""Answers about waking and sleeping: what would wake up for a text, and what became of all that was said in a window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from halo_weave.core.resurrection import Waking
from halo_weave.server.schema import KeyText, Number, Output
from halo_weave.weave.memory import Preview

MOST_OVER = 20  # of what there is no room for


class WakingTold(Output):
    key: str
    part: Literal["hit", "question", "answer", "anchor"]
    hit: str
    similarity: float
    cost: int
    words: list[str]
    parts: dict[str, float] = Field(description="Of the similarity.")
    text: str


class PreviewTold(Output):
    tokens: int = Field(description="Of the text itself.")
    room: int
    cost: int
    wakes: list[WakingTold]
    passed_over: int
    over: list[WakingTold] = Field(description="Fits the text, but there is no room for it; the best ones.")
    near: list[WakingTold] = Field(description="Too unlike the text to wake up by itself, the best first.")
    sleeps: int = Field(description="Tokens that would fall asleep first, if room is made.")

    @classmethod
    def of(cls, preview: Preview) -> PreviewTold:
        plan, hits = preview.plan, preview.hits

        def told(wakings: Iterable[Waking]) -> list[WakingTold]:
            return [
                WakingTold(
                    key=str(one.key),
                    part=one.part.value,
                    hit=str(one.hit),
                    similarity=one.similarity,
                    cost=one.cost,
                    words=list(hits[one.hit].words) if one.hit in hits else [],
                    parts=dict(hits[one.hit].parts) if one.hit in hits else {},
                    text=preview.texts.get(one.key, ""),
                )
                for one in wakings
            ]

        return cls(
            tokens=preview.tokens,
            room=plan.room,
            cost=plan.cost,
            wakes=told(plan.wakes),
            passed_over=len(plan.passed_over),
            over=told(plan.passed_over[:MOST_OVER]),
            near=told(preview.near),
            sleeps=preview.sleeps,
        )


class LifeEventTold(Output):
    step: int = Field(description="After which of `turns` it was so.")
    chunk: int = Field(description="Its place in `keys`.")
    event: Literal["slept", "woke", "pinned", "unpinned"]
    why: str = Field(description="By whom or by what, as far as that is known.")


class LifeTold(Output):
    """What was said in a window, without the words, and what became of it."""

    turns: list[Number] = Field(description="Of the current branch, in order.")
    keys: list[KeyText] = Field(description="All chunks of it, and those of other windows that woke up here.")
    tokens: list[int] = Field(description="Of each of them.")
    foreign: list[int] = Field(description="Which of them were said in another window, by their place.")
    live: list[int] = Field(description="Which of them are live now.")
    pinned: list[int]
    events: list[LifeEventTold] = Field(description="In the order in which they happened.")
