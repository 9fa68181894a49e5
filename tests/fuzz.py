"""What the fuzz tests share: how many examples, and a limit on the time of each.

The tests run a few examples. To run for long: HALO_WEAVE_FUZZ=100000 pytest tests/weave/test_fuzz_imports.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parent / "corpus"
SECONDS = 5


def examples(few: int) -> int:
    return int(os.environ.get("HALO_WEAVE_FUZZ", few))


@contextmanager
def in_time() -> Iterator[None]:
    """Fails what takes too long, where the system can ring."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"It took more than {SECONDS} seconds.")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
