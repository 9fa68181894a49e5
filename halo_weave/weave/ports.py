"""What weave asks of search and of the AI's tools; each is met by an adapter, or by what a test puts in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from halo_weave.core.resurrection import RecallHit
from halo_weave.core.tokens import ChunkKey


class RecallPort(Protocol):
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


class CallPort(Protocol):
    """A tool call in a reply."""

    @property
    def command(self) -> str: ...


class _AnswerPort(Protocol):
    """What a tool says, as it stands in the reply; and the chunks it wants awake."""

    @property
    def text(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def wake(self) -> Sequence[ChunkKey]: ...


class _DetectorPort(Protocol):
    def feed(self, piece: bytes) -> Sequence[CallPort]:
        """The calls that are complete with this piece of the reply."""


class ToolboxPort(Protocol):
    """The AI's own tools: notes and structured memory."""

    @property
    def tree(self) -> Any:
        """The structured memory."""

    @property
    def notes(self) -> Any: ...
    def detector(self) -> _DetectorPort: ...
    def run(self, call: Any, *, now: datetime, within: str | None = None) -> _AnswerPort:
        """Do what a call asks. `within`: a window that recalls only its own."""

    def instructions(self) -> str:
        """What the system prompt says of the tools and of the top of the tree."""

    def asked_for(self, text: str) -> bool:
        """Whether somebody's words speak of remembering or looking up."""

    def overview(self) -> str:
        """What the system prompt says of the top of the tree, where the template declares the tools."""

    def declarations(self) -> Sequence[Mapping[str, Any]]:
        """The tools as chat templates take them."""

    def native_call(self, name: str, arguments: Mapping[str, Any]) -> CallPort:
        """A call that the model has written in its template's own format."""

    def snapshot(self, path: str, *, now: datetime) -> Sequence[ChunkKey]:
        """The chunks that explain a memory."""

    def close(self) -> None: ...
