"""Create, change, delete and list windows, and show their context and graveyard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from halo_weave.chat.events import ChunksPruned
from halo_weave.chat.open_window import INTERRUPTED
from halo_weave.chat.prompt import in_reading_order
from halo_weave.chat.reply import THOUGHT, UNFINISHED
from halo_weave.chat.runtime import Runtime
from halo_weave.chat.transcript import (
    Excerpt,
    TimelineView,
    digest,
    reply_sources,
    timeline_view,
    transcript_page,
)
from halo_weave.chat.turn_runner import Turns, storable_text
from halo_weave.chat.views import ContextView, PrunedGap, ReplyView, TranscriptPage, TurnView
from halo_weave.core.attribution import Attribution
from halo_weave.core.pruning import plan_prune
from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput, UnknownChunk, UnknownWindow
from halo_weave.settings import SHARED_KEY, Settings, checked_setting, setting_field, usable_settings
from halo_weave.store.records import (
    DOCUMENT,
    MAX_TAGS,
    NAME_LENGTH,
    PERSONA_KEY,
    TAG_LENGTH,
    GraveyardChunk,
    GraveyardPage,
    StoredChunk,
    WindowRecord,
    WindowStats,
    stored_persona,
)

LAST_TEXT = 120  # characters of a window's last words in a list


@dataclass(frozen=True, slots=True)
class WindowState(WindowStats):
    """A window as lists show it."""

    effective: Settings = field(default_factory=Settings)
    generating: bool = False
    owner: str = ""  # the name of the person who shares it; empty: an own window
    writable: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """The window's own settings that this version knows."""
        return usable_settings(self.window.settings)

    @property
    def modified(self) -> datetime:
        """When the window was last changed or written in."""
        return max(self.window.modified, self.last_said or self.window.modified)

    @property
    def last_words(self) -> str:
        return " ".join(self.last_text.split())[:LAST_TEXT]


