"""Replies that are given: the model reads them as if it had chosen their words itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from halo_weave.core.brightness import AttentionRow, Capture
from halo_weave.core.tokens import Tokens
from halo_weave.ports import Done, Engine, GenerationEvent, Prompt, Read, Sampling, Segment, Step

GREEDY = Sampling(temperature=0.0, max_new_tokens=1)


def forced_reply(
    engine: Engine, window: str, prompt: Prompt, reply: Tokens, capture: Capture | None, **how: Any
) -> Iterator[GenerationEvent]:
    """What the engine would tell if it had chosen these tokens itself."""
    first: AttentionRow | None = None
    for event in engine.generate(window, prompt, GREEDY, capture, **how):
        if isinstance(event, Step):
            first = event.row
        elif not isinstance(event, Done):
            yield event
    labels = np.arange(prompt.next_label, prompt.next_label + len(reply), dtype=np.int64)
    whole = Prompt(
        [*prompt.segments, Segment("chunk", labels, reply.ids)],
        prompt.next_label + len(reply),
        prompt.next_label,
    )
    rows: list[AttentionRow | None] = [first]
    surprisal = np.full(len(reply), np.nan, np.float32)
    wanted = replace(capture, reply=False, reading=capture.reply) if capture else None
    for event in engine.generate(window, whole, GREEDY, wanted, **how):
        if isinstance(event, Read):
            rows += event.rows
            surprisal = surprisal if event.surprisal is None else event.surprisal
    rows += [None] * (len(reply) + 1)
    for i, piece in enumerate(reply.pieces()):
        yield Step(int(reply.ids[i]), int(labels[i]), piece, float(surprisal[i]), rows[i])
    yield Done("eos", len(reply), 0.0, rows[len(reply)])


class ForcedEngine:
    """An engine whose replies are given before they are asked for. All else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reply: Tokens | None = None  # what it says next; None: what the model chooses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        how: dict[str, Any] = {"mode": mode, "stopped": stopped}
        if self.reply is None:
            return self._engine.generate(window, prompt, sampling, capture, **how)
        return forced_reply(self._engine, window, prompt, self.reply, capture, **how)

    def close(self) -> None:
        """The engine is its owner's to close."""
