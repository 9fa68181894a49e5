"""Branches of a window: versions of a turn, checkout, rewind, and matching a history that a client sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from halo_weave.chat.runtime import Runtime
from halo_weave.chat.turn_request import checkout_turn, on_branch, text_of_turn
from halo_weave.core.tokens import Role
from halo_weave.core.turn_text import turn_hash
from halo_weave.core.working_set import chunk_turn
from halo_weave.errors import BadInput, UnknownWindow
from halo_weave.store.records import TurnRecord, WindowRecord
from halo_weave.store.sql_store import SqlStore

MATCHING_MESSAGES = 4  # so many matching messages identify a history whose beginning differs
UNIQUE_REPLY_WORDS = 12  # so many words of a reply that occurs once identify a history by themselves


@dataclass(frozen=True, slots=True)
class KnownHistory:
    """The last turn that a window and a history have in common."""

    window: str
    turn: TurnRecord | None  # None: they have no turn in common
    known: int  # number of messages of the history up to and including that turn


def match_history(
    store: SqlStore, history: Sequence[tuple[Role, str]], window: str | None = None
) -> KnownHistory | None:
    """Find the longest part of the history that was said here, on one branch, from the beginning of the history.

    Without `window`, at least one reply must match: two chats may begin with the same user messages. If the client has
    dropped or replaced the oldest messages, several messages must match, or one long reply that occurs only once.
    """
    hashes = [turn_hash(role, text) for role, text in history]
    partly: tuple[int, TurnRecord] | None = None
    at = len(history) - 1
    while at >= 0:
        if window is None and history[at][0] is not Role.ASSISTANT:
            at -= 1
            continue
        longest, found = 0, None
        likely = _likeliest(store, hashes[at], window)
        for turn in likely:
            line = [found_hash for _, found_hash in store.hashes_before(turn.id, at + 1)]
            same = next((i for i, found_hash in enumerate(line) if found_hash != hashes[at - i]), len(line))
            if same > longest:
                longest, found = same, turn
        if found is not None and longest == at + 1:
            return _extended(store, hashes, found, at, window)
        unique_reply = len(likely) == 1 and len(history[at][1].split()) >= UNIQUE_REPLY_WORDS
        if found is not None and (longest >= MATCHING_MESSAGES or unique_reply) and partly is None:
            partly = at, found
        at -= longest + 1 if longest else 1
    if partly is not None:
        return _extended(store, hashes, partly[1], partly[0], window)
    return KnownHistory(window, None, 0) if window else None


def _likeliest(store: SqlStore, wanted_hash: int, window: str | None) -> list[TurnRecord]:
    """Turns with this hash; those without following turns come first."""
    found = store.turns_with_hash(wanted_hash, window=window)
    return (
        sorted(found, key=lambda turn: bool(store.followers(turn.id, turn.window)))
        if len(found) > 1
        else found
    )


def _extended(
    store: SqlStore, hashes: Sequence[int], turn: TurnRecord, at: int, window: str | None
) -> KnownHistory:
    """Follow the history from a turn on, as long as the turns that follow it here match."""
    place = window or turn.window
    for wanted_hash in hashes[at + 1 :]:
        same = [one for one in store.turns_with_hash(wanted_hash, window=place) if one.parent == turn.id]
        if not same:
            break
        turn, at = same[0], at + 1
    return KnownHistory(place, turn, at + 1)


@dataclass(frozen=True, slots=True)
class TurnVersion:
    """One version of a turn: turns that follow the same turn are versions of each other."""

    turn_id: int
    role: Role
    speaker: str
    said: datetime
    current: bool  # on the window's current branch
    text: str


class Branches:
    """The methods of `weave.turns` that need no model."""

    _runtime: Runtime

    def add(
        self, window_id: str, said: Sequence[tuple[Role, str]], *, after: int | None = None
    ) -> list[TurnRecord]:
        """Add turns that were written elsewhere, one after the other, without generating.

        `after`: the turn that they follow, instead of the last one; 0: none.
        """
        with self._runtime.exclusive_change(window_id):
            if after:
                checkout_turn(self._runtime, window_id, after)
            added = [
                self._add(window_id, role, text, after if not i else None)
                for i, (role, text) in enumerate(said)
            ]
        self._runtime.memory_search.embed_soon()
        return added

    def recognise(
        self, history: Sequence[tuple[Role, str]], window_id: str | None = None
    ) -> KnownHistory | None:
        """Find where a history that an API client sends was said, and how many of its messages are stored here."""
        return match_history(self._runtime.store, history, window_id)

    def chat(self, name: str, window_id: str | None = None) -> str | None:
        """The window that an API client knows by this chat name. With `window_id`, the name belongs to that window from
        now on."""
        if window_id is not None:
            self._runtime.store.name_chat(name, window_id)
            return window_id
        return self._runtime.store.chat_window(name)

    def last_of(self, window_id: str, turn_id: int) -> int:
        """A turn of this window by its id. If it was never stored because it was empty, the turn before it."""
        self._runtime.window(window_id)
        found = self._runtime.store.turn_record(turn_id)
        if found.window != window_id:
            raise UnknownWindow(f"Turn {turn_id} is of another window.")
        return found.id

    def replace(self, window_id: str, turn_id: int, text: str) -> TurnRecord:
        """Replace the text of a turn. The former text and the turns that followed stay stored on another branch."""
        turn = self._runtime.store.turn_record(turn_id)
        return self.add(window_id, [(turn.role, text)], after=turn.parent or 0)[0]

    def siblings(self, window_id: str, turn_id: int) -> list[TurnVersion]:
        """All versions of this turn, this one included, in order of time."""
        store = self._runtime.store
        turn = store.turn_record(turn_id)
        self._runtime.window(window_id)
        return [
            TurnVersion(
                follower.id,
                follower.role,
                follower.speaker,
                follower.said,
                on_branch(store, window_id, follower.id),
                text_of_turn(store, follower.id),
            )
            for follower in store.followers(turn.parent or 0, turn.window)
        ]

    def switch(self, window_id: str, turn_id: int) -> TurnRecord:
        """Check out the branch that goes through this turn, up to its last turn."""
        store = self._runtime.store
        last = store.turn_record(turn_id)
        while more := [turn for turn in store.followers(last.id, window_id) if turn.window == window_id]:
            last = more[-1]
        return self.rewind(window_id, last.id)

    def rewind(self, window_id: str, turn_id: int) -> TurnRecord:
        """Make this turn the window's last one. The turns that followed leave the current branch and can be checked out again."""
        runtime = self._runtime
        with runtime.exclusive(window_id):
            runtime.window(window_id)
            last = runtime.store.turn_record(turn_id)
            if last.window != window_id and not on_branch(runtime.store, window_id, turn_id):
                raise BadInput(f"Turn {turn_id} is of another window. Branch off there.")
            windows = runtime.store.switch(window_id, turn_id, now=runtime.now())
        runtime.memory_search.embed_soon()
        runtime.publish_changed({window_id, *windows})
        return runtime.store.turn_record(turn_id)

    def branch(self, window_id: str, turn_id: int, name: str | None = None) -> WindowRecord:
        """Create a new window that continues from this turn. Both windows share the turns up to it."""
        runtime = self._runtime
        with runtime.exclusive(window_id):
            of = runtime.window(window_id)
            runtime.store.check_owns(window_id)
            if not on_branch(runtime.store, window_id, turn_id):
                raise BadInput(f"Turn {turn_id} is not on the current branch. Switch to it first.")
            texts = {"system_prompt": of.system_prompt, "user_name": of.user_name, "ai_name": of.ai_name}
            record = runtime.store.create_window(
                name or f"{of.name[:180]} (branch)",
                settings=of.settings,
                tags=of.tags,
                inherits=of.inherits,
                now=runtime.now(),
                **texts,
            )
            runtime.store.switch(record.id, turn_id, now=runtime.now())
            keys = [
                chunk.key
                for chunk in runtime.window_for_reading(window_id).working_set.chunks
                if chunk.key.turn_id <= turn_id
            ]
        with runtime.exclusive(record.id):
            open_window = runtime.window_for_change(record.id)
            plan = open_window.plan_resurrection_of(keys, open_window.engine.info.context)
            if plan.chunks:
                open_window.resurrect(plan, {}, now=runtime.now())
        return runtime.window(record.id)

    def _add(self, window_id: str, role: Role, text: str, after: int | None) -> TurnRecord:
        runtime = self._runtime
        engine = runtime.model_for_window(window_id).engine
        tokens = engine.tokenize(text)
        if not len(tokens):
            raise BadInput("A turn without words cannot be added.")
        ids = runtime.store.reserve(len(tokens) + 1)
        place = after if after is not None else runtime.window(window_id).head
        asked = runtime.store.turn_record(place) if place else None
        answers = asked.id if asked and asked.role is Role.USER and role is Role.ASSISTANT else None
        turn = ids.assistant_turn if role is Role.ASSISTANT else ids.user_turn
        open_window = runtime.window_for_change(window_id)
        size = open_window.settings.min_chunk_tokens
        chunks = chunk_turn(tokens, turn, role, ids.start, answers, min_chunk_tokens=size)
        live = [open_window.working_set.new_chunk(chunk) for chunk in chunks]
        kind = engine.info.tokenizer
        runtime.store.append(window_id, live, tokenizer=kind, now=runtime.now(), after=after)
        return runtime.store.turn_record(turn)