class Windows:
    """`weave.windows`: create, change and show windows."""

    def __init__(self, runtime: Runtime, turns: Turns) -> None:
        self._runtime, self._turns = runtime, turns

    # Windows and settings

    def list(self) -> list[WindowState]:
        found = []
        for record in self._runtime.store.windows():
            with suppress(UnknownWindow):  # the memory has been cleared
                found.append(self._state(record))
        return found

    def state(self, window_id: str) -> WindowState:
        """A window with its counts and last messages."""
        return self._state(self._runtime.window(window_id))

    def _state(self, record: WindowRecord) -> WindowState:
        stats = self._runtime.store.window_stats(record.id)
        figures = {one.name: getattr(stats, one.name) for one in fields(stats)}
        generating = record.id in self._turns.generating()
        owner, writable = self._runtime.sharing_of(record)
        settings = self._runtime.settings(record)
        limit = settings.live_limit(self._runtime.model_for_settings(settings).engine.info.context)
        return WindowState(
            **figures,
            effective=replace(settings, max_context_tokens=limit),
            generating=generating,
            owner=owner,
            writable=writable,
        )

    def get(self, window_id: str) -> WindowRecord:
        return self._runtime.window(window_id)

    def find(self, name: str) -> WindowRecord:
        """A window by its id, or by its name if that is unique."""
        return find_window(self._runtime.store.windows(), name)

    def names(self) -> dict[str, str]:
        """The names of all windows, deleted ones too, by id."""
        return self._runtime.window_names()

    def create(
        self,
        name: str,
        *,
        settings: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        **words: str,
    ) -> WindowRecord:
        """Create a window. `words`: system_prompt, user_name and ai_name, where they differ from those of all windows."""
        runtime = self._runtime
        own = _texts({"name": name, **words})
        shared = stored_persona(runtime.store.settings().get(PERSONA_KEY))
        return runtime.store.create_window(
            **{**shared, **own},
            settings=_checked(settings or {}),
            tags=checked_tags(tags),
            inherits=shared.keys() - own.keys(),
            now=runtime.now(),
        )

    def change(
        self,
        window_id: str,
        *,
        settings: Mapping[str, Any] | None = None,
        reset: Sequence[str] = (),
        tags: Sequence[str] | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
        inherits: Sequence[str] = (),
        **texts: str | None,
    ) -> WindowRecord:
        """Change what is given: name, system_prompt, user_name, ai_name, settings, tags, pinned, archived.

        Settings in `reset`, and the texts that it `inherits`, follow those of all windows again.
        """
        runtime = self._runtime
        runtime.window(window_id)
        own = _checked(settings or {}, reset)
        record = runtime.store.change_window(
            window_id,
            **_texts(texts),
            settings=own,
            reset=reset,
            tags=None if tags is None else checked_tags(tags),
            pinned=pinned,
            archived=archived,
            inherits=inherits,
            now=runtime.now(),
        )
        runtime.publish_changed([window_id])
        return record

    def delete(self, window_id: str) -> None:
        """Delete the window and its captures. What was said in it stays in memory."""
        runtime = self._runtime
        with runtime.exclusive(window_id):
            runtime.window(window_id)
            runtime.store.delete_window(window_id, now=runtime.now())
            for engine in runtime.engines:
                engine.forget(window_id)
            runtime.delete_recordings(window_id)
        runtime.publish_deleted([window_id])

    def drop_captures(self, window_id: str) -> None:
        """Delete the captures of the window."""
        runtime = self._runtime
        with runtime.exclusive(window_id):
            runtime.window(window_id)
            runtime.delete_recordings(window_id)

    def settings(self, window_id: str | None = None) -> Settings:
        """The settings for all windows, or the effective settings of one."""
        return self._runtime.settings(None if window_id is None else self._runtime.window(window_id))

    def automatic(self) -> dict[str, int]:
        """The values of settings that are left empty, for the default model. Empty while there is no model."""
        info = self._runtime.engine.info
        return (
            {"max_context_tokens": self.settings().live_limit(info.context)} if info.abilities.speaks else {}
        )

    def change_settings(self, changes: Mapping[str, Any], reset: Sequence[str] = ()) -> Settings:
        """Change the settings for all windows that have none of their own."""
        runtime = self._runtime
        runtime.store.change_settings(SHARED_KEY, _checked(changes, reset), reset, now=runtime.now())
        return runtime.settings()

    # What is in them

    def context(self, window_id: str) -> ContextView:
        """What the model reads in the window, as it is now."""
        last = self._turns.hub(window_id).last  # read first: later events may already be in the context
        open_window = self._runtime.window_for_reading(window_id)
        gaps = open_window.gaps()
        with open_window.lock:
            ranks = open_window.working_set.ranks()
            seen = [
                open_window.chunk_view(
                    chunk.key, gaps.before.get(chunk.key), gaps.thoughts.get(chunk.key, 0), ranks[chunk.key]
                )
                for chunk in in_reading_order(
                    open_window.working_set.chunks, open_window.annotations, open_window.said_at
                )
            ]
            about, budget, reply = (
                dict(open_window.chunk_origins),
                open_window.budget(),
                open_window.working_set.reply,
            )
            in_progress = None
            if reply is not None:
                reply_tokens = open_window.reply_parser.known if open_window.reply_parser else ()
                brightness = open_window.working_set.brightness[open_window.working_set.offsets[-1] :][
                    : len(reply_tokens)
                ].copy()
                in_progress = ReplyView(
                    reply.turn_id,
                    reply.start,
                    [token.text for token in reply_tokens],
                    brightness,
                    [token.by_tool for token in reply_tokens],
                    [token.kind == THOUGHT for token in reply_tokens],
                )
        if in_progress is None and window_id not in self._runtime.busy_windows:
            in_progress = self._turns.remote_replies.reply(window_id)
        replies = {one.key.turn_id for one in seen if one.key.role is Role.ASSISTANT}
        reminded = reply_sources(self._runtime.store, replies, open_window.window_names)
        turns = []
        siblings = self._runtime.store.siblings({one.key.turn_id for one in seen})
        for (turn_id, role), group in groupby(seen, key=lambda one: (one.key.turn_id, one.key.role)):
            chunks = tuple(group)
            its = about[chunks[0].key]
            name = open_window.window_names.get(its.window, "")
            cut = INTERRUPTED in its.tags
            alike = siblings.get(turn_id, [turn_id])
            turns.append(
                TurnView(
                    turn_id,
                    role,
                    its.speaker,
                    its.said,
                    its.window,
                    name,
                    chunks,
                    cut,
                    reminded.get(turn_id),
                    len(alike),
                    alike.index(turn_id) + 1,
                    DOCUMENT in its.tags,
                    UNFINISHED in its.tags,
                )
            )
        return ContextView(
            window_id,
            tuple(turns),
            gaps,
            in_progress,
            budget,
            last,
            self._turns.last_stats(window_id),
            open_window.system_prompt.text,
            open_window.storage_error,
        )

    def digest(self, window_id: str, tokens: int) -> Sequence[Excerpt]:
        """What the window's replies used most, up to so many tokens, in the original words."""
        self._runtime.window(window_id)
        return digest(self._runtime.store, window_id, tokens)

    def life(self, window_id: str) -> TimelineView:
        """The timeline of the window: all turns without text, and what happened to their chunks."""
        self._runtime.window(window_id)
        return timeline_view(self._runtime.store.window_timeline(window_id))

    def prune(self, window_id: str) -> ChunksPruned:
        """Prune down to the budget now, as after a reply."""
        runtime = self._runtime
        with runtime.exclusive_change(window_id):
            open_window = runtime.window_for_change(window_id)
            settings, kept = open_window.settings, open_window.recent_turns()
            budget = open_window.context_budget
            able = open_window.engine.info.abilities
            goal = settings.prune_goal(budget, cuts=able.cuts, token_ids=able.token_ids)
            plan = plan_prune(
                open_window.working_set, budget, goal=goal, current=kept, pairs=settings.prune_pairs
            )
            pruned = open_window.prune(plan, now=runtime.now()) if plan.chunks else ()
            return ChunksPruned(pruned, plan.budget, plan.over, before_turn=False)

    def said(
        self, window_id: str, *, offset: int | None = None, around: int | None = None, limit: int = 50
    ) -> TranscriptPage:
        """Turns of the window in order: from an offset on, around a turn, or the last ones."""
        self._runtime.window(window_id)
        return transcript_page(
            self._runtime.store, window_id, self.names(), offset=offset, around=around, limit=limit
        )

    def deleted(
        self, window_id: str, *, offset: int = 0, limit: int = 100
    ) -> tuple[int, Sequence[StoredChunk]]:
        """The number of deleted chunks of the window, and some of them, most recently deleted first."""
        self._runtime.window(window_id)
        return self._runtime.store.deleted_in(window_id, offset=offset, limit=limit)

    def use(self, window_id: str, turn_id: int) -> tuple[int, Attribution | None]:
        """The position of a reply's first token, and the sources of each of its tokens."""
        self._runtime.window(window_id)
        chunks = self._runtime.store.turn(turn_id)
        if not chunks:
            raise UnknownChunk(f"There is no turn {turn_id} in this memory.")
        use = self._runtime.store.use_of(turn_id)
        # A reply may begin with delimiters that are not part of its chunks.
        known = use is not None and use.start is not None
        return (use.start if use and known else chunks[0].chunk.start), use  # type: ignore[return-value]

    def graveyard(self, window_id: str, **query: Any) -> GraveyardPage:
        """Pruned chunks of the window, by page, most recently pruned first. `query`: as `Store.graveyard` takes it."""
        self._runtime.window(window_id)
        return self._runtime.store.graveyard(window_id, **{"sort": "slept", **query})

    def gap(
        self, window_id: str, after: int, before: int, *, offset: int = 0, limit: int = 200
    ) -> tuple[PrunedGap, Sequence[GraveyardChunk]]:
        """The pruned chunks between two positions: their number, and some of them in order of time."""
        self._runtime.window(window_id)
        starts, sizes = self._runtime.store.pruned_positions(window_id)
        inside = (starts >= after) & (starts < before)
        first = starts[inside][offset : offset + 1]
        found = (
            self._runtime.store.pruned_between(window_id, int(first[0]), before, limit) if len(first) else []
        )
        return PrunedGap(int(inside.sum()), int(sizes[inside].sum())), found


