"""Fit the weights of recall on the features of the product's own search.

Two things are fitted. Which chunk helps: a conditional logistic regression over the candidates of each query that has
evidence. Whether a message needs memory: a logistic regression on the message and its best candidate. Each set of conversations
has the same weight, whatever its size, and within a set messages that need nothing of memory weigh `NEEDLESS` of all. Besides
whole conversations, single sessions are memories too: somebody's first day has ten chunks, not a thousand.
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
from halo_weave.search.memory_search import USER_WEIGHT, MemorySearch
from halo_weave.search.ranking import NeedWeights, RankingWeights, RecallModel
from halo_weave.store.sql_store import SqlStore

Matrix = npt.NDArray[np.float64]
NEEDLESS = 0.6  # share of the weight of messages that need nothing, as in daily use
SESSIONS = 6  # of each conversation that are memories of their own
OTHERS = 8  # questions about other sessions, asked of such a memory
RIDGE = 1e-3
USER_LOG_ODDS = float(np.log(USER_WEIGHT))
# Given, not fitted: the user's weight is a setting, and in these sets nobody asks the same question twice.
GIVEN = {"user": USER_LOG_ODDS, "uninformative": -5.0}
CANDIDATES = 150  # of each query, the best by the first weights, that the ranking is fitted on
CHUNK = (*(one.name for one in fields(RankingWeights) if one.name != "feedback"), "user")
MESSAGE = tuple(
    one.name for one in fields(NeedWeights) if not one.name.startswith("best") and one.name != "intercept"
)
OF_VECTORS = ("best_passage", "with_neighbours")
START = np.array([0.3, 0.6, 2.5, 2.5, 0.6, 1.5, GIVEN["uninformative"], USER_LOG_ODDS])  # of `CHUNK`
NewStore = Callable[[Path], SqlStore]


@dataclass
class Examples:
    """Candidates of the queries of one set."""

    features: list[Matrix] = field(default_factory=list)  # (candidates, CHUNK) of each query
    messages: list[Matrix] = field(default_factory=list)  # (MESSAGE,) of each query
    labels: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    needless: list[bool] = field(default_factory=list)  # of each query
    names: list[str] = field(default_factory=list)

    def add(self, name: str, recall: MemorySearch, query: Query, written: Written, now: datetime) -> None:
        keys, found = recall.candidates(query.text, now=now)
        if not keys:
            return
        evidence = {key for _, some in written.needed(query) for key in some}
        zeros = np.zeros(len(keys))
        columns = [np.asarray(found.features.get(one, zeros), float) for one in CHUNK]
        self.features.append(np.stack(columns, axis=1))
        self.messages.append(np.array([found.message[one] for one in MESSAGE]))
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


def fit(sets: Sequence[Examples], vectors: bool = True) -> RecallModel:
    """The model, with or without vectors."""
    used = np.array([vectors or name not in OF_VECTORS for name in CHUNK])
    ranking = _fit_ranking(sets, used)
    return RecallModel(
        RankingWeights(*ranking[: len(CHUNK) - 1].tolist()),
        NeedWeights(*_fit_need(sets, ranking, vectors).tolist()),
    )


def _fit_ranking(sets: Sequence[Examples], used: npt.NDArray[np.bool_], rounds: int = 15) -> Matrix:
    """(CHUNK,) weights that make the evidence likely among all candidates, by Newton's method."""
    start = np.where(used, START, 0.0)
    queries = []
    for examples in sets:
        own = [i for i, labels in enumerate(examples.labels) if labels.any()]
        for i in own:
            features, labels = examples.features[i], examples.labels[i]
            best = np.union1d(np.argsort(-(features @ start))[:CANDIDATES], np.flatnonzero(labels))
            queries.append((features[best], labels[best], 1 / len(own) / len(sets)))
    found = start.copy()
    free = np.array([i for i, name in enumerate(CHUNK) if used[i] and name not in GIVEN])
    for _ in range(rounds):
        gradient, curvature = -RIDGE * found[free], RIDGE * np.eye(len(free))
        for features, labels, weight in queries:
            scores = features @ found
            share = np.exp(scores - scores.max())
            share /= share.sum()
            some = features[:, free]
            mean = share @ some
            gradient = gradient + weight * (some[labels].mean(0) - mean)
            curvature = curvature + weight * ((some * share[:, None]).T @ some - np.outer(mean, mean))
        step = np.clip(np.linalg.solve(curvature, gradient), -1, 1)
        found[free] += step
        if np.abs(step).max() < 1e-3:
            break
    return found


def _need_features(features: Matrix, message: Matrix, ranking: Matrix) -> Matrix:
    """The features of one message in the order of `NeedWeights`."""
    scores = features @ ranking
    informative = features[:, CHUNK.index("uninformative")] == 0
    best = int(np.argmax(np.where(informative, scores, -np.inf) if informative.any() else scores))
    own = scores[best] - ranking[-1] * features[best, -1]
    return np.array([*message, features[best, CHUNK.index("best_passage")], own, 1.0])


def _fit_need(sets: Sequence[Examples], ranking: Matrix, vectors: bool, rounds: int = 40) -> Matrix:
    """(NeedWeights,) by Newton's method."""
    rows, labels, weights = [], [], []
    for examples in sets:
        count = {kind: examples.needless.count(kind) for kind in (True, False)}
        for features, message, needless in zip(
            examples.features, examples.messages, examples.needless, strict=True
        ):
            rows.append(_need_features(features, message, ranking))
            labels.append(not needless)
            weights.append((NEEDLESS if needless else 1 - NEEDLESS) / count[needless] / len(sets))
    table, needs, weight = np.array(rows), np.array(labels), np.array(weights)
    if not vectors:
        table[:, len(MESSAGE)] = 0.0
    scale = np.maximum(np.sqrt((weight[:, None] * table**2).sum(0)), 1e-6)
    table, found = table / scale, np.zeros(table.shape[1])
    penalty = np.full(len(found), RIDGE)
    penalty[-1] = 0.0
    for _ in range(rounds):
        chance = 1 / (1 + np.exp(-np.clip(table @ found, -30, 30)))
        gradient = table.T @ (weight * (needs - chance)) - penalty * found
        curvature = (table * (weight * chance * (1 - chance))[:, None]).T @ table + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curvature, gradient)
        found += step
        if np.abs(step).max() < 1e-5:
            break
    return np.asarray(found / scale)


def judge(model: RecallModel, examples: Examples, least: float) -> dict[str, float]:
    """How well a model decides: messages that get something although they need nothing, and the reverse."""
    ranking = np.array([*(getattr(model.ranking, name) for name in CHUNK[:-1]), USER_LOG_ODDS])
    need = np.array([getattr(model.need, one.name) for one in fields(NeedWeights)])
    passed: dict[bool, list[bool]] = {True: [], False: []}
    first = []
    for features, message, labels, needless in zip(
        examples.features, examples.messages, examples.labels, examples.needless, strict=True
    ):
        passed[needless].append(
            bool(_need_features(features, message, ranking) @ need >= np.log(least / (1 - least)))
        )
        if not needless:
            first.append(bool(labels[np.argmax(features @ ranking)]))
    return {
        "needs": len(passed[False]),
        "gets_something": round(float(np.mean(passed[False])), 3),
        "best_is_evidence": round(float(np.mean(first)), 3),
        "needless": len(passed[True]),
        "gets_something_needless": round(float(np.mean(passed[True])), 3),
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
