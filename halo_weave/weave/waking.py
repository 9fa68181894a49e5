"""What wakes up for a text: one search and one plan, for the turn, the preview and the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from halo_weave.core.resurrection import RecallHit, ResurrectionPlan, Sleeper, choose_resurrections
from halo_weave.core.telling import asks_back
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.ports import EVERYTHING, Only, RecallPort
from halo_weave.settings import Settings
from halo_weave.store import Store

MOST_HITS = 200  # what a search gives the plan to choose from


def hits_for(room: int) -> int:
    """As many as could wake up if all were a few words long."""
    return min(MOST_HITS, 16 + room // 8)


def relevant(found: Sequence[RecallHit], text: str, floor: float) -> list[RecallHit]:
    """The hits that have to do with a text, without those that tell nothing: they may only come as pairs.

    The clearer the nearest one stands above the floor, the more may come with it. For a question about the past the best
    one comes, whatever its nearness.
    """
    found = [hit for hit in found if "asking" not in hit.parts]
    nearest = max((hit.nearness for hit in found if hit.nearness is not None), default=floor)
    lower = max(0.0, floor - max(0.0, nearest - floor) / 2)
    near = [hit for hit in found if hit.matters(lower)]
    return near or (found[:1] if asks_back(text) else [])


def stamps_of(sleepers: Iterable[Sleeper], stamp: Callable[[str, Role], int]) -> dict[tuple[str, Role], int]:
    """Tokens of the stamps that chunks get, by the window where they were said and by role."""
    return {place: stamp(*place) for place in {(one.window, one.key.role) for one in sleepers}}


def plan_waking(
    text: str,
    room: int,
    settings: Settings,
    *,
    store: Store,
    recall: RecallPort,
    now: datetime,
    window_id: str = "",
    scope: str | None = None,
    live: Collection[ChunkKey] = (),
    before: int | None = None,
    frame_tokens: Mapping[Role, int] | None = None,
    stamp: Callable[[str, Role], int] = lambda window, role: 0,
    left: Collection[int] = (),
    only: Only = EVERYTHING,
    may_read: Callable[[str], bool] = lambda window: True,
) -> tuple[dict[ChunkKey, RecallHit], ResurrectionPlan]:
    """The hits by key, and the plan that fits the room. Nothing is changed.

    `window_id`: where they would wake up; without one, nothing is live. `scope`: only what was said in that window.
    `before`: only what stands before this position. `left`: turns that do not wake up.
    `may_read`: whether what was said in a window may wake up here. `stamp`: tokens by which the model is told of another window.
    """
    found = recall.search(
        text,
        window=scope,
        limit=hits_for(room) + len(live),  # what is live may well fit best
        now=now,
        user_weight=settings.user_weight,
        mmr_lambda=settings.mmr_lambda,
        only=only,
    )
    found = relevant(found, text, settings.relevance_floor)
    sleepers = store.sleepers(window_id, [hit.key for hit in found if hit.key not in live])
    sleepers = {key: sleeper for key, sleeper in sleepers.items() if may_read(sleeper.window)}
    if left:
        sleepers = {key: sleeper for key, sleeper in sleepers.items() if key.turn_id not in left}
    if before is not None:
        # What another window said after this turn began stands after it in time, and can wake up next turn.
        sleepers = {key: sleeper for key, sleeper in sleepers.items() if sleeper.start < before}
    if not settings.recall_thoughts:
        sleepers = {key: sleeper for key, sleeper in sleepers.items() if not sleeper.thought}
    hits = {hit.key: hit for hit in found if hit.key in sleepers}
    plan = choose_resurrections(
        hits.values(),
        sleepers,
        room,
        live=live,
        frame_tokens=frame_tokens,
        stamps=stamps_of(sleepers.values(), stamp),
        pairs=settings.pairs,
    )
    return hits, plan
