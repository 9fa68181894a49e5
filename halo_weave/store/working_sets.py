"""The live and the pruned chunks of each window, with their brightness and their history.

Tables, columns and kinds of events keep older words: a chunk in the table `asleep` is pruned, `slept` is when it was pruned,
`woken` and `woke` mean resurrected, `reread` retokenized, `aside` on another branch. `gone` in `asleep` is 0 for pruned chunks;
its other values are in `visibility`. CROSS JOIN fixes the order in which SQLite joins the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import numpy as np

from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.errors import BadInput, NotYours, UnknownChunk
from halo_weave.store.access import StoreHandle, checks_access, reads_window, server_only, writes_window
from halo_weave.store.database import Connection
from halo_weave.store.encoding import (
    micros,
    moment,
    pack_floats,
    pack_tokens,
    pack_traces,
    unpack_floats,
    unpack_runs,
    unpack_traces,
)
from halo_weave.store.records import (
    ChunkEvent,
    ChunkMove,
    GraveyardChunk,
    GraveyardPage,
    Json,
    Numbers,
    ResurrectableChunk,
    StoredLiveChunk,
    TimelineChunk,
    TimelineEvent,
    Traces,
    WindowTimeline,
)
from halo_weave.store.rows import (
    CHUNK_COLUMNS,
    CHUNK_TABLES,
    VISIBLE,
    check_window,
    chunk_number,
    chunk_record,
    json_array,
    pack_json,
    record_events,
    tokenizer_id,
    unpack_tags,
)
from halo_weave.store.visibility import UPDATE_PRUNED

# Tokenizer, ids, lengths and bytes of a chunk that was retokenized for a window; four nulls if it has its original tokens.
RetokenizedColumns = tuple[int | None, bytes | None, bytes | None, bytes | None]


class ResurrectableRow(NamedTuple):
    """A chunk that is to be resurrected in a window, and its tokens as retokenized for this window, if any."""

    number: int
    start: int
    span: int
    deleted: int | None
    merged: int | None
    on_other_branch: int
    live: bool
    retokenized: RetokenizedColumns
    size: int | None  # number of tokens in the window

    def why_not_resurrectable(self, window_id: str) -> str:
        """Why the chunk cannot be resurrected; empty if it can."""
        if self.deleted is not None or self.merged is not None:
            how = "deleted" if self.deleted is not None else "merged into another"
            return f"was {how}; it cannot be resurrected."
        if self.on_other_branch:
            return "is on another branch; it cannot be resurrected."
        return f"is live in window {window_id} already." if self.live else ""


def resurrectable_rows(
    db: Connection, window_id: str, keys: Sequence[ChunkKey]
) -> dict[ChunkKey, ResurrectableRow]:
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
        ChunkKey(row[0], row[1], Role(row[2])): ResurrectableRow._make(
            [*row[3:9], bool(row[9]), row[10:14], row[14]]
        )
        for row in rows
    }


def columns_to_store(db: Connection, row: ResurrectableRow, item: ChunkMove) -> RetokenizedColumns:
    """The columns of the tokens that the window will have for a resurrected chunk."""
    size = item.brightness.size
    if item.tokens is not None:
        if item.tokenizer is None or len(item.tokens) != size:
            raise BadInput(
                f"Chunk {item.key} has {len(item.tokens)} tokens and {size} brightness values, or its tokenizer is missing."
            )
        return retokenized_columns(db, row.number, tokenizer_id(db, item.tokenizer), item.tokens)
    if row.retokenized[1] is not None and row.size == size:
        return row.retokenized
    if size != row.span:
        raise BadInput(f"Chunk {item.key} has {row.span} tokens, not {size}.")
    return None, None, None, None


def retokenized_columns(db: Connection, number: int, tokenizer: int, tokens: Tokens) -> RetokenizedColumns:
    """The columns of these tokens; four nulls if they are those of the record."""
    columns = (tokenizer, *pack_tokens(tokens))
    row = db.execute("SELECT tokenizer, ids, lengths, raw FROM chunks WHERE number = ?", (number,)).fetchone()
    return (None, None, None, None) if row == columns else columns


ROLE_BY_NAME = {str(role): role for role in Role}
PRUNED_COLUMNS = f"""{CHUNK_COLUMNS}, a.brightness, a.peak, a.slept, a.reason, a.ids, a.lengths, a.raw,
    (SELECT fingerprint FROM tokenizers WHERE id = a.tokenizer), a.traces"""
SORTS = {"position": "a.start", "slept": "a.slept", "peak": "a.peak", "tokens": "length(a.brightness)"}
TIMELINE_EVENTS = "('slept', 'woke', 'pinned', 'unpinned')"  # as SQL


class SqlWorkingSets(StoreHandle):
    # What is live

    @reads_window
    def live(self, window_id: str) -> list[StoredLiveChunk]:
        """The live chunks in position order, exactly as they were saved."""
        with self._db.querying() as db:
            rows = db.execute(
                """SELECT l.chunk, c.turn, c.chunk, t.role, c.start, c.span, t.answers, c.window, t.speaker, t.said,
                       (SELECT k.fingerprint FROM tokenizers k WHERE k.id = coalesce(l.tokenizer, c.tokenizer)), c.tags, l.pinned, l.since, l.woken, l.traces, l.brightness,
                       coalesce(l.ids, c.ids), coalesce(l.lengths, c.lengths), coalesce(l.raw, c.raw)
                   FROM live l CROSS JOIN chunks c CROSS JOIN turns t
                   WHERE l.window = ? AND c.number = l.chunk AND t.id = c.turn ORDER BY l.start""",
                (window_id,),
            ).fetchall()
        runs = unpack_runs([(ids, lengths, raw, len(bright) // 4) for *_, bright, ids, lengths, raw in rows])
        brightness = np.frombuffer(b"".join([row[16] for row in rows]), "<f4")
        found = []
        at = 0
        for row, tokens in zip(rows, runs, strict=True):
            (
                number, turn, chunk_id, role, start, span, answers, window, speaker, said,
                tokenizer, tags, pinned, since, woken, traces, bright, _, _, _,
            ) = row  # fmt: skip
            stop = at + len(bright) // 4
            found.append(
                StoredLiveChunk(
                    Chunk(ChunkKey(turn, chunk_id, ROLE_BY_NAME[role]), start, tokens, answers, span),
                    brightness[at:stop],
                    pinned == 1,
                    number,
                    tokenizer,
                    window,
                    speaker,
                    moment(said),
                    moment(since),
                    woken,
                    () if tags is None else unpack_tags(tags),
                    traces=unpack_traces(traces, stop - at),
                )
            )
            at = stop
        return found

    @server_only
    def save_brightness(
        self,
        window_id: str,
        chunks: Sequence[Chunk],
        brightness: Brightness,
        traces: Traces | None = None,
    ) -> None:
        """Save the brightness of these live chunks, concatenated in one array; likewise the traces, if there are any."""
        ends = np.cumsum([len(chunk) for chunk in chunks], dtype=np.int64).tolist()
        size = ends[-1] if ends else 0
        if brightness.shape != (size,) or (traces is not None and traces.shape[1:] != (size,)):
            raise BadInput(
                f"{brightness.size} brightness values, or their traces, do not fit the {size} tokens of these chunks."
            )
        blob = pack_floats(brightness)
        rows = []
        for chunk, end in zip(chunks, ends, strict=True):
            start = end - len(chunk)
            traces_blob = None if traces is None else pack_floats(traces[:, start:end])
            rows.append((blob[4 * start : 4 * end], traces_blob, window_id, chunk.start, 4 * len(chunk)))
        with self._db.writing() as db:
            db.check_lease(window_id)
            cursor = db.executemany(
                "UPDATE live SET brightness = ?, traces = ? WHERE window = ? AND start = ? AND length(brightness) = ?",
                rows,
            )
            if rows and cursor.rowcount != len(rows):
                raise BadInput(
                    f"Not all of the {len(rows)} chunks are live in window {window_id}; nothing was saved."
                )

    # Prune and resurrect

    @writes_window
    def prune(self, window_id: str, moves: Sequence[ChunkMove], *, now: datetime) -> None:
        """Prune live chunks, and store their brightness."""
        when = micros(now)
        with self._db.writing() as db:
            db.check_lease(window_id)
            live = _live_rows(db, window_id, [item.key for item in moves])
            rows, events = [], []
            for item in moves:
                if item.key not in live:
                    raise UnknownChunk(f"Chunk {item.key} is not live in window {window_id}.")
                start, number, size = live.pop(item.key)
                if item.brightness.shape != (size,):
                    raise BadInput(f"Chunk {item.key} has {size} live tokens, not {item.brightness.size}.")
                bright, traces = pack_floats(item.brightness), pack_traces(item.traces, size)
                peak = float(item.brightness.max())
                reason = pack_json(dict(item.reason))
                rows.append((peak, when, reason, bright, traces, window_id, start))
                events.append((window_id, number, when, "slept", reason))
            db.executemany(
                f"""INSERT INTO asleep
                       (window, start, chunk, gone, peak, slept, reason, brightness, traces, tokenizer, ids, lengths,
                        raw)
                   SELECT window, start, chunk, 0, ?, ?, ?, ?, ?, tokenizer, ids, lengths, raw
                   FROM live WHERE window = ? AND start = ?
                   ON CONFLICT (window, start) DO UPDATE SET {UPDATE_PRUNED}""",
                rows,
            )
            db.execute(
                "DELETE FROM live WHERE window = ? AND start IN (SELECT value FROM json_each(?))",
                (window_id, json_array(row[-1] for row in rows)),
            )
            record_events(db, events)

    @writes_window
    def resurrect(self, window_id: str, moves: Sequence[ChunkMove], *, now: datetime) -> None:
        """Resurrect chunks of the graveyard or of another window."""
        when = micros(now)
        with self._db.writing() as db:
            db.check_lease(window_id)
            check_window(db, window_id)
            found = resurrectable_rows(db, window_id, [item.key for item in moves])
            rows, events = [], []
            for item in moves:
                if item.key not in found:
                    raise UnknownChunk(f"There is no chunk {item.key} in this memory.")
                row = found[item.key]
                if why := row.why_not_resurrectable(window_id):
                    raise BadInput(f"Chunk {item.key} {why}")
                found[item.key] = row._replace(live=True)  # a key that comes twice is refused
                token_columns = columns_to_store(db, row, item)
                reason = pack_json(dict(item.reason))
                bright = pack_floats(item.brightness), pack_traces(item.traces, item.brightness.size)
                at = (window_id, row.start, row.number)
                rows.append((*at, item.pinned, when, reason, *bright, *token_columns))
                events.append((window_id, row.number, when, "woke", reason))
            db.executemany(
                """INSERT INTO live (window, start, chunk, pinned, since, woken, brightness, traces, tokenizer, ids,
                       lengths, raw)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
                rows,
            )
            db.execute(
                "DELETE FROM asleep WHERE window = ? AND start IN (SELECT value FROM json_each(?))",
                (window_id, json_array(row[1] for row in rows)),
            )
            record_events(db, events)

    @writes_window
    def pin(self, window_id: str, key: ChunkKey, *, now: datetime, brightness: float | None = None) -> None:
        """Pin the chunk. `brightness`: also set the brightness of all its tokens."""
        with self._db.writing() as db:
            db.check_lease(window_id)
            start, number, size = _live_row(db, window_id, key)
            bright = None if brightness is None else pack_floats(np.full(size, brightness, np.float32))
            db.execute(
                """UPDATE live SET pinned = 1, brightness = coalesce(?, brightness)
                   WHERE window = ? AND start = ?""",
                (bright, window_id, start),
            )
            record_events(db, [(window_id, number, micros(now), "pinned", "{}")])

    @writes_window
    def unpin(self, window_id: str, key: ChunkKey, *, now: datetime) -> None:
        with self._db.writing() as db:
            db.check_lease(window_id)
            start, number, _ = _live_row(db, window_id, key)
            db.execute("UPDATE live SET pinned = 0 WHERE window = ? AND start = ?", (window_id, start))
            record_events(db, [(window_id, number, micros(now), "unpinned", "{}")])

    @server_only
    def store_retokenized(
        self, window_id: str, live: Sequence[LiveChunk], *, tokenizer: str, now: datetime
    ) -> None:
        """Store the tokens of these live chunks, retokenized for this window. The record keeps the original tokens."""
        with self._db.writing() as db:
            db.check_lease(window_id)
            tokenizer_number = tokenizer_id(db, tokenizer)
            for item in live:
                start, number, _ = _live_row(db, window_id, item.chunk.key)
                token_columns = retokenized_columns(db, number, tokenizer_number, item.chunk.tokens)
                db.execute(
                    """UPDATE live SET brightness = ?, traces = ?, tokenizer = ?, ids = ?, lengths = ?, raw = ?
                       WHERE window = ? AND start = ?""",
                    (
                        pack_floats(item.brightness),
                        pack_traces(item.traces),
                        *token_columns,
                        window_id,
                        start,
                    ),
                )
                record_events(db, [(window_id, number, micros(now), "reread", "{}")])

    # The graveyard

    @reads_window
    def graveyard(
        self,
        window_id: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: Literal["position", "slept", "peak", "tokens"] = "position",
        descending: bool = True,
        role: Role | None = None,
        text: str | None = None,
    ) -> GraveyardPage:
        """One page of the pruned chunks."""
        if sort not in SORTS:
            raise BadInput(f"The graveyard cannot be sorted by {sort!r}. Use one of: {', '.join(SORTS)}.")
        if offset < 0 or limit < 0:
            raise BadInput("The offset and the limit of a page cannot be negative.")
        direction = "DESC" if descending else "ASC"
        tables = "asleep a"
        if role or text:
            tables += " JOIN chunks c ON c.number = a.chunk JOIN turns t ON t.id = c.turn"
        where = "a.window = :window AND a.gone = 0"
        where += " AND t.role = :role" if role else ""
        where += r" AND CAST(c.raw AS TEXT) LIKE :text ESCAPE '\'" if text else ""
        values = {"window": window_id, "role": role, "text": f"%{_escape_like(text or '')}%"}
        with self._db.reading() as db:
            total = db.execute(f"SELECT count(*) FROM {tables} WHERE {where}", values).fetchone()[0]
            starts = db.execute(
                f"""SELECT a.start FROM {tables} WHERE {where}
                    ORDER BY {SORTS[sort]} {direction}, a.start {direction} LIMIT :limit OFFSET :offset""",
                {**values, "limit": limit, "offset": offset},
            ).fetchall()
            rows = db.execute(
                f"""SELECT {PRUNED_COLUMNS} FROM asleep a CROSS JOIN {CHUNK_TABLES} AND c.number = a.chunk
                    WHERE a.window = ? AND a.start IN (SELECT value FROM json_each(?))""",
                (window_id, json_array(start for (start,) in starts)),
            ).fetchall()
        found = {row[4]: item for row, item in zip(rows, _pruned_chunks(rows), strict=True)}
        return GraveyardPage(tuple(found[start] for (start,) in starts), total, offset)

    @reads_window
    def resurrectable_chunks(
        self, window_id: str, keys: Iterable[ChunkKey]
    ) -> dict[ChunkKey, ResurrectableChunk]:
        """Chunks that are not live here, with the brightness they had if they were pruned here.

        In the requested order; unknown keys are left out. For a deleted or merged chunk, `record.gone` is true.
        """
        wanted = list(keys)
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {PRUNED_COLUMNS} FROM json_each(?) j CROSS JOIN {CHUNK_TABLES}
                        AND c.turn = CAST(j.value ->> 0 AS BIGINT) AND c.chunk = CAST(j.value ->> 1 AS BIGINT)
                    LEFT JOIN asleep a ON a.window = ? AND a.start = c.start AND a.gone = 0""",
                (pack_json([key[:2] for key in wanted]), window_id),
            ).fetchall()
        found = {one.key: one for one in _resurrectable(rows) if self._may_read(one.record.window)}
        return {key: found[key] for key in wanted if key in found}

    @reads_window
    def pruned_positions(self, window_id: str) -> tuple[Numbers, Numbers]:
        """Starts and token counts of all pruned chunks, in position order."""
        with self._db.querying() as db:
            rows = db.execute(
                "SELECT start, length(brightness) / 4 FROM asleep WHERE window = ? AND gone = 0 ORDER BY start",
                (window_id,),
            ).fetchall()
        columns = np.array(rows, np.int64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]

    @reads_window
    def count_pruned(self, window_id: str, after: int, before: int) -> tuple[int, int]:
        """The number of pruned chunks and of their tokens, of chunks that start at `after` or later and before `before`."""
        with self._db.querying() as db:
            chunks, tokens = db.execute(
                """SELECT count(*), coalesce(sum(length(brightness)), 0) / 4 FROM asleep
                   WHERE window = ? AND gone = 0 AND start >= ? AND start < ?""",
                (window_id, after, before),
            ).fetchone()
        return chunks, tokens

    @reads_window
    def pruned_between(self, window_id: str, after: int, before: int, limit: int) -> list[GraveyardChunk]:
        """Pruned chunks that start at `after` or later and before `before`, in position order."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {PRUNED_COLUMNS} FROM asleep a CROSS JOIN {CHUNK_TABLES} AND c.number = a.chunk
                    WHERE a.window = ? AND a.gone = 0 AND a.start >= ? AND a.start < ? ORDER BY a.start LIMIT ?""",
                (window_id, after, before, limit),
            ).fetchall()
        return _pruned_chunks(rows)

    # History

    @checks_access
    def history(
        self, *, window: str | None = None, key: ChunkKey | None = None, limit: int = 100
    ) -> list[ChunkEvent]:
        """Events, newest first: of a window, of a chunk, of a chunk in a window, or all."""
        if window is not None:
            self.check_reads(window)
        if key is not None:
            self._check_chunk(key)
        elif window is None and self.access is not None:
            raise NotYours("Only the owner of this server may do this.")
        where = ["1 = 1"]
        values: list[Any] = []
        with self._db.reading() as db:
            if window is not None:
                where.append("(h.window = ?)" if key is None else "(h.window = ? OR h.window IS NULL)")
                values.append(window)
            if key is not None:
                where.append("h.chunk = ?")
                values.append(chunk_number(db, key))
            rows = db.execute(
                f"""SELECT c.turn, c.chunk, t.role, h.window, h.happened, h.event, h.detail FROM history h
                    JOIN chunks c ON c.number = h.chunk JOIN turns t ON t.id = c.turn
                    WHERE {" AND ".join(where)} ORDER BY h.id DESC LIMIT ?""",
                (*values, limit),
            ).fetchall()
        return [
            ChunkEvent(
                ChunkKey(turn, chunk, ROLE_BY_NAME[role]), where_, moment(when), event, json.loads(detail)
            )
            for turn, chunk, role, where_, when, event, detail in rows
            if where_ is None or self._may_read(where_)
        ]

    @reads_window
    def window_timeline(self, window_id: str) -> WindowTimeline:
        """A window's current branch without text, and all events of its chunks."""
        with self._db.reading() as db:
            turns = db.execute(
                """WITH RECURSIVE branch(id) AS (
                       SELECT head FROM windows WHERE id = ? AND head IS NOT NULL
                       UNION ALL SELECT t.parent FROM branch JOIN turns t USING (id) WHERE t.parent IS NOT NULL)
                   SELECT t.id, t.said FROM branch JOIN turns t USING (id) ORDER BY t.id""",
                (window_id,),
            ).fetchall()
            rows = db.execute(
                f"""SELECT c.number, c.turn, c.chunk, t.role, c.span, l.pinned
                    FROM (SELECT c.number FROM json_each(?2) j CROSS JOIN chunks c WHERE c.turn = CAST(j.value AS BIGINT)
                          UNION SELECT h.chunk FROM history h WHERE h.window = ?1 AND h.event IN {TIMELINE_EVENTS}) known
                    CROSS JOIN chunks c CROSS JOIN turns t LEFT JOIN live l ON l.window = ?1 AND l.start = c.start
                    WHERE c.number = known.number AND t.id = c.turn AND {VISIBLE} ORDER BY c.start""",
                (window_id, json_array(turn for turn, _ in turns)),
            ).fetchall()
            happened = db.execute(
                f"""SELECT chunk, happened, event, detail FROM history
                    WHERE window = ? AND event IN {TIMELINE_EVENTS} ORDER BY id""",
                (window_id,),
            ).fetchall()
        keys = {number: ChunkKey(turn, chunk, ROLE_BY_NAME[role]) for number, turn, chunk, role, *_ in rows}
        return WindowTimeline(
            tuple((turn, moment(said)) for turn, said in turns),
            tuple(
                TimelineChunk(keys[number], tokens, pinned is not None, pinned == 1)
                for number, _, _, _, tokens, pinned in rows
            ),
            tuple(
                TimelineEvent(keys[number], moment(when), event, _cause(json.loads(detail)))
                for number, when, event, detail in happened
                if number in keys
            ),
        )


