"""Branches of a window: what was said another way, and going from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from halo_weave.core.tokens import Role
from halo_weave.core.window import chunk_turn
from halo_weave.errors import BadInput, UnknownWindow
from halo_weave.records import TurnRecord, WindowRecord
from halo_weave.weave.history import Recognised, recognise
from halo_weave.weave.orders import go_to, on_branch, text_of
from halo_weave.weave.system import System


@dataclass(frozen=True, slots=True)
class Sibling:
    """One of several turns that follow the same one."""

    turn_id: int
    role: Role
    speaker: str
    said: datetime
    current: bool  # on the window's current branch
    text: str


class TurnBranches:
    """The part of `weave.turns` that needs no model."""

    _system: System

    def add(
        self, window_id: str, said: Sequence[tuple[Role, str]], *, after: int | None = None
    ) -> list[TurnRecord]:
        """Turns as they were said elsewhere, one after the other; the model is not asked.

        `after`: the turn that they follow, instead of the last one; 0: none.
        """
        with self._system.changing(window_id):
            if after:
                go_to(self._system, window_id, after)
            added = [
                self._add(window_id, role, text, after if not i else None)
                for i, (role, text) in enumerate(said)
            ]
        self._system.recall.note_said()
        return added

    def recognise(
        self, history: Sequence[tuple[Role, str]], window_id: str | None = None
    ) -> Recognised | None:
        """Where a conversation that another program sends whole was said, and how much of it is known here."""
        return recognise(self._system.store, history, window_id)

    def chat(self, name: str, window_id: str | None = None) -> str | None:
        """The window of a chat that another program knows by this name; with `window_id`, it is that one from now on."""
        if window_id is not None:
            self._system.store.name_chat(name, window_id)
            return window_id
        return self._system.store.chat_window(name)

    def last_of(self, window_id: str, turn_id: int) -> int:
        """A turn of this window by its id; it may be one that was never stored since nothing was said in it."""
        self._system.window(window_id)
        found = self._system.store.turn_record(turn_id)
        if found.window != window_id:
            raise UnknownWindow(f"Turn {turn_id} is of another window.")
        return found.id

    def replace(self, window_id: str, turn_id: int, text: str) -> TurnRecord:
        """The turn says this from now on. What it said, and what followed, stays in the record, aside."""
        turn = self._system.store.turn_record(turn_id)
        return self.add(window_id, [(turn.role, text)], after=turn.parent or 0)[0]

    def siblings(self, window_id: str, turn_id: int) -> list[Sibling]:
        """What was said at the place of this turn, itself included, in order of time."""
        store = self._system.store
        turn = store.turn_record(turn_id)
        self._system.window(window_id)
        return [
            Sibling(
                one.id,
                one.role,
                one.speaker,
                one.said,
                on_branch(store, window_id, one.id),
                text_of(store, one.id),
            )
            for one in store.followers(turn.parent or 0, turn.window)
        ]

    def switch(self, window_id: str, turn_id: int) -> TurnRecord:
        """The branch that goes through this turn comes back, up to what was said last on it."""
        store = self._system.store
        last = store.turn_record(turn_id)
        while more := [turn for turn in store.followers(last.id, window_id) if turn.window == window_id]:
            last = more[-1]
        return self.rewind(window_id, last.id)

    def rewind(self, window_id: str, turn_id: int) -> TurnRecord:
        """This turn becomes the window's last one. What followed goes aside, and can come back."""
        system = self._system
        with system.alone(window_id):
            system.window(window_id)
            last = system.store.turn_record(turn_id)
            if last.window != window_id and not on_branch(system.store, window_id, turn_id):
                raise BadInput(f"Turn {turn_id} is of another window. Branch off there.")
            windows = system.store.switch(window_id, turn_id, now=system.now())
        system.recall.note_said()
        system.changed({window_id, *windows})
        return system.store.turn_record(turn_id)

    def branch(self, window_id: str, turn_id: int, name: str | None = None) -> WindowRecord:
        """A new window that goes on from this turn: what led up to it belongs to both."""
        system = self._system
        with system.alone(window_id):
            of = system.window(window_id)
            system.check_owns(window_id)
            if not on_branch(system.store, window_id, turn_id):
                raise BadInput(f"Turn {turn_id} is not on the current branch. Switch to it first.")
            texts = {"system_prompt": of.system_prompt, "user_name": of.user_name, "ai_name": of.ai_name}
            record = system.store.create_window(
                name or f"{of.name[:180]} (branch)",
                settings=of.settings,
                tags=of.tags,
                inherits=of.inherits,
                now=system.now(),
                **texts,
            )
            system.store.switch(record.id, turn_id, now=system.now())
            keys = [
                chunk.key for chunk in system.desk(window_id).window.chunks if chunk.key.turn_id <= turn_id
            ]
        with system.alone(record.id):
            desk = system.desk_to_change(record.id)
            plan = desk.plan_snapshot(keys, desk.engine.info.context)
            if plan.wakes:
                desk.wake(plan, {}, now=system.now())
        return system.window(record.id)

    def _add(self, window_id: str, role: Role, text: str, after: int | None) -> TurnRecord:
        system = self._system
        engine = system.model_in(window_id).engine
        tokens = engine.tokenize(text)
        if not len(tokens):
            raise BadInput("A turn without words cannot be added.")
        ids = system.store.reserve(len(tokens) + 1)
        place = after if after is not None else system.window(window_id).head
        asked = system.store.turn_record(place) if place else None
        answers = asked.id if asked and asked.role is Role.USER and role is Role.ASSISTANT else None
        turn = ids.assistant_turn if role is Role.ASSISTANT else ids.user_turn
        desk = system.desk_to_change(window_id)
        size = desk.settings.min_chunk_tokens
        chunks = chunk_turn(tokens, turn, role, ids.start, answers, min_chunk_tokens=size)
        live = [desk.window.born(chunk) for chunk in chunks]
        kind = engine.info.tokenizer
        system.store.append(window_id, live, tokenizer=kind, now=system.now(), after=after)
        return system.store.turn_record(turn)
