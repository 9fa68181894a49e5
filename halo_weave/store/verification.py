"""Check a memory against its own record, and repair what can be rebuilt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from halo_weave.core.brightness import INITIAL_BRIGHTNESS
from halo_weave.store import renumbering
from halo_weave.store.branches import misplaced_turns, recompute_aside
from halo_weave.store.database import Check, Connection, Fault, Repair
from halo_weave.store.encoding import pack_floats, word_terms
from halo_weave.store.rows import ROWS_PER_STEP, VISIBLE, request_embedding, reserve_up_to, rewrite_word_index
from halo_weave.store.visibility import HIDDEN_IN_WINDOW


def _statement(sql: str, *values: object) -> Repair:
    return lambda db: db.execute(sql, values)


def _check_ids(db: Connection) -> Iterator[Fault]:
    next_turn, next_position = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
    turn = db.execute("SELECT coalesce(max(id), 0) FROM turns").fetchone()[0]
    stop = db.execute("SELECT coalesce(max(start + span), 0) FROM chunks").fetchone()[0]
    if turn >= next_turn or stop > next_position:
        yield (
            f"Turn {turn} or position {stop} is stored but was never reserved (next are {next_turn}, {next_position}).",
            lambda db: reserve_up_to(db, turn + 1, stop),
        )
    elif renumbering.compacted_ids(db) is not None:
        yield (
            "Ids jump by more than 2^40, which only a faulty import can cause.",
            renumbering.compact_ids,
        )
    for first, second in db.execute(
        """SELECT before, number FROM (SELECT number, start, lag(number) OVER place AS before,
               lag(start + span) OVER place AS stop FROM chunks WHERE merged IS NULL WINDOW place AS (ORDER BY start)) AS placed
           WHERE stop > start LIMIT 20"""
    ):
        yield f"Chunks number {first} and {second} claim the same positions.", None
    for answer, question in db.execute(
        """SELECT a.id, q.id FROM turns a JOIN turns q ON q.id = a.answers
           WHERE a.role <> 'assistant' OR q.role <> 'user' OR q.id >= a.id LIMIT 20"""
    ):
        yield f"Turn {answer} is stored as the answer to turn {question}, which is not possible.", None


def _check_branches(db: Connection) -> Iterator[Fault]:
    before = "(SELECT max(p.id) FROM turns p WHERE p.window = turns.window AND p.id < turns.id)"
    for turn, parent in db.execute("SELECT id, parent FROM turns WHERE parent >= id LIMIT 20").fetchall():
        yield (
            f"Turn {turn} follows turn {parent}, which was said later.",
            _statement(f"UPDATE turns SET parent = {before} WHERE id = ?", turn),
        )
    said = "(SELECT max(t.id) FROM turns t WHERE t.window = w.id AND t.aside = 0)"
    for window, turn in db.execute(
        f"SELECT w.id, {said} FROM windows w WHERE w.head IS NULL AND {said} IS NOT NULL"
    ).fetchall():
        yield (
            f"Window {window} has turns, but no last turn.",
            _statement("UPDATE windows SET head = ? WHERE id = ?", turn, window),
        )
    wrong = misplaced_turns(db)
    if wrong:
        yield (
            f"{len(wrong)} turns are wrongly aside, or wrongly not aside.",
            lambda db: recompute_aside(db, 0),
        )


def _check_tokens(db: Connection) -> Iterator[Fault]:
    for number, span, ids, lengths, size in db.stream(
        "SELECT number, span, ids, lengths, length(raw) FROM chunks"
    ):
        valid = len(ids) in {2 * span, 4 * span} and len(lengths) in {span, 4 * span}
        if not valid or int(np.frombuffer(lengths, "u1" if len(lengths) == span else "<i4").sum()) != size:
            yield f"The tokens of chunk number {number} do not fit its text.", None


def _check_words(db: Connection) -> Iterator[Fault]:
    rows = db.stream(
        f"""SELECT c.number, c.raw, t.speaker, t.said, w.terms FROM chunks c JOIN turns t ON t.id = c.turn
           LEFT JOIN words w ON w.rowid = c.number WHERE {VISIBLE}"""
    )
    wrong = [number for number, raw, speaker, said, terms in rows if terms != word_terms(raw, speaker, said)]
    extra = [
        number
        for (number,) in db.execute(
            """SELECT w.rowid FROM words w LEFT JOIN chunks c ON c.number = w.rowid
               WHERE c.number IS NULL OR c.deleted IS NOT NULL OR c.merged IS NOT NULL OR c.aside = 1"""
        )
    ]

    def repair(db: Connection) -> None:
        db.remove_from_word_index(extra)
        for at in range(0, len(wrong), ROWS_PER_STEP):
            rewrite_word_index(db, wrong[at : at + ROWS_PER_STEP])

    if wrong or extra:
        yield (
            f"The word index lacks or has other words for {len(wrong)} chunks, and has {len(extra)} too many.",
            repair,
        )


def _check_vectors(db: Connection) -> Iterator[Fault]:
    wrong = db.execute(
        """SELECT v.id, v.chunk FROM vectors v JOIN generations g ON g.id = v.generation
           JOIN chunks c ON c.number = v.chunk
           WHERE g.state <> 'retired' AND (length(v.vector) = 0 OR length(v.vector) % (4 + g.dimension) <> 0
               OR c.deleted IS NOT NULL OR c.merged IS NOT NULL)"""
    ).fetchall()
    missing = [
        number
        for (number,) in db.execute(
            f"""SELECT DISTINCT c.number FROM chunks c JOIN generations g ON g.state <> 'retired'
               LEFT JOIN vectors v ON v.generation = g.id AND v.chunk = c.number
               LEFT JOIN wanted w ON w.generation = g.id AND w.chunk = c.number
               WHERE {VISIBLE} AND v.id IS NULL AND w.chunk IS NULL"""
        )
    ]

    def repair(db: Connection) -> None:
        db.executemany("DELETE FROM vectors WHERE id = ?", [(row,) for row, _ in wrong])
        again = sorted({*missing, *(number for _, number in wrong)})
        present = {
            number
            for number in again
            if db.execute(f"SELECT 1 FROM chunks c WHERE c.number = ? AND {VISIBLE}", (number,)).fetchone()
        }
        db.mark_changed(again)
        request_embedding(db, sorted(present))

    if wrong or missing:
        yield (
            f"{len(wrong)} vectors do not fit their chunk or generation, and {len(missing)} are missing.",
            repair,
        )


def _check_changes(db: Connection) -> Iterator[Fault]:
    lost = [
        number
        for (number,) in db.execute(
            "SELECT c.number FROM chunks c LEFT JOIN changes n ON n.chunk = c.number WHERE n.chunk IS NULL"
        )
    ]
    if lost:
        yield f"{len(lost)} chunks are not in the list of changes.", lambda db: db.mark_changed(lost)


def _check_working_sets(db: Connection) -> Iterator[Fault]:
    for table in ("live", "asleep"):
        rows = db.execute(
            f"""SELECT h.window, h.start, c.number, c.span FROM {table} h JOIN chunks c ON c.number = h.chunk
                WHERE (h.ids IS NULL AND length(h.brightness) <> 4 * c.span)
                OR (h.ids IS NOT NULL AND length(h.brightness) NOT IN (length(h.ids), 2 * length(h.ids)))"""
        )
        for window, start, number, span in rows:
            yield (
                f"The brightness of chunk number {number}, {table} in window {window}, does not fit its tokens.",
                _statement(
                    f"""UPDATE {table} SET brightness = ?, traces = NULL, tokenizer = NULL, ids = NULL, lengths = NULL, raw = NULL
                        WHERE window = ? AND start = ?""",
                    pack_floats(np.full(span, INITIAL_BRIGHTNESS, np.float32)),
                    window,
                    start,
                ),
            )
        for window, start in db.execute(
            f"SELECT window, start FROM {table} WHERE length(traces) % length(brightness) <> 0"
        ):
            yield (
                f"The traces of the chunk at position {start}, {table} in window {window}, do not fit its tokens.",
                _statement(f"UPDATE {table} SET traces = NULL WHERE window = ? AND start = ?", window, start),
            )
        for (number,) in db.execute(
            f"""SELECT DISTINCT c.number FROM {table} h JOIN chunks c ON c.number = h.chunk
                WHERE h.start <> c.start OR c.merged IS NOT NULL"""
        ):
            yield (
                f"Chunk number {number} is in the table {table} at a wrong position, or although it was merged.",
                None,
            )
    for window, start in db.execute(
        "SELECT l.window, l.start FROM live l JOIN asleep a ON a.window = l.window AND a.start = l.start"
    ):
        yield (
            f"The chunk at position {start} is both live and pruned in window {window}.",
            _statement("DELETE FROM asleep WHERE window = ? AND start = ?", window, start),
        )
    for (number,) in db.execute(
        """SELECT DISTINCT c.number FROM live l JOIN chunks c ON c.number = l.chunk
           WHERE c.deleted IS NOT NULL OR c.aside = 1"""
    ):
        yield (
            f"Chunk number {number} is deleted or aside but live.",
            _statement("DELETE FROM live WHERE chunk = ?", number),
        )
    gone = """(SELECT CASE WHEN c.deleted IS NOT NULL OR c.aside = 1 THEN 1 ELSE 0 END
              FROM chunks c WHERE c.number = asleep.chunk)"""
    wrong = f"gone <> {HIDDEN_IN_WINDOW} AND gone <> {gone}"
    if db.execute(f"SELECT 1 FROM asleep WHERE {wrong} LIMIT 1").fetchone():
        yield (
            "The graveyard shows deleted chunks or hides others.",
            _statement(f"UPDATE asleep SET gone = {gone} WHERE {wrong}"),
        )


def _check_drafts(db: Connection) -> Iterator[Fault]:
    for turn, tokens, parts in db.execute(
        """SELECT d.turn, d.tokens, coalesce(sum(p.span), 0) FROM drafts d LEFT JOIN draft_parts p ON p.turn = d.turn
           GROUP BY d.turn HAVING d.tokens <> coalesce(sum(p.span), 0)"""
    ):
        yield (
            f"The draft of turn {turn} should have {tokens} tokens and has {parts}.",
            _statement("UPDATE drafts SET tokens = ? WHERE turn = ?", parts, turn),
        )
    for (turn,) in db.execute("SELECT d.turn FROM drafts d JOIN turns t ON t.id = d.turn"):
        yield (
            f"Turn {turn} is stored, but its draft still exists.",
            _statement("DELETE FROM drafts WHERE turn = ?", turn),
        )


CHECKS: dict[str, Check] = {
    "ids": _check_ids,
    "branches": _check_branches,
    "tokens": _check_tokens,
    "words": _check_words,
    "vectors": _check_vectors,
    "changes": _check_changes,
    "working sets": _check_working_sets,
    "drafts": _check_drafts,
}
