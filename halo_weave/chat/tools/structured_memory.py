"""The structured memory: entries under headings, each with a snapshot of the chunks that explain it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import datetime

from halo_weave.chat.tools.calls import CONTEXT_TOKENS, RECENCY_BIAS, Json, json_size
from halo_weave.core.terms import terms
from halo_weave.core.tokens import ChunkKey
from halo_weave.core.validation import checked_path, is_root
from halo_weave.engines.base import Embedder
from halo_weave.errors import BadInput, UnknownMemory
from halo_weave.store.records import MemoryEntry
from halo_weave.store.sql_store import SqlStore

CONTENT_LIMIT = 64 << 10  # bytes
CANDIDATES = 50  # chunks looked at for a snapshot
QUERY_LENGTH = 200  # characters of the content that search for its snapshot
DECAY_DAYS = 30.0  # unless the settings say otherwise
RELEVANT = 0.5  # least similarity at which a snapshot's chunk is shown with its entry
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A full copy of a chunk that explains an entry: it stays even if the chunk is deleted."""

    key: ChunkKey | None  # None: an import brought the entry without the turn
    text: str
    tokens: int
    similarity: float  # why it was chosen
    said: str | None = None  # ISO time


# (text, limit, windows or all) -> the chunks that explain it, the most relevant first
SnapshotSearch = Callable[[str, int, frozenset[str] | None], Iterable[SnapshotChunk]]


@dataclass(frozen=True, slots=True)
class SavedEntry:
    """An entry of the structured memory, or an older version of it."""

    path: str
    content: Json
    snapshot: tuple[SnapshotChunk, ...]
    created: datetime
    modified: datetime
    accessed: datetime
    version: int
    ended: datetime | None = None

    @property
    def keys(self) -> tuple[ChunkKey, ...]:
        """The chunks of its snapshot that can be resurrected, most relevant first."""
        return tuple(chunk.key for chunk in self.snapshot if chunk.key is not None)


@dataclass(frozen=True, slots=True)
class HeadingMatch:
    """An entry below a heading, and how well it matches a query."""

    entry: SavedEntry
    score: float
    similarity: float
    recency: float
    relevant: tuple[SnapshotChunk, ...] = ()  # chunks of its snapshot that match the query, best first


@dataclass(frozen=True, slots=True)
class HeadingNode:
    """A heading: an entry, a parent of other headings, or both."""

    heading: str
    path: str
    version: int | None = None  # None: there is no entry at this path, only below it
    modified: datetime | None = None
    children: tuple[HeadingNode, ...] = ()
    content: Json = None  # only if it was asked for

    @property
    def entries(self) -> int:
        return (self.version is not None) + sum(child.entries for child in self.children)


