"""Edit stored chunks for all windows: tag, merge, split, delete, undelete, give negative feedback, remove time stamps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from halo_weave.core.chunking import cut
from halo_weave.core.tokens import Brightness, ChunkKey, Role, Tokens
from halo_weave.core.turn_text import leading_stamps_length
from halo_weave.errors import BadInput, UnknownChunk
from halo_weave.store.access import StoreHandle, checks_access, server_only, writes_window
from halo_weave.store.database import Connection
from halo_weave.store.encoding import (
    informativeness_of,
    micros,
    pack_floats,
    pack_tokens,
    pack_traces,
    unpack_floats,
    unpack_tokens,
    unpack_traces,
)
from halo_weave.store.exchange_format import TagIn
from halo_weave.store.records import OWNER, Traces
from halo_weave.store.rows import (
    READABLE_WINDOWS,
    VISIBLE,
    check_window,
    chunk_number,
    insert_chunk,
    json_array,
    pack_json,
    record_events,
    request_embedding,
    rewrite_word_index,
    unpack_tags,
)
from halo_weave.store.visibility import hide_chunks, restore_chunks


class SqlTags(StoreHandle):
    @checks_access
    def tag_chunk(self, key: ChunkKey, tags: Sequence[str], *, now: datetime, owner: str = OWNER) -> None:
        """Replace the tags of a chunk."""
        self._check_chunk(key)
        owner = self._person(owner) or OWNER
        with self._db.writing(durable=True) as db:
            number = chunk_number(db, key)
            if (
                db.execute(f"SELECT 1 FROM chunks c WHERE c.number = ? AND {VISIBLE}", (number,)).fetchone()
                is None
            ):
                raise UnknownChunk(
                    f"Chunk {key} is deleted, merged or on another branch, so it takes no tags."
                )
            had = db.execute("SELECT tag FROM chunk_tags WHERE owner = ? AND chunk = ?", (owner, number))
            gone = [(owner, tag, number) for (tag,) in had.fetchall() if tag not in tags]
            db.executemany("DELETE FROM chunk_tags WHERE owner = ? AND tag = ? AND chunk = ?", gone)
            add_tags(db, number, [(owner, tag, micros(now)) for tag in tags])
            db.mark_changed([number])

    @checks_access
    def chunk_tags(self, keys: Iterable[ChunkKey], *, owner: str = OWNER) -> dict[ChunkKey, tuple[str, ...]]:
        """The tags of those chunks that have any, sorted."""
        owner, wanted = self._person(owner) or OWNER, {*keys}
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT c.turn, c.chunk, t.role, g.tag FROM chunks c JOIN turns t ON t.id = c.turn
                    JOIN chunk_tags g ON g.chunk = c.number AND g.owner = ?
                    WHERE c.turn IN (SELECT value FROM json_each(?)) AND {VISIBLE} ORDER BY g.tag""",
                (owner, json_array(self._readable_turns({key.turn_id for key in wanted}))),
            ).fetchall()
        found: dict[ChunkKey, tuple[str, ...]] = {}
        for turn, chunk, role, tag in rows:
            key = ChunkKey(turn, chunk, Role(role))
            if key in wanted:
                found[key] = (*found.get(key, ()), tag)
        return found

    @checks_access
    def tagged(self, tags: Collection[str], *, owner: str = OWNER) -> dict[ChunkKey, int]:
        """The chunks with one of these tags, with their numbers."""
        if not tags:
            return {}
        owner = self._person(owner) or OWNER
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT DISTINCT c.turn, c.chunk, t.role, c.number FROM chunk_tags g
                    JOIN chunks c ON c.number = g.chunk JOIN turns t ON t.id = c.turn
                    WHERE g.owner = ? AND g.tag IN ({", ".join("?" * len(tags))}) AND {VISIBLE}""",
                (owner, *tags),
            ).fetchall()
        readable = self._readable_turns({turn for turn, *_ in rows})
        return {
            ChunkKey(turn, chunk, Role(role)): number
            for turn, chunk, role, number in rows
            if turn in readable
        }

    @checks_access
    def tag_counts(self, *, owner: str = OWNER) -> dict[str, int]:
        """How many chunks that the person may read have each of their tags."""
        with self._db.reading() as db:
            rows = db.execute(
                f"""SELECT g.tag, count(*) FROM chunk_tags g JOIN chunks c ON c.number = g.chunk
                    WHERE g.owner = :reader AND {VISIBLE} AND c.window IN ({READABLE_WINDOWS})
                    GROUP BY g.tag ORDER BY g.tag""",
                {"reader": self._person(owner) or OWNER},
            ).fetchall()
        return dict(rows)


def add_tags(db: Connection, number: int, tags: Iterable[tuple[str, str, int]]) -> None:
    """Add tags: (person, tag, time). Existing ones stay as they are."""
    db.executemany(
        "INSERT INTO chunk_tags (owner, tag, chunk, made) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(owner, tag, number, made) for owner, tag, made in tags],
    )


def copy_tags_and_feedback(db: Connection, number: int, others: Iterable[int]) -> None:
    """Copy tags and negative feedback of a chunk to others."""
    tags = db.execute("SELECT owner, tag, made FROM chunk_tags WHERE chunk = ?", (number,)).fetchall()
    wrong = db.execute("SELECT question, made FROM wrong WHERE chunk = ?", (number,)).fetchall()
    for other in others:
        add_tags(db, other, tags)
        db.executemany(
            "INSERT INTO wrong (chunk, question, made) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            [(other, question, made) for question, made in wrong],
        )


def import_tags(db: Connection, number: int, tags: Iterable[TagIn], owner: Callable[[str], str]) -> None:
    """Add tags from a file. `owner`: maps a person in the file to the id here."""
    add_tags(db, number, [(owner(one.owner), one.tag, one.made) for one in tags])


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkInWindow:
    """A chunk as one window has it."""

    live: bool
    pinned: bool
    brightness: Brightness
    traces: Traces | None
    tokenizer: int | None
    tokens: Tokens | None  # the window's own tokens
    row: tuple[Any, ...]  # the columns since and woken, or slept and reason


class SqlChunkEdits(StoreHandle):
    @writes_window
    def merge(self, window_id: str, key: ChunkKey, *, now: datetime) -> ChunkKey:
        """Merge the chunk into the one before it in its turn. Returns that one's key. Both must be live here.

        Refused while another window has one of them live, since its tokens would change; where they are pruned, they
        stay pruned as one chunk.
        """
        self._check_changes([key])
        when = micros(now)
        with self._db.writing(durable=True) as db:
            check_window(db, window_id)
            db.check_lease(window_id)
            second = chunk_number(db, key)
            row = db.execute(
                """SELECT a.number, a.chunk, a.start, a.span, a.ids, a.lengths, a.raw,
                       b.start, b.span, b.ids, b.lengths, b.raw, a.tags, b.tags FROM chunks b JOIN chunks a ON a.turn = b.turn
                   WHERE b.number = ? AND b.merged IS NULL AND b.deleted IS NULL AND a.start + a.span = b.start
                   AND a.merged IS NULL AND a.deleted IS NULL AND a.aside = 0""",
                (second,),
            ).fetchone()
            if row is None:
                raise BadInput(f"Chunk {key} has no chunk of its turn right before it to merge into.")
            first, chunk, start = row[:3]
            before = unpack_tokens(row[4], row[5], row[6], row[3])
            after = unpack_tokens(row[9], row[10], row[11], row[8])
            tags = list(dict.fromkeys(unpack_tags(row[12]) + unpack_tags(row[13])))
            into = ChunkKey(key.turn_id, chunk, key.role)
            live = db.execute(
                "SELECT l.window, w.name, w.deleted FROM live l JOIN windows w ON w.id = l.window WHERE l.chunk IN (?, ?)",
                (first, second),
            ).fetchall()
            if sum(window == window_id for window, _, _ in live) != 2:
                raise BadInput(f"Chunks {into} and {key} must both be live to be merged.")
            for window, name, deleted in live:
                if window != window_id and deleted is None:
                    raise BadInput(
                        f"Chunk {into} or {key} is live in window {name!r} too. Put it to sleep there first."
                    )
            for window in _holders(db, first, second):
                _merge_in_window(db, window, (first, start, before), (second, row[7], after))
            db.execute(
                "UPDATE chunks SET span = ?, told = ?, ids = ?, lengths = ?, raw = ?, tags = ? WHERE number = ?",
                (
                    len(before) + len(after),
                    informativeness_of((before + after).raw),
                    *pack_tokens(before + after),
                    pack_json(tags) if tags else None,
                    first,
                ),
            )
            db.execute(
                "UPDATE chunks SET merged = ?, merged_into = ? WHERE number = ?", (when, first, second)
            )
            copy_tags_and_feedback(db, second, [first])
            for table in ("chunk_tags", "wrong"):
                db.execute(f"DELETE FROM {table} WHERE chunk = ?", (second,))
            remove_from_search(db, [second])
            rewrite_word_index(db, [first])
            db.mark_changed([first, second])
            request_embedding(db, [first])
            record_events(db, [(None, first, when, "merged", pack_json({"chunk_id": key.chunk_id}))])
        return into

    @checks_access
    def deletion_of(self, key: ChunkKey) -> tuple[ChunkKey, ...]:
        """The chunks that are deleted together with this one: for the first chunk of a question or any chunk of an answer both
        turns, otherwise only the chunk itself. Undeleting restores the same set."""
        self._check_chunk(key)
        with self._db.reading() as db:
            chunk_number(db, key)
            turns = [key.turn_id]
            if key.role is Role.ASSISTANT or (key.role is Role.USER and key.chunk_id == 0):
                pair = _pair_of(db, key.turn_id)
                turns += [] if pair is None else [pair]
            else:
                return (key,)
            rows = db.execute(
                """SELECT c.turn, c.chunk, t.role FROM chunks c JOIN turns t ON t.id = c.turn
                   WHERE c.turn IN (SELECT value FROM json_each(?)) AND c.merged IS NULL ORDER BY c.start""",
                (json_array(turns),),
            ).fetchall()
        return tuple(ChunkKey(turn, chunk, Role(role)) for turn, chunk, role in rows)

    @checks_access
    def holders(self, keys: Sequence[ChunkKey]) -> dict[str, bool]:
        """The windows in which one of these chunks is live or pruned, so that a model has read it; and whether one of
        them has its own tokens for it."""
        self._check_changes(keys)
        with self._db.reading() as db:
            numbers = json_array([chunk_number(db, key) for key in keys])
            held = {
                window
                for table in ("live", "asleep")
                for (window,) in db.execute(
                    f"SELECT window FROM {table} WHERE chunk IN (SELECT value FROM json_each(?))", (numbers,)
                )
            }
            own = {
                window
                for window in held
                for table in ("live", "asleep")
                if db.execute(
                    f"SELECT 1 FROM {table} WHERE window = ? AND tokenizer IS NOT NULL LIMIT 1", (window,)
                ).fetchone()
            }
        return {window: window in own for window in sorted(held)}

    @checks_access
    def delete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        """Remove chunks from all windows and searches, until they are undeleted. Nothing is erased. Returns where they
        were live."""
        self._check_changes(keys)
        when = micros(now)
        with self._db.writing(durable=True) as db:
            numbers = [number for number, deleted in _existing(db, keys) if deleted is None]
            db.execute(
                f"UPDATE chunks SET deleted = {when} WHERE number IN (SELECT value FROM json_each(?))",
                (json_array(numbers),),
            )
            windows = hide_chunks(db, numbers, "deleted", when)
            remove_from_search(db, numbers)
            record_events(db, [(None, number, when, "deleted", "{}") for number in numbers])
        return self._readable_windows(windows)

    @checks_access
    def undelete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        """Undelete chunks: in every window they are live or pruned as before. Returns where they are live."""
        self._check_changes(keys)
        when = micros(now)
        with self._db.writing(durable=True) as db:
            numbers = [number for number, deleted in _existing(db, keys) if deleted is not None]
            db.execute(
                f"""UPDATE chunks SET deleted = NULL, undeleted = {when}
                    WHERE number IN (SELECT value FROM json_each(?))""",
                (json_array(numbers),),
            )
            windows = restore_chunks(db, numbers)
            record_events(db, [(None, number, when, "undeleted", "{}") for number in numbers])
        return self._readable_windows(windows)

    @server_only
    def split_long_chunks(self, max_tokens: int, *, now: datetime) -> int:
        """Split chunks with more than `max_tokens` and more than 256 tokens that are live in no window, so that their parts can
        be resurrected. Returns how many were split.
        """
        count = 0
        with self._db.querying() as db:
            numbers = [
                number
                for (number,) in db.execute(
                    f"""SELECT c.number FROM chunks c WHERE c.span > 256 AND c.span > ? AND {VISIBLE}
                        AND NOT EXISTS (SELECT 1 FROM live l WHERE l.chunk = c.number)""",
                    (max_tokens,),
                )
            ]
        for number in numbers:
            with self._db.writing() as db:
                count += _split_chunk(db, number, max_tokens, micros(now))
        return count

    @checks_access
    def add_negative_feedback(self, key: ChunkKey, question: str | None, *, now: datetime) -> None:
        """Note that the chunk is the wrong memory for questions like this one. None removes all negative feedback of
        the chunk."""
        self._check_changes([key])
        when = micros(now)
        with self._db.writing(durable=True) as db:
            number = chunk_number(db, key)
            if question is None:
                db.execute("DELETE FROM wrong WHERE chunk = ?", (number,))
            else:
                db.execute(
                    """INSERT INTO wrong (chunk, question, made) VALUES (?, ?, ?)
                       ON CONFLICT (chunk, question) DO UPDATE SET made = excluded.made""",
                    (number, question, when),
                )
            event = "marked" if question is not None else "unmarked"
            detail = pack_json({"question": question} if question is not None else {})
            record_events(db, [(None, number, when, event, detail)])
            db.mark_changed([number])

    @server_only
    def negative_feedback(self) -> list[tuple[int, str]]:
        """The numbers of chunks with negative feedback, each with a question that it is wrong for."""
        with self._db.querying() as db:
            return db.execute("SELECT chunk, question FROM wrong ORDER BY made").fetchall()

    @checks_access
    def resurrection_count(self, key: ChunkKey) -> int:
        """How often a chunk was resurrected, in all windows."""
        self._check_chunk(key)
        with self._db.reading() as db:
            number = chunk_number(db, key)
            return int(
                db.execute(
                    "SELECT count(*) FROM history WHERE chunk = ? AND event = 'woke'", (number,)
                ).fetchone()[0]
            )


def _split_chunk(db: Connection, number: int, max_tokens: int, when: int) -> bool:
    """Split a chunk: the first part keeps its key and number, the others get the next free ones of the turn."""
    row = db.execute(
        f"""SELECT c.turn, c.window, c.start, c.span, c.ids, c.lengths, c.raw, c.tags, t.role, k.fingerprint,
                (SELECT max(o.chunk) FROM chunks o WHERE o.turn = c.turn)
            FROM chunks c JOIN turns t ON t.id = c.turn JOIN tokenizers k ON k.id = c.tokenizer
            WHERE c.number = ? AND {VISIBLE} AND NOT EXISTS (SELECT 1 FROM live l WHERE l.chunk = c.number)""",
        (number,),
    ).fetchone()
    if row is None:  # another process has split it
        return False
    turn, window, start, span, ids, lengths, raw, tags, role, tokenizer, last = row
    parts = cut(unpack_tokens(ids, lengths, raw, span), span, max_tokens)
    if len(parts) < 2:
        return False
    first = parts[0]
    db.execute(
        "UPDATE chunks SET span = ?, told = ?, ids = ?, lengths = ?, raw = ? WHERE number = ?",
        (len(first), informativeness_of(first.raw), *pack_tokens(first), number),
    )
    places, numbers, at = [(number, start, len(first))], [number], start + len(first)
    for i, part in enumerate(parts[1:], 1):
        key = ChunkKey(turn, last + i, Role(role))
        numbers.append(insert_chunk(db, window, key, at, part, tokenizer, unpack_tags(tags)))
        places.append((numbers[-1], at, len(part)))
        at += len(part)
    select_pruned = "SELECT window, gone, peak, slept, reason, brightness, traces FROM asleep WHERE chunk = ?"
    for held, gone, peak, slept, reason, blob, kept in db.execute(select_pruned, (number,)).fetchall():
        bright = unpack_floats(blob)
        traces = unpack_traces(kept, len(bright))
        if len(bright) != span:  # the window read it with another tokenizer
            bright, traces = np.full(span, peak, np.float32), None
        db.execute("DELETE FROM asleep WHERE window = ? AND start = ?", (held, start))
        for own, place, size in places:
            span_of_part = slice(place - start, place - start + size)
            part_bright = bright[span_of_part]
            part_traces = None if traces is None else traces[:, span_of_part]
            db.execute(
                """INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, brightness, traces)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                (
                    *(held, place, own, gone, float(part_bright.max()), slept, reason),
                    *(pack_floats(part_bright), pack_traces(part_traces)),
                ),
            )
    copy_tags_and_feedback(db, number, numbers[1:])
    rewrite_word_index(db, numbers)
    db.mark_changed(numbers)
    request_embedding(db, numbers)
    record_events(db, [(None, number, when, "divided", pack_json({"parts": len(parts)}))])
    return True


