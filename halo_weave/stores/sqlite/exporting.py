"""Export: a memory, or a part of it, as the sections of the exchange format, one element at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from typing import Any

from halo_weave.records import Subset
from halo_weave.stores.exchange import FORMAT, VERSION, base64_of, said_at, tokens_out
from halo_weave.stores.jsonstream import write_object
from halo_weave.stores.packing import micros, unpack_tokens
from halo_weave.stores.sqlite.rows import SqlitePart, check_window

Row = tuple[Any, ...]


class SqliteExport(SqlitePart):
    def export(
        self,
        write: Callable[[str], object],
        *,
        now: datetime,
        subset: Subset | None = None,
        vectors: bool = False,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Write the memory as it is at this moment, while others go on writing. `progress` counts turns."""
        subset = subset or Subset()
        with self._db.reading() as db:
            choose_turns(db, subset)
            total = db.execute("SELECT count(*) FROM chosen").fetchone()[0]
            write_object(sections(db, now, subset, vectors, lambda done: progress(done, total)), write)


def choose_turns(db: sqlite3.Connection, subset: Subset) -> None:
    """A temporary table of the turns to export; it goes when the reader's transaction ends."""
    db.execute("CREATE TEMP TABLE chosen (turn INTEGER PRIMARY KEY)")
    if subset.window is not None:
        check_window(db, subset.window)
    db.execute(
        """INSERT INTO chosen SELECT id FROM turns t WHERE
               (:window IS NULL OR t.window = :window
                   OR EXISTS (SELECT 1 FROM chunks c JOIN live l ON l.chunk = c.number AND l.window = :window
                              WHERE c.turn = t.id)
                   OR EXISTS (SELECT 1 FROM chunks c JOIN asleep a ON a.chunk = c.number AND a.window = :window
                              WHERE c.turn = t.id))
               AND (:first IS NULL OR t.id >= :first) AND (:last IS NULL OR t.id <= :last)
               AND (:since IS NULL OR t.said >= :since) AND (:until IS NULL OR t.said <= :until)""",
        {
            "window": subset.window,
            "first": subset.first_turn,
            "last": subset.last_turn,
            "since": None if subset.since is None else micros(subset.since),
            "until": None if subset.until is None else micros(subset.until),
        },
    )
    if not subset.everything:  # a question and its answer are never parted
        db.execute(
            """INSERT OR IGNORE INTO chosen
               SELECT t.answers FROM turns t JOIN chosen ON chosen.turn = t.id WHERE t.answers IS NOT NULL
               UNION SELECT a.id FROM turns a JOIN chosen ON chosen.turn = a.answers"""
        )


def sections(
    db: sqlite3.Connection, now: datetime, subset: Subset, vectors: bool, progress: Callable[[int], None]
) -> Iterator[tuple[str, Any]]:
    name, created, next_turn, next_position = db.execute(
        "SELECT id, created, next_turn, next_position FROM memory"
    ).fetchone()
    yield "format", FORMAT
    yield "version", VERSION
    yield (
        "memory",
        {
            "id": name,
            "created": said_at(created),
            "next_turn": str(next_turn),
            "next_position": str(next_position),
            "exported": said_at(micros(now)),
            "subset": not subset.everything,
        },
    )
    db.execute("CREATE TEMP TABLE shown (window TEXT PRIMARY KEY)")
    db.execute(
        """INSERT INTO shown SELECT id FROM windows w WHERE :everything OR w.id = :window
               OR EXISTS (SELECT 1 FROM chosen JOIN turns t ON t.id = chosen.turn WHERE t.window = w.id)""",
        {"everything": subset.everything, "window": subset.window},
    )
    yield "windows", iter(windows(db))
    yield "turns", turns(db, progress)
    yield "live", held(db, "live", subset.window)
    yield "asleep", held(db, "asleep", subset.window)
    yield "history", history(db)
    if subset.everything:
        yield "entries", entries(db)
        yield "notes", notes(db)
        yield "settings", settings(db)
    if vectors:
        yield "generations", generations(db)
        yield "vectors", all_vectors(db)


def windows(db: sqlite3.Connection) -> list[dict[str, Any]]:
    rows = db.execute(
        """SELECT id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted
           FROM windows JOIN shown ON shown.window = id ORDER BY created, id"""
    ).fetchall()
    return [
        {
            "id": row[0],
            "name": row[1],
            "system_prompt": row[2],
            "user_name": row[3],
            "ai_name": row[4],
            "settings": json.loads(row[5]),
            "created": said_at(row[6]),
            "modified": said_at(row[7]),
            "deleted": said_at(row[8]),
        }
        for row in rows
    ]


