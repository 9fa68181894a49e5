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
TOKENS_PER_PASS = 16  # tokens of a reply that are read together while it streams
ONE_TOKEN = Sampling(temperature=0.0, max_new_tokens=1)


class ShadowRun:
    """One prompt and its reply, read by the shadow model in a thread. `take` never waits."""

    def __init__(self, reader: Engine, window: str, prompt: Prompt, capture: Capture) -> None:
        self._reader, self._window, self._prompt = reader, window, prompt
        self._capture = replace(capture, reply=True, reading=True, reading_surprisal=True)
        self._changed = Condition()
        self._ids: list[int] = []
        self._ended = self._left = self.over = False
        self._seen: list[LateAttention] = []
        self.last: AttentionRow | None = None  # the last row: the next token is generated with it
        self.fault = ""  # why reading has ended
        Thread(target=self._run, name="reader", daemon=True).start()

    def say(self, ids: Sequence[int]) -> None:
        """Add tokens of the reply."""
        with self._changed:
            self._ids += ids
            self._changed.notify_all()

    def end(self) -> None:
        """The reply is complete."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def leave(self) -> None:
        """Stop reading."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def take(self) -> list[LateAttention]:
        """The attention captured since the last call."""
        with self._changed:
            seen, self._seen = self._seen, []
            return seen

    def wait(self, seconds: float) -> None:
        """Wait until more attention was captured, or all of it."""
        with self._changed:
            if not (self.over or self._seen):
                self._changed.wait(seconds)

    def _run(self) -> None:
        try:
            self._read_prompt()
            done = 0
            while (stop := self._next(done)) > done:
                self._read_reply(done, stop)
                done = stop
        except HaloWeaveError as error:
            self.fault = str(error)
            log.warning("The reader reads no more of this reply: %s", error)
        except Exception:
            self.fault = "The reader failed."
            log.exception("The reader failed.")
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _next(self, done: int) -> int:
        """How far to read next: a stride, or the rest of a reply that has ended."""
        with self._changed:
            while not (self._left or self._ended or len(self._ids) - done >= TOKENS_PER_PASS):
                self._changed.wait()
            return done if self._left else len(self._ids)

    def _read_prompt(self) -> None:
        read, self.last = self._read(self._prompt)
        if read is not None and (read.rows or read.surprisal is not None):
            self._tell(LateAttention(read=read))

    def _read_reply(self, start: int, stop: int) -> None:
        first = self._prompt.next_label
        labels = np.arange(first, first + stop, dtype=np.int64)
        reply = Segment("chunk", labels, np.array(self._ids[:stop], np.int32))
        read, last = self._read(
            Prompt([*self._prompt.segments, reply], first + stop, read_from=first + start)
        )
        count = stop - start
        if read is None or read.surprisal is None or len(read.surprisal) != count:
            return
        rows: list[AttentionRow | None] = [self.last, *read.rows[:-1]]
        self.last = last
        if len(read.rows) != count:
            rows = [None] * count
        self._tell(
            LateAttention(
                words=tuple(
                    LateTokenAttention(first + start + i, row, float(read.surprisal[i]))
                    for i, row in enumerate(rows)
                )
            )
        )

    def _read(self, prompt: Prompt) -> tuple[PrefillResult | None, AttentionRow | None]:
        """Read up to there: the captured attention, and the row for the token after it."""
        read, row = None, None
        steps = self._reader.generate(
            self._window, prompt, ONE_TOKEN, self._capture, stopped=lambda: self._left
        )
        for event in steps:
            if isinstance(event, PrefillResult):
                read = event
            elif isinstance(event, Step):
                row = event.row
        return read, row

    def _tell(self, seen: LateAttention) -> None:
        with self._changed:
            self._seen.append(seen)
            self._changed.notify_all()
