"""A window as it is worked on: its working set, changed together with the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import RLock
from typing import Any, Literal

import numpy as np

from halo_weave.core.brightness import returning
from halo_weave.core.pruning import PrunePlan, SleepReason
from halo_weave.core.resurrection import (
    PairOrder,
    ResurrectionPlan,
    Sleeper,
    WakeReason,
    Waking,
    choose_resurrections,
    room_for,
)
from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Ids, Role
from halo_weave.core.window import Live, Window
from halo_weave.errors import UnknownChunk
from halo_weave.ports import Engine
from halo_weave.settings import Settings
from halo_weave.store import Asleep, ChunkRecord, WindowRecord, Woken
from halo_weave.weave.events import SleptChunk, WokenChunk
from halo_weave.weave.needs import Memory, Recall, RecallHit
from halo_weave.weave.prompt import Origin, Scribe

By = Literal["recall", "user", "memory"]  # who woke a chunk
CUT = "cut"  # tag of a reply whose process ended before it did
TOOL = "tool"  # tag of a chunk that holds the answer of a tool
MOST_HITS = 200  # what a search gives the plan to choose from


def hits_for(room: int) -> int:
    """As many as could wake up if all were a few words long."""
    return min(MOST_HITS, 16 + room // 8)


@dataclass(frozen=True, slots=True)
class Reading:
    """A sleeping chunk in the tokens of this window's model, with the brightness it had here."""

    record: ChunkRecord
    chunk: Chunk
    earned: Brightness | None  # None: it was never live in this window
    foreign: bool  # said with another tokenizer


