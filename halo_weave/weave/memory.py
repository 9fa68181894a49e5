"""What was ever said, in all windows: searched, exported, imported, embedded, cleared."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any, Literal

from halo_weave.core.heads import Calibration
from halo_weave.core.resurrection import RecallHit, ResurrectionPlan, WakeReason, Waking
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import EmbedderOff, HaloWeaveError, WindowBusy
from halo_weave.ports import EVERYTHING, ModelInfo, Only
from halo_weave.records import ChunkRecord, Imported, Stats, Subset, Vectors
from halo_weave.weave.ahead import ReadAhead
from halo_weave.weave.events import INTERNAL
from halo_weave.weave.exports import ExportFormat, tell
from halo_weave.weave.room import model_room, wake_room
from halo_weave.weave.system import System
from halo_weave.weave.turns import plain
from halo_weave.weave.waking import NO_WISH, WakeWish, plan_waking, stands_out, tagged

log = logging.getLogger(__name__)
WAIT = 60.0  # seconds for the embedder to be there
LEAVE = 5.0  # seconds that embedding anew gets to end with the program
# All vectors made by the embedder of this name, None: by the one in use. Told what is being done, how much, of how much.
EmbedAnew = Callable[[str | None, Callable[[str, int, int], None]], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A hit of a search with the chunk it found."""

    hit: RecallHit
    record: ChunkRecord
    live: bool  # in the window that asked
    part: WakeReason = WakeReason.HIT
    tags: tuple[str, ...] = ()  # of whoever asks


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
    """What would wake up if this were said."""

    plan: ResurrectionPlan
    hits: Mapping[ChunkKey, RecallHit]
    texts: Mapping[ChunkKey, str]
    tokens: int  # of the text itself
    near: tuple[Waking, ...] = ()  # too unlike the text to wake up by itself
    sleeps: int = 0  # tokens that would have to sleep first, if room is made


class _Ending(Exception):
    """The program ends."""


@dataclass(frozen=True, slots=True)
class EmbeddingState:
    """How many chunks have the vector they should have; while an embedder is downloaded, how many of its bytes are here."""

    state: Literal["idle", "running", "off", "failed"]
    model: str
    done: int
    total: int
    sentence: str


