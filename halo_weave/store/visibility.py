"""Hide chunks from all windows and searches (deleted, or not on a current branch), and restore them as they were."""

from __future__ import annotations

import json
from collections.abc import Sequence

from halo_weave.store.database import Connection
from halo_weave.store.encoding import unpack_floats
from halo_weave.store.rows import VISIBLE, json_array, pack_json, request_embedding, rewrite_word_index

_AMONG = "chunk IN (SELECT value FROM json_each(?))"
# The assignments of an upsert into `asleep`.
UPDATE_PRUNED = ", ".join(
    f"{column} = excluded.{column}"
    for column in "chunk gone peak slept reason tokenizer brightness traces ids lengths raw".split()
)
# Values of `gone` in `asleep`: hidden in all windows (deleted or aside), or in one window (not on its branch).
HIDDEN_EVERYWHERE, HIDDEN_IN_WINDOW = 1, 2


def hide_chunks(
    db: Connection, numbers: Sequence[int], why: str, when: int, *, only: str | None = None
) -> tuple[str, ...]:
    """Hide chunks in all windows and searches, or only in the window `only`. Their state in each window is kept. Returns the
    windows where one of them was live."""
    chosen = (json_array(numbers), only)
    where = f"{_AMONG} AND (?2 IS NULL OR window = ?2)".replace("(?)", "(?1)")
    live = db.execute(
        f"SELECT window, start, brightness, since, pinned, woken FROM live WHERE {where}", chosen
    ).fetchall()
    db.executemany(
        f"""INSERT INTO asleep
                (window, start, chunk, gone, peak, slept, reason, tokenizer, brightness, traces, ids, lengths, raw)
            SELECT window, start, chunk, 0, ?, ?, ?, tokenizer, brightness, traces, ids, lengths, raw
            FROM live WHERE window = ? AND start = ?
            ON CONFLICT (window, start) DO UPDATE SET {UPDATE_PRUNED}""",
        [
            (
                float(unpack_floats(bright).max()),
                when,
                _live_state_as_reason(why, since, pinned, woken),
                window,
                start,
            )
            for window, start, bright, since, pinned, woken in live
        ],
    )
    db.execute(f"DELETE FROM live WHERE {where}", chosen)
    gone = HIDDEN_EVERYWHERE if only is None else HIDDEN_IN_WINDOW
    db.execute(f"UPDATE asleep SET gone = {gone} WHERE {where} AND gone < {gone}", chosen)
    if only is None:
        db.execute(f"DELETE FROM wanted WHERE {_AMONG}", chosen[:1])
        db.remove_from_word_index(numbers)
        db.mark_changed(numbers)
    return tuple(dict.fromkeys(window for window, *_ in live))


def restore_chunks(db: Connection, numbers: Sequence[int], *, here: str | None = None) -> tuple[str, ...]:
    """Restore the chunks that are neither deleted nor aside. `here`: the window whose branch they are on again. Returns the
    windows where one of them is live again."""
    db.execute(
        f"UPDATE asleep SET gone = {HIDDEN_EVERYWHERE} WHERE {_AMONG} AND gone = {HIDDEN_IN_WINDOW} AND window = ?",
        (json_array(numbers), here),
    )
    rows = db.execute(
        f"SELECT c.number FROM chunks c WHERE c.number IN (SELECT value FROM json_each(?)) AND {VISIBLE}",
        (json_array(numbers),),
    )
    present = [number for (number,) in rows]
    chosen = (json_array(present),)
    hidden = db.execute(
        f"SELECT window, start, reason FROM asleep WHERE {_AMONG} AND gone = {HIDDEN_EVERYWHERE}", chosen
    ).fetchall()
    live = [
        (window, start, was) for window, start, reason in hidden if (was := _live_state_from_reason(reason))
    ]
    db.executemany(
        """INSERT INTO live
                (window, start, chunk, pinned, since, woken, tokenizer, brightness, traces, ids, lengths, raw)
            SELECT window, start, chunk, ?, ?, ?, tokenizer, brightness, traces, ids, lengths, raw
            FROM asleep WHERE window = ? AND start = ?""",
        [(*was, window, start) for window, start, was in live],
    )
    db.executemany(
        "DELETE FROM asleep WHERE window = ? AND start = ?", [(window, start) for window, start, _ in live]
    )
    db.execute(f"UPDATE asleep SET gone = 0 WHERE {_AMONG} AND gone = {HIDDEN_EVERYWHERE}", chosen)
    rewrite_word_index(db, present)
    db.mark_changed(numbers)
    request_embedding(
        db,
        present,
        unless="AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.generation = g.id AND v.chunk = n.chunk)",
    )
    return tuple(dict.fromkeys(window for window, _, _ in live))


def _live_state_as_reason(why: str, since: int, pinned: int, woken: str | None) -> str:
    """The reason of a hidden chunk that was live: it contains the state to restore."""
    return pack_json(
        {"why": why, "since": since, "pinned": pinned, "woken": None if woken is None else json.loads(woken)}
    )


def _live_state_from_reason(reason: str) -> tuple[int, int, str | None] | None:
    """The columns pinned, since and woken of a chunk that was live when it was hidden; else None."""
    was = json.loads(reason)
    if was.get("why") not in ("deleted", "aside") or not was.get("since"):
        return None
    woken = was.get("woken")
    return int(was.get("pinned") or 0), int(was["since"]), None if woken is None else pack_json(woken)
