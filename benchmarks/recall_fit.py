"""Fit the weights of recall: a logistic regression on the features of the product's own search.

Examples are all candidates of a query; those that belong to its evidence count as positive. Each set of conversations has the
same weight, whatever its size, and within a set messages that need nothing of memory weigh `NEEDLESS` of all. Besides whole
conversations, single sessions are memories too: somebody's first day has ten chunks, not a thousand.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.day_script import Day, read_days
from benchmarks.recall_data import KeptVectors, Query, Talk, Turn, Written, read_talk
from halo_weave.engines.base import Engine
from halo_weave.search.embedding_worker import reindex
from halo_weave.search.memory_search import MemorySearch
from halo_weave.search.ranking import Weights
from halo_weave.store.sql_store import SqlStore

Matrix = npt.NDArray[np.float64]
NEEDLESS = 0.6  # share of the weight of messages that need nothing, as in daily use
SESSIONS = 6  # of each conversation that are memories of their own
OTHERS = 8  # questions about other sessions, asked of such a memory
RIDGE = 1e-3
FITTED = (*(one.name for one in fields(Weights) if one.name != "feedback"), "user")
OF_VECTORS = ("best_passage", "with_neighbours", "top_passage")
NewStore = Callable[[Path], SqlStore]


@dataclass
class Examples:
    """Candidates of the queries of one set."""

    features: list[Matrix] = field(default_factory=list)  # (candidates, FITTED) of each query
    labels: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    needless: list[bool] = field(default_factory=list)  # of each query
    names: list[str] = field(default_factory=list)

    def add(self, name: str, recall: MemorySearch, query: Query, written: Written, now: datetime) -> None:
        keys, found = recall.features(query.text, now=now)
        if not keys:
            return
        evidence = {key for _, some in written.needed(query) for key in some}
        zeros = np.zeros(len(keys))
        self.features.append(np.stack([np.asarray(found.get(one, zeros), float) for one in FITTED], axis=1))
        self.labels.append(np.array([key in evidence for key in keys]))
        self.needless.append(not evidence)
        self.names.append(name)


class Memory:
    """A store with some turns, and the search over it."""

    def __init__(self, new_store: NewStore, engine: Engine, embedder: KeptVectors) -> None:
        self._new_store, self.engine, self.embedder = new_store, engine, embedder
        self._recall: MemorySearch | None = None

    def __enter__(self) -> Memory:
        self._folder = tempfile.TemporaryDirectory()
        self.store = self._new_store(Path(self._folder.name)).__enter__()
        self.written = Written()
        return self

    def __exit__(self, *_: object) -> None:
        if self._recall:
            self._recall.close()
        self.store.__exit__(None, None, None)
        self._folder.cleanup()

    def add(self, talk: Talk, turns: Sequence[Turn]) -> None:
        self.written.add(talk, turns, self.store, self.engine)

    @property
    def recall(self) -> MemorySearch:
        """The search, when all turns are embedded."""
        if self._recall is None:
            reindex(self.store, self.embedder, now=lambda: datetime.now(UTC))
            self._recall = MemorySearch(self.store, lambda: self.embedder)
        self._recall.embed_soon()
        self._recall.settle()
        return self._recall


def examples_of(talk: Talk, new_memory: Callable[[], Memory], small_talk: Sequence[str]) -> Examples:
    """Those of a conversation: what is asked in its flow or after it, and of single sessions."""
    examples = Examples()
    nothing = [Query(text, 0, (), {}) for text in small_talk]

    def ask(memory: Memory, queries: Sequence[Query], now: datetime) -> None:
        for query in queries:
            examples.add(talk.name, memory.recall, query, memory.written, now)

    with new_memory() as memory:  # embeds everything at once, which is faster than session by session
        for turns in talk.sessions:
            memory.add(talk, turns)
        reindex(memory.store, memory.embedder, now=lambda: datetime.now(UTC))
    with new_memory() as memory:
        for number, turns in enumerate(talk.sessions):
            if talk.flows and number:
                asked = [one for i, one in enumerate(talk.in_flow[number]) if one.evidence or i % 3 == 0]
                ask(memory, asked, turns[0].said)
            memory.add(talk, turns)
        if talk.asked or talk.flows:
            ask(memory, talk.asked + nothing, memory.written.last + timedelta(days=1))
    for number in range(0, len(talk.sessions), max(1, len(talk.sessions) // SESSIONS)):
        turns = talk.sessions[number]
        names = {turn.name for turn in turns}
        with new_memory() as memory:
            memory.add(talk, turns)
            asked = talk.asked + [one for some in talk.in_flow for one in some if one.category]
            own = [one for one in asked if one.evidence and names.issuperset(one.evidence)]
            others = [one for one in asked if one.evidence and not names.intersection(one.evidence)]
            step = max(1, len(others) // OTHERS)
            about_others = [
                Query(one.text, one.category, (), {}) for one in others[number % step :: step][:OTHERS]
            ]
            ask(
                memory,
                own + about_others + nothing[:: 1 + len(nothing) // OTHERS],
                turns[-1].said + timedelta(hours=3),
            )
    return examples


def examples_of_day(day: Day, new_memory: Callable[[], Memory]) -> Examples:
    """Those of a scripted day: each message is asked when all before it were said."""
    examples = Examples()
    begin = datetime(2026, 11, 2, 8, tzinfo=UTC)
    talk = Talk(day.name, ("User", "AI"), [], [], [])
    with new_memory() as memory:
        for number, message in enumerate(day.messages):
            now = begin + number * timedelta(minutes=5)
            if number:
                evidence = sorted({one for label in message.needs for one in day.sources(label, number)})
                query = Query(message.say, 19, tuple(map(str, evidence)), {})
                examples.add(day.name, memory.recall, query, memory.written, now)
            memory.add(talk, [Turn(str(number), True, message.say, now)])
    return examples


def weighted(sets: Sequence[Examples]) -> tuple[Matrix, npt.NDArray[np.bool_], Matrix]:
    """All candidates with labels and weights."""
    rows, labels, weights = [], [], []
    for one in sets:
        count = {kind: one.needless.count(kind) for kind in (True, False)}
        for features, label, needless in zip(one.features, one.labels, one.needless, strict=True):
            share = NEEDLESS if needless else 1 - NEEDLESS
            rows.append(features)
            labels.append(label)
            weights.append(np.full(len(label), share / count[needless] / len(sets)))
    return np.concatenate(rows), np.concatenate(labels), np.concatenate(weights)


def fit(sets: Sequence[Examples], names: Sequence[str] = FITTED, rounds: int = 30) -> dict[str, float]:
    """Weights by name, by Newton's method. Features that are not named have the weight 0."""
    features, labels, weights = weighted(sets)
    columns = [FITTED.index(name) for name in names]
    used = features[:, columns]
    scale = np.maximum(np.sqrt((weights[:, None] * used**2).sum(0) / weights.sum()), 1e-6)
    used = used / scale
    found = np.zeros(len(columns))
    penalty = RIDGE * weights[labels].sum() * np.array([name != "intercept" for name in names])
    for _ in range(rounds):
        chance = 1 / (1 + np.exp(-np.clip(used @ found, -30, 30)))
        gradient = used.T @ (weights * (labels - chance)) - penalty * found
        spread = weights * chance * (1 - chance) + 1e-12
        step = np.linalg.solve((used * spread[:, None]).T @ used + np.diag(penalty + 1e-12), gradient)
        found += step
        if np.abs(step).max() < 1e-6:
            break
    return dict(zip(names, (found / scale).tolist(), strict=True))


