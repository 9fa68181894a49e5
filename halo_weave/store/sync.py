"""Sync a memory with other devices through a shared folder: write bundles of what is new, and apply those of others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from halo_weave.core.tokens import ChunkKey
from halo_weave.core.turn_text import turn_hash
from halo_weave.errors import ImportRefused, StoreBusy
from halo_weave.settings import Settings
from halo_weave.store import importing
from halo_weave.store.access import StoreHandle, server_only
from halo_weave.store.branches import recompute_aside
from halo_weave.store.database import Connection
from halo_weave.store.encoding import micros, pack_floats, unpack_tokens
from halo_weave.store.exchange_format import tokens_out
from halo_weave.store.records import Synced
from halo_weave.store.registers import Registers, changed_registers, document_of, merged
from halo_weave.store.rows import insert_chunk, pack_json, unpack_tags
from halo_weave.store.sync_bundles import (
    BUNDLE_BYTES,
    Bundle,
    Kind,
    SharedTurn,
    change_line,
    listed_bundles,
    read_bundle,
    write_bundle,
)
from halo_weave.store.sync_documents import (
    DEPTH,
    DOCUMENT_READERS,
    apply_entry,
    apply_note,
    apply_setting,
    apply_turn,
    apply_window,
    keys_of,
    local_turn,
    turn_identity,
)

LIVE_TOKENS = 1_500  # tokens at the end of a received branch that become live
RECENT_DRAFT = timedelta(minutes=1)  # a draft saved within this time belongs to a running reply
_OTHER_KINDS: tuple[Kind, ...] = ("entry", "note", "setting")
_SEQUENCE = ("sequence", "turns")  # sequence number up to which turns were examined


class _OutgoingChange(NamedTuple):
    """A change to write: the turn's text if others do not have it, and the changed registers."""

    kind: Kind
    key: str
    lines: list[str]
    registers: Registers


class SqlSync(StoreHandle):
    @server_only
    def sync(self, folder: Path, *, now: datetime) -> Synced:
        """Write local changes to a shared folder, and apply those of other devices. Refused while a reply is generated."""
        with self._db.import_lock(timeout=importing.IMPORT_LOCK_SECONDS):
            bundles = listed_bundles(folder)
            with self._db.querying() as db:
                if db.execute(
                    "SELECT 1 FROM drafts WHERE saved > ?", (micros(now - RECENT_DRAFT),)
                ).fetchone():
                    raise StoreBusy("A reply is being written in this memory. Sync again when it has ended.")
            sent = self._write_changes(folder, {*bundles})
            applied = _AppliedCounts()
            waiting, refused = self._apply_bundles(bundles, micros(now), applied)
            if (
                applied.turns or applied.changes
            ):  # merging may make new changes, such as a window for a branch
                sent += self._write_changes(folder, {*listed_bundles(folder)})
            return Synced(sent, applied.turns, applied.changes, waiting, tuple(refused))

    # Writing local changes

    def _write_changes(self, folder: Path, present: set[str]) -> int:
        """Write bundles with the changes that others do not have. Returns the number of turns and changes.

        `present`: the bundles in the folder.
        """
        with self._db.reading() as db:
            own = db.execute("SELECT id FROM memory").fetchone()[0]
            known = _bundles(db)
            # In another folder, or one that lost files, everything is written again.
            other_folder = any(state["own"] and name not in present for name, state in known.items())
            sequence = db.last_change()
            needs = {name for name, state in known.items() if state["last"] and name in present}
            count = 0
            batch: list[_OutgoingChange] = []
            size = 0
            for change in _outgoing_changes(db, other_folder):
                batch.append(change)
                size += sum(map(len, change.lines))
                count += len(change.lines)
                if size > BUNDLE_BYTES:
                    needs = self._write_bundle(folder, own, needs, batch, other_folder)
                    batch, size = [], 0
            if batch:
                self._write_bundle(folder, own, needs, batch, other_folder)
        with self._db.writing() as db:
            _keep(db, *_SEQUENCE, str(sequence))
        return count

    def _write_bundle(
        self, folder: Path, own: str, needs: set[str], batch: list[_OutgoingChange], other_folder: bool
    ) -> set[str]:
        lines = [line for change in batch for line in change.lines]
        name = write_bundle(folder, own, needs, lines)
        # If this process ends here, the next sync reads the bundle like that of another device, and it changes nothing.
        with self._db.writing(durable=True) as db:
            for change in batch:
                _remember_registers(db, change.kind, change.key, change.registers)
            _remember_bundle(db, name, needs, own=True)
        return {name}

    # Applying the changes of others

    def _apply_bundles(
        self, bundles: dict[str, Path], now: int, applied: _AppliedCounts
    ) -> tuple[int, list[str]]:
        """Apply bundles. Returns how many wait for others or are incomplete, and why some were refused."""
        with self._db.reading() as db:
            known = {*_bundles(db)}
        refused: list[str] = []
        unread: dict[str, Path] = {name: path for name, path in bundles.items() if name not in known}
        read: dict[str, Bundle] = {}
        for name, path in unread.items():
            try:
                bundle = read_bundle(path, name)
            except ImportRefused as error:
                refused.append(f"{path.name}: {error}")
                continue
            if bundle is not None:
                read[name] = bundle
        waiting = len(unread) - len(read) - len(refused)
        progress = True
        while progress:
            progress = False
            for name, bundle in list(read.items()):
                if not {*bundle.needs} <= known:
                    continue
                del read[name]
                try:
                    with self._db.writing(durable=True) as db:
                        _IncomingBundle(db, now, applied).apply(bundle)
                        _remember_bundle(db, name, {*bundle.needs}, own=False)
                except ImportRefused as error:
                    refused.append(f"{bundles[name].name}: {error}")
                    continue
                known.add(name)
                progress = True
        waiting += len(read)
        if not waiting:
            with self._db.writing(durable=True) as db:
                _create_windows_for_displaced_turns(db, now, applied)
        return waiting, refused


