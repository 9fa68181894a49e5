"""An open window: its working set, record and settings; every change goes to the store first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from itertools import pairwise
from threading import RLock
from typing import Any, Literal

import numpy as np

from halo_weave.chat.events import PrunedChunk, ResurrectedChunk
from halo_weave.chat.privacy import ancestor_turns, may_send, plan_private_prune, remote_scope
from halo_weave.chat.prompt import PromptBuilder, SystemPrompt, TurnAnnotation
from halo_weave.chat.recall_plan import (
    NO_OVERRIDES,
    RecallOverrides,
    RecallResult,
    Search,
    annotation_costs,
    recall_scope,
    search_and_plan_recall,
)
from halo_weave.chat.reply import THOUGHT, TOOL, ReplyParser
from halo_weave.chat.views import ChunkView, PrunedGap, PrunedGaps, TokenBudget
from halo_weave.core.brightness import Floats, resurrected_brightness
from halo_weave.core.pruning import PrunePlan, PruneReason
from halo_weave.core.resurrection import (
    PlannedResurrection,
    RecallHit,
    RecallPlan,
    ResurrectReason,
    plan_recall,
    resurrection_room,
)
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk, WorkingSet
from halo_weave.engines.base import NO_FILTER, Engine, SearchFilter, TagFilter
from halo_weave.errors import BadInput, UnknownChunk
from halo_weave.settings import Settings
from halo_weave.store.records import (
    DOCUMENT,
    ChunkMove,
    ResurrectableChunk,
    StoredChunk,
    StoredLiveChunk,
    WindowRecord,
)
from halo_weave.store.sql_store import SqlStore


@dataclass(frozen=True, slots=True)
class ChunkOrigin:
    """Where and when a live chunk was said, and why it was resurrected, if it was."""

    window: str
    speaker: str
    said: datetime
    resurrect_reason: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()


def retokenize(chunk: Chunk, engine: Engine) -> Chunk:
    """The chunk's text in the tokens of another model, at the same positions."""
    return replace(chunk, tokens=engine.tokenize(chunk.text), span=chunk.span)


INTERRUPTED = "cut"  # tag of a reply whose process ended before it did


