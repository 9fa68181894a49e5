"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 note`, `2 notes`, `3 entries`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"