class StructuredMemory:
    """Saves, finds, lists and deletes entries. Without search there are no snapshots; without an embedder, entries are
    matched by words."""

    def __init__(
        self,
        store: SqlStore,
        *,
        search: SnapshotSearch | None = None,
        embedder: Embedder | Callable[[], Embedder | None] | None = None,
    ) -> None:
        self._store = store
        self._search = search
        self._open_embedder = embedder if callable(embedder) else lambda: embedder
        self._within: frozenset[str] | None = None  # windows whose chunks may explain an entry; None: all

    def of(self, store: SqlStore, within: frozenset[str] | None = None) -> StructuredMemory:
        """The structured memory of another person; entries saved in it are explained by chunks of these windows only."""
        other = copy(self)
        other._store, other._within = store, within
        return other

    def save(
        self,
        path: str,
        content: Json,
        *,
        now: datetime,
        context_tokens: int = CONTEXT_TOKENS,
        within: frozenset[str] | None = None,
        source: Sequence[SnapshotChunk] = (),
    ) -> SavedEntry:
        """Create an entry or a new version of it, with the chunks that explain it now, of all windows or of one.

        `source`: chunks in which the user said it: they are always in the snapshot.
        """
        path = checked_path(path)
        size = json_size(content)
        if size > CONTENT_LIMIT:
            raise BadInput(
                f"This has {size} bytes; at most {CONTENT_LIMIT} are kept in one memory. Save it in parts."
            )
        own = f"{path.replace('/', ' ')} {_text_of(content)[:QUERY_LENGTH]}"  # similarity of its own text
        known = {chunk.key for chunk in source}
        chunks = [
            *source,
            *(one for one in self._explaining(own, context_tokens, within) if one.key not in known),
        ]
        snapshot: list[dict[str, Json]] = [_packed(chunk) for chunk in chunks]
        embedder = self._open_embedder()
        if embedder is None:
            return _remembered(self._store.save_entry(path, content, now=now, snapshot=snapshot))
        # The entry's own text is embedded, too, so that it is found even without a snapshot.
        vectors = embedder.embed([*(chunk.text for chunk in chunks), own])
        snapshot.append({"own": own})
        entry = self._store.save_entry(
            path, content, now=now, snapshot=snapshot, vectors=vectors, model=embedder.name
        )
        return _remembered(entry)

    def query(self, path: str, *, now: datetime | None) -> SavedEntry:
        """One entry. With a time it counts as accessed then; None: the access is not recorded."""
        path = checked_path(path)
        entry = self._store.entry(path, now=now)
        if entry is None:
            raise self._unknown(path)
        return _remembered(entry)

    def query_heading(
        self,
        path: str = "",
        query: str | None = None,
        *,
        now: datetime,
        recency_bias: float = RECENCY_BIAS,
        decay_days: float = DECAY_DAYS,
    ) -> list[HeadingMatch]:
        """All entries below a heading: the ones that match the query and are recent first; without a query the recent
        ones."""
        if not 0 <= recency_bias <= 1:
            raise BadInput("recency_bias is a number from 0 to 1.")
        heading = "" if is_root(path) else checked_path(path)
        entries = self._store.entries(heading)
        if not entries and heading:
            raise self._unknown(heading)
        asked = query is not None and bool(query.strip())
        fits = self._similarities(query or "", entries) if asked else {}
        matches = []
        for entry in entries:
            known, recent = _remembered(entry), _recency(entry.modified, now, decay_days)
            similar, chunks = fits.get(entry.path, (0.0, ()))
            score = (1 - recency_bias) * similar + recency_bias * recent if asked else recent
            relevant = sorted(
                (
                    replace(chunk, similarity=fit)
                    for chunk, fit in zip(known.snapshot, chunks, strict=False)
                    if fit > RELEVANT
                ),
                key=lambda chunk: -chunk.similarity,
            )
            matches.append(HeadingMatch(known, score, similar, recent, tuple(relevant)))
        return sorted(
            matches, key=lambda match: (-match.score, -match.entry.modified.timestamp(), match.entry.path)
        )

    def listing(self, path: str = "", *, contents: bool = False) -> HeadingNode:
        """The tree below a heading, or all of it, on request with the content of the entries."""
        heading = "" if is_root(path) else checked_path(path)
        paths_with_version = self._store.entry_paths(heading)
        said = {entry.path: entry.content for entry in self._store.entries(heading)} if contents else {}
        if not heading:
            return _branch("", "", paths_with_version, said)
        entry = self._store.entry(heading)
        if entry is not None:
            paths_with_version = [(heading, entry.version, entry.modified), *paths_with_version]
            said |= {heading: entry.content} if contents else {}
        elif not paths_with_version:
            raise self._unknown(heading)
        return _branch(heading.rpartition("/")[2], heading, paths_with_version, said)

    def delete(self, path: str, *, now: datetime, recursive: bool = False) -> int:
        """Delete an entry, and on request all below it. Returns the number of deleted entries; their versions stay in
        the history."""
        path = checked_path(path)
        gone = self._store.delete_entry(path, now=now, recursive=recursive)
        if not gone:
            raise self._unknown(path, deleting=True)
        return gone

    def move(self, path: str, to: str, *, now: datetime) -> SavedEntry:
        """Move an entry with its snapshot to another path."""
        entry = self._store.entry(checked_path(path))
        if entry is None:
            raise self._unknown(path)
        moved = self._store.save_entry(
            checked_path(to),
            entry.content,
            now=now,
            snapshot=entry.snapshot,
            vectors=entry.vectors if entry.model else None,
            model=entry.model,
        )
        self._store.delete_entry(entry.path, now=now)
        return _remembered(moved)

    def content(self, path: str) -> Json:
        """The content of an entry; None if there is none."""
        entry = self._store.entry(checked_path(path))
        return None if entry is None else entry.content

    def paths(self) -> list[str]:
        """The paths of all entries."""
        return [path for path, _, _ in self._store.entry_paths()]

    def newest(self) -> list[MemoryEntry]:
        """All entries, most recently changed first."""
        return sorted(self._store.entries(), key=lambda entry: entry.modified, reverse=True)

    def history(self, path: str) -> list[SavedEntry]:
        """All versions, newest first; also of a deleted entry."""
        path = checked_path(path)
        entry = self._store.entry(path)
        versions = [_remembered(one) for one in ([entry] if entry else []) + self._store.entry_versions(path)]
        if not versions:
            raise self._unknown(path)
        return versions

    def _explaining(self, text: str, tokens: int, within: frozenset[str] | None) -> list[SnapshotChunk]:
        """The most relevant chunks that fit into the limit, with their full text."""
        chosen: list[SnapshotChunk] = []
        left = tokens
        if self._within is not None:
            within = self._within if within is None else within & self._within
        for chunk in self._search(text, CANDIDATES, within) if self._search and tokens > 0 else ():
            if chunk.tokens <= left:
                chosen.append(chunk)
                left -= chunk.tokens
        return chosen

    def _similarities(
        self, query: str, entries: Sequence[MemoryEntry]
    ) -> dict[str, tuple[float, Sequence[float]]]:
        """The similarity of each entry, and of each chunk of its snapshot.

        Compared by vectors; an entry whose vectors another embedder made is compared by words, until it is saved again.
        """
        embedder = self._open_embedder()
        model = (embedder.name, embedder.dimension) if embedder else None
        comparable: list[MemoryEntry] = []
        others: list[MemoryEntry] = []
        for entry in entries:
            fits = (entry.model, *entry.vectors.shape[1:]) == model
            (comparable if fits else others).append(entry)
        similar = _word_similarities(query, others)
        if embedder and comparable:
            asked = embedder.embed([query], query=True)[0]
            for entry in comparable:
                fits = (entry.vectors @ asked).tolist()
                similar[entry.path] = max(0.0, *fits), fits
        return similar

    def _unknown(self, path: str, *, deleting: bool = False) -> UnknownMemory:
        below = len(self._store.entry_paths(path))
        if not below:
            return UnknownMemory(f"There is no memory at {path}.")
        how = "Delete them with recursive" if deleting else "List or query the heading"
        return UnknownMemory(f"{path} is a heading; memories below it: {below}. {how}.")