def _pair_of(db: Connection, turn_id: int) -> int | None:
    row = db.execute(
        """SELECT coalesce(answers, (SELECT max(a.id) FROM turns a WHERE a.answers = t.id AND a.aside = 0))
           FROM turns t WHERE t.id = ?""",
        (turn_id,),
    ).fetchone()
    return row[0] if row else None


def _existing(db: Connection, keys: Sequence[ChunkKey]) -> list[tuple[int, int | None]]:
    """Numbers and deletion times of chunks that were not merged into others."""
    found = []
    for key in dict.fromkeys(keys):
        number = chunk_number(db, key)
        deleted, merged = db.execute(
            "SELECT deleted, merged FROM chunks WHERE number = ?", (number,)
        ).fetchone()
        if merged is not None:
            raise UnknownChunk(f"Chunk {key} is part of the chunk before it since they were merged.")
        found.append((number, deleted))
    return found


def remove_from_search(db: Connection, numbers: Sequence[int]) -> None:
    """Remove chunks from the word index, and their vectors from all generations."""
    db.remove_from_word_index(numbers)
    for table in ("vectors", "wanted"):
        db.execute(
            f"DELETE FROM {table} WHERE chunk IN (SELECT value FROM json_each(?))", (json_array(numbers),)
        )


def _holders(db: Connection, first: int, second: int) -> list[str]:
    rows = db.execute(
        "SELECT window FROM live WHERE chunk IN (?1, ?2) UNION SELECT window FROM asleep WHERE chunk IN (?1, ?2)",
        (first, second),
    )
    return [window for (window,) in rows]


