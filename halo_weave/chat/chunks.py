"""What a user can do with a chunk: explain, tag, pin, prune, resurrect, merge, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from halo_weave.chat.events import ResurrectedChunk
from halo_weave.chat.injection import Injection, inject_chunk
from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.turn_runner import storable_text
from halo_weave.chat.windows import checked_tags
from halo_weave.core.attribution import Attribution
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput
from halo_weave.store.records import ChunkEvent, ChunkUse


@dataclass(frozen=True, slots=True)
class Explanation:
    """A chunk in a window: its text, its brightness, and its history."""

    key: ChunkKey
    text: str
    tokens: int
    live: bool
    pinned: bool
    rank: int | None  # 0 for the dimmest live chunk to 100 for the brightest
    peak: float | None
    mean: float | None
    parts: Mapping[str, float]  # the parts of its brightness, if the strategy can name them
    said: datetime
    window: str
    speaker: str
    history: tuple[ChunkEvent, ...]  # newest first
    uses: tuple[ChunkUse, ...]  # the replies that used it, newest first
    use: Attribution | None  # the attribution of the reply that it belongs to
    times_resurrected: int = 0  # how often it was resurrected, in all windows
    tags: tuple[str, ...] = ()  # the tags of the current person


@dataclass(frozen=True, slots=True)
class Deletion:
    """The chunks that are, or were, deleted together with a chunk."""

    keys: tuple[ChunkKey, ...]
    turns: int
    chunks: int
    tokens: int
    text: (
        str | None
    )  # the user's message, if the newest exchange is deleted: the page puts it back into the input box
    windows: tuple[str, ...] = ()  # windows where one of the chunks was live


class Chunks:
    """`weave.chunks`: what a user can do with one chunk of a window."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def why(self, window_id: str, key: ChunkKey) -> Explanation:
        store = self._runtime.store
        open_window, record = self._runtime.window_for_reading(window_id), store.chunk(key)
        live = key in open_window.working_set
        pruned = {} if live else store.resurrectable_chunks(window_id, [key])
        brightness = open_window.working_set.at(key).brightness if live else pruned[key].brightness
        return Explanation(
            key,
            record.chunk.text,
            len(record.chunk),
            live,
            key in open_window.working_set.pinned,
            open_window.working_set.ranks()[key] if live else None,
            None if brightness is None else float(brightness.max()),
            None if brightness is None else float(brightness.mean()),
            open_window.working_set.strategy.parts_of(open_window.working_set.at(key).traces) if live else {},
            record.said,
            record.window,
            record.speaker,
            tuple(store.history(window=window_id, key=key)),
            tuple(store.used_in(key)),
            store.use_of(key.turn_id),
            store.resurrection_count(key),
            store.chunk_tags([key]).get(key, ()),
        )

    def tag(self, window_id: str, key: ChunkKey, tags: Sequence[str]) -> tuple[str, ...]:
        """Replace the tags of the chunk. Each person has tags of their own; nobody else sees them."""
        self._runtime.window(window_id)
        self._runtime.store.tag_chunk(key, checked_tags(tags), now=self._runtime.now())
        return self._runtime.store.chunk_tags([key]).get(key, ())

    def add_negative_feedback(self, window_id: str, key: ChunkKey, question: str) -> None:
        """Record that the chunk is the wrong memory for this question: it is not resurrected for similar questions."""
        query = storable_text(question).strip()
        if not query:
            raise BadInput("Say which question it is the wrong memory for.")
        self._runtime.window(window_id)
        self._runtime.store.add_negative_feedback(key, query, now=self._runtime.now())

    def remove_negative_feedback(self, window_id: str, key: ChunkKey) -> None:
        """Remove all negative feedback about the chunk."""
        self._runtime.window(window_id)
        self._runtime.store.add_negative_feedback(key, None, now=self._runtime.now())

    def pin(self, window_id: str, key: ChunkKey) -> None:
        """Pin the chunk: it is never pruned, and is shown as bright as a new one. Its own brightness returns when it is
        unpinned."""
        with self._runtime.exclusive_change(window_id):
            self._runtime.store.pin(window_id, key, now=self._runtime.now())

    def unpin(self, window_id: str, key: ChunkKey) -> None:
        with self._runtime.exclusive_change(window_id):
            self._runtime.store.unpin(window_id, key, now=self._runtime.now())

    def prune(self, window_id: str, key: ChunkKey) -> None:
        """Prune the chunk by hand."""
        with self._runtime.exclusive_change(window_id):
            self._runtime.window_for_change(window_id).prune_by_user(key, now=self._runtime.now())

    def resurrect(self, window_id: str, key: ChunkKey) -> Injection:
        """Resurrect and pin the chunk; its question or answer and the first chunk of its turn are resurrected, too."""
        with self._runtime.exclusive_change(window_id):
            return inject_chunk(self._open_with_pruned(window_id, key), key, now=self._runtime.now())

    def undo_prune(self, window_id: str, key: ChunkKey) -> ResurrectedChunk:
        """Undo pruning by hand: the chunk is live as before, and pinned only if it was pinned then."""
        with self._runtime.exclusive_change(window_id):
            open_window = self._open_with_pruned(window_id, key)
            open_window.resurrectable([key])  # raises an error if the chunk cannot be resurrected here
            return open_window.resurrect_by_user(
                key, now=self._runtime.now(), pinned=open_window.was_pinned(key)
            )

    def _open_with_pruned(self, window_id: str, key: ChunkKey) -> OpenWindow:
        open_window = self._runtime.window_for_change(window_id)
        if key in open_window.working_set:
            raise BadInput(f"Chunk {key} is awake already.")
        return open_window

    def merge(self, window_id: str, key: ChunkKey) -> ChunkKey:
        """Merge the chunk into the chunk before it, and return the key of that one."""
        with self._runtime.exclusive_change(window_id):
            into = self._runtime.store.merge(window_id, key, now=self._runtime.now())
            self._runtime.memory_search.embed_soon()
            return into

    def preview_delete(self, window_id: str, key: ChunkKey) -> Deletion:
        """All chunks that would be deleted with this one."""
        store = self._runtime.store
        live = self._runtime.window_for_reading(window_id).live_keys
        records = [one for one in store.chunks_by_key(store.deletion_of(key)) if not one.gone]
        text = None
        if max((key.turn_id for key in live), default=None) in {record.key.turn_id for record in records}:
            # If this deletes the newest exchange, return the user's message, also its pruned chunks.
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
        with self._runtime.exclusive(window_id):
            would = self.preview_delete(window_id, key)
            gone = replace(would, windows=self._runtime.delete(would.keys))
        self._runtime.publish_changed({window_id, *gone.windows})
        return gone

    def undelete(self, window_id: str, keys: Sequence[ChunkKey]) -> tuple[str, ...]:
        """Undelete the chunk and what was deleted with it: they return to search, and to the windows that had them.
        Returns the windows where they are live."""
        with self._runtime.exclusive(window_id):
            self._runtime.window(window_id)
            windows = self._runtime.store.undelete(keys, now=self._runtime.now())
        self._runtime.memory_search.embed_soon()
        self._runtime.publish_changed({window_id, *windows})
        return windows
