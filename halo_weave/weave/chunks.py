"""A chunk, and what a user can do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.use import ReplyUse
from halo_weave.errors import BadInput
from halo_weave.records import ChunkUse, Event
from halo_weave.weave.desk import Desk
from halo_weave.weave.events import WokenChunk
from halo_weave.weave.injecting import Injection, resurrect
from halo_weave.weave.system import System
from halo_weave.weave.turns import plain
from halo_weave.weave.windows import checked_tags


@dataclass(frozen=True, slots=True)
class Explanation:
    """A chunk in a window: what it says, how bright it is, and what happened to it."""

    key: ChunkKey
    text: str
    tokens: int
    live: bool
    pinned: bool
    rank: int | None  # among what is live: 0 the dimmest, 100 the brightest
    peak: float | None
    mean: float | None
    parts: Mapping[str, float]  # what its brightness is made of, as far as the strategy knows
    said: datetime
    window: str
    speaker: str
    history: tuple[Event, ...]  # newest first
    uses: tuple[ChunkUse, ...]  # the replies that took something from it, newest first
    use: ReplyUse | None  # what the reply that it belongs to took from chunks
    woken: int = 0  # how often it woke up, in all windows
    tags: tuple[str, ...] = ()  # of whoever asks


@dataclass(frozen=True, slots=True)
class Deletion:
    """What goes, or went, with a chunk that is deleted."""

    keys: tuple[ChunkKey, ...]
    turns: int
    chunks: int
    tokens: int
    text: str | None  # the user's words, when their newest answer goes: they return to the input
    windows: tuple[str, ...] = ()  # where something of it was live


class WeaveChunks:
    """`weave.chunks`."""

    def __init__(self, system: System) -> None:
        self._system = system

    def why(self, window_id: str, key: ChunkKey) -> Explanation:
        store = self._system.store
        desk, record = self._system.desk(window_id), store.chunk(key)
        live = key in desk.window
        asleep = {} if live else store.asleep_or_said(window_id, [key])
        brightness = desk.window.at(key).brightness if live else asleep[key].brightness
        return Explanation(
            key,
            record.chunk.text,
            len(record.chunk),
            live,
            key in desk.window.pinned,
            desk.window.ranks()[key] if live else None,
            None if brightness is None else float(brightness.max()),
            None if brightness is None else float(brightness.mean()),
            desk.window.strategy.parts_of(desk.window.at(key).traces) if live else {},
            record.said,
            record.window,
            record.speaker,
            tuple(store.history(window=window_id, key=key)),
            tuple(store.used_in(key)),
            store.use_of(key.turn_id),
            store.times_woken(key),
            store.chunk_tags([key]).get(key, ()),
        )

    def tag(self, window_id: str, key: ChunkKey, tags: Sequence[str]) -> tuple[str, ...]:
        """These are its tags from now on. They belong to whoever gives them, and nobody else sees them."""
        self._system.window(window_id)
        self._system.store.tag_chunk(key, checked_tags(tags), now=self._system.now())
        return self._system.store.chunk_tags([key]).get(key, ())

    def mark_wrong(self, window_id: str, key: ChunkKey, question: str) -> None:
        """It is the wrong memory for this question: it does not wake up for questions like it."""
        asked = plain(question).strip()
        if not asked:
            raise BadInput("Say which question it is the wrong memory for.")
        self._system.window(window_id)
        self._system.store.mark_wrong(key, asked, now=self._system.now())

    def unmark_wrong(self, window_id: str, key: ChunkKey) -> None:
        """All marks of the chunk as a wrong memory are taken back."""
        self._system.window(window_id)
        self._system.store.mark_wrong(key, None, now=self._system.now())

    def pin(self, window_id: str, key: ChunkKey) -> None:
        """It is shown as bright as new, and never falls asleep. What it earned stays known, for when it is unpinned."""
        with self._system.changing(window_id):
            self._system.store.pin(window_id, key, now=self._system.now())

    def unpin(self, window_id: str, key: ChunkKey) -> None:
        with self._system.changing(window_id):
            self._system.store.unpin(window_id, key, now=self._system.now())

    def sleep(self, window_id: str, key: ChunkKey) -> None:
        with self._system.changing(window_id):
            self._system.desk_to_change(window_id).sleep(key, now=self._system.now())

    def wake(self, window_id: str, key: ChunkKey) -> Injection:
        """It returns to its place, and is pinned; with its question or answer, and the first chunk of its turn."""
        with self._system.changing(window_id):
            return resurrect(self._asleep(window_id, key), key, now=self._system.now())

    def wake_again(self, window_id: str, key: ChunkKey) -> WokenChunk:
        """Putting it to sleep by hand is taken back: it is as it was before, pinned only if it was."""
        with self._system.changing(window_id):
            desk = self._asleep(window_id, key)
            desk.readings([key])  # what cannot wake up here is refused before its past is looked at
            return desk.wake_by_hand(key, now=self._system.now(), pinned=desk.was_pinned(key))

    def _asleep(self, window_id: str, key: ChunkKey) -> Desk:
        desk = self._system.desk_to_change(window_id)
        if key in desk.window:
            raise BadInput(f"Chunk {key} is awake already.")
        return desk

    def merge(self, window_id: str, key: ChunkKey) -> ChunkKey:
        """Into the chunk before it; returns that one's key."""
        with self._system.changing(window_id):
            into = self._system.store.merge(window_id, key, now=self._system.now())
            self._system.recall.note_said()
            return into

    def would_delete(self, window_id: str, key: ChunkKey) -> Deletion:
        """What deleting it would take along."""
        store = self._system.store
        live = self._system.desk(window_id).live_keys
        records = [one for one in store.chunks_by_key(store.deletion_of(key)) if not one.gone]
        text = None
        if max((key.turn_id for key in live), default=None) in {record.key.turn_id for record in records}:
            # The newest exchange goes: what the user said is given back, also what of it sleeps.
            said = [record.chunk for record in records if record.key.role is Role.USER]
            said.sort(key=lambda chunk: chunk.start)
            if said and said[0].key.chunk_id == 0:
                text = b"".join(chunk.tokens.raw for chunk in said).decode("utf-8", errors="replace")
        return Deletion(
            tuple(record.key for record in records),
            len({record.key.turn_id for record in records}),
            len(records),
            sum(len(record.chunk) for record in records),
            text,
        )

    def delete(self, window_id: str, key: ChunkKey) -> Deletion:
        """Delete the chunk from search until it is undeleted. Returns all that was deleted with it."""
        with self._system.alone(window_id):
            would = self.would_delete(window_id, key)
            gone = replace(would, windows=self._system.delete(would.keys))
        self._system.changed({window_id, *gone.windows})
        return gone

    def undelete(self, window_id: str, keys: Sequence[ChunkKey]) -> tuple[str, ...]:
        """Deleted chunks can be found again, and are in every window what they were. Returns where they are live."""
        with self._system.alone(window_id):
            self._system.window(window_id)
            windows = self._system.store.undelete(keys, now=self._system.now())
        self._system.recall.note_said()
        self._system.changed({window_id, *windows})
        return windows
