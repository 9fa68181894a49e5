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
from halo_weave.chat.attention_tracker import AttentionTracker
from halo_weave.chat.documents import attach, document_cost
from halo_weave.chat.injection import InjectionPlan, plan_injection
from halo_weave.chat.open_window import (
    ChunkOrigin,
    OpenWindow,
    checked_message,
    context_room,
    prune_private_chunks,
    recall_room,
)
from halo_weave.chat.prompt import parse_tool_declarations
from halo_weave.chat.recall_plan import NOTHING_RECALLED, RecallResult
from halo_weave.chat.recorder import NullRecorder, TurnRecorder
from halo_weave.chat.reply import THOUGHT, TOOL, UNFINISHED, ReplyKind, ReplyParser, ReplyToken
from halo_weave.chat.reply_storage import store_attribution, store_reply
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.tools.calls import ToolCall
from halo_weave.chat.tools.memory_requests import (
    MemoryRequest,
    file_entry,
    forget_entry,
    memory_request,
    save_user_request,
    saved_memories_note,
)
from halo_weave.chat.tools.native_tools import NativeTools
from halo_weave.chat.tools.structured_memory import SnapshotChunk
from halo_weave.chat.transcript import MIN_USED_SHARE
from halo_weave.chat.turn_request import ClientOptions, TurnRequest
from halo_weave.chat.views import ChunkView
from halo_weave.core.attribution import AttributionTracker, capture_for_attribution
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

OVERHEAD, MARGIN = 32, 128  # positions reserved beyond the user's words and the longest reply
TOOL_ROOM = 512  # and for the answer of each tool that may be called
CAPABLE_MODEL_PARAMETERS = (
    1_000_000_000  # parameters from which on a model is helped by what is saved about a message
)
# What the model is told behind the user's words when the program has done what they ask for.
CONFIRM = {
    "saved": "\n\n(This is saved in your memory now. Reply in one short sentence that you will remember it.)",
    "forgotten": "\n\n(This is deleted from your memory now. Reply in one short sentence that you have forgotten it.)",
}
NOTHING_SAVED = "\n\n(Nothing like this was saved in your memory. Say that in one short sentence.)"
NOTHING_ADDED = "I have used my memory, and have nothing to add."
BRIGHTNESS_INTERVAL = 0.1  # seconds between two reports of brightness


