"""The in-memory state of one window. Every change is written to the store first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
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
    hits_in_order,
    recall_scope,
    search_and_plan_recall,
)
from halo_weave.chat.reply import THOUGHT, TOOL, ReplyParser
from halo_weave.chat.views import ChunkView, PrunedGap, PrunedGaps, TokenBudget
from halo_weave.core.brightness import Floats, resurrected_brightness
from halo_weave.core.informativeness import asks_about_time
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


INTERRUPTED = "cut"  # tag of a reply that is incomplete because the program ended while it was generated


@dataclass(slots=True)
class OpenWindow:
    record: WindowRecord
    settings: Settings
    working_set: WorkingSet
    system_prompt: SystemPrompt
    store: SqlStore
    engine: Engine
    prompt_builder: PromptBuilder
    window_names: Mapping[str, str]  # by window id
    calibration: Calibration
    is_private: Callable[[str], bool]
    # Ids of the windows that everybody who reads this one may read; None: all.
    readable_by_readers: frozenset[str] | None = None
    people: frozenset[str] = frozenset()  # the names of the people who write here, if there are several

    # What is known about the live chunks, beside the working set.
    chunk_origins: dict[ChunkKey, ChunkOrigin] = field(default_factory=dict)
    annotations: dict[int, TurnAnnotation] = field(default_factory=dict)  # by turn id
    said_at: dict[int, datetime] = field(default_factory=dict)  # by turn id
    retokenized: set[int] = field(
        default_factory=set
    )  # start positions of chunks stored with another tokenizer
    retokenized_unstored: list[LiveChunk] = field(default_factory=list)  # tokenized again, and not stored yet
    # Chunks that were resurrected since chunks of any age were pruned last (`Turn._plan_prune`).
    recently_resurrected: set[ChunkKey] = field(default_factory=set)
    # Turns of other windows that this one branched off after, and those windows; None: not loaded yet.
    ancestors: Mapping[int, str] | None = None

    # The running turn.
    reply_parser: ReplyParser | None = None  # parser of the reply in progress
    replaced_turns: frozenset[int] = frozenset()  # turns that leave the branch when the new turn is stored
    replaced_chunks: tuple[LiveChunk, ...] = ()  # their live chunks
    storage_error: str = ""  # why the reply is not stored yet; empty: it is

    # Held while live chunks, their annotations or the reply change, so that other threads see consistent states.
    lock: RLock = field(default_factory=RLock)

    @classmethod
    def open(
        cls,
        record: WindowRecord,
        settings: Settings,
        system_prompt: SystemPrompt,
        *,
        store: SqlStore,
        engine: Engine,
        prompt_builder: PromptBuilder,
        window_names: Mapping[str, str],
        calibration: Calibration,
        is_private: Callable[[str], bool],
        readable_by_readers: frozenset[str] | None = None,
        people: frozenset[str] = frozenset(),
    ) -> OpenWindow:
        """Load a window. Chunks that were stored with another model's tokenizer are tokenized again."""
        working_set = WorkingSet(
            strategy=settings.brightness_strategy(calibration),
            system_tokens=system_prompt.tokens,
            frame_tokens=prompt_builder.frame_tokens(),
        )
        open_window = cls(
            record=record,
            settings=settings,
            working_set=working_set,
            system_prompt=system_prompt,
            store=store,
            engine=engine,
            prompt_builder=prompt_builder,
            window_names=window_names,
            calibration=calibration,
            is_private=is_private,
            readable_by_readers=readable_by_readers,
            people=people,
        )
        live: list[LiveChunk] = []
        for stored in store.live(record.id):
            live_chunk: LiveChunk = stored
            if open_window._needs_retokenizing(stored):
                chunk = _retokenized(stored.chunk, engine)
                live_chunk = LiveChunk(chunk, np.full(len(chunk), stored.peak, np.float32), stored.pinned)
                open_window.retokenized_unstored.append(live_chunk)
            elif not open_window._has_traces_of_this_strategy(stored.traces):
                live_chunk = replace(stored, traces=None)
            live.append(live_chunk)
            origin = ChunkOrigin(
                stored.window, stored.speaker, stored.said, stored.resurrect_reason, stored.tags
            )
            open_window.record_origin(live_chunk.chunk, origin)
        working_set.add(live)
        return open_window

    def store_retokenized_chunks(self, *, now: datetime) -> None:
        """Before the first change: store retokenized chunks, so that the open window and the store have the same
        tokens."""
        if self.retokenized_unstored:
            self.store.store_retokenized(
                self.record.id, self.retokenized_unstored, tokenizer=self.engine.info.tokenizer, now=now
            )
            self.retokenized_unstored.clear()

    def _needs_retokenizing(self, stored: StoredLiveChunk | StoredChunk) -> bool:
        """Whether the chunk's tokens are invalid for this model. An imported file may claim a wrong tokenizer, so the
        tokens are checked, too."""
        info = self.engine.info
        if info.url and self.must_not_send(stored.window, stored.chunk.key.turn_id):
            return False  # a remote model is not sent private chunks, not even to count their tokens
        if info.tokenizer not in ("", stored.tokenizer):
            return True
        return info.abilities.token_ids and not self.prompt_builder.tokens_are_valid(stored.chunk.tokens)

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
        """Record where a chunk comes from, and the annotation of its turn."""
        turn_id = chunk.key.turn_id
        if len(chunk) != chunk.span:
            self.retokenized.add(chunk.start)
        is_decided = turn_id in self.annotations or self.must_not_send(origin.window, turn_id)
        if not is_decided and (annotation := self.annotation(chunk, origin)):
            self._set_annotation(turn_id, annotation)
        self.chunk_origins[chunk.key], self.said_at[turn_id] = origin, origin.said

    def _set_annotation(self, turn_id: int, annotation: TurnAnnotation) -> None:
        self.annotations[turn_id] = annotation
        self.working_set.annotation_tokens[turn_id] = self.prompt_builder.annotation_tokens(annotation)

    def annotation(self, chunk: Chunk, origin: ChunkOrigin | StoredChunk) -> TurnAnnotation | None:
        """The text around a chunk's turn in the prompt; None for an ordinary turn of this chat.

        Text of another chat or of a file is quoted. Replies of this chat are not annotated.
        """
        role, said = chunk.key.role, origin.said if self.settings.timestamps else None
        speaker = origin.speaker if role is not Role.ASSISTANT and origin.speaker in self.people else ""
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
                speaker = origin.speaker
            return TurnAnnotation.quotation(said, role, chat=self._other_chat(origin.window), speaker=speaker)
        if role is Role.ASSISTANT:
            return None
        return TurnAnnotation.of_user_turn(speaker, origin.said if self._needs_date(chunk.text) else None)

    def extend_annotation(self, turn_id: int, before: str, after: str) -> None:
        """Append to the text around a message of this chat in the prompt."""
        earlier = self.annotations.get(turn_id) or TurnAnnotation("")
        annotation = TurnAnnotation(earlier.before + before, earlier.after + after, earlier.quoted)
        with self.lock:
            self._set_annotation(turn_id, annotation)

    def next_message_annotation(self, text: str, speaker: str, now: datetime) -> TurnAnnotation | None:
        """The annotation of the user's next message, if it is sent now."""
        speaker_name = speaker if speaker in self.people else ""
        return TurnAnnotation.of_user_turn(speaker_name, now if self._needs_date(text) else None)

    def _belongs_here(self, window_id: str, turn_id: int) -> bool:
        """Whether a turn belongs to this chat: it was said here, or this chat branched off after it."""
        return window_id == self.record.id or turn_id in self._ancestor_turns

    @property
    def _ancestor_turns(self) -> Mapping[int, str]:
        if self.ancestors is None:
            self.ancestors = ancestor_turns(self.store, self.record.id, frozenset({self.record.id}))
        return self.ancestors

    def _needs_date(self, text: str) -> bool:
        """Whether the prompt names the day of a message. If it always did, small models would mention the day in their replies
        although nobody asked."""
        return self.settings.timestamps and asks_about_time(text)

    def _has_traces_of_this_strategy(self, traces: Floats | None) -> bool:
        """Whether stored traces fit this window's strategy. No traces fit every strategy."""
        return traces is None or len(traces) == len(self.working_set.strategy.traces)

    def _other_chat(self, window_id: str) -> str:
        return "" if window_id == self.record.id else self.window_names.get(window_id, "")

    def annotation_tokens(self, window_id: str, role: Role) -> int:
        """Estimated tokens of the annotation of a turn that was said in a window."""
        if window_id == self.record.id:
            return 0
        # All dates have about as many tokens.
        any_date = datetime(2026, 12, 30) if self.settings.timestamps else None
        return self.prompt_builder.annotation_tokens(
            TurnAnnotation.quotation(any_date, role, chat=self._other_chat(window_id))
        )

    def drop_missing_chunks(self) -> None:
        """Remove chunks that another window or process has deleted or pruned since this one was loaded."""
        stored_keys = {stored.key for stored in self.store.live(self.record.id)}
        with self.lock:
            self.working_set.remove([key for key in self.live_keys if key not in stored_keys])

    def hide_replaced_turns(self, turns: frozenset[int]) -> None:
        """Remove turns that the new turn replaces. They are not resurrected in this turn, either."""
        with self.lock:
            self.replaced_turns = turns
            self.replaced_chunks = self.working_set.remove(
                [key for key in self.live_keys if key.turn_id in turns]
            )

    def restore_replaced(self) -> None:
        """Undo `hide_replaced_turns`, if no new turn was stored. Only chunks that the store still has live return."""
        stored_keys = (
            {stored.key for stored in self.store.live(self.record.id)} if self.replaced_chunks else set()
        )
        with self.lock:
            self.working_set.add(live for live in self.replaced_chunks if live.chunk.key in stored_keys)
            self.replaced_turns, self.replaced_chunks = frozenset(), ()

    # Prune

    def prune(self, plan: PrunePlan, *, now: datetime) -> tuple[PrunedChunk, ...]:
        """Prune the plan's chunks: in the store first, then here."""
        moves = [
            ChunkMove(
                prune.key,
                (live := self.working_set.at(prune.key)).brightness,
                {
                    "why": str(prune.why),
                    "brightness": prune.brightness,
                    "rivals": prune.rivals,
                    "budget": plan.budget,
                },
                live.traces,
            )
            for prune in plan.chunks
        ]
        self.store.prune(self.record.id, moves, now=now)
        with self.lock:
            self.working_set.remove(plan.keys)
        return tuple(
            PrunedChunk(prune.key, prune.tokens, prune.brightness, prune.why) for prune in plan.chunks
        )

    def prune_by_user(self, key: ChunkKey, *, now: datetime) -> None:
        """Prune a chunk at the user's request, without its pair."""
        live = self.working_set.at(key)
        reason = {"why": str(PruneReason.USER), "pinned": live.pinned}
        self.store.prune(self.record.id, [ChunkMove(key, live.brightness, reason, live.traces)], now=now)
        with self.lock:
            self.working_set.remove([key])

    def prune_private_chunks(self, *, now: datetime) -> tuple[PrunedChunk, ...]:
        """Prune every live chunk that may not be sent to a remote model, including pinned ones."""
        plan = plan_private_prune(
            live
            for live in self.working_set
            if self.must_not_send(self.chunk_origins[live.chunk.key].window, live.chunk.key.turn_id)
        )
        return self.prune(plan, now=now) if plan.chunks else ()

    # Resurrect

    @property
    def recallable_windows(self) -> frozenset[str] | None:
        """Ids of the windows whose chunks may be resurrected here; None: all."""
        return self._recall_scope()[0]

    def _recall_scope(self) -> tuple[frozenset[str] | None, Mapping[ChunkKey, int]]:
        """These windows, and the tagged chunks of other windows that may be resurrected, too."""
        only_this_window = remote_scope(self.settings, self.engine.info) == "window"
        return recall_scope(
            self.store,
            self.record,
            self.settings,
            self.readable_by_readers,
            only_this_window=only_this_window,
        )

    def may_read(self, window_id: str) -> bool:
        """Whether the model of this window may read the text of another one."""
        is_own = window_id == self.record.id
        readers_may = self.readable_by_readers is None or window_id in self.readable_by_readers
        return is_own or (
            readers_may and may_send(self.settings, self.engine.info, window_id, self.is_private)
        )

    def must_not_send(self, window_id: str, turn_id: int) -> bool:
        """Whether a turn must not be sent to the model. Turns that this window branched off after belong to it."""
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
        scope, chunks = self._recall_scope()
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
        """Plan to resurrect chunks by key, in this order, as far as there is room.

        If recall is limited to certain windows, chunks of other windows are left out. `before`: only chunks before this
        position.
        """
        wanted = list(keys)
        if (windows := self.recallable_windows) is not None:
            allowed_keys = {
                stored.key for stored in self.store.chunks_by_key(wanted) if stored.window in windows
            }
            ancestors = ancestor_turns(self.store, self.record.id, windows)
            wanted = [key for key in wanted if key in allowed_keys or key.turn_id in ancestors]
        candidates = {
            key: candidate
            for key, candidate in self.store.recall_candidates(self.record.id, wanted).items()
            if not self.must_not_send(candidate.window, key.turn_id)
            if self.settings.recall_thoughts or not candidate.thought
            if before is None or candidate.start < before
        }
        hits = [hit for hit in hits_in_order(wanted) if hit.key in candidates]
        return plan_recall(
            hits,
            candidates,
            room,
            live=self.live_keys,
            frame_tokens=self.working_set.frame_tokens,
            annotation_tokens=annotation_costs(candidates.values(), self.annotation_tokens),
            pairs="off",
            prefer_short=False,
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
        for key, chunk in chunks.items():
            mode, earned = self.settings.resurrection_brightness, chunk.brightness
            if earned is None:  # a chunk of another window has no brightness here
                earned = np.zeros(len(chunk.chunk), np.float32)
                if mode != "fresh":
                    mode = (
                        "hybrid" if len(self.working_set) else "fresh"
                    )  # not dimmer than the mean of the others
            brightness[key] = resurrected_brightness(
                mode, earned, mean=mean, initial=self.settings.initial_brightness
            )
        return self._resurrect(plan.chunks, chunks, brightness, hits, by=by, now=now)

    def resurrect_by_user(self, key: ChunkKey, *, now: datetime, pinned: bool = True) -> ResurrectedChunk:
        """Resurrect a chunk at the user's request, with the brightness it had, and by default pin it."""
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
        user_turns = [turn_id for turn_id, role in turns if role is Role.USER][
            -self.settings.protect_recent_exchanges :
        ]
        return {turn_id for turn_id, _ in turns if turn_id >= min(user_turns, default=0)}

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
            chunks[key] = self._retokenized_if_needed(found[key])
        return chunks

    def _retokenized_if_needed(self, chunk_to_resurrect: ResurrectableChunk) -> ResurrectableChunk:
        """The chunk in tokens of this model. Traces of another strategy are dropped."""
        record, brightness = chunk_to_resurrect.record, chunk_to_resurrect.brightness
        if not self._needs_retokenizing(record):
            if self._has_traces_of_this_strategy(chunk_to_resurrect.traces):
                return chunk_to_resurrect
            return replace(chunk_to_resurrect, traces=None)
        chunk = _retokenized(chunk_to_resurrect.chunk, self.engine)
        if brightness is not None:
            brightness = np.full(len(chunk), brightness.max(), np.float32)
        return ResurrectableChunk(replace(record, chunk=chunk), brightness, retokenized=True)

    def _may_resurrect_here(self, chunk: ResurrectableChunk) -> bool:
        """Whether a chunk may be live here: it was before, this window branched off after its turn, or everybody who
        reads this window may read it."""
        if (
            self.readable_by_readers is None
            or chunk.record.window in self.readable_by_readers
            or chunk.brightness is not None
        ):
            return True
        return chunk.key.turn_id in ancestor_turns(self.store, self.record.id, self.readable_by_readers)

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
        for planned_chunk in planned:
            chunk, hit = chunks[planned_chunk.key], hits.get(planned_chunk.hit)
            # The search did not find a chunk that the user added to a recall by its key.
            added_by_user = by == "recall" and hit is None
            reason = reasons[planned_chunk] = {
                "by": "user" if added_by_user else by,
                "part": str(planned_chunk.reason),
                "hit": str(planned_chunk.hit),
                "similarity": planned_chunk.similarity,
                "cost": planned_chunk.cost,
                "words": list(hit.words) if hit else [],
                "parts": dict(hit.parts) if hit else {},
            }
            tokens = chunk.chunk.tokens if chunk.retokenized else None
            tokenizer = self.engine.info.tokenizer if chunk.retokenized else None
            moves.append(
                ChunkMove(
                    planned_chunk.key,
                    brightness[planned_chunk.key],
                    reason,
                    chunk.traces,
                    pinned,
                    tokens,
                    tokenizer,
                )
            )
        self.store.resurrect(self.record.id, moves, now=now)
        with self.lock:
            live = []
            for planned_chunk, reason in reasons.items():
                chunk, record = chunks[planned_chunk.key], chunks[planned_chunk.key].record
                origin = ChunkOrigin(record.window, record.speaker, record.said, reason, record.tags)
                self.record_origin(chunk.chunk, origin)
                live.append(
                    LiveChunk(chunk.chunk, brightness[planned_chunk.key], pinned, traces=chunk.traces)
                )
            self.working_set.add(live)
        return tuple(
            self._resurrected_chunk(planned_chunk, chunks[planned_chunk.key], reason)
            for planned_chunk, reason in reasons.items()
        )

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
        pruned_before = np.searchsorted(starts, [chunk.start for chunk in live])
        edges = np.concatenate([[0], pruned_before, [len(starts)]]).astype(np.int64)
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
        """How many pruned thoughts an answer has, if this is its first chunk."""
        if chunk.key.role is not Role.ASSISTANT or chunk.key.chunk_id:
            return 0
        return sum(
            THOUGHT in record.tags and not record.gone and record.key not in self.working_set
            for record in self.store.turn(chunk.key.turn_id)
        )

    @property
    def frame_token_count(self) -> int:
        """Tokens of all frames, with annotations."""
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
        maximum = min(limit or context, context - self.reply_room)
        return TokenBudget(
            limit,
            context,
            working_set.system_tokens,
            pinned,
            len(working_set) - pinned,
            self.frame_token_count,
            self.reply_room,
            max(0, maximum - working_set.size),
        )

    def context_room(self, live: int) -> int:
        """Tokens that the model's context leaves for a message, if `live` tokens are in it, next to the room for the reply and
        the frames of this exchange."""
        frames = sum(self.working_set.frame_tokens.values())
        return self.engine.info.context - live - self.reply_room - frames

    def recall_room(self, message_tokens: int, *, may_prune_others: bool = False) -> int:
        """Tokens that may be resurrected next to the user's message and the frames of the exchange.

        `may_prune_others`: other chunks may be pruned for them, so only what cannot be pruned takes room.
        """
        if may_prune_others:
            return self.context_room(self._unprunable_tokens()) - message_tokens
        working_set = self.working_set
        return resurrection_room(
            model_context=self.engine.info.context,
            live=working_set.size + sum(working_set.frame_tokens.values()),
            user=message_tokens,
            max_new=self.reply_room,
            max_context=self.context_budget,
            quota=self.settings.resurrection_budget,
        )

    def checked_message(self, text: str) -> Tokens:
        """The tokens of the message. Raises BadInput if it does not fit next to the system prompt, the pinned chunks and the
        reply."""
        tokens = self.engine.tokenize(text)
        system_tokens, reply_room = self.working_set.system_tokens, self.reply_room
        pinned = sum(len(chunk) for chunk in self.working_set.chunks if chunk.key in self.working_set.pinned)
        room = self.context_room(system_tokens + pinned)
        if room < 1:
            raise BadInput(
                f"There is no room for a message in the model's {self.engine.info.context} tokens: system prompt "
                f"{system_tokens}, pinned chunks {pinned}, reply up to {reply_room}. "
                "Shorten the system prompt, unpin something, or lower max_new_tokens."
            )
        if len(tokens) > room:
            raise BadInput(
                f"Your message has {len(tokens)} tokens, and there is room for {room} next to the system prompt, "
                f"pinned chunks and a reply of {reply_room}. Send it in parts, or lower max_new_tokens."
            )
        return tokens

    def _unprunable_tokens(self) -> int:
        """Tokens that are never pruned: the system prompt, and pinned chunks with the frames of their turns."""
        working_set = self.working_set
        pinned = [chunk for chunk in working_set.chunks if chunk.key in working_set.pinned]
        frames = {chunk.key.turn_id: working_set.frame_tokens.get(chunk.key.role, 0) for chunk in pinned}
        return working_set.system_tokens + sum(len(chunk) for chunk in pinned) + sum(frames.values())


def _retokenized(chunk: Chunk, engine: Engine) -> Chunk:
    """The chunk's text in the tokens of another model, at the same positions."""
    return replace(chunk, tokens=engine.tokenize(chunk.text), span=chunk.span)