class _AppliedCounts:
    """How many turns and changes one sync has applied."""

    def __init__(self) -> None:
        self.turns = self.changes = 0


# The table `synced`: the bundles and registers that other devices have


def _bundles(db: Connection) -> dict[str, Any]:
    rows = db.execute("SELECT key, told FROM synced WHERE kind = 'bundle'")
    return {key: json.loads(value) for key, value in rows}


def _remember_bundle(db: Connection, name: str, needs: set[str], *, own: bool) -> None:
    """Remember that a bundle was written or applied. The bundles that it needs are not the last ones any more."""
    known = _bundles(db)
    for before in needs & known.keys():
        _keep(db, "bundle", before, pack_json({**known[before], "last": False}))
    _keep(db, "bundle", name, pack_json({"own": own, "last": True}))


def _keep(db: Connection, kind: str, key: str, value: str) -> None:
    db.execute(
        """INSERT INTO synced (kind, key, told) VALUES (?, ?, ?)
           ON CONFLICT (kind, key) DO UPDATE SET told = excluded.told""",
        (kind, key, value),
    )


def _registers(db: Connection, kind: str, key: str) -> Registers | None:
    """The registers that others know; None: they do not know it."""
    row = db.execute("SELECT told FROM synced WHERE kind = ? AND key = ?", (kind, key)).fetchone()
    if row is None:
        return None
    return {tuple(path): (stamp, tuple(held)) for path, stamp, held in json.loads(row[0])}


def _remember_registers(db: Connection, kind: str, key: str, registers: Registers) -> None:
    known = merged(_registers(db, kind, key) or {}, registers)
    rows = [[list(path), stamp, list(held)] for path, (stamp, held) in known.items()]
    _keep(db, kind, key, json.dumps(rows, ensure_ascii=False))


# Local changes


def _outgoing_changes(db: Connection, other_folder: bool) -> Iterator[_OutgoingChange]:
    """The changes to write: windows, turns in order, then structured memory, notes and settings."""
    for key in keys_of(db, "window"):
        yield from _outgoing_change(db, "window", key, key, other_folder)
    row = db.execute("SELECT told FROM synced WHERE kind = ? AND key = ?", _SEQUENCE).fetchone()
    since = 0 if other_folder or row is None else int(row[0])
    turns = db.execute(
        """SELECT DISTINCT c.turn FROM changes n JOIN chunks c ON c.number = n.chunk
           JOIN windows w ON w.id = c.window WHERE n.sequence > ? AND w.owner = '' ORDER BY c.turn""",
        (since,),
    ).fetchall()
    for (turn,) in turns:
        name = turn_identity(db, turn)
        assert name is not None
        yield from _outgoing_change(db, "turn", turn, name, other_folder)
    for kind in _OTHER_KINDS:
        for key in keys_of(db, kind):
            yield from _outgoing_change(db, kind, key, key, other_folder)


