"""People: hashed keys, shares, and the windows that each person may read and write."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any

from halo_weave.errors import BadInput, UnknownPerson
from halo_weave.store.access import StoreHandle, server_only
from halo_weave.store.database import Connection
from halo_weave.store.encoding import maybe_moment, micros, moment
from halo_weave.store.exchange_format import PersonIn, ShareIn
from halo_weave.store.records import OWNER, OWNER_NAME, Access, Person, Share
from halo_weave.store.rows import READABLE_WINDOWS, check_window

PERSON_COLUMNS = "id, name, created, revoked"


class SqlPeople(StoreHandle):
    @server_only
    def people(self) -> list[Person]:
        """All people that were ever added, by name, without the owner."""
        with self._db.querying() as db:
            rows = db.execute(f"SELECT {PERSON_COLUMNS} FROM people ORDER BY name").fetchall()
        return [_person(row) for row in rows]

    @server_only
    def several(self) -> bool:
        """Whether any person was ever added."""
        with self._db.querying() as db:
            return db.execute("SELECT 1 FROM people LIMIT 1").fetchone() is not None

    @server_only
    def add_person(self, name: str, key_hash: str, *, now: datetime) -> Person:
        """Add a person, or give a new key to one whose key was revoked: their memory still exists."""
        if name == OWNER_NAME:
            raise BadInput(f"{OWNER_NAME!r} is the name of the server's owner. Choose another name.")
        with self._db.writing(durable=True) as db:
            known = db.execute("SELECT key_hash FROM people WHERE name = ?", (name,)).fetchone()
            if known is not None and known[0] is not None:
                raise BadInput(f"{name!r} has a key already. Revoke it first, then add them again.")
            row = db.execute(
                f"""INSERT INTO people (id, name, key_hash, created) VALUES (?, ?, ?, ?)
                    ON CONFLICT (name) DO UPDATE SET key_hash = excluded.key_hash, revoked = NULL
                    RETURNING {PERSON_COLUMNS}""",
                (secrets.token_hex(8), name, key_hash, micros(now)),
            ).fetchone()
        return _person(row)

    @server_only
    def revoke_person(self, name: str, *, now: datetime) -> Person:
        """Revoke a person's key. Their memory stays."""
        with self._db.writing(durable=True) as db:
            row = db.execute(
                f"UPDATE people SET key_hash = NULL, revoked = ? WHERE name = ? RETURNING {PERSON_COLUMNS}",
                (micros(now), name),
            ).fetchone()
        if row is None:
            raise UnknownPerson(f"There is nobody called {name!r}. To see all people: halo-weave people list")
        return _person(row)

    @server_only
    def key_hashes(self, start: str) -> list[tuple[str, str]]:
        """Hashes of valid keys with this beginning, each with the person's id."""
        with self._db.querying() as db:
            return db.execute(
                "SELECT key_hash, id FROM people WHERE key_hash >= ?1 AND key_hash < ?1 || 'g'", (start,)
            ).fetchall()

    @server_only
    def key_mark(self, person: str) -> str | None:
        """Identifies a person's current key; it changes with the key. Empty for the owner; None: the person has no key."""
        if person == OWNER:
            return ""
        with self._db.querying() as db:
            row = db.execute("SELECT substr(key_hash, 1, 16) FROM people WHERE id = ?", (person,)).fetchone()
        return row[0] if row else None

    # Sharing

    @server_only
    def share(self, owner: str, window_id: str, person: str, *, writes: bool, now: datetime) -> Share:
        """Let someone read a window of the owner, or write in it; with an empty id, all of the owner's windows."""
        if owner == person:
            raise BadInput("It is theirs already.")
        with self._db.writing(durable=True) as db:
            if window_id:
                _check_own(db, owner, window_id)
            row = db.execute(
                """INSERT INTO shares (owner, window, person, writes, made) VALUES (?, ?, ?, ?, ?)
                   ON CONFLICT (person, owner, window) DO UPDATE SET writes = excluded.writes
                   RETURNING owner, window, person, writes, made""",
                (owner, window_id, person, int(writes), micros(now)),
            ).fetchone()
        return _share(row)

    @server_only
    def unshare(self, owner: str, window_id: str, person: str) -> bool:
        """End a share, and remove its chunks from windows that had them only by it. Returns whether it existed."""
        with self._db.writing(durable=True) as db:
            gone = db.execute(
                "DELETE FROM shares WHERE person = ? AND owner = ? AND window = ? RETURNING person",
                (person, owner, window_id),
            ).fetchone()
            # Its chunks are removed from all windows that this person reads, except the owner's own. A reply that another
            # server is writing there is stopped: its context may contain them, or it may resurrect them again.
            others = f"SELECT id FROM windows WHERE id IN ({READABLE_WINDOWS}) AND owner <> :owner"
            values = {"reader": person, "owner": owner}
            if gone is not None:
                db.fence([window for (window,) in db.execute(others, values).fetchall()])
            for table in ("live", "asleep"):
                db.execute(
                    f"""DELETE FROM {table} WHERE window IN ({READABLE_WINDOWS})
                        AND window NOT IN (SELECT id FROM windows WHERE owner = :owner)
                        AND chunk IN (SELECT c.number FROM chunks c JOIN windows w ON w.id = c.window
                                      WHERE w.owner = :owner AND w.id NOT IN ({READABLE_WINDOWS}))""",
                    values,
                )
        return gone is not None

    @server_only
    def shares(self) -> list[Share]:
        with self._db.querying() as db:
            rows = db.execute(
                "SELECT owner, window, person, writes, made FROM shares ORDER BY owner, window, person"
            ).fetchall()
        return [_share(row) for row in rows]

    @server_only
    def access_of(self, person: str) -> Access:
        """The windows that a person may read and write, deleted ones too."""
        with self._db.reading() as db:
            own = frozenset(one for (one,) in db.execute("SELECT id FROM windows WHERE owner = ?", (person,)))
            rows = db.execute(
                """SELECT w.id, max(s.writes) FROM shares s
                   JOIN windows w ON w.owner = s.owner AND (s.window = '' OR s.window = w.id)
                   WHERE s.person = ? GROUP BY w.id""",
                (person,),
            ).fetchall()
        writable = {window_id for window_id, writes in rows if writes}
        return Access(person, own, own.union(one for one, _ in rows), own | writable)

    @server_only
    def readers(self, window_id: str) -> tuple[str, ...]:
        """Who may read a window besides its owner."""
        with self._db.querying() as db:
            rows = db.execute(
                """SELECT DISTINCT s.person FROM windows w
                   JOIN shares s ON s.owner = w.owner AND (s.window = '' OR s.window = w.id)
                   LEFT JOIN people p ON p.id = s.person
                   WHERE w.id = ? AND (s.person = '' OR p.key_hash IS NOT NULL)""",
                (window_id,),
            ).fetchall()
        return tuple(person for (person,) in rows)