def find_window(windows: Sequence[WindowRecord], name: str) -> WindowRecord:
    """A window by its id, or by its name if that is unique."""
    found = [one for one in windows if one.id == name] or [one for one in windows if one.name == name]
    if len(found) > 1:
        ids = ", ".join(window.id for window in found)
        raise BadInput(f"{len(found)} windows are called {name!r}. Name one by its id: {ids}.")
    if not found:
        raise UnknownWindow(f"There is no window {name!r}. To see them: halo-weave windows")
    return found[0]


def checked_tags(tags: Sequence[str]) -> list[str]:
    """The tags, each once and on one line."""
    found = [" ".join(storable_text(tag).split()) for tag in tags]
    if len(set(found)) > MAX_TAGS or not all(1 <= len(tag) <= TAG_LENGTH for tag in found):
        raise BadInput(f"There are at most {MAX_TAGS} tags, each of 1 to {TAG_LENGTH} characters.")
    return list(dict.fromkeys(found))


def _checked(changes: Mapping[str, Any], reset: Sequence[str] = ()) -> dict[str, Any]:
    for name in reset:
        setting_field(name)
    return {name: checked_setting(name, value) for name, value in changes.items()}


def _texts(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Texts as they can be stored; names on one line."""
    texts = {about: storable_text(text) for about, text in given.items() if text is not None}
    return {about: text if about == "system_prompt" else window_name(text) for about, text in texts.items()}


def window_name(text: str) -> str:
    """A name of a window or of someone in it, on one line."""
    name = " ".join(storable_text(text).split())
    if not 1 <= len(name) <= NAME_LENGTH:
        raise BadInput(f"A name has 1 to {NAME_LENGTH} characters.")
    return name
