"""One turn: store the message, resurrect, generate the reply, store it, prune."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Event as Flag
from typing import Any, Literal

from halo_weave.chat import events
from halo_weave.chat.attention_dispatcher import AttentionDispatcher
from halo_weave.chat.capture import NullRecorder, TurnRecorder
from halo_weave.chat.documents import attach, document_cost
from halo_weave.chat.injection import InjectionPlan, plan_injection
from halo_weave.chat.open_window import ChunkOrigin, OpenWindow
from halo_weave.chat.prompt import parse_tool_declarations
from halo_weave.chat.recall_plan import NOTHING_RECALLED, RecallResult
from halo_weave.chat.reply import THOUGHT, TOOL, UNFINISHED, ReplyKind, ReplyParser, ReplyToken
from halo_weave.chat.reply_storage import store_attribution, store_reply
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.tools.calls import NativeTools, ToolCall
from halo_weave.chat.tools.memory_requests import (
    forget_entry,
    save_user_request,
    saved_memories_note,
)
from halo_weave.chat.tools.structured_memory import SnapshotChunk
from halo_weave.chat.transcript import MIN_USED_SHARE
from halo_weave.chat.turn_request import ClientOptions, TurnRequest
from halo_weave.chat.views import ChunkView
from halo_weave.core.attribution import AttributionTracker, capture_for_attribution
from halo_weave.core.informativeness import asks_for_own_fact
from halo_weave.core.memory_requests import MemoryRequest, memory_request
from halo_weave.core.pruning import Prune, PrunePlan, PruneReason, plan_prune
from halo_weave.core.resurrection import RecallHit, RecallPlan
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import chunk_turn
from halo_weave.engines.base import (
    GenerationEnd,
    GenerationEvent,
    LateAttention,
    PrefillPlanned,
    PrefillResult,
    Step,
    StopReason,
)
from halo_weave.engines.templates.messages import NativeCall
from halo_weave.errors import BadInput
from halo_weave.store.records import Reservation

OVERHEAD, MARGIN = 32, 128  # positions reserved in addition to the message and the longest reply
TOOL_ROOM = 512  # positions reserved for the output of each tool call
# Related memory entries in the prompt do not help smaller models.
CAPABLE_MODEL_PARAMETERS = 1_000_000_000
# Added to the user's message in the prompt, after the program has saved or deleted what the message asks for.
CONFIRM = {
    "saved": "\n\n(This is saved in your memory now. Reply in one short sentence that you will remember it.)",
    "forgotten": "\n\n(This is deleted from your memory now. Reply in one short sentence that you have forgotten it.)",
}
NOTHING_SAVED = "\n\n(Nothing like this was saved in your memory. Say that in one short sentence.)"
# Added to a question that only the user can answer, if nothing in memory probably answers it: small models rather invent an
# answer than admit that they do not know.
IF_NOT_TOLD = "\n\n(If I have not told you this, say that you don't know it.)"
NOTHING_ADDED = "I have used my memory, and have nothing to add."
BRIGHTNESS_INTERVAL = 0.1  # seconds between two reports of brightness


class TurnRun:
    """A message and its reply in one window. `run` has all steps in order; `stop_flag` stops the reply at the next token."""

    def __init__(self, runtime: Runtime, open_window: OpenWindow, request: TurnRequest, began: float) -> None:
        self.runtime, self.open_window, self.request = runtime, open_window, request
        self.settings, self.engine = open_window.settings, open_window.engine
        self.prompt_builder, self.store, self.now = open_window.prompt_builder, runtime.store, runtime.now
        self.client = request.client or ClientOptions()
        self.stop_flag = Flag()
        self.timer, self.stats = TurnTimer(began), Counter[str]()
        self.reason: StopReason = "abort"

        self.toolbox = runtime.toolbox_for(open_window.record)
        self.tool_format = "off" if request.client else runtime.tool_format(self.settings, open_window.record)
        self.native_tools = NativeTools(self.engine, self.prompt_builder, self.settings.effort)
        self._answered_calls: set[str] = set()  # tool calls in the template's format that have a result
        self.memory = runtime.structured_memory_for(open_window)
        self.memory_request = self._find_memory_request()
        self._request_done = False  # the program has carried out `memory_request`
        self._model_saved = False  # the model itself has changed the structured memory, with a tool
        self.memory_change: events.MemoryChanged | None = None  # what `memory_request` changed
        self._probably_known = False  # recall found what probably answers the message

        if request.client is None:
            prompt = runtime.system_prompt(
                self.prompt_builder, open_window.record, self.settings, self.tool_format
            )
        else:
            prompt = self.prompt_builder.system_prompt(self.client.system_prompt, self.client.tools)
        open_window.system_prompt = prompt
        open_window.working_set.system_tokens = prompt.tokens

        # Why each chunk was resurrected in this turn.
        self._resurrect_reasons: dict[ChunkKey, Mapping[str, Any]] = {}
        # Pruned in this turn before the reply; not resurrected in it.
        self._pruned_for_room: set[ChunkKey] = set()
        self._reply_tags: dict[ChunkKey, tuple[str, ...]] = {}
        self._reply_stored = False
        self._brightness_sent = 0.0  # when the last brightness event was sent, by the performance counter
        open_window.working_set.recording = runtime.recording(open_window.record.id, self.settings)
        self.recorder: TurnRecorder = open_window.working_set.recording or NullRecorder()
        self.attribution = AttributionTracker(open_window.calibration, include_question=True)
        self.attention = AttentionDispatcher(open_window, self.attribution, self.recorder)

    def run(self) -> Iterator[events.TurnEvent]:
        """Answer one message and yield what happens, in order.

        Every step is stored before its event is yielded. If the process is killed during the reply, the tokens since the last
        draft and the changes of brightness by this reply are lost.
        """
        self.recorder.begin(self.open_window.working_set, self.settings)
        message = self.open_window.checked_message("" if self.request.question else self.request.text)
        if self.request.after is not None or self.request.question is not None:
            yield events.WindowChanged()  # the turns that this one replaces were removed from the context

        yield from self._prune_private_chunks()
        if self.request.documents:
            yield from self._attach_documents(len(message))
        else:
            yield from self._prune_to_fit(len(message))
        ids = self.store.reserve(len(message) + self._reply_positions())
        yield from self._recall(len(message), ids)
        yield self._store_message(message, ids)
        saved = self._run_memory_request(ids) if self.tool_format == "off" else None
        self._annotate_message(ids, saved)

        self._begin_reply(ids, ids.start + len(message))
        try:
            yield from self._repeat_opening()
            yield from self._generate_reply(ids)
            yield from self._token_events(self.reply.finish())
            yield self._brightness_event()
        finally:
            self.timer.ended = time.perf_counter()
            # Store the reply also when the engine failed or the client is gone: what was shown must stay.
            stored = self._store_reply()
        yield self._brightness_event()
        yield stored

        yield from self._prune_after_reply(ids)
        self.memory_change = saved or self._run_memory_request(ids)
        if self.memory_change is not None:
            yield self.memory_change
        yield self._end()

    @property
    def reply(self) -> ReplyParser:
        """The reply in progress."""
        assert self.open_window.reply_parser is not None
        return self.open_window.reply_parser

    def _reply_positions(self) -> int:
        """Positions to reserve for the longest reply, its frames and the output of its tools."""
        tools = self.settings.tool_rounds * TOOL_ROOM if self.tool_format != "off" else 0
        return self.settings.max_new_tokens + OVERHEAD + MARGIN + tools + self.request.tokens

    def _begin_reply(self, ids: Reservation, start: int) -> None:
        tools = parse_tool_declarations(self.client.tools) or (
            self.prompt_builder.tools if self.tool_format == "native" else ()
        )
        with self.open_window.lock:
            self.open_window.working_set.begin_reply(
                ids.assistant_turn, start, self.request.question or ids.user_turn
            )
            self.open_window.reply_parser = ReplyParser(
                start,
                self.engine.facts.marks,
                calls=self.native_tools.call_splitter(tools),
                calls_end=bool(self.client.tools),
            )
        self.draft = self.runtime.drafts.begin(
            self.open_window, self.engine.info.tokenizer, self.runtime.report_unstored
        )

    def _end(self) -> events.TurnEnded:
        self.runtime.split_long_chunks()
        self.runtime.memory_search.embed_soon()
        working_set = self.open_window.working_set
        stats = self.timer.summary(self.stats) | {"faults": sum(working_set.faults.values())}
        ranks = {str(key): rank for key, rank in working_set.ranks().items()}
        self.recorder.end()
        return events.TurnEnded(self.reason, self.open_window.budget(), stats, ranks)

    # Before the reply

    def _prune_private_chunks(self) -> Iterator[events.TurnEvent]:
        if pruned := self.open_window.prune_private_chunks(now=self.now()):
            yield events.ChunksPruned(pruned, self.open_window.context_budget, 0, before_turn=True)

    def _prune_to_fit(self, message_tokens: int, resurrected_tokens: int = 0) -> Iterator[events.TurnEvent]:
        """Prune the dimmest chunks if the message, with `resurrected_tokens` further tokens, does not fit into the model's context."""
        working_set, context_tokens = self.open_window.working_set, self.open_window.context_room(0)
        if working_set.size + message_tokens + resurrected_tokens > context_tokens:
            room = max(1, context_tokens - message_tokens - resurrected_tokens)
            plan = plan_prune(working_set, room, goal=self._goal(room), pairs=self.settings.prune_pairs)
            self.recorder.note("prune", plan)
            if plan.over > resurrected_tokens:
                raise BadInput(
                    f"Your message does not fit by {plan.over} tokens. Send it in parts, prune something, "
                    "or lower max_new_tokens."
                )
            yield self._prune_chunks(plan, before_turn=True)

    def _attach_documents(self, message_tokens: int) -> Iterator[events.TurnEvent]:
        """Store the documents before the message. If the context has no room for all of them, only their beginnings are live."""
        cost = document_cost(self.open_window, self.request.documents)
        fits_whole = cost <= self.open_window.recall_room(message_tokens, may_prune_others=True)
        yield from self._prune_to_fit(message_tokens + cost if fits_whole else message_tokens)
        for plan in attach(
            self.runtime, self.open_window, self.request, message_tokens, fits_whole=fits_whole
        ):
            self._prune_chunks(plan, before_turn=True)
        self.runtime.memory_search.embed_soon()
        yield events.WindowChanged()

    def _recall(self, message_tokens: int, ids: Reservation) -> Iterator[events.TurnEvent]:
        self.runtime.split_long_chunks()  # of chunks that the user has pruned since the last turn
        question, overrides = self.request.question, self.request.overrides
        before = self.store.turn(question)[0].chunk.start if question else ids.start

        def plan_within(room: int) -> RecallResult:
            turn_overrides = replace(overrides, without=overrides.without | self._pruned_for_room)
            began = time.perf_counter()
            try:
                return self.open_window.search_and_plan(
                    self.request.text,
                    room,
                    search=self.runtime.search,
                    now=self.now(),
                    before=before,
                    overrides=turn_overrides,
                )
            finally:
                self.timer.recall += time.perf_counter() - began

        room = self.open_window.recall_room(message_tokens, may_prune_others=overrides.room)
        if overrides.room and room > 0:
            yield from self._prune_to_fit(message_tokens, plan_within(room).plan.cost)
            room = self.open_window.context_room(self.open_window.working_set.size) - message_tokens
        yield events.SearchStarted(max(0, room))
        result = plan_within(room) if room > 0 else NOTHING_RECALLED
        self._probably_known = result.probably_known
        if result.plan.chunks:
            yield self._resurrect(result.plan, result.hits)

    def _resurrect(
        self,
        plan: RecallPlan,
        hits: Mapping[ChunkKey, RecallHit],
        *,
        by: Literal["recall", "memory"] = "recall",
    ) -> events.ChunksResurrected:
        chunks = self.open_window.resurrect(plan, hits, now=self.now(), by=by)
        self.stats["resurrected"] += len(chunks)
        self.open_window.recently_resurrected.update(plan.keys)
        self._resurrect_reasons.update((chunk.key, chunk.resurrect_reason or {}) for chunk in chunks)
        return events.ChunksResurrected(chunks, plan.cost, plan.room, len(plan.passed_over))

    def _store_message(
        self, tokens: Tokens, ids: Reservation
    ) -> events.MessageStored | events.RegenerationStarted:
        """Store the message and index its words. The event that shows it comes after that."""
        if self.request.question:
            return events.RegenerationStarted(self.request.question, ids.assistant_turn, self.request.tokens)
        now, working_set = self.now(), self.open_window.working_set
        chunks = chunk_turn(
            tokens,
            ids.user_turn,
            Role.USER,
            ids.start,
            min_chunk_tokens=self.settings.min_chunk_tokens,
            max_chunk_tokens=self.settings.max_chunk_tokens,
        )
        live = [working_set.new_chunk(chunk) for chunk in chunks]
        tokenizer, after = self.engine.info.tokenizer, None if self.request.documents else self.request.after
        record, speaker = self.open_window.record, self.request.speaker or self.open_window.record.user_name
        self.store.append(
            record.id, live, tokenizer=tokenizer, now=now, after=after, speaker=self.request.speaker or None
        )
        with self.open_window.lock:
            self._note_origins(chunks, speaker, now)
            working_set.add(live)
        frames = self.open_window.frame_token_count + working_set.frame_tokens.get(Role.ASSISTANT, 0)
        return events.MessageStored(
            ids.user_turn, ids.assistant_turn, now, speaker, frames, self._chunk_views(chunks)
        )

    def _chunk_views(self, chunks: Iterable[Chunk]) -> tuple[ChunkView, ...]:
        """Views of the chunks. A chunk that another window has just deleted is left out."""
        with self.open_window.lock:
            return tuple(
                self.open_window.chunk_view(chunk.key)
                for chunk in chunks
                if chunk.key in self.open_window.working_set
            )

    def _note_origins(self, chunks: Iterable[Chunk], speaker: str, now: datetime) -> None:
        for chunk in chunks:
            origin = ChunkOrigin(
                self.open_window.record.id, speaker, now, tags=self._reply_tags.get(chunk.key, ())
            )
            self.open_window.record_origin(chunk, origin)

    # Requests of the user to remember or to forget something

    def _find_memory_request(self) -> MemoryRequest | None:
        """The request in the message. None when a reply is regenerated, or when an API client sets tools or a grammar."""
        if self.memory is None or self.request.question or self.client.tools or self.client.grammar:
            return None
        return memory_request(self.request.text)

    def _run_memory_request(self, ids: Reservation) -> events.MemoryChanged | None:
        """Save or delete what the message asks for, unless the model has done it with a tool."""
        if self.memory_request is None or self.memory is None or self._request_done or self._model_saved:
            return None
        self._request_done = True
        if self.memory_request.kind == "remember":
            chunks = self.open_window.working_set.chunks
            source = [
                SnapshotChunk(chunk.key, chunk.text, len(chunk), 1.0, self.now().isoformat())
                for chunk in chunks
                if chunk.key.turn_id == ids.user_turn
            ]
            return save_user_request(
                self.memory,
                self.memory_request.text,
                source,
                now=self.now(),
                within=self.open_window.recallable_windows,
            )
        if self.memory_request.kind == "forget":
            return forget_entry(self.memory, self.memory_request.text, now=self.now())
        return None

    def _annotate_message(self, ids: Reservation, change: events.MemoryChanged | None) -> None:
        """Add to the message in the prompt what the model has to know to answer it: saved memory entries, that the memory
        request was carried out, or that it may say that it does not know."""
        if self.request.question:
            return
        before = after = ""
        if self.memory is not None and self.tool_format == "off":
            if change:
                after = CONFIRM[change.change]
            elif self.memory_request is not None and self.memory_request.kind == "forget":
                after = NOTHING_SAVED
            if (
                self.engine.info.parameters >= CAPABLE_MODEL_PARAMETERS
                and self.settings.memory_tree_in_prompt
            ):
                before = saved_memories_note(self.memory, self.memory_request)
        doubtful = not self._probably_known and asks_for_own_fact(self.request.text)
        if doubtful and not after and self.request.client is None:
            after = IF_NOT_TOLD
        if before or after:
            self.open_window.extend_annotation(ids.user_turn, before, after)

    # The reply

    def _repeat_opening(self) -> Iterator[events.TurnEvent]:
        """Begin the reply with the tokens of the request's opening, such as the earlier reply that is continued."""
        for kind, tokens in self.request.opening:
            for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
                with self.open_window.lock:
                    self.attention.attribute_token(None)
                    self.open_window.working_set.append_reply_token(id, piece)
                    known_tokens = self.reply.add_earlier_token(id, piece, kind)
                yield from self._token_events(known_tokens)

    def _generate_reply(self, ids: Reservation) -> Iterator[events.TurnEvent]:
        """Generate the reply and run the tools that it calls. A tool's output becomes part of the reply."""
        rounds = self.settings.tool_rounds
        while True:
            detector = (
                self.toolbox.detector() if self.toolbox and rounds and self.tool_format == "tags" else None
            )
            calls: list[tuple[ToolCall, NativeCall | None]] = []
            self.reply.calls_end = bool(self.client.tools or rounds)
            for event in self._generation(ids, first=not self.stats["tokens"]):
                received = time.perf_counter()
                self.timer.model += received - self.timer.handed
                match event:
                    case PrefillPlanned():
                        yield event
                    case PrefillResult():
                        yield self._prefill_done(event)
                    case Step() if calls and not self.native_tools.continues_calls(event.piece):
                        break
                    case Step():
                        settled = self._add_token(event)
                        yield from self._token_events(settled)
                        answer = b"".join(token.shown for token in settled if token.kind == "answer")
                        calls += [(call, None) for call in (detector.feed(answer) if detector else ())]
                        yield from self._client_tool_calls()
                        calls += self._native_calls() if rounds else []
                    case LateAttention():
                        self.attention.observe_late_row(event)
                    case GenerationEnd():
                        self.reason = event.reason
                        if event.cached is not None:
                            self.stats.update(cached=event.cached, prompted=event.prompted or 0)
                        if not calls and (not self.stats["called"] or self._has_answer()):
                            self.attention.end_reply(event.row)
                            return
                if calls and (detector or not self.native_tools.several):
                    break
                self.timer.handed = time.perf_counter()
                self.timer.per_token += self.timer.handed - received if isinstance(event, Step) else 0.0
            made_calls = {call.command for call, native in calls if native}
            if not calls and self.stats["called"] and self.reason == "eos" and not self._has_answer():
                if not self.stats["retried"]:
                    self._retry_without_tools()
                    rounds = 0
                    continue
                yield from self._add_tool_output("answer", NOTHING_ADDED, ids)
                return
            if not calls or (made_calls and made_calls <= self._answered_calls):
                if calls:  # small models repeat a call that has its result
                    self.reason = "eos"
                return
            self._answered_calls |= made_calls
            self.stats["called"] += len(calls)
            yield from self._token_events(self.reply.finish())
            yield from self._use_tools(calls, ids)
            rounds -= 1

    def _has_answer(self) -> bool:
        """Whether the reply has answer text after the output of its last tool."""
        for token in reversed(self.reply.tokens):
            if token.by_tool:
                return False
            if token.kind == "answer" and token.shown.strip():
                return True
        return False

    def _retry_without_tools(self) -> None:
        """Remove the tools from the system prompt; the caller generates once more."""
        self.stats["retried"] = 1
        self.tool_format = "off"
        self.open_window.system_prompt = self.runtime.system_prompt(
            self.prompt_builder, self.open_window.record, self.settings, "off"
        )

    def _generation(self, ids: Reservation, *, first: bool) -> Iterator[GenerationEvent]:
        """Let the engine generate, up to the end of the reply or of the reserved positions."""
        working_set = self.open_window.working_set
        assert working_set.reply is not None
        token_limit = min(
            self.settings.max_new_tokens - self.stats["tokens"],
            ids.stop - working_set.reply.start - len(working_set.reply.ids),
        )
        if token_limit < 1:
            return iter([GenerationEnd("length", 0, 0.0)])
        sampling = self.request.sampling(self.settings, token_limit)
        capture = capture_for_attribution(working_set.strategy.capture, self.attribution.calibration)
        capture = self.recorder.wanted(capture, self.engine)
        if not first:
            capture = replace(capture, reading=False, reading_surprisal=False)
        self.stats["overhead"] = max(self.stats["overhead"], self._overhead())
        self.attention.prompt = prompt = self.prompt_builder.prompt(
            working_set,
            self.open_window.system_prompt,
            self.open_window.annotations,
            frozenset(self.open_window.retokenized),
            effort=self.settings.effort,
            recently_resurrected=self.open_window.recently_resurrected,
            said_at=self.open_window.said_at,
            own_turns=self.open_window.own_turns,
            owner=self.open_window.cell_owner,
        )
        marks = self.engine.facts.marks
        if first and not self.request.opening:
            self.reply.begin(marks is not None and marks.opened_by(prompt.generation_prompt))
        self.timer.handed = time.perf_counter()
        self.timer.before = self.timer.before or self.timer.handed - self.timer.began
        return self.engine.generate(
            self.open_window.record.id,
            prompt,
            sampling,
            capture,
            mode=self.settings.kv_mode,
            stopped=self.stop_flag.is_set,
        )

    def _overhead(self) -> int:
        """Tokens of the prompt beside the system prompt, the chunks and their frames: declared tools, the overview of the
        memory, and notes about origin and time."""
        window = self.open_window
        bare = self.client.system_prompt if self.request.client else window.record.system_prompt
        live = {chunk.key.turn_id for chunk in window.working_set.chunks}
        notes = sum(size for turn, size in window.working_set.annotation_tokens.items() if turn in live)
        return window.system_prompt.tokens - self.prompt_builder.system_prompt(bare).tokens + notes

    def _prefill_done(self, prefill: PrefillResult) -> events.PrefillFinished:
        self.stats.update(reused=prefill.reused, restored=prefill.restored, computed=prefill.computed)
        self.timer.reading += prefill.seconds
        self.attention.observe_prefill(prefill)
        return events.PrefillFinished(
            prefill.reused, prefill.restored, prefill.computed, prefill.seconds, prefill.rebuilt
        )

    def _add_token(self, step: Step) -> list[ReplyToken]:
        """Add the model's next token. Returns the tokens whose kind is known now."""
        working_set = self.open_window.working_set
        with self.open_window.lock:
            row = self.attention.prompt.to_live_tokens(step.row)
            self.recorder.row(row, self.settings.score_current_turn)
            if working_set.strategy.capture.reply and self.engine.info.abilities.attention:
                fault = working_set.update(row, score_reply=self.settings.score_current_turn)
            else:
                fault = row.fault(len(working_set)) if row is not None else None
            self.attention.attribute_token(None if fault else row)
            working_set.append_reply_token(step.id, step.piece, step.surprisal)
            known_tokens = self.reply.feed(step.id, step.piece)
            self.reply.tokens[-1].surprisal, self.reply.tokens[-1].likely = step.surprisal, step.likely
        self.stats["tokens"] += 1
        self.draft.token_added()
        return known_tokens

    def _token_events(self, tokens: Iterable[ReplyToken]) -> Iterator[events.TurnEvent]:
        for token in tokens:
            thought = token.kind == THOUGHT
            self.stats["thought_tokens"] += thought
            yield events.TokenGenerated(
                token.id,
                token.position,
                token.piece,
                token.text,
                token.by_tool,
                thought,
                token.surprisal,
                token.likely,
            )
        if tokens and time.perf_counter() - self._brightness_sent > BRIGHTNESS_INTERVAL:
            self._brightness_sent = time.perf_counter()
            yield self._brightness_event()

    def _brightness_event(self) -> events.BrightnessChanged:
        """Brightness of all live tokens, without those of the reply that are still held back."""
        working_set = self.open_window.working_set
        held = len(self.reply.tokens) - len(self.reply.known) if working_set.reply else 0
        return events.BrightnessChanged(
            working_set.shown()[: len(working_set) - held], self.attribution.token_use
        )

    # Tools

    def _client_tool_calls(self) -> Iterator[events.TurnEvent]:
        """Events for calls of tools that the API client runs."""
        if self.client.tools:
            calls, self.reply.calls = self.reply.calls, []
            yield from (events.ClientToolCalled(call.name, dict(call.arguments)) for call in calls)

    def _native_calls(self) -> list[tuple[ToolCall, NativeCall | None]]:
        calls, self.reply.calls = self.reply.calls, []
        assert self.toolbox is not None or not calls
        if calls:
            self.native_tools.note_call(self.reply.rest)
        return [(self.toolbox.native_call(call.name, call.arguments), call) for call in calls if self.toolbox]

    def _use_tools(
        self, calls: Sequence[tuple[ToolCall, NativeCall | None]], ids: Reservation
    ) -> Iterator[events.TurnEvent]:
        assert self.toolbox is not None
        days, texts = self.settings.memory_decay_days, list[str]()
        for call, _ in calls:
            yield events.ToolCalled(call.command)
            result = self.toolbox.run(
                call, now=self.now(), within=self.open_window.recallable_windows, decay_days=days
            )
            plan = self._plan_injection_for_tool(result.to_resurrect, ids) if result.to_resurrect else None
            text = f"{result.text} {plan.refusal}" if plan and plan.refusal else result.text
            yield events.ToolAnswered(text, result.ok)
            self._model_saved |= result.ok and call.command.startswith(("save_memory", "delete_memory"))
            texts.append(text)
            if plan:
                yield from self._resurrect_for_tool(plan)
        native_calls = [native for _, native in calls if native]
        parts = self.native_tools.format_results(native_calls, texts) if native_calls else None
        for kind, text in parts or [("answer", f"\n{text}\n") for text in texts]:
            yield from self._add_tool_output(kind, text, ids)
        self.reply.end_tool_calls()
        if parts:
            marks = self.engine.facts.marks
            self.reply.begin(marks is not None and marks.opened_by(parts[-1][1]))

    def _add_tool_output(self, kind: ReplyKind, text: str, ids: Reservation) -> Iterator[events.TurnEvent]:
        """Add a tool's output to the reply, as many tokens as fit into the reserved positions and the model's context."""
        working_set = self.open_window.working_set
        assert working_set.reply is not None
        tokens = self.engine.tokenize(text, special=kind == "mark")
        positions = ids.stop - working_set.reply.start - len(working_set.reply.ids)
        room = self.engine.info.context - working_set.size - 1
        for i, piece in enumerate(tokens.pieces()[: max(0, min(positions, room))]):
            with self.open_window.lock:
                self.attention.attribute_token(None)
                working_set.append_reply_token(int(tokens.ids[i]), piece)
                known_tokens = self.reply.add_inserted_token(int(tokens.ids[i]), piece, kind)
            self.draft.token_added()
            yield from self._token_events(known_tokens)

    def _plan_injection_for_tool(self, keys: Sequence[ChunkKey], ids: Reservation) -> InjectionPlan:
        """Plan to resurrect the chunks in the snapshot of a memory entry."""
        return plan_injection(
            self.open_window,
            lambda room: self.open_window.plan_resurrection_of(keys, room, before=ids.start),
            current=(ids.user_turn, ids.assistant_turn),
            kept=keys,
        )

    def _resurrect_for_tool(self, plan: InjectionPlan) -> Iterator[events.TurnEvent]:
        if plan.prunes.chunks:
            yield self._prune_chunks(plan.prunes, before_turn=True)
        if plan.recall.chunks:
            yield self._resurrect(plan.recall, {}, by="memory")

    # After the reply

    def _store_reply(self) -> events.ReplyStored:
        working_set = self.open_window.working_set
        assert working_set.reply is not None
        turn_id, start = working_set.reply.turn_id, working_set.reply.start
        self.draft.close()
        now = self.now()
        with self.open_window.lock:
            parts = [] if self._nothing_added() else self.reply.parts(self.engine.tokenize)
            chunks = working_set.end_reply(
                self.settings.min_chunk_tokens, parts, max_chunk_tokens=self.settings.max_chunk_tokens
            )
            unfinished_tag = (UNFINISHED,) if self.reason in ("length", "context") else ()
            tags = {
                chunk.key: (*self.reply.tags(chunk.start, chunk.stop), *unfinished_tag) for chunk in chunks
            }
            self._reply_tags = {key: chunk_tags for key, chunk_tags in tags.items() if chunk_tags}
            self.stats["only_thought"] = bool(parts) and all(part.tag for part in parts)
            self._note_origins(chunks, self.open_window.record.ai_name, now)
        self._reply_stored = bool(chunks)
        live = [working_set.at(chunk.key) for chunk in chunks]
        store_reply(self.runtime, self.open_window, turn_id, live, self._reply_tags, now)
        attribution = None if self.attribution.calibration.pending else self.attribution.whole(start)
        reminders = (
            store_attribution(self.open_window, turn_id, attribution, self._resurrect_reasons)
            if chunks
            else ()
        )
        views, name = self._chunk_views(chunks), self.open_window.record.ai_name
        return events.ReplyStored(
            turn_id, now, name, views, attribution, reminders, unfinished=bool(unfinished_tag)
        )

    def _nothing_added(self) -> bool:
        """Whether a continued reply has no new text: then the earlier version stays, and no new one is stored."""
        nothing = (
            bool(self.request.opening)
            and not b"".join(token.piece for token in self.reply.tokens[self.request.tokens :]).strip()
        )
        self.stats["nothing_added"] = nothing and self.reason != "abort"
        return nothing

    def _prune_after_reply(self, ids: Reservation) -> Iterator[events.TurnEvent]:
        """Prune thoughts and tool output first, since templates leave them out of past turns; then the dimmest chunks."""
        working_set, budget = self.open_window.working_set, self.open_window.context_budget
        pruned_tags = {THOUGHT, TOOL} if self.tool_format == "native" else {THOUGHT}
        tagged_keys = [key for key, tags in self._reply_tags.items() if pruned_tags.intersection(tags)]
        prunes = [
            Prune(key, len(live.chunk), live.peak, PruneReason.TURN_OVER, 0)
            for key, live in ((key, working_set.at(key)) for key in tagged_keys if key in working_set)
        ]
        if prunes:
            plan_of_tagged = PrunePlan(budget, 0, tuple(prunes))
            self.recorder.note("prune", plan_of_tagged)
            yield self._prune_chunks(plan_of_tagged, before_turn=False)
        if not self._reply_stored:
            self.open_window.restore_replaced()  # there is no new version: the replaced turns are live again
        current = {ids.user_turn, ids.assistant_turn, self.request.question or ids.user_turn}
        plan = self._plan_prune(budget, self.open_window.recent_turns() | current)
        self.recorder.note("prune", plan)
        if plan.chunks or plan.over:
            yield self._prune_chunks(plan, before_turn=False)

    def _plan_prune(self, budget: int, current: set[int]) -> PrunePlan:
        """Which chunks to prune down to the budget.

        If the engine cannot cut its KV cache, recently resurrected chunks are pruned first, if that is enough: pruning older
        chunks would make the engine read the rest of the context again.
        """
        working_set, pairs = self.open_window.working_set, self.settings.prune_pairs
        protected = self._resurrected_and_used()
        goal, recently_resurrected = self._goal(budget), self.open_window.recently_resurrected
        if goal < budget and recently_resurrected:
            older = {chunk.key for chunk in working_set.chunks if chunk.key not in recently_resurrected}
            plan = plan_prune(
                working_set, budget, goal=goal, current=current, kept=protected | older, pairs=pairs
            )
            if not plan.over:
                return plan
        recently_resurrected.clear()
        return plan_prune(working_set, budget, goal=goal, current=current, kept=protected, pairs=pairs)

    def _goal(self, budget: int) -> int:
        abilities = self.engine.info.abilities
        return self.settings.prune_goal(budget, cuts=abilities.cuts, token_ids=abilities.token_ids)

    def _resurrected_and_used(self) -> set[ChunkKey]:
        if not self.settings.protect_used:
            return set()
        return {
            used.key
            for used in self.attribution.whole().chunks
            if used.key in self._resurrect_reasons and used.share >= MIN_USED_SHARE
        }

    def _prune_chunks(self, plan: PrunePlan, *, before_turn: bool) -> events.ChunksPruned:
        pruned = self.open_window.prune(plan, now=self.now())
        self._pruned_for_room.update(plan.keys if before_turn else ())
        self.stats["pruned"] += len(pruned)
        return events.ChunksPruned(pruned, plan.budget, plan.over, before_turn)


