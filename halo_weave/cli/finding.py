"""A window as users name it."""

from __future__ import annotations

from halo_weave.errors import BadInput, UnknownWindow
from halo_weave.records import WindowRecord
from halo_weave.store import Windows


def found_window(store: Windows, name: str) -> WindowRecord:
    """By its id, or by its name if only one has it."""
    known = store.windows()
    for window in known:
        if window.id == name:
            return window
    named = [window for window in known if window.name == name]
    if len(named) > 1:
        ids = ", ".join(window.id for window in named)
        raise BadInput(f"{len(named)} windows are called {name!r}. Name one by its id: {ids}.")
    if not named:
        raise UnknownWindow(f"There is no window {name!r}. To see them: halo-weave windows")
    return named[0]
