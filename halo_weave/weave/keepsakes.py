"""The AI's own keepsakes, as a user reads and changes them: its structured memory and its notes."""

from __future__ import annotations

from halo_weave.core.pruning import choose_prunes
from halo_weave.errors import UnknownMemory
from halo_weave.keepsakes.notes import Notes
from halo_weave.keepsakes.structured_memory import StructuredMemory
from halo_weave.keepsakes.tools import Toolbox
from halo_weave.weave.events import SleptChunk, WokenChunk
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

    def inject(self, window_id: str, path: str) -> tuple[tuple[WokenChunk, ...], tuple[SleptChunk, ...]]:
        """The chunks that explain an entry return to their places, on at most half of the window's budget.

        What is dimmest makes room for them. A window that recalls only its own gets only its own. Returns both.
        """
        system = self._system
        keys = self.tree.query(path, now=system.now()).keys
        with system.changing(window_id):
            desk = system.desk_to_change(window_id)
            context = desk.engine.info.context
            budget = desk.live_limit or context
            wanted = desk.plan_snapshot(keys, budget // 2).cost
            prunes = choose_prunes(desk.window, budget - wanted, pairs=desk.settings.pairs_asleep)
            slept = desk.prune(prunes, now=system.now()) if wanted and prunes.goes else ()
            room = min(budget, context - desk.reply_room) - desk.window.size
            woken = desk.wake(desk.plan_snapshot(keys, max(0, room)), {}, now=system.now(), by="memory")
        return woken, slept
