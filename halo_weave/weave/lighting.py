"""What is seen of attention and surprisal in one turn becomes light: with the tokens, or later than they."""

from __future__ import annotations

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.use import UseTally
from halo_weave.ports import Read, Seen
from halo_weave.weave.desk import Desk
from halo_weave.weave.prompt import WindowPrompt
from halo_weave.weave.taping import TurnTape


class TurnLight:
    """`prompt`: what the model reads now."""

    prompt: WindowPrompt

    def __init__(self, desk: Desk, use: UseTally, tape: TurnTape) -> None:
        self.desk, self.use, self.tape = desk, use, tape

    def learn(self, read: Read) -> None:
        """What was seen while the prompt was read."""
        window = self.desk.window
        surprisal = None if read.surprisal is None else self.prompt.whole_surprisal(read.surprisal)
        if surprisal is not None and window.reply is not None and window.reply.answers is not None:
            window.learn_surprisal(window.reply.answers, surprisal)
        rows = [row for row in map(self.prompt.whole, read.rows) if row]
        before = (
            sum(len(chunk) for chunk in window.chunks if chunk.key.turn_id != window.reply.answers)
            if window.reply
            else 0
        )
        self.use.read(rows, before)
        self.tape.rows(rows, window.reply.answers if window.reply else None, surprisal)
        if window.strategy.capture.reading:
            window.learn_rows(rows)

    def see(self, seen: Seen) -> None:
        """What a reader saw, later than the words that it is about."""
        window = self.desk.window
        assert window.reply is not None
        assert window.reply.answers is not None
        with self.desk.guard:
            if seen.read is not None:
                self.learn(seen.read)
            for word in seen.words:
                place = word.label - window.reply.start
                row = self.prompt.later(word.row, len(window))
                fault = window.update(row) if window.strategy.capture.reply else None
                chunks, offsets = window.chunks, window.offsets
                self.use.see(place, None if fault else row, chunks, offsets, window.reply.answers)
                window.learn_reply(place, word.surprisal)

    def end(self, row: AttentionRow | None) -> None:
        """The model has ended the reply: what its last token looked at."""
        row = None if row is None else self.prompt.whole(row)
        if row is not None and row.fault(len(self.desk.window)) is None:
            self.tape.last_row(row)
            self.use.end(row)

    def use_row(self, row: AttentionRow | None) -> None:
        """What the reply's next token was taken from; None: a tool said it, or nothing is known."""
        window = self.desk.window
        assert window.reply is not None
        assert window.reply.answers is not None
        self.use.say(row, window.chunks, window.offsets, window.reply.answers)
