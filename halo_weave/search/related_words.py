"""Words near in meaning to a query's words, by the embedder's own vocabulary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from halo_weave.core.terms import STOP_WORDS, detect_language, stems, terms
from halo_weave.engines.base import Embedder, Vectors
from halo_weave.search.chunk_table import ChunkTable
from halo_weave.search.ranking import TermHits, find_terms
from halo_weave.store.sql_store import SqlStore

MIN_SPREADS = 3.9  # above the cosine of any two words: those are akin. With MiniLM that is a cosine of 0.5
SAMPLE = 1_000  # words that tell what cosine is ordinary
MAX_RELATED = 128  # most words that are kept for one
SHORTEST = 3  # letters of a word: shorter ones are mostly abbreviations
LARGEST = 60_000  # words of a vocabulary; a larger one is of many languages, and would take minutes
BATCH = 64  # words between two looks at whether to stop
BLOCK = 512  # words that are compared with all at once
MAX_LOOKED_UP = 200  # akin words of one question that are looked up, the nearest
MAX_CHUNKS_PER_WORD = (
    100  # chunks that hold an akin word; one that more of them hold tells little, and costs much
)


class RelatedWords:
    """For each word of a vocabulary those akin to it, nearest first."""

    def __init__(
        self,
        words: Sequence[str],
        starts: npt.NDArray[np.int64],
        others: npt.NDArray[np.int32],
        likeness: npt.NDArray[np.float32],
    ) -> None:
        """`others`: places in `words`; those of word i lie from starts[i] to starts[i + 1]."""
        sound = (
            len(starts) == len(words) + 1
            and (starts[:1] == 0).all()
            and (np.diff(starts) >= 0).all()
            and starts[-1] == len(others) == len(likeness)
            and ((others >= 0) & (others < len(words))).all()
            and ((likeness >= 0) & (likeness <= 1.01)).all()
        )
        if not sound:
            raise ValueError("the table of akin words is damaged")
        self.words, self._starts, self._others, self._likeness = list(words), starts, others, likeness
        self._place = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def made(
        cls, embedder: Embedder, begun: list[Vectors], stopped: Callable[[], bool] = lambda: False
    ) -> Self | None:
        """Embed the vocabulary and compare its words; None if that was stopped. It goes on with what was `begun`."""
        words = _whole_words(embedder.vocabulary())
        for start in range(BATCH * len(begun), len(words), BATCH):
            if stopped():
                return None
            begun.append(embedder.embed(words[start : start + BATCH]))
        every = np.concatenate([np.zeros((0, embedder.dimension), np.float32), *begun])
        least = _least_cosine(every)
        counts: list[int] = []
        others, likeness = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        for start in range(0, len(words), BLOCK):
            if stopped():
                return None
            near = every[start : start + BLOCK] @ every.T
            near[np.arange(len(near)), np.arange(start, start + len(near))] = (
                0  # a word is not akin to itself
            )
            for row in near:
                found = np.flatnonzero(row >= least)
                found = found[np.argsort(-row[found], kind="stable")[:MAX_RELATED]]
                counts.append(len(found))
                others.append(found.astype(np.int32))
                likeness.append(np.minimum(row[found], 1).astype(np.float32))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(words, starts, np.concatenate(others), np.concatenate(likeness))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None if it is not there, or is damaged: then it is made again."""
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                return cls(
                    stored["words"].tolist(),
                    stored["starts"].astype(np.int64),
                    stored["others"].astype(np.int32),
                    stored["likeness"].astype(np.float32),
                )
        except Exception:  # a damaged zip has errors of many kinds
            return None

    def write(self, file: Path) -> None:
        """Whole or not at all. Where nothing can be written, it is made again next time."""
        part = file.with_name(f"{file.name}.{os.getpid()}.part")
        with suppress(OSError):
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as opened:
                    np.savez_compressed(
                        opened,
                        words=np.array(self.words),
                        starts=self._starts,
                        others=self._others,
                        likeness=self._likeness.astype(np.float16),
                    )
                part.replace(file)
            finally:
                part.unlink(missing_ok=True)

    def of(self, word: str) -> list[tuple[str, float]]:
        """The words akin to one, nearest first, and how near each is."""
        at = self._place.get(word)
        if at is None:
            return []
        first, last = self._starts[at], self._starts[at + 1]
        near = self._likeness[first:last].tolist()
        return [
            (self.words[i], like) for i, like in zip(self._others[first:last].tolist(), near, strict=True)
        ]


