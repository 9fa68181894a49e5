"""One turn: the user speaks, memory wakes up, the model answers, the dimmest falls asleep.

Each step is in the store before the next one begins, so a process that dies at any line loses at most the
brightness that the unfinished reply had earned.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from threading import Event as Flag
from typing import Any, Literal

from halo_weave.core.pruning import Prune, PrunePlan, SleepReason, choose_prunes
from halo_weave.core.resurrection import RecallHit, ResurrectionPlan
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.use import UseTally, seen_for_use
from halo_weave.core.window import chunk_turn
from halo_weave.errors import BadInput
from halo_weave.keepsakes.calls import ToolCall
from halo_weave.keepsakes.requests import MemoryRequest, memory_request
from halo_weave.keepsakes.structured_memory import KeptChunk
from halo_weave.ports import Done, GenerationEvent, Planned, Read, Reason, Seen, Step
from halo_weave.records import Reservation
from halo_weave.templates.messages import NativeCall
from halo_weave.weave import events
from halo_weave.weave.clock import TurnClock
from halo_weave.weave.desk import Desk
from halo_weave.weave.documents import attach, document_cost
from halo_weave.weave.holding import hold_back
from halo_weave.weave.injecting import InjectionPlan, plan_injection
from halo_weave.weave.lighting import TurnLight
from halo_weave.weave.orders import Asked, GuestTerms
from halo_weave.weave.prompt import declarations
from halo_weave.weave.readings import About
from halo_weave.weave.remembering import file_away, forget, keep, told
from halo_weave.weave.reply import THOUGHT, TOOL, UNFINISHED, ReplyKind, ReplyReader, ReplyToken
from halo_weave.weave.room import fitting, model_room, wake_room
from halo_weave.weave.roundtrip import NativeCalling
from halo_weave.weave.seen import SeenChunk
from halo_weave.weave.storing import store_reply, store_use
from halo_weave.weave.system import System
from halo_weave.weave.taping import TurnTape, Untaped
from halo_weave.weave.transcript import USED
from halo_weave.weave.waking import NOTHING_RECALLED, Recalled

OVERHEAD, MARGIN = 32, 128  # positions reserved beyond the user's words and the longest reply
TOOL_ROOM = 512  # and for the answer of each tool that may be called
ABLE = 1_000_000_000  # parameters from which on a model is helped by what is saved about a message
# What the model is told behind the user's words when the program has done what they ask for.
CONFIRM = {
    "saved": "\n\n(This is saved in your memory now. Reply in one short sentence that you will remember it.)",
    "forgotten": "\n\n(This is deleted from your memory now. Reply in one short sentence that you have forgotten it.)",
}
NOTHING_SAVED = "\n\n(Nothing like this was saved in your memory. Say that in one short sentence.)"
NOTHING_ADDED = "I have used my memory, and have nothing to add."
FRAME = 0.1  # seconds between two reports of brightness


class Turn:
    """One exchange in one window. `run` is the whole of it; `flag` stops it at the next token."""

    def __init__(self, system: System, desk: Desk, asked: Asked, began: float) -> None:
        self.desk, self.asked, self.text = desk, asked, asked.text
        self.engine, self.store, self.now = desk.engine, system.store, system.now
        self.recall, self.toolbox = system.recall, system.toolbox_in(desk.record)
        self.scribe, self.system, self.settings = desk.scribe, system, desk.settings
        self.calling = NativeCalling(desk.engine, desk.scribe, desk.settings.effort)
        self.flag = Flag()
        self.use = UseTally(desk.calibration, asked=True)
        self.clock = TurnClock(began)
        self.stats = Counter[str]()
        self.reason: Reason = "abort"
        self.terms = asked.terms or GuestTerms()
        self.form = "off" if asked.terms else system.tool_form(desk.settings, desk.record)
        self.tree = system.tree_in(desk)
        self.request = self._memory_request()
        desk.system = system.system_prompt(desk.scribe, desk.record, desk.settings, self.form)
        if asked.terms is not None:
            desk.system = desk.scribe.system(self.terms.system_prompt, self.terms.tools)
        desk.window.system_tokens = len(desk.system)
        self._tags: dict[ChunkKey, tuple[str, ...]] = {}
        self._done = self._saved = False  # what the user asked of the memory: by the program, by the model
        self._called: set[str] = set()  # commands in the template's format that were answered
        self._woken: dict[ChunkKey, Mapping[str, Any]] = {}  # and why
        self._made_room: set[ChunkKey] = set()  # what fell asleep for this turn does not wake up for it
        self._shown = 0.0
        self._kept = False  # whether a reply was stored
        desk.window.tape = system.tape(desk.record.id, desk.settings)
        self.tape: TurnTape = desk.window.tape or Untaped()
        self.light = TurnLight(desk, self.use, self.tape)

    def run(self) -> Iterator[events.TurnEvent]:
        self.tape.begin(self.desk.window, self.settings)
        said = fitting(self.desk, "" if self.asked.question else self.text)
        tools = self.settings.tool_rounds * TOOL_ROOM if self.form != "off" else 0
        more = self.settings.max_new_tokens + OVERHEAD + MARGIN + tools + self.asked.tokens
        if self.asked.after is not None or self.asked.question is not None:
            yield events.WindowChanged()
        if held := hold_back(self.desk, now=self.now()):
            yield events.ChunksSlept(held, self.desk.live_limit, 0, before_turn=True)
        yield from self._attach(len(said)) if self.asked.documents else self._make_room(len(said))
        ids = self.store.reserve(len(said) + more)
        yield from self._remember(len(said), ids)
        yield self._hear(said, ids)
        kept = self._do_request(ids) if self.form == "off" else None
        self._tell_of_memory(ids, kept)
        native = declarations(self.terms.tools) or (self.scribe.tools if self.form == "native" else ())
        with self.desk.guard:
            start = ids.start + len(said)
            self.desk.window.begin_reply(ids.assistant_turn, start, self.asked.question or ids.user_turn)
            self.reply = self.desk.reply = ReplyReader(
                start,
                self.engine.facts.marks,
                calls=self.calling.finder(native),
                calls_end=bool(self.terms.tools),
            )
        self.draft = self.system.drafts.begin(
            self.desk, self.engine.info.tokenizer, self.system.note_unstored
        )
        try:
            yield from self._resume()
            yield from self._answer(ids)
            yield from self._tell(self.reply.finish())
            yield self._brightened()
        finally:
            self.clock.ended = time.perf_counter()
            # Also when the model failed or nobody listens any more: what was said is kept.
            spoken = self._keep_reply()
        yield self._brightened()
        yield spoken
        yield from self._fall_asleep(ids)
        yield from self._file(kept or self._do_request(ids))
        self.system.divide_long()
        self.recall.note_said()
        stats = self.clock.summary(self.stats) | {"faults": sum(self.desk.window.faults.values())}
        ranks = {str(key): rank for key, rank in self.desk.window.ranks().items()}
        self.tape.end()
        yield events.TurnEnded(self.reason, self.desk.budget(), stats, ranks)

    # Before the model speaks

    def _make_room(self, user: int, wakes: int = 0) -> Iterator[events.TurnEvent]:
        """If the user's words, and what they wish to wake, would not fit into the model's context, the dimmest sleep first."""
        window, whole = self.desk.window, model_room(self.desk, 0)
        if window.size + user + wakes > whole:
            room = max(1, whole - user - wakes)
            plan = choose_prunes(window, room, goal=self._goal(room), pairs=self.settings.pairs_asleep)
            self.tape.note("prune", plan)
            if plan.over > wakes:
                raise BadInput(
                    f"Your message does not fit by {plan.over} tokens. Send it in parts, put something to sleep, "
                    "or lower max_new_tokens."
                )
            yield self._put_to_sleep(plan, before_turn=True)

    def _attach(self, user: int) -> Iterator[events.TurnEvent]:
        """Documents come before the user's words: whole if the model has room for them, else their openings."""
        cost = document_cost(self.desk, self.asked.documents)
        whole = cost <= wake_room(self.desk, user, given=True)
        yield from self._make_room(user + cost if whole else user)
        for plan in attach(self.system, self.desk, self.asked, user, whole=whole):
            self._put_to_sleep(plan, before_turn=True)
        self.recall.note_said()
        yield events.WindowChanged()

    def _remember(self, user: int, ids: Reservation) -> Iterator[events.TurnEvent]:
        self.system.divide_long()  # of what the user put to sleep since
        question, wish = self.asked.question, self.asked.wish
        before = self.store.turn(question)[0].chunk.start if question else ids.start

        def planned(room: int) -> Recalled:
            own = replace(wish, without=wish.without | self._made_room)
            began = time.perf_counter()
            try:
                return self.desk.plan_recall(
                    self.text, room, recall=self.recall, now=self.now(), before=before, wish=own
                )
            finally:
                self.clock.recall += time.perf_counter() - began

        room = wake_room(self.desk, user, given=wish.room)
        if wish.room and room > 0:
            yield from self._make_room(user, planned(room).plan.cost)
            room = model_room(self.desk, self.desk.window.size) - user
        yield events.SearchStarted(max(0, room))
        hits, plan, _ = planned(room) if room > 0 and not self._only_a_request else NOTHING_RECALLED
        if plan.wakes:
            yield self._wake(plan, hits)

    def _wake(
        self,
        plan: ResurrectionPlan,
        hits: Mapping[ChunkKey, RecallHit],
        *,
        by: Literal["recall", "memory"] = "recall",
    ) -> events.ChunksWoken:
        chunks = self.desk.wake(plan, hits, now=self.now(), by=by)
        self.stats["woken"] += len(chunks)
        self.desk.guests.update(plan.keys)
        self._woken.update((chunk.key, chunk.woken or {}) for chunk in chunks)
        return events.ChunksWoken(chunks, plan.cost, plan.room, len(plan.passed_over))

    def _hear(self, said: Tokens, ids: Reservation) -> events.Heard | events.Answering:
        """The user's turn is stored with its words in the index, and only then shown."""
        if self.asked.question:
            return events.Answering(self.asked.question, ids.assistant_turn, self.asked.tokens)
        now, window = self.now(), self.desk.window
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
        record, speaker = self.desk.record, self.asked.speaker or self.desk.record.user_name
        self.store.append(
            record.id, live, tokenizer=kind, now=now, after=after, speaker=self.asked.speaker or None
        )
        with self.desk.guard:
            self._note(chunks, speaker, now)
            window.add(live)
        frames = self.desk.frames + window.frame_tokens.get(Role.ASSISTANT, 0)
        return events.Heard(ids.user_turn, ids.assistant_turn, now, speaker, frames, self._seen(chunks))

    def _seen(self, chunks: Iterable[Chunk]) -> tuple[SeenChunk, ...]:
        """As they are now. Another window may have deleted one of them meanwhile."""
        with self.desk.guard:
            return tuple(self.desk.seen(chunk.key) for chunk in chunks if chunk.key in self.desk.window)

    def _note(self, chunks: Iterable[Chunk], speaker: str, now: datetime) -> None:
        for chunk in chunks:
            about = About(self.desk.record.id, speaker, now, tags=self._tags.get(chunk.key, ()))
            self.desk.note(chunk, about)

    # What the user asks to remember or to forget

    def _memory_request(self) -> MemoryRequest | None:
        """Not for a message that is answered again, nor for a program that wants its reply in a form of its own."""
        if self.tree is None or self.asked.question or self.terms.tools or self.terms.grammar:
            return None
        return memory_request(self.text)

    @property
    def _only_a_request(self) -> bool:
        """Whether the user only wants something saved or forgotten: that needs nothing of what was said before."""
        request = self.request
        return request is not None and request.only and request.kind != "ask" and not self.asked.wish.also

    def _do_request(self, ids: Reservation) -> events.MemoryChanged | None:
        """Save or take out what the user wants, unless the model has just saved something by itself."""
        if self.request is None or self.tree is None or self._done or self._saved:
            return None
        self._done = True
        if self.request.kind == "remember":
            said = self.desk.window.chunks
            source = [
                KeptChunk(one.key, one.text, len(one), 1.0, self.now().isoformat())
                for one in said
                if one.key.turn_id == ids.user_turn
            ]
            return keep(self.tree, self.request.text, source, now=self.now())
        if self.request.kind == "forget":
            return forget(self.tree, self.request.text, now=self.now())
        return None

    def _tell_of_memory(self, ids: Reservation, kept: events.MemoryChanged | None) -> None:
        """The model is told, with the user's message, what is saved about it and what was just saved."""
        if self.tree is None or self.asked.question:
            return
        after = CONFIRM[kept.change] if kept else ""
        if self.request is not None and self.request.kind == "forget" and not kept and self.form == "off":
            after = NOTHING_SAVED
        able = self.engine.info.parameters >= ABLE and self.settings.memory_tree_in_prompt
        before = told(self.tree, self.request) if able and self.form == "off" else ""
        if before or after:
            self.desk.tell_with(ids.user_turn, before, after)

    def _file(self, kept: events.MemoryChanged | None) -> Iterator[events.TurnEvent]:
        if kept is None:
            return
        if kept.change == "saved" and self.tree is not None and not self.flag.is_set():
            kept = file_away(self.engine, self.tree, kept, now=self.now(), stopped=self.flag.is_set)
        yield kept

    # While the model speaks

    def _resume(self) -> Iterator[events.TurnEvent]:
        """The reply begins with what was said of it before."""
        for kind, tokens in self.asked.opening:
            for id, piece in zip(tokens.ids.tolist(), tokens.pieces(), strict=True):
                with self.desk.guard:
                    self.light.use_row(None)
                    self.desk.window.say(id, piece)
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
                    case Planned():
                        yield step
                    case Read():
                        yield self._have_read(step)
                    case Step() if calls and not self.calling.goes_on(step.piece):
                        break
                    case Step():
                        settled = self._take(step)
                        yield from self._tell(settled)
                        answer = b"".join(token.shown for token in settled if token.kind == "answer")
                        calls += [(call, None) for call in (detector.feed(answer) if detector else ())]
                        yield from self._calls_for_others()
                        calls += self._native_calls() if rounds else []
                    case Seen():
                        self.light.see(step)
                    case Done():
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
                    self._without_tools()
                    rounds = 0
                    continue
                yield from self._say_for_tool("answer", NOTHING_ADDED, ids)
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

    def _without_tools(self) -> None:
        """The model is asked once more, and no tools are declared to it any more."""
        self.stats["retried"] = 1
        self.form = "off"
        self.desk.system = self.system.system_prompt(self.scribe, self.desk.record, self.settings, "off")

    def _generate(self, ids: Reservation, *, first: bool) -> Iterator[GenerationEvent]:
        """The model's steps to the end of the reply, or of what there is room for."""
        window = self.desk.window
        assert window.reply is not None
        left = min(
            self.settings.max_new_tokens - self.stats["tokens"],
            ids.stop - window.reply.start - len(window.reply.ids),
        )
        if left < 1:
            return iter([Done("length", 0, 0.0)])
        sampling = self.asked.sampling(self.settings, left)
        capture = seen_for_use(window.strategy.capture, self.use.calibration)
        capture = self.tape.wanted(capture, self.engine)
        if not first:
            capture = replace(capture, reading=False, reading_surprisal=False)
        self.light.prompt = prompt = self.scribe.prompt(
            window,
            self.desk.system,
            self.desk.origins,
            frozenset(self.desk.foreign),
            effort=self.settings.effort,
            guests=self.desk.guests,
            said=self.desk.said,
        )
        marks = self.engine.facts.marks
        if first and not self.asked.opening:
            self.reply.begin(marks is not None and marks.opened_by(prompt.opening))
        self.clock.handed = time.perf_counter()
        self.clock.before = self.clock.before or self.clock.handed - self.clock.began
        return self.engine.generate(
            self.desk.record.id,
            prompt,
            sampling,
            capture,
            mode=self.settings.kv_mode,
            stopped=self.flag.is_set,
        )

    def _have_read(self, read: Read) -> events.PromptRead:
        self.stats.update(reused=read.reused, restored=read.restored, computed=read.computed)
        self.clock.reading += read.seconds
        self.light.learn(read)
        return events.PromptRead(read.reused, read.restored, read.computed, read.seconds, read.rebuilt)

    def _take(self, step: Step) -> list[ReplyToken]:
        """The model's next token. Returns those of which it is known now what they are."""
        window = self.desk.window
        with self.desk.guard:
            row = self.light.prompt.whole(step.row)
            self.tape.row(row, self.settings.score_current_turn)
            if window.strategy.capture.reply and self.engine.info.abilities.attention:
                fault = window.update(row, score_reply=self.settings.score_current_turn)
            else:
                fault = row.fault(len(window)) if row is not None else None
            self.light.use_row(None if fault else row)
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
            yield events.TokenSpoken(
                token.id,
                token.position,
                token.piece,
                token.text,
                token.by_tool,
                thought,
                token.surprisal,
                token.likely,
            )
        if tokens and time.perf_counter() - self._shown > FRAME:
            self._shown = time.perf_counter()
            yield self._brightened()

    def _brightened(self) -> events.Brightened:
        """Of what is live and told of: tokens of the reply may be held back."""
        window = self.desk.window
        held = len(self.reply.tokens) - len(self.reply.known) if window.reply else 0
        return events.Brightened(window.shown()[: len(window) - held], self.use.lit)

    # Tools

    def _calls_for_others(self) -> Iterator[events.TurnEvent]:
        """Calls of tools that another program runs."""
        if self.terms.tools:
            calls, self.reply.calls = self.reply.calls, []
            yield from (events.CallMade(call.name, dict(call.arguments)) for call in calls)

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
            answer = self.toolbox.run(call, now=self.now(), within=self.desk.scope, decay_days=days)
            plan = self._plan_for_tool(answer.wake, ids) if answer.wake else None
            text = f"{answer.text} {plan.refusal}" if plan and plan.refusal else answer.text
            yield events.ToolAnswered(text, answer.ok)
            self._saved |= answer.ok and call.command.startswith(("save_memory", "delete_memory"))
            answers.append(text)
            if plan:
                yield from self._wake_for_tool(plan)
        made = [native for _, native in calls if native]
        parts = self.calling.answered(made, answers) if made else None
        for kind, text in parts or [("answer", f"\n{text}\n") for text in answers]:
            yield from self._say_for_tool(kind, text, ids)
        self.reply.answered()
        if parts:
            marks = self.engine.facts.marks
            self.reply.begin(marks is not None and marks.opened_by(parts[-1][1]))

    def _say_for_tool(self, kind: ReplyKind, text: str, ids: Reservation) -> Iterator[events.TurnEvent]:
        """A tool's answer as tokens of the reply, as many as there are positions and room in the model for."""
        window = self.desk.window
        assert window.reply is not None
        answer = self.engine.tokenize(text, special=kind == "mark")
        positions = ids.stop - window.reply.start - len(window.reply.ids)
        room = self.engine.info.context - window.size - 1
        for i, piece in enumerate(answer.pieces()[: max(0, min(positions, room))]):
            with self.desk.guard:
                self.light.use_row(None)
                window.say(int(answer.ids[i]), piece)
                settled = self.reply.add(int(answer.ids[i]), piece, kind)
            self.draft.said()
            yield from self._tell(settled)

    def _plan_for_tool(self, keys: Sequence[ChunkKey], ids: Reservation) -> InjectionPlan:
        """A memory's snapshot should return to its place."""
        return plan_injection(
            self.desk,
            lambda room: self.desk.plan_snapshot(keys, room, before=ids.start),
            current=(ids.user_turn, ids.assistant_turn),
            kept=keys,
        )

    def _wake_for_tool(self, plan: InjectionPlan) -> Iterator[events.TurnEvent]:
        if plan.prunes.goes:
            yield self._put_to_sleep(plan.prunes, before_turn=True)
        if plan.wakes.wakes:
            yield self._wake(plan.wakes, {}, by="memory")

    # When the model has spoken

    def _keep_reply(self) -> events.Spoken:
        window = self.desk.window
        assert window.reply is not None
        turn_id, start = window.reply.turn_id, window.reply.start
        self.draft.close()
        now = self.now()
        with self.desk.guard:
            parts = [] if self._nothing_added() else self.reply.parts(self.engine.tokenize)
            chunks = window.end_reply(
                self.settings.min_chunk_tokens, parts, max_chunk_tokens=self.settings.max_chunk_tokens
            )
            ended = (UNFINISHED,) if self.reason in ("length", "context") else ()
            tags = {chunk.key: (*self.reply.tags(chunk.start, chunk.stop), *ended) for chunk in chunks}
            self._tags = {key: own for key, own in tags.items() if own}
            self.stats["only_thought"] = bool(parts) and all(part.tag for part in parts)
            self._note(chunks, self.desk.record.ai_name, now)
        self._kept = bool(chunks)
        live = [window.at(chunk.key) for chunk in chunks]
        store_reply(self.system, self.desk, turn_id, live, self._tags, now)
        use = None if self.use.calibration.pending else self.use.whole(start)
        reminders = store_use(self.desk, turn_id, use, self._woken) if chunks else ()
        seen, name = self._seen(chunks), self.desk.record.ai_name
        return events.Spoken(turn_id, now, name, seen, use, reminders, unfinished=bool(ended))

    def _nothing_added(self) -> bool:
        """A reply that should go on has not: the one that was there stays, and no version is stored."""
        nothing = (
            bool(self.asked.opening)
            and not b"".join(token.piece for token in self.reply.tokens[self.asked.tokens :]).strip()
        )
        self.stats["nothing_added"] = nothing and self.reason != "abort"
        return nothing

    def _fall_asleep(self, ids: Reservation) -> Iterator[events.TurnEvent]:
        """First thoughts and a tool's words between frames, which templates do not write of past turns; then the dimmest."""
        window, budget = self.desk.window, self.desk.live_limit
        aside = {THOUGHT, TOOL} if self.form == "native" else {THOUGHT}
        asides = [key for key, tags in self._tags.items() if aside.intersection(tags)]
        goes = [
            Prune(key, len(live.chunk), live.peak, SleepReason.TURN_OVER, 0)
            for key, live in ((key, window.at(key)) for key in asides if key in window)
        ]
        if goes:
            over = PrunePlan(budget, 0, tuple(goes))
            self.tape.note("prune", over)
            yield self._put_to_sleep(over, before_turn=False)
        if not self._kept:
            self.desk.take_back()  # nothing took the place of what went aside
        current = {ids.user_turn, ids.assistant_turn, self.asked.question or ids.user_turn}
        plan = self._plan_sleep(budget, self.desk.last_exchanges() | current)
        self.tape.note("prune", plan)
        if plan.goes or plan.over:
            yield self._put_to_sleep(plan, before_turn=False)

    def _plan_sleep(self, budget: int, current: set[int]) -> PrunePlan:
        """Where a cache cannot be cut, what woke up goes first, if that is enough: the rest is read again then."""
        window, kept, pairs = self.desk.window, self._woken_and_used(), self.settings.pairs_asleep
        goal, guests = self._goal(budget), self.desk.guests
        if goal < budget and guests:
            others = {chunk.key for chunk in window.chunks if chunk.key not in guests}
            plan = choose_prunes(window, budget, goal=goal, current=current, kept=kept | others, pairs=pairs)
            if not plan.over:
                return plan
        guests.clear()
        return choose_prunes(window, budget, goal=goal, current=current, kept=kept, pairs=pairs)

    def _goal(self, budget: int) -> int:
        able = self.engine.info.abilities
        return self.settings.prune_goal(budget, cuts=able.cuts, token_ids=able.token_ids)

    def _woken_and_used(self) -> set[ChunkKey]:
        if not self.settings.keep_used:
            return set()
        return {one.key for one in self.use.whole().chunks if one.key in self._woken and one.share >= USED}

    def _put_to_sleep(self, plan: PrunePlan, *, before_turn: bool) -> events.ChunksSlept:
        slept = self.desk.prune(plan, now=self.now())
        self._made_room.update(plan.keys if before_turn else ())
        self.stats["asleep"] += len(slept)
        return events.ChunksSlept(slept, plan.budget, plan.over, before_turn)
