"""Before a turn: what may not be sent to where the model runs falls asleep."""

from __future__ import annotations

from datetime import datetime

from halo_weave.weave.desk import Desk
from halo_weave.weave.events import SleptChunk
from halo_weave.weave.leaving import check_private, stays


def hold_back(desk: Desk, *, now: datetime) -> tuple[SleptChunk, ...]:
    """Pinned or not. What led up to a window that branched off belongs to it."""
    check_private(desk.record, desk.settings, desk.engine.info)
    kept = [live for live in desk.window if not desk.may_read(desk.about[live.chunk.key].window)]
    led = desk.led_here(frozenset({desk.record.id})) if kept else {}
    plan = stays(live for live in kept if live.chunk.key.turn_id not in led)
    return desk.prune(plan, now=now) if plan.goes else ()
