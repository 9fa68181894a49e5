"""Read chunks that have no cells in the KV cache on disk yet, while nobody waits: imports, documents, all after a change of model."""

from __future__ import annotations

import heapq
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import Literal

import numpy as np

from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.prefetch import machine_is_idle
from halo_weave.chat.runtime import Runtime
from halo_weave.core.tokens import ChunkKey, Positions
from halo_weave.engines.base import Engine, IdleReadResult, Prompt
from halo_weave.errors import HaloWeaveError
from halo_weave.store.records import RecallableChunk

log = logging.getLogger(__name__)
QUIET = 10.0  # seconds without activity before a slice is read
POLL = 2.0  # seconds between two looks at whether it is quiet
RETRY = 60.0  # seconds after which a state such as "disk full" is checked again
SLICE = 512  # tokens that are read and written together; if reading is given up, so many are lost at most
PLANNED = 64  # slices that are chosen at once
MIN_TOKENS = 8  # shorter chunks are not read: so few tokens are computed faster than they are copied

IdleState = Literal["off", "unavailable", "waiting", "reading", "on battery", "disk full", "done"]


@dataclass(frozen=True, slots=True)
class IdleReading:
    """How much of the memory has cells on disk for the model, in tokens."""

    state: IdleState = "waiting"
    done: int = 0
    total: int = 0
    model: str = ""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Chunks of one window that are read together."""

    window: str
    keys: tuple[ChunkKey, ...]
    tokens: int
    resurrections: int  # how often one of them was resurrected, at most


class IdleReader:
    """Reads one slice after the other in a thread of its own, until somebody types or sends a message."""

    def __init__(
        self, runtime: Runtime, report: Callable[[IdleReading], None] = lambda progress: None
    ) -> None:
        """`report` is called with each change of the progress."""
        self._runtime, self._report = runtime, report
        self.progress = IdleReading()
        self._plan: list[_Slice] = []  # what to read next
        self._planned_for: tuple[Engine, int] | None = (
            None  # the engine and the latest change of a chunk, for the plan
        )
        # Since the memory changed last: chunks that were read, and chunks that need no cells or cannot have them.
        self._read_now: set[ChunkKey] = set()
        self._passed_over: set[ChunkKey] = set()
        self._closed = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Read in the background from now on."""
        self._thread = Thread(target=self._loop, name="halo-weave idle reading", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        wait = POLL
        while not self._closed.wait(wait):
            wait = POLL
            if self._is_quiet() and machine_is_idle():
                try:
                    state = self.read_slice()
                except Exception:
                    log.exception("Reading in idle time failed.")
                    wait = RETRY
                else:
                    wait = {"reading": 0.0, "waiting": QUIET}.get(state, RETRY)

    def _is_quiet(self) -> bool:
        return not self._runtime.busy_windows and time.monotonic() - self._runtime.last_activity >= QUIET

    def read_slice(self) -> IdleState:
        """Read the next slice. Returns `reading` if it was read, and otherwise why not."""
        runtime = self._runtime
        how = runtime.settings().idle_reading
        if how == "off":
            return self._show("off")
        if runtime.state.error is not None or runtime.engine.positions_on_disk("") is None:
            return self._show("unavailable")
        if how == "mains" and on_battery():
            return self._show("on battery")
        began, now = runtime.last_activity, (runtime.engine, runtime.store.sequence())

        def stopped() -> bool:
            """Also if any chunk has changed: those that are read may have been deleted."""
            return (
                self._closed.is_set()
                or runtime.last_activity != began
                or (runtime.engine, runtime.store.sequence()) != now
            )

        if self._planned_for != now:
            self._plan.clear()
            self._read_now.clear()
            self._passed_over.clear()
        if not self._plan and (self._planned_for != now or self.progress.state != "done"):
            if not self._make_plan(stopped):
                return self._show("waiting")
            self._planned_for = now
        while self._plan:
            part = self._plan[0]
            result = self._read(part, stopped)
            if result == "given up":
                return self._show("waiting")
            if result == "disk full":
                return self._show("disk full")
            del self._plan[0]
            if result == "saved":
                self._read_now.update(part.keys)
                self.progress = replace(self.progress, done=self.progress.done + part.tokens)
                return self._show("reading")
            self._passed_over.update(part.keys)
            self.progress = replace(self.progress, total=self.progress.total - part.tokens)
        return self._show("done")

    def _show(self, state: IdleState) -> IdleState:
        progress = replace(self.progress, state=state, model=self._runtime.engine.info.name)
        if progress != self.progress or state == "reading":
            self.progress = progress
            self._report(progress)
        return state

    def _make_plan(self, stopped: Callable[[], bool]) -> bool:
        """Choose what to read next: chunks that were resurrected most often, then those of the window with the latest turn.

        Returns False if it was stopped.
        """
        runtime, slices = self._runtime.unrestricted, list[tuple[int, int, _Slice]]()
        on_disk: dict[str, Positions] = {}  # by owner
        done, total, memory = 0, 0, runtime.store.memory_id()
        for place, window_id in enumerate(runtime.store.windows_by_last_turn()):
            if stopped():
                return False
            record = runtime.window(window_id)
            settings = runtime.settings(record)
            if (
                settings.idle_reading == "off"
                or runtime.model_for_settings(settings) is not runtime.default_model
            ):
                continue
            if record.owner not in on_disk:
                found = runtime.engine.positions_on_disk(f"{memory}/{record.owner}")
                on_disk[record.owner] = np.zeros(0, np.int64) if found is None else found
            chunks = [
                one
                for one in runtime.store.recallable_chunks(window_id)
                if one.span >= MIN_TOKENS
                and (settings.recall_thoughts or not one.thought)
                and one.key not in self._passed_over
            ]
            lacking = [
                one
                for one, saved in zip(chunks, _have_cells(chunks, on_disk[record.owner]), strict=True)
                if not saved and one.key not in self._read_now
            ]
            total += sum(one.span for one in chunks)
            done += sum(one.span for one in chunks) - sum(one.span for one in lacking)
            latest_first = reversed(list(_slices(window_id, lacking)))
            slices += [(-part.resurrections, place, part) for part in latest_first]
            slices = heapq.nsmallest(PLANNED, slices, key=lambda one: one[:2])
        self._plan = [part for *_, part in slices]
        self.progress = replace(self.progress, done=done, total=total)
        return True

    def _read(self, part: _Slice, stopped: Callable[[], bool]) -> IdleReadResult | None:
        """Read the chunks as their own window reads them, after its system prompt. None: that is not possible."""
        runtime = self._runtime.unrestricted
        try:
            prompt = _prompt_of(runtime.load_window(part.window), part.keys)
            return runtime.engine.read_idle(part.window, prompt, stopped=stopped)
        except HaloWeaveError as error:  # deleted meanwhile, or longer than the context
            log.debug("A part of %s is not read in idle time: %s", part.window, error)
            return None


def _prompt_of(open_window: OpenWindow, keys: tuple[ChunkKey, ...]) -> Prompt:
    readings = list(open_window.resurrectable(keys).values())
    annotations = {
        one.chunk.key.turn_id: annotation
        for one in readings
        if (annotation := open_window.annotation(one.chunk, one.record))
    }
    return open_window.prompt_builder.next_prompt_prefix(
        sorted((one.chunk for one in readings), key=lambda chunk: chunk.start),
        open_window.system_prompt,
        annotations,
        frozenset(one.chunk.start for one in readings if len(one.chunk) != one.chunk.span),
        effort=open_window.settings.effort,
        said_at={one.chunk.key.turn_id: one.record.said for one in readings},
        own_turns=frozenset(key.turn_id for key in keys),
        owner=open_window.cell_owner,
    )


def _have_cells(chunks: list[RecallableChunk], on_disk: Positions) -> list[bool]:
    """Which of the chunks have cells on disk. `on_disk`: the positions with cells, sorted.

    Some positions of a chunk may lack them: the last token of a reply is not computed, and a chunk that was stored with
    another tokenizer may have fewer tokens than positions.
    """
    starts = np.array([one.start for one in chunks], np.int64)
    spans = np.array([one.span for one in chunks], np.int64)
    present = np.searchsorted(on_disk, starts + spans) - np.searchsorted(on_disk, starts)
    found: list[bool] = (2 * present >= spans).tolist()
    return found


def _slices(window_id: str, chunks: list[RecallableChunk]) -> Iterator[_Slice]:
    """Divide chunks in time order into slices."""
    part: list[RecallableChunk] = []
    for one in [*chunks, None]:
        if part and (one is None or sum(other.span for other in part) + one.span > SLICE):
            yield _Slice(
                window_id,
                tuple(other.key for other in part),
                sum(other.span for other in part),
                max(other.resurrections for other in part),
            )
            part = []
        if one is not None:
            part.append(one)


def on_battery() -> bool:
    """Whether this machine runs on its battery. False if the system does not say."""
    try:
        if sys.platform == "darwin":
            command = ["pmset", "-g", "batt"]
            return (
                "Battery Power" in subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
            )
        if sys.platform == "win32":
            import ctypes

            status = (ctypes.c_ubyte * 12)()  # SYSTEM_POWER_STATUS; its first byte is 0 without mains power
            return bool(ctypes.windll.kernel32.GetSystemPowerStatus(status)) and status[0] == 0
        return linux_on_battery(Path("/sys/class/power_supply"))
    except (OSError, subprocess.SubprocessError):
        return False


def linux_on_battery(folder: Path) -> bool:
    """Whether a battery is discharging and no mains adapter is online. `folder`: the kernel's list of power supplies."""
    discharging = False
    for supply in folder.glob("*"):
        kind = (supply / "type").read_text().strip()
        if kind == "Mains" and (supply / "online").read_text().strip() == "1":
            return False
        of_machine = not (supply / "scope").exists() or (supply / "scope").read_text().strip() != "Device"
        if kind == "Battery" and of_machine and (supply / "status").exists():
            discharging |= (supply / "status").read_text().strip() == "Discharging"
    return discharging
