"""Detect stop strings, which may span several tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from halo_weave.engines.base import Step


class StopStrings:
    """Holds generated tokens back while their text may be the beginning of a stop string."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = [string.encode() for string in strings if string]
        self.held: list[Step] = []

    def feed(self, step: Step) -> tuple[list[Step], bool]:
        """The tokens that can be released, and whether a stop string was found.

        The text of the stop string is not released; of a token that begins before it, only the part before it.
        """
        self.held.append(step)
        text = b"".join(held.piece for held in self.held)
        matches = [at for at in (text.find(string) for string in self.strings) if at >= 0]
        cut = min(matches) if matches else len(text) - self.overlap(text)
        out, at = [], 0
        while self.held and at + len(self.held[0].piece) <= cut:
            at += len(self.held[0].piece)
            out.append(self.held.pop(0))
        if matches:
            if self.held and at < cut:
                out.append(replace(self.held[0], piece=self.held[0].piece[: cut - at]))
            self.held.clear()
        return out, bool(matches)

    def overlap(self, text: bytes) -> int:
        """The length of the longest suffix of the text that is the beginning of a stop string."""
        longest = max((len(string) for string in self.strings), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-size:]) for string in self.strings):
                return size
        return 0

    def rest(self) -> list[Step]:
        """Release the held tokens, when generation has ended for another reason."""
        out, self.held = self.held, []
        return out
