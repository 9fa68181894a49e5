"""Memory as other programs use it: searched, read, told by time, added to, forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from halo_weave.core.tokens import Chunk, ChunkKey, Role
from halo_weave.core.window import Live
from halo_weave.errors import BadInput, UnknownChunk
from halo_weave.imports.pieces import TOKENIZER, chunked
from halo_weave.keepsakes.structured_memory import StructuredMemory
from halo_weave.ports import Only
from halo_weave.records import ChunkRecord, TurnRecord
from halo_weave.weave.reply import THOUGHT
from halo_weave.weave.system import System
from halo_weave.weave.turns import plain
from halo_weave.weave.waking import relevant
from halo_weave.weave.windows import find_window

_MOST_HITS = 200  # that a search looks at
_PAGE = 20  # turns of a timeline
_AROUND = 5  # turns on each side of a chunk
_LONGEST = 100_000  # characters that are written at once
_WINDOW = "Other programs"  # where what they say is kept

# Values as they are told to programs. Without slots, since the MCP library makes schemas of them, and cannot with.


@dataclass(frozen=True)
class MemoryHit:
    id: str
    text: str
    speaker: str
    said: str  # time, ISO 8601
    window: str
    window_id: str
    score: float
    why: str
    tokens: int


@dataclass(frozen=True)
class MemoryHits:
    hits: list[MemoryHit]
    tokens: int
    next_offset: int | None  # to go on from; None: that was all


@dataclass(frozen=True)
class ToldTurn:
    ids: list[str]  # of its chunks
    role: str
    speaker: str
    said: str
    window: str
    window_id: str
    text: str


@dataclass(frozen=True)
class MemoryPassage:
    id: str
    text: str
    turns: list[ToldTurn]  # the turn it is part of, and what stands around that, in order


@dataclass(frozen=True)
class Timeline:
    turns: list[ToldTurn]
    next_cursor: str | None


@dataclass(frozen=True)
class MemoryWritten:
    sentence: str
    ids: list[str]  # of the chunks, if it was said
    path: str  # of the entry, if it was saved


@dataclass(frozen=True)
class MemoryForgotten:
    sentence: str
    ids: list[str]


@dataclass(frozen=True)
class LibraryStatus:
    turns: int
    chunks: int
    tokens: int
    windows: list[dict[str, str]]  # id, name, last
    entries: int
    first: str
    last: str
    search: str


class WeaveLibrary:
    """`weave.library`. Thoughts are left out; what is deleted or off every current branch is not found."""

    def __init__(self, system: System) -> None:
        self._system = system

    def search(
        self,
        query: str,
        *,
        budget: int = 1000,
        window: str = "",
        since: str = "",
        until: str = "",
        offset: int = 0,
    ) -> MemoryHits:
        """The best first of what has to do with the query, as many as fit the budget of tokens; at least one of these."""
        system, query = self._system, plain(query)
        if not query.strip():
            raise BadInput("The query is empty. Say in words what to look for.")
        window_id, begin, end = (
            self._window(window),
            _moment(since, "since"),
            _moment(until, "until", end=True),
        )
        settings = system.settings()
        only = Only(since=begin, before=end + timedelta(microseconds=1) if end else None)
        hits = system.recall.search(
            query,
            window=window_id,
            limit=_MOST_HITS,
            now=system.now(),
            user_weight=settings.user_weight,
            only=only,
        )
        near = {hit.key for hit in relevant(hits, query, settings.relevance_floor)}
        # A question tells nothing, but whoever searches may look for it.
        hits = [
            hit
            for hit in hits
            if hit.key in near or ("asking" in hit.parts and hit.matters(settings.relevance_floor))
        ]
        records = {one.key: one for one in system.store.chunks_by_key(hit.key for hit in hits)}
        names = system.names()
        found: list[MemoryHit] = []
        spent, place = 0, 0
        for place, hit in enumerate(hits):
            record = records.get(hit.key)
            if place < offset or record is None or record.gone or THOUGHT in record.tags:
                continue
            if found and spent + len(record.chunk) > budget:
                return MemoryHits(found, spent, place)
            spent += len(record.chunk)
            why = [f"words: {', '.join(hit.words)}"] if hit.words else []
            why += [f"{name} {value:.2f}" for name, value in hit.parts.items() if value]
            found.append(
                MemoryHit(
                    str(hit.key),
                    record.chunk.text,
                    record.speaker,
                    record.said.isoformat(),
                    names.get(record.window, ""),
                    record.window,
                    round(float(hit.similarity), 4),
                    "; ".join(why),
                    len(record.chunk),
                )
            )
        return MemoryHits(found, spent, None)

    def read(self, id: str, *, around: int = 1) -> MemoryPassage:
        """A chunk, with as many turns before and after its own."""
        if not 0 <= around <= _AROUND:
            raise BadInput(f"`around` is {around}; it goes from 0 to {_AROUND}.")
        store, key = self._system.store, ChunkKey.parse(id)
        record = store.chunk(key)
        if record.gone:
            raise UnknownChunk(f"Chunk {key} was forgotten, or is not part of the conversation any more.")
        turn = store.turn_record(key.turn_id)
        before: list[TurnRecord] = []
        at = turn
        while at.parent is not None and len(before) < around:
            at = store.turn_record(at.parent)
            before.insert(0, at)
        after: list[TurnRecord] = []
        at = turn
        while len(after) < around:
            following = [one for one in store.followers(at.id, at.window) if not one.aside]
            if not following:
                break
            at = following[0]
            after.append(at)
        return MemoryPassage(id, record.chunk.text, self._told([*before, turn, *after]))

    def timeline(
        self, *, since: str = "", until: str = "", window: str = "", cursor: str = "", limit: int = _PAGE
    ) -> Timeline:
        """What was said, in the order of time."""
        if not 1 <= limit <= 100:
            raise BadInput(f"`limit` is {limit}; it goes from 1 to 100.")
        turns = self._system.store.timeline(
            since=_moment(since, "since"),
            until=_moment(until, "until", end=True),
            window=self._window(window),
            after=_place(cursor),
            limit=limit + 1,
        )
        shown, more = turns[:limit], len(turns) > limit
        last = f"{shown[-1].said.isoformat()}|{shown[-1].id}" if more else None
        return Timeline(self._told(shown), last)

    def write(self, text: str, *, path: str = "", speaker: str = "") -> MemoryWritten:
        """Say something into memory; with a path, save it in the structured memory."""
        system, text = self._system, plain(text)
        if not text.strip() or len(text) > _LONGEST:
            raise BadInput(f"The text has {len(text):,} characters; it needs 1 to {_LONGEST:,}.")
        if path:
            entry = self._tree().save(path, text, now=system.now())
            return MemoryWritten(f"Saved under {entry.path}.", [], entry.path)
        window = next((one for one in system.store.windows() if one.name == _WINDOW), None)
        if window is None:
            window = system.store.create_window(_WINDOW, now=system.now())
        chunks = chunked([("answer", text)])
        ids = system.store.reserve(sum(len(tokens) for tokens, _ in chunks))
        said, start = [], ids.start
        bright = system.settings(window).initial_brightness
        for number, (tokens, _) in enumerate(chunks):
            chunk = Chunk(ChunkKey(ids.user_turn, number, Role.USER), start, tokens)
            said.append(Live(chunk, np.full(len(tokens), bright, np.float32)))
            start += len(tokens)
        name = " ".join(plain(speaker).split())[:200]
        system.store.append(
            window.id, said, tokenizer=TOKENIZER, now=system.now(), asleep=True, speaker=name or None
        )
        system.recall.note_said()
        system.changed([window.id])
        keys = [str(one.chunk.key) for one in said]
        return MemoryWritten(f"Kept in the window {_WINDOW!r}.", keys, "")

    def forget(self, id: str, *, undo: bool = False) -> MemoryForgotten:
        """A chunk and what goes with it: out of search and every window, or back."""
        system, key = self._system, ChunkKey.parse(id)
        record = system.store.chunk(key)
        keys = [
            one.key
            for one in system.store.chunks_by_key(system.store.deletion_of(key))
            if _changes(one, undo)
        ]
        if not keys:
            state = "is there" if undo else "is forgotten already"
            return MemoryForgotten(f"Nothing changed: chunk {id} {state}.", [])
        windows = system.store.undelete(keys, now=system.now()) if undo else system.delete(keys)
        system.recall.note_said()
        system.changed({record.window, *windows})
        did = "Remembered again" if undo else "Forgotten; undo brings it back"
        return MemoryForgotten(
            f"{did}: {len(keys)} chunk{'s' * (len(keys) > 1)}.", [str(one) for one in keys]
        )

    def status(self) -> LibraryStatus:
        system = self._system
        stats, recall = system.store.stats(), system.recall.status()
        windows = [system.store.window_stats(one.id) for one in system.store.windows()]
        times = [one.last_said for one in windows if one.last_said]
        first = system.store.timeline(limit=1)
        return LibraryStatus(
            stats.turns,
            stats.chunks,
            stats.tokens,
            [
                {
                    "id": one.window.id,
                    "name": one.window.name,
                    "last": one.last_said.isoformat() if one.last_said else "",
                }
                for one in windows
            ],
            stats.entries,
            first[0].said.isoformat() if first else "",
            max(times).isoformat() if times else "",
            recall.get("sentence") or str(recall.get("state", "")),
        )

    def window_text(self, window: str, *, limit: int = 100) -> list[ToldTurn]:
        """The last turns of a window's current branch."""
        return self._told(self._system.store.branch(self._window(window) or "")[-limit:])

    def _window(self, name: str) -> str | None:
        return find_window(self._system.store.windows(), name).id if name else None

    def _tree(self) -> StructuredMemory:
        if self._system.toolbox is None:
            raise BadInput("There is no structured memory here. Write without a path.")
        return self._system.toolbox.tree

    def _told(self, turns: list[TurnRecord]) -> list[ToldTurn]:
        names = self._system.names()
        told = []
        for turn in turns:
            chunks = sorted(self._system.store.turn(turn.id), key=lambda one: one.chunk.start)
            there = [one for one in chunks if not one.gone and THOUGHT not in one.tags]
            if there:
                text = b"".join(one.chunk.tokens.raw for one in there).decode("utf-8", errors="replace")
                ids = [str(one.key) for one in there]
                name = names.get(turn.window, "")
                said = turn.said.isoformat()
                told.append(ToldTurn(ids, str(turn.role), turn.speaker, said, name, turn.window, text))
        return told


def _changes(record: ChunkRecord, undo: bool) -> bool:
    return record.merged_into is None and (record.deleted is not None) == undo


def _moment(text: str, name: str, *, end: bool = False) -> datetime | None:
    """A time, or a day; of an `end` the day counts in. Without a zone it is UTC."""
    if not text.strip():
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadInput(
            f"`{name}` is {text[:40]!r}; a time looks like 2026-01-31 or 2026-01-31T12:00:00Z."
        ) from None
    if end and len(text.strip()) <= 10:
        found = found.replace(hour=23, minute=59, second=59, microsecond=999999)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _place(cursor: str) -> tuple[datetime, int] | None:
    if not cursor:
        return None
    when, _, turn = cursor.partition("|")
    try:
        return datetime.fromisoformat(when).astimezone(UTC), int(turn)
    except ValueError:
        raise BadInput(f"{cursor[:80]!r} is not a cursor. Use the one that the last page gave.") from None
