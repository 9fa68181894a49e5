"""The shadow model: a small local model that reads the same prompt and reply, and supplies attention for a model that does not expose its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from threading import Condition, Thread

import numpy as np

from halo_weave.core.brightness import AttentionRow
from halo_weave.engines.base import (
    Capture,
    Engine,
    LateAttention,
    LateTokenAttention,
    PrefillResult,
    Prompt,
    Sampling,
    Segment,
    Step,
)
from halo_weave.errors import HaloWeaveError

log = logging.getLogger(__name__)
TOKENS_PER_PASS = 16  # number of reply tokens that are prefilled together while the reply streams
ONE_TOKEN = Sampling(temperature=0.0, max_new_tokens=1)


class ShadowRun:
    """Runs one prompt and its reply through the shadow model, in a thread. `take` never waits."""

    def __init__(self, shadow_model: Engine, window: str, prompt: Prompt, capture: Capture) -> None:
        self._shadow_model, self._window, self._prompt = shadow_model, window, prompt
        self._capture = replace(capture, reply=True, reading=True, reading_surprisal=True)
        self._changed = Condition()
        self._ids: list[int] = []
        self._ended = self._stopped = self.over = False
        self._captured: list[LateAttention] = []
        self.last: AttentionRow | None = (
            None  # attention row of the last token so far, from which the next token is sampled
        )
        self.error = ""  # why the run has failed
        Thread(target=self._run, name="shadow model", daemon=True).start()

    def add_tokens(self, ids: Sequence[int]) -> None:
        """Add tokens of the reply."""
        with self._changed:
            self._ids += ids
            self._changed.notify_all()

    def end(self) -> None:
        """The reply is complete."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Cancel the run."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def take(self) -> list[LateAttention]:
        """The attention captured since the last call."""
        with self._changed:
            captured, self._captured = self._captured, []
            return captured

    def wait(self, seconds: float) -> None:
        """Wait until more attention is captured, or the run is over."""
        with self._changed:
            if not (self.over or self._captured):
                self._changed.wait(seconds)

    def _run(self) -> None:
        try:
            self._read_prompt()
            done = 0
            while (stop := self._next(done)) > done:
                self._read_reply(done, stop)
                done = stop
        except HaloWeaveError as error:
            self.error = str(error)
            log.warning("The shadow model stopped reading this reply: %s", error)
        except Exception:
            self.error = "The shadow model failed."
            log.exception("The shadow model failed.")
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _next(self, done: int) -> int:
        """Wait for the next tokens. Returns the number of tokens to read up to, or `done` if there are no more."""
        with self._changed:
            while not (self._stopped or self._ended or len(self._ids) - done >= TOKENS_PER_PASS):
                self._changed.wait()
            return done if self._stopped else len(self._ids)

    def _read_prompt(self) -> None:
        prefill, self.last = self._prefill(self._prompt)
        if prefill is not None and (prefill.rows or prefill.surprisal is not None):
            self._publish(LateAttention(prefill=prefill))

    def _read_reply(self, start: int, stop: int) -> None:
        first = self._prompt.next_label
        labels = np.arange(first, first + stop, dtype=np.int64)
        reply = Segment("chunk", labels, np.array(self._ids[:stop], np.int32))
        prefill, last = self._prefill(
            Prompt(
                [*self._prompt.segments, reply],
                first + stop,
                read_from=first + start,
                temporary=self._prompt.temporary,
            )
        )
        count = stop - start
        if prefill is None or prefill.surprisal is None or len(prefill.surprisal) != count:
            return
        # A reply token's row is that of the token before it, from which it was sampled.
        rows: list[AttentionRow | None] = [self.last, *prefill.rows[:-1]]
        self.last = last
        if len(prefill.rows) != count:
            rows = [None] * count
        self._publish(
            LateAttention(
                tokens=tuple(
                    LateTokenAttention(first + start + i, row, float(prefill.surprisal[i]))
                    for i, row in enumerate(rows)
                )
            )
        )

    def _prefill(self, prompt: Prompt) -> tuple[PrefillResult | None, AttentionRow | None]:
        """The result of the prefill, and the attention row of the prompt's last token."""
        result, row = None, None
        steps = self._shadow_model.generate(
            self._window, prompt, ONE_TOKEN, self._capture, stopped=lambda: self._stopped
        )
        for event in steps:
            if isinstance(event, PrefillResult):
                result = event
            elif isinstance(event, Step):
                row = event.row
        return result, row

    def _publish(self, captured: LateAttention) -> None:
        with self._changed:
            self._captured.append(captured)
            self._changed.notify_all()
