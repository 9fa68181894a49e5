"""Which text may be sent to a model on another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from halo_weave.core.pruning import Prune, PrunePlan, PruneReason
from halo_weave.core.working_set import LiveChunk
from halo_weave.engines.base import ModelInfo
from halo_weave.errors import BadInput
from halo_weave.settings import RemoteScope, Settings
from halo_weave.store.records import WindowRecord
from halo_weave.store.sql_store import SqlStore


def remote_scope(settings: Settings, model: ModelInfo) -> RemoteScope:
    """What a remote model may read: the setting of the window, else by where the model runs."""
    return settings.remote_scope or ("window" if model.elsewhere else "all")


def may_send(settings: Settings, model: ModelInfo, window_id: str, is_private: Callable[[str], bool]) -> bool:
    """Whether text of another window may be sent, too."""
    rule = remote_scope(settings, model)
    return rule == "all" or (rule == "not_private" and not is_private(window_id))


def check_private(record: WindowRecord, settings: Settings, elsewhere: str) -> None:
    """Refuse a private window whose model runs on another machine."""
    if settings.private and elsewhere:
        raise BadInput(
            f"{record.name} is private, and its model runs on {elsewhere}. Let another engine answer here, or "
            "let the window not be private."
        )


def ancestor_turns(store: SqlStore, window_id: str, scope: frozenset[str]) -> dict[int, str]:
    """Turns of windows outside the scope that a window branched off after, with their windows."""
    if store.followers(0, window_id):  # the first turn of the window
        return {}
    return {turn.id: turn.window for turn in store.branch(window_id) if turn.window not in scope}


def plan_private_prune(kept: Iterable[LiveChunk]) -> PrunePlan:
    """Plan to prune chunks that may not be sent to the model."""
    goes = [Prune(one.chunk.key, len(one.chunk), one.peak, PruneReason.PRIVATE, 0) for one in kept]
    return PrunePlan(0, 0, tuple(goes))
