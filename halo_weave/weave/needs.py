"""What weave asks of its parts. Each is met by one adapter, and by whatever a test puts in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from halo_weave.core.resurrection import RecallHit as RecallHit
from halo_weave.core.tokens import ChunkKey


class Recall(Protocol):
    """Search over all that was said."""

    def search(
        self,
        text: str,
        *,
        window: str | None = None,
        limit: int = 50,
        now: datetime,
        user_weight: float = 1.5,
        mmr_lambda: float | None = None,
    ) -> Sequence[RecallHit]: ...

    def note_said(self) -> None:
        """New chunks are in the store: embed them when there is time."""

    def forget(self) -> None:
        """The memory was cleared."""

    def reopen(self) -> None:
        """The memory has the vectors of another embedder now."""

    def status(self) -> Mapping[str, Any]: ...
    def close(self) -> None: ...


class Call(Protocol):
    @property
    def command(self) -> str: ...


class Answer(Protocol):
    """What a tool says, as it stands in the reply; and the chunks it wants awake."""

    @property
    def text(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def wake(self) -> Sequence[ChunkKey]: ...


class Detector(Protocol):
    def feed(self, piece: bytes) -> Sequence[Call]:
        """The calls that are complete with this piece of the reply."""


class Toolbox(Protocol):
    """The AI's own tools: notes and structured memory."""

    def detector(self) -> Detector: ...
    def run(self, call: Any, *, now: datetime, within: str | None = None) -> Answer:
        """Do what a call asks. `within`: a window that recalls only its own."""

    def instructions(self) -> str:
        """What the system prompt says of the tools and of the top of the tree."""

    def snapshot(self, path: str, *, now: datetime) -> Sequence[ChunkKey]:
        """The chunks that explain a memory."""

    def close(self) -> None: ...