def _outgoing_change(
    db: Connection, kind: Kind, here: Any, key: str, other_folder: bool
) -> Iterator[_OutgoingChange]:
    known = _registers(db, kind, key)
    stamped = DOCUMENT_READERS[kind](db, here, known)
    if kind == "window":
        _ignore_awaited_head(db, key, stamped.document, known)
    changed = changed_registers(
        known or {}, stamped.document, DEPTH[kind], lambda path: max(0, stamped.stamp(path))
    )
    registers = merged(known or {}, changed) if other_folder else changed
    lines = (
        [json.dumps({"turn": _turn_text(db, here)}, ensure_ascii=False)]
        if kind == "turn" and (other_folder or known is None)
        else []
    )
    if registers:
        lines.append(change_line(kind, key, registers))
    if lines:
        yield _OutgoingChange(kind, key, lines, registers)


def _ignore_awaited_head(
    db: Connection, window: str, document: dict[str, Any], known: Registers | None
) -> None:
    """While the window's last turn has not arrived yet, its present last turn is no local change."""
    row = db.execute("SELECT told FROM synced WHERE kind = 'head' AND key = ?", (window,)).fetchone()
    if row is not None and json.loads(row[0]) == document.get("head"):
        document["head"] = document_of(known or {}).get("head")


def _turn_text(db: Connection, turn: int) -> dict[str, Any]:
    """The unchanging part of a turn: its text, speaker and time, and what it answers and follows."""
    window, role, answers, parent, speaker, said = db.execute(
        """SELECT t.window, t.role, t.answers, p.id, t.speaker, t.said FROM turns t LEFT JOIN (
               SELECT o.id FROM turns o JOIN windows w ON w.id = o.window WHERE w.owner = '') AS p ON p.id = t.parent
           WHERE t.id = ?""",
        (turn,),
    ).fetchone()
    rows = db.execute(
        """SELECT c.chunk, c.start, c.span, k.fingerprint, c.tags, c.ids, c.lengths, c.raw FROM chunks c
           JOIN tokenizers k ON k.id = c.tokenizer WHERE c.turn = ? AND c.merged IS NULL ORDER BY c.start""",
        (turn,),
    ).fetchall()
    return {
        "id": turn_identity(db, turn),
        "window": window,
        "role": role,
        "answers": turn_identity(db, answers),
        "parent": turn_identity(db, parent),
        "speaker": speaker,
        "said": said,
        "chunks": [
            {
                "chunk": chunk,
                "at": start - rows[0][1],
                "tokenizer": tokenizer,
                "tags": list(unpack_tags(tags)),
                **tokens_out(unpack_tokens(ids, lengths, raw, span)),
            }
            for chunk, start, span, tokenizer, tags, ids, lengths, raw in rows
        ],
    }


# Changes of others


