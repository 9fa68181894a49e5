"""Turn the attention and surprisal of one turn into brightness and attribution."""

from __future__ import annotations

from halo_weave.chat.capture import TurnRecorder
from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.prompt import WindowPrompt
from halo_weave.core.attribution import AttributionTracker
from halo_weave.core.brightness import AttentionRow
from halo_weave.engines.base import LateAttention, PrefillResult


class AttentionTracker:
    """Passes the attention rows and the surprisal of a turn on to the working set, the attribution and the recorder.

    `prompt`: the prompt of the current generation; it maps the engine's rows to live tokens.
    """

    prompt: WindowPrompt

    def __init__(self, open_window: OpenWindow, use: AttributionTracker, recording: TurnRecorder) -> None:
        self.open_window, self.use, self.recording = open_window, use, recording

    def observe_prefill(self, read: PrefillResult) -> None:
        """Use the rows and the surprisal of the user turn, which the engine captured during prefill."""
        window = self.open_window.window
        surprisal = None if read.surprisal is None else self.prompt.whole_surprisal(read.surprisal)
        if surprisal is not None and window.reply is not None and window.reply.answers is not None:
            window.observe_surprisal(window.reply.answers, surprisal)
        rows = [row for row in map(self.prompt.whole, read.rows) if row]
        before = (
            sum(len(chunk) for chunk in window.chunks if chunk.key.turn_id != window.reply.answers)
            if window.reply
            else 0
        )
        self.use.observe_prefill(rows, before)
        self.recording.rows(rows, window.reply.answers if window.reply else None, surprisal)
        if window.strategy.capture.reading:
            window.observe_rows(rows)

    def observe_late_row(self, seen: LateAttention) -> None:
        """Use rows of earlier tokens of the reply, which a shadow model has captured meanwhile."""
        window = self.open_window.window
        assert window.reply is not None
        assert window.reply.answers is not None
        with self.open_window.guard:
            if seen.prefill is not None:
                self.observe_prefill(seen.prefill)
            for token in seen.tokens:
                place = token.label - window.reply.start
                row = self.prompt.later(token.row, len(window))
                fault = window.update(row) if window.strategy.capture.reply else None
                chunks, offsets = window.chunks, window.offsets
                self.use.add_late_row(place, None if fault else row, chunks, offsets, window.reply.answers)
                window.observe_reply_surprisal(place, token.surprisal)

    def end_reply(self, row: AttentionRow | None) -> None:
        """Use the row of the reply's last token, which is known when generation ends."""
        row = None if row is None else self.prompt.whole(row)
        if row is not None and row.fault(len(self.open_window.window)) is None:
            self.recording.last_row(row)
            self.use.end_reply(row)

    def attribute_token(self, row: AttentionRow | None) -> None:
        """Add the sources of the reply's next token; None: the program inserted the token, or there is no row."""
        window = self.open_window.window
        assert window.reply is not None
        assert window.reply.answers is not None
        self.use.add_token(row, window.chunks, window.offsets, window.reply.answers)
