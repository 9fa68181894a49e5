"""What is shown of a window: its context with brightness, pruned gaps and token budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role


@dataclass(frozen=True, slots=True)
class PrunedGap:
    """The pruned chunks between two live ones."""

    chunks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PrunedGaps:
    """The pruned chunks of a window, between its live chunks."""

    before: Mapping[ChunkKey, PrunedGap]  # the pruned chunks right before each live chunk
    tail: PrunedGap | None  # the pruned chunks after the last live one
    whole: PrunedGap
    thoughts: Mapping[
        ChunkKey, int
    ]  # by answer: how many of the pruned chunks right before it are its thoughts


@dataclass(frozen=True, slots=True, eq=False)
class ChunkView:
    """A live chunk as it is shown."""

    chunk: Chunk
    brightness: Brightness
    pinned: bool
    resurrect_reason: Mapping[str, Any] | None  # why it was resurrected, if it was
    tool: bool = False  # whether it is the output of a tool
    thought: bool = False  # whether it is a thought
    gap: PrunedGap | None = None  # the pruned chunks right before it
    thoughts: int = 0  # how many of these are the thoughts of this answer
    rank: int | None = None  # rank of its brightness among the live chunks, 0 to 100; None: not compared

    @property
    def key(self) -> ChunkKey:
        return self.chunk.key

    @property
    def start(self) -> int:
        return self.chunk.start

    @property
    def tokens(self) -> int:
        return len(self.chunk)

    @property
    def text_pieces(self) -> list[str]:
        """The text of each token; a character that spans tokens is in the last of them."""
        return self.chunk.tokens.spelled()

    @property
    def peak(self) -> float:
        return float(self.brightness.max())

    @property
    def mean(self) -> float:
        return float(self.brightness.mean())


@dataclass(frozen=True, slots=True)
class ReplySourceView:
    """What a reply took from a chunk, or that the chunk was resurrected for it and not used."""

    key: ChunkKey
    start: int
    tokens: int
    text: str
    said: datetime
    window: str  # where it was said
    window_name: str
    speaker: str
    share: float | None  # share of the reply; None: unknown
    resurrect_reason: Mapping[str, Any] | None  # why it was resurrected; None: it was live already


@dataclass(frozen=True, slots=True)
class TranscriptChunk:
    """A chunk as it was said, live or pruned."""

    key: ChunkKey
    start: int
    tokens: int
    text_pieces: list[str]
    tool: bool
    thought: bool


@dataclass(frozen=True, slots=True)
class TranscriptTurn:
    """A turn with all its chunks."""

    turn_id: int
    role: Role
    speaker: str
    said: datetime
    window: str
    window_name: str
    cut: bool
    chunks: tuple[TranscriptChunk, ...]
    remembered: tuple[ReplySourceView, ...] | None
    siblings: int  # number of versions of this turn
    sibling: int  # index of this version, in order of time
    document: bool = False  # a file that was attached; its name is the speaker
    unfinished: bool = False  # a reply that stopped at max_new_tokens or at the end of the model's context


@dataclass(frozen=True, slots=True)
class TranscriptPage:
    """Part of what was said in a window, in order."""

    total: int  # turns
    offset: int  # of the first
    turns: tuple[TranscriptTurn, ...]


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn that has live chunks."""

    turn_id: int
    role: Role
    speaker: str
    said: datetime
    window: str  # where it was said
    window_name: str
    chunks: tuple[ChunkView, ...]
    cut: bool = False  # the program ended while the reply was generated
    remembered: tuple[ReplySourceView, ...] | None = None  # sources of this reply; None: unknown
    siblings: int = 1  # number of versions of this turn
    sibling: int = 1  # index of this version, in order of time
    document: bool = False  # a file that was attached; its name is the speaker
    unfinished: bool = False  # a reply that stopped at max_new_tokens or at the end of the model's context


@dataclass(frozen=True, slots=True, eq=False)
class ReplyView:
    """The reply in progress."""

    turn_id: int
    position: int  # of its first token
    text_pieces: list[str]  # one for each token, empty for delimiters
    brightness: Brightness
    tool: list[bool]  # for each token, whether it is part of a tool's output
    thought: list[bool]  # for each token, whether it is part of a thought


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Where the tokens of the context go."""

    max_context_tokens: int
    model_context: int
    system: int
    pinned: int
    live: int  # without pinned chunks
    frames: int
    reserve: int  # kept free for the reply
    free: int

    @property
    def used(self) -> int:
        return self.system + self.pinned + self.live + self.frames


@dataclass(frozen=True, slots=True)
class ContextView:
    """What the model reads in a window, in order of time, and the pruned chunks around it."""

    window: str
    turns: tuple[TurnView, ...]
    gaps: PrunedGaps
    reply: ReplyView | None
    budget: TokenBudget
    last_event: str  # the context includes all events up to this one
    last_turn: Mapping[str, Any]  # figures of the last turn
    system_text: str = ""  # the system prompt with what Halo Weave adds to it
    unstored: str = ""  # why the last reply is not stored yet; empty: it is

    @property
    def brightness(self) -> Brightness:
        """Brightness of all live tokens, those of the reply included; a single 0 if there are none."""
        rows = [chunk.brightness for turn in self.turns for chunk in turn.chunks]
        if self.reply is not None and len(self.reply.brightness):
            rows.append(self.reply.brightness)
        return np.concatenate(rows) if rows else np.zeros(1, np.float32)
