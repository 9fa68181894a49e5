"""Reading ahead: what the next message will need is made ready while nobody waits for it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition, Thread

from halo_weave.core.tokens import ChunkKey
from halo_weave.core.use import seen_for_use
from halo_weave.errors import HaloWeaveError
from halo_weave.ports import Prompt
from halo_weave.weave.desk import Desk
from halo_weave.weave.system import System

log = logging.getLogger(__name__)
TRIES = (
    5  # the memory must not be written to while a prompt is made of it: after a reply its chunks are embedded
)
FRAMES = 96  # tokens that may always be computed: the end of a reply, and the beginning of a message
IDLE = 0.5  # at most this share of the processors does other work on a machine that counts as idle
GLANCE = 0.1  # seconds of looking at them


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is known of the next message: who says it, what would wake up for it, and the words as far as they are typed."""

    speaker: str = ""  # of several people
    wakes: tuple[ChunkKey, ...] = ()
    text: str = ""


class ReadAhead:
    """One thread for all windows. Of several wishes for a window the last one counts."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._changed = Condition()
        self._wishes: dict[str, _Wish] = {}
        self._thread: Thread | None = None
        self._busy = self._closed = False

    def wish(self, window_id: str, text: str = "", wakes: Iterable[ChunkKey] = (), speaker: str = "") -> None:
        """This window will be spoken to; `text` was typed so far, and would wake these chunks up. Returns at once.

        `speaker`: the name that is told of who speaks, where several people do.
        """
        if not self._system.engine.info.abilities.ahead:
            return
        with self._changed:
            if self._closed:
                return
            self._wishes.pop(window_id, None)
            self._wishes[window_id] = _Wish(speaker, tuple(wakes), text)
            if self._thread is None:
                self._thread = Thread(target=self._loop, name="halo-weave ahead", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self) -> None:
        """Returns when every wish was handed to the engine."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._wishes or self._busy))

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
                self._changed.wait_for(lambda: self._closed or bool(self._wishes))
                if self._closed:
                    return
                window_id = next(iter(self._wishes))
                wish = self._wishes.pop(window_id)
                self._busy = True
            try:
                self._read(window_id, wish)
            except HaloWeaveError as error:  # it is read when it is said
                log.debug("%s is not read ahead: %s", window_id, error)
            except Exception:
                log.exception("Reading ahead failed.")

    def _read(self, window_id: str, wish: _Wish) -> None:
        system = self._system
        if system.silence is not None or window_id in system.at_work:
            return
        how = system.desk(window_id).settings.read_ahead
        if how in ("off", "frames"):
            wish = _Wish(wish.speaker)
        elif how == "load":
            wish = _Wish(wish.speaker, wish.wakes)
        # Frames are few and wait for nothing. How busy the machine is takes a while to see.
        most = None if how == "compute" and (wish.wakes or wish.text) and _idle() else FRAMES
        for _ in range(TRIES):
            version = system.store.version()
            desk = system.desk(window_id)
            if how == "off" or not desk.engine.info.abilities.cuts or not len(desk.window):
                return
            prompt = _prompt_of(desk, wish, system)
            if system.store.version() == version and window_id not in system.at_work:
                desk.engine.read_ahead(
                    window_id,
                    prompt,
                    room=desk.reply_room + FRAMES,
                    mode=desk.settings.kv_mode,
                    most=most,
                    capture=seen_for_use(desk.window.strategy.capture, desk.calibration)
                    if wish.text
                    else None,
                )
                return


def _prompt_of(desk: Desk, wish: _Wish, system: System) -> Prompt:
    """What the next prompt begins with if these chunks wake up and these words are sent."""
    readings = list(desk.readings(wish.wakes).values())
    with desk.guard:
        chunks = [*desk.window.chunks, *(one.chunk for one in readings)]
        origins, foreign, said = dict(desk.origins), set(desk.foreign), dict(desk.said)
    for one in readings:
        said[one.chunk.key.turn_id] = one.record.said
        if origin := desk.origin(one.chunk, one.record):
            origins[one.chunk.key.turn_id] = origin
        if len(one.chunk) != one.chunk.span:
            foreign.add(one.chunk.start)
    return desk.scribe.ahead(
        sorted(chunks, key=lambda chunk: chunk.start),
        desk.system,
        origins,
        frozenset(foreign),
        origin=desk.coming_origin(wish.speaker, system.now()),
        effort=desk.settings.effort,
        words=desk.engine.tokenize(wish.text) if wish.text else None,
        said=said,
    )


def _idle() -> bool:
    """Whether other programs leave the processors time. Where that is not told, they do."""
    try:
        before, own = _processor_times(), time.process_time()
        time.sleep(GLANCE)
        whole, resting = (b - a for a, b in zip(before, _processor_times(), strict=True))
        own = time.process_time() - own  # what is read ahead for an earlier wish goes on
        return whole - resting - own <= IDLE * whole
    except (OSError, ValueError, IndexError):
        return True


def _processor_times() -> tuple[float, float]:
    """Seconds of all processors since the machine began: in all, and at rest. Linux tells it."""
    with open("/proc/stat") as file:
        numbers = [int(number) / os.sysconf("SC_CLK_TCK") for number in file.readline().split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]
