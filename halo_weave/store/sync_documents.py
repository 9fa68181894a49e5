"""Read what devices share (windows, turns, structured memory, notes, settings) as documents, and apply documents to the rows."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import ImportRefused
from halo_weave.settings import PRESETS_KEY, with_current_names
from halo_weave.store.chunk_edits import remove_from_search
from halo_weave.store.database import Connection
from halo_weave.store.exchange_format import LATEST, EntryIn, NoteIn, iso_time, read_element
from halo_weave.store.records import OWNER, PERSONA_KEY
from halo_weave.store.registers import Path, Registers, document_of
from halo_weave.store.rows import pack_json, record_events
from halo_weave.store.structured_memory import ENTRY_COLUMNS
from halo_weave.store.sync_bundles import Kind, SharedWindow, identity_of
from halo_weave.store.visibility import hide_chunks, restore_chunks

DEPTH: Mapping[Kind, int] = {"window": 2, "turn": 3, "entry": 2, "note": 8, "setting": 2}
PERSONAL = (PERSONA_KEY, PRESETS_KEY)
# Settings that are not shared: engines, and what may leave this machine.
DEVICE_SETTINGS = {"engine_name", "remote_scope"}
TEXT_COLUMNS = ("name", "system_prompt", "user_name", "ai_name")


class StampedDocument(NamedTuple):
    """A document, and when each of its values was set."""

    document: dict[str, Any]
    stamp: Callable[[Path], int]


# Turns are identified by the memory where they were said first, and their id there


def turn_identity(db: Connection, turn: int | None) -> str | None:
    if turn is None:
        return None
    row = db.execute("SELECT source, turn, mark FROM imported WHERE here = ?", (turn,)).fetchone()
    if row is not None:
        return identity_of(*row)
    own, role, said = db.execute(
        "SELECT m.id, t.role, t.said FROM memory m CROSS JOIN turns t WHERE t.id = ?", (turn,)
    ).fetchone()
    return identity_of(own, turn, f"{role} {said}")


def local_turn(db: Connection, name: str | None) -> int | None:
    """The id here of a turn; None if it is not here."""
    if name is None:
        return None
    memory, turn, mark = json.loads(name)
    row = db.execute(
        "SELECT here FROM imported WHERE source = ? AND turn = ? AND mark = ?", (memory, turn, mark)
    ).fetchone()
    if row is None:
        row = db.execute(
            """SELECT t.id FROM memory m CROSS JOIN turns t WHERE m.id = ? AND t.id = ? AND t.role || ' ' || t.said = ?
               AND NOT EXISTS (SELECT 1 FROM imported i WHERE i.here = t.id)""",
            (memory, turn, mark),
        ).fetchone()
    return row[0] if row else None


# Windows


def window_document(db: Connection, window: str, known: Registers | None) -> StampedDocument:
    row = db.execute(
        """SELECT name, system_prompt, user_name, ai_name, settings, tags, inherits, pinned, archived, created, deleted,
               head, modified FROM windows WHERE id = ?""",
        (window,),
    ).fetchone()
    settings, tags, inherits = (json.loads(text) for text in row[4:7])
    document = dict(zip(TEXT_COLUMNS, row[:4], strict=True)) | {
        "settings": {
            name: value for name, value in with_current_names(settings).items() if name not in DEVICE_SETTINGS
        },
        "tags": dict.fromkeys(tags, True),
        "inherits": dict.fromkeys(inherits, True),
        "pinned": bool(row[7]),
        "archived": bool(row[8]),
        "created": row[9],
    }
    if row[10] is not None:
        document["deleted"] = row[10]
    if row[11] is not None:
        document["head"] = turn_identity(db, row[11])
    moved = db.execute(
        """SELECT max(happened) FROM history WHERE window = ? AND event IN ('aside', 'returned')""", (window,)
    ).fetchone()[0]
    said = db.execute("SELECT said FROM turns WHERE id = ?", (row[11],)).fetchone()
    head_set = max(moved or 0, said[0] if said else 0)
    stamps = {"head": head_set, "deleted": row[10] or row[12], "created": 0}
    return StampedDocument(document, lambda path: max(0, stamps.get(path[0], row[12])))


def apply_window(db: Connection, window: str, registers: Registers) -> SharedWindow:
    """Apply everything except the last turn, which may not be here yet."""
    shared = read_element("window", SharedWindow, document_of(registers))
    values = {
        **shared.model_dump(include={*TEXT_COLUMNS, "pinned", "archived", "created", "deleted"}),
        "id": window,
        "modified": max(
            [stamp for path, (stamp, _) in registers.items() if path[0] not in ("head", "deleted")]
        ),
    }
    row = db.execute("SELECT settings, tags, owner FROM windows WHERE id = ?", (window,)).fetchone()
    if row and row[2] != OWNER:
        raise ImportRefused("It changes a window that belongs to another person here.")
    own = with_current_names(json.loads(row[0])) if row else {}
    kept = {name: value for name, value in own.items() if name in DEVICE_SETTINGS}
    received = with_current_names(shared.settings)
    changed = {name: value for name, value in received.items() if name not in DEVICE_SETTINGS}
    values["settings"] = pack_json(changed | kept)
    before = json.loads(row[1]) if row else []
    values["tags"] = pack_json(
        [tag for tag in before if tag in shared.tags] + sorted(shared.tags.keys() - {*before})
    )
    values["inherits"] = pack_json(sorted(shared.inherits))
    if row is None:
        db.execute(
            f"INSERT INTO windows ({', '.join(values)}) VALUES ({', '.join(f':{name}' for name in values)})",
            values,
        )
    else:
        changes = ", ".join(f"{name} = :{name}" for name in values if name != "id")
        db.execute(f"UPDATE windows SET {changes} WHERE id = :id", values)
    return shared


# The state of a turn: which of its chunks are deleted, tagged or have negative feedback, and whether it is aside.
# A chunk is identified by its token offset in the turn, since chunks may be merged or split differently on each device.

_LABEL_QUERIES = {
    about: f"SELECT m.chunk, m.{text}, m.made FROM {table} m JOIN chunks c ON c.number = m.chunk WHERE c.turn = ? {whose}"
    for about, table, text, whose in (
        ("wrong", "wrong", "question", ""),
        ("tags", "chunk_tags", "tag", "AND m.owner = ''"),
    )
}


class _Row(NamedTuple):
    number: int
    at: int
    span: int
    merged: bool
    deleted: int | None
    undeleted: int | None


def _rows(db: Connection, turn: int) -> list[_Row]:
    rows = db.execute(
        "SELECT number, start, span, merged, deleted, undeleted FROM chunks WHERE turn = ? ORDER BY start, chunk",
        (turn,),
    ).fetchall()
    first = rows[0][1]
    return [
        _Row(number, start - first, span, merged is not None, deleted, undeleted)
        for number, start, span, merged, deleted, undeleted in rows
    ]


def _row_at(rows: list[_Row], at: int) -> _Row | None:
    """The chunk that contains the token at this offset of the turn."""
    return next((row for row in rows if not row.merged and row.at <= at < row.at + row.span), None)


def _offsets(registers: Registers, about: str) -> set[int]:
    return {int(path[1]) for path in registers if path[0] == about and len(path) > 1 and path[1].isdecimal()}


def turn_document(db: Connection, turn: int, known_registers: Registers | None) -> StampedDocument:
    rows, known = _rows(db, turn), known_registers or {}
    stamps: dict[Path, int] = {}
    gone: dict[str, Any] = {}
    for at in sorted({row.at for row in rows} | _offsets(known, "gone")):
        row = _row_at(rows, at)
        if row is not None:
            stamps["gone", str(at)] = max(row.deleted or 0, row.undeleted or 0)
            if row.deleted is not None:
                gone[str(at)] = True
    labels = {
        about: _labels_document(rows, known, about, _labels_in(db, turn, about), stamps)
        for about in _LABEL_QUERIES
    }
    unmarked = db.execute(
        """SELECT max(h.happened) FROM history h JOIN chunks c ON c.number = h.chunk
           WHERE c.turn = ? AND h.event = 'unmarked'""",
        (turn,),
    ).fetchone()[0]
    aside, when = _aside(db, turn, rows[0].number, known_registers)
    stamps["aside",] = when
    document = {"gone": gone, **labels, "aside": aside}
    return StampedDocument(
        {name: value for name, value in document.items() if value},
        lambda path: stamps.get(path, unmarked or 0 if path[0] == "wrong" else 0),
    )


def _labels_in(db: Connection, turn: int, about: str) -> dict[int, dict[str, int]]:
    """The labels of a turn's chunks, which are tags or queries of negative feedback, and their times, by chunk number."""
    found: dict[int, dict[str, int]] = {}
    for number, text, made in db.execute(_LABEL_QUERIES[about], (turn,)):
        found.setdefault(number, {})[text] = made
    return found