def fit_words(sets: dict[str, Examples]) -> dict[str, float]:
    """The weights of a memory without an embedder."""
    return fit(list(sets.values()), [name for name in FITTED if name not in OF_VECTORS])


def judge(weights: dict[str, float], examples: Examples, least: float) -> dict[str, float]:
    """What a decision by the best hit's probability does: messages that get what they need, and others that get something."""
    vector = np.array([weights.get(name, 0.0) for name in FITTED])
    right = found = needless = total = 0
    first: list[float] = []
    for features, labels, nothing in zip(examples.features, examples.labels, examples.needless, strict=True):
        odds = features @ vector
        passes = odds.max() >= np.log(least / (1 - least))
        if nothing:
            total += 1
            needless += passes
        else:
            right += 1
            found += passes
            first.append(float(labels[np.argmax(odds)]))
    return {
        "needs": right,
        "passes": round(found / max(1, right), 3),
        "best_is_evidence": round(float(np.mean(first or [0])), 3),
        "needless": total,
        "needless_passes": round(needless / max(1, total), 3),
    }


def gather(
    folders: Sequence[Path],
    engine: Engine,
    embedder: Any,
    new_store: NewStore,
    vectors: Path | None,
    small_talk: Sequence[str],
    talks: int | None = None,
) -> dict[str, Examples]:
    """The examples of all sets and of the scripted days. `talks`: only the first so many conversations of each set."""

    def memories(file: Path | None) -> tuple[KeptVectors, Callable[[], Memory]]:
        kept = KeptVectors(embedder, file)
        return kept, lambda: Memory(new_store, engine, kept)

    sets: dict[str, Examples] = {}
    for folder in folders:
        of_set = sets[folder.name] = Examples()
        for path in sorted(folder.glob("*.json"))[:talks]:
            kept, new_memory = memories(vectors and vectors / f"{folder.name}_{path.stem}.npz")
            _extend(of_set, examples_of(read_talk(path), new_memory, small_talk))
            kept.save()
            print(f"{folder.name} {path.stem}", file=sys.stderr)
    of_days = sets["days"] = Examples()
    kept, new_memory = memories(vectors and vectors / "days.npz")
    for day in read_days(Path(__file__).parent / "days"):
        _extend(of_days, examples_of_day(day, new_memory))
    kept.save()
    return sets


def _extend(examples: Examples, more: Examples) -> None:
    for one in fields(examples):
        getattr(examples, one.name).extend(getattr(more, one.name))