def related_words_file(folder: Path, embedder: Embedder) -> Path:
    """Where the table of an embedder lies: its name tells its weights, and the table was made with these figures."""
    made_by = f"{embedder.name} {MIN_SPREADS} {MAX_RELATED}"
    return folder / f"{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.npz"


def ensure_related_words(folder: Path, embedder: Embedder) -> None:
    """Make the table at once if there is none, for measurements: otherwise it would appear in the middle of one."""
    file = related_words_file(folder, embedder)
    if not RelatedWords.read(file) and (made := RelatedWords.made(embedder, [])):
        made.write(file)


def _least_cosine(vectors: Vectors) -> float:
    """From which on two words are akin. Cosines have another scale with every embedder."""
    some = vectors[:: max(1, len(vectors) // SAMPLE)]
    if len(some) < 2:
        return 1.0
    pairs = (some @ some.T)[np.triu_indices(len(some), 1)]
    return float(pairs.mean() + MIN_SPREADS * pairs.std())


def _whole_words(vocabulary: Sequence[str]) -> list[str]:
    if len(vocabulary) > LARGEST:
        return []
    plain = (word for word in vocabulary if len(word) >= SHORTEST and word.isalpha() and word.islower())
    return [word for word in dict.fromkeys(plain) if word not in STOP_WORDS["english"]]


def add_related_words(
    found: Sequence[TermHits],
    asked: Mapping[str, str],
    names: set[str],
    table: RelatedWords,
    share: float,
    *,
    store: SqlStore,
    outline: ChunkTable,
    window: str | None = None,
) -> tuple[list[TermHits], list[TermHits]]:
    """The hits of a question's terms, where a term also counts for chunks that hold a word akin to it; and those chunks.

    `share` of what the akin word would count, times how near it is. `names`: of speakers, which have no kin.
    """
    akin: dict[
        tuple[str, str], tuple[str, float]
    ] = {}  # question's word, stem of its kin: that word, its worth
    language = detect_language(terms(" ".join(asked.values())))
    for stem, word in asked.items():
        near = [] if stem in names else table.of(word)
        for other, (kin, like) in zip(stems([one for one, _ in near], language), near, strict=True):
            if other != stem:
                akin.setdefault((word, other), (kin, share * like))
    nearest = sorted(akin, key=lambda pair: -akin[pair][1])[:MAX_LOOKED_UP]
    wanted = dict.fromkeys(other for _, other in nearest)
    held = find_terms(
        store, outline, {stem: stem for stem in wanted}, most=MAX_CHUNKS_PER_WORD, window=window
    )
    by_stem = {hit.term: hit for hit in held}
    by_word: dict[str, list[tuple[TermHits, float]]] = {hit.term: [(hit, 1.0)] for hit in found}
    holding = []
    for word, other in nearest:
        if hit := by_stem.get(other):
            kin, worth = akin[word, other]
            by_word.setdefault(word, []).append((hit, worth))
            holding.append(replace(hit, term=f"{word} ≈ {kin}"))
    return [_best(word, hits) for word, hits in by_word.items()], holding


def _best(word: str, hits: Sequence[tuple[TermHits, float]]) -> TermHits:
    """One term out of several: for each chunk the one that counts most."""
    if len(hits) == 1 and hits[0][1] == 1:
        return hits[0][0]
    rows, at = np.unique(np.concatenate([hit.rows for hit, _ in hits]), return_inverse=True)
    scores = np.zeros(len(rows))
    np.maximum.at(scores, at, np.concatenate([hit.scores * weight for hit, weight in hits]))
    return TermHits(word, rows, scores)