COUNTS = (
    "tokens",
    "thought_tokens",
    "resurrected",
    "pruned",
    "reused",
    "restored",
    "computed",
    "prompted",
    "cached",
    "overhead",
)


@dataclass(slots=True)
class TurnTimer:
    """Seconds of a turn: the engine's, and Halo Weave's own."""

    began: float
    handed: float = 0.0  # when the engine was last called
    model: float = 0.0
    reading: float = 0.0  # prefill, part of `model`
    before: float = 0.0  # Halo Weave's own time until the engine gets the prompt
    recall: float = 0.0  # search and recall plan, part of `before`
    per_token: float = 0.0  # Halo Weave's own time during generation, for all tokens
    ended: float = 0.0  # when generation ended

    def summary(self, stats: Counter[str]) -> dict[str, float]:
        """The statistics of the turn, which ends now."""
        now, tokens, writing = time.perf_counter(), stats["tokens"], self.model - self.reading
        return {
            **{name: stats[name] for name in COUNTS},
            "only_thought": bool(stats["only_thought"]),
            "nothing_added": bool(stats["nothing_added"]),
            "seconds": round(now - self.began, 3),
            "tokens_per_second": round(tokens / writing, 1) if writing > 0 else 0.0,
            "own_ms_per_turn": round(self.before * 1e3, 3),
            "recall_ms": round(self.recall * 1e3, 3),
            "own_ms_after": round((now - self.ended) * 1e3, 3),
            "own_ms_per_token": round(self.per_token / tokens * 1e3, 4) if tokens else 0.0,
        }