@dataclass(slots=True)
class OpenWindow:
    record: WindowRecord
    settings: Settings
    working_set: WorkingSet
    system_prompt: SystemPrompt
    store: SqlStore
    engine: Engine
    prompt_builder: PromptBuilder
    window_names: Mapping[str, str]  # of the windows, by id
    calibration: Calibration
    is_private: Callable[[str], bool]
    readable_windows: frozenset[str] | None = (
        None  # windows that everybody who reads this one may read; None: all
    )
    people: frozenset[str] = frozenset()  # the names of the people who write here, if there are several
    chunk_origins: dict[ChunkKey, ChunkOrigin] = field(default_factory=dict)
    annotations: dict[int, TurnAnnotation] = field(
        default_factory=dict
    )  # annotations of turns in the prompt, by turn id
    said_at: dict[int, datetime] = field(default_factory=dict)  # when turns were said, by their ids
    days_with_user_turns: set[date] = field(default_factory=set)  # days of the user's live turns of this chat
    retokenized: set[int] = field(
        default_factory=set
    )  # starts of chunks that were stored with another tokenizer
    unstored_retokenized: list[LiveChunk] = field(
        default_factory=list
    )  # retokenized chunks that are not stored yet
    recently_resurrected: set[ChunkKey] = field(
        default_factory=set
    )  # chunks resurrected since the last ordinary prune
    reply_parser: ReplyParser | None = None  # parser of the reply in progress; None: there is none
    ancestors: Mapping[int, str] | None = (
        None  # turns of other windows that this one branched off after; cached
    )
    replaced_turns: frozenset[int] = frozenset()  # turns that are set aside when the coming turn is stored
    replaced_chunks: tuple[LiveChunk, ...] = ()  # their live chunks
    storage_error: str = ""  # why the reply is not stored yet; empty: it is
    lock: RLock = field(
        default_factory=RLock
    )  # held during each change, so that other threads see consistent states

    @classmethod
    def open(
        cls,
        record: WindowRecord,
        settings: Settings,
        system: SystemPrompt,
        *,
        store: SqlStore,
        engine: Engine,
        prompt_builder: PromptBuilder,
        names: Mapping[str, str],
        calibration: Calibration,
        is_private: Callable[[str], bool],
        readable_windows: frozenset[str] | None = None,
        people: frozenset[str] = frozenset(),
    ) -> OpenWindow:
        """Load the working set. Chunks that another model's tokenizer cut are tokenized again."""
        working_set = WorkingSet(
            strategy=settings.brightness_strategy(calibration),
            system_tokens=len(system),
            frame_tokens=prompt_builder.frame_tokens(),
        )
        shared = (store, engine, prompt_builder, names, calibration, is_private, readable_windows, people)
        open_window = cls(record, settings, working_set, system, *shared)
        live: list[LiveChunk] = []
        for one in store.live(record.id):
            item: LiveChunk = one
            if not open_window._readable(one):
                chunk = retokenize(one.chunk, engine)
                item = LiveChunk(chunk, np.full(len(chunk), one.peak, np.float32), one.pinned)
                open_window.unstored_retokenized.append(item)
            elif open_window._own_traces(one.traces) is not one.traces:
                item = replace(one, traces=None)
            live.append(item)
            open_window.record_origin(
                item.chunk, ChunkOrigin(one.window, one.speaker, one.said, one.resurrect_reason, one.tags)
            )
        working_set.add(live)
        return open_window

    def store_retokenized_chunks(self, *, now: datetime) -> None:
        """Before the first change: store retokenized chunks, so that the open window and the store have the same
        tokens."""
        if self.unstored_retokenized:
            self.store.store_retokenized(
                self.record.id, self.unstored_retokenized, tokenizer=self.engine.info.tokenizer, now=now
            )
            self.unstored_retokenized.clear()

    def _readable(self, one: StoredLiveChunk | StoredChunk) -> bool:
        """Whether the chunk's tokens are valid for this model. The tokenizer's fingerprint is not enough: an imported
        file may lie."""
        info = self.engine.info
        if info.url and self.must_not_send(one.window, one.chunk.key.turn_id):
            return True  # private chunks are not sent: retokenizing them would send them to the server
        fits = info.tokenizer in ("", one.tokenizer)
        return fits and (not info.abilities.token_ids or self.prompt_builder.readable(one.chunk.tokens))

    @property
    def live_keys(self) -> frozenset[ChunkKey]:
        return frozenset(chunk.key for chunk in self.working_set.chunks)

    @property
    def cell_owner(self) -> str:
        """Whose cells this window may use: those of its owner in this memory. Other memories may use the same data folder."""
        return f"{self.store.memory_id()}/{self.record.owner}"

    @property
    def own_turns(self) -> frozenset[int]:
        """The turns that were said in this window, by their ids."""
        here = self.record.id
        return frozenset(key.turn_id for key, origin in self.chunk_origins.items() if origin.window == here)

    def record_origin(self, chunk: Chunk, origin: ChunkOrigin) -> None:
        """Note where a chunk comes from, and the annotation of its turn."""
        if len(chunk) != chunk.span:
            self.retokenized.add(chunk.start)
        turn = chunk.key.turn_id
        known = turn in self.annotations or self.must_not_send(origin.window, turn)
        if not known and (annotation := self.annotation(chunk, origin)):
            self.annotations[turn] = annotation
            self.working_set.annotation_tokens[turn] = self.prompt_builder.annotation_tokens(annotation)
        if origin.window == self.record.id and chunk.key.role is Role.USER and DOCUMENT not in origin.tags:
            self.days_with_user_turns.add(origin.said.astimezone().date())
        self.chunk_origins[chunk.key], self.said_at[turn] = origin, origin.said

    def annotation(self, chunk: Chunk, origin: ChunkOrigin | StoredChunk) -> TurnAnnotation | None:
        """The text around a chunk's turn in the prompt; None for an ordinary turn of this chat.

        Text of another chat or of a file is quoted. The model's own turns are left as they are.
        """
        role, said = chunk.key.role, origin.said if self.settings.timestamps else None
        named = origin.speaker if role is not Role.ASSISTANT and origin.speaker in self.people else ""
        if DOCUMENT in origin.tags:
            return TurnAnnotation.quotation(
                said, role, chat=self._other_chat(origin.window), document=origin.speaker
            )
        if not self._belongs_here(origin.window, chunk.key.turn_id):
            if (
                self.people
                and role is Role.USER
                and self.store.window(origin.window).owner != self.record.owner
            ):
                named = origin.speaker
            return TurnAnnotation.quotation(said, role, chat=self._other_chat(origin.window), speaker=named)
        if role is Role.ASSISTANT:
            return None
        return TurnAnnotation.said(named, origin.said if self._starts_new_day(origin.said) else None)

    def extend_annotation(self, turn_id: int, before: str, after: str) -> None:
        """Set the text that the model reads around a message of this chat."""
        known = self.annotations.get(turn_id) or TurnAnnotation("")
        annotation = TurnAnnotation(known.before + before, known.after + after, known.quoted)
        with self.lock:
            self.annotations[turn_id] = annotation
            self.working_set.annotation_tokens[turn_id] = self.prompt_builder.annotation_tokens(annotation)

    def next_message_annotation(self, speaker: str, now: datetime) -> TurnAnnotation | None:
        """The annotation of the user's next message, if it is sent now."""
        named = speaker if speaker in self.people else ""
        return TurnAnnotation.said(named, now if self._starts_new_day(now) else None)

    def _belongs_here(self, window: str, turn_id: int) -> bool:
        """Whether a turn belongs to this chat: it was said here, or this chat branched off after it."""
        return window == self.record.id or turn_id in self._ancestor_turns

    @property
    def _ancestor_turns(self) -> Mapping[int, str]:
        if self.ancestors is None:
            self.ancestors = ancestor_turns(self.store, self.record.id, frozenset({self.record.id}))
        return self.ancestors

    def _starts_new_day(self, said: datetime) -> bool:
        """Whether a message is the first of its day among the live turns of this chat."""
        return self.settings.timestamps and said.astimezone().date() not in self.days_with_user_turns

    def _own_traces(self, traces: Floats | None) -> Floats | None:
        """The stored traces of a chunk, if they are those of this window's strategy."""
        return traces if traces is not None and len(traces) == len(self.working_set.strategy.traces) else None

    def _other_chat(self, window: str) -> str:
        return "" if window == self.record.id else self.window_names.get(window, "")

    def annotation_tokens(self, window: str, role: Role) -> int:
        """Tokens of the text that marks a chunk as a quotation from another chat."""
        if window == self.record.id:
            return 0
        said = datetime(2026, 12, 30) if self.settings.timestamps else None
        return self.prompt_builder.annotation_tokens(
            TurnAnnotation.quotation(said, role, chat=self._other_chat(window))
        )

    def drop_missing_chunks(self) -> None:
        """Remove chunks that another window or process has deleted or pruned meanwhile."""
        there = {one.key for one in self.store.live(self.record.id)}
        with self.lock:
            self.working_set.remove([key for key in self.live_keys if key not in there])

    def hide_replaced_turns(self, turns: frozenset[int]) -> None:
        """Remove turns that the coming turn replaces; they are not resurrected either."""
        with self.lock:
            self.replaced_turns = turns
            self.replaced_chunks = self.working_set.remove(
                [key for key in self.live_keys if key.turn_id in turns]
            )

    def restore_replaced(self) -> None:
        """No turn has replaced these turns: put them back, as far as the store still has them live."""
        there = {one.key for one in self.store.live(self.record.id)} if self.replaced_chunks else set()
        with self.lock:
            self.working_set.add(live for live in self.replaced_chunks if live.chunk.key in there)
            self.replaced_turns, self.replaced_chunks = frozenset(), ()

    # Prune

    def prune(self, plan: PrunePlan, *, now: datetime) -> tuple[PrunedChunk, ...]:
        """Prune the plan's chunks: in the store first, then here."""
        moves = [
            ChunkMove(
                one.key,
                (live := self.working_set.at(one.key)).brightness,
                {
                    "why": str(one.why),
                    "brightness": one.brightness,
                    "rivals": one.rivals,
                    "budget": plan.budget,
                },
                live.traces,
            )
            for one in plan.chunks
        ]
        self.store.prune(self.record.id, moves, now=now)
        with self.lock:
            self.working_set.remove(plan.keys)
        return tuple(PrunedChunk(one.key, one.tokens, one.brightness, one.why) for one in plan.chunks)

    def prune_by_user(self, key: ChunkKey, *, now: datetime) -> None:
        """Prune a chunk because the user asked for it, without its pair."""
        live = self.working_set.at(key)
        reason = {"why": str(PruneReason.USER), "pinned": live.pinned}
        self.store.prune(self.record.id, [ChunkMove(key, live.brightness, reason, live.traces)], now=now)
        self.working_set.remove([key])

    # Resurrect

    @property
    def recallable_windows(self) -> frozenset[str] | None:
        """The windows whose chunks may be resurrected here; None: all."""
        return self._scope()[0]

    def _scope(self) -> tuple[frozenset[str] | None, Mapping[ChunkKey, int]]:
        """These windows, and tagged chunks of other windows that may be resurrected, too."""
        apart = remote_scope(self.settings, self.engine.info) == "window"
        return recall_scope(self.store, self.record, self.settings, self.readable_windows, apart=apart)

    def may_read(self, window_id: str) -> bool:
        """Whether the model of this window may read the text of another one."""
        own = window_id == self.record.id
        known = self.readable_windows is None or window_id in self.readable_windows
        return own or (known and may_send(self.settings, self.engine.info, window_id, self.is_private))

    def must_not_send(self, window_id: str, turn_id: int) -> bool:
        """Whether the model may not read a turn. Turns that this window branched off after belong to it."""
        return not self.may_read(window_id) and turn_id not in self._ancestor_turns

    def search_and_plan(
        self,
        text: str,
        room: int,
        *,
        search: Search,
        now: datetime,
        before: int | None = None,
        only: SearchFilter = NO_FILTER,
        overrides: RecallOverrides = NO_OVERRIDES,
    ) -> RecallResult:
        """Search with this text, and plan what to resurrect."""
        scope, chunks = self._scope()
        ancestors = {} if scope is None else ancestor_turns(self.store, self.record.id, scope)
        if scope is not None:
            scope |= set(ancestors.values())
            only = only.with_tag(TagFilter(scope, chunks))
        return search_and_plan_recall(
            text,
            room,
            self.settings,
            store=self.store,
            search=search,
            now=now,
            window_id=self.record.id,
            live=self.live_keys,
            before=before,
            frame_tokens=self.working_set.frame_tokens,
            annotation_tokens=self.annotation_tokens,
            replaced_turns=self.replaced_turns,
            ancestor_turns=ancestors,
            only=only,
            overrides=overrides,
            may_read=self.may_read,
            owner=self.record.owner,
        )

    def plan_resurrection_of(
        self, keys: Iterable[ChunkKey], room: int, *, before: int | None = None
    ) -> RecallPlan:
        """Plan to resurrect chunks by key, in the order given, as far as the room goes. A window with a limited scope
        gets only its own."""
        wanted = list(keys)
        if (scope := self.recallable_windows) is not None:
            own = {one.key for one in self.store.chunks_by_key(wanted) if one.window in scope}
            ancestors = ancestor_turns(self.store, self.record.id, scope)
            wanted = [key for key in wanted if key in own or key.turn_id in ancestors]
        candidates = self.store.recall_candidates(self.record.id, wanted)
        candidates = {
            key: one for key, one in candidates.items() if not self.must_not_send(one.window, key.turn_id)
        }
        if not self.settings.recall_thoughts:
            candidates = {key: candidate for key, candidate in candidates.items() if not candidate.thought}
        hits = [
            RecallHit(key, 1 - i / len(wanted))
            for i, key in enumerate(wanted)
            if key in candidates and (before is None or candidates[key].start < before)
        ]
        return plan_recall(
            hits,
            candidates,
            room,
            live=self.live_keys,
            frame_tokens=self.working_set.frame_tokens,
            annotation_tokens=annotation_costs(candidates.values(), self.annotation_tokens),
            pairs="off",
        )

    def resurrect(
        self,
        plan: RecallPlan,
        hits: Mapping[ChunkKey, RecallHit],
        *,
        now: datetime,
        by: Literal["recall", "memory"] = "recall",
    ) -> tuple[ResurrectedChunk, ...]:
        """Resurrect the plan's chunks at their original positions: in the store first, then here."""
        mean = float(self.working_set.brightness.mean()) if len(self.working_set) else 0.0
        chunks = self.resurrectable(plan.keys)
        brightness = {}
        for key, one in chunks.items():
            mode = self.settings.resurrection_brightness
            if one.brightness is None and mode != "fresh":
                # A chunk from another window has no brightness here: it begins with the mean of the others.
                mode = "hybrid" if len(self.working_set) else "fresh"
            earned = np.zeros(len(one.chunk), np.float32) if one.brightness is None else one.brightness
            brightness[key] = resurrected_brightness(
                mode, earned, mean=mean, initial=self.settings.initial_brightness
            )
        return self._resurrect(plan.chunks, chunks, brightness, hits, by=by, now=now)

    def resurrect_by_user(self, key: ChunkKey, *, now: datetime, pinned: bool = True) -> ResurrectedChunk:
        """Resurrect a chunk that the user asked for, with the brightness it had, and by default pin it."""
        chunks = self.resurrectable([key])
        size, brightness = len(chunks[key].chunk), chunks[key].brightness
        if brightness is None:
            brightness = np.full(size, self.settings.initial_brightness, np.float32)
        planned = PlannedResurrection(key, ResurrectReason.HIT, key, 1.0, size)
        return self._resurrect([planned], chunks, {key: brightness}, {}, by="user", now=now, pinned=pinned)[0]

    def was_pinned(self, key: ChunkKey) -> bool:
        """Whether a pruned chunk was pinned when the user pruned it."""
        # The stored name of the event is "slept".
        prunes = (
            event for event in self.store.history(window=self.record.id, key=key) if event.event == "slept"
        )
        return bool(next((event.detail.get("pinned") for event in prunes), False))

    def recent_turns(self) -> set[int]:
        """The turns of the last exchanges, which are never pruned."""
        turns = self.working_set.turns
        asked = [turn_id for turn_id, role in turns if role is Role.USER][
            -self.settings.protect_recent_exchanges :
        ]
        return {turn_id for turn_id, _ in turns if turn_id >= min(asked, default=0)}

    def resurrectable(self, keys: Iterable[ChunkKey]) -> dict[ChunkKey, ResurrectableChunk]:
        """Chunks that are not live, in the tokens of this model."""
        wanted = list(keys)
        found = self.store.resurrectable_chunks(self.record.id, wanted)
        chunks = {}
        for key in wanted:
            if key not in found or found[key].record.gone or not self._may_resurrect_here(found[key]):
                raise UnknownChunk(
                    f"Chunk {key} cannot be resurrected: it does not exist, or it was deleted. Restore it first."
                )
            chunks[key] = self._in_own_tokens(found[key])
        return chunks

    def _in_own_tokens(self, one: ResurrectableChunk) -> ResurrectableChunk:
        if self._readable(one.record):
            return replace(one, traces=self._own_traces(one.traces))
        chunk, brightness = retokenize(one.chunk, self.engine), one.brightness
        if brightness is not None:
            brightness = np.full(len(chunk), brightness.max(), np.float32)
        return ResurrectableChunk(replace(one.record, chunk=chunk), brightness, retokenized=True)

    def _may_resurrect_here(self, one: ResurrectableChunk) -> bool:
        """Whether a chunk may be live here: it was before, this window branched off after its turn, or everybody who
        reads this window may read it."""
        if (
            self.readable_windows is None
            or one.record.window in self.readable_windows
            or one.brightness is not None
        ):
            return True
        return one.key.turn_id in ancestor_turns(self.store, self.record.id, self.readable_windows)

    def _resurrect(
        self,
        planned: Iterable[PlannedResurrection],
        chunks: Mapping[ChunkKey, ResurrectableChunk],
        brightness: Mapping[ChunkKey, Brightness],
        hits: Mapping[ChunkKey, RecallHit],
        *,
        by: Literal["recall", "user", "memory"],
        now: datetime,
        pinned: bool = False,
    ) -> tuple[ResurrectedChunk, ...]:
        moves, reasons = [], {}
        for one in planned:
            chunk, hit = chunks[one.key], hits.get(one.hit)
            reason = reasons[one] = {
                "by": "user" if by == "recall" and hit is None else by,  # requested by key
                "part": str(one.reason),
                "hit": str(one.hit),
                "similarity": one.similarity,
                "cost": one.cost,
                "words": list(hit.words) if hit else [],
                "parts": dict(hit.parts) if hit else {},
            }
            tokens = chunk.chunk.tokens if chunk.retokenized else None
            tokenizer = self.engine.info.tokenizer if chunk.retokenized else None
            moves.append(
                ChunkMove(one.key, brightness[one.key], reason, chunk.traces, pinned, tokens, tokenizer)
            )
        self.store.resurrect(self.record.id, moves, now=now)
        with self.lock:
            live = []
            for one, reason in reasons.items():
                chunk, record = chunks[one.key], chunks[one.key].record
                origin = ChunkOrigin(record.window, record.speaker, record.said, reason, record.tags)
                self.record_origin(chunk.chunk, origin)
                live.append(LiveChunk(chunk.chunk, brightness[one.key], pinned, traces=chunk.traces))
            self.working_set.add(live)
        return tuple(self._resurrected_chunk(one, chunks[one.key], reason) for one, reason in reasons.items())

    def _resurrected_chunk(
        self, planned: PlannedResurrection, chunk: ResurrectableChunk, reason: Mapping[str, Any]
    ) -> ResurrectedChunk:
        view, record = self.chunk_view(planned.key), chunk.record
        return ResurrectedChunk(
            view.chunk,
            view.brightness,
            view.pinned,
            view.resurrect_reason,
            view.tool,
            view.thought,
            self._gap_before(planned.key),
            part=planned.reason,
            hit=planned.hit,
            similarity=planned.similarity,
            cost=planned.cost,
            words=tuple(reason["words"]),
            parts=reason["parts"],
            window=record.window,
            window_name=self.window_names.get(record.window, ""),
            speaker=record.speaker,
            said=record.said,
            pruned_here=chunk.brightness is not None,
            document=DOCUMENT in record.tags,
        )

    # Views

    def chunk_view(
        self, key: ChunkKey, gap: PrunedGap | None = None, thoughts: int = 0, rank: int | None = None
    ) -> ChunkView:
        """A live chunk as it is now."""
        live, origin = self.working_set.at(key), self.chunk_origins[key]
        tool, thought = TOOL in origin.tags, THOUGHT in origin.tags
        bright = (
            np.full_like(live.brightness, self.settings.initial_brightness)
            if live.pinned
            else live.brightness
        )
        return ChunkView(
            live.chunk, bright, live.pinned, origin.resurrect_reason, tool, thought, gap, thoughts, rank
        )

    def _gap_before(self, key: ChunkKey) -> PrunedGap | None:
        starts, at = [chunk.start for chunk in self.working_set.chunks], self.working_set.at(key).chunk.start
        chunks, tokens = self.store.count_pruned(
            self.record.id, max((one for one in starts if one < at), default=0), at
        )
        return PrunedGap(chunks, tokens) if chunks else None

    def gaps(self) -> PrunedGaps:
        """The pruned chunks between the live ones."""
        starts, sizes = self.store.pruned_positions(self.record.id)
        with self.lock:
            live = list(self.working_set.chunks)
        # The number of pruned chunks before each live one; the difference of two neighbours is the gap between them.
        places = np.searchsorted(starts, [chunk.start for chunk in live])
        edges = np.concatenate([[0], places, [len(starts)]]).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(sizes)])
        between = [
            PrunedGap(int(stop - start), int(sums[stop] - sums[start])) if stop > start else None
            for start, stop in pairwise(edges)
        ]
        before = {chunk.key: gap for chunk, gap in zip(live, between, strict=False) if gap}
        thoughts = {
            chunk.key: count
            for chunk in live
            if chunk.key in before and (count := self._thoughts_before(chunk))
        }
        return PrunedGaps(before, between[-1], PrunedGap(len(starts), int(sums[-1])), thoughts)

    def _thoughts_before(self, chunk: Chunk) -> int:
        """How many pruned thoughts come right before the opening of an answer."""
        if chunk.key.role is not Role.ASSISTANT or chunk.key.chunk_id:
            return 0
        return sum(
            THOUGHT in one.tags and not one.gone and one.key not in self.working_set
            for one in self.store.turn(chunk.key.turn_id)
        )

    @property
    def frame_token_count(self) -> int:
        """Tokens of all frames."""
        return self.working_set.size - self.working_set.system_tokens - len(self.working_set)

    @property
    def reply_room(self) -> int:
        """Tokens of the model's context that are kept free for the reply."""
        return self.settings.reply_room(self.engine.info.context)

    @property
    def context_budget(self) -> int:
        """The dimmest chunks are pruned when more tokens than these are live; 0: never."""
        return self.settings.live_limit(self.engine.info.context)

    def budget(self) -> TokenBudget:
        """Where the tokens of the context go."""
        working_set, limit, context = self.working_set, self.context_budget, self.engine.info.context
        pinned = sum(len(chunk) for chunk in working_set.chunks if chunk.key in working_set.pinned)
        most = min(limit or context, context - self.reply_room)
        return TokenBudget(
            limit,
            context,
            working_set.system_tokens,
            pinned,
            len(working_set) - pinned,
            self.frame_token_count,
            self.reply_room,
            max(0, most - working_set.size),
        )