def _packed(chunk: SnapshotChunk) -> dict[str, Json]:
    return {
        "key": str(chunk.key),
        "text": chunk.text,
        "tokens": chunk.tokens,
        "similarity": round(float(chunk.similarity), 6),
        "said": chunk.said,
    }


def _remembered(entry: MemoryEntry) -> SavedEntry:
    chunks = tuple(
        SnapshotChunk(
            None if chunk["key"] is None else ChunkKey.parse(chunk["key"]),
            chunk["text"],
            chunk["tokens"],
            chunk["similarity"],
            chunk.get("said"),
        )
        for chunk in entry.snapshot
        if "key" in chunk
    )
    return SavedEntry(
        entry.path,
        entry.content,
        chunks,
        entry.created,
        entry.modified,
        entry.accessed,
        entry.version,
        entry.ended,
    )


def _recency(modified: datetime, now: datetime, decay_days: float) -> float:
    """1 for an entry saved now, 1/e after the half-life's number of days."""
    return math.exp(-max(0.0, (now - modified).total_seconds()) / DAY / decay_days)


def _word_similarities(
    query: str, entries: Sequence[MemoryEntry]
) -> dict[str, tuple[float, Sequence[float]]]:
    """The share of the query's words in each entry or its snapshot; words that few entries contain weigh more."""
    held = {entry.path: set(terms(_words_of(entry))) for entry in entries}
    asked = set(terms(query))
    rarity = {word: len(held) / (0.5 + sum(word in words for words in held.values())) for word in asked}
    weights = {word: math.log1p(rare) for word, rare in rarity.items()}
    total = sum(weights.values()) or 1.0

    def share(words: set[str]) -> float:
        return sum(weights[word] for word in asked & words) / total

    kept = {
        entry.path: [share(set(terms(chunk["text"]))) for chunk in entry.snapshot if "text" in chunk]
        for entry in entries
    }
    return {path: (share(words), kept[path]) for path, words in held.items()}


def _words_of(entry: MemoryEntry) -> str:
    kept = (chunk["text"] for chunk in entry.snapshot if "text" in chunk)
    return " ".join([entry.path, _text_of(entry.content), *kept])


def _text_of(content: Json) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _branch(
    heading: str, path: str, paths_with_version: Sequence[tuple[str, int, datetime]], said: Mapping[str, Json]
) -> HeadingNode:
    """The entries below a path, sorted by path, as a tree."""
    version: int | None = None
    modified: datetime | None = None
    below: dict[str, list[tuple[str, int, datetime]]] = {}
    start = len(path) + 1 if path else 0
    for one_path in paths_with_version:
        if one_path[0] == path:
            _, version, modified = one_path
        else:
            below.setdefault(one_path[0][start:].split("/", 1)[0], []).append(one_path)
    children = tuple(
        _branch(name, f"{path}/{name}" if path else name, below[name], said) for name in sorted(below)
    )
    return HeadingNode(heading, path, version, modified, children, said.get(path))
