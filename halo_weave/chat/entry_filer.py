"""File saved memory entries under headings while no reply is being generated."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from threading import Condition, Thread
from threading import Event as Flag

from halo_weave.chat.events import MemoryChanged
from halo_weave.chat.tools.memory_requests import file_entry
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.engines.base import Engine
from halo_weave.errors import HaloWeaveError

log = logging.getLogger(__name__)
PAUSE = 2.0  # seconds without a running turn before an entry is filed: the user's next message comes first


@dataclass(frozen=True, slots=True)
class UnfiledEntry:
    """An entry that the program saved on request, and the model that chooses its heading."""

    window_id: str
    saved: MemoryChanged
    tree: StructuredMemory
    engine: Engine


class EntryFiler:
    """One background thread. A turn that begins interrupts it; the entry is filed after that turn."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        publish: Callable[[str, MemoryChanged], object],
        now: Callable[[], datetime],
    ) -> None:
        """`is_busy`: whether a turn is running. `publish` sends an event to those who follow a window."""
        self._is_busy, self._publish, self._now, self.pause = is_busy, publish, now, PAUSE
        self._changed = Condition()
        self._entries: deque[UnfiledEntry] = deque()
        self._thread: Thread | None = None
        self._turns_ended = 0
        self._closed = False

    def add(self, entry: UnfiledEntry) -> None:
        """File this entry when there is time. Returns at once."""
        with self._changed:
            self._entries.append(entry)
            if self._thread is None and not self._closed:
                self._thread = Thread(target=self._loop, name="halo-weave filing", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def turn_ended(self) -> None:
        with self._changed:
            self._turns_ended += 1
            self._changed.notify_all()

    def settle(self) -> None:
        """Return when no entry is left to file."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._entries)

    def close(self) -> None:
        """Entries that are not filed stay where they are."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while (entry := self._wait_for_entry()) is not None:
            filed, interrupted = entry.saved, Flag()

            def stopped(interrupted: Flag = interrupted) -> bool:
                if self._closed or self._is_busy():
                    interrupted.set()
                return interrupted.is_set()

            try:
                filed = file_entry(entry.engine, entry.tree, entry.saved, now=self._now(), stopped=stopped)
                if filed is not entry.saved:
                    self._publish(entry.window_id, filed)
            except HaloWeaveError as error:  # such as a window that has been deleted
                log.debug("%s was filed, but its event could not be published: %s", entry.saved.path, error)
            except Exception:
                log.exception("Filing failed.")
            with self._changed:
                if filed is not entry.saved or not interrupted.is_set():
                    self._entries.popleft()
                self._changed.notify_all()

    def _wait_for_entry(self) -> UnfiledEntry | None:
        """The next entry, when no turn has been running for a while. None when the filer is closed."""
        with self._changed:
            while not self._closed:
                self._changed.wait_for(lambda: self._closed or (bool(self._entries) and not self._is_busy()))
                ended = self._turns_ended
                self._changed.wait(self.pause)
                if not (self._closed or self._is_busy() or self._turns_ended != ended):
                    return self._entries[0]
        return None
