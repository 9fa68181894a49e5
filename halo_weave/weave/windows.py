"""Windows: creating, changing, deleting and listing them, their settings, what is live and asleep in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from halo_weave.core.pruning import choose_prunes
from halo_weave.core.tokens import Role
from halo_weave.core.use import ReplyUse
from halo_weave.errors import BadInput, UnknownChunk, UnknownWindow
from halo_weave.records import (
    DOCUMENT,
    MOST_TAGS,
    NAME_LENGTH,
    PERSONA_KEY,
    TAG_LENGTH,
    ChunkRecord,
    GraveyardPage,
    Sleeping,
    WindowRecord,
    WindowStats,
    shared_words,
)
from halo_weave.settings import SHARED, Settings, checked, known, usable
from halo_weave.weave.desk import CUT
from halo_weave.weave.digest import Excerpt, digest
from halo_weave.weave.events import ChunksSlept
from halo_weave.weave.life import WindowLife, life_of
from halo_weave.weave.prompt import in_time
from halo_weave.weave.reply import THOUGHT, UNFINISHED
from halo_weave.weave.seen import Context, Gap, SaidPage, SeenReply, SeenTurn
from halo_weave.weave.system import System
from halo_weave.weave.transcript import remembered, said
from halo_weave.weave.turns import WeaveTurns, plain

LAST_TEXT = 120  # characters of a window's last words in a list


@dataclass(frozen=True, slots=True)
class WindowState(WindowStats):
    """A window with what a list of windows shows of it."""

    effective: Settings = field(default_factory=Settings)
    generating: bool = False
    owner: str = ""  # the name of whoever shares it with the one who asks; empty: it is theirs
    writable: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """What the window sets itself, as far as this version knows it."""
        return usable(self.window.settings)

    @property
    def modified(self) -> datetime:
        """When it was last changed or spoken in."""
        return max(self.window.modified, self.last_said or self.window.modified)

    @property
    def last_words(self) -> str:
        return " ".join(self.last_text.split())[:LAST_TEXT]


class WeaveWindows:
    """`weave.windows`."""

    def __init__(self, system: System, turns: WeaveTurns) -> None:
        self._system, self._turns = system, turns

    # Windows and settings

    def list(self) -> list[WindowState]:
        found = []
        for record in self._system.store.windows():
            with suppress(UnknownWindow):  # cleared meanwhile
                found.append(self._state(record))
        return found

    def state(self, window_id: str) -> WindowState:
        """A window with its figures."""
        return self._state(self._system.window(window_id))

    def _state(self, record: WindowRecord) -> WindowState:
        stats = self._system.store.window_stats(record.id)
        figures = {one.name: getattr(stats, one.name) for one in fields(stats)}
        generating = record.id in self._turns.generating()
        owner, writable = self._system.access(record)
        settings = self._system.settings(record)
        limit = settings.live_limit(self._system.model_of(settings).engine.info.context)
        return WindowState(
            **figures,
            effective=replace(settings, max_context_tokens=limit),
            generating=generating,
            owner=owner,
            writable=writable,
        )

    def get(self, window_id: str) -> WindowRecord:
        return self._system.window(window_id)

    def find(self, name: str) -> WindowRecord:
        """By its id, or by its name if only one has it."""
        return find_window(self._system.store.windows(), name)

    def names(self) -> dict[str, str]:
        """The names of all windows that ever were, by id."""
        return self._system.names()

    def create(
        self,
        name: str,
        *,
        settings: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        **words: str,
    ) -> WindowRecord:
        """A new window. `words`: system_prompt, user_name and ai_name, as far as they are not those of all windows."""
        system = self._system
        own = _texts({"name": name, **words})
        shared = shared_words(system.store.settings().get(PERSONA_KEY))
        return system.store.create_window(
            **{**shared, **own},
            settings=_checked(settings or {}),
            tags=checked_tags(tags),
            inherits=shared.keys() - own.keys(),
            now=system.now(),
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

        Settings to `reset`, and the words it `inherits`, go back to those that all windows share.
        """
        system = self._system
        system.window(window_id)
        own = _checked(settings or {}, reset)
        record = system.store.change_window(
            window_id,
            **_texts(texts),
            settings=own,
            reset=reset,
            tags=None if tags is None else checked_tags(tags),
            pinned=pinned,
            archived=archived,
            inherits=inherits,
            now=system.now(),
        )
        system.changed([window_id])
        return record

    def delete(self, window_id: str) -> None:
        """The window goes, and what was captured of it; what was said in it stays in memory."""
        system = self._system
        with system.alone(window_id):
            system.window(window_id)
            system.store.delete_window(window_id, now=system.now())
            for engine in system.engines:
                engine.forget(window_id)
            system.drop_tapes(window_id)
        system.dropped([window_id])

    def drop_captures(self, window_id: str) -> None:
        """What the lab took down of the window is deleted; nothing else changes."""
        system = self._system
        with system.alone(window_id):
            system.window(window_id)
            system.drop_tapes(window_id)

    def settings(self, window_id: str | None = None) -> Settings:
        """What holds for all windows, or in one."""
        return self._system.settings(None if window_id is None else self._system.window(window_id))

    def automatic(self) -> dict[str, int]:
        """What settings that are empty come to with the model of all windows. While there is none, it is not known."""
        info = self._system.engine.info
        return (
            {"max_context_tokens": self.settings().live_limit(info.context)} if info.abilities.speaks else {}
        )

    def change_settings(self, changes: Mapping[str, Any], reset: Sequence[str] = ()) -> Settings:
        """Settings for all windows that do not have their own."""
        system = self._system
        system.store.change_settings(SHARED, _checked(changes, reset), reset, now=system.now())
        return system.settings()

    # What is in them

    def context(self, window_id: str) -> Context:
        """What the model reads in the window, as it is now."""
        last = self._turns.hub(
            window_id
        ).last  # before all else: events after it may already be in the context
        desk = self._system.desk(window_id)
        gaps = desk.gaps()
        with desk.guard:
            ranks = desk.window.ranks()
            seen = [
                desk.seen(
                    chunk.key, gaps.before.get(chunk.key), gaps.thoughts.get(chunk.key, 0), ranks[chunk.key]
                )
                for chunk in in_time(desk.window.chunks, desk.origins, desk.said)
            ]
            about, budget, reply = dict(desk.about), desk.budget(), desk.window.reply
            in_progress = None
            if reply is not None:
                told = desk.reply.known if desk.reply else ()
                brightness = desk.window.brightness[desk.window.offsets[-1] :][: len(told)].copy()
                in_progress = SeenReply(
                    reply.turn_id,
                    reply.start,
                    [token.text for token in told],
                    brightness,
                    [token.by_tool for token in told],
                    [token.kind == THOUGHT for token in told],
                )
        if in_progress is None and window_id not in self._system.at_work:
            in_progress = self._turns.overhearing.reply(window_id)
        replies = {one.key.turn_id for one in seen if one.key.role is Role.ASSISTANT}
        reminded = remembered(self._system.store, replies, desk.names)
        turns = []
        siblings = self._system.store.siblings({one.key.turn_id for one in seen})
        for (turn_id, role), group in groupby(seen, key=lambda one: (one.key.turn_id, one.key.role)):
            chunks = tuple(group)
            its = about[chunks[0].key]
            name = desk.names.get(its.window, "")
            cut = CUT in its.tags
            alike = siblings.get(turn_id, [turn_id])
            turns.append(
                SeenTurn(
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
        return Context(
            window_id,
            tuple(turns),
            gaps,
            in_progress,
            budget,
            last,
            self._turns.last(window_id),
            desk.system.text,
            desk.unstored,
        )

    def digest(self, window_id: str, tokens: int) -> Sequence[Excerpt]:
        """What the window's replies used most, up to so many tokens, in the original words."""
        self._system.window(window_id)
        return digest(self._system.store, window_id, tokens)

    def life(self, window_id: str) -> WindowLife:
        """All that was said in the window, without the words, and what became of it."""
        self._system.window(window_id)
        return life_of(self._system.store.life(window_id))

    def prune(self, window_id: str) -> ChunksSlept:
        """Apply the budget now, as after a reply."""
        system = self._system
        with system.changing(window_id):
            desk = system.desk_to_change(window_id)
            settings, kept = desk.settings, desk.last_exchanges()
            budget = desk.live_limit
            able = desk.engine.info.abilities
            goal = settings.prune_goal(budget, cuts=able.cuts, token_ids=able.token_ids)
            plan = choose_prunes(desk.window, budget, goal=goal, current=kept, pairs=settings.pairs_asleep)
            slept = desk.prune(plan, now=system.now()) if plan.goes else ()
            return ChunksSlept(slept, plan.budget, plan.over, before_turn=False)

    def said(
        self, window_id: str, *, offset: int | None = None, around: int | None = None, limit: int = 50
    ) -> SaidPage:
        """What was said in the window, in order: from an offset on, around a turn, or the last turns."""
        self._system.window(window_id)
        return said(self._system.store, window_id, self.names(), offset=offset, around=around, limit=limit)

    def deleted(
        self, window_id: str, *, offset: int = 0, limit: int = 100
    ) -> tuple[int, Sequence[ChunkRecord]]:
        """How many chunks said in the window are deleted, and some of them, what was deleted last first."""
        self._system.window(window_id)
        return self._system.store.deleted_in(window_id, offset=offset, limit=limit)

    def use(self, window_id: str, turn_id: int) -> tuple[int, ReplyUse | None]:
        """The position of a reply's first token, and where each of its tokens came from."""
        self._system.window(window_id)
        chunks = self._system.store.turn(turn_id)
        if not chunks:
            raise UnknownChunk(f"There is no turn {turn_id} in this memory.")
        use = self._system.store.use_of(turn_id)
        # A reply may begin with marks that are not part of its chunks.
        known = use is not None and use.start is not None
        return (use.start if use and known else chunks[0].chunk.start), use  # type: ignore[return-value]

    def graveyard(self, window_id: str, **query: Any) -> GraveyardPage:
        """What sleeps in the window, by page, what slept last first. `query`: as `Store.graveyard` takes it."""
        self._system.window(window_id)
        return self._system.store.graveyard(window_id, **{"sort": "slept", **query})

    def gap(
        self, window_id: str, after: int, before: int, *, offset: int = 0, limit: int = 200
    ) -> tuple[Gap, Sequence[Sleeping]]:
        """What sleeps between two positions: how much, and some of it in time order."""
        self._system.window(window_id)
        starts, sizes = self._system.store.asleep_places(window_id)
        inside = (starts >= after) & (starts < before)
        first = starts[inside][offset : offset + 1]
        found = (
            self._system.store.asleep_between(window_id, int(first[0]), before, limit) if len(first) else []
        )
        return Gap(int(inside.sum()), int(sizes[inside].sum())), found


def find_window(windows: Sequence[WindowRecord], name: str) -> WindowRecord:
    """By its id, or by its name if only one has it."""
    found = [one for one in windows if one.id == name] or [one for one in windows if one.name == name]
    if len(found) > 1:
        ids = ", ".join(window.id for window in found)
        raise BadInput(f"{len(found)} windows are called {name!r}. Name one by its id: {ids}.")
    if not found:
        raise UnknownWindow(f"There is no window {name!r}. To see them: halo-weave windows")
    return found[0]


def checked_tags(tags: Sequence[str]) -> list[str]:
    """Each once, on one line."""
    found = [" ".join(plain(tag).split()) for tag in tags]
    if len(set(found)) > MOST_TAGS or not all(1 <= len(tag) <= TAG_LENGTH for tag in found):
        raise BadInput(f"There are at most {MOST_TAGS} tags, each of 1 to {TAG_LENGTH} characters.")
    return list(dict.fromkeys(found))


def _checked(changes: Mapping[str, Any], reset: Sequence[str] = ()) -> dict[str, Any]:
    for name in reset:
        known(name)
    return {name: checked(name, value) for name, value in changes.items()}


def _texts(given: Mapping[str, str | None]) -> dict[str, Any]:
    """Texts as they can be stored; names on one line."""
    texts = {about: plain(text) for about, text in given.items() if text is not None}
    return {about: text if about == "system_prompt" else window_name(text) for about, text in texts.items()}


def window_name(text: str) -> str:
    """A name of a window or of someone in it, on one line."""
    name = " ".join(plain(text).split())
    if not 1 <= len(name) <= NAME_LENGTH:
        raise BadInput(f"A name has 1 to {NAME_LENGTH} characters.")
    return name