class _IncomingBundle:
    """One bundle, applied in one transaction. Refused while another server writes one of its windows."""

    def __init__(self, db: Connection, now: int, applied: _AppliedCounts) -> None:
        self._db, self._now, self._applied = db, now, applied
        self._moved: list[str] = []  # windows whose last turn has changed

    def apply(self, bundle: Bundle) -> None:
        by_kind: dict[Kind, list[tuple[str, Registers]]] = {}
        for kind, key, registers in bundle.changes:
            if registers:
                by_kind.setdefault(kind, []).append((key, registers))
        for key, registers in by_kind.get("window", ()):
            self._window(key, registers)
        for turn in bundle.turns:
            self._turn(turn)
        for key, registers in by_kind.get("turn", ()):
            here = local_turn(self._db, key)
            if here is None:
                raise ImportRefused("It changes a turn that is not here.")
            (window,) = self._db.execute("SELECT window FROM turns WHERE id = ?", (here,)).fetchone()
            self._db.check_lease(window)
            apply_turn(self._db, here, self._merged_registers("turn", here, key, registers))
        for kind, apply in (("entry", apply_entry), ("note", apply_note), ("setting", apply_setting)):
            for key, registers in by_kind.get(kind, ()):
                apply(self._db, key, self._merged_registers(kind, key, key, registers))
        for (window,) in self._db.execute("SELECT key FROM synced WHERE kind = 'head'").fetchall():
            self._move_head(window)
        recompute_aside(self._db, self._now)
        for window in self._moved:
            _make_end_live(self._db, window, self._now)

    def _merged_registers(self, kind: Kind, here: Any, key: str, registers: Registers) -> Registers:
        """The known, local and received registers merged. Local changes are kept, and are written at the next sync."""
        known = _registers(self._db, kind, key)
        own: Registers = {}
        if kind == "turn" or key in keys_of(self._db, kind):
            stamped = DOCUMENT_READERS[kind](self._db, here, known)
            own = changed_registers(
                known or {}, stamped.document, DEPTH[kind], lambda path: max(0, stamped.stamp(path))
            )
        _remember_registers(self._db, kind, key, registers)
        self._applied.changes += 1
        return merged(merged(known or {}, own), registers)

    def _window(self, window: str, registers: Registers) -> None:
        self._db.check_lease(window)
        row = self._db.execute("SELECT head FROM windows WHERE id = ?", (window,)).fetchone()
        head = turn_identity(self._db, row[0]) if row else None
        known = document_of(_registers(self._db, "window", window) or {}).get("head")
        waits = self._db.execute(
            "SELECT told FROM synced WHERE kind = 'head' AND key = ?", (window,)
        ).fetchone()
        # Whether others have all turns of this window.
        unchanged = head == (json.loads(waits[0]) if waits else known)
        shared = apply_window(self._db, window, self._merged_registers("window", window, window, registers))
        if unchanged and shared.head != head:
            _keep(self._db, "head", window, json.dumps(head))

    def _turn(self, turn: SharedTurn) -> None:
        db = self._db
        if local_turn(db, turn.id) is not None:
            if _registers(db, "turn", turn.id) is None:
                _keep(db, "turn", turn.id, "[]")
            return
        answers, parent = local_turn(db, turn.answers), local_turn(db, turn.parent)
        db.check_lease(turn.window)
        window = db.execute("SELECT 1 FROM windows WHERE id = ? AND owner = ''", (turn.window,)).fetchone()
        if window is None:
            raise ImportRefused("It has a turn whose window is not here.")
        if (turn.answers and answers is None) or (turn.parent and parent is None):
            raise ImportRefused("It has a turn that follows one that is not here.")
        here, start = db.execute("SELECT next_turn, next_position FROM memory").fetchone()
        db.execute("UPDATE memory SET next_turn = ?, next_position = ?", (here + 1, start + turn.width))
        text = b"".join(
            chunk.tokens.raw for chunk in turn.chunks if not {"thought", "tool"} & {*chunk.tags}
        ).decode("utf-8", errors="replace")
        db.execute(
            """INSERT INTO turns (id, window, role, answers, parent, speaker, said, mark, aside)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)""",
            (
                here,
                turn.window,
                turn.role,
                answers,
                parent,
                turn.speaker,
                turn.said,
                turn_hash(turn.role, text),
            ),
        )
        source, first, mark = json.loads(turn.id)
        db.execute(
            "INSERT INTO imported (source, turn, mark, here, shift) VALUES (?, ?, ?, ?, 0)",
            (source, first, mark, here),
        )
        bright = np.float32(Settings().initial_brightness)
        numbers = []
        for chunk in turn.chunks:
            key, at = ChunkKey(here, chunk.chunk, turn.role), start + chunk.at
            number = insert_chunk(db, turn.window, key, at, chunk.tokens, chunk.tokenizer, chunk.tags)
            db.execute("UPDATE chunks SET aside = 1 WHERE number = ?", (number,))
            db.execute(
                """INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, brightness)
                   VALUES (?, ?, ?, 1, ?, ?, '{"why":"synced"}', ?)""",
                (
                    *(turn.window, at, number, float(bright), self._now),
                    pack_floats(np.full(len(chunk.ids), bright, np.float32)),
                ),
            )
            numbers.append(number)
        db.mark_changed(numbers)
        _keep(db, "turn", turn.id, "[]")
        self._applied.turns += 1

    def _move_head(self, window: str) -> None:
        """Set the window's last turn to the one that the devices agreed on, if it is here and nothing was said here
        meanwhile."""
        db = self._db
        row = db.execute("SELECT told FROM synced WHERE kind = 'head' AND key = ?", (window,)).fetchone()
        (head,) = db.execute("SELECT head FROM windows WHERE id = ?", (window,)).fetchone()
        agreed = document_of(_registers(db, "window", window) or {}).get("head")
        here = local_turn(db, agreed)
        if agreed is not None and here is None and turn_identity(db, head) == json.loads(row[0]):
            return  # the agreed turn has not arrived yet
        if turn_identity(db, head) == json.loads(row[0]) and here != head:
            db.check_lease(window)
            db.execute("UPDATE windows SET head = ? WHERE id = ?", (here, window))
            self._moved.append(window)
        db.execute("DELETE FROM synced WHERE kind = 'head' AND key = ?", (window,))


