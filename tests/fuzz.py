"""What the fuzz tests share: how many examples, and a limit on the time of each.

The tests run a few examples. To run for long: HALO_WEAVE_FUZZ=100000 pytest tests/chat/test_fuzz_imports.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parent / "corpus"
SECONDS = 5  # of computing
PATIENCE = 60  # of waiting, on a machine that others use too


def examples(few: int) -> int:
    return int(os.environ.get("HALO_WEAVE_FUZZ", few))


@contextmanager
def in_time() -> Iterator[None]:
    """Fails what computes or waits for too long, where the system can ring."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(
            f"It computed for more than {SECONDS} seconds, or waited for more than {PATIENCE}."
        )

    if not hasattr(signal, "setitimer"):
        yield
        return
    clocks = [(signal.ITIMER_PROF, signal.SIGPROF, SECONDS), (signal.ITIMER_REAL, signal.SIGALRM, PATIENCE)]
    before = [signal.signal(number, ring) for _, number, _ in clocks]
    for clock, _, seconds in clocks:
        signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        for (clock, number, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)
