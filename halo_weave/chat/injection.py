"""Resurrect chunks that were asked for by key, and prune others to make room."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from halo_weave.chat.events import PrunedChunk, ResurrectedChunk
from halo_weave.chat.open_window import OpenWindow
from halo_weave.core.pruning import PrunePlan, plan_prune
from halo_weave.core.resurrection import RecallHit, RecallPlan, plan_recall
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, UnknownChunk

PlanWithinRoom = Callable[[int], RecallPlan]  # plans the resurrection within a number of tokens


@dataclass(frozen=True, slots=True)
class Injection:
    """The chunks that were resurrected, and those pruned to make room."""

    resurrected: tuple[ResurrectedChunk, ...] = ()
    pruned: tuple[PrunedChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class InjectionPlan:
    recall: RecallPlan
    prunes: PrunePlan
    missing: int = 0  # tokens that were missing, if none of the wanted chunks fits

    @property
    def refusal(self) -> str:
        """Why nothing was resurrected; empty if something was, or if all of it is live already."""
        if not self.missing:
            return ""
        return (
            f"This does not fit beside the newest exchange and what is pinned: tokens missing: {self.missing}. "
            "Raise max_context_tokens, or unpin something."
        )


def plan_injection(
    open_window: OpenWindow,
    plan_within: PlanWithinRoom,
    *,
    share: float = 0.5,
    current: Collection[int] = (),
    kept: Collection[ChunkKey] = (),
) -> InjectionPlan:
    """Plan to resurrect as many of the wanted chunks as fit into this share of the budget, and what to prune for them.

    The newest exchanges, the `current` turns and the `kept` chunks are not pruned. If nothing fits, nothing is pruned.
    """
    context_tokens = open_window.context_room(0)
    budget = max(1, min(open_window.context_budget or context_tokens, context_tokens))
    protected_turns, room = open_window.recent_turns().union(current), int(budget * share)
    while True:
        plan = plan_within(max(0, room))
        prunes = plan_prune(
            open_window.working_set,
            max(1, budget - plan.cost),
            current=protected_turns,
            kept=kept,
            pairs=open_window.settings.prune_pairs,
            last=True,
        )
        if not plan.chunks:
            need = next((hit.cost for hit in plan.passed_over), 0)
            return InjectionPlan(plan, replace(prunes, chunks=()), need and need - room)
        if not prunes.over:
            return InjectionPlan(plan, prunes)
        room = plan.cost - prunes.over


def inject_snapshot(open_window: OpenWindow, keys: Collection[ChunkKey], *, now: datetime) -> Injection:
    """Resurrect the chunks in the snapshot of an entry, most relevant first, within half of the budget."""
    plan = plan_injection(open_window, lambda room: open_window.plan_resurrection_of(keys, room), kept=keys)
    pruned = _make_room(open_window, plan, now)
    return Injection(
        open_window.resurrect(plan.recall, {}, now=now, by="memory") if plan.recall.chunks else (), pruned
    )


def inject_chunk(open_window: OpenWindow, key: ChunkKey, *, now: datetime) -> Injection:
    """Resurrect and pin the chunk that the user asked for; its question or answer and the first chunk of its turn are
    resurrected, too."""
    plan = plan_injection(open_window, lambda room: _with_pairs(open_window, key, room), share=1.0)
    pruned = _make_room(open_window, plan, now)
    resurrected = open_window.resurrect_by_user(key, now=now)
    pairs = tuple(chunk for chunk in plan.recall.chunks if chunk.key != key)
    also = open_window.resurrect(replace(plan.recall, chunks=pairs), {}, now=now) if pairs else ()
    return Injection((resurrected, *also), pruned)


def _make_room(open_window: OpenWindow, plan: InjectionPlan, now: datetime) -> tuple[PrunedChunk, ...]:
    if plan.refusal:
        raise BadInput(plan.refusal)
    return open_window.prune(plan.prunes, now=now) if plan.prunes.chunks else ()


def _with_pairs(open_window: OpenWindow, key: ChunkKey, room: int) -> RecallPlan:
    """The chunk with its pairs if there is room for all, else without them."""
    open_window.resurrectable([key])  # raises an error for chunks that cannot be resurrected here
    candidates = {
        other_key: candidate
        for other_key, candidate in open_window.store.recall_candidates(open_window.record.id, [key]).items()
        if other_key == key or _may_be_resurrected(open_window, other_key, candidate.window)
    }
    if key not in candidates:
        return RecallPlan(room, 0, ())
    for pairs in ("with", "off"):
        plan = plan_recall(
            [RecallHit(key, 1.0)],
            candidates,
            room,
            live=open_window.live_keys,
            frame_tokens=open_window.working_set.frame_tokens,
            pairs=pairs,
        )
        if plan.chunks:
            break
    return plan


def _may_be_resurrected(open_window: OpenWindow, key: ChunkKey, window_id: str) -> bool:
    try:
        open_window.resurrectable([key])
    except UnknownChunk:
        return False
    return not open_window.must_not_send(window_id, key.turn_id)