def _rows_by_offset(rows: list[_Row]) -> dict[int, _Row]:
    """The chunks by offset, without merged ones: their labels belong to the chunk that contains them."""
    return {row.at: row for row in rows if not row.merged}


def _labels_document(
    rows: list[_Row], known: Registers, about: str, held: dict[int, dict[str, int]], stamps: dict[Path, int]
) -> dict[str, Any]:
    """The labels as a document; their times go to `stamps`."""
    own, before = _rows_by_offset(rows), document_of(known).get(about, {})
    labels: dict[str, Any] = {}
    for at in sorted(own.keys() | _offsets(known, about)):
        row = own.get(at) or _row_at(rows, at)
        found = held.get(row.number, {}) if row else {}
        if at not in own:  # the chunk begins elsewhere here: only labels that were known at this offset
            found = {text: made for text, made in found.items() if text in before.get(str(at), {})}
        for text, made in found.items():
            labels.setdefault(str(at), {})[text] = True
            stamps[about, str(at), text] = made
    return labels


def _aside(db: Connection, turn: int, number: int, known: Registers | None) -> tuple[bool, int]:
    """Whether and when the user set the turn aside. A turn that was displaced by one from elsewhere does not count."""
    row = db.execute(
        """SELECT event, happened FROM history WHERE chunk = ? AND event IN ('aside', 'returned')
           ORDER BY happened DESC, id DESC LIMIT 1""",
        (number,),
    ).fetchone()
    known_aside = (known or {}).get(("aside",))
    if row is not None and (known_aside is None or row[1] > known_aside[0]):
        return row[0] == "aside", row[1]
    if known is not None:
        return (bool(known_aside[1]), known_aside[0]) if known_aside else (False, 0)
    return bool(db.execute("SELECT aside FROM turns WHERE id = ?", (turn,)).fetchone()[0]), 0


