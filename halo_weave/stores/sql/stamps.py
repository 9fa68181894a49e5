"""Takes time stamps out of stored replies that begin with one. What was taken out stays in the history."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from halo_weave.core.stamps import stamps_length
from halo_weave.stores.packing import (
    micros,
    pack_floats,
    pack_tokens,
    pack_traces,
    unpack_floats,
    unpack_tokens,
    unpack_traces,
)
from halo_weave.stores.sql.corrections import forget
from halo_weave.stores.sql.presence import leave
from halo_weave.stores.sql.rows import SqlPart, note_event, pack_json, want_vectors, write_words
from halo_weave.stores.sql.seam import Connection
from halo_weave.stores.sql.wording import told_of


class SqlStamps(SqlPart):
    def remove_stamps(self, *, now: datetime) -> int:
        with self._db.reading() as db:
            if db.execute("SELECT stamps_removed FROM memory").fetchone()[0]:
                return 0
            # "[2026-…" or "[Monday, …", perhaps after white space: few chunks begin so.
            numbers = [
                number
                for number, raw in db.execute(
                    """SELECT c.number, c.raw FROM chunks c JOIN turns t ON t.id = c.turn
                       WHERE t.role = 'assistant' AND c.merged IS NULL AND c.deleted IS NULL"""
                )
                if b"[" in raw[:8] and stamps_length(raw.decode(errors="replace"))
            ]
        for number in numbers:
            with self._db.writing() as db:
                _remove(db, number, micros(now))
        with self._db.writing(durable=True) as db:
            db.execute("UPDATE memory SET stamps_removed = 1")
        return len(numbers)


def _remove(db: Connection, number: int, when: int) -> None:
    row = db.execute(
        "SELECT start, span, ids, lengths, raw FROM chunks WHERE number = ? AND deleted IS NULL AND merged IS NULL",
        (number,),
    ).fetchone()
    if row is None:
        return
    start, span = row[:2]
    tokens = unpack_tokens(row[2], row[3], row[4], span)
    text = tokens.raw.decode(errors="surrogateescape")
    size = len(text[: stamps_length(text)].encode(errors="surrogateescape"))
    gone = int(
        np.searchsorted(tokens.ends, size, side="right")
    )  # tokens that belong to the stamp with all their bytes
    if not gone:
        return
    if gone == span:  # the reply is nothing but stamps
        db.execute("UPDATE chunks SET deleted = ? WHERE number = ?", (when, number))
        leave(db, [number], "deleted", when)
        forget(db, [number])
        note_event(db, [(None, number, when, "deleted", pack_json({"why": "time stamp"}))])
        return
    kept = tokens.part(gone, span)
    db.execute(
        "UPDATE chunks SET start = ?, span = ?, told = ?, ids = ?, lengths = ?, raw = ? WHERE number = ?",
        (start + gone, span - gone, told_of(kept.raw), *pack_tokens(kept), number),
    )
    for table in ("live", "asleep"):
        held = f"SELECT window, brightness, traces FROM {table} WHERE chunk = ?"
        for window, blob, traces in db.execute(held, (number,)).fetchall():
            bright = unpack_floats(blob)
            known = unpack_traces(traces, len(bright))
            if len(bright) == span:
                bright, known = bright[gone:], None if known is None else known[:, gone:]
            else:  # the window reads it with another tokenizer
                bright, known = np.full(span - gone, bright.max(), np.float32), None
            db.execute(
                f"""UPDATE {table} SET start = ?, brightness = ?, traces = ?, tokenizer = NULL, ids = NULL, lengths = NULL,
                    raw = NULL WHERE window = ? AND chunk = ?""",
                (start + gone, pack_floats(bright), pack_traces(known), window, number),
            )
    write_words(db, [number])
    db.note_changed([number])
    want_vectors(db, [number])
    removed = tokens.raw[: int(tokens.ends[gone - 1])].decode(errors="replace")
    note_event(db, [(None, number, when, "cleaned", pack_json({"removed": removed}))])