class Turn:
    """One exchange in one window. `run` is the whole of it; `flag` stops it at the next token."""

    def __init__(self, system: Runtime, open_window: OpenWindow, asked: TurnRequest, began: float) -> None:
        self.open_window, self.asked, self.text = open_window, asked, asked.text
        self.engine, self.store, self.now = open_window.engine, system.store, system.now
        self.recall, self.toolbox = system.recall, system.toolbox_for(open_window.record)
        self.prompt_builder, self.system, self.settings = (
            open_window.prompt_builder,
            system,
            open_window.settings,
        )
        self.calling = NativeTools(
            open_window.engine, open_window.prompt_builder, open_window.settings.effort
        )
        self.flag = Flag()
        self.use = AttributionTracker(open_window.calibration, asked=True)
        self.clock = TurnTimer(began)
        self.stats = Counter[str]()
        self.reason: StopReason = "abort"
        self.terms = asked.terms or ClientOptions()
        self.form = "off" if asked.terms else system.tool_format(open_window.settings, open_window.record)
        self.tree = system.structured_memory_for(open_window)
        self.request = self._memory_request()
        open_window.system = system.system_prompt(
            open_window.prompt_builder, open_window.record, open_window.settings, self.form
        )
        if asked.terms is not None:
            open_window.system = open_window.prompt_builder.system(self.terms.system_prompt, self.terms.tools)
        open_window.window.system_tokens = len(open_window.system)
        self._tags: dict[ChunkKey, tuple[str, ...]] = {}
        self._done = self._saved = False  # what the user asked of the memory: by the program, by the model
        self._called: set[str] = set()  # commands in the template's format that were answered
        self._woken: dict[ChunkKey, Mapping[str, Any]] = {}  # and why
        self._pruned_for_room: set[ChunkKey] = set()  # what fell asleep for this turn does not wake up for it
        self._shown = 0.0
        self._kept = False  # whether a reply was stored
        open_window.window.recording = system.recording(open_window.record.id, open_window.settings)
        self.recording: TurnRecorder = open_window.window.recording or NullRecorder()
        self.light = AttentionTracker(open_window, self.use, self.recording)

    def run(self) -> Iterator[events.TurnEvent]:
        self.recording.begin(self.open_window.window, self.settings)
        said = checked_message(self.open_window, "" if self.asked.question else self.text)
        tools = self.settings.tool_rounds * TOOL_ROOM if self.form != "off" else 0
        more = self.settings.max_new_tokens + OVERHEAD + MARGIN + tools + self.asked.tokens
        if self.asked.after is not None or self.asked.question is not None:
            yield events.WindowChanged()
        if held := prune_private_chunks(self.open_window, now=self.now()):
            yield events.ChunksPruned(held, self.open_window.live_limit, 0, before_turn=True)
        yield from self._attach(len(said)) if self.asked.documents else self._make_room(len(said))
        ids = self.store.reserve(len(said) + more)
        yield from self._remember(len(said), ids)
        yield self._hear(said, ids)
        kept = self._run_memory_request(ids) if self.form == "off" else None
        self._annotate_with_memory(ids, kept)
        native = parse_tool_declarations(self.terms.tools) or (
            self.prompt_builder.tools if self.form == "native" else ()
        )
        with self.open_window.guard:
            start = ids.start + len(said)
            self.open_window.window.begin_reply(
                ids.assistant_turn, start, self.asked.question or ids.user_turn
            )
            self.reply = self.open_window.reply = ReplyParser(
                start,
                self.engine.facts.marks,
                calls=self.calling.finder(native),
                calls_end=bool(self.terms.tools),
            )
        self.draft = self.system.drafts.begin(
            self.open_window, self.engine.info.tokenizer, self.system.report_unstored
        )
        try:
            yield from self._resume()
            yield from self._answer(ids)
            yield from self._tell(self.reply.finish())
            yield self._brightness_event()
        finally:
            self.clock.ended = time.perf_counter()
            # Also when the model failed or nobody listens any more: what was said is kept.
            spoken = self._store_reply()
        yield self._brightness_event()
        yield spoken
        yield from self._prune_after_reply(ids)
        yield from self._file(kept or self._run_memory_request(ids))
        self.system.split_long_chunks()
        self.recall.embed_soon()
        stats = self.clock.summary(self.stats) | {"faults": sum(self.open_window.window.faults.values())}
        ranks = {str(key): rank for key, rank in self.open_window.window.ranks().items()}
        self.recording.end()
        yield events.TurnEnded(self.reason, self.open_window.budget(), stats, ranks)

    # Before the model speaks

    def _make_room(self, user: int, wakes: int = 0) -> Iterator[events.TurnEvent]:
        """If the user's words, and what they wish to wake, would not fit into the model's context, the dimmest sleep first."""
        window, whole = self.open_window.window, context_room(self.open_window, 0)
        if window.size + user + wakes > whole:
            room = max(1, whole - user - wakes)
            plan = plan_prune(window, room, goal=self._goal(room), pairs=self.settings.prune_pairs)
            self.recording.note("prune", plan)
            if plan.over > wakes:
                raise BadInput(
                    f"Your message does not fit by {plan.over} tokens. Send it in parts, put something to sleep, "
                    "or lower max_new_tokens."
                )
            yield self._prune_chunks(plan, before_turn=True)

    def _attach(self, user: int) -> Iterator[events.TurnEvent]:
        """Documents come before the user's words: whole if the model has room for them, else their openings."""
        cost = document_cost(self.open_window, self.asked.documents)
        whole = cost <= recall_room(self.open_window, user, given=True)
        yield from self._make_room(user + cost if whole else user)
        for plan in attach(self.system, self.open_window, self.asked, user, whole=whole):
            self._prune_chunks(plan, before_turn=True)
        self.recall.embed_soon()
        yield events.WindowChanged()

    def _remember(self, user: int, ids: Reservation) -> Iterator[events.TurnEvent]:
        self.system.split_long_chunks()  # of what the user put to sleep since
        question, wish = self.asked.question, self.asked.wish
        before = self.store.turn(question)[0].chunk.start if question else ids.start

        def planned(room: int) -> RecallResult:
            own = replace(wish, without=wish.without | self._pruned_for_room)
            began = time.perf_counter()
            try:
                return self.open_window.plan_recall(
                    self.text, room, recall=self.recall, now=self.now(), before=before, wish=own
                )
            finally:
                self.clock.recall += time.perf_counter() - began

        room = recall_room(self.open_window, user, given=wish.room)
        if wish.room and room > 0:
            yield from self._make_room(user, planned(room).plan.cost)
            room = context_room(self.open_window, self.open_window.window.size) - user
        yield events.SearchStarted(max(0, room))
        hits, plan, _ = planned(room) if room > 0 and not self._is_only_memory_request else NOTHING_RECALLED
        if plan.wakes:
            yield self._wake(plan, hits)

    def _wake(
        self,
        plan: RecallPlan,
        hits: Mapping[ChunkKey, RecallHit],
        *,
        by: Literal["recall", "memory"] = "recall",
    ) -> events.ChunksResurrected:
        chunks = self.open_window.wake(plan, hits, now=self.now(), by=by)
        self.stats["woken"] += len(chunks)
        self.open_window.recently_resurrected.update(plan.keys)
        self._woken.update((chunk.key, chunk.woken or {}) for chunk in chunks)
        return events.ChunksResurrected(chunks, plan.cost, plan.room, len(plan.passed_over))

    def _hear(self, said: Tokens, ids: Reservation) -> events.MessageStored | events.RegenerationStarted:
        """The user's turn is stored with its words in the index, and only then shown."""
        if self.asked.question:
            return events.RegenerationStarted(self.asked.question, ids.assistant_turn, self.asked.tokens)
        now, window = self.now(), self.open_window.window
        chunks = chunk_turn(
            said,
            ids.user_turn,
            Role.USER,
            ids.start,
            min_chunk_tokens=self.settings.min_chunk_tokens,
            max_chunk_tokens=self.settings.max_chunk_tokens,
        )
        live = [window.born(chunk) for chunk in chunks]
        kind, after = self.engine.info.tokenizer, None if self.asked.documents else self.asked.after
        record, speaker = self.open_window.record, self.asked.speaker or self.open_window.record.user_name
        self.store.append(
            record.id, live, tokenizer=kind, now=now, after=after, speaker=self.asked.speaker or None
        )
        with self.open_window.guard:
            self._note(chunks, speaker, now)
            window.add(live)
        frames = self.open_window.frames + window.frame_tokens.get(Role.ASSISTANT, 0)
        return events.MessageStored(
            ids.user_turn, ids.assistant_turn, now, speaker, frames, self._seen(chunks)
        )

    def _seen(self, chunks: Iterable[Chunk]) -> tuple[ChunkView, ...]:
        """As they are now. Another window may have deleted one of them meanwhile."""
        with self.open_window.guard:
            return tuple(
                self.open_window.seen(chunk.key) for chunk in chunks if chunk.key in self.open_window.window
            )

    def _note(self, chunks: Iterable[Chunk], speaker: str, now: datetime) -> None:
        for chunk in chunks:
            about = ChunkOrigin(self.open_window.record.id, speaker, now, tags=self._tags.get(chunk.key, ()))
            self.open_window.note(chunk, about)

    # What the user asks to remember or to forget

    def _memory_request(self) -> MemoryRequest | None:
        """Not for a message that is answered again, nor for a program that wants its reply in a form of its own."""
        if self.tree is None or self.asked.question or self.terms.tools or self.terms.grammar:
            return None
        return memory_request(self.text)

    @property
    def _is_only_memory_request(self) -> bool:
        """Whether the user only wants something saved or forgotten: that needs nothing of what was said before."""
        request = self.request
        return request is not None and request.only and request.kind != "ask" and not self.asked.wish.also

    def _run_memory_request(self, ids: Reservation) -> events.MemoryChanged | None:
        """Save or take out what the user wants, unless the model has just saved something by itself."""
        if self.request is None or self.tree is None or self._done or self._saved:
            return None
        self._done = True
        if self.request.kind == "remember":
            said = self.open_window.window.chunks
            source = [
                SnapshotChunk(one.key, one.text, len(one), 1.0, self.now().isoformat())
                for one in said
                if one.key.turn_id == ids.user_turn
            ]
            return save_user_request(
                self.tree, self.request.text, source, now=self.now(), within=self.open_window.scope
            )
        if self.request.kind == "forget":
            return forget_entry(self.tree, self.request.text, now=self.now())
        return None

    def _annotate_with_memory(self, ids: Reservation, kept: events.MemoryChanged | None) -> None:
        """The model is told, with the user's message, what is saved about it and what was just saved."""
        if self.tree is None or self.asked.question:
            return
        after = CONFIRM[kept.change] if kept else ""
        if self.request is not None and self.request.kind == "forget" and not kept and self.form == "off":
            after = NOTHING_SAVED
        able = self.engine.info.parameters >= CAPABLE_MODEL_PARAMETERS and self.settings.memory_tree_in_prompt
        before = saved_memories_note(self.tree, self.request) if able and self.form == "off" else ""
        if before or after:
            self.open_window.annotate_turn(ids.user_turn, before, after)

    def _file(self, kept: events.MemoryChanged | None) -> Iterator[events.TurnEvent]:
        if kept is None:
            return
        if kept.change == "saved" and self.tree is not None and not self.flag.is_set():
            kept = file_entry(self.engine, self.tree, kept, now=self.now(), stopped=self.flag.is_set)
        yield kept

    # While the model speaks

    def _resume(self) -> Iterator[events.TurnEvent]:
        """The reply begins with what was said of it before."""
        for kind, tokens in self.asked.opening:
            for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
                with self.open_window.guard:
                    self.light.attribute_token(None)
                    self.open_window.window.say(id, piece)
                    settled = self.reply.resume(id, piece, kind)
                yield from self._tell(settled)

    def _answer(self, ids: Reservation) -> Iterator[events.TurnEvent]:
        """The reply, with the tools it calls. A tool's answer becomes part of the reply, and the model goes on."""
        rounds = self.settings.tool_rounds
        while True:
            detector = self.toolbox.detector() if self.toolbox and rounds and self.form == "tags" else None
            calls: list[tuple[ToolCall, NativeCall | None]] = []
            self.reply.calls_end = bool(self.terms.tools or rounds)
            for step in self._generate(ids, first=not self.stats["tokens"]):
                got = time.perf_counter()
                self.clock.model += got - self.clock.handed
                match step:
                    case PrefillPlanned():
                        yield step
                    case PrefillResult():
                        yield self._prefill_done(step)
                    case Step() if calls and not self.calling.goes_on(step.piece):
                        break
                    case Step():
                        settled = self._take(step)
                        yield from self._tell(settled)
                        answer = b"".join(token.shown for token in settled if token.kind == "answer")
                        calls += [(call, None) for call in (detector.feed(answer) if detector else ())]
                        yield from self._client_tool_calls()
                        calls += self._native_calls() if rounds else []
                    case LateAttention():
                        self.light.see(step)
                    case GenerationEnd():
                        self.reason = step.reason
                        if step.cached is not None:
                            self.stats.update(cached=step.cached, prompted=step.prompted or 0)
                        if not calls and (not self.stats["called"] or self._has_answer()):
                            self.light.end(step.row)
                            return
                if calls and (detector or not self.calling.several):
                    break
                self.clock.handed = time.perf_counter()
                self.clock.per_token += self.clock.handed - got if isinstance(step, Step) else 0.0
            made = {call.command for call, native in calls if native}
            if not calls and self.stats["called"] and self.reason == "eos" and not self._has_answer():
                if not self.stats["retried"]:
                    self._retry_without_tools()
                    rounds = 0
                    continue
                yield from self._add_tool_output("answer", NOTHING_ADDED, ids)
                return
            if not calls or (made and made <= self._called):
                self.reason = "eos" if calls else self.reason  # small models repeat a call that was answered
                return
            self._called |= made
            self.stats["called"] += len(calls)
            yield from self._tell(self.reply.finish())
            yield from self._use_tools(calls, ids)
            rounds -= 1

    def _has_answer(self) -> bool:
        """Whether the model has said something after its last tool."""
        for token in reversed(self.reply.tokens):
            if token.by_tool:
                return False
            if token.kind == "answer" and token.shown.strip():
                return True
        return False

    def _retry_without_tools(self) -> None:
        """The model is asked once more, and no tools are declared to it any more."""
        self.stats["retried"] = 1
        self.form = "off"
        self.open_window.system = self.system.system_prompt(
            self.prompt_builder, self.open_window.record, self.settings, "off"
        )

    def _generate(self, ids: Reservation, *, first: bool) -> Iterator[GenerationEvent]:
        """The model's steps to the end of the reply, or of what there is room for."""
        window = self.open_window.window
        assert window.reply is not None
        left = min(
            self.settings.max_new_tokens - self.stats["tokens"],
            ids.stop - window.reply.start - len(window.reply.ids),
        )
        if left < 1:
            return iter([GenerationEnd("length", 0, 0.0)])
        sampling = self.asked.sampling(self.settings, left)
        capture = capture_for_attribution(window.strategy.capture, self.use.calibration)
        capture = self.recording.wanted(capture, self.engine)
        if not first:
            capture = replace(capture, reading=False, reading_surprisal=False)
        self.light.prompt = prompt = self.prompt_builder.prompt(
            window,
            self.open_window.system,
            self.open_window.origins,
            frozenset(self.open_window.foreign),
            effort=self.settings.effort,
            recently_resurrected=self.open_window.recently_resurrected,
            said=self.open_window.said,
        )
        marks = self.engine.facts.marks
        if first and not self.asked.opening:
            self.reply.begin(marks is not None and marks.opened_by(prompt.opening))
        self.clock.handed = time.perf_counter()
        self.clock.before = self.clock.before or self.clock.handed - self.clock.began
        return self.engine.generate(
            self.open_window.record.id,
            prompt,
            sampling,
            capture,
            mode=self.settings.kv_mode,
            stopped=self.flag.is_set,
        )

    def _prefill_done(self, read: PrefillResult) -> events.PrefillFinished:
        self.stats.update(reused=read.reused, restored=read.restored, computed=read.computed)
        self.clock.reading += read.seconds
        self.light.learn(read)
        return events.PrefillFinished(read.reused, read.restored, read.computed, read.seconds, read.rebuilt)

    def _take(self, step: Step) -> list[ReplyToken]:
        """The model's next token. Returns those of which it is known now what they are."""
        window = self.open_window.window
        with self.open_window.guard:
            row = self.light.prompt.whole(step.row)
            self.recording.row(row, self.settings.score_current_turn)
            if window.strategy.capture.reply and self.engine.info.abilities.attention:
                fault = window.update(row, score_reply=self.settings.score_current_turn)
            else:
                fault = row.fault(len(window)) if row is not None else None
            self.light.attribute_token(None if fault else row)
            window.say(step.id, step.piece, step.surprisal)
            settled = self.reply.feed(step.id, step.piece)
            self.reply.tokens[-1].surprisal, self.reply.tokens[-1].likely = step.surprisal, step.likely
        self.stats["tokens"] += 1
        self.draft.said()
        return settled

    def _tell(self, tokens: Iterable[ReplyToken]) -> Iterator[events.TurnEvent]:
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
        if tokens and time.perf_counter() - self._shown > BRIGHTNESS_INTERVAL:
            self._shown = time.perf_counter()
            yield self._brightness_event()

    def _brightness_event(self) -> events.BrightnessChanged:
        """Of what is live and told of: tokens of the reply may be held back."""
        window = self.open_window.window
        held = len(self.reply.tokens) - len(self.reply.known) if window.reply else 0
        return events.BrightnessChanged(window.shown()[: len(window) - held], self.use.lit)

    # Tools

    def _client_tool_calls(self) -> Iterator[events.TurnEvent]:
        """Calls of tools that another program runs."""
        if self.terms.tools:
            calls, self.reply.calls = self.reply.calls, []
            yield from (events.ClientToolCalled(call.name, dict(call.arguments)) for call in calls)

    def _native_calls(self) -> list[tuple[ToolCall, NativeCall | None]]:
        calls, self.reply.calls = self.reply.calls, []
        assert self.toolbox is not None or not calls
        if calls:
            self.calling.called(self.reply.rest)
        return [(self.toolbox.native_call(call.name, call.arguments), call) for call in calls if self.toolbox]

    def _use_tools(
        self, calls: Sequence[tuple[ToolCall, NativeCall | None]], ids: Reservation
    ) -> Iterator[events.TurnEvent]:
        assert self.toolbox is not None
        days, answers = self.settings.memory_decay_days, list[str]()
        for call, _ in calls:
            yield events.ToolCalled(call.command)
            answer = self.toolbox.run(call, now=self.now(), within=self.open_window.scope, decay_days=days)
            plan = self._plan_injection_for_tool(answer.wake, ids) if answer.wake else None
            text = f"{answer.text} {plan.refusal}" if plan and plan.refusal else answer.text
            yield events.ToolAnswered(text, answer.ok)
            self._saved |= answer.ok and call.command.startswith(("save_memory", "delete_memory"))
            answers.append(text)
            if plan:
                yield from self._resurrect_for_tool(plan)
        made = [native for _, native in calls if native]
        parts = self.calling.answered(made, answers) if made else None
        for kind, text in parts or [("answer", f"\n{text}\n") for text in answers]:
            yield from self._add_tool_output(kind, text, ids)
        self.reply.answered()
        if parts:
            marks = self.engine.facts.marks
            self.reply.begin(marks is not None and marks.opened_by(parts[-1][1]))

    def _add_tool_output(self, kind: ReplyKind, text: str, ids: Reservation) -> Iterator[events.TurnEvent]:
        """A tool's answer as tokens of the reply, as many as there are positions and room in the model for."""
        window = self.open_window.window
        assert window.reply is not None
        answer = self.engine.tokenize(text, special=kind == "mark")
        positions = ids.stop - window.reply.start - len(window.reply.ids)
        room = self.engine.info.context - window.size - 1
        for i, piece in enumerate(answer.pieces()[: max(0, min(positions, room))]):
            with self.open_window.guard:
                self.light.attribute_token(None)
                window.say(int(answer.ids[i]), piece)
                settled = self.reply.add(int(answer.ids[i]), piece, kind)
            self.draft.said()
            yield from self._tell(settled)

    def _plan_injection_for_tool(self, keys: Sequence[ChunkKey], ids: Reservation) -> InjectionPlan:
        """A memory's snapshot should return to its place."""
        return plan_injection(
            self.open_window,
            lambda room: self.open_window.plan_snapshot(keys, room, before=ids.start),
            current=(ids.user_turn, ids.assistant_turn),
            kept=keys,
        )

    def _resurrect_for_tool(self, plan: InjectionPlan) -> Iterator[events.TurnEvent]:
        if plan.prunes.goes:
            yield self._prune_chunks(plan.prunes, before_turn=True)
        if plan.wakes.wakes:
            yield self._wake(plan.wakes, {}, by="memory")

    # When the model has spoken

    def _store_reply(self) -> events.ReplyStored:
        window = self.open_window.window
        assert window.reply is not None
        turn_id, start = window.reply.turn_id, window.reply.start
        self.draft.close()
        now = self.now()
        with self.open_window.guard:
            parts = [] if self._nothing_added() else self.reply.parts(self.engine.tokenize)
            chunks = window.end_reply(
                self.settings.min_chunk_tokens, parts, max_chunk_tokens=self.settings.max_chunk_tokens
            )
            ended = (UNFINISHED,) if self.reason in ("length", "context") else ()
            tags = {chunk.key: (*self.reply.tags(chunk.start, chunk.stop), *ended) for chunk in chunks}
            self._tags = {key: own for key, own in tags.items() if own}
            self.stats["only_thought"] = bool(parts) and all(part.tag for part in parts)
            self._note(chunks, self.open_window.record.ai_name, now)
        self._kept = bool(chunks)
        live = [window.at(chunk.key) for chunk in chunks]
        store_reply(self.system, self.open_window, turn_id, live, self._tags, now)
        use = None if self.use.calibration.pending else self.use.whole(start)
        reminders = store_attribution(self.open_window, turn_id, use, self._woken) if chunks else ()
        seen, name = self._seen(chunks), self.open_window.record.ai_name
        return events.ReplyStored(turn_id, now, name, seen, use, reminders, unfinished=bool(ended))

    def _nothing_added(self) -> bool:
        """A reply that should go on has not: the one that was there stays, and no version is stored."""
        nothing = (
            bool(self.asked.opening)
            and not b"".join(token.piece for token in self.reply.tokens[self.asked.tokens :]).strip()
        )
        self.stats["nothing_added"] = nothing and self.reason != "abort"
        return nothing

    def _prune_after_reply(self, ids: Reservation) -> Iterator[events.TurnEvent]:
        """First thoughts and a tool's words between frames, which templates do not write of past turns; then the dimmest."""
        window, budget = self.open_window.window, self.open_window.live_limit
        aside = {THOUGHT, TOOL} if self.form == "native" else {THOUGHT}
        asides = [key for key, tags in self._tags.items() if aside.intersection(tags)]
        goes = [
            Prune(key, len(live.chunk), live.peak, PruneReason.TURN_OVER, 0)
            for key, live in ((key, window.at(key)) for key in asides if key in window)
        ]
        if goes:
            over = PrunePlan(budget, 0, tuple(goes))
            self.recording.note("prune", over)
            yield self._prune_chunks(over, before_turn=False)
        if not self._kept:
            self.open_window.take_back()  # nothing took the place of what went aside
        current = {ids.user_turn, ids.assistant_turn, self.asked.question or ids.user_turn}
        plan = self._plan_prune(budget, self.open_window.recent_turns() | current)
        self.recording.note("prune", plan)
        if plan.goes or plan.over:
            yield self._prune_chunks(plan, before_turn=False)

    def _plan_prune(self, budget: int, current: set[int]) -> PrunePlan:
        """Where a cache cannot be cut, what woke up goes first, if that is enough: the rest is read again then."""
        window, kept, pairs = (
            self.open_window.window,
            self._resurrected_and_used(),
            self.settings.prune_pairs,
        )
        goal, recently_resurrected = self._goal(budget), self.open_window.recently_resurrected
        if goal < budget and recently_resurrected:
            others = {chunk.key for chunk in window.chunks if chunk.key not in recently_resurrected}
            plan = plan_prune(window, budget, goal=goal, current=current, kept=kept | others, pairs=pairs)
            if not plan.over:
                return plan
        recently_resurrected.clear()
        return plan_prune(window, budget, goal=goal, current=current, kept=kept, pairs=pairs)

    def _goal(self, budget: int) -> int:
        able = self.engine.info.abilities
        return self.settings.prune_goal(budget, cuts=able.cuts, token_ids=able.token_ids)

    def _resurrected_and_used(self) -> set[ChunkKey]:
        if not self.settings.protect_used:
            return set()
        return {
            one.key
            for one in self.use.whole().chunks
            if one.key in self._woken and one.share >= MIN_USED_SHARE
        }

    def _prune_chunks(self, plan: PrunePlan, *, before_turn: bool) -> events.ChunksPruned:
        slept = self.open_window.prune(plan, now=self.now())
        self._pruned_for_room.update(plan.keys if before_turn else ())
        self.stats["asleep"] += len(slept)
        return events.ChunksPruned(slept, plan.budget, plan.over, before_turn)


COUNTS = (
    "tokens",
    "thought_tokens",
    "woken",
    "asleep",
    "reused",
    "restored",
    "computed",
    "prompted",
    "cached",
)


@dataclass(slots=True)
class TurnTimer:
    """The model's part of a turn and ours, in seconds."""

    began: float
    handed: float = 0.0  # when the model was asked for its next step
    model: float = 0.0
    reading: float = 0.0  # of the model's time, until its first token
    before: float = 0.0  # ours until the prompt was handed to the model
    recall: float = 0.0  # of that, for finding what should wake up
    per_token: float = 0.0  # ours while tokens came
    ended: float = 0.0  # when the model had spoken

    def summary(self, stats: Counter[str]) -> dict[str, float]:
        """The figures of a turn that is over now."""
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
