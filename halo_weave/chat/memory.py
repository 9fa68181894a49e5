"""Operations on all of memory: search, preview of recall, export, import, embedding, and those behind the MCP tools."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import IO, Any, Literal

import numpy as np

from halo_weave.chat.events import INTERNAL_ERROR_MESSAGE
from halo_weave.chat.export import ExportFormat, export_conversations
from halo_weave.chat.prefetch import Prefetcher
from halo_weave.chat.recall_plan import (
    NO_OVERRIDES,
    RecallOverrides,
    is_related_hit,
    search_and_plan_recall,
    tag_filter,
)
from halo_weave.chat.reply import THOUGHT
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.turn_runner import storable_text
from halo_weave.chat.windows import find_window
from halo_weave.core.chunking import TOKENIZER, split_into_chunks
from halo_weave.core.resurrection import (
    PlannedResurrection,
    RecallHit,
    RecallPlan,
    ResurrectReason,
)
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Chunk, ChunkKey, Role
from halo_weave.core.working_set import LiveChunk
from halo_weave.engines.base import NO_FILTER, ModelInfo, SearchFilter
from halo_weave.errors import BadInput, EmbedderOff, HaloWeaveError, UnknownChunk, WindowBusy
from halo_weave.store.records import ExportFilter, ImportResult, MemoryStats, StoredChunk, TurnRecord, Vectors

log = logging.getLogger(__name__)
WAIT = 60.0  # seconds for the embedder to be there
STOP_TIMEOUT = 5.0  # seconds to wait for a running re-embedding when the program closes
# Makes all vectors with the embedder of this name (None: the one in use), and reports progress: what, how much, of how much.
Reembed = Callable[[str | None, Callable[[str, int, int], None]], None]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search hit with the chunk that was found."""

    hit: RecallHit
    record: StoredChunk
    live: bool  # whether it is live in the window that asked
    part: ResurrectReason = ResurrectReason.HIT
    tags: tuple[str, ...] = ()  # the tags of the person who asks


@dataclass(frozen=True, slots=True)
class TagCount:
    """A tag, and how many windows and chunks have it."""

    tag: str
    windows: int
    chunks: int


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token at its position."""

    position: int
    id: int
    text: str
    key: ChunkKey


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be resurrected for a message."""

    plan: RecallPlan
    hits: Mapping[ChunkKey, RecallHit]
    texts: Mapping[ChunkKey, str]
    tokens: int  # of the text itself
    near: tuple[PlannedResurrection, ...] = ()  # not similar enough to be resurrected automatically
    tokens_to_prune: int = 0  # tokens that would be pruned first, if room is made


class _Closing(Exception):
    """The program is ending."""


@dataclass(frozen=True, slots=True)
class EmbeddingState:
    """How many chunks have an up-to-date vector; while an embedder is downloaded, how many of its bytes have arrived."""

    state: Literal["idle", "running", "off", "failed"]
    model: str
    done: int
    total: int
    message: str


