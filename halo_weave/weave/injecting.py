"""Chunks that are asked for by name return to their places, and the dimmest others make room for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime

from halo_weave.core.pruning import PrunePlan, choose_prunes
from halo_weave.core.resurrection import RecallHit, ResurrectionPlan, choose_resurrections
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, UnknownChunk
from halo_weave.weave.desk import Desk
from halo_weave.weave.events import SleptChunk, WokenChunk
from halo_weave.weave.room import model_room

Wanting = Callable[[int], ResurrectionPlan]  # what should come back within so many tokens


@dataclass(frozen=True, slots=True)
class Injection:
    """What came back, and what fell asleep to make room."""

    woken: tuple[WokenChunk, ...] = ()
    slept: tuple[SleptChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class InjectionPlan:
    wakes: ResurrectionPlan
    prunes: PrunePlan
    missing: int = 0  # tokens, where nothing of what is wanted fits

    @property
    def refusal(self) -> str:
        """Why nothing comes back; nothing if it does, or is there already."""
        if not self.missing:
            return ""
        return (
            f"This does not fit beside the newest exchange and what is pinned: tokens missing: {self.missing}. "
            "Raise max_context_tokens, or unpin something."
        )


def plan_injection(
    desk: Desk,
    wanted: Wanting,
    *,
    share: float = 0.5,
    current: Collection[int] = (),
    kept: Collection[ChunkKey] = (),
) -> InjectionPlan:
    """As much of what is wanted as fits into this share of the budget, and what must sleep for it.

    The newest exchanges, the `current` turns and what is `kept` never make room. If nothing fits, nothing sleeps.
    """
    whole = model_room(desk, 0)
    budget = max(1, min(desk.live_limit or whole, whole))
    spared, room = desk.last_exchanges().union(current), int(budget * share)
    while True:
        plan = wanted(max(0, room))
        prunes = choose_prunes(
            desk.window,
            max(1, budget - plan.cost),
            current=spared,
            kept=kept,
            pairs=desk.settings.pairs_asleep,
            last=True,
        )
        if not plan.wakes:
            need = next((one.cost for one in plan.passed_over), 0)
            return InjectionPlan(plan, replace(prunes, goes=()), need and need - room)
        if not prunes.over:
            return InjectionPlan(plan, prunes)
        room = plan.cost - prunes.over


def inject(desk: Desk, keys: Collection[ChunkKey], *, now: datetime) -> Injection:
    """The chunks kept with a memory come back, the most relevant first, on at most half of the budget."""
    plan = plan_injection(desk, lambda room: desk.plan_snapshot(keys, room), kept=keys)
    slept = _make_room(desk, plan, now)
    return Injection(desk.wake(plan.wakes, {}, now=now, by="memory") if plan.wakes.wakes else (), slept)


def resurrect(desk: Desk, key: ChunkKey, *, now: datetime) -> Injection:
    """The user asks for this chunk: it is pinned. Its question or answer, and the first chunk of its turn, come along."""
    plan = plan_injection(desk, lambda room: _with_pairs(desk, key, room), share=1.0)
    slept = _make_room(desk, plan, now)
    woken = desk.wake_by_hand(key, now=now)
    pairs = tuple(one for one in plan.wakes.wakes if one.key != key)
    also = desk.wake(replace(plan.wakes, wakes=pairs), {}, now=now) if pairs else ()
    return Injection((woken, *also), slept)


def _make_room(desk: Desk, plan: InjectionPlan, now: datetime) -> tuple[SleptChunk, ...]:
    if plan.refusal:
        raise BadInput(plan.refusal)
    return desk.prune(plan.prunes, now=now) if plan.prunes.goes else ()


def _with_pairs(desk: Desk, key: ChunkKey, room: int) -> ResurrectionPlan:
    """A chunk with its pairs if there is room for all, else alone."""
    desk.readings([key])  # what cannot come back here is refused
    sleepers = {
        one: sleeper
        for one, sleeper in desk.store.sleepers(desk.record.id, [key]).items()
        if one == key or _may_come(desk, one, sleeper.window)
    }
    if key not in sleepers:
        return ResurrectionPlan(room, 0, ())
    for pairs in ("with", "off"):
        plan = choose_resurrections(
            [RecallHit(key, 1.0)],
            sleepers,
            room,
            live=desk.live_keys,
            frame_tokens=desk.window.frame_tokens,
            pairs=pairs,
        )
        if plan.wakes:
            break
    return plan


def _may_come(desk: Desk, key: ChunkKey, window: str) -> bool:
    try:
        desk.readings([key])
    except UnknownChunk:
        return False
    return not desk.stays(window, key.turn_id)
