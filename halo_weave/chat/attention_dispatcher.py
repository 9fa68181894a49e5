"""Turn the attention and surprisal of one turn into brightness and attribution."""

from __future__ import annotations

from halo_weave.chat.capture import TurnRecorder
from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.prompt import WindowPrompt
from halo_weave.core.attribution import AttributionTracker
from halo_weave.core.brightness import AttentionRow
from halo_weave.engines.base import LateAttention, PrefillResult


class AttentionDispatcher:
    """Passes the attention rows and the surprisal of a turn on to the working set, the attribution and the recorder.

    `prompt`: the prompt of the current generation; it maps the engine's rows to live tokens.
    """

    prompt: WindowPrompt

    def __init__(
        self, open_window: OpenWindow, attribution: AttributionTracker, recorder: TurnRecorder
    ) -> None:
        self.open_window, self.attribution, self.recorder = open_window, attribution, recorder

    def observe_prefill(self, prefill: PrefillResult) -> None:
        """Use the rows and the surprisal of the user turn, which the engine captured during prefill."""
        working_set = self.open_window.working_set
        surprisal = (
            None if prefill.surprisal is None else self.prompt.surprisal_of_live_tokens(prefill.surprisal)
        )
        if surprisal is not None and working_set.reply is not None and working_set.reply.answers is not None:
            working_set.observe_surprisal(working_set.reply.answers, surprisal)
        rows = [row for row in map(self.prompt.to_live_tokens, prefill.rows) if row]
        tokens_before = (
            sum(len(chunk) for chunk in working_set.chunks if chunk.key.turn_id != working_set.reply.answers)
            if working_set.reply
            else 0
        )
        self.attribution.observe_prefill(rows, tokens_before)
        self.recorder.rows(rows, working_set.reply.answers if working_set.reply else None, surprisal)
        if working_set.strategy.capture.reading:
            working_set.observe_rows(rows)

    def observe_late_row(self, late: LateAttention) -> None:
        """Use rows of earlier tokens of the reply, which a shadow model captured during generation."""
        working_set = self.open_window.working_set
        assert working_set.reply is not None
        assert working_set.reply.answers is not None
        with self.open_window.lock:
            if late.prefill is not None:
                self.observe_prefill(late.prefill)
            for token in late.tokens:
                index = token.label - working_set.reply.start
                row = self.prompt.to_later_live_tokens(token.row, len(working_set))
                fault = working_set.update(row) if working_set.strategy.capture.reply else None
                chunks, offsets = working_set.chunks, working_set.offsets
                self.attribution.add_late_row(
                    index, None if fault else row, chunks, offsets, working_set.reply.answers
                )
                working_set.observe_reply_surprisal(index, token.surprisal)

    def end_reply(self, row: AttentionRow | None) -> None:
        """Use the row of the reply's last token, which is known when generation ends."""
        row = None if row is None else self.prompt.to_live_tokens(row)
        if row is not None and row.fault(len(self.open_window.working_set)) is None:
            self.recorder.last_row(row)
            self.attribution.end_reply(row)

    def attribute_token(self, row: AttentionRow | None) -> None:
        """Add the sources of the reply's next token; None: the program inserted the token, or there is no row."""
        working_set = self.open_window.working_set
        assert working_set.reply is not None
        assert working_set.reply.answers is not None
        self.attribution.add_token(row, working_set.chunks, working_set.offsets, working_set.reply.answers)