def _cause(detail: Mapping[str, Json]) -> str:
    """Who caused an event, or why it happened, from its detail."""
    return str(detail.get("by") or detail.get("why") or "")


def _live_row(db: Connection, window_id: str, key: ChunkKey) -> tuple[int, int, int]:
    """Start, number and token count of a live chunk."""
    found = _live_rows(db, window_id, [key])
    if key not in found:
        raise UnknownChunk(f"Chunk {key} is not live in window {window_id}.")
    return found[key]


def _live_rows(
    db: Connection, window_id: str, keys: Sequence[ChunkKey]
) -> dict[ChunkKey, tuple[int, int, int]]:
    """Start, number and token count of those of these chunks that are live."""
    rows = db.execute(
        """SELECT c.turn, c.chunk, t.role, c.start, c.number, length(l.brightness) / 4
           FROM json_each(?) j CROSS JOIN chunks c JOIN turns t ON t.id = c.turn
               AND c.turn = CAST(j.value ->> 0 AS BIGINT) AND c.chunk = CAST(j.value ->> 1 AS BIGINT)
           JOIN live l ON l.window = ? AND l.start = c.start""",
        (pack_json([key[:2] for key in keys]), window_id),
    ).fetchall()
    return {ChunkKey(row[0], row[1], ROLE_BY_NAME[row[2]]): row[3:] for row in rows}


