"""Prefill the next prompt while the user types."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition, Thread

from halo_weave.chat.open_window import OpenWindow
from halo_weave.chat.runtime import Runtime
from halo_weave.core.attribution import capture_for_attribution
from halo_weave.core.tokens import ChunkKey
from halo_weave.engines.base import Prompt
from halo_weave.errors import HaloWeaveError

log = logging.getLogger(__name__)
TRIES = (
    5  # the memory must not be written to while a prompt is made of it: after a reply its chunks are embedded
)
FRAMES = 96  # tokens that may always be computed: the end of a reply, and the beginning of a message
IDLE = 0.5  # at most this share of the processors does other work on a machine that counts as idle
GLANCE = 0.1  # seconds of looking at them


@dataclass(frozen=True, slots=True)
class _PrefetchRequest:
    """What is known of the next message: who says it, what would wake up for it, and the words as far as they are typed."""

    speaker: str = ""  # of several people
    resurrect: tuple[ChunkKey, ...] = ()
    text: str = ""


class Prefetcher:
    """One thread for all windows. Of several requests for a window the last one counts."""

    def __init__(self, system: Runtime) -> None:
        self._system = system
        self._changed = Condition()
        self._requests: dict[str, _PrefetchRequest] = {}
        self._thread: Thread | None = None
        self._busy = self._closed = False

    def request(
        self, window_id: str, text: str = "", resurrect: Iterable[ChunkKey] = (), speaker: str = ""
    ) -> None:
        """This window will be spoken to; `text` was typed so far, and would wake these chunks up. Returns at once.

        `speaker`: the name that is told of who speaks, where several people do.
        """
        if not self._system.engine.info.abilities.ahead:
            return
        with self._changed:
            if self._closed:
                return
            self._requests.pop(window_id, None)
            self._requests[window_id] = _PrefetchRequest(speaker, tuple(resurrect), text)
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="halo-weave ahead", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self) -> None:
        """Returns when every request was handed to the engine."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._requests or self._busy))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or bool(self._requests))
                if self._closed:
                    return
                window_id = next(iter(self._requests))
                request = self._requests.pop(window_id)
                self._busy = True
            try:
                self._read(window_id, request)
            except HaloWeaveError as error:  # it is read when it is said
                log.debug("%s is not read ahead: %s", window_id, error)
            except Exception:
                log.exception("Reading ahead failed.")

    def _read(self, window_id: str, request: _PrefetchRequest) -> None:
        system = self._system
        if system.state.error is not None or window_id in system.busy_windows:
            return
        how = system.open_window(window_id).settings.prefetch
        if how in ("off", "frames"):
            request = _PrefetchRequest(request.speaker)
        elif how == "load":
            request = _PrefetchRequest(request.speaker, request.resurrect)
        # Frames are few and wait for nothing. How busy the machine is takes a while to see.
        most = None if how == "compute" and (request.resurrect or request.text) and _idle() else FRAMES
        for _ in range(TRIES):
            version = system.store.version()
            open_window = system.open_window(window_id)
            if how == "off" or not open_window.engine.info.abilities.cuts or not len(open_window.window):
                return
            prompt = _prompt_of(open_window, request, system)
            if system.store.version() == version and window_id not in system.busy_windows:
                open_window.engine.read_ahead(
                    window_id,
                    prompt,
                    room=open_window.reply_room + FRAMES,
                    mode=open_window.settings.kv_mode,
                    most=most,
                    capture=capture_for_attribution(
                        open_window.window.strategy.capture, open_window.calibration
                    )
                    if request.text
                    else None,
                )
                return


def _prompt_of(open_window: OpenWindow, request: _PrefetchRequest, system: Runtime) -> Prompt:
    """What the next prompt begins with if these chunks wake up and these words are sent."""
    readings = list(open_window.resurrectable(request.resurrect).values())
    with open_window.guard:
        chunks = [*open_window.window.chunks, *(one.chunk for one in readings)]
        origins, foreign, said, own = (
            dict(open_window.annotations),
            set(open_window.retokenized),
            dict(open_window.said),
            open_window.own_turns,
        )
    for one in readings:
        said[one.chunk.key.turn_id] = one.record.said
        if origin := open_window.annotation(one.chunk, one.record):
            origins[one.chunk.key.turn_id] = origin
        if len(one.chunk) != one.chunk.span:
            foreign.add(one.chunk.start)
    return open_window.prompt_builder.ahead(
        sorted(chunks, key=lambda chunk: chunk.start),
        open_window.system,
        origins,
        frozenset(foreign),
        origin=open_window.next_message_annotation(request.speaker, system.now()),
        effort=open_window.settings.effort,
        words=open_window.engine.tokenize(request.text) if request.text else None,
        said=said,
        own=own,
        owner=open_window.record.owner,
    )


def _idle() -> bool:
    """Whether other programs leave the processors time. Where that is not told, they do."""
    try:
        before, own = _processor_times(), time.process_time()
        time.sleep(GLANCE)
        whole, resting = (b - a for a, b in zip(before, _processor_times(), strict=True))
        own = time.process_time() - own  # what is read ahead for an earlier request goes on
        return whole - resting - own <= IDLE * whole
    except (OSError, ValueError, IndexError):
        return True


def _processor_times() -> tuple[float, float]:
    """Seconds of all processors since the machine began: in all, and at rest. Linux tells it."""
    with open("/proc/stat") as file:
        numbers = [int(number) / os.sysconf("SC_CLK_TCK") for number in file.readline().split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]
