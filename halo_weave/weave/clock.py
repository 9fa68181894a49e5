"""Where a turn's time goes, and what the turn came to in figures."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

COUNTS = (
    "tokens",
    "thought_tokens",
    "woken",
    "asleep",
    "reused",
    "restored",
    "computed",
    "prompted",
    "cached",
)


@dataclass(slots=True)
class TurnClock:
    """The model's part of a turn and ours, in seconds."""

    began: float
    handed: float = 0.0  # when the model was asked for its next step
    model: float = 0.0
    reading: float = 0.0  # of the model's time, until its first token
    before: float = 0.0  # ours until the prompt was handed to the model
    recall: float = 0.0  # of that, for finding what should wake up
    per_token: float = 0.0  # ours while tokens came
    ended: float = 0.0  # when the model had spoken

    def summary(self, stats: Counter[str]) -> dict[str, float]:
        """The figures of a turn that is over now."""
        now, tokens, writing = time.perf_counter(), stats["tokens"], self.model - self.reading
        return {
            **{name: stats[name] for name in COUNTS},
            "only_thought": bool(stats["only_thought"]),
            "nothing_added": bool(stats["nothing_added"]),
            "seconds": round(now - self.began, 3),
            "tokens_per_second": round(tokens / writing, 1) if writing > 0 else 0.0,
            "own_ms_per_turn": round(self.before * 1e3, 3),
            "recall_ms": round(self.recall * 1e3, 3),
            "own_ms_after": round((now - self.ended) * 1e3, 3),
            "own_ms_per_token": round(self.per_token / tokens * 1e3, 4) if tokens else 0.0,
        }