def _chunk_in_window(db: Connection, window: str, start: int) -> _ChunkInWindow | None:
    for table, pinned, columns in (("live", "pinned", "since, woken"), ("asleep", "0", "slept, reason")):
        row = db.execute(
            f"""SELECT {pinned}, brightness, tokenizer, ids, lengths, raw, traces, {columns} FROM {table}
                WHERE window = ? AND start = ?""",
            (window, start),
        ).fetchone()
        if row is not None:
            brightness = unpack_floats(row[1])
            tokens = None if row[3] is None else unpack_tokens(row[3], row[4], row[5], len(brightness))
            return _ChunkInWindow(
                table == "live",
                bool(row[0]),
                brightness,
                unpack_traces(row[6], len(brightness)),
                row[2],
                tokens,
                row[7:],
            )
    return None


def _merge_in_window(
    db: Connection, window: str, first: tuple[int, int, Tokens], second: tuple[int, int, Tokens]
) -> None:
    """Merge two chunks in a window that has at least one of them. A chunk that it never had gets the lowest values."""
    number, start, _ = first
    parts = [_chunk_in_window(db, window, start), _chunk_in_window(db, window, second[1])]
    known = [part for part in parts if part is not None]
    base = next((part for part in known if part.live), known[0])
    lowest = min(float(part.brightness.min()) for part in known)
    own = len({part.tokenizer for part in known}) == 1 and len(known) == 2
    brightness: list[Brightness] = []
    traces: list[Traces | None] = []
    for part, (_, _, tokens) in zip(parts, (first, second), strict=True):
        if part is not None and (own or part.tokens is None):
            brightness.append(part.brightness)
            traces.append(part.traces)
        else:
            traces.append(None)
            value = lowest if part is None else float(part.brightness.max())
            brightness.append(np.full(len(tokens), value, np.float32))
    joined = np.concatenate(brightness)
    kept = pack_floats(joined), pack_traces(_concatenated_traces(traces, [len(one) for one in brightness]))
    reading: tuple[Any, ...] = (None, None, None, None)
    if own and known[0].tokens is not None and known[1].tokens is not None:
        reading = (known[0].tokenizer, *pack_tokens(known[0].tokens + known[1].tokens))
    for table in ("live", "asleep"):
        db.execute(f"DELETE FROM {table} WHERE window = ? AND start IN (?, ?)", (window, start, second[1]))
    columns = "window, start, chunk, brightness, traces, tokenizer, ids, lengths, raw"
    values = (window, start, number, *kept, *reading, *base.row)
    if base.live:
        db.execute(
            f"""INSERT INTO live ({columns}, since, woken, pinned)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            (*values, any(part.pinned for part in known)),
        )
    else:
        db.execute(
            f"""INSERT INTO asleep ({columns}, slept, reason, peak, gone)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)""",
            (*values, float(joined.max())),
        )


def _concatenated_traces(traces: Sequence[Traces | None], sizes: Sequence[int]) -> Traces | None:
    """The traces of two chunks. Unknown values are NaN; None if all are unknown, or if they are of different strategies."""
    counts = {len(one) for one in traces if one is not None}
    if len(counts) != 1:
        return None
    unknown = [np.full((*counts, size), np.nan, np.float32) for size in sizes]
    return np.hstack([gap if one is None else one for one, gap in zip(traces, unknown, strict=True)])


class SqlTimestampRemoval(StoreHandle):
    @server_only
    def remove_timestamps(self, *, now: datetime) -> int:
        """Remove the time stamps at the beginning of stored replies; the history keeps them. Done once for a memory,
        and again after an import. Returns how many replies had one."""
        with self._db.reading() as db:
            if db.execute("SELECT stamps_removed FROM memory").fetchone()[0]:
                return 0
            # "[2026-…" or "[Monday, …", perhaps after white space: few chunks begin like this.
            numbers = [
                number
                for number, raw in db.execute(
                    """SELECT c.number, c.raw FROM chunks c JOIN turns t ON t.id = c.turn
                       WHERE t.role = 'assistant' AND c.merged IS NULL AND c.deleted IS NULL"""
                )
                if b"[" in raw[:8] and leading_stamps_length(raw.decode(errors="replace"))
            ]
        for number in numbers:
            with self._db.writing() as db:
                _remove_timestamp(db, number, micros(now))
        with self._db.writing(durable=True) as db:
            db.execute("UPDATE memory SET stamps_removed = 1")
        return len(numbers)


def _remove_timestamp(db: Connection, number: int, when: int) -> None:
    row = db.execute(
        "SELECT start, span, ids, lengths, raw FROM chunks WHERE number = ? AND deleted IS NULL AND merged IS NULL",
        (number,),
    ).fetchone()
    if row is None:
        return
    start, span = row[:2]
    tokens = unpack_tokens(row[2], row[3], row[4], span)
    text = tokens.raw.decode(errors="surrogateescape")
    size = len(text[: leading_stamps_length(text)].encode(errors="surrogateescape"))
    gone = int(np.searchsorted(tokens.ends, size, side="right"))  # tokens that lie completely in the stamp
    if not gone:
        return
    if gone == span:  # the reply is nothing but stamps
        db.execute("UPDATE chunks SET deleted = ? WHERE number = ?", (when, number))
        hide_chunks(db, [number], "deleted", when)
        remove_from_search(db, [number])
        record_events(db, [(None, number, when, "deleted", pack_json({"why": "time stamp"}))])
        return
    kept = tokens.part(gone, span)
    db.execute(
        "UPDATE chunks SET start = ?, span = ?, told = ?, ids = ?, lengths = ?, raw = ? WHERE number = ?",
        (start + gone, span - gone, informativeness_of(kept.raw), *pack_tokens(kept), number),
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
    rewrite_word_index(db, [number])
    db.mark_changed([number])
    request_embedding(db, [number])
    removed = tokens.raw[: int(tokens.ends[gone - 1])].decode(errors="replace")
    record_events(db, [(None, number, when, "cleaned", pack_json({"removed": removed}))])
