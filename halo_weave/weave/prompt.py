"""The working set as the model reads it: system prompt, then each turn's chunks inside its frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import numpy as np

from halo_weave.core.tokens import Chunk, Ids, Positions, Role, Tokens
from halo_weave.core.window import FramePart, Window
from halo_weave.ports import Engine, Prompt, Segment

# What has no position is labelled below zero: the system prompt, frames by their turn, and chunks that this window
# reads with another tokenizer than they were said with.
SYSTEM_LABELS = -1
FRAME_LABELS = -(2**24)
FRAME_ROOM = 1024  # labels kept for each half of a frame
LONGEST_NAME = 48  # bytes of a window's name that the model is told
FOREIGN_LABELS = -(2**62)
FOREIGN_ROOM = 2**12


@dataclass(frozen=True, slots=True)
class Origin:
    """When and where a turn was said, as far as the model is told."""

    said: datetime
    window: str = ""  # the name of the window, if it is another one

    @property
    def stamp(self) -> str:
        when = self.said.astimezone().strftime("%Y-%m-%d %H:%M")
        return f"[{when}, in {shortened(self.window)}] " if self.window else f"[{when}] "


class Scribe:
    """Writes prompts for one engine. Frames are tokenized once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._frame = lru_cache(engine.frame)
        self._stamp = lru_cache(4096)(engine.tokenize)

    def system(self, text: str) -> Ids:
        """The system prompt in its frame; only what begins a context if there is none."""
        header, footer = self._frame(Role.SYSTEM, first=True)
        if not text:
            with_start, without = (
                self._frame(Role.USER, first=True)[0],
                self._frame(Role.USER, first=False)[0],
            )
            return with_start.ids[: len(with_start) - len(without)]
        return np.concatenate([header.ids, self._engine.tokenize(text).ids, footer.ids])

    def frame_tokens(self, *, stamps: bool) -> dict[Role, int]:
        """How many tokens a turn's frame takes, at most for those with a stamp."""
        stamp = len(self._stamp(Origin(datetime(2026, 12, 30, 23, 59)).stamp)) if stamps else 0
        sizes = {}
        for role in (Role.USER, Role.ASSISTANT):
            header, footer = self._frame(role, first=False)
            sizes[role] = len(header) + len(footer) + (stamp if role is Role.USER else 0)
        return sizes

    def stamp_tokens(self, name: str) -> int:
        """How many tokens more a frame takes that names a window."""
        said = datetime(2026, 12, 30, 23, 59)
        return len(self._stamp(Origin(said, name).stamp)) - len(self._stamp(Origin(said).stamp))

    def prompt(
        self,
        window: Window,
        system: Ids,
        origins: Mapping[int, Origin],
        foreign: frozenset[int] = frozenset(),
    ) -> Prompt:
        """What should be live. A reply in progress stands last, after the header of its turn.

        `origins` holds the turns that get a stamp, `foreign` the starts of chunks under another tokenizer.
        """
        segments = [Segment("system", _labels(SYSTEM_LABELS, len(system)), system)] if len(system) else []
        for item in window.layout():
            if isinstance(item, FramePart):
                segments.append(self._framing(item, origins.get(item.turn_id)))
            else:
                segments.append(Segment("chunk", chunk_labels(item, item.start in foreign), item.tokens.ids))
        reply = window.reply
        if reply is None:
            raise AssertionError("A prompt is written for a reply.")
        segments.append(self._framing(FramePart(reply.turn_id, Role.ASSISTANT, "header"), None))
        if reply.ids:
            labels = np.arange(reply.start, reply.start + len(reply.ids), dtype=np.int64)
            segments.append(Segment("chunk", labels, np.array(reply.ids, np.int32)))
        read_from = next((c.start for c in window.chunks if c.key.turn_id == reply.answers), None)
        return Prompt(segments, reply.start + len(reply.ids), read_from)

    def _framing(self, frame: FramePart, origin: Origin | None) -> Segment:
        header, footer = self._frame(frame.role, first=False)
        tokens: Tokens = header if frame.part == "header" else footer
        if origin and frame.part == "header":
            tokens = tokens + self._stamp(origin.stamp)
        first = FRAME_LABELS - FRAME_ROOM * (2 * frame.turn_id + (frame.part == "footer"))
        return Segment("frame", _labels(first, len(tokens)), tokens.ids)


def shortened(name: str) -> str:
    whole = name.encode()
    return name if len(whole) <= LONGEST_NAME else whole[:LONGEST_NAME].decode(errors="ignore").rstrip() + "…"


def chunk_labels(chunk: Chunk, foreign: bool) -> Positions:
    if foreign:
        return _labels(FOREIGN_LABELS + FOREIGN_ROOM * (chunk.start + 1), len(chunk))
    return np.arange(chunk.start, chunk.start + len(chunk), dtype=np.int64)


def _labels(first: int, count: int) -> Positions:
    return np.arange(first, first - count, -1, dtype=np.int64)
