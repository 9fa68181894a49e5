"""Chunks that leave all windows and every search, and come back as they were: deleted ones, and those aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from halo_weave.stores.packing import unpack_floats
from halo_weave.stores.sqlite.rows import PRESENT, listed, note_changed, remove_words, write_words

_CHOSEN = "chunk IN (SELECT value FROM json_each(?))"
_WAS_LIVE = f"{_CHOSEN} AND gone = 1 AND reason ->> 'why' IN ('deleted', 'aside') AND reason ->> 'since'"
# What `gone` says of a chunk that a window holds asleep: it is deleted or aside; it is off this window's own branch.
NOWHERE, NOT_HERE = 1, 2


def leave(
    db: sqlite3.Connection, numbers: Sequence[int], why: str, when: int, *, only: str | None = None
) -> tuple[str, ...]:
    """Out of every window and every search, or out of `only` one window. Each window keeps how it held them.

    Returns the windows where one of them was live.
    """
    chosen = (listed(numbers), only)
    where = f"{_CHOSEN} AND (?2 IS NULL OR window = ?2)".replace("(?)", "(?1)")
    db.execute(
        f"""INSERT OR REPLACE INTO asleep
                (window, start, chunk, gone, peak, slept, reason, tokenizer, brightness, traces, ids, lengths, raw)
            SELECT window, start, chunk, 0, 0, {when},
                json_object('why', '{why}', 'since', since, 'pinned', pinned, 'woken', json(woken)),
                tokenizer, brightness, traces, ids, lengths, raw
            FROM live WHERE {where}""",
        chosen,
    )
    fallen = db.execute(f"SELECT window, start, brightness FROM live WHERE {where}", chosen).fetchall()
    db.executemany(
        "UPDATE asleep SET peak = ? WHERE window = ? AND start = ?",
        [(float(unpack_floats(blob).max()), window, start) for window, start, blob in fallen],
    )
    db.execute(f"DELETE FROM live WHERE {where}", chosen)
    gone = NOWHERE if only is None else NOT_HERE
    db.execute(f"UPDATE asleep SET gone = {gone} WHERE {where} AND gone < {gone}", chosen)
    if only is None:
        db.execute(f"DELETE FROM wanted WHERE {_CHOSEN}", chosen[:1])
        remove_words(db, numbers)
        note_changed(db, numbers)
    return tuple(dict.fromkeys(window for window, _, _ in fallen))


def come_back(db: sqlite3.Connection, numbers: Sequence[int], *, here: str | None = None) -> tuple[str, ...]:
    """Those of them that nothing keeps away any more; `here`: that are on this window's own branch again.

    Returns the windows where one of them is live again.
    """
    db.execute(
        f"UPDATE asleep SET gone = {NOWHERE} WHERE {_CHOSEN} AND gone = {NOT_HERE} AND window = ?",
        (listed(numbers), here),
    )
    rows = db.execute(
        f"SELECT c.number FROM chunks c WHERE c.number IN (SELECT value FROM json_each(?)) AND {PRESENT}",
        (listed(numbers),),
    )
    present = [number for (number,) in rows]
    chosen = (listed(present),)
    windows = db.execute(f"SELECT DISTINCT window FROM asleep WHERE {_WAS_LIVE}", chosen).fetchall()
    db.execute(
        f"""INSERT INTO live
                (window, start, chunk, pinned, since, woken, tokenizer, brightness, traces, ids, lengths, raw)
            SELECT window, start, chunk, reason ->> 'pinned', reason ->> 'since',
                nullif(reason -> 'woken', 'null'), tokenizer, brightness, traces, ids, lengths, raw
            FROM asleep WHERE {_WAS_LIVE}""",
        chosen,
    )
    db.execute(f"DELETE FROM asleep WHERE {_WAS_LIVE}", chosen)
    db.execute(f"UPDATE asleep SET gone = 0 WHERE {_CHOSEN} AND gone = {NOWHERE}", chosen)
    write_words(db, present)
    note_changed(db, numbers)
    db.execute(
        """INSERT OR REPLACE INTO wanted (generation, chunk, sequence)
           SELECT g.id, n.chunk, n.sequence FROM generations g, changes n
           WHERE g.state <> 'retired' AND n.chunk IN (SELECT value FROM json_each(?))
           AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = g.id AND v.chunk = n.chunk)""",
        chosen,
    )
    return tuple(window for (window,) in windows)
