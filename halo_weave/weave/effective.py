"""The settings that hold: the defaults, changed by what is stored."""

from __future__ import annotations

from halo_weave.records import OWNER, WindowRecord
from halo_weave.settings import SHARED, Settings
from halo_weave.store import Store


def stored_settings(
    store: Store, window: WindowRecord | None, defaults: Settings, owner: str = OWNER
) -> Settings:
    """The defaults, changed by what is stored for all windows of someone, then by what one window sets itself."""
    owner = owner if window is None else window.owner
    kept = store.kept_by(owner) if owner != OWNER else store
    shared = defaults.restored(kept.settings().get(SHARED))
    return shared if window is None else shared.restored(window.settings)
