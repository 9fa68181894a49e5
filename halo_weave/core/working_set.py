"""The working set of a window: its live chunks in position order, with brightness and traces of each token."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import (
    AttentionRow,
    Floats,
    Offsets,
    RowFault,
    Strategy,
    StrategyInput,
    TokenBrightness,
)
from halo_weave.core.chunking import cut
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role, Tokens
from halo_weave.errors import BadInput, UnknownChunk

MIN_CHUNK_TOKENS, MAX_CHUNK_TOKENS = 64, 256  # as the defaults of the settings
SPARE_COLUMNS = 1024  # unused columns for the tokens of the next replies


@dataclass(frozen=True, slots=True, eq=False)
class LiveChunk:
    """A chunk that is or was live in a window, with its brightness, traces and pin."""

    chunk: Chunk
    brightness: Brightness  # (tokens of the chunk,)
    pinned: bool = False
    # (traces, tokens) what the strategy keeps for each token; None: it keeps nothing, or this was not stored
    traces: Floats | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        count = len(self.chunk.tokens.ids)
        if len(self.brightness) != count:
            raise BadInput(
                f"Chunk {self.chunk.key} has {count} tokens and {self.brightness.size} brightness values."
            )
        if self.traces is not None and self.traces.shape[-1] != count:
            raise BadInput(
                f"Chunk {self.chunk.key} has {count} tokens and traces of {self.traces.shape[-1]} tokens."
            )

    @property
    def peak(self) -> float:
        return float(self.brightness.max())


class Recorder(Protocol):
    """Records what happens to a window, so that it can be replayed."""

    def note(self, what: str, *values: Any) -> None: ...


@dataclass(slots=True)
class ReplyInProgress:
    """The reply in progress: the window's last tokens, not cut into chunks yet."""

    turn_id: int
    start: int
    answers: int | None  # id of the turn that it answers
    ids: list[int] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)

    @property
    def tokens(self) -> Tokens:
        return Tokens.of(self.ids, self.pieces)


@dataclass(frozen=True, slots=True, eq=False)
class ReplyPart:
    """A part of a reply that is stored: thoughts, answer or output of a tool. Delimiters like <think> are not."""

    start: int  # position of its first token
    tokens: Tokens
    sources: Sequence[int]  # for each token, its index in the reply
    tag: str = ""  # its kind; empty for the answer, whose chunks are numbered before those of other parts


