"""Before a turn: what may not be sent to where the model runs falls asleep."""

from __future__ import annotations

from datetime import datetime

from halo_weave.weave.desk import Desk
from halo_weave.weave.events import SleptChunk
from halo_weave.weave.leaving import stays


def hold_back(desk: Desk, *, now: datetime) -> tuple[SleptChunk, ...]:
    """Pinned or not."""
    keys = ((live, live.chunk.key) for live in desk.window)
    plan = stays(live for live, key in keys if desk.stays(desk.about[key].window, key.turn_id))
    return desk.prune(plan, now=now) if plan.goes else ()
