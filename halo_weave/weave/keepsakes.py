"""The AI's own keepsakes, as a user reads and changes them: its structured memory and its notes."""

from __future__ import annotations

from halo_weave.errors import UnknownMemory
from halo_weave.keepsakes.notes import Notes
from halo_weave.keepsakes.structured_memory import StructuredMemory
from halo_weave.keepsakes.tools import Toolbox
from halo_weave.weave.injecting import Injection, inject
from halo_weave.weave.system import System


class WeaveKeepsakes:
    """`weave.keepsakes`."""

    def __init__(self, system: System) -> None:
        self._system = system

    @property
    def _toolbox(self) -> Toolbox:
        if self._system.toolbox is None:
            raise UnknownMemory("There is no memory of the AI's own here: its tools are off.")
        return self._system.toolbox

    @property
    def tree(self) -> StructuredMemory:
        return self._toolbox.tree

    @property
    def notes(self) -> Notes:
        return self._toolbox.notes

    def inject(self, window_id: str, path: str) -> Injection:
        """The chunks that explain an entry return to their places, on at most half of the window's budget.

        What is dimmest makes room for them. A window that recalls only its own gets only its own.
        """
        system = self._system
        keys = self.tree.query(path, now=system.now()).keys
        with system.changing(window_id):
            return inject(system.desk_to_change(window_id), keys, now=system.now())
