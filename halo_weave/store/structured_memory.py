"""Structured memory, notes and stored settings."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from halo_weave.errors import BadInput
from halo_weave.settings import SHARED_KEY, with_current_names
from halo_weave.store.access import StoreHandle, own_data
from halo_weave.store.database import Connection
from halo_weave.store.encoding import maybe_moment, micros, moment, pack_floats, unpack_floats
from halo_weave.store.records import Json, MemoryEntry, Note, Vectors
from halo_weave.store.rows import merged_settings, pack_json

ENTRY_COLUMNS = "path, content, snapshot, model, vectors, created, modified, accessed, version"


class SqlStructuredMemory(StoreHandle):
    # Structured memory. Paths look like "Project/Goals/First".

    @own_data
    def entry(self, path: str, *, now: datetime | None = None) -> MemoryEntry | None:
        """An entry, or None. With `now`, it counts as accessed then."""
        if now is not None:
            with self._db.writing() as db:
                db.execute(
                    "UPDATE entries SET accessed = ? WHERE owner = ? AND path = ?",
                    (micros(now), self._owner, path),
                )
        with self._db.querying() as db:
            row = db.execute(
                f"SELECT {ENTRY_COLUMNS}, NULL FROM entries WHERE owner = ? AND path = ?", (self._owner, path)
            ).fetchone()
        return _entry(row) if row else None

    @own_data
    def save_entry(
        self,
        path: str,
        content: Json,
        *,
        now: datetime,
        snapshot: Sequence[Mapping[str, Json]] = (),
        vectors: Vectors | None = None,
        model: str = "",
    ) -> MemoryEntry:
        """Create an entry or a new version of it; the older version is kept."""
        parent, _, heading = path.rpartition("/")
        if not heading:
            raise BadInput(f"{path!r} does not name an entry. A path looks like Project/Goals/First.")
        if vectors is not None and len(vectors) != len(snapshot):
            raise BadInput(f"{len(vectors)} vectors came with {len(snapshot)} chunks of the snapshot.")
        blob = b"" if vectors is None else pack_floats(vectors)
        when = micros(now)
        with self._db.writing(durable=True) as db:
            version, created = _end_version(db, self._owner, path, when)
            db.execute(
                f"INSERT INTO entries ({ENTRY_COLUMNS}, parent, heading, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    path,
                    pack_json(content),
                    pack_json([dict(chunk) for chunk in snapshot]),
                    model,
                    blob,
                    created or when,
                    when,
                    when,
                    version + 1,
                    parent,
                    heading,
                    self._owner,
                ),
            )
            row = db.execute(
                f"SELECT {ENTRY_COLUMNS}, NULL FROM entries WHERE owner = ? AND path = ?", (self._owner, path)
            ).fetchone()
        return _entry(row)

    @own_data
    def entries(self, under: str = "") -> list[MemoryEntry]:
        """Entries below a path, sorted by path; all of them for an empty path."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {ENTRY_COLUMNS}, NULL FROM entries
                    WHERE owner = :owner AND (:under = '' OR path > :under || '/' AND path < :under || '0')
                    ORDER BY path""",
                {"under": under, "owner": self._owner},
            ).fetchall()
        return [_entry(row) for row in rows]

    @own_data
    def entry_paths(self, under: str = "") -> list[tuple[str, int, datetime]]:
        """Path, version and time of change of the entries below a path, without their content."""
        with self._db.querying() as db:
            rows = db.execute(
                """SELECT path, version, modified FROM entries
                   WHERE owner = :owner AND (:under = '' OR path > :under || '/' AND path < :under || '0')
                    ORDER BY path""",
                {"under": under, "owner": self._owner},
            ).fetchall()
        return [(path, version, moment(modified)) for path, version, modified in rows]

    @own_data
    def delete_entry(self, path: str, *, now: datetime, recursive: bool = False) -> int:
        """Delete an entry and, on request, all below it. Their versions are kept. Returns the number of deleted
        entries."""
        with self._db.writing(durable=True) as db:
            below = "OR path > :path || '/' AND path < :path || '0'" if recursive else ""
            paths = db.execute(
                f"SELECT path FROM entries WHERE owner = :owner AND (path = :path {below})",
                {"path": path, "owner": self._owner},
            ).fetchall()
            for (one,) in paths:
                _end_version(db, self._owner, one, micros(now))
        return len(paths)

    @own_data
    def entry_versions(self, path: str) -> list[MemoryEntry]:
        """Older versions, newest first."""
        with self._db.querying() as db:
            rows = db.execute(
                f"""SELECT {ENTRY_COLUMNS}, ended FROM entry_versions WHERE owner = ? AND path = ?
                    ORDER BY version DESC""",
                (self._owner, path),
            ).fetchall()
        return [_entry(row) for row in rows]

    # Notes: JSON documents by name

    @own_data
    def note(self, name: str) -> Note | None:
        with self._db.querying() as db:
            row = db.execute(
                "SELECT name, content, created, modified FROM notes WHERE owner = ? AND name = ?",
                (self._owner, name),
            ).fetchone()
        return _note(row) if row else None

    @own_data
    def notes(self) -> list[Note]:
        with self._db.querying() as db:
            rows = db.execute(
                "SELECT name, content, created, modified FROM notes WHERE owner = ? ORDER BY name",
                (self._owner,),
            ).fetchall()
        return [_note(row) for row in rows]

    @own_data
    def save_note(
        self, name: str, content: Json, *, now: datetime, unless_modified_since: datetime | None = None
    ) -> Note:
        """Write a note. With `unless_modified_since`, refused if another process wrote it after that time."""
        with self._db.writing(durable=True) as db:
            row = db.execute(
                "SELECT modified FROM notes WHERE owner = ? AND name = ?", (self._owner, name)
            ).fetchone()
            if row and unless_modified_since is not None and row[0] > micros(unless_modified_since):
                raise BadInput(f"The note {name!r} was changed meanwhile. Read it again, then write.")
            row = db.execute(
                """INSERT INTO notes (owner, name, content, created, modified) VALUES (?, ?, ?, ?, ?)
                   ON CONFLICT (owner, name) DO UPDATE SET content = excluded.content, modified = excluded.modified
                   RETURNING name, content, created, modified""",
                (self._owner, name, pack_json(content), micros(now), micros(now)),
            ).fetchone()
        return _note(row)

    # Settings for all windows

    @own_data
    def settings(self) -> dict[str, Json]:
        """The settings for all windows, by key."""
        with self._db.querying() as db:
            rows = db.execute(
                "SELECT key, value FROM settings WHERE owner = ? ORDER BY key", (self._owner,)
            ).fetchall()
        return {key: json.loads(value) for key, value in rows}

    @own_data
    def change_settings(
        self, key: str, changes: Mapping[str, Json], reset: Collection[str] = (), *, now: datetime
    ) -> None:
        """Change settings under a key; those in `reset` are removed, others stay."""
        with self._db.writing(durable=True) as db:
            row = db.execute(
                "SELECT value FROM settings WHERE owner = ? AND key = ?", (self._owner, key)
            ).fetchone()
            stored = json.loads(row[0]) if row else {}
            stored = stored if isinstance(stored, dict) else {}
            if key == SHARED_KEY:
                stored = with_current_names(stored)
            values = merged_settings(stored, changes, reset)
            db.execute(
                """INSERT INTO settings (owner, key, value, modified) VALUES (?, ?, ?, ?)
                   ON CONFLICT (owner, key) DO UPDATE SET value = excluded.value, modified = excluded.modified""",
                (self._owner, key, pack_json(values), micros(now)),
            )


def _end_version(db: Connection, owner: str, path: str, when: int) -> tuple[int, int | None]:
    """Move the current version to the older ones. Returns its number, and when the entry was created."""
    row = db.execute(
        """INSERT INTO entry_versions
               (owner, path, version, content, snapshot, model, vectors, created, modified, accessed, ended)
           SELECT owner, path, version, content, snapshot, model, vectors, created, modified, accessed, ?
           FROM entries WHERE owner = ? AND path = ? RETURNING created""",
        (when, owner, path),
    ).fetchone()
    db.execute("DELETE FROM entries WHERE owner = ? AND path = ?", (owner, path))
    version = db.execute(
        "SELECT coalesce(max(version), 0) FROM entry_versions WHERE owner = ? AND path = ?", (owner, path)
    ).fetchone()[0]
    return version, row[0] if row else None


def _entry(row: tuple[Any, ...]) -> MemoryEntry:
    path, content, snapshot, model, blob, created, modified, accessed, version, ended = row
    chunks = json.loads(snapshot)
    vectors = unpack_floats(blob)
    shaped = vectors.reshape(len(chunks), -1) if len(vectors) else np.zeros((0, 0), np.float32)
    return MemoryEntry(
        path,
        json.loads(content),
        tuple(chunks),
        model,
        shaped,
        moment(created),
        moment(modified),
        moment(accessed),
        version,
        maybe_moment(ended),
    )


def _note(row: tuple[Any, ...]) -> Note:
    return Note(row[0], json.loads(row[1]), moment(row[2]), moment(row[3]))
