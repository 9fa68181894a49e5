"""What all turns came to since the start, in figures, for whoever looks after a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import Any

from halo_weave.errors import StoreError
from halo_weave.weave.clock import COUNTS


class Totals:
    """Sums that only grow. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sums: Counter[str] = Counter()

    def add_turn(self, stats: Mapping[str, Any]) -> None:
        """The figures of a turn that ended."""
        pace = stats.get("tokens_per_second") or 0
        with self._lock:
            self._sums["turns"] += 1
            for name in COUNTS:
                self._sums[name] += stats.get(name, 0)
            self._sums["seconds"] += stats.get("seconds", 0)
            self._sums["own_seconds"] += stats.get("own_ms_per_turn", 0) / 1e3
            self._sums["recall_seconds"] += stats.get("recall_ms", 0) / 1e3
            self._sums["writing_seconds"] += stats.get("tokens", 0) / pace if pace else 0

    def add_failure(self, error: Exception) -> None:
        with self._lock:
            self._sums["failures"] += 1
            self._sums["store_errors"] += isinstance(error, StoreError)

    def read(self) -> Counter[str]:
        with self._lock:
            return self._sums.copy()
