"""Windows that share one memory, and all that a user can do with them. The skins call nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Literal

import numpy as np

from halo_weave.core.pruning import choose_prunes
from halo_weave.core.resurrection import ResurrectionPlan
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.window import Live, chunk_turn
from halo_weave.errors import BadInput, StoreError, UnknownChunk, UnknownWindow, WindowBusy
from halo_weave.ports import Engine
from halo_weave.settings import SHARED, Settings, checked, known
from halo_weave.store import ChunkRecord, Page, Sleeping, WindowRecord, WindowStats
from halo_weave.weave.context import Context, Deletion, Gap, SeenChunk, Why, glimpse, see
from halo_weave.weave.desk import CUT, Desk
from halo_weave.weave.events import Event, SleptChunk, WokenChunk
from halo_weave.weave.needs import Memory, Recall, RecallHit, Toolbox
from halo_weave.weave.prompt import Scribe
from halo_weave.weave.turn import Turn

DEFAULT_PROMPT = "You are a helpful assistant with a long memory. Answer plainly and briefly."


@dataclass(frozen=True, slots=True)
class Found:
    """A hit of a search with the chunk it found."""

    hit: RecallHit
    record: ChunkRecord
    live: bool  # in the window that asked


@dataclass(frozen=True, slots=True)
class Preview:
    """What would wake up if this were said."""

    plan: ResurrectionPlan
    hits: Mapping[ChunkKey, RecallHit]
    texts: Mapping[ChunkKey, str]


class Weave:
    def __init__(
        self,
        engine: Engine,
        store: Memory,
        recall: Recall,
        toolbox: Toolbox | None = None,
        *,
        defaults: Settings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.engine, self.store, self.recall, self.toolbox = engine, store, recall, toolbox
        self.now = now
        self._defaults = defaults or Settings()
        self._scribe = Scribe(engine)
        self._pen = ThreadPoolExecutor(1, "halo-weave-drafts")
        self._locks: dict[str, Lock] = {}
        self._turns: dict[str, Turn] = {}
        self._recover()

    def close(self) -> None:
        """Stop what is being written and let go of everything. What was said so far is kept."""
        for window_id in self.generating():
            self.abort(window_id)
        for lock in list(self._locks.values()):
            if lock.acquire(timeout=30):
                lock.release()
        self._pen.shutdown()
        if self.toolbox:
            self.toolbox.close()
        self.recall.close()
        self.engine.close()
        self.store.close()

    def clear(self) -> None:
        """Delete everything, unless something is being said."""
        with ExitStack() as held:
            windows = [record.id for record in self.store.windows()]
            for window_id in windows:
                held.enter_context(self._alone(window_id))
            self.store.clear(confirm=True)
            for window_id in windows:
                self.engine.forget(window_id)
        self.recall.forget()

    # Windows and settings

    def windows(self) -> list[WindowStats]:
        found = []
        for record in self.store.windows():
            with suppress(UnknownWindow):  # cleared meanwhile
                found.append(self.store.window_stats(record.id))
        return found

    def window(self, window_id: str) -> WindowRecord:
        record = self.store.window(window_id)
        if record.deleted is not None:
            raise UnknownWindow(f"Window {record.name!r} was deleted.")
        return record

    def create_window(
        self,
        name: str,
        *,
        system_prompt: str = DEFAULT_PROMPT,
        user_name: str = "User",
        ai_name: str = "AI",
        settings: Mapping[str, Any] | None = None,
    ) -> WindowRecord:
        return self.store.create_window(
            _named(name),
            now=self.now(),
            system_prompt=_plain(system_prompt),
            user_name=_named(user_name),
            ai_name=_named(ai_name),
            settings=_checked(settings or {}),
        )

    def change_window(
        self,
        window_id: str,
        *,
        name: str | None = None,
        system_prompt: str | None = None,
        user_name: str | None = None,
        ai_name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        reset: Sequence[str] = (),
    ) -> WindowRecord:
        """Change what is given. Settings to `reset` go back to those that all windows share."""
        self.window(window_id)
        return self.store.change_window(
            window_id,
            now=self.now(),
            name=None if name is None else _named(name),
            system_prompt=None if system_prompt is None else _plain(system_prompt),
            user_name=None if user_name is None else _named(user_name),
            ai_name=None if ai_name is None else _named(ai_name),
            settings=_checked(settings or {}, reset),
            reset=reset,
        )

    def delete_window(self, window_id: str) -> None:
        """The window goes; what was said in it stays in memory."""
        with self._alone(window_id):
            self.window(window_id)
            self.store.delete_window(window_id, now=self.now())
            self.engine.forget(window_id)

    def settings(self, window_id: str | None = None) -> Settings:
        shared = self._defaults.restored(self.store.settings().get(SHARED))
        return shared if window_id is None else shared.restored(self.window(window_id).settings)

    def change_settings(self, changes: Mapping[str, Any], reset: Sequence[str] = ()) -> Settings:
        """Settings for all windows that do not have their own."""
        self.store.change_settings(SHARED, _checked(changes, reset), reset, now=self.now())
        return self.settings()

    # The turn

    def say(self, window_id: str, text: str) -> Iterator[Event]:
        """One turn, event by event. It goes on as long as the caller asks for the next one."""
        text = _plain(text)
        if not text.strip():
            raise BadInput("There is nothing to say. Write something first.")
        began = time.perf_counter()
        with self._alone(window_id):
            self._recover(held=window_id)
            turn = Turn(
                self._desk(window_id),
                text,
                engine=self.engine,
                store=self.store,
                recall=self.recall,
                toolbox=self.toolbox,
                scribe=self._scribe,
                pen=self._pen,
                now=self.now,
                began=began,
            )
            self._turns[window_id] = turn
            try:
                yield from turn.run()
            finally:
                del self._turns[window_id]

    def abort(self, window_id: str) -> bool:
        """Stop the reply at its next token. What was said so far stays."""
        turn = self._turns.get(window_id)
        if turn is not None:
            turn.flag.set()
        return turn is not None

    def generating(self) -> list[str]:
        return list(self._turns)

    # Looking

    def context(self, window_id: str) -> Context:
        turn = self._turns.get(window_id)
        desk = turn.desk if turn is not None else self._desk(window_id)
        return see(desk, self.store.asleep_places(window_id))

    def glimpse(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, SeenChunk]:
        """Chunks that are live while a turn is made, as they are at this moment."""
        turn = self._turns.get(window_id)
        return glimpse(turn.desk if turn is not None else self._desk(window_id), keys)

    def graveyard(
        self,
        window_id: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: Literal["position", "slept", "peak", "tokens"] = "slept",
        descending: bool = True,
        role: Role | None = None,
        text: str | None = None,
    ) -> Page:
        self.window(window_id)
        return self.store.graveyard(
            window_id, offset=offset, limit=limit, sort=sort, descending=descending, role=role, text=text
        )

    def gap(
        self, window_id: str, after: int, before: int, *, offset: int = 0, limit: int = 200
    ) -> tuple[Gap, list[Sleeping]]:
        """What sleeps between two positions: how much, and some of it in time order."""
        self.window(window_id)
        starts, sizes = self.store.asleep_places(window_id)
        inside = (starts >= after) & (starts < before)
        first = starts[inside][offset : offset + 1]
        found = self.store.asleep_between(window_id, int(first[0]), before, limit) if len(first) else []
        return Gap(int(inside.sum()), int(sizes[inside].sum())), found

    def why(self, window_id: str, key: ChunkKey) -> Why:
        record = self.store.chunk(key)
        history = tuple(self.store.history(window=window_id, key=key))
        turn = self._turns.get(window_id)
        desk = turn.desk if turn is not None else self._desk(window_id)
        live = key in desk.window
        brightness = desk.window.at(key).brightness if live else None
        if brightness is None:
            try:
                brightness = self.store.sleeping(window_id, key).brightness
            except UnknownChunk:
                brightness = None
        return Why(
            key,
            record.chunk.text,
            len(record.chunk),
            live,
            key in desk.window.pinned,
            None if brightness is None else float(brightness.max()),
            None if brightness is None else float(brightness.mean()),
            record.said,
            record.window,
            record.speaker,
            history,
        )

    def search(
        self, text: str, *, window_id: str | None = None, only_window: bool = False, limit: int = 50
    ) -> list[Found]:
        """All of memory, or what was said in one window."""
        settings = self.settings(window_id)
        hits = self.recall.search(
            _plain(text),
            window=window_id if only_window else None,
            limit=limit,
            now=self.now(),
            user_weight=settings.user_weight,
            mmr_lambda=settings.mmr_lambda,
        )
        live = frozenset(one.key for one in self.store.live(window_id)) if window_id else frozenset()
        records = {record.key: record for record in self.store.chunks_by_key([hit.key for hit in hits])}
        return [Found(hit, records[hit.key], hit.key in live) for hit in hits if hit.key in records]

    def preview(self, window_id: str, text: str) -> Preview:
        """What would wake up for this text, while it is being typed. Nothing is changed."""
        text = _plain(text)
        turn = self._turns.get(window_id)
        desk = turn.desk if turn is not None else self._desk(window_id)
        room = desk.room(len(self.engine.tokenize(text)))
        if room <= 0 or not text.strip():
            return Preview(ResurrectionPlan(max(0, room), 0, ()), {}, {})
        hits, plan = desk.plan_recall(text, room, recall=self.recall, now=self.now())
        texts = {record.key: record.chunk.text for record in self.store.chunks_by_key(plan.keys)}
        return Preview(plan, hits, texts)

    def status(self) -> dict[str, Any]:
        """The parts of the system and how they are."""
        return {
            "model": self.engine.info,
            "embedder": dict(self.recall.status()),
            "memory": self.store.stats(),
            "generating": self.generating(),
        }

    # The user's signals

    def pin(self, window_id: str, key: ChunkKey) -> None:
        with self._alone(window_id):
            bright = self.settings(window_id).initial_brightness
            self.store.pin(window_id, key, now=self.now(), brightness=bright)

    def unpin(self, window_id: str, key: ChunkKey) -> None:
        with self._alone(window_id):
            self.store.unpin(window_id, key, now=self.now())

    def sleep(self, window_id: str, key: ChunkKey) -> None:
        with self._alone(window_id):
            self._desk(window_id).sleep(key, now=self.now())

    def wake(self, window_id: str, key: ChunkKey) -> WokenChunk:
        """Back to its place, brightest, and pinned."""
        with self._alone(window_id):
            desk = self._desk(window_id)
            if key in desk.window:
                raise BadInput(f"Chunk {key} is awake already.")
            return desk.wake_by_hand(key, now=self.now())

    def merge(self, window_id: str, key: ChunkKey) -> ChunkKey:
        with self._alone(window_id):
            into = self.store.merge(window_id, key, now=self.now())
        self.recall.note_said()
        return into

    def would_delete(self, window_id: str, key: ChunkKey) -> Deletion:
        keys = self.store.deletion_of(key)
        records = [record for record in self.store.chunks_by_key(keys) if not record.gone]
        text = None
        newest = max((one.key.turn_id for one in self.store.live(window_id)), default=None)
        if newest in {record.key.turn_id for record in records}:
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
        """Out of search for ever, unless undeleted; what goes along is said."""
        with self._alone(window_id):
            deletion = self.would_delete(window_id, key)
            return replace(deletion, windows=self.store.delete(deletion.keys, now=self.now()))

    def undelete(self, window_id: str, keys: Sequence[ChunkKey]) -> tuple[str, ...]:
        """Deleted chunks can be found again, and are in every window what they were. Returns where they are live."""
        with self._alone(window_id):
            windows = self.store.undelete(keys, now=self.now())
        self.recall.note_said()
        return windows

    def inject(self, window_id: str, path: str) -> tuple[tuple[WokenChunk, ...], tuple[SleptChunk, ...]]:
        """The chunks that explain a memory return to their places, on at most half of the window's budget.

        What is dimmest makes room for them. A window that recalls only its own gets only its own. Returns both.
        """
        if self.toolbox is None:
            raise BadInput("There is no structured memory here.")
        keys = self.toolbox.snapshot(path, now=self.now())
        with self._alone(window_id):
            desk = self._desk(window_id)
            budget = desk.settings.max_context_tokens or self.engine.info.context
            wanted = desk.plan_snapshot(keys, budget // 2, within=desk.scope).cost
            prunes = choose_prunes(desk.window, budget - wanted)
            slept = desk.prune(prunes, now=self.now()) if wanted and prunes.goes else ()
            left = self.engine.info.context - desk.settings.max_new_tokens
            room = min(budget, left) - desk.window.size
            plan = desk.plan_snapshot(keys, max(0, room), within=desk.scope)
            return desk.wake(plan, {}, now=self.now(), by="memory"), slept

    # Inside

    @contextmanager
    def _alone(self, window_id: str) -> Iterator[None]:
        """One turn or change at a time in a window. Nobody waits: the user is told."""
        lock = self._locks.setdefault(window_id, Lock())
        if not lock.acquire(blocking=False):
            raise WindowBusy("This window is being written to. Stop the reply first, or wait for it.")
        try:
            yield
        finally:
            lock.release()

    def _desk(self, window_id: str) -> Desk:
        record = self.window(window_id)
        settings = self.settings(window_id)
        prompt = record.system_prompt
        if self.toolbox and settings.memory_tree_in_prompt and settings.tool_rounds:
            prompt = f"{prompt}\n\n{self.toolbox.instructions()}".strip()
        return Desk.open(
            record,
            settings,
            prompt,
            store=self.store,
            engine=self.engine,
            scribe=self._scribe,
            names={window.id: window.name for window in self.store.windows(deleted=True)},
            now=self.now(),
        )

    def _recover(self, held: str | None = None) -> None:
        """Replies that a killed process left unfinished become turns, as far as they were stored.

        `held`: also those of this process in a window where nothing is being said, because the store refused the end.
        """
        for draft in self.store.drafts(now=self.now(), held=held):
            settings = self._defaults
            chunks = chunk_turn(
                draft.tokens,
                draft.turn_id,
                Role.ASSISTANT,
                draft.start,
                draft.answers,
                min_chunk_tokens=settings.min_chunk_tokens,
            )
            live = [
                Live(chunk, np.full(len(chunk), settings.initial_brightness, np.float32)) for chunk in chunks
            ]
            cut = {chunk.key: [CUT] for chunk in chunks}
            try:
                self.store.append(draft.window, live, tokenizer=draft.tokenizer, now=draft.saved, tags=cut)
            except (StoreError, UnknownWindow):
                continue  # it stays a draft, for the next time
            except BadInput:
                self.store.drop_draft(draft.turn_id)  # another process was faster


def _checked(changes: Mapping[str, Any], reset: Sequence[str] = ()) -> dict[str, Any]:
    for name in reset:
        known(name)
    return {name: checked(name, value) for name, value in changes.items()}


def _plain(text: str) -> str:
    """Text as it can be stored: no NUL, no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", errors="replace").decode("utf-8")


def _named(name: str) -> str:
    name = " ".join(_plain(name).split())
    if not 1 <= len(name) <= 200:
        raise BadInput("A name has 1 to 200 characters.")
    return name