class WorkingSet:
    """Live chunks, their brightness and traces, and the reply in progress."""

    def __init__(
        self,
        live: Iterable[LiveChunk] = (),
        *,
        strategy: Strategy | None = None,
        system_tokens: int = 0,
        frame_tokens: Mapping[Role, int] | None = None,
    ) -> None:
        self.strategy = strategy or MagnitudeVoting()
        self.system_tokens = system_tokens
        self.frame_tokens = dict(frame_tokens or {})
        self.annotation_tokens: dict[int, int] = {}  # additional tokens of a turn's frame, by turn
        self.faults: Counter[RowFault] = Counter()
        self.reply: ReplyInProgress | None = None
        self.recording: Recorder | None = None
        self._chunks: list[Chunk] = []
        self._pinned: set[ChunkKey] = set()
        self._indexes: dict[ChunkKey, int] = {}
        self._offsets = np.zeros(1, np.int64)
        # Rows: brightness, then traces. Columns: the tokens of the chunks, those of the reply, then unused ones.
        self._values = np.zeros((1 + len(self.strategy.traces), SPARE_COLUMNS), np.float32)
        self._ages: npt.NDArray[np.int64] | None = None
        self._strategy_cache: dict[
            str, Any
        ] = {}  # the strategy's own values, until the chunks or their traces change
        self.add(live)

    # What is live

    @property
    def chunks(self) -> Sequence[Chunk]:
        return self._chunks

    def __contains__(self, key: object) -> bool:
        return key in self._indexes

    def __len__(self) -> int:
        """The number of live tokens: those of the chunks and of the reply in progress, without frames and system prompt."""
        return int(self._offsets[-1]) + (len(self.reply.ids) if self.reply else 0)

    @property
    def size(self) -> int:
        """The number of tokens in the context: live tokens, frames and system prompt."""
        frames = sum(self.frame_of(turn_id, role) for turn_id, role in self.turns)
        if self.reply and self.reply.ids:
            frames += self.frame_tokens.get(Role.ASSISTANT, 0)
        return len(self) + self.system_tokens + frames

    def frame_of(self, turn_id: int, role: Role) -> int:
        """Tokens of a turn's frame."""
        return self.frame_tokens.get(role, 0) + self.annotation_tokens.get(turn_id, 0)

    @property
    def turns(self) -> list[tuple[int, Role]]:
        """Turns with a live chunk, in position order."""
        return [turn for turn, _ in groupby((chunk.key.turn_id, chunk.key.role) for chunk in self._chunks)]

    @property
    def brightness(self) -> Brightness:
        """(live tokens,) in position order; a view that the caller must not keep."""
        return self._values[0, : len(self)]

    @property
    def traces(self) -> Floats | None:
        """The strategy's traces, (traces, live tokens) in position order, or None if it has none. A view that the caller must
        not keep."""
        return self._values[1:, : len(self)] if self.strategy.traces else None

    @property
    def offsets(self) -> Offsets:
        """(chunks + 1,) where each chunk's tokens begin in `brightness`."""
        return self._offsets

    def chunk_brightness(self) -> list[float]:
        """Brightness of each chunk, by the window's strategy."""
        bright: list[float] = self.strategy.of_chunks(self._strategy_input()).tolist()
        return bright

    def shown(self) -> Brightness:
        """(live tokens,) brightness as it is shown to users: pinned chunks look like new ones, whatever their brightness."""
        bright = self.brightness.copy()
        for key in self._pinned:
            index = self._indexes[key]
            bright[self._offsets[index] : self._offsets[index + 1]] = self.strategy.initial_brightness
        return bright

    def ranks(self) -> dict[ChunkKey, int]:
        """Rank of each chunk, 0 for the dimmest to 100 for the brightest; equally bright ones share a rank, pinned ones
        are at 100."""
        bright = np.array(self.chunk_brightness())
        bright[[chunk.key in self._pinned for chunk in self._chunks]] = np.inf
        levels, level_of_chunk = np.unique(bright, return_inverse=True)
        highest = max(1, len(levels) - 1)
        ranks = (
            np.rint(100 * level_of_chunk / highest) if len(levels) > 1 else np.full(len(level_of_chunk), 100)
        ).astype(int)
        return {chunk.key: int(rank) for chunk, rank in zip(self._chunks, ranks, strict=True)}

    @property
    def pinned(self) -> frozenset[ChunkKey]:
        return frozenset(self._pinned)

    def at(self, key: ChunkKey) -> LiveChunk:
        """One live chunk with a copy of its brightness and traces."""
        index = self._index(key)
        values = self._columns(index).copy()
        traces = values[1:] if self.strategy.traces else None
        return LiveChunk(self._chunks[index], values[0], key in self._pinned, traces=traces)

    def new_chunk(self, chunk: Chunk) -> LiveChunk:
        """A new chunk with the brightness that the strategy gives it, before prefill."""
        tokens = self.strategy.new_tokens(np.full(len(chunk), np.nan, np.float32))
        return LiveChunk(chunk, tokens.brightness, traces=tokens.traces)

    def __iter__(self) -> Iterator[LiveChunk]:
        return (self.at(chunk.key) for chunk in self._chunks)

    # Changes

    def use(self, strategy: Strategy) -> None:
        """Change the strategy. Brightness is kept, and so are traces that both strategies have."""
        kept = dict(zip(self.strategy.traces, self._values[1:], strict=True))
        values = np.full((1 + len(strategy.traces), self._values.shape[1]), np.nan, np.float32)
        values[0] = self._values[0]
        for row, name in zip(values[1:], strategy.traces, strict=True):
            row[:] = kept.get(name, np.nan)
        self.strategy, self._values, self._strategy_cache = strategy, values, {}

    def add(self, live: Iterable[LiveChunk]) -> None:
        """Add chunks at their positions. Nothing changes if one of them does not fit."""
        incoming: dict[ChunkKey, LiveChunk] = {}
        for item in live:
            if item.chunk.key in self._indexes or item.chunk.key in incoming:
                raise BadInput(f"Chunk {item.chunk.key} is live already.")
            incoming[item.chunk.key] = item
        if not incoming:
            return
        chunks = sorted(
            [*self._chunks, *(item.chunk for item in incoming.values())], key=lambda chunk: chunk.start
        )
        for before, after in pairwise(chunks):
            if before.stop > after.start:
                raise BadInput(f"Chunks {before.key} and {after.key} cover the same positions.")
        if self.reply and chunks[-1].stop > self.reply.start:
            raise BadInput(
                f"Chunk {chunks[-1].key} is later than the reply in progress; it can be resurrected in the next turn."
            )
        arriving = {
            key: self._rows(TokenBrightness(item.brightness, item.traces)) for key, item in incoming.items()
        }
        columns = [
            arriving[chunk.key] if chunk.key in arriving else self._columns(self._indexes[chunk.key])
            for chunk in chunks
        ]
        self._replace_chunks(chunks, np.concatenate(columns, axis=1))
        self._pinned |= {key for key, item in incoming.items() if item.pinned}
        if self.recording:
            self.recording.note("add", tuple(incoming.values()), dict(self.annotation_tokens))

    def remove(self, keys: Iterable[ChunkKey]) -> tuple[LiveChunk, ...]:
        """Remove chunks, and return them as they were. Nothing changes if one is not live."""
        indexes = {key: self._index(key) for key in keys}
        if not indexes:
            return ()
        removed = tuple(self.at(key) for key in indexes)
        stays = np.ones(len(self._chunks), bool)
        stays[list(indexes.values())] = False
        columns = self._values[:, : self._offsets[-1]][:, np.repeat(stays, np.diff(self._offsets))]
        self._replace_chunks(
            [chunk for chunk, kept in zip(self._chunks, stays, strict=True) if kept], columns
        )
        self._pinned -= indexes.keys()
        if self.recording:
            self.recording.note("remove", tuple(indexes))
        return removed

    def update(self, row: AttentionRow | None, *, score_reply: bool = False) -> RowFault | None:
        """Apply the attention row of a reply token: it changes the brightness of all tokens before the reply, with `score_reply`
        also of those of the reply."""
        fault = row.fault(len(self)) if row is not None else RowFault.MISSING
        if fault or row is None:
            self.faults[fault or RowFault.MISSING] += 1
            return fault
        scored = len(self) if score_reply else int(self._offsets[-1])
        self._set_tokens(self.strategy.brighten(self._strategy_input(scored), row))
        return None

    def observe_surprisal(self, turn_id: int, surprisal: Floats) -> None:
        """Set the initial brightness of a turn from its surprisal in prefill, in nats for each token."""
        at, self._strategy_cache = 0, {}
        for index, chunk in enumerate(self._chunks):
            if chunk.key.turn_id == turn_id and at + len(chunk) <= len(surprisal):
                self._columns(index)[:] = self._rows(
                    self.strategy.new_tokens(surprisal[at : at + len(chunk)])
                )
                at += len(chunk)

    def observe_rows(self, rows: Sequence[AttentionRow]) -> None:
        """Apply the attention rows of the user's turn, captured in prefill."""
        after = self.strategy.after_reading(self._strategy_input(), rows) if rows else None
        if after:
            self._set_tokens(after)

    # The reply in progress

    def begin_reply(self, turn_id: int, start: int, answers: int | None) -> None:
        if self.reply:
            raise BadInput(f"Turn {self.reply.turn_id} is still being written.")
        if self._chunks and self._chunks[-1].stop > start:
            raise BadInput(
                f"A reply at position {start} would begin before the end of live chunk {self._chunks[-1].key}."
            )
        self.reply = ReplyInProgress(turn_id, start, answers)
        if self.recording:
            self.recording.note("begin_reply", turn_id, start, answers)

    def append_reply_token(self, token_id: int, piece: bytes, surprisal: float = np.nan) -> None:
        """Append a token to the reply in progress, with its surprisal if that is known."""
        if not self.reply:
            raise BadInput("No reply is being written.")
        at = len(self)
        if at == self._values.shape[1]:
            self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
        token = self.strategy.new_tokens(np.array([surprisal], np.float32))
        self._values[:, at : at + 1] = self._rows(token)
        self.reply.ids.append(token_id)
        self.reply.pieces.append(piece)
        if self.recording:
            self.recording.note("say", token_id, piece, surprisal)

    def observe_reply_surprisal(self, place: int, surprisal: float) -> None:
        """Apply the surprisal of a token of the reply that arrived late. `place`: the token's index in the reply."""
        if self.reply and place < len(self.reply.ids):
            at = int(self._offsets[-1]) + place
            token = self.strategy.new_tokens(np.array([surprisal], np.float32))
            self._values[:, at : at + 1] = self._rows(token)

    def end_reply(
        self,
        min_chunk_tokens: int = MIN_CHUNK_TOKENS,
        parts: Sequence[ReplyPart] | None = None,
        *,
        max_chunk_tokens: int = MAX_CHUNK_TOKENS,
    ) -> tuple[Chunk, ...]:
        """Cut the reply into chunks and add them, in position order. An empty reply adds none.

        `parts`: what is stored of it, in position order; by default all of it.
        """
        if not self.reply:
            raise BadInput("No reply is being written.")
        reply, reply_offset, columns = self.reply, int(self._offsets[-1]), self._values[:, : len(self)].copy()
        if parts is None:
            parts = [ReplyPart(reply.start, reply.tokens, range(len(reply.ids)))] if reply.ids else []
        self.reply = None
        chunks = chunk_parts(
            parts,
            reply.turn_id,
            reply.answers,
            min_chunk_tokens=min_chunk_tokens,
            max_chunk_tokens=max_chunk_tokens,
        )
        if chunks:
            kept = [reply_offset + source for part in parts for source in part.sources]
            self._replace_chunks([*self._chunks, *chunks], columns[:, [*range(reply_offset), *kept]])
        after = self.strategy.after_reply(self._strategy_input())
        if after:
            self._set_tokens(after)
        if self.recording:
            self.recording.note("end_reply", min_chunk_tokens, max_chunk_tokens, tuple(parts))
        return chunks

    # Internal helpers

    def _index(self, key: ChunkKey) -> int:
        try:
            return self._indexes[key]
        except KeyError:
            raise UnknownChunk(f"Chunk {key} is not live in this window.") from None

    def _strategy_input(self, scored: int | None = None) -> StrategyInput:
        """The window as the strategy's input; by default all chunks are scored."""
        count = len(self)
        tokens = TokenBrightness(
            self._values[0, :count], self._values[1:, :count] if self.strategy.traces else None
        )
        scored = int(self._offsets[-1]) if scored is None else scored
        return StrategyInput(
            tokens, self._chunks, self._offsets, self._turn_ages(), scored, self._strategy_cache
        )

    def _set_tokens(self, tokens: TokenBrightness) -> None:
        """Set the brightness and traces that the strategy returned for all live tokens."""
        self._values[0, : len(self)] = tokens.brightness
        if tokens.traces is not None:
            self._values[1:, : len(self)] = tokens.traces

    def _columns(self, index: int) -> Floats:
        """(1 + traces, tokens) of a chunk, as a view."""
        return self._values[:, self._offsets[index] : self._offsets[index + 1]]

    def _rows(self, tokens: TokenBrightness) -> Floats:
        """(1 + traces, n) as rows of `_values`. Unknown traces are NaN."""
        rows = np.full((len(self._values), len(tokens.brightness)), np.nan, np.float32)
        rows[0] = tokens.brightness
        if tokens.traces is not None:
            if tokens.traces.shape != rows[1:].shape:
                raise BadInput(
                    f"The strategy keeps {len(rows) - 1} traces, but {len(tokens.traces)} were given."
                )
            rows[1:] = tokens.traces
        return rows

    def _replace_chunks(self, chunks: list[Chunk], columns: Floats) -> None:
        """Replace the chunks. `columns` has the values of their tokens; those of the reply stay."""
        reply = self._values[:, self._offsets[-1] : len(self)]
        spare = np.zeros((len(columns), SPARE_COLUMNS + columns.shape[1] // 4), np.float32)
        self._values = np.concatenate([columns, reply, spare], axis=1)
        self._chunks, self._strategy_cache = chunks, {}
        self._indexes = {chunk.key: index for index, chunk in enumerate(chunks)}
        self._offsets = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64)])
        self._ages = None

    def _turn_ages(self) -> npt.NDArray[np.int64]:
        if self._ages is None:
            turns = [chunk.key.turn_id for chunk in self._chunks]
            distinct = sorted(set(turns))
            ranks = np.array([bisect_left(distinct, turn) for turn in turns], np.int64)
            self._ages = len(distinct) - 1 - ranks
        return self._ages