def apply_turn(db: Connection, turn: int, registers: Registers) -> None:
    document = document_of(registers)
    rows = _rows(db, turn)
    deleted = {at for at in _offsets(registers, "gone") if document.get("gone", {}).get(str(at)) is True}
    set_at = {
        int(path[1]): stamp for path, (stamp, _) in registers.items() if path[0] == "gone" and len(path) > 1
    }
    for row in rows:
        within = range(row.at, row.at + row.span)
        want = any(at in within for at in deleted)
        if row.merged or want == (row.deleted is not None):
            continue
        when = max((stamp for at, stamp in set_at.items() if at in within), default=0)
        if want:
            db.execute("UPDATE chunks SET deleted = ? WHERE number = ?", (when, row.number))
            hide_chunks(db, [row.number], "deleted", when)
            remove_from_search(db, [row.number])
        else:
            db.execute("UPDATE chunks SET deleted = NULL, undeleted = ? WHERE number = ?", (when, row.number))
            restore_chunks(db, [row.number])
        record_events(db, [(None, row.number, when, "deleted" if want else "undeleted", "{}")])
    changed: list[int] = []
    for about in _LABEL_QUERIES:
        changed += _apply_labels(db, turn, rows, registers, about)
    db.mark_changed(sorted({*changed}))


def _apply_labels(
    db: Connection, turn: int, rows: list[_Row], registers: Registers, about: str
) -> Iterator[int]:
    """Apply the labels of the registers to the chunks. Returns the numbers of changed chunks."""
    own, held = _rows_by_offset(rows), _labels_in(db, turn, about)
    wanted: dict[int, dict[str, int]] = {}
    for path, (stamp, set_) in registers.items():
        if path[0] == about and len(path) == 3 and path[1].isdecimal() and set_ == (True,):
            found = own.get(int(path[1])) or _row_at(rows, int(path[1]))
            if found is not None:
                wanted.setdefault(found.number, {})[path[2]] = stamp
    table, text = ("wrong", "question") if about == "wrong" else ("chunk_tags", "tag")
    whose = "" if about == "wrong" else "AND owner = ''"
    for row in rows:
        here, labels = held.get(row.number, {}), wanted.get(row.number, {})
        for gone in here.keys() - labels.keys():
            db.execute(f"DELETE FROM {table} WHERE chunk = ? AND {text} = ? {whose}", (row.number, gone))
            yield row.number
        for new in labels.keys() - here.keys():
            values = (row.number, new, labels[new])
            db.execute(f"INSERT INTO {table} (chunk, {text}, made) VALUES (?, ?, ?)", values)
            yield row.number


