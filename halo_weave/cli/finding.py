"""A window as users name it."""

from __future__ import annotations

from halo_weave.records import WindowRecord
from halo_weave.store import Windows
from halo_weave.weave.windows import find_window


def found_window(store: Windows, name: str) -> WindowRecord:
    """By its id, or by its name if only one has it."""
    return find_window(store.windows(), name)