def _make_end_live(db: Connection, window: str, now: int) -> None:
    """Make the last chunks of a window's branch live, up to `LIVE_TOKENS`, so that the conversation can continue from them."""
    rows = db.execute(
        """WITH RECURSIVE line(id, parent, rest) AS (
               SELECT t.id, t.parent, 40 FROM windows w JOIN turns t ON t.id = w.head WHERE w.id = ?
               UNION ALL SELECT t.id, t.parent, line.rest - 1 FROM line JOIN turns t ON t.id = line.parent
               WHERE line.rest > 1)
           SELECT c.number, c.start, c.span FROM line JOIN chunks c ON c.turn = line.id
           WHERE c.merged IS NULL AND c.deleted IS NULL ORDER BY c.start DESC""",
        (window,),
    ).fetchall()
    room = LIVE_TOKENS
    for number, start, span in rows:
        room -= span
        if room < 0:
            return
        if db.execute("SELECT 1 FROM live WHERE window = ? AND start = ?", (window, start)).fetchone():
            continue
        db.execute("DELETE FROM asleep WHERE window = ? AND start = ?", (window, start))
        db.execute(
            "INSERT INTO live (window, start, chunk, pinned, since, brightness) VALUES (?, ?, ?, 0, ?, ?)",
            (
                window,
                start,
                number,
                now,
                pack_floats(np.full(span, Settings().initial_brightness, np.float32)),
            ),
        )


# Two devices continued from the same turn. The window has one last turn; the other branch gets a window of its own.


def _create_windows_for_displaced_turns(db: Connection, now: int, applied: _AppliedCounts) -> None:
    created = True
    while created:
        created = False
        rows = db.execute("SELECT id, parent FROM turns WHERE aside = 1 ORDER BY id").fetchall()
        displaced = {turn: parent for turn, parent in rows if _is_displaced(db, turn)}
        for top in [turn for turn, parent in displaced.items() if parent not in displaced]:
            branch = [top]
            for turn, parent in displaced.items():  # in the order of ids: parents come first
                if parent in branch:
                    branch.append(turn)
            if _create_window_for(db, top, branch):
                recompute_aside(db, now)
                created = True
                applied.changes += 1


def _is_displaced(db: Connection, turn: int) -> bool:
    """Whether others have the turn and no user has set it aside."""
    known = _registers(db, "turn", turn_identity(db, turn) or "")
    if known is None:
        return False
    document = DOCUMENT_READERS["turn"](db, turn, known).document
    return not document.get("aside")


def _create_window_for(db: Connection, top: int, turns: list[int]) -> bool:
    name = turn_identity(db, top)
    window = hashlib.sha256(f"apart {name}".encode()).hexdigest()[:10]
    if db.execute("SELECT 1 FROM windows WHERE id = ?", (window,)).fetchone():
        return False
    said = {turn: db.execute("SELECT said FROM turns WHERE id = ?", (turn,)).fetchone()[0] for turn in turns}
    head = max(turns, key=lambda turn: (said[turn], turn_identity(db, turn)))
    db.execute(
        """INSERT INTO windows (id, name, system_prompt, user_name, ai_name, settings, created, modified, deleted, head,
               tags, pinned, archived, inherits)
           SELECT ?, w.name || ' (said apart)', w.system_prompt, w.user_name, w.ai_name, w.settings, ?, ?, NULL, ?,
               w.tags, 0, w.archived, w.inherits FROM windows w JOIN turns t ON t.window = w.id WHERE t.id = ?""",
        (window, said[top], said[top], head, top),
    )
    _make_end_live(db, window, said[head])
    return True
