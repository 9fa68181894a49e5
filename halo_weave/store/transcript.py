"""What was said: reserve ids, append turns, save drafts of replies, and find chunks by key."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from halo_weave.core.tokens import ChunkKey, Role, Tokens
from halo_weave.core.turn_text import turn_hash
from halo_weave.core.working_set import LiveChunk
from halo_weave.errors import BadInput, StoreFull, UnknownChunk
from halo_weave.store.access import (
    StoreHandle,
    checks_access,
    for_everyone,
    reads_window,
    server_only,
    writes_window,
)
from halo_weave.store.branches import attach_turn
from halo_weave.store.database import Connection, this_process
from halo_weave.store.encoding import (
    micros,
    moment,
    pack_floats,
    pack_tokens,
    pack_traces,
    unpack_runs,
    word_terms,
)
from halo_weave.store.records import Draft, RecallableChunk, Reservation, StoredChunk, TurnPage
from halo_weave.store.rows import (
    CHUNK_COLUMNS,
    CHUNK_TABLES,
    INSERT_CHUNK,
    VISIBLE,
    check_window,
    chunk_records,
    chunk_values,
    json_array,
    pack_json,
    request_embedding,
    tokenizer_id,
)

LIMIT = 2**63 - 1
PATIENCE = timedelta(minutes=1)
_DRAFTS = """SELECT d.window, d.turn, d.start, d.answers, k.fingerprint, d.begun, d.saved, d.owner
             FROM drafts d JOIN tokenizers k ON k.id = d.tokenizer"""


class SqlTranscript(StoreHandle):
    @for_everyone
    def reserve(self, positions: int) -> Reservation:
        """Reserve two turn ids and a range of positions."""
        if positions < 1:
            raise BadInput(f"{positions} positions cannot be reserved. Ask for at least one.")
        with self._db.writing() as db:
            turn, start = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
            if turn > LIMIT - 2 or start > LIMIT - positions:
                raise StoreFull(
                    f"{self._db.place} has no more ids: they end at 2^63. Export what you need and begin a new memory."
                )
            db.execute("UPDATE memory SET next_turn = ?, next_position = ?", (turn + 2, start + positions))
        return Reservation(turn, turn + 1, start, start + positions)

    @writes_window
    def append(
        self,
        window_id: str,
        said: Sequence[LiveChunk],
        *,
        tokenizer: str,
        now: datetime,
        asleep: bool = False,
        speaker: str | None = None,
        tags: Mapping[ChunkKey, Sequence[str]] | None = None,
        after: int | None = None,
    ) -> list[int]:
        """Store the chunks of one turn, with index entries and their place in the window. Returns their numbers.

        When this returns, they are on disk, and a draft of the turn is deleted. `asleep`: they are pruned at once.
        `speaker`: another speaker than the window's names. `after`: the turn that it follows, 0 for none; turns after
        that are set aside. Otherwise its place on the window's current branch follows from its id, and a second answer
        to a question replaces the first, which is set aside.
        """
        self._check_continues(window_id, after)
        turn, role, answers = _one_turn(said)
        when = micros(now)
        with self._db.writing(durable=True) as db:
            names = check_window(db, window_id)
            db.check_lease(window_id)
            if speaker is None:
                speaker = "" if role is Role.SYSTEM else names[role is Role.ASSISTANT]
            self._check_reserved(db, said)
            _check_pair(db, turn, role, answers)
            known = db.execute(
                "SELECT window, role, answers, speaker, said, aside FROM turns WHERE id = ?", (turn,)
            ).fetchone()
            if known is None:
                db.execute(
                    "INSERT INTO turns (id, window, role, answers, speaker, said, mark) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        turn,
                        window_id,
                        role,
                        answers,
                        speaker,
                        when,
                        turn_hash(role, _searchable_text(said, tags or {})),
                    ),
                )
                attach_turn(db, window_id, turn, answers, after, when)
                said_at = when
            else:
                if known[:3] != (window_id, role, answers) or known[5]:
                    raise BadInput(
                        f"Turn {turn} is already stored as a turn of another window, speaker or branch."
                    )
                speaker, said_at = known[3:5]
            numbers = self._insert(db, window_id, said, tokenizer, tags or {})
            db.add_to_word_index(
                [
                    (number, word_terms(item.chunk.tokens.raw, speaker, said_at))
                    for number, item in zip(numbers, said, strict=True)
                ]
            )
            live = """INSERT INTO live (window, start, chunk, since, brightness, traces, pinned)
                      VALUES (?, ?, ?, ?, ?, ?, ?)"""
            insert_pruned = """INSERT INTO asleep (window, start, chunk, slept, brightness, traces, peak, gone, reason)
                          VALUES (?, ?, ?, ?, ?, ?, ?, 0, '{}')"""
            held = [
                (
                    *(window_id, item.chunk.start, number, when),
                    *(pack_floats(item.brightness), pack_traces(item.traces)),
                    item.peak if asleep else item.pinned,
                )
                for number, item in zip(numbers, said, strict=True)
            ]
            db.executemany(insert_pruned if asleep else live, held)
            db.mark_changed(numbers)
            request_embedding(db, numbers)
            db.execute("DELETE FROM drafts WHERE turn = ?", (turn,))
        return numbers

    def _insert(
        self,
        db: Connection,
        window_id: str,
        said: Sequence[LiveChunk],
        tokenizer: str,
        tags: Mapping[ChunkKey, Sequence[str]],
    ) -> list[int]:
        """Insert the chunks of a turn. Returns their numbers."""
        known = tokenizer_id(db, tokenizer)
        chunks = [item.chunk for item in said]
        rows = [
            chunk_values(window_id, one.key, one.start, one.tokens, known, tags.get(one.key))
            for one in chunks
        ]
        try:
            db.executemany(INSERT_CHUNK, rows)
        except self._db.conflict as error:
            raise BadInput(
                f"A chunk of turn {chunks[0].key.turn_id} is already stored; nothing was added."
            ) from error
        found = dict(
            db.execute(
                "SELECT chunk, number FROM chunks WHERE turn = ? AND chunk >= ?",
                (chunks[0].key.turn_id, min(one.key.chunk_id for one in chunks)),
            ).fetchall()
        )
        return [int(found[one.key.chunk_id]) for one in chunks]

    def _check_reserved(self, db: Connection, said: Sequence[LiveChunk]) -> None:
        next_turn, next_position = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
        first, last = said[0].chunk, said[-1].chunk
        if first.key.turn_id >= next_turn or last.stop > next_position:
            raise BadInput(
                f"Turn {first.key.turn_id} at positions {first.start} to {last.stop} was never reserved."
            )
        row = db.execute(
            """SELECT start + span FROM chunks WHERE start < ? AND merged IS NULL ORDER BY start DESC LIMIT 1""",
            (last.stop,),
        ).fetchone()
        if row and row[0] > first.start:
            raise BadInput(
                f"Positions {first.start} to {last.stop} are taken; turn {first.key.turn_id} was not stored."
            )

    # A reply while it streams

    @server_only
    def save_drafts(self, drafts: Sequence[Draft]) -> None:
        """Save replies in progress, all or none. Only tokens since the last call are written."""
        with self._db.writing(urgent=True) as db:
            for draft in drafts:
                self._save_draft(db, draft)

    def _save_draft(self, db: Connection, draft: Draft) -> None:
        turn, tokens = draft.turn_id, draft.tokens
        db.check_lease(draft.window)
        row = db.execute("SELECT tokens FROM drafts WHERE turn = ?", (turn,)).fetchone()
        if row is None:
            check_window(db, draft.window)
            if db.execute("SELECT 1 FROM chunks WHERE turn = ? LIMIT 1", (turn,)).fetchone():
                raise BadInput(f"Turn {turn} is already stored; it cannot become a draft again.")
            kind, begun = tokenizer_id(db, draft.tokenizer), micros(draft.begun)
            db.execute(
                """INSERT INTO drafts (turn, window, start, answers, tokenizer, owner, begun, saved, tokens)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)""",
                (turn, draft.window, draft.start, draft.answers, kind, this_process(), begun, begun),
            )
        stored = row[0] if row else 0
        if len(tokens) > stored:
            part = tokens.part(stored, len(tokens))
            db.execute(
                "INSERT INTO draft_parts (turn, at, span, ids, lengths, raw) VALUES (?, ?, ?, ?, ?, ?)",
                (turn, stored, len(part), *pack_tokens(part)),
            )
        db.execute(
            "UPDATE drafts SET tokens = ?, saved = ? WHERE turn = ?",
            (max(stored, len(tokens)), micros(draft.saved), turn),
        )

    @server_only
    def drafts(self, *, now: datetime, abandoned: bool = True, held: str | None = None) -> list[Draft]:
        """Replies that were never finished; by default only those whose process has ended.

        If that is unknown, a draft that was not saved for a minute counts as abandoned. In the window that this process
        `held`, its own drafts count, too, since nothing is written there.
        """
        with self._db.querying() as db:
            rows = db.execute(f"{_DRAFTS} ORDER BY d.turn").fetchall()
        if not rows:
            return []
        found: list[Draft] = []
        with self._db.reading() as db:
            for row in rows:
                window, saved, owner = row[0], row[6], row[7]
                living = db.writes(owner, window) and not (window == held and owner == this_process())
                if abandoned and (now - moment(saved) < PATIENCE if living is None else living):
                    continue
                draft = _draft(db, row)
                if len(draft.tokens):
                    found.append(draft)
        return found

    @server_only
    def draft_in(self, window_id: str, *, after: int = 0) -> Draft | None:
        """The newest unfinished reply in a window, of any process, without its first `after` tokens."""
        with self._db.reading() as db:
            row = db.execute(
                f"{_DRAFTS} WHERE d.window = ? ORDER BY d.turn DESC LIMIT 1", (window_id,)
            ).fetchone()
            return _draft(db, row, after) if row else None

    @server_only
    def drop_draft(self, turn_id: int) -> None:
        with self._db.writing() as db:
            db.execute("DELETE FROM drafts WHERE turn = ?", (turn_id,))

    # Finding it

    @checks_access
    def chunk(self, key: ChunkKey) -> StoredChunk:
        found = self.chunks_by_key([key])
        if not found:
            raise UnknownChunk(f"There is no chunk {key} in this memory.")
        return found[0]

    @server_only
    def chunks(self, numbers: Iterable[int]) -> list[StoredChunk]:
        """Chunks in the requested order; unknown numbers are left out."""
        wanted = [int(number) for number in numbers]
        with self._db.querying() as db:
            rows = db.execute(
                f"SELECT {CHUNK_COLUMNS} FROM {CHUNK_TABLES} WHERE c.number IN (SELECT value FROM json_each(?))",
                (json_array(wanted),),
            ).fetchall()
        found = {record.number: record for record in chunk_records(rows)}
        return [found[number] for number in wanted if number in found]

    @checks_access
    def chunks_by_key(self, keys: Iterable[ChunkKey]) -> list[StoredChunk]:
        """Chunks in the requested order; unknown keys are left out."""
        wanted = list(keys)
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {CHUNK_COLUMNS} FROM json_each(?) j CROSS JOIN {CHUNK_TABLES}
                        AND c.turn = CAST(j.value ->> 0 AS BIGINT) AND c.chunk = CAST(j.value ->> 1 AS BIGINT)""",
                (pack_json([key[:2] for key in wanted]),),
            ).fetchall()
        found = {record.key: record for record in chunk_records(rows) if self._may_read(record.window)}
        return [found[key] for key in dict.fromkeys(wanted) if key in found]

    @server_only
    def windows_by_last_turn(self) -> list[str]:
        """The ids of all windows, the one with the latest turn first."""
        with self._db.querying() as db:
            rows = db.execute(
                """SELECT w.id FROM windows w WHERE w.deleted IS NULL
                   ORDER BY coalesce((SELECT max(t.id) FROM turns t WHERE t.window = w.id), 0) DESC, w.id"""
            ).fetchall()
        return [id for (id,) in rows]

    @server_only
    def recallable_chunks(self, window_id: str) -> list[RecallableChunk]:
        """The chunks said in a window that can be resurrected, in order."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT c.turn, c.chunk, t.role, c.start, c.span, coalesce(c.tags LIKE '%"thought"%', 1 = 0),
                        (SELECT count(*) FROM history h WHERE h.chunk = c.number AND h.event = 'woke')
                    FROM chunks c JOIN turns t ON t.id = c.turn WHERE c.window = ? AND {VISIBLE} ORDER BY c.start""",
                (window_id,),
            ).fetchall()
        return [
            RecallableChunk(ChunkKey(turn, chunk, Role(role)), start, span, bool(thought), times)
            for turn, chunk, role, start, span, thought, times in rows
        ]

    @checks_access
    def chunks_between(self, first: int, stop: int) -> list[StoredChunk]:
        """The chunks with a token at one of these positions, in order; deleted ones, too."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {CHUNK_COLUMNS} FROM {CHUNK_TABLES} WHERE c.merged IS NULL AND c.start < :stop
                    AND c.start >= coalesce(
                        (SELECT max(start) FROM chunks WHERE start <= :first AND merged IS NULL), 0)
                    ORDER BY c.start""",
                {"first": first, "stop": stop},
            ).fetchall()
        found = (record for record in chunk_records(rows) if record.chunk.stop > first)
        return [record for record in found if self._may_read(record.window)]

    @checks_access
    def turn(self, turn_id: int) -> list[StoredChunk]:
        """All chunks of a turn in order; deleted and merged ones, too."""
        with self._db.querying() as db:
            rows = db.execute(
                f"SELECT {CHUNK_COLUMNS} FROM {CHUNK_TABLES} WHERE c.turn = ? ORDER BY c.chunk", (turn_id,)
            ).fetchall()
        return [record for record in chunk_records(rows) if self._may_read(record.window)]

    @reads_window
    def deleted_in(
        self, window_id: str, *, offset: int = 0, limit: int = 100
    ) -> tuple[int, list[StoredChunk]]:
        """How many chunks of a window are deleted, and some of them, most recently deleted first."""
        there = "WHERE c.window = ? AND c.deleted IS NOT NULL AND c.merged IS NULL"
        with self._db.reading() as db:
            (total,) = db.execute(f"SELECT count(*) FROM chunks c {there}", (window_id,)).fetchone()
            rows = db.execute(
                f"SELECT {CHUNK_COLUMNS} FROM {CHUNK_TABLES} {there} ORDER BY c.deleted DESC, c.start LIMIT ? OFFSET ?",
                (window_id, limit, offset),
            ).fetchall()
        return total, chunk_records(rows)

    @reads_window
    def said_in(
        self, window_id: str, *, offset: int | None = None, around: int | None = None, limit: int = 50
    ) -> TurnPage:
        """Turns of a window's current branch, in order: from an offset on, around a turn, or the last ones."""
        with self._db.reading() as db:
            found = db.execute(
                f"""WITH RECURSIVE line(id) AS (
                        SELECT head FROM windows WHERE id = ? AND head IS NOT NULL
                        UNION ALL SELECT t.parent FROM line JOIN turns t USING (id) WHERE t.parent IS NOT NULL)
                    SELECT id FROM line l WHERE EXISTS (SELECT 1 FROM chunks c WHERE c.turn = l.id AND {VISIBLE})
                    ORDER BY id""",
                (window_id,),
            ).fetchall()
            turns = [turn for (turn,) in found]
            if around is not None:
                offset = bisect_left(turns, around) - limit // 2
            first = max(0, len(turns) - limit if offset is None else offset)
            rows = db.execute(
                f"""SELECT {CHUNK_COLUMNS} FROM {CHUNK_TABLES}
                    WHERE c.turn IN (SELECT value FROM json_each(?)) AND {VISIBLE} ORDER BY c.turn, c.chunk""",
                (json_array(turns[first : first + limit]),),
            ).fetchall()
        return TurnPage(len(turns), first, tuple(chunk_records(rows)))


