"""Which window a conversation is that another program sends whole, and how much of it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halo_weave.core.marks import mark_of
from halo_weave.core.tokens import Role
from halo_weave.records import TurnRecord
from halo_weave.store import Store

ENOUGH = 4  # messages at the end of a history that make it known though its beginning is another
_TELLING = 12  # words of a reply that nobody else gave, which make it known by themselves


@dataclass(frozen=True, slots=True)
class Recognised:
    """The last turn that a window and a history have in common."""

    window: str
    turn: TurnRecord | None  # None: nothing
    known: int  # messages of the history up to that turn, it included


def recognise(
    store: Store, history: Sequence[tuple[Role, str]], window: str | None = None
) -> Recognised | None:
    """The longest part of the history that was said in one line here, beginning where the history begins.

    Without `window`, only a reply of ours makes a conversation known: two chats may begin with the same words. The oldest
    messages may have been dropped, or replaced by something else; then several must fit, or a reply like no other.
    """
    marks = [mark_of(role, text) for role, text in history]
    partly: tuple[int, TurnRecord] | None = None
    at = len(history) - 1
    while at >= 0:
        if window is None and history[at][0] is not Role.ASSISTANT:
            at -= 1
            continue
        longest, found = 0, None
        likely = _likeliest(store, marks[at], window)
        for turn in likely:
            line = [mark for _, mark in store.marks_before(turn.id, at + 1)]
            same = next((i for i, mark in enumerate(line) if mark != marks[at - i]), len(line))
            if same > longest:
                longest, found = same, turn
        if found is not None and longest == at + 1:
            return _extended(store, marks, found, at, window)
        telling = len(likely) == 1 and len(history[at][1].split()) >= _TELLING
        if found is not None and (longest >= ENOUGH or telling) and partly is None:
            partly = at, found
        at -= longest + 1 if longest else 1
    if partly is not None:
        return _extended(store, marks, partly[1], partly[0], window)
    return Recognised(window, None, 0) if window else None


def _likeliest(store: Store, mark: int, window: str | None) -> list[TurnRecord]:
    """Turns with this mark; those first that nothing follows yet."""
    found = store.marked(mark, window=window)
    return (
        sorted(found, key=lambda turn: bool(store.followers(turn.id, turn.window)))
        if len(found) > 1
        else found
    )


def _extended(
    store: Store, marks: Sequence[int], turn: TurnRecord, at: int, window: str | None
) -> Recognised:
    """On from a turn, as far as what follows it is what the history says."""
    place = window or turn.window
    for mark in marks[at + 1 :]:
        same = [one for one in store.marked(mark, window=place) if one.parent == turn.id]
        if not same:
            break
        turn, at = same[0], at + 1
    return Recognised(place, turn, at + 1)
