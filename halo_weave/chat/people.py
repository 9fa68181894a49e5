"""People, their keys, and what they share."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from halo_weave.chat.windows import window_name
from halo_weave.errors import BadInput, NotYours, UnknownPerson
from halo_weave.store.records import OWNER, OWNER_NAME, Person, Share
from halo_weave.store.sql_store import SqlStore

_PREFIX = "hw_"  # makes keys recognisable, such as in a log or a commit
_START = 8  # characters of a hash that the store looks up


@dataclass(frozen=True, slots=True)
class NamedShare:
    """A share by names instead of ids. An empty window: all windows of the owner."""

    owner: str
    window: str
    window_name: str
    person: str
    writes: bool
    made: datetime


class People:
    """`weave.people`: people, keys and shares. With the access of a person, only what they own or what concerns them."""

    def __init__(
        self,
        store: SqlStore,
        now: Callable[[], datetime],
        *,
        changed: Callable[[Iterable[str]], None] = lambda windows: None,
        person: str | None = None,
        reached: SqlStore | None = None,
    ) -> None:
        """`changed` is called with the windows whose content has changed. `reached`: the store with the person's
        access."""
        self._store, self._now, self._changed = store, now, changed
        self._person, self._reached = person, reached or store

    # Keys. They are 256 random bits, so one fast hash is enough: there is nothing to guess that a slow one would save.

    def add(self, name: str) -> tuple[Person, str]:
        """Add a person with a memory of their own, or give a new key to one whose key was revoked. The key is returned
        only once."""
        self._runs_it()
        key = _PREFIX + secrets.token_urlsafe(32)
        return self._store.add_person(window_name(name), _hash(key), now=self._now()), key

    def revoke(self, name: str) -> Person:
        """Revoke a person's key. Their memory stays."""
        self._runs_it()
        return self._store.revoke_person(name, now=self._now())

    def list(self) -> list[Person]:
        return self._store.people()

    def several(self) -> bool:
        """Whether any person was ever added: from then on everybody needs a key."""
        return self._store.several()

    def by_key(self, key: str) -> str | None:
        """The id of the person with this key."""
        key_hash = _hash(key)
        # Few hashes have the same beginning, and the time of the lookup reveals nothing of the key.
        for known, person in self._store.key_hashes(key_hash[:_START]):
            if hmac.compare_digest(known, key_hash):
                return person
        return None

    def key_mark(self, person: str) -> str | None:
        """Identifies a person's current key; it changes with the key. Empty for the owner; None: the person has no key."""
        return self._store.key_mark(person)

    def reads(self, person: str) -> frozenset[str]:
        """The windows that a person may read."""
        return self._store.access_of(person).readable

    # Sharing

    def share(
        self, window_id: str, name: str, *, writes: bool = False, owner: str | None = None
    ) -> NamedShare:
        """Let someone read a window, or write in it too; with an empty id, all windows of the owner."""
        whose, person = self._parties(window_id, name, owner)
        made = self._store.share(whose, window_id, person, writes=writes, now=self._now())
        return self._named([made])[0]

    def unshare(self, window_id: str, name: str, *, owner: str | None = None) -> bool:
        whose, person = self._parties(window_id, name, owner)
        changed = self._store.unshare(whose, window_id, person)
        if changed:
            self._changed(self._store.access_of(person).own)
        return changed

    def shares(self) -> Sequence[NamedShare]:
        """All shares, or those that a person gave or got."""
        found = self._store.shares()
        return self._named(
            [one for one in found if self._person is None or self._person in (one.owner, one.person)]
        )

    def _parties(self, window_id: str, name: str, owner: str | None) -> tuple[str, str]:
        """The ids of the person who shares and of the one who gets the share."""
        if window_id:
            whose = self._reached.window(window_id).owner
        else:
            whose = self._id_of(owner) if owner is not None else self._person or OWNER
        if self._person is not None and whose != self._person:
            raise NotYours("Only the owner of a window can share it.")
        person = self._id_of(name)
        if person == whose:
            raise BadInput("Share it with somebody else: it is theirs already.")
        return whose, person

    def _id_of(self, name: str) -> str:
        if name == OWNER_NAME:
            return OWNER
        for person in self._store.people():
            if person.name == name:
                return person.id
        raise UnknownPerson(
            f"There is nobody called {name!r} here. Whoever runs the server knows the names: halo-weave people list"
        )

    def name_of(self, person: str) -> str:
        """The name of a person; the owner has no name of their own."""
        return {one.id: one.name for one in self._store.people()}.get(person, OWNER_NAME)

    def _named(self, found: Sequence[Share]) -> Sequence[NamedShare]:
        people = {OWNER: OWNER_NAME, **{person.id: person.name for person in self._store.people()}}
        names = self._store.window_names() if found else {}
        return [
            NamedShare(
                people.get(one.owner, "?"),
                one.window,
                names.get(one.window, ""),
                people.get(one.person, "?"),
                one.writes,
                one.made,
            )
            for one in found
        ]

    def _runs_it(self) -> None:
        if self._person not in (None, OWNER):
            raise NotYours("Only the owner of this server may do this.")


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
