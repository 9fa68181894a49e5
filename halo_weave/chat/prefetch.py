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
TRIES = 5  # attempts to build a prompt while nothing is written to the memory: after a reply its chunks are embedded
FRAMES = 96  # tokens that may be computed even on a busy machine: the end of a reply, and the beginning of a message
IDLE = 0.5  # an idle machine has at most this share of its processors busy with other work
GLANCE = 0.1  # seconds over which that is measured


@dataclass(frozen=True, slots=True)
class _PrefetchRequest:
    """What is known of the next message: its speaker, the text typed so far, and what would be resurrected for it."""

    speaker: str = ""  # the speaker's name, if several people write in the window
    resurrect: tuple[ChunkKey, ...] = ()
    text: str = ""


class Prefetcher:
    """Prefetches in one thread for all windows. Of several requests for a window only the last one counts."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed = Condition()
        self._requests: dict[str, _PrefetchRequest] = {}
        self._thread: Thread | None = None
        self._busy = self._closed = False

    def request(
        self, window_id: str, text: str = "", resurrect: Iterable[ChunkKey] = (), speaker: str = ""
    ) -> None:
        """A message is being typed in this window. Returns at once.

        `text`: typed so far; `resurrect`: the chunks that would be resurrected for it; `speaker`: its author, if
        several people write in the window.
        """
        self._runtime.note_activity()
        if not self._runtime.engine.info.abilities.prefetch:
            return
        with self._changed:
            if self._closed:
                return
            self._requests.pop(window_id, None)
            self._requests[window_id] = _PrefetchRequest(speaker, tuple(resurrect), text)
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="halo-weave prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until every request was handed to the engine."""
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
            except HaloWeaveError as error:  # the message is read when it is sent
                log.debug("%s is not prefetched: %s", window_id, error)
            except Exception:
                log.exception("Prefetching failed.")

    def _read(self, window_id: str, request: _PrefetchRequest) -> None:
        runtime = self._runtime
        if runtime.state.error is not None or window_id in runtime.busy_windows:
            return
        how = runtime.window_for_reading(window_id).settings.prefetch
        if how in ("off", "frames"):
            request = _PrefetchRequest(request.speaker)
        elif how == "load":
            request = _PrefetchRequest(request.speaker, request.resurrect)
        # Frames are few tokens and need no measurement of how busy the machine is, which takes a while.
        most = (
            None if how == "compute" and (request.resurrect or request.text) and machine_is_idle() else FRAMES
        )
        for _ in range(TRIES):
            version = runtime.store.version()
            open_window = runtime.window_for_reading(window_id)
            if how == "off" or not open_window.engine.info.abilities.cuts or not len(open_window.working_set):
                return
            prompt = _prompt_of(open_window, request, runtime)
            if runtime.store.version() == version and window_id not in runtime.busy_windows:
                open_window.engine.prefetch(
                    window_id,
                    prompt,
                    room=open_window.reply_room + FRAMES,
                    mode=open_window.settings.kv_mode,
                    max_computed=most,
                    capture=capture_for_attribution(
                        open_window.working_set.strategy.capture, open_window.calibration
                    )
                    if request.text
                    else None,
                )
                return


def _prompt_of(open_window: OpenWindow, request: _PrefetchRequest, runtime: Runtime) -> Prompt:
    """The beginning of the next prompt, if these chunks are resurrected and this text is sent."""
    readings = list(open_window.resurrectable(request.resurrect).values())
    with open_window.lock:
        chunks = [*open_window.working_set.chunks, *(one.chunk for one in readings)]
        annotations, retokenized, said_at, own_turns = (
            dict(open_window.annotations),
            set(open_window.retokenized),
            dict(open_window.said_at),
            open_window.own_turns,
        )
    for one in readings:
        said_at[one.chunk.key.turn_id] = one.record.said
        if annotation := open_window.annotation(one.chunk, one.record):
            annotations[one.chunk.key.turn_id] = annotation
        if len(one.chunk) != one.chunk.span:
            retokenized.add(one.chunk.start)
    return open_window.prompt_builder.next_prompt_prefix(
        sorted(chunks, key=lambda chunk: chunk.start),
        open_window.system_prompt,
        annotations,
        frozenset(retokenized),
        message_annotation=open_window.next_message_annotation(request.text, request.speaker, runtime.now()),
        effort=open_window.settings.effort,
        typed_tokens=open_window.engine.tokenize(request.text) if request.text else None,
        said_at=said_at,
        own_turns=own_turns,
        owner=open_window.cell_owner,
    )


def machine_is_idle() -> bool:
    """Whether other programs leave the processors idle. True if the system does not say."""
    try:
        before, own = _processor_times(), time.process_time()
        time.sleep(GLANCE)
        whole, resting = (b - a for a, b in zip(before, _processor_times(), strict=True))
        own = time.process_time() - own  # the prefetch of an earlier request continues
        return whole - resting - own <= IDLE * whole
    except (OSError, ValueError, IndexError):
        return True


def _processor_times() -> tuple[float, float]:
    """Seconds of all processors since the machine started: in total, and idle. Known on Linux only."""
    with open("/proc/stat") as file:
        numbers = [int(number) / os.sysconf("SC_CLK_TCK") for number in file.readline().split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]
