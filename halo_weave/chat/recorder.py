"""The interface that records the attention and events of turns for the lab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from halo_weave.core.brightness import AttentionRow, Capture, Floats
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.working_set import Recorder, WorkingSet
from halo_weave.engines.base import Engine
from halo_weave.settings import Settings


class TurnRecorder(Recorder, Protocol):
    def begin(self, window: WorkingSet, settings: Settings) -> None:
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


DeleteRecordings = Callable[[str | None], None]  # deletes what was taken down of a window, or of all
NewRecorder = Callable[[str, Settings, Engine, Calibration], TurnRecorder]  # for a window, by its settings


class NullRecorder:
    """Records nothing."""

    def begin(self, window: WorkingSet, settings: Settings) -> None: ...

    def wanted(self, capture: Capture, engine: Engine) -> Capture:
        return capture

    def rows(self, rows: Sequence[AttentionRow], turn_id: int | None, surprisal: Floats | None) -> None: ...
    def row(self, row: AttentionRow | None, score_reply: bool) -> None: ...
    def last_row(self, row: AttentionRow) -> None: ...
    def note(self, what: str, *values: Any) -> None: ...
    def end(self) -> None: ...