# Structured memory: the versions of an entry never change; the last one is the entry, unless it is deleted.


def _version_key(modified: int, content: str) -> str:
    canonical = json.dumps(json.loads(content), sort_keys=True)
    return f"{modified:020d}-{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"


def _modified(key: str) -> int:
    return int(key.partition("-")[0])


def _versions(db: Connection, path: str) -> dict[str, tuple[Any, ...]]:
    """The rows of an entry by the keys of their versions, in order. The last column is when the version ended."""
    rows = db.execute(
        f"""SELECT {ENTRY_COLUMNS}, NULL AS ended FROM entries WHERE owner = '' AND path = ?1
            UNION ALL SELECT {ENTRY_COLUMNS}, ended FROM entry_versions WHERE owner = '' AND path = ?1""",
        (path,),
    ).fetchall()
    found = {_version_key(row[6], row[1]): row for row in sorted(rows, key=lambda row: row[8])}
    return dict(sorted(found.items()))


def entry_document(db: Connection, path: str, known: Registers | None) -> StampedDocument:
    before = document_of(known or {})
    versions: dict[str, Any] = {}
    ended: dict[str, int | None] = {}
    for key, row in _versions(db, path).items():
        _, content, snapshot, model, vectors, created, modified, _, _, end = row
        versions[key] = before.get("versions", {}).get(key) or {
            "content": json.loads(content),
            "snapshot": [_part_with_shared_ids(db, part) for part in json.loads(snapshot)],
            "model": model,
            "vectors": base64.b64encode(vectors).decode(),
            "created": iso_time(created),
            "modified": iso_time(modified),
        }
        ended[key] = end
    last = next(reversed(ended), None)
    dead = {key: True for key in before.get("dead", {}) if key in versions and key != last}
    deleted_between = [key for key, after in pairwise(ended) if (ended[key] or 0) < _modified(after)]
    dead |= dict.fromkeys(deleted_between, True)  # it was deleted before there was another version
    if last is not None and ended[last] is not None:
        dead[last] = True
    when = max([_modified(key) for key in versions] + [one for one in ended.values() if one])
    stamps: dict[Path, int] = {("dead", key): ended[key] or 0 for key in deleted_between}
    return StampedDocument(
        {"versions": versions} | ({"dead": dead} if dead else {}), lambda path: stamps.get(path, when)
    )


def apply_entry(db: Connection, path: str, registers: Registers) -> None:
    document = document_of(registers)
    received: dict[str, Any] = document.get("versions", {})
    here = _versions(db, path)
    keys = sorted(received.keys() | here.keys())
    dead = document.get("dead", {})
    parsed = {
        key: read_element(
            "entry",
            EntryIn,
            {
                "path": path,
                "versions": [{**received[key], "version": 1, "accessed": received[key].get("modified")}],
            },
        ).versions[0]
        for key in keys
        if key in received
    }
    for key, version in parsed.items():
        if _version_key(version.modified, pack_json(version.content)) != key:
            raise ImportRefused(f"A version of the entry {path!r} does not match its key.")
    db.execute("DELETE FROM entries WHERE owner = '' AND path = ?", (path,))
    db.execute("DELETE FROM entry_versions WHERE owner = '' AND path = ?", (path,))
    parent, _, heading = path.rpartition("/")
    first = min(version.created for version in parsed.values()) if parsed else 0
    for number, key in enumerate(keys, 1):
        modified, end = _modified(key), _modified(keys[number]) if number < len(keys) else None
        if dead.get(key):
            end = min(registers["dead", key][0], LATEST if end is None else end)
        if key in here:
            row = list(here[key][:9])
        else:
            one = parsed[key]
            snapshot = pack_json([_part_with_local_ids(db, part) for part in one.snapshot])
            row = [
                path,
                pack_json(one.content),
                snapshot,
                one.model,
                one.vectors,
                one.created,
                modified,
                modified,
                0,
            ]
        row[5] = min(row[5], first or row[5])
        row[8] = number
        if end is None:
            db.execute(
                f"INSERT INTO entries ({ENTRY_COLUMNS}, parent, heading) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, parent, heading),
            )
        else:
            db.execute(
                f"INSERT INTO entry_versions ({ENTRY_COLUMNS}, ended) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, end),
            )