def context_room(open_window: OpenWindow, live: int) -> int:
    """Tokens that the model's context leaves for a message, next to the reply's room and the frames of this exchange."""
    frames = sum(open_window.working_set.frame_tokens.values())
    return open_window.engine.info.context - live - open_window.reply_room - frames


def recall_room(open_window: OpenWindow, user: int, *, given: bool = False) -> int:
    """Tokens that may be resurrected beside the user's message and the frames of the exchange.

    `given`: other chunks may be pruned for them, so only what cannot be pruned takes room.
    """
    if given:
        return context_room(open_window, _unprunable_tokens(open_window)) - user
    working_set, settings = open_window.working_set, open_window.settings
    return resurrection_room(
        model_context=open_window.engine.info.context,
        live=working_set.size + sum(working_set.frame_tokens.values()),
        user=user,
        max_new=open_window.reply_room,
        max_context=open_window.context_budget,
        quota=settings.resurrection_budget,
    )


def checked_message(open_window: OpenWindow, text: str) -> Tokens:
    """The tokens of the message. Refused if it does not fit beside what is never pruned."""
    said = open_window.engine.tokenize(text)
    working_set, reply = open_window.working_set, open_window.reply_room
    pinned = sum(len(chunk) for chunk in working_set.chunks if chunk.key in working_set.pinned)
    room = context_room(open_window, working_set.system_tokens + pinned)
    if room < 1:
        raise BadInput(
            f"There is no room for a message: of the model's {open_window.engine.info.context} tokens the system prompt "
            f"takes {working_set.system_tokens}, pinned chunks {pinned}, the reply up to {reply}. "
            "Shorten the system prompt, unpin something, or lower max_new_tokens."
        )
    if len(said) > room:
        raise BadInput(
            f"Your message has {len(said)} tokens, and there is room for {room} next to the system prompt, "
            f"pinned chunks and a reply of {reply}. Send it in parts, or lower max_new_tokens."
        )
    return said


def _unprunable_tokens(open_window: OpenWindow) -> int:
    """Tokens that are never pruned: the system prompt, and pinned chunks with the frames of their turns."""
    working_set = open_window.working_set
    pinned = [chunk for chunk in working_set.chunks if chunk.key in working_set.pinned]
    frames = {chunk.key.turn_id: working_set.frame_tokens.get(chunk.key.role, 0) for chunk in pinned}
    return working_set.system_tokens + sum(len(chunk) for chunk in pinned) + sum(frames.values())


def prune_private_chunks(open_window: OpenWindow, *, now: datetime) -> tuple[PrunedChunk, ...]:
    """Prune every live chunk that may not be sent to a remote model, including pinned ones."""
    keys = ((live, live.chunk.key) for live in open_window.working_set)
    plan = plan_private_prune(
        live
        for live, key in keys
        if open_window.must_not_send(open_window.chunk_origins[key].window, key.turn_id)
    )
    return open_window.prune(plan, now=now) if plan.chunks else ()
