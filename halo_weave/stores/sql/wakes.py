"""Chunks that are to wake up in a window: whether they can, and in which tokens the window reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from halo_weave.core.tokens import ChunkKey, Role, Tokens
from halo_weave.errors import BadInput
from halo_weave.records import WakeUp
from halo_weave.stores.packing import pack_tokens
from halo_weave.stores.sql.rows import pack_json, tokenizer_of
from halo_weave.stores.sql.seam import Connection

OwnReading = tuple[int | None, bytes | None, bytes | None, bytes | None]


class WakingRow(NamedTuple):
    """A chunk that is to wake up in a window, and how the window read it last."""

    number: int
    start: int
    span: int
    deleted: int | None
    merged: int | None
    aside: int
    live: bool
    reading: OwnReading
    size: int | None  # tokens in that reading

    def cannot_wake(self, window_id: str) -> str:
        """Why it cannot, if so."""
        if self.deleted is not None or self.merged is not None:
            how = "deleted" if self.deleted is not None else "merged into another"
            return f"was {how}; it cannot wake up."
        if self.aside:
            return "is on another branch; it cannot wake up."
        return f"is live in window {window_id} already." if self.live else ""


def waking_rows(db: Connection, window_id: str, keys: Sequence[ChunkKey]) -> dict[ChunkKey, WakingRow]:
    rows = db.execute(
        """SELECT c.turn, c.chunk, t.role, c.number, c.start, c.span, c.deleted, c.merged, c.aside,
               EXISTS (SELECT 1 FROM live l WHERE l.window = :window AND l.start = c.start),
               a.tokenizer, a.ids, a.lengths, a.raw, length(a.brightness) / 4
           FROM json_each(:keys) j CROSS JOIN chunks c JOIN turns t ON t.id = c.turn
               AND c.turn = CAST(j.value ->> 0 AS BIGINT) AND c.chunk = CAST(j.value ->> 1 AS BIGINT)
           LEFT JOIN asleep a ON a.window = :window AND a.start = c.start""",
        {"keys": pack_json([key[:2] for key in keys]), "window": window_id},
    ).fetchall()
    return {
        ChunkKey(row[0], row[1], Role(row[2])): WakingRow._make(
            [*row[3:9], bool(row[9]), row[10:14], row[14]]
        )
        for row in rows
    }


def reading_of(db: Connection, row: WakingRow, item: WakeUp) -> OwnReading:
    """Tokenizer, ids, lengths and bytes if the window reads the chunk in its own way; else nothing."""
    size = item.brightness.size
    if item.tokens is not None:
        if item.tokenizer is None or len(item.tokens) != size:
            raise BadInput(
                f"Chunk {item.key} came with tokens that do not fit its brightness, or of no tokenizer."
            )
        return own_reading(db, row.number, tokenizer_of(db, item.tokenizer), item.tokens)
    if row.reading[1] is not None and row.size == size:
        return row.reading
    if size != row.span:
        raise BadInput(f"Chunk {item.key} has {row.span} tokens, not {size}.")
    return None, None, None, None


def own_reading(db: Connection, number: int, tokenizer: int, tokens: Tokens) -> OwnReading:
    """Tokens as a window reads them; nothing if the record has the same."""
    own = (tokenizer, *pack_tokens(tokens))
    row = db.execute("SELECT tokenizer, ids, lengths, raw FROM chunks WHERE number = ?", (number,)).fetchone()
    return (None, None, None, None) if row == own else own