@dataclass(frozen=True, slots=True)
class ImportState:
    """How much of a file is imported; `total` is 0 while it is unknown."""

    state: Literal["idle", "running"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """The state of the model, the embedder and the memory."""

    model: ModelInfo
    embedder: Mapping[str, Any]
    memory: MemoryStats
    calibration: Calibration


class Memory:
    """`weave.memory`."""

    def __init__(self, runtime: Runtime, embed_anew: Reembed | None, prefetcher: Prefetcher) -> None:
        """`embed_anew` makes all vectors by the embedder that was chosen; None if there is none."""
        self._runtime, self._embed_anew, self._prefetcher = runtime, embed_anew, prefetcher
        self._embedding: EmbeddingState | None = None  # state of re-embedding with another embedder
        self._building: Thread | None = None
        self._closed = False
        self._importing: ImportState | None = None

    def within(self, runtime: Runtime) -> Memory:
        """The same operations, limited to what the person of this runtime may see and change."""
        other = copy(self)
        other._runtime = runtime
        return other

    # Looking

    def search(
        self,
        text: str,
        *,
        window_id: str | None = None,
        only_window: bool = False,
        tag: str = "",
        limit: int = 50,
        only: SearchFilter = NO_FILTER,
    ) -> list[SearchResult]:
        """Search all of memory, or by window, speaker, time or tag (of the chunk or of its window).

        Chunks that have nothing to do with the text are left out, even if they are the best hits.
        """
        runtime = self._runtime
        only = self._narrowed(only, window_id if only_window else None, tag)
        settings = runtime.settings(runtime.window(window_id) if window_id else None)
        hits = runtime.search(
            storable_text(text),
            window=window_id if only_window else None,
            limit=limit,
            now=runtime.now(),
            user_weight=settings.user_weight,
            only=only,
        )
        live = runtime.window_for_reading(window_id).live_keys if window_id else frozenset()
        records = {record.key: record for record in runtime.store.chunks_by_key([hit.key for hit in hits])}
        found = [hit for hit in hits if hit.key in records and is_related_hit(hit)]
        tags = runtime.store.chunk_tags([hit.key for hit in found])
        return [
            SearchResult(hit, records[hit.key], hit.key in live, tags=tags.get(hit.key, ())) for hit in found
        ]

    def would_resurrect(
        self,
        text: str,
        budget: int,
        *,
        window_id: str | None = None,
        only_window: bool = False,
        tag: str = "",
        only: SearchFilter = NO_FILTER,
    ) -> tuple[list[SearchResult], int]:
        """What a turn with this text would resurrect within a token budget, in the order of the plan, with token
        counts."""
        runtime, text = self._runtime, storable_text(text)
        only = self._narrowed(only, window_id if only_window else None, tag)
        if window_id:
            open_window = runtime.window_for_reading(window_id)
            hits, plan, *_ = open_window.search_and_plan(
                text, budget, search=runtime.search, now=runtime.now(), only=only
            )
        else:
            hits, plan, *_ = search_and_plan_recall(
                text,
                budget,
                runtime.settings(None),
                store=runtime.store,
                search=runtime.search,
                now=runtime.now(),
                only=only,
            )
        records = {record.key: record for record in runtime.store.chunks_by_key(plan.keys)}
        tags = runtime.store.chunk_tags(plan.keys)
        found = [
            SearchResult(
                hits.get(chunk.key) or RecallHit(chunk.key, chunk.similarity),
                records[chunk.key],
                live=False,
                part=chunk.reason,
                tags=tags.get(chunk.key, ()),
            )
            for chunk in plan.chunks
        ]
        return found, plan.cost

    def _narrowed(self, only: SearchFilter, window_id: str | None, tag: str) -> SearchFilter:
        if window_id:
            only = only.within(frozenset({window_id}))
        return only.with_tag(tag_filter(self._runtime.store, [tag])) if tag else only

    def tags(self) -> list[TagCount]:
        """All tags of windows and chunks, sorted."""
        windows = Counter(tag for window in self._runtime.store.windows() for tag in window.tags)
        chunks = self._runtime.store.tag_counts()
        return [
            TagCount(tag, windows[tag], chunks.get(tag, 0)) for tag in sorted(windows.keys() | chunks.keys())
        ]

    def preview(
        self, window_id: str, text: str, overrides: RecallOverrides = NO_OVERRIDES, *, prefetch: bool = False
    ) -> Preview:
        """What would be resurrected for this text while it is being typed. Nothing is changed. `prefetch`: also prefetch
        the next prompt, if the settings allow it."""
        text, open_window = storable_text(text), self._runtime.window_for_reading(window_id)
        tokens = len(open_window.engine.tokenize(text))
        room = open_window.recall_room(tokens, may_prune_others=overrides.room)
        speaker = self._runtime.speaker_name(open_window.record) if prefetch else ""
        if prefetch and room <= 0 and text.strip():
            self._prefetcher.request(window_id, text, speaker=speaker)
        if room <= 0 or not text.strip():
            return Preview(RecallPlan(max(0, room), 0, ()), {}, {}, tokens)
        runtime = self._runtime
        hits, plan, near, *_ = open_window.search_and_plan(
            text, room, search=runtime.search, now=runtime.now(), overrides=overrides
        )
        if prefetch:
            self._prefetcher.request(window_id, text, plan.keys, speaker)
        told = [*plan.keys, *(one.key for one in (*near, *plan.passed_over))]
        texts = {record.key: record.chunk.text for record in runtime.store.chunks_by_key(told)}
        over = max(0, tokens + plan.cost - open_window.context_room(open_window.working_set.size))
        return Preview(plan, hits, texts, tokens, near, over if overrides.room else 0)

    def embed(self, texts: Sequence[str]) -> tuple[str, Vectors]:
        """The embedder's name, and these texts embedded as search queries."""
        embedder = self._runtime.memory_search.embedder(WAIT)
        if embedder is None:
            raise EmbedderOff(
                "There is no embedder: search goes by words. Start with --embedder to have one."
            )
        return embedder.name, embedder.embed(texts)

    def tokens(self, first: int, stop: int) -> list[PlacedToken]:
        """The tokens at these positions, without those of deleted chunks."""
        found = []
        for record in self._runtime.store.chunks_between(first, stop):
            chunk = record.chunk
            if record.gone or len(chunk) != chunk.span:
                continue
            for i, piece in enumerate(chunk.tokens.pieces()):
                if first <= chunk.start + i < stop:
                    text = piece.decode("utf-8", errors="replace")
                    found.append(PlacedToken(chunk.start + i, int(chunk.tokens.ids[i]), text, record.key))
        return found

    def check(self) -> None:
        """Raise an error if the memory cannot be read."""
        self._runtime.store.sequence()

    def stats(self) -> MemoryStats:
        return self._runtime.store.stats()

    def status(self) -> SystemStatus:
        runtime = self._runtime
        return SystemStatus(
            runtime.engine.info, runtime.memory_search.status(), runtime.store.stats(), runtime.calibration
        )

    # Out of and into files

    @property
    def folder(self) -> Path:
        """The folder for temporary files, beside the memory."""
        return self._runtime.store.folder

    @property
    def place(self) -> str:
        """Where the memory is: its folder, or its address."""
        store = self._runtime.store
        return store.place if "://" in store.place else str(store.folder)

    def export(self, write: Callable[[str], object], *, subset: ExportFilter, vectors: bool) -> None:
        """Export the memory, or part of it, as JSON."""
        self._runtime.store.export(write, now=self._runtime.now(), subset=subset, vectors=vectors)

    def tell(self, write: Callable[[str], object], form: ExportFormat, window_id: str | None = None) -> None:
        """One window or all of them in the form of another program."""
        export_conversations(self._runtime.store, write, form, window_id)

    def import_file(self, source: IO[bytes]) -> ImportResult:
        """Import the conversations in a file of any known program. What is stored already is skipped."""

        def progress(done: int, total: int) -> None:
            self._importing = ImportState("running", done, total)

        progress(0, 0)
        try:
            brought = self._runtime.store.import_open_file(source, now=self._runtime.now(), progress=progress)
        finally:
            self._importing = None
        self._runtime.split_long_chunks()
        self._runtime.remove_timestamps()
        self._runtime.memory_search.embed_soon()
        return brought

    def importing(self) -> ImportState:
        """The progress of the running import."""
        return self._importing or ImportState("idle", 0, 0)

    def clear(self) -> None:
        """Delete everything. Refused while a reply is generated."""
        runtime = self._runtime
        windows = [record.id for record in runtime.store.windows()]
        with ExitStack() as held:
            try:
                for window_id in windows:
                    held.enter_context(runtime.exclusive(window_id))
            except WindowBusy:
                raise WindowBusy("A reply is being written. Stop it first.") from None
            runtime.store.clear(confirm=True)
            for window_id in windows:
                for engine in runtime.engines:
                    engine.forget(window_id)
        runtime.delete_recordings()
        runtime.memory_search.forget()
        runtime.publish_deleted(windows)

    # Vectors

    def embedding(self) -> EmbeddingState:
        """The progress of embedding."""
        if self._embedding is not None:
            return self._embedding
        now, total = self._runtime.memory_search.status(), self._runtime.store.stats().chunks
        state, wanted = now["state"], now.get("wanted", 0)
        busy = state == "loading" or wanted > 0
        return EmbeddingState(
            "off" if state == "off" else "running" if busy else "idle",
            now.get("model", ""),
            max(0, total - wanted),
            total,
            now.get("sentence", ""),
        )

    def embed_anew(self, embedder: str | None = None) -> EmbeddingState:
        """Every chunk is embedded again, in the background, by another embedder if one is named.

        Search goes on with the vectors that are there; the new ones are used when all of them are made.
        """
        now = self.embedding()
        if self._building is not None and self._building.is_alive():
            if embedder is None:
                return now
            raise WindowBusy(
                "Another embedder is on its way already. Wait until everything is embedded by it."
            )
        if now.state == "running" and embedder is None:
            return now
        older = self._runtime.memory_search.status().get("older") and self._embed_anew is not None
        if now.state == "idle" and embedder is None and not older:
            store = self._runtime.store
            store.request_embeddings([place.number for place in store.chunk_places()])
            self._runtime.memory_search.embed_soon()
            return self.embedding()
        if self._embed_anew is None:
            raise EmbedderOff(now.message or "There is no embedder: search goes by words.")
        begun = self._embedding = EmbeddingState("running", embedder or "", 0, now.total, "")
        work = (self._embed_anew, embedder)
        self._building = Thread(target=self._build, args=work, name="reindex", daemon=True)
        self._building.start()
        return begun

    def close(self) -> None:
        """Stop re-embedding; the vectors made so far are kept."""
        self._closed = True
        if self._building is not None:
            self._building.join(STOP_TIMEOUT)

    def _build(self, embed_anew: Reembed, embedder: str | None) -> None:
        """Make the vectors of another embedder, and use them once they are complete."""

        def progress(what: str, done: int, total: int) -> None:
            if self._closed:
                raise _Closing
            self._embedding = EmbeddingState("running", embedder or "", done, total, what)

        try:
            embed_anew(embedder, progress)
            self._runtime.memory_search.reopen()
            self._embedding = None
        except _Closing:
            pass
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            if not known:
                log.exception("Embedding failed.")
            self._embedding = EmbeddingState(
                "failed", "", 0, 0, str(error) if known else INTERNAL_ERROR_MESSAGE
            )


_MOST_HITS = 200  # hits that a search considers
_PAGE = 20  # turns of a timeline
_AROUND = 5  # turns on each side of a chunk
_LONGEST = 100_000  # characters of a write
_WINDOW = "Other programs"  # the window that holds what MCP clients write

# Values for MCP clients. Without slots: the MCP library cannot make schemas of classes with slots.


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
    next_offset: int | None  # where the next page begins; None: this is the last page


@dataclass(frozen=True)
class MemoryTurn:
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
    turns: list[MemoryTurn]  # its turn and the turns around it, in order


@dataclass(frozen=True)
class Timeline:
    turns: list[MemoryTurn]
    next_cursor: str | None


@dataclass(frozen=True)
class MemoryWritten:
    message: str
    ids: list[str]  # keys of the chunks, if the text was stored as a message
    path: str  # path of the entry, if it was saved


@dataclass(frozen=True)
class MemoryForgotten:
    message: str
    ids: list[str]


@dataclass(frozen=True)
class MemoryStatus:
    turns: int
    chunks: int
    tokens: int
    windows: list[dict[str, str]]  # id, name, last
    entries: int
    first: str
    last: str
    search: str


class McpMemory:
    """`weave.library`: the operations behind the MCP tools. Thoughts, deleted chunks and other branches are left out."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

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
        """The best hits for the query, as many as fit into the token budget; at least one."""
        runtime, query = self._runtime, storable_text(query)
        if not query.strip():
            raise BadInput("The query is empty. Say in words what to look for.")
        window_id, begin, end = (
            self._window(window),
            _moment(since, "since"),
            _moment(until, "until", end=True),
        )
        settings = runtime.settings()
        only = SearchFilter(since=begin, before=end + timedelta(microseconds=1) if end else None)
        hits = runtime.search(
            query,
            window=window_id,
            limit=_MOST_HITS,
            now=runtime.now(),
            user_weight=settings.user_weight,
            only=only,
        )
        # A search needs memory, whatever its words are. Earlier questions answer nothing.
        hits = [hit for hit in hits if is_related_hit(hit) and "asking" not in hit.parts]
        records = {one.key: one for one in runtime.store.chunks_by_key(hit.key for hit in hits)}
        names = runtime.window_names()
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
        """A chunk with the turns around it."""
        if not 0 <= around <= _AROUND:
            raise BadInput(f"`around` is {around}; it goes from 0 to {_AROUND}.")
        store, key = self._runtime.store, ChunkKey.parse(id)
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
            following = [follower for follower in store.followers(at.id, at.window) if not follower.aside]
            if not following:
                break
            at = following[0]
            after.append(at)
        return MemoryPassage(id, record.chunk.text, self._memory_turns([*before, turn, *after]))

    def timeline(
        self, *, since: str = "", until: str = "", window: str = "", cursor: str = "", limit: int = _PAGE
    ) -> Timeline:
        """Turns in order of time."""
        if not 1 <= limit <= 100:
            raise BadInput(f"`limit` is {limit}; it goes from 1 to 100.")
        turns = self._runtime.store.timeline(
            since=_moment(since, "since"),
            until=_moment(until, "until", end=True),
            window=self._window(window),
            after=_place(cursor),
            limit=limit + 1,
        )
        shown, more = turns[:limit], len(turns) > limit
        last = f"{shown[-1].said.isoformat()}|{shown[-1].id}" if more else None
        return Timeline(self._memory_turns(shown), last)

    def write(self, text: str, *, path: str = "", speaker: str = "") -> MemoryWritten:
        """Store a text in memory; with a path, save it in the structured memory."""
        runtime, text = self._runtime, storable_text(text)
        if not text.strip() or len(text) > _LONGEST:
            raise BadInput(f"The text has {len(text):,} characters; it needs 1 to {_LONGEST:,}.")
        if path:
            entry = self._tree().save(path, text, now=runtime.now())
            return MemoryWritten(f"Saved under {entry.path}.", [], entry.path)
        window = next((one for one in runtime.store.windows() if one.name == _WINDOW), None)
        if window is None:
            window = runtime.store.create_window(_WINDOW, now=runtime.now())
        chunks = split_into_chunks([("answer", text)])
        ids = runtime.store.reserve(sum(len(tokens) for tokens, _ in chunks))
        said, start = [], ids.start
        bright = runtime.settings(window).initial_brightness
        for number, (tokens, _) in enumerate(chunks):
            chunk = Chunk(ChunkKey(ids.user_turn, number, Role.USER), start, tokens)
            said.append(LiveChunk(chunk, np.full(len(tokens), bright, np.float32)))
            start += len(tokens)
        name = " ".join(storable_text(speaker).split())[:200]
        runtime.store.append(
            window.id, said, tokenizer=TOKENIZER, now=runtime.now(), asleep=True, speaker=name or None
        )
        runtime.memory_search.embed_soon()
        runtime.publish_changed([window.id])
        keys = [str(one.chunk.key) for one in said]
        return MemoryWritten(f"Kept in the window {_WINDOW!r}.", keys, "")

    def forget(self, id: str, *, undo: bool = False) -> MemoryForgotten:
        """Delete a chunk and what belongs to it, or undelete them."""
        runtime, key = self._runtime, ChunkKey.parse(id)
        record = runtime.store.chunk(key)
        keys = [
            one.key
            for one in runtime.store.chunks_by_key(runtime.store.deletion_of(key))
            if _changes(one, undo)
        ]
        if not keys:
            state = "is there" if undo else "is forgotten already"
            return MemoryForgotten(f"Nothing changed: chunk {id} {state}.", [])
        windows = runtime.store.undelete(keys, now=runtime.now()) if undo else runtime.delete(keys)
        runtime.memory_search.embed_soon()
        runtime.publish_changed({record.window, *windows})
        did = "Remembered again" if undo else "Forgotten; undo brings it back"
        return MemoryForgotten(
            f"{did}: {len(keys)} chunk{'s' * (len(keys) > 1)}.", [str(one) for one in keys]
        )

    def status(self) -> MemoryStatus:
        runtime = self._runtime
        stats, recall = runtime.store.stats(), runtime.memory_search.status()
        windows = [runtime.store.window_stats(window.id) for window in runtime.store.windows()]
        times = [one.last_said for one in windows if one.last_said]
        first = runtime.store.timeline(limit=1)
        return MemoryStatus(
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

    def window_text(self, window: str, *, limit: int = 100) -> list[MemoryTurn]:
        """The last turns of a window's current branch."""
        return self._memory_turns(self._runtime.store.branch(self._window(window) or "")[-limit:])

    def _window(self, name: str) -> str | None:
        return find_window(self._runtime.store.windows(), name).id if name else None

    def _tree(self) -> StructuredMemory:
        if self._runtime.toolbox is None:
            raise BadInput("There is no structured memory here. Write without a path.")
        return self._runtime.toolbox.tree

    def _memory_turns(self, turns: list[TurnRecord]) -> list[MemoryTurn]:
        names = self._runtime.window_names()
        told = []
        for turn in turns:
            chunks = sorted(self._runtime.store.turn(turn.id), key=lambda one: one.chunk.start)
            there = [chunk for chunk in chunks if not chunk.gone and THOUGHT not in chunk.tags]
            if there:
                text = b"".join(one.chunk.tokens.raw for one in there).decode("utf-8", errors="replace")
                ids = [str(one.key) for one in there]
                name = names.get(turn.window, "")
                said = turn.said.isoformat()
                told.append(MemoryTurn(ids, str(turn.role), turn.speaker, said, name, turn.window, text))
        return told


def _changes(record: StoredChunk, undo: bool) -> bool:
    return record.merged_into is None and (record.deleted is not None) == undo


def _moment(text: str, name: str, *, end: bool = False) -> datetime | None:
    """A time or a day, UTC if no zone is given. As an `end`, a day includes the whole day."""
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
