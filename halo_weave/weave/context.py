"""What a window looks like: the active context with its brightness, its gaps and its budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role, Tokens
from halo_weave.records import Event, Numbers
from halo_weave.weave.desk import CUT, TOOL, Desk


@dataclass(frozen=True, slots=True)
class Gap:
    """What sleeps in this window between two live chunks."""

    chunks: int
    tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class SeenChunk:
    chunk: Chunk
    brightness: Brightness
    pinned: bool
    woken: Mapping[str, Any] | None  # why it woke up, if it slept
    gap: Gap | None  # before it
    tool: bool = False  # the answer of a tool stands in it


@dataclass(frozen=True, slots=True)
class SeenTurn:
    turn_id: int
    role: Role
    speaker: str
    said: datetime
    window: str  # where it was said
    chunks: tuple[SeenChunk, ...]
    cut: bool = False  # the program ended before the reply did


@dataclass(frozen=True, slots=True, eq=False)
class SeenReply:
    """The reply in progress."""

    turn_id: int
    start: int
    tokens: Tokens
    brightness: Brightness


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the tokens of the context go."""

    max_context_tokens: int
    model_context: int
    system: int
    pinned: int
    live: int  # without the pinned
    frames: int
    reserve: int  # for the reply
    free: int


@dataclass(frozen=True, slots=True)
class Context:
    window: str
    turns: tuple[SeenTurn, ...]
    tail: Gap | None  # what sleeps after the last live chunk
    reply: SeenReply | None
    budget: Budget
    asleep_chunks: int
    asleep_tokens: int


@dataclass(frozen=True, slots=True)
class Why:
    """Everything there is to say of a chunk in a window."""

    key: ChunkKey
    text: str
    tokens: int
    live: bool
    pinned: bool
    peak: float | None
    mean: float | None
    said: datetime
    window: str
    speaker: str
    history: tuple[Event, ...]  # newest first


@dataclass(frozen=True, slots=True)
class Deletion:
    """What goes, or went, with a chunk that is deleted."""

    keys: tuple[ChunkKey, ...]
    turns: int
    chunks: int
    tokens: int
    text: str | None  # the user's words, when their newest answer goes: they return to the input
    windows: tuple[str, ...] = ()  # where something of it was live


def glimpse(desk: Desk, keys: Iterable[ChunkKey]) -> dict[ChunkKey, SeenChunk]:
    """Some of the window's live chunks, without what sleeps around them: cheap however much sleeps."""
    with desk.guard:
        live = [desk.window.at(key) for key in keys if key in desk.window]
        return {
            one.chunk.key: SeenChunk(
                one.chunk, one.brightness, one.pinned, about.woken, None, TOOL in about.tags
            )
            for one in live
            for about in [desk.about[one.chunk.key]]
        }


def see(desk: Desk, asleep: tuple[Numbers, Numbers]) -> Context:
    """The window as it is now. `asleep` are the starts and sizes of its sleeping chunks, in order."""
    with desk.guard:
        seen = list(desk.window)
        reply = desk.window.reply
        frames = desk.window.size - desk.window.system_tokens - len(desk.window)
        in_progress = None
        if reply is not None:
            brightness = desk.window.brightness[desk.window.offsets[-1] :].copy()
            in_progress = SeenReply(reply.turn_id, reply.start, reply.tokens, brightness)
    starts, sizes = asleep
    # Sleeping chunks before each live one; the difference of two neighbours is the gap between them.
    places = np.searchsorted(starts, [one.chunk.start for one in seen])
    edges = np.concatenate([[0], places, [len(starts)]]).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(sizes)])
    gaps = [
        Gap(int(stop - start), int(sums[stop] - sums[start])) if stop > start else None
        for start, stop in pairwise(edges)
    ]
    turns = []
    numbered = zip(seen, gaps[:-1], strict=True)
    for (turn_id, role), group in groupby(numbered, key=lambda pair: pair[0].chunk.key[::2]):
        members = list(group)
        about = desk.about[members[0][0].chunk.key]
        chunks = tuple(
            SeenChunk(one.chunk, one.brightness, one.pinned, its.woken, gap, TOOL in its.tags)
            for one, gap in members
            for its in [desk.about[one.chunk.key]]
        )
        turns.append(
            SeenTurn(turn_id, role, about.speaker, about.said, about.window, chunks, CUT in about.tags)
        )
    pinned = sum(len(one.chunk) for one in seen if one.pinned)
    tokens = sum(len(one.chunk) for one in seen) + (len(in_progress.tokens) if in_progress else 0)
    settings, context = desk.settings, desk.engine.info.context
    used = tokens + frames + desk.window.system_tokens
    most = min(settings.max_context_tokens or context, context - settings.max_new_tokens)
    budget = Budget(
        settings.max_context_tokens,
        context,
        desk.window.system_tokens,
        pinned,
        tokens - pinned,
        frames,
        settings.max_new_tokens,
        max(0, most - used),
    )
    return Context(desk.record.id, tuple(turns), gaps[-1], in_progress, budget, len(starts), int(sums[-1]))
