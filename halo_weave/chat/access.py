"""Limit the store, search and the runtime to what one person may read and write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.core.resurrection import RecallCandidate, RecallHit
from halo_weave.core.tokens import ChunkKey
from halo_weave.engines.base import NO_FILTER, MemorySearch, SearchFilter
from halo_weave.errors import BadInput, NotYours, UnknownChunk, UnknownWindow
from halo_weave.settings import Settings
from halo_weave.store.protocol import Store
from halo_weave.store.records import (
    OWNER,
    OWNER_NAME,
    PERSONA,
    Access,
    ChunkEvent,
    ChunkUse,
    ExportFilter,
    MemoryStats,
    ReplySource,
    ResurrectableChunk,
    StoredChunk,
    TurnRecord,
    WindowRecord,
)

# Methods of the store whose first argument is a window, by what someone must be allowed to do there.
_READS = {
    *("said_in", "deleted_in", "most_used", "branch", "window", "window_stats", "live", "graveyard", "life"),
    *("asleep_places", "count_asleep", "asleep_between"),
}
_WRITES = {"prune", "wake", "pin", "unpin"}
_OWNS = {"change_window", "delete_window"}
# Methods that concern no window, and those of notes and structured memory, which are the person's own.
_FREE = {"reserve", "version", "folder", "fleet"}
_KEPT = {
    *("entry", "save_entry", "entries", "entry_paths", "entry_versions", "delete_entry"),
    *("note", "notes", "save_note", "settings", "change_settings"),
}


class PersonStore:
    """A store as one person may use it."""

    def __init__(self, store: Store, reach: Access) -> None:
        self._store, self.reach = store, reach
        self._kept = store.for_owner(reach.person)

    def __getattr__(self, name: str) -> Any:
        if name in _KEPT:
            return getattr(self._kept, name)
        if name in _FREE:
            return getattr(self._store, name)
        checks = [
            check
            for names, check in ((_READS, self.reads), (_WRITES, self.writes), (_OWNS, self.owns))
            if name in names
        ]
        if not checks:
            raise NotYours("This is for whoever runs the server.")
        method = getattr(self._store, name)

        def scoped(window_id: str, *more: Any, **named: Any) -> Any:
            checks[0](window_id)
            return method(window_id, *more, **named)

        return scoped

    # Who may what

    def reads(self, window_id: str) -> None:
        if window_id not in self.reach.readable:
            raise UnknownWindow(f"There is no window {window_id!r}. To see them: halo-weave windows")

    def writes(self, window_id: str) -> None:
        self.reads(window_id)
        if window_id not in self.reach.writable:
            raise NotYours("This window is shared with you to read. Ask whoever it belongs to.")

    def owns(self, window_id: str) -> None:
        self.reads(window_id)
        if window_id not in self.reach.own:
            raise NotYours("Only whoever a window belongs to can do this.")

    def _seen(self, turns: Iterable[int]) -> frozenset[int]:
        """Those of these turns that were said where the person may read."""
        where = self._store.turn_windows(turns)
        return frozenset(turn for turn, window in where.items() if window in self.reach.readable)

    def _sees(self, turn_id: int) -> None:
        if turn_id not in self._seen([turn_id]):
            raise BadInput(f"There is no turn {turn_id} in this memory.")

    def _sees_chunk(self, key: ChunkKey) -> None:
        if key.turn_id not in self._seen([key.turn_id]):
            raise UnknownChunk(f"There is no chunk {key} in this memory.")

    def _writes_chunks(self, keys: Iterable[ChunkKey]) -> None:
        keys = list(keys)
        for key in keys:
            self._sees_chunk(key)
        for window in self._store.turn_windows(key.turn_id for key in keys).values():
            self.writes(window)

    def _goes_to(self, window_id: str, turn_id: int | None) -> None:
        """A window may go on from what was said in it, and someone's own from all that is their own."""
        if not turn_id:
            return
        self._sees(turn_id)
        said = self._store.turn_windows([turn_id])[turn_id]
        own = {window_id, said} <= self.reach.own
        if not (own or said == window_id or any(one.id == turn_id for one in self._store.branch(window_id))):
            raise BadInput(f"There is no turn {turn_id} in this memory.")

    # What was said

    def append(self, window_id: str, *said: Any, after: int | None = None, **more: Any) -> list[int]:
        self.writes(window_id)
        self._goes_to(window_id, after)
        return self._store.append(window_id, *said, after=after, **more)

    def remembered(
        self, turn_ids: Iterable[int], *, least: float = 0.0
    ) -> dict[int, tuple[float, list[ReplySource]]]:
        found = self._store.remembered(self._seen(turn_ids), least=least)
        return {
            turn: (nothing, [one for one in kept if one.record.window in self.reach.readable])
            for turn, (nothing, kept) in found.items()
        }

    def use_of(self, turn_id: int) -> Any:
        return self._store.use_of(turn_id) if self._seen([turn_id]) else None

    def used_in(self, key: ChunkKey, *, limit: int = 100) -> list[ChunkUse]:
        self._sees_chunk(key)
        return [one for one in self._store.used_in(key, limit=limit) if one.window in self.reach.readable]

    def resurrection_count(self, key: ChunkKey) -> int:
        self._sees_chunk(key)
        return self._store.resurrection_count(key)

    def chunk(self, key: ChunkKey) -> StoredChunk:
        self._sees_chunk(key)
        return self._store.chunk(key)

    def chunks_by_key(self, keys: Iterable[ChunkKey]) -> list[StoredChunk]:
        return self._readable(self._store.chunks_by_key(keys))

    def chunks_between(self, first: int, stop: int) -> list[StoredChunk]:
        return self._readable(self._store.chunks_between(first, stop))

    def turn(self, turn_id: int) -> list[StoredChunk]:
        return self._readable(self._store.turn(turn_id))

    def _readable(self, found: Iterable[StoredChunk]) -> list[StoredChunk]:
        return [one for one in found if one.window in self.reach.readable]

    def merge(self, window_id: str, key: ChunkKey, *, now: datetime) -> ChunkKey:
        self.writes(window_id)
        self._writes_chunks([key])
        return self._store.merge(window_id, key, now=now)

    def deletion_of(self, key: ChunkKey) -> tuple[ChunkKey, ...]:
        self._sees_chunk(key)
        return self._store.deletion_of(key)

    def holders(self, keys: Sequence[ChunkKey]) -> dict[str, bool]:
        """Also windows of others: what is deleted leaves the caches of all."""
        self._writes_chunks(keys)
        return self._store.holders(keys)

    def delete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        self._writes_chunks(keys)
        return self._known(self._store.delete(keys, now=now))

    def undelete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        self._writes_chunks(keys)
        return self._known(self._store.undelete(keys, now=now))

    def _known(self, windows: Iterable[str]) -> tuple[str, ...]:
        return tuple(one for one in windows if one in self.reach.readable)

    def add_negative_feedback(self, key: ChunkKey, question: str | None, *, now: datetime) -> None:
        self._writes_chunks([key])
        self._store.add_negative_feedback(key, question, now=now)

    # Tags: those of the person, on all that they may read

    def tag_chunk(
        self, key: ChunkKey, tags: Sequence[str], *, now: datetime, owner: str | None = None
    ) -> None:
        self._sees_chunk(key)
        self._store.tag_chunk(key, tags, now=now, owner=self.reach.person)

    def chunk_tags(
        self, keys: Iterable[ChunkKey], *, owner: str | None = None
    ) -> dict[ChunkKey, tuple[str, ...]]:
        keys = list(keys)
        seen = self._seen(key.turn_id for key in keys)
        return self._store.chunk_tags([key for key in keys if key.turn_id in seen], owner=self.reach.person)

    def tagged(self, tags: Collection[str], *, owner: str | None = None) -> dict[ChunkKey, int]:
        found = self._store.tagged(tags, owner=self.reach.person)
        seen = self._seen(key.turn_id for key in found)
        return {key: number for key, number in found.items() if key.turn_id in seen}

    def tag_counts(self, *, owner: str | None = None) -> dict[str, int]:
        return self._store.tag_counts(owner=self.reach.person)

    # Branches

    def switch(self, window_id: str, head: int, *, now: datetime) -> tuple[str, ...]:
        self.writes(window_id)
        self._goes_to(window_id, head)
        return self._known(self._store.switch(window_id, head, now=now))

    def turn_record(self, turn_id: int) -> TurnRecord:
        self._sees(turn_id)
        return self._store.turn_record(turn_id)

    def timeline(self, **asked: Any) -> list[TurnRecord]:
        return self._store.timeline(**asked, reader=self.reach.person)

    def followers(self, turn_id: int, window_id: str) -> list[TurnRecord]:
        if turn_id:
            self._sees(turn_id)
        found = self._store.followers(turn_id, window_id)
        return [one for one in found if one.window in self.reach.readable]

    def siblings(self, turns: Iterable[int]) -> dict[int, list[int]]:
        found = self._store.siblings(self._seen(turns))
        seen = self._seen(one for alike in found.values() for one in alike)
        return {turn: [one for one in alike if one in seen] for turn, alike in found.items()}

    def marked(self, mark: int, *, window: str | None = None) -> list[TurnRecord]:
        return self._store.marked(mark, window=window, reader=self.reach.person)

    def marks_before(self, turn_id: int, limit: int) -> list[tuple[int, int | None]]:
        return self._store.marks_before(turn_id, limit) if self._seen([turn_id]) else []

    # Windows

    def create_window(self, name: str, **more: Any) -> WindowRecord:
        made, reach = self._store.create_window(name, **more, owner=self.reach.person), self.reach
        new = frozenset({made.id})
        self.reach = Access(reach.person, reach.own | new, reach.readable | new, reach.writable | new)
        return made

    def windows(self, *, deleted: bool = False) -> list[WindowRecord]:
        return self._store.windows(deleted=deleted, reader=self.reach.person)

    def window_names(self) -> dict[str, str]:
        return self._store.window_names(reader=self.reach.person)

    def chat_window(self, name: str) -> str | None:
        found = self._store.chat_window(name, owner=self.reach.person)
        return found if found in self.reach.readable else None

    def name_chat(self, name: str, window_id: str) -> None:
        self.writes(window_id)
        self._store.name_chat(name, window_id, owner=self.reach.person)

    def change_persona(self, changes: Mapping[str, str], *, now: datetime) -> tuple[str, ...]:
        return self._store.change_persona(changes, now=now, owner=self.reach.person)

    def asleep_or_said(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, ResurrectableChunk]:
        self.reads(window_id)
        found = self._store.asleep_or_said(window_id, keys)
        return {key: one for key, one in found.items() if one.record.window in self.reach.readable}

    def sleepers(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, RecallCandidate]:
        if window_id:
            self.reads(window_id)
        found = self._store.sleepers(window_id, keys)
        return {key: one for key, one in found.items() if one.window in self.reach.readable}

    def history(
        self, *, window: str | None = None, key: ChunkKey | None = None, limit: int = 100
    ) -> list[ChunkEvent]:
        if window is not None:
            self.reads(window)
        if key is not None:
            self._sees_chunk(key)
        elif window is None:
            raise NotYours("This is for whoever runs the server.")
        found = self._store.history(window=window, key=key, limit=limit)
        return [one for one in found if one.window is None or one.window in self.reach.readable]

    # All of it

    @property
    def place(self) -> str:
        return ""

    def stats(self) -> MemoryStats:
        return replace(self._store.stats(reader=self.reach.person), bytes=0)

    def export(
        self,
        write: Callable[[str], object],
        *,
        now: datetime,
        subset: ExportFilter | None = None,
        vectors: bool = False,
    ) -> None:
        asked = replace(subset or ExportFilter(), reader=self.reach.person)
        if asked.window is not None:
            self.reads(asked.window)
        self._store.export(write, now=now, subset=asked, vectors=vectors)


