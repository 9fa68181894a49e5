"""The store's port for what belongs to someone: keepsakes, tags, the people themselves, and what they share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from halo_weave.core.tokens import ChunkKey
from halo_weave.records import OWNER, Json, MemoryEntry, Note, Person, Reach, Share, Vectors


class Keepsakes(Protocol):
    """What the AI and the user keep on purpose: structured memory, notes, settings."""

    def kept_by(self, owner: str) -> Keepsakes:
        """The same of another person: nobody reaches the keepsakes of somebody else."""

    def entry(self, path: str, *, now: datetime | None = None) -> MemoryEntry | None:
        """An entry, or None. With `now`, it counts as accessed then."""

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
        """Make an entry or a new version of it; the older version is kept."""

    def entries(self, under: str = "") -> list[MemoryEntry]:
        """Entries below a path, in order of paths; all of them for an empty one."""

    def entry_paths(self, under: str = "") -> list[tuple[str, int, datetime]]:
        """Path, version and time of change of the entries below a path, without reading what they hold."""

    def entry_versions(self, path: str) -> list[MemoryEntry]:
        """Older versions, newest first."""

    def delete_entry(self, path: str, *, now: datetime, recursive: bool = False) -> int:
        """Delete an entry and, on request, all below it. Their versions are kept. Returns how many went."""

    def note(self, name: str) -> Note | None: ...
    def notes(self) -> list[Note]: ...
    def save_note(
        self, name: str, content: Json, *, now: datetime, unless_modified_since: datetime | None = None
    ) -> Note:
        """Write a note. With `unless_modified_since`, refused if another process wrote it after that time."""

    def settings(self) -> dict[str, Json]:
        """What holds for all windows, by key."""

    def change_settings(
        self, key: str, changes: Mapping[str, Json], reset: Collection[str] = (), *, now: datetime
    ) -> None:
        """Change these of the settings that stand under a key; those to `reset` go, the others stay."""


class People(Protocol):
    """Who has a memory here, with which key, and what they share. The owner of the server is `records.OWNER`."""

    def people(self) -> list[Person]:
        """All that were ever added, by name; the owner is not among them."""

    def several(self) -> bool:
        """Whether anybody was ever added."""

    def add_person(self, name: str, key_hash: str, *, now: datetime) -> Person:
        """Someone new, or someone whose key was revoked, with a new one: their memory is still there."""

    def revoke_person(self, name: str, *, now: datetime) -> Person:
        """Their key opens nothing any more. Their memory stays."""

    def key_hashes(self, start: str) -> list[tuple[str, str]]:
        """Hashes of the keys in use that start like this, each with the id of its person."""

    def key_mark(self, person: str) -> str | None:
        """By which someone's key is told from an earlier one; empty for the owner, None for who has no key."""

    def share(self, owner: str, window_id: str, person: str, *, writes: bool, now: datetime) -> Share:
        """Someone may read a window of the owner's, or write there; with an empty id, in all of theirs."""

    def unshare(self, owner: str, window_id: str, person: str) -> bool:
        """What was shared is not any more, and leaves the windows that only had it by that. Whether it was shared."""

    def shares(self) -> list[Share]: ...
    def reach(self, person: str) -> Reach:
        """The windows that someone may read and write, deleted ones too."""

    def readers(self, window_id: str) -> tuple[str, ...]:
        """Who may read a window besides the one it belongs to."""

    def turn_windows(self, turns: Iterable[int]) -> dict[int, str]:
        """Where turns were said; unknown ones are left out."""


class Tags(Protocol):
    """Tags of chunks. Each person has their own; nobody sees another's. A deleted chunk has none until it is undeleted."""

    def tag_chunk(self, key: ChunkKey, tags: Sequence[str], *, now: datetime, owner: str = OWNER) -> None:
        """These are its tags from now on."""

    def chunk_tags(self, keys: Iterable[ChunkKey], *, owner: str = OWNER) -> dict[ChunkKey, tuple[str, ...]]:
        """The tags of those that have any, in order."""

    def tagged(self, tags: Collection[str], *, owner: str = OWNER) -> dict[ChunkKey, int]:
        """The chunks that have one of these tags, with their numbers."""

    def tag_counts(self, *, owner: str = OWNER) -> dict[str, int]:
        """How many chunks that someone may read have each of their tags."""
