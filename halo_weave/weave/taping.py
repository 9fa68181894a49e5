"""Taking down the turns of a window, for the lab: what was looked at, and what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from halo_weave.core.brightness import AttentionRow, Capture, Floats
from halo_weave.core.heads import Calibration
from halo_weave.core.window import Tape, Window
from halo_weave.ports import Engine
from halo_weave.settings import Settings


class TurnTape(Tape, Protocol):
    def begin(self, window: Window, settings: Settings) -> None:
        """A turn begins; from now on the window notes its changes."""

    def wanted(self, capture: Capture, engine: Engine) -> Capture:
        """What is to be read of the attention, beside what the turn itself needs."""

    def rows(self, rows: Sequence[AttentionRow], turn_id: int | None, surprisal: Floats | None) -> None:
        """The user's turn was read."""

    def row(self, row: AttentionRow | None, score_reply: bool) -> None:
        """What was looked at to say the next token."""

    def last_row(self, row: AttentionRow) -> None:
        """The model has ended the reply: what its last token looked at."""

    def end(self) -> None:
        """The turn is over."""


DropTapes = Callable[[str | None], None]  # deletes what was taken down of a window, or of all
NewTape = Callable[[str, Settings, Engine, Calibration], TurnTape]  # for a window, by its settings


class Untaped:
    """No tape."""

    def begin(self, window: Window, settings: Settings) -> None: ...

    def wanted(self, capture: Capture, engine: Engine) -> Capture:
        return capture

    def rows(self, rows: Sequence[AttentionRow], turn_id: int | None, surprisal: Floats | None) -> None: ...
    def row(self, row: AttentionRow | None, score_reply: bool) -> None: ...
    def last_row(self, row: AttentionRow) -> None: ...
    def note(self, what: str, *values: Any) -> None: ...
    def end(self) -> None: ...
