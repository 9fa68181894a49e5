"""The AI's own keepsakes: its structured memory and its notes, as a user reads and changes them."""

from __future__ import annotations

from typing import Any

from halo_weave.core.pruning import choose_prunes
from halo_weave.errors import UnknownMemory
from halo_weave.weave.events import SleptChunk, WokenChunk
from halo_weave.weave.ports import ToolboxPort
from halo_weave.weave.system import System


class WeaveKeepsakes:
    """`weave.keepsakes`."""

    def __init__(self, system: System) -> None:
        self._system = system

    @property
    def _toolbox(self) -> ToolboxPort:
        if self._system.toolbox is None:
            raise UnknownMemory("There is no memory of the AI's own here: its tools are off.")
        return self._system.toolbox

    # The structured memory

    def tree(self, path: str = "") -> Any:
        """The headings below one, or all of them."""
        return self._toolbox.tree.listing(path)

    def entry(self, path: str) -> Any:
        """One entry. It does not count as the AI's own access."""
        return self._toolbox.tree.query(path, now=None)

    def save(self, path: str, content: Any, *, context_tokens: int) -> Any:
        """An entry, or a new version of it, with the chunks that explain it."""
        return self._toolbox.tree.save(path, content, now=self._system.now(), context_tokens=context_tokens)

    def delete(self, path: str, *, recursive: bool = False) -> int:
        """Returns how many entries went; their versions stay in the history."""
        gone: int = self._toolbox.tree.delete(path, now=self._system.now(), recursive=recursive)
        return gone

    def history(self, path: str) -> Any:
        """All versions of an entry, the newest first."""
        return self._toolbox.tree.history(path)

    def find(self, path: str, text: str | None, *, recency_bias: float) -> Any:
        """Entries below a heading, by similarity and recency."""
        now = self._system.now()
        return self._toolbox.tree.query_heading(path, text, now=now, recency_bias=recency_bias)

    def inject(self, window_id: str, path: str) -> tuple[tuple[WokenChunk, ...], tuple[SleptChunk, ...]]:
        """The chunks that explain an entry return to their places, on at most half of the window's budget.

        What is dimmest makes room for them. A window that recalls only its own gets only its own. Returns both.
        """
        system = self._system
        keys = self._toolbox.snapshot(path, now=system.now())
        with system.alone(window_id):
            desk = system.desk_to_change(window_id)
            context = system.engine.info.context
            budget = desk.settings.max_context_tokens or context
            wanted = desk.plan_snapshot(keys, budget // 2).cost
            prunes = choose_prunes(desk.window, budget - wanted)
            slept = desk.prune(prunes, now=system.now()) if wanted and prunes.goes else ()
            room = min(budget, context - desk.settings.max_new_tokens) - desk.window.size
            woken = desk.wake(desk.plan_snapshot(keys, max(0, room)), {}, now=system.now(), by="memory")
        system.changed([window_id])
        return woken, slept

    # The notes

    def notes(self) -> tuple[dict[str, Any], str]:
        """The notes, and what names this version of them."""
        found: tuple[dict[str, Any], str] = self._toolbox.notes.latest(now=self._system.now())
        return found

    def replace_notes(self, content: Any, version: str | None = None) -> tuple[dict[str, Any], str]:
        """Make this the notes; with `version`, only in that one's place."""
        written = self._toolbox.notes.replace(content, now=self._system.now(), version=version)
        return written.document, written.version
