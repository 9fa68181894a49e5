"""The structured memory: what the AI keeps on purpose, under headings, with the talk that explains it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from halo_weave.core.paths import checked_path, is_root
from halo_weave.core.tokens import ChunkKey
from halo_weave.core.words import terms
from halo_weave.errors import BadInput, UnknownMemory
from halo_weave.memory.commands import CONTEXT_TOKENS, RECENCY_BIAS
from halo_weave.memory.literals import Json, json_size
from halo_weave.ports import Embedder, Vectors
from halo_weave.records import MemoryEntry
from halo_weave.store import Keepsakes

CONTENT_LIMIT = 64 << 10  # bytes
CANDIDATES = 50  # chunks looked at for a snapshot
QUERY_LENGTH = 200  # characters of the content that search for its snapshot
DECAY_DAYS = 30.0
DAY = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A chunk that search found, as a snapshot keeps it. Without a vector it is embedded when it is saved."""

    key: ChunkKey
    text: str
    tokens: int
    similarity: float
    vector: Vectors | None = None  # (dimension,)
    said: datetime | None = None


Search = Callable[
    [str, int, str | None], Iterable[Hit]
]  # (text, limit, window or all) -> the most relevant first


@dataclass(frozen=True, slots=True)
class Kept:
    """A chunk of a snapshot, whole: it stays even if the chunk itself is deleted."""

    key: ChunkKey | None  # None: an import brought the entry without the turn
    text: str
    tokens: int
    similarity: float  # why it was chosen
    said: str | None  # ISO time


@dataclass(frozen=True, slots=True)
class Remembered:
    """An entry of the structured memory, or an older version of it."""

    path: str
    content: Json
    snapshot: tuple[Kept, ...]
    created: datetime
    modified: datetime
    accessed: datetime
    version: int
    ended: datetime | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """An entry below a heading, and how well it fits a query."""

    entry: Remembered
    score: float
    similarity: float
    recency: float


@dataclass(frozen=True, slots=True)
class Branch:
    """A heading: an entry, a heading of others, or both."""

    heading: str
    path: str
    version: int | None = None  # None: no entry stands here, only below
    modified: datetime | None = None
    children: tuple[Branch, ...] = ()

    @property
    def entries(self) -> int:
        return (self.version is not None) + sum(child.entries for child in self.children)


class MemoryTree:
    """Save, find, list and delete. Without a search there are no snapshots, without an embedder words decide."""

    def __init__(
        self,
        store: Keepsakes,
        *,
        search: Search | None = None,
        embedder: Embedder | Callable[[], Embedder | None] | None = None,
    ) -> None:
        self._store = store
        self._search = search
        self._open_embedder = embedder if callable(embedder) else lambda: embedder

    def save(
        self,
        path: str,
        content: Json,
        *,
        now: datetime,
        context_tokens: int = CONTEXT_TOKENS,
        within: str | None = None,
    ) -> Remembered:
        """Make an entry, or a new version of it, with the chunks that explain it now, of all windows or of one."""
        path = checked_path(path)
        size = json_size(content)
        if size > CONTENT_LIMIT:
            raise BadInput(
                f"This has {size} bytes; at most {CONTENT_LIMIT} are kept in one memory. Save it in parts."
            )
        own = own_text(path, content)
        hits = self._explaining(own, context_tokens, within)
        snapshot: list[dict[str, Json]] = [packed(hit) for hit in hits]
        embedder = self._open_embedder()
        if embedder is None:
            return remembered(self._store.save_entry(path, content, now=now, snapshot=snapshot))
        # The entry's own text is embedded too, so that it is found even if nothing was said about it.
        vectors = embedded(
            [hit.vector for hit in hits] + [None], [hit.text for hit in hits] + [own], embedder
        )
        snapshot.append({"own": own})
        entry = self._store.save_entry(
            path, content, now=now, snapshot=snapshot, vectors=vectors, model=embedder.name
        )
        return remembered(entry)

    def query(self, path: str, *, now: datetime | None) -> Remembered:
        """One entry. It counts as accessed, unless the time is None: then someone else only looks at it."""
        path = checked_path(path)
        entry = self._store.entry(path, now=now)
        if entry is None:
            raise self._unknown(path)
        return remembered(entry)

    def query_heading(
        self, path: str = "", query: str | None = None, *, now: datetime, recency_bias: float = RECENCY_BIAS
    ) -> list[Match]:
        """All entries below a heading: those that fit the query and are recent first, without one the recent."""
        if not 0 <= recency_bias <= 1:
            raise BadInput("recency_bias is a number from 0 to 1.")
        heading = "" if is_root(path) else checked_path(path)
        entries = self._store.entries(heading)
        if not entries and heading:
            raise self._unknown(heading)
        asked = query is not None and bool(query.strip())
        similarity = self._similarities(query or "", entries) if asked else {}
        matches = []
        for entry in entries:
            similar, recent = similarity.get(entry.path, 0.0), recency(entry.modified, now)
            score = (1 - recency_bias) * similar + recency_bias * recent if asked else recent
            matches.append(Match(remembered(entry), score, similar, recent))
        return sorted(
            matches, key=lambda match: (-match.score, -match.entry.modified.timestamp(), match.entry.path)
        )

    def listing(self, path: str = "") -> Branch:
        """The tree below a heading, or all of it."""
        heading = "" if is_root(path) else checked_path(path)
        marks = self._store.entry_paths(heading)
        if not heading:
            return branch("", "", marks)
        entry = self._store.entry(heading)
        if entry is not None:
            marks = [(heading, entry.version, entry.modified), *marks]
        elif not marks:
            raise self._unknown(heading)
        return branch(heading.rpartition("/")[2], heading, marks)

    def delete(self, path: str, *, now: datetime, recursive: bool = False) -> int:
        """Delete an entry, and on request all below it. Gives how many went; their versions stay in the history."""
        path = checked_path(path)
        gone = self._store.delete_entry(path, now=now, recursive=recursive)
        if not gone:
            raise self._unknown(path, deleting=True)
        return gone

    def history(self, path: str) -> list[Remembered]:
        """All versions, the newest first; also of an entry that was deleted."""
        path = checked_path(path)
        entry = self._store.entry(path)
        versions = [remembered(one) for one in ([entry] if entry else []) + self._store.entry_versions(path)]
        if not versions:
            raise self._unknown(path)
        return versions

    def _explaining(self, text: str, tokens: int, within: str | None) -> list[Hit]:
        """The most relevant chunks, whole, as many as fit."""
        chosen: list[Hit] = []
        left = tokens
        for hit in self._search(text, CANDIDATES, within) if self._search and tokens > 0 else ():
            if hit.tokens <= left:
                chosen.append(hit)
                left -= hit.tokens
        return chosen

    def _similarities(self, query: str, entries: Sequence[MemoryEntry]) -> dict[str, float]:
        """By vectors. Those of another embedder say nothing to this one; until it is saved again, words decide."""
        embedder = self._open_embedder()
        model = (embedder.name, embedder.dimension) if embedder else None
        spoken: list[MemoryEntry] = []
        silent: list[MemoryEntry] = []
        for entry in entries:
            heard = (entry.model, *entry.vectors.shape[1:]) == model
            (spoken if heard else silent).append(entry)
        similar = word_similarities(query, silent)
        if embedder and spoken:
            asked = embedder.embed([query], query=True)[0]
            similar |= {entry.path: max(0.0, float((entry.vectors @ asked).max())) for entry in spoken}
        return similar

    def _unknown(self, path: str, *, deleting: bool = False) -> UnknownMemory:
        below = len(self._store.entry_paths(path))
        if not below:
            return UnknownMemory(f"There is no memory at {path}.")
        how = "Delete them with recursive" if deleting else "List or query the heading"
        return UnknownMemory(f"{path} is a heading; memories below it: {below}. {how}.")