@dataclass(frozen=True, slots=True)
class ImportState:
    """How much of a file is imported; `total` is 0 while that is not known."""

    state: Literal["idle", "running"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """The state of the model, the embedder and the memory."""

    model: ModelInfo
    embedder: Mapping[str, Any]
    memory: Stats
    calibration: Calibration


class WeaveMemory:
    """`weave.memory`."""

    def __init__(self, system: System, embed_anew: EmbedAnew | None, ahead: ReadAhead) -> None:
        """`embed_anew` makes all vectors by the embedder that was chosen; None if there is none."""
        self._system, self._embed_anew, self._ahead = system, embed_anew, ahead
        self._embedding: EmbeddingState | None = None  # by another embedder, under way or failed
        self._building: Thread | None = None
        self._closed = False
        self._importing: ImportState | None = None

    def within(self, system: System) -> WeaveMemory:
        """The same memory, for someone who reaches only a part of the system."""
        other = copy(self)
        other._system = system
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
        only: Only = EVERYTHING,
    ) -> list[Found]:
        """All of memory, or what was said in one window, by someone, at some time, or has a tag, by itself or its window.

        What has nothing to do with the text is not found, though it may be the best there is.
        """
        system = self._system
        only = self._narrowed(only, window_id if only_window else None, tag)
        settings = system.settings(system.window(window_id) if window_id else None)
        hits = system.recall.search(
            plain(text),
            window=window_id if only_window else None,
            limit=limit,
            now=system.now(),
            user_weight=settings.user_weight,
            mmr_lambda=settings.mmr_lambda,
            only=only,
        )
        live = system.desk(window_id).live_keys if window_id else frozenset()
        records = {record.key: record for record in system.store.chunks_by_key([hit.key for hit in hits])}
        found = [hit for hit in hits if hit.key in records and stands_out(hit)]
        tags = system.store.chunk_tags([hit.key for hit in found])
        return [Found(hit, records[hit.key], hit.key in live, tags=tags.get(hit.key, ())) for hit in found]

    def would_wake(
        self,
        text: str,
        budget: int,
        *,
        window_id: str | None = None,
        only_window: bool = False,
        tag: str = "",
        only: Only = EVERYTHING,
    ) -> tuple[list[Found], int]:
        """What would wake up within a budget, in the order it is taken, and what it costs: as in a turn."""
        system, text = self._system, plain(text)
        only = self._narrowed(only, window_id if only_window else None, tag)
        if window_id:
            desk = system.desk(window_id)
            hits, plan, _ = desk.plan_recall(text, budget, recall=system.recall, now=system.now(), only=only)
        else:
            hits, plan, _ = plan_waking(
                text,
                budget,
                system.settings(None),
                store=system.store,
                recall=system.recall,
                now=system.now(),
                only=only,
            )
        records = {record.key: record for record in system.store.chunks_by_key(plan.keys)}
        tags = system.store.chunk_tags(plan.keys)
        found = [
            Found(
                hits.get(one.key) or RecallHit(one.key, one.similarity),
                records[one.key],
                live=False,
                part=one.part,
                tags=tags.get(one.key, ()),
            )
            for one in plan.wakes
        ]
        return found, plan.cost

    def _narrowed(self, only: Only, window_id: str | None, tag: str) -> Only:
        if window_id:
            only = only.within(frozenset({window_id}))
        return only.with_tag(tagged(self._system.store, [tag])) if tag else only

    def tags(self) -> list[TagCount]:
        """All tags of windows and chunks, in order."""
        windows = Counter(tag for one in self._system.store.windows() for tag in one.tags)
        chunks = self._system.store.tag_counts()
        return [
            TagCount(tag, windows[tag], chunks.get(tag, 0)) for tag in sorted(windows.keys() | chunks.keys())
        ]

    def preview(self, window_id: str, text: str, wish: WakeWish = NO_WISH, *, ahead: bool = False) -> Preview:
        """What would wake up for this text, while it is being typed. Nothing is changed.

        `ahead`: the model makes ready for it, as far as the settings let it.
        """
        text, desk = plain(text), self._system.desk(window_id)
        tokens = len(desk.engine.tokenize(text))
        room = wake_room(desk, tokens, given=wish.room)
        speaker = self._system.speaks_as(desk.record) if ahead else ""
        if ahead and room <= 0 and text.strip():
            self._ahead.wish(window_id, text, speaker=speaker)
        if room <= 0 or not text.strip():
            return Preview(ResurrectionPlan(max(0, room), 0, ()), {}, {}, tokens)
        system = self._system
        hits, plan, near = desk.plan_recall(text, room, recall=system.recall, now=system.now(), wish=wish)
        if ahead:
            self._ahead.wish(window_id, text, plan.keys, speaker)
        told = [*plan.keys, *(one.key for one in (*near, *plan.passed_over))]
        texts = {one.key: one.chunk.text for one in system.store.chunks_by_key(told)}
        over = max(0, tokens + plan.cost - model_room(desk, desk.window.size))
        return Preview(plan, hits, texts, tokens, near, over if wish.room else 0)

    def embed(self, texts: Sequence[str]) -> tuple[str, Vectors]:
        """The embedder's name, and the vectors of these texts as questions to memory would have them."""
        embedder = self._system.recall.embedder(WAIT)
        if embedder is None:
            raise EmbedderOff(
                "There is no embedder: search goes by words. Start with --embedder to have one."
            )
        return embedder.name, embedder.embed(texts)

    def tokens(self, first: int, stop: int) -> list[PlacedToken]:
        """What was said at these positions, token by token; what was deleted is left out."""
        found = []
        for record in self._system.store.chunks_between(first, stop):
            chunk = record.chunk
            if record.gone or len(chunk) != chunk.span:
                continue
            for i, piece in enumerate(chunk.tokens.pieces()):
                if first <= chunk.start + i < stop:
                    text = piece.decode("utf-8", errors="replace")
                    found.append(PlacedToken(chunk.start + i, int(chunk.tokens.ids[i]), text, record.key))
        return found

    def check(self) -> None:
        """An error if the memory cannot be read."""
        self._system.store.sequence()

    def stats(self) -> Stats:
        return self._system.store.stats()

    def status(self) -> SystemStatus:
        system = self._system
        return SystemStatus(
            system.engine.info, system.recall.status(), system.store.stats(), system.calibration
        )

    # Out of and into files

    @property
    def folder(self) -> Path:
        """A place for files that are on their way, beside the memory."""
        return self._system.store.folder

    @property
    def place(self) -> str:
        """Where the memory is: its folder, or its address."""
        store = self._system.store
        return store.place if "://" in store.place else str(store.folder)

    def export(self, write: Callable[[str], object], *, subset: Subset, vectors: bool) -> None:
        """The memory, or a part of it, as JSON."""
        self._system.store.export(write, now=self._system.now(), subset=subset, vectors=vectors)

    def tell(self, write: Callable[[str], object], form: ExportFormat, window_id: str | None = None) -> None:
        """One window or all of them in the form of another program."""
        tell(self._system.store, write, form, window_id)

    def import_file(self, source: IO[bytes]) -> Imported:
        """Add the conversations in a file, of whichever program. What is here already stays as it is."""

        def progress(done: int, total: int) -> None:
            self._importing = ImportState("running", done, total)

        progress(0, 0)
        try:
            brought = self._system.store.import_open_file(source, now=self._system.now(), progress=progress)
        finally:
            self._importing = None
        self._system.divide_long()
        self._system.remove_stamps()
        self._system.recall.note_said()
        return brought

    def importing(self) -> ImportState:
        """How far an import is."""
        return self._importing or ImportState("idle", 0, 0)

    def clear(self) -> None:
        """Delete everything, unless something is being said."""
        system = self._system
        windows = [record.id for record in system.store.windows()]
        with ExitStack() as held:
            try:
                for window_id in windows:
                    held.enter_context(system.alone(window_id))
            except WindowBusy:
                raise WindowBusy("A reply is being written. Stop it first.") from None
            system.store.clear(confirm=True)
            for window_id in windows:
                for engine in system.engines:
                    engine.forget(window_id)
        system.drop_tapes()
        system.recall.forget()
        system.dropped(windows)

    # Vectors

    def embedding(self) -> EmbeddingState:
        """How far embedding is."""
        if self._embedding is not None:
            return self._embedding
        now, total = self._system.recall.status(), self._system.store.stats().chunks
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

        Search goes on with the vectors that are there; the others serve when all of them are made.
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
        older = self._system.recall.status().get("older") and self._embed_anew is not None
        if now.state == "idle" and embedder is None and not older:
            store = self._system.store
            store.want_again([place.number for place in store.outline()])
            self._system.recall.note_said()
            return self.embedding()
        if self._embed_anew is None:
            raise EmbedderOff(now.sentence or "There is no embedder: search goes by words.")
        begun = self._embedding = EmbeddingState("running", embedder or "", 0, now.total, "")
        work = (self._embed_anew, embedder)
        self._building = Thread(target=self._build, args=work, name="reindex", daemon=True)
        self._building.start()
        return begun

    def close(self) -> None:
        """Leave embedding anew; what is done of it is kept."""
        self._closed = True
        if self._building is not None:
            self._building.join(LEAVE)

    def _build(self, embed_anew: EmbedAnew, embedder: str | None) -> None:
        """The vectors of another embedder; once they are there, they serve."""

        def progress(what: str, done: int, total: int) -> None:
            if self._closed:
                raise _Ending
            self._embedding = EmbeddingState("running", embedder or "", done, total, what)

        try:
            embed_anew(embedder, progress)
            self._system.recall.reopen()
            self._embedding = None
        except _Ending:
            pass
        except Exception as error:
            known = isinstance(error, HaloWeaveError)
            if not known:
                log.exception("Embedding failed.")
            self._embedding = EmbeddingState("failed", "", 0, 0, str(error) if known else INTERNAL)