class PersonSearch:
    """Search over what one person may read."""

    def __init__(self, recall: MemorySearch, store: PersonStore) -> None:
        self._recall, self._store = recall, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recall, name)

    def search(self, text: str, *, only: SearchFilter = NO_FILTER, **asked: Any) -> Sequence[RecallHit]:
        return self._recall.search(text, only=only.within(self._store.reach.readable), **asked)


class PersonRuntime:
    """A system as one person may use it. Engines, hubs and what is at work are those of all."""

    def __init__(self, root: Runtime, reach: Access) -> None:
        self.root, self._person = root, reach.person
        self._scoped = PersonStore(root.store, reach)
        self.store = cast(Store, self._scoped)
        self.recall = cast(MemorySearch, PersonSearch(root.recall, self._scoped))
        self.toolbox: Toolbox | None = root.toolbox and root.toolbox.of(self.store, reach.readable)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.root, name)

    window = Runtime.window
    names = Runtime.names
    delete = Runtime.delete

    def settings(self, window: WindowRecord | None = None) -> Settings:
        return self.root.settings(window, owner=self._person)

    def check_writes(self, window_id: str) -> None:
        self._scoped.writes(window_id)

    def check_owns(self, window_id: str) -> None:
        self._scoped.owns(window_id)

    def access(self, window: WindowRecord) -> tuple[str, bool]:
        writable = window.id in self._scoped.reach.writable
        if window.owner == self._person:
            return "", writable
        return self._name(window.owner), writable

    def _name(self, person: str) -> str:
        return next((one.name for one in self.root.store.people() if one.id == person), OWNER_NAME)

    def speaker_name(self, window: WindowRecord) -> str:
        if window.owner == self._person:
            shared = (one for one in self.root.store.shares() if one.owner == window.owner and one.writes)
            if not any(one.window in ("", window.id) for one in shared):
                return ""
            if self._person == OWNER and window.user_name != PERSONA["user_name"]:
                return ""
        return self._name(self._person)

    def mine(self, windows: Collection[str]) -> list[str]:
        return [one for one in windows if one in self._scoped.reach.readable]

    def ready(self, window_id: str) -> None:
        self._scoped.writes(window_id)
        self.root.ready(window_id)

    def model_in(self, window_id: str) -> Any:
        self._scoped.reads(window_id)
        return self.root.model_in(window_id)

    def open_window(self, window_id: str) -> OpenWindow:
        self._scoped.reads(window_id)
        return self.root.open_window(window_id)

    def open_window_to_change(self, window_id: str) -> OpenWindow:
        self._scoped.writes(window_id)
        return self.root.open_window_to_change(window_id)

    @contextmanager
    def alone(self, window_id: str) -> Iterator[None]:
        self._scoped.writes(window_id)
        with self.root.alone(window_id):
            yield

    @contextmanager
    def exclusive_change(self, window_id: str) -> Iterator[None]:
        self._scoped.writes(window_id)
        with self.root.exclusive_change(window_id):
            yield