# Entries


def own_text(path: str, content: Json) -> str:
    """What an entry says by itself: its headings in words, and the beginning of its content."""
    said = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return f"{path.replace('/', ' ')} {said[:QUERY_LENGTH]}"


def packed(hit: Hit) -> dict[str, Json]:
    return {
        "key": str(hit.key),
        "text": hit.text,
        "tokens": hit.tokens,
        "similarity": round(float(hit.similarity), 6),
        "said": hit.said.isoformat() if hit.said else None,
    }


def embedded(vectors: Sequence[Vectors | None], texts: Sequence[str], embedder: Embedder) -> Vectors:
    """The vectors that are there, and new ones for the texts that have none."""
    fits = [vector is not None and len(vector) == embedder.dimension for vector in vectors]
    made = iter(embedder.embed([text for text, fit in zip(texts, fits, strict=True) if not fit]))
    rows = [vector if fit else next(made) for vector, fit in zip(vectors, fits, strict=True)]
    return np.array(rows, np.float32)


def remembered(entry: MemoryEntry) -> Remembered:
    chunks = tuple(
        Kept(
            None if one["key"] is None else ChunkKey.parse(one["key"]),
            one["text"],
            one["tokens"],
            one["similarity"],
            one.get("said"),
        )
        for one in entry.snapshot
        if "key" in one
    )
    return Remembered(
        entry.path,
        entry.content,
        chunks,
        entry.created,
        entry.modified,
        entry.accessed,
        entry.version,
        entry.ended,
    )


# Finding


def recency(modified: datetime, now: datetime) -> float:
    """1 for what was saved now, 1/e after 30 days."""
    return math.exp(-max(0.0, (now - modified).total_seconds()) / DAY / DECAY_DAYS)


def word_similarities(query: str, entries: Sequence[MemoryEntry]) -> dict[str, float]:
    """The share of the query's words that an entry or its snapshot holds; words that few entries hold weigh more."""
    held = {entry.path: set(terms(words_of(entry))) for entry in entries}
    asked = set(terms(query))
    rarity = {word: len(held) / (0.5 + sum(word in words for words in held.values())) for word in asked}
    weights = {word: math.log1p(rare) for word, rare in rarity.items()}
    total = sum(weights.values()) or 1.0
    return {path: sum(weights[word] for word in asked & words) / total for path, words in held.items()}


def words_of(entry: MemoryEntry) -> str:
    content = (
        entry.content if isinstance(entry.content, str) else json.dumps(entry.content, ensure_ascii=False)
    )
    return " ".join([entry.path, content, *(one["text"] for one in entry.snapshot if "text" in one)])


# The tree


def branch(heading: str, path: str, marks: Sequence[tuple[str, int, datetime]]) -> Branch:
    """Entries below a path, in order of paths, as a tree."""
    version: int | None = None
    modified: datetime | None = None
    below: dict[str, list[tuple[str, int, datetime]]] = {}
    start = len(path) + 1 if path else 0
    for mark in marks:
        if mark[0] == path:
            _, version, modified = mark
        else:
            below.setdefault(mark[0][start:].split("/", 1)[0], []).append(mark)
    children = tuple(branch(name, f"{path}/{name}" if path else name, below[name]) for name in sorted(below))
    return Branch(heading, path, version, modified, children)
