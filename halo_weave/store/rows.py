"""Convert rows to records and back, and helpers that several parts of the store share."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.errors import BadInput, UnknownChunk, UnknownWindow
from halo_weave.store.database import Connection
from halo_weave.store.encoding import (
    informativeness_of,
    maybe_moment,
    moment,
    pack_tokens,
    unpack_runs,
    word_terms,
)
from halo_weave.store.records import Json, StoredChunk

CHUNK_COLUMNS = """
    c.number, c.turn, c.chunk, t.role, c.start, c.span, t.answers, c.window, t.speaker, t.said, k.fingerprint, c.tags,
    c.deleted, c.undeleted, (SELECT m.chunk FROM chunks m WHERE m.number = c.merged_into), c.ids, c.lengths, c.raw,
    c.aside
"""
CHUNK_TABLES = "chunks c JOIN turns t ON t.id = c.turn JOIN tokenizers k ON k.id = c.tokenizer"
VISIBLE = "c.deleted IS NULL AND c.merged IS NULL AND c.aside = 0"
# Ids of the windows that the person :reader may read: their own, and what others share with them.
READABLE_WINDOWS = """SELECT o.id FROM windows o WHERE o.owner = :reader
    UNION SELECT o.id FROM shares s JOIN windows o ON o.owner = s.owner AND (s.window = '' OR s.window = o.id)
    WHERE s.person = :reader"""
ROWS_PER_STEP = 900  # rows per statement


def chunk_records(rows: Sequence[tuple[Any, ...]]) -> list[StoredChunk]:
    """`CHUNK_COLUMNS` as records."""
    runs = unpack_runs([(row[15], row[16], row[17], row[5]) for row in rows])
    return [chunk_record(row, tokens) for row, tokens in zip(rows, runs, strict=True)]


def chunk_record(row: tuple[Any, ...], tokens: Tokens, tokenizer: str | None = None) -> StoredChunk:
    number, turn, chunk, role, start, span, answers, window, speaker, said, fingerprint, tags = row[:12]
    key = ChunkKey(turn, chunk, Role(role))
    return StoredChunk(
        number,
        Chunk(key, start, tokens, answers, span),
        window,
        speaker,
        moment(said),
        fingerprint if tokenizer is None else tokenizer,
        unpack_tags(tags),
        maybe_moment(row[12]),
        maybe_moment(row[13]),
        None if row[14] is None else ChunkKey(turn, row[14], key.role),
        bool(row[18]),
    )


def unpack_tags(tags: str | None) -> tuple[str, ...]:
    return tuple(json.loads(tags)) if tags else ()


def pack_json(value: Json) -> str:
    """Compact JSON that reads back as the same value."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode("utf-8")
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"This cannot be kept as JSON: {error}.") from error


def merged_settings(
    stored: Mapping[str, Json], changes: Mapping[str, Json], reset: Collection[str]
) -> dict[str, Json]:
    """The settings after a change. Called within the transaction that writes them, so that no other change is lost."""
    return {name: value for name, value in {**stored, **changes}.items() if name not in reset}


def json_array(values: Iterable[int]) -> str:
    """Numbers as one parameter, for `IN (SELECT value FROM json_each(?))`."""
    return "[" + ",".join(map(str, values)) + "]"


def chunk_number(db: Connection, key: ChunkKey) -> int:
    row = db.execute(
        "SELECT c.number FROM chunks c JOIN turns t ON t.id = c.turn WHERE c.turn = ? AND c.chunk = ? AND t.role = ?",
        key,
    ).fetchone()
    if row is None:
        raise UnknownChunk(f"There is no chunk {key} in this memory.")
    return int(row[0])


def check_window(db: Connection, window_id: str) -> tuple[str, str]:
    """The user's and the AI's name in a window, which must exist."""
    row = db.execute("SELECT user_name, ai_name, deleted FROM windows WHERE id = ?", (window_id,)).fetchone()
    if row is None or row[2] is not None:
        raise UnknownWindow(f"There is no window {window_id!r}. To see them: halo-weave windows")
    return row[0], row[1]


def tokenizer_id(db: Connection, fingerprint: str) -> int:
    row = db.execute("SELECT id FROM tokenizers WHERE fingerprint = ?", (fingerprint,)).fetchone()
    if row is None:
        row = db.execute(
            "INSERT INTO tokenizers (fingerprint) VALUES (?) RETURNING id", (fingerprint,)
        ).fetchone()
    return int(row[0])


def reserve_up_to(db: Connection, turn: int, position: int) -> None:
    """Never give ids before these again."""
    db.execute("UPDATE memory SET next_turn = ?1 WHERE next_turn < ?1", (turn,))
    db.execute("UPDATE memory SET next_position = ?1 WHERE next_position < ?1", (position,))


INSERT_CHUNK = """INSERT INTO chunks (turn, chunk, window, start, span, tokenizer, tags, told, ids, lengths, raw)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def insert_chunk(
    db: Connection,
    window_id: str,
    key: ChunkKey,
    start: int,
    tokens: Tokens,
    tokenizer: str,
    tags: Sequence[str] | None,
) -> int:
    """Insert a chunk, without index entries and windows. Returns its number."""
    known = tokenizer_id(db, tokenizer)
    row = db.execute(
        f"{INSERT_CHUNK} RETURNING number", chunk_values(window_id, key, start, tokens, known, tags)
    ).fetchone()
    return int(row[0])


def chunk_values(
    window_id: str, key: ChunkKey, start: int, tokens: Tokens, tokenizer: int, tags: Sequence[str] | None
) -> tuple[Any, ...]:
    """The values for `INSERT_CHUNK`."""
    marks = pack_json(list(tags)) if tags else None
    about = (*key[:2], window_id, start, len(tokens), tokenizer, marks, informativeness_of(tokens.raw))
    return (*about, *pack_tokens(tokens))


def request_embedding(db: Connection, numbers: Sequence[int], *, unless: str = "") -> None:
    """Request new vectors, after the change was noted. Old ones are used until then. `unless`: an additional condition."""
    db.execute(
        f"""INSERT INTO wanted (generation, chunk, sequence)
            SELECT g.id, n.chunk, n.sequence FROM generations g, changes n
            WHERE g.state <> 'retired' AND n.chunk IN (SELECT value FROM json_each(?)) {unless}
            ON CONFLICT (generation, chunk) DO UPDATE SET sequence = excluded.sequence""",
        (json_array(numbers),),
    )


def rewrite_word_index(db: Connection, numbers: Sequence[int]) -> None:
    """Write these chunks again to the word index."""
    rows = db.execute(
        f"""SELECT c.number, c.raw, t.speaker, t.said FROM chunks c JOIN turns t ON t.id = c.turn
            WHERE c.number IN (SELECT value FROM json_each(?)) AND {VISIBLE}""",
        (json_array(numbers),),
    ).fetchall()
    db.remove_from_word_index(numbers)
    db.add_to_word_index([(number, word_terms(raw, speaker, said)) for number, raw, speaker, said in rows])


def record_events(db: Connection, rows: Iterable[tuple[str | None, int, int, str, str]]) -> None:
    """Record events: (window or None, chunk, time, event, detail)."""
    db.executemany(
        "INSERT INTO history (window, chunk, happened, event, detail) VALUES (?, ?, ?, ?, ?)", rows
    )
