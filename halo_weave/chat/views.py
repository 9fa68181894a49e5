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
    """What sleeps in this window between two live chunks."""

    chunks: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PrunedGaps:
    """All that sleeps in a window, by where it stands among the live chunks."""

    before: Mapping[ChunkKey, PrunedGap]  # of the live chunks that something sleeps right before
    tail: PrunedGap | None  # after the last live chunk
    whole: PrunedGap
    thoughts: Mapping[ChunkKey, int]  # how many of the chunks before an answer are its thoughts


@dataclass(frozen=True, slots=True, eq=False)
class ChunkView:
    """A live chunk with all that is shown of it."""

    chunk: Chunk
    brightness: Brightness
    pinned: bool
    woken: Mapping[str, Any] | None  # why it woke up, if it slept
    tool: bool = False  # the answer of a tool stands in it
    thought: bool = False  # the model thought it before it answered
    gap: PrunedGap | None = None  # what sleeps right before it
    thoughts: int = 0  # how many chunks of that are the thoughts before this answer
    rank: int | None = None  # how bright among what is live, 0 to 100; None: it was not compared

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
        """One for each token; the one that ends a character carries it."""
        return self.chunk.tokens.spelled()

    @property
    def peak(self) -> float:
        return float(self.brightness.max())

    @property
    def mean(self) -> float:
        return float(self.brightness.mean())


@dataclass(frozen=True, slots=True)
class ReplySourceView:
    """What a reply took from a chunk, or that it woke up for the question and was not used."""

    key: ChunkKey
    start: int
    tokens: int
    text: str
    said: datetime
    window: str  # where it was said
    window_name: str
    speaker: str
    share: float | None  # of the reply; None: it is not known
    woken: Mapping[str, Any] | None  # why it woke up; None if it was live already


@dataclass(frozen=True, slots=True)
class TranscriptChunk:
    """A chunk as it was said, live or asleep."""

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
    siblings: int  # how many turns there are at this place, on all branches
    sibling: int  # which of them this is, in order of time
    document: bool = False  # a file that was attached; its name is the speaker
    unfinished: bool = False  # a reply that reached its longest length, or filled the model's context


@dataclass(frozen=True, slots=True)
class TranscriptPage:
    """Some of what was said in a window, in order."""

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
    cut: bool = False  # the program ended before the reply did
    remembered: tuple[ReplySourceView, ...] | None = None  # for this reply; None: it is not known
    siblings: int = 1  # how many turns there are at this place, on all branches
    sibling: int = 1  # which of them this is, in order of time
    document: bool = False  # a file that was attached; its name is the speaker
    unfinished: bool = False  # a reply that reached its longest length, or filled the model's context


@dataclass(frozen=True, slots=True, eq=False)
class ReplyView:
    """The reply in progress."""

    turn_id: int
    position: int  # of its first token
    text_pieces: list[str]  # one for each token; of marks nothing is shown
    brightness: Brightness
    tool: list[bool]  # for each token, whether a tool said it
    thought: list[bool]  # and whether it is part of a thought


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Where the tokens of the context go."""

    max_context_tokens: int
    model_context: int
    system: int
    pinned: int
    live: int  # without the pinned
    frames: int
    reserve: int  # for the reply
    free: int

    @property
    def used(self) -> int:
        return self.system + self.pinned + self.live + self.frames


@dataclass(frozen=True, slots=True)
class ContextView:
    """What the model reads in a window, in time order, and what sleeps around it."""

    window: str
    turns: tuple[TurnView, ...]
    gaps: PrunedGaps
    reply: ReplyView | None
    budget: TokenBudget
    last_event: str  # events after this one are not, or not all, in this context
    last_turn: Mapping[str, Any]  # what the last turn came to
    system_text: str = ""  # the system prompt with what is added to it
    unstored: str = ""  # why the last reply is not stored yet, while that is so

    @property
    def brightness(self) -> Brightness:
        """Of all live tokens, the reply's included; one 0 if nothing is live."""
        rows = [one.brightness for turn in self.turns for one in turn.chunks]
        if self.reply is not None and len(self.reply.brightness):
            rows.append(self.reply.brightness)
        return np.concatenate(rows) if rows else np.zeros(1, np.float32)