@dataclass(frozen=True, slots=True)
class About:
    """Where and when a live chunk was said, and why it woke up if it slept."""

    window: str
    speaker: str
    said: datetime
    woken: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Desk:
    record: WindowRecord
    settings: Settings
    window: Window
    system: Ids
    store: Memory
    engine: Engine
    scribe: Scribe
    names: Mapping[str, str]  # of the windows, by id
    about: dict[ChunkKey, About] = field(default_factory=dict)
    origins: dict[int, Origin] = field(default_factory=dict)  # of the turns that get a stamp
    foreign: set[int] = field(default_factory=set)  # starts of chunks said with another tokenizer
    guard: RLock = field(default_factory=RLock)  # held for each change, so that others see whole states

    @classmethod
    def open(
        cls,
        record: WindowRecord,
        settings: Settings,
        system_prompt: str,
        *,
        store: Memory,
        engine: Engine,
        scribe: Scribe,
        names: Mapping[str, str],
        now: datetime,
    ) -> Desk:
        """Load the working set. Chunks that another model's tokenizer cut are read anew, once."""
        system = scribe.system(system_prompt)
        window = Window(
            strategy=settings.brightness_strategy(),
            system_tokens=len(system),
            frame_tokens=scribe.frame_tokens(stamps=settings.timestamps),
        )
        desk = cls(record, settings, window, system, store, engine, scribe, names)
        live: list[Live] = []
        anew: list[Live] = []
        for one in store.live(record.id):
            item: Live = one
            if engine.info.tokenizer not in ("", one.tokenizer):
                chunk = retokenized(one.chunk, engine)
                item = Live(chunk, np.full(len(chunk), one.peak, np.float32), one.pinned)
                anew.append(item)
            live.append(item)
            desk.note(item.chunk, About(one.window, one.speaker, one.said, one.woken, one.tags))
        if anew:
            store.reread(record.id, anew, tokenizer=engine.info.tokenizer, now=now)
        window.add(live)
        return desk

    @property
    def live_keys(self) -> frozenset[ChunkKey]:
        return frozenset(chunk.key for chunk in self.window.chunks)

    def note(self, chunk: Chunk, about: About) -> None:
        """Where a chunk comes from, and what of it the model is told."""
        self.about[chunk.key] = about
        if len(chunk) != chunk.span:
            self.foreign.add(chunk.start)
        if chunk.key.role is Role.USER and self.settings.timestamps:
            self.origins[chunk.key.turn_id] = Origin(about.said, self._elsewhere(about.window))
            self.window.stamps[chunk.key.turn_id] = self._stamp(about.window)

    def _elsewhere(self, window: str) -> str:
        return "" if window == self.record.id else self.names.get(window, "")

    def _stamp(self, window: str) -> int:
        """Tokens by which the model is told that something was said in another window."""
        name = self._elsewhere(window) if self.settings.timestamps else ""
        return self.scribe.stamp_tokens(name) if name else 0

    def follow_store(self) -> None:
        """Leave out what was deleted or put to sleep meanwhile, by another window or another process."""
        there = {one.key for one in self.store.live(self.record.id)}
        with self.guard:
            self.window.remove([key for key in self.live_keys if key not in there])

    # Falling asleep

    def prune(self, plan: PrunePlan, *, now: datetime) -> tuple[SleptChunk, ...]:
        """The plan's chunks fall asleep: in the store first, then here."""
        asleep = [
            Asleep(
                one.key,
                self.window.at(one.key).brightness,
                {
                    "why": str(one.why),
                    "brightness": one.brightness,
                    "rivals": one.rivals,
                    "budget": plan.budget,
                },
            )
            for one in plan.goes
        ]
        self.store.prune(self.record.id, asleep, now=now)
        with self.guard:
            self.window.remove(plan.keys)
        return tuple(SleptChunk(one.key, one.tokens, one.brightness, one.why) for one in plan.goes)

    def sleep(self, key: ChunkKey, *, now: datetime) -> None:
        """By the user's word: alone, whatever its pairs."""
        reason = {"why": str(SleepReason.USER)}
        self.store.prune(self.record.id, [Asleep(key, self.window.at(key).brightness, reason)], now=now)
        self.window.remove([key])

    # Waking up

    @property
    def scope(self) -> str | None:
        """The window whose talk may wake up here, or None for all."""
        return self.record.id if self.settings.memory_scope == "window" else None

    def room(self, user: int) -> int:
        """Tokens that may wake up next to the user's words and the frames of the exchange."""
        return room_for(
            model_context=self.engine.info.context,
            live=self.window.size + sum(self.window.frame_tokens.values()),
            user=user,
            max_new=self.settings.max_new_tokens,
            max_context=self.settings.max_context_tokens,
            quota=self.settings.resurrection_budget,
        )

    def plan_recall(
        self, text: str, room: int, *, recall: Recall, now: datetime, before: int | None = None
    ) -> tuple[dict[ChunkKey, RecallHit], ResurrectionPlan]:
        """What would wake up for this text: the hits by key, and the plan. Nothing is changed."""
        settings, live = self.settings, self.live_keys
        found = recall.search(
            text,
            window=self.scope,
            limit=hits_for(room) + len(live),  # what is live may well fit best
            now=now,
            user_weight=settings.user_weight,
            mmr_lambda=settings.mmr_lambda,
        )
        found = [hit for hit in found if hit.matters(settings.relevance_floor)]
        sleepers = self.store.sleepers(self.record.id, [hit.key for hit in found if hit.key not in live])
        if before is not None:
            # What another window said after this turn began stands after it in time, and can wake up next turn.
            sleepers = {key: sleeper for key, sleeper in sleepers.items() if sleeper.start < before}
        hits = {hit.key: hit for hit in found if hit.key in sleepers}
        return hits, self._choose(hits.values(), sleepers, room, settings.pairs)

    def plan_snapshot(
        self, keys: Iterable[ChunkKey], room: int, *, before: int | None = None, within: str | None = None
    ) -> ResurrectionPlan:
        """Chunks asked for by name, in the order given, as far as the room goes; of all windows or of one."""
        wanted = list(keys)
        if within is not None:
            own = {record.key for record in self.store.chunks_by_key(wanted) if record.window == within}
            wanted = [key for key in wanted if key in own]
        sleepers = self.store.sleepers(self.record.id, wanted)
        hits = [
            RecallHit(key, 1 - i / len(wanted))
            for i, key in enumerate(wanted)
            if key in sleepers and (before is None or sleepers[key].start < before)
        ]
        return self._choose(hits, sleepers, room, "off")

    def _choose(
        self, hits: Iterable[RecallHit], sleepers: Mapping[ChunkKey, Sleeper], room: int, pairs: PairOrder
    ) -> ResurrectionPlan:
        return choose_resurrections(
            hits,
            sleepers,
            room,
            live=self.live_keys,
            frame_tokens=self.window.frame_tokens,
            stamps={window: self._stamp(window) for window in {one.window for one in sleepers.values()}},
            pairs=pairs,
        )

    def wake(
        self, plan: ResurrectionPlan, hits: Mapping[ChunkKey, RecallHit], *, now: datetime, by: By = "recall"
    ) -> tuple[WokenChunk, ...]:
        """The plan's chunks return to their places: in the store first, then here."""
        mean = float(self.window.brightness.mean()) if len(self.window) else 0.0
        woken = []
        for waking in plan.wakes:
            reading = self.reading(waking.key)
            mode = self.settings.resurrection_brightness
            if reading.earned is None and mode != "fresh":
                # A chunk from another window has earned nothing here: it begins as bright as the others are.
                mode = "hybrid" if len(self.window) else "fresh"
            earned = np.zeros(len(reading.chunk), np.float32) if reading.earned is None else reading.earned
            initial = self.settings.initial_brightness
            brightness = returning(mode, earned, mean=mean, initial=initial)
            woken.append((reading, brightness, _told(waking, reading, hits.get(waking.hit))))
        self._wake(woken, by=by, now=now)
        return tuple(told for _, _, told in woken)

    def wake_by_hand(self, key: ChunkKey, *, now: datetime) -> WokenChunk:
        """The strongest signal there is: brightest, and pinned."""
        reading = self.reading(key)
        brightness = np.full(len(reading.chunk), self.settings.initial_brightness, np.float32)
        told = _told(Waking(key, WakeReason.HIT, key, 1.0, len(reading.chunk)), reading, None)
        self._wake([(reading, brightness, told)], by="user", now=now)
        return told

    def reading(self, key: ChunkKey) -> Reading:
        """A chunk that is not live, in the tokens of this model."""
        earned: Brightness | None
        try:
            sleeping = self.store.sleeping(self.record.id, key)
            record, earned = sleeping.record, sleeping.brightness
        except UnknownChunk:
            record, earned = self.store.chunk(key), None
        if record.gone:
            raise UnknownChunk(f"Chunk {key} was deleted. Undelete it first.")
        chunk = record.chunk
        if record.tokenizer != self.engine.info.tokenizer:
            chunk = retokenized(chunk, self.engine)
            if earned is not None:
                earned = np.full(len(chunk), earned.max(), np.float32)
        return Reading(record, chunk, earned, record.tokenizer != self.engine.info.tokenizer)

    def _wake(
        self, woken: Sequence[tuple[Reading, Brightness, WokenChunk]], *, by: By, now: datetime
    ) -> None:
        pinned = by == "user"
        orders = [
            Woken(
                told.chunk.key,
                brightness,
                {
                    "by": by,
                    "part": str(told.part),
                    "hit": str(told.hit),
                    "similarity": told.similarity,
                    "cost": told.cost,
                    "words": list(told.words),
                    "parts": dict(told.parts),
                },
                pinned,
                tokens=reading.chunk.tokens if reading.foreign else None,
                tokenizer=self.engine.info.tokenizer if reading.foreign else None,
            )
            for reading, brightness, told in woken
        ]
        self.store.wake(self.record.id, orders, now=now)
        with self.guard:
            for (reading, _, _), order in zip(woken, orders, strict=True):
                record = reading.record
                about = About(record.window, record.speaker, record.said, order.reason, record.tags)
                self.note(reading.chunk, about)
            self.window.add(Live(reading.chunk, brightness, pinned) for reading, brightness, _ in woken)


def retokenized(chunk: Chunk, engine: Engine) -> Chunk:
    """The chunk's text in another model's tokens, at the same place in time."""
    return replace(chunk, tokens=engine.tokenize(chunk.text), span=chunk.span)


def _told(waking: Waking, reading: Reading, hit: RecallHit | None) -> WokenChunk:
    return WokenChunk(
        reading.chunk,
        waking.part,
        waking.hit,
        waking.similarity,
        waking.cost,
        hit.words if hit else (),
        dict(hit.parts) if hit else {},
        reading.record.window,
        reading.record.said,
        reading.earned is not None,
    )