def _part_with_shared_ids(db: Connection, part: dict[str, Any]) -> dict[str, Any]:
    """A chunk of a snapshot, with its turn identified by where it was said first."""
    if not part.get("key"):
        return part
    turn, chunk, role = ChunkKey.parse(part["key"])
    known = db.execute("SELECT 1 FROM turns WHERE id = ?", (turn,)).fetchone()
    return (
        {**part, "key": None, "of": [turn_identity(db, turn), chunk, str(role)]}
        if known
        else {**part, "key": None}
    )


def _part_with_local_ids(db: Connection, part: dict[str, Any]) -> dict[str, Any]:
    part_here = {name: value for name, value in part.items() if name != "of"}
    try:
        name, chunk, role = part["of"]
        turn = local_turn(db, name)
        return (
            part_here if turn is None else {**part_here, "key": str(ChunkKey.parse(f"{turn}.{chunk}.{role}"))}
        )
    except (KeyError, ValueError, TypeError):
        return part_here


# Notes and settings


def note_document(db: Connection, name: str, known: Registers | None) -> StampedDocument:
    content, modified = db.execute(
        "SELECT content, modified FROM notes WHERE owner = '' AND name = ?", (name,)
    ).fetchone()
    return StampedDocument(json.loads(content), lambda path: modified)


def apply_note(db: Connection, name: str, registers: Registers) -> None:
    when = max(stamp for stamp, _ in registers.values())
    row = db.execute("SELECT created FROM notes WHERE owner = '' AND name = ?", (name,)).fetchone()
    created = row[0] if row else when
    times = {"created": iso_time(created), "modified": iso_time(when)}
    found = read_element("note", NoteIn, {"name": name, "content": document_of(registers), **times})
    db.execute("DELETE FROM notes WHERE owner = '' AND name = ?", (name,))
    db.execute(
        "INSERT INTO notes (name, content, created, modified) VALUES (?, ?, ?, ?)",
        (name, pack_json(found.content), created, when),
    )


def setting_document(db: Connection, key: str, known: Registers | None) -> StampedDocument:
    value, modified = db.execute(
        "SELECT value, modified FROM settings WHERE owner = '' AND key = ?", (key,)
    ).fetchone()
    found = json.loads(value)
    return StampedDocument(found if isinstance(found, dict) else {}, lambda path: modified)


def apply_setting(db: Connection, key: str, registers: Registers) -> None:
    if key not in PERSONAL:
        return
    when = max(stamp for stamp, _ in registers.values())
    db.execute("DELETE FROM settings WHERE owner = '' AND key = ?", (key,))
    db.execute(
        "INSERT INTO settings (key, value, modified) VALUES (?, ?, ?)",
        (key, pack_json(document_of(registers)), when),
    )


DOCUMENT_READERS: Mapping[Kind, Callable[[Connection, Any, Registers | None], StampedDocument]] = {
    "window": window_document,
    "turn": turn_document,
    "entry": entry_document,
    "note": note_document,
    "setting": setting_document,
}


def keys_of(db: Connection, kind: Kind) -> list[str]:
    """The keys of a kind, except turns."""
    if kind == "setting":
        return [
            key
            for (key,) in db.execute("SELECT key FROM settings WHERE owner = '' ORDER BY key")
            if key in PERSONAL
        ]
    statement = {
        "window": "SELECT id FROM windows WHERE owner = '' ORDER BY created, id",
        "entry": """SELECT path FROM entries WHERE owner = ''
            UNION SELECT path FROM entry_versions WHERE owner = '' ORDER BY 1""",
        "note": "SELECT name FROM notes WHERE owner = '' ORDER BY name",
    }[kind]
    return [key for (key,) in db.execute(statement)]
