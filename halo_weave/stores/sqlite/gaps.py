"""What sleeps between the live chunks of a window."""

from __future__ import annotations

import numpy as np

from halo_weave.store import Numbers, Sleeping
from halo_weave.stores.sqlite.rows import CHUNK_COLUMNS, CHUNK_TABLES, Part
from halo_weave.stores.sqlite.working import sleeping_of


class Gaps(Part):
    def asleep_places(self, window_id: str) -> tuple[Numbers, Numbers]:
        """Starts and sizes in tokens of all sleeping chunks, in position order."""
        with self._db.reading() as db:
            rows = db.execute(
                "SELECT start, length(brightness) / 4 FROM asleep WHERE window = ? AND gone = 0 ORDER BY start",
                (window_id,),
            ).fetchall()
        places = np.array(rows, np.int64).reshape(-1, 2)
        return places[:, 0], places[:, 1]

    def asleep_between(self, window_id: str, after: int, before: int, limit: int) -> list[Sleeping]:
        """Sleeping chunks that start from one position on and before another, in position order."""
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT {CHUNK_COLUMNS}, a.brightness, a.peak, a.slept, a.reason, a.ids, a.lengths, a.raw,
                        (SELECT fingerprint FROM tokenizers WHERE id = a.tokenizer)
                    FROM asleep a CROSS JOIN {CHUNK_TABLES} AND c.number = a.chunk
                    WHERE a.window = ? AND a.gone = 0 AND a.start >= ? AND a.start < ? ORDER BY a.start LIMIT ?""",
                (window_id, after, before, limit),
            ).fetchall()
        return sleeping_of(rows)