class ImportedPeople:
    """The people of an import. They get no keys, and no share gives access to memory that was here before."""

    def __init__(self) -> None:
        self._local_ids = {OWNER: OWNER}  # by ids in the file
        self._new: set[str] = set()
        self.windows: set[str] = set()  # windows that this import has created

    def owner(self, person: str) -> str:
        """The id here of a person in the file; data without a known person belongs to the owner."""
        return self._local_ids.get(person, OWNER)

    def add(self, db: Connection, person: PersonIn) -> None:
        if person.name == OWNER_NAME:
            return
        row = db.execute("SELECT id FROM people WHERE name = ?", (person.name,)).fetchone()
        if row is None:
            taken = db.execute("SELECT 1 FROM people WHERE id = ?", (person.id,)).fetchone()
            row = (secrets.token_hex(8) if taken else person.id,)
            db.execute(
                "INSERT INTO people (id, name, created, revoked) VALUES (?, ?, ?, ?)",
                (*row, person.name, person.created, person.created),
            )
            self._new.add(row[0])
        self._local_ids[person.id] = row[0]

    def add_share(self, db: Connection, share: ShareIn) -> None:
        owner, person = self.owner(share.owner), self.owner(share.person)
        is_new = share.window in self.windows if share.window else owner in self._new
        if is_new and owner != person and {share.owner, share.person} <= self._local_ids.keys():
            db.execute(
                """INSERT INTO shares (owner, window, person, writes, made) VALUES (?, ?, ?, ?, ?)
                   ON CONFLICT DO NOTHING""",
                (owner, share.window, person, int(share.writes), share.made),
            )


def _check_own(db: Connection, owner: str, window_id: str) -> None:
    check_window(db, window_id)
    if db.execute("SELECT owner FROM windows WHERE id = ?", (window_id,)).fetchone() != (owner,):
        raise BadInput("Only the owner of a window can share it.")


def _person(row: tuple[Any, ...]) -> Person:
    return Person(row[0], row[1], moment(row[2]), maybe_moment(row[3]))


def _share(row: tuple[Any, ...]) -> Share:
    owner, window, person, writes, made = row
    return Share(owner, window, person, bool(writes), moment(made))