def turns(db: sqlite3.Connection, progress: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    rows = db.execute(
        """SELECT t.id, t.window, t.role, t.answers, t.speaker, t.said, i.source, i.turn, i.mark,
               c.chunk, c.start, c.span, k.fingerprint, c.tags, c.deleted, c.undeleted, c.merged,
               (SELECT m.chunk FROM chunks m WHERE m.number = c.merged_into), c.ids, c.lengths, c.raw
           FROM chosen CROSS JOIN turns t ON t.id = chosen.turn CROSS JOIN chunks c ON c.turn = t.id
           CROSS JOIN tokenizers k ON k.id = c.tokenizer LEFT JOIN imported i ON i.here = t.id
           ORDER BY t.id, c.chunk"""
    )
    for done, (_, group) in enumerate(groupby(rows, key=lambda row: row[0]), 1):
        chunks = list(group)
        turn, window, role, answers, speaker, said, source, first_turn, mark = chunks[0][:9]
        element = {
            "turn": str(turn),
            "window": window,
            "role": role,
            "answers": None if answers is None else str(answers),
            "speaker": speaker,
            "said": said_at(said),
            "chunks": [chunk_out(row[9:]) for row in chunks],
        }
        if source is not None:
            element["origin"] = {"memory": source, "turn": str(first_turn), "mark": mark}
        yield element
        progress(done)


def chunk_out(row: Row) -> dict[str, Any]:
    chunk, start, span, tokenizer, tags, deleted, undeleted, merged, merged_into, ids, lengths, raw = row
    out = {
        "chunk": chunk,
        "start": str(start),
        "tokenizer": tokenizer,
        **tokens_out(unpack_tokens(ids, lengths, raw, span)),
    }
    if tags:
        out["tags"] = json.loads(tags)
    for name, when in (("deleted", deleted), ("undeleted", undeleted), ("merged", merged)):
        if when is not None:
            out[name] = said_at(when)
    if merged_into is not None:
        out["merged_into"] = merged_into
    return out


def held(db: sqlite3.Connection, table: str, window: str | None) -> Iterator[dict[str, Any]]:
    own = "h.pinned, h.since, h.woken" if table == "live" else "h.slept, h.reason, NULL"
    rows = db.execute(
        f"""SELECT h.window, c.turn, c.chunk, h.brightness, k.fingerprint, h.ids, h.lengths, h.raw, {own}
            FROM {table} h JOIN shown ON shown.window = h.window JOIN chunks c ON c.number = h.chunk
            JOIN chosen ON chosen.turn = c.turn LEFT JOIN tokenizers k ON k.id = h.tokenizer
            WHERE ?1 IS NULL OR h.window = ?1 ORDER BY h.window, h.start""",
        (window,),
    )
    for where, turn, chunk, brightness, tokenizer, ids, lengths, raw, *rest in rows:
        element = {
            "window": where,
            "turn": str(turn),
            "chunk": chunk,
            "brightness": base64_of(brightness),
        }
        if table == "live":
            element["pinned"] = bool(rest[0])
            element["since"] = said_at(rest[1])
            element["woken"] = None if rest[2] is None else json.loads(rest[2])
        else:
            element["slept"] = said_at(rest[0])
            element["reason"] = json.loads(rest[1])
        if ids is not None:
            own_tokens = tokens_out(unpack_tokens(ids, lengths, raw, len(brightness) // 4))
            element["reading"] = {"tokenizer": tokenizer, **own_tokens}
        yield element


def history(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    rows = db.execute(
        """SELECT h.window, c.turn, c.chunk, h.happened, h.event, h.detail FROM history h
           JOIN chunks c ON c.number = h.chunk JOIN chosen ON chosen.turn = c.turn
           WHERE h.window IS NULL OR h.window IN (SELECT window FROM shown) ORDER BY h.id"""
    )
    for window, turn, chunk, happened, event, detail in rows:
        yield {
            "window": window,
            "turn": str(turn),
            "chunk": chunk,
            "happened": said_at(happened),
            "event": event,
            "detail": json.loads(detail),
        }


def entries(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    rows = db.execute(
        """SELECT path, version, content, snapshot, model, vectors, created, modified, accessed, NULL AS ended FROM entries
           UNION ALL
           SELECT path, version, content, snapshot, model, vectors, created, modified, accessed, ended
           FROM entry_versions ORDER BY path, version"""
    )
    for path, versions in groupby(rows, key=lambda row: row[0]):
        yield {
            "path": path,
            "versions": [
                {
                    "version": row[1],
                    "content": json.loads(row[2]),
                    "snapshot": json.loads(row[3]),
                    "model": row[4],
                    "vectors": base64_of(row[5]),
                    "created": said_at(row[6]),
                    "modified": said_at(row[7]),
                    "accessed": said_at(row[8]),
                    "ended": said_at(row[9]),
                }
                for row in versions
            ],
        }


def notes(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    for name, content, created, modified in db.execute(
        "SELECT name, content, created, modified FROM notes ORDER BY name"
    ):
        yield {
            "name": name,
            "content": json.loads(content),
            "created": said_at(created),
            "modified": said_at(modified),
        }


def settings(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    for key, value, modified in db.execute("SELECT key, value, modified FROM settings ORDER BY key"):
        yield {"key": key, "value": json.loads(value), "modified": said_at(modified)}


def generations(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    rows = db.execute(
        "SELECT id, model, dimension, created, completed FROM generations WHERE state = 'current'"
    )
    for number, model, dimension, created, completed in rows:
        yield {
            "generation": number,
            "model": model,
            "dimension": dimension,
            "created": said_at(created),
            "completed": said_at(completed),
        }


def all_vectors(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    rows = db.execute(
        """SELECT v.generation, c.turn, c.chunk, v.vector, w.chunk IS NOT NULL FROM vectors v
           JOIN generations g ON g.id = v.generation AND g.state = 'current' JOIN chunks c ON c.number = v.chunk
           JOIN chosen ON chosen.turn = c.turn
           LEFT JOIN wanted w ON w.generation = v.generation AND w.chunk = v.chunk ORDER BY c.turn, c.chunk"""
    )
    for generation, turn, chunk, vector, stale in rows:
        element = {"generation": generation, "turn": str(turn), "chunk": chunk, "vector": base64_of(vector)}
        if stale:
            element["stale"] = True
        yield element