def chunk_turn(
    tokens: Tokens,
    turn_id: int,
    role: Role,
    start: int,
    answers: int | None = None,
    *,
    min_chunk_tokens: int = MIN_CHUNK_TOKENS,
    max_chunk_tokens: int = MAX_CHUNK_TOKENS,
    first: int = 0,
) -> tuple[Chunk, ...]:
    """Cut a turn into chunks, from position `start` on, numbered from `first`."""
    chunks: list[Chunk] = []
    for part in cut(tokens, min_chunk_tokens, max_chunk_tokens):
        at = chunks[-1].stop if chunks else start
        chunks.append(Chunk(ChunkKey(turn_id, first + len(chunks), role), at, part, answers))
    return tuple(chunks)


def chunk_parts(
    parts: Sequence[ReplyPart],
    turn_id: int,
    answers: int | None,
    *,
    min_chunk_tokens: int = MIN_CHUNK_TOKENS,
    max_chunk_tokens: int = MAX_CHUNK_TOKENS,
) -> tuple[Chunk, ...]:
    """Cut a reply into chunks, in position order. Those of the answer are numbered first: chunk 0 is the turn's anchor, which
    is pruned last."""
    chunks: list[Chunk] = []
    for part in sorted(parts, key=lambda part: bool(part.tag)):
        chunks += chunk_turn(
            part.tokens,
            turn_id,
            Role.ASSISTANT,
            part.start,
            answers,
            min_chunk_tokens=min_chunk_tokens,
            max_chunk_tokens=max_chunk_tokens,
            first=len(chunks),
        )
    return tuple(sorted(chunks, key=lambda chunk: chunk.start))
