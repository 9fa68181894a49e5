"""What weave asks of its parts. Each is met by one adapter, and by whatever a test puts in its place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from halo_weave.core.resurrection import RecallHit as RecallHit
from halo_weave.core.resurrection import Sleeper
from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role, Tokens
from halo_weave.core.window import Live
from halo_weave.store import (
    Asleep,
    ChunkRecord,
    Draft,
    Event,
    LiveChunk,
    Numbers,
    Page,
    Reservation,
    Sleeping,
    Stats,
    WindowRecord,
    WindowStats,
    Woken,
)


class Memory(Protocol):
    """The store, as far as a conversation needs it."""

    def reserve(self, positions: int) -> Reservation: ...
    def append(
        self,
        window_id: str,
        said: Sequence[Live],
        *,
        tokenizer: str,
        now: datetime,
        tags: Mapping[ChunkKey, Sequence[str]] | None = None,
    ) -> list[int]: ...
    def save_draft(
        self,
        window_id: str,
        turn_id: int,
        start: int,
        answers: int | None,
        tokens: Tokens,
        *,
        tokenizer: str,
        now: datetime,
    ) -> None: ...
    def drafts(self, *, now: datetime, abandoned: bool = True, held: str | None = None) -> list[Draft]: ...
    def drop_draft(self, turn_id: int) -> None: ...
    def chunk(self, key: ChunkKey) -> ChunkRecord: ...
    def chunks_by_key(self, keys: Iterable[ChunkKey]) -> list[ChunkRecord]: ...
    def turn(self, turn_id: int) -> list[ChunkRecord]: ...

    def live(self, window_id: str) -> list[LiveChunk]: ...
    def save_brightness(self, window_id: str, chunks: Sequence[Chunk], brightness: Brightness) -> None: ...
    def prune(self, window_id: str, asleep: Sequence[Asleep], *, now: datetime) -> None: ...
    def wake(self, window_id: str, woken: Sequence[Woken], *, now: datetime) -> None: ...
    def pin(
        self, window_id: str, key: ChunkKey, *, now: datetime, brightness: float | None = None
    ) -> None: ...
    def unpin(self, window_id: str, key: ChunkKey, *, now: datetime) -> None: ...
    def reread(self, window_id: str, live: Sequence[Live], *, tokenizer: str, now: datetime) -> None: ...
    def merge(self, window_id: str, key: ChunkKey, *, now: datetime) -> ChunkKey: ...
    def deletion_of(self, key: ChunkKey) -> tuple[ChunkKey, ...]: ...
    def delete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]: ...
    def undelete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]: ...

    def sleeping(self, window_id: str, key: ChunkKey) -> Sleeping: ...
    def sleepers(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, Sleeper]: ...
    def asleep_places(self, window_id: str) -> tuple[Numbers, Numbers]: ...
    def asleep_between(self, window_id: str, after: int, before: int, limit: int) -> list[Sleeping]: ...
    def graveyard(
        self,
        window_id: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: Literal["position", "slept", "peak", "tokens"] = "position",
        descending: bool = True,
        role: Role | None = None,
        text: str | None = None,
    ) -> Page: ...
    def history(
        self, *, window: str | None = None, key: ChunkKey | None = None, limit: int = 100
    ) -> list[Event]: ...

    def create_window(
        self,
        name: str,
        *,
        now: datetime,
        system_prompt: str = "",
        user_name: str = "User",
        ai_name: str = "AI",
        settings: Mapping[str, Any] | None = None,
    ) -> WindowRecord: ...
    def window(self, window_id: str) -> WindowRecord: ...
    def windows(self, *, deleted: bool = False) -> list[WindowRecord]: ...
    def change_window(
        self,
        window_id: str,
        *,
        now: datetime,
        name: str | None = None,
        system_prompt: str | None = None,
        user_name: str | None = None,
        ai_name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        reset: Collection[str] = (),
    ) -> WindowRecord: ...
    def delete_window(self, window_id: str, *, now: datetime) -> None: ...
    def window_stats(self, window_id: str) -> WindowStats: ...

    def settings(self) -> dict[str, Any]: ...
    def change_settings(
        self, key: str, changes: Mapping[str, Any], reset: Collection[str] = (), *, now: datetime
    ) -> None: ...
    def stats(self) -> Stats: ...
    def clear(self, *, confirm: bool = False) -> None: ...
    def close(self) -> None: ...


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