def _effective_tokens(rows: Sequence[tuple[Any, ...]]) -> list[Tokens]:
    """The tokens of each row of `PRUNED_COLUMNS`: as retokenized for the window, else as in the record."""
    return unpack_runs(
        [
            (row[23], row[24], row[25], len(row[19]) // 4) if row[23] is not None else (*row[15:18], row[5])
            for row in rows
        ]
    )


def _resurrectable(rows: Sequence[tuple[Any, ...]]) -> list[ResurrectableChunk]:
    return [
        ResurrectableChunk(
            chunk_record(row, tokens, row[26]),
            None if row[19] is None else unpack_floats(row[19]),
            unpack_traces(row[27], len(tokens)),
        )
        for row, tokens in zip(rows, _effective_tokens(rows), strict=True)
    ]


def _pruned_chunks(rows: Sequence[tuple[Any, ...]]) -> list[GraveyardChunk]:
    return [
        GraveyardChunk(
            chunk_record(row, tokens, row[26]),
            unpack_floats(row[19]),
            row[20],
            moment(row[21]),
            json.loads(row[22]),
            unpack_traces(row[27], len(tokens)),
        )
        for row, tokens in zip(rows, _effective_tokens(rows), strict=True)
    ]


def _escape_like(text: str) -> str:
    """Escape the wildcards of LIKE."""
    for character in "\\%_":
        text = text.replace(character, "\\" + character)
    return text