def _one_turn(said: Sequence[LiveChunk]) -> tuple[int, Role, int | None]:
    if not said:
        raise BadInput("A turn without chunks cannot be stored.")
    first = said[0].chunk
    at = first.start
    for item in said:
        chunk = item.chunk
        if (chunk.key.turn_id, chunk.key.role, chunk.answers) != (
            first.key.turn_id,
            first.key.role,
            first.answers,
        ):
            raise BadInput("Chunks of several turns cannot be stored as one turn.")
        if chunk.span != len(chunk.tokens):
            raise BadInput(
                f"Chunk {chunk.key} has tokens of another tokenizer; only its original tokens can be stored."
            )
        if chunk.start < at:
            raise BadInput(f"Chunk {chunk.key} stands before the chunk it follows.")
        at = chunk.stop
    return first.key.turn_id, first.key.role, first.answers


def _searchable_text(said: Sequence[LiveChunk], tags: Mapping[ChunkKey, Sequence[str]]) -> str:
    """The text of the turn, without thoughts and tool output."""
    own = [item.chunk for item in said if not {"thought", "tool"} & {*tags.get(item.chunk.key, ())}]
    return b"".join(chunk.tokens.raw for chunk in own).decode("utf-8", errors="replace")


def _check_pair(db: Connection, turn: int, role: Role, answers: int | None) -> None:
    if answers is None:
        return
    row = db.execute("SELECT role FROM turns WHERE id = ?", (answers,)).fetchone()
    if role is not Role.ASSISTANT or row is None or row[0] != Role.USER or answers >= turn:
        raise BadInput(
            f"Turn {turn} cannot answer turn {answers}: an answer follows a stored turn of the user."
        )


def _draft(db: Connection, row: Sequence[Any], after: int = 0) -> Draft:
    window, turn, start, answers, fingerprint, begun, saved, _ = row
    parts = db.execute(
        "SELECT ids, lengths, raw, span FROM draft_parts WHERE turn = ? AND at >= ? ORDER BY at",
        (turn, after),
    ).fetchall()
    tokens = sum(unpack_runs(parts), Tokens.of([], []))
    return Draft(window, turn, start, answers, tokens, fingerprint, moment(begun), moment(saved))
