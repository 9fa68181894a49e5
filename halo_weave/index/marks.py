"""What users marked as the wrong memory for a question, and how much a new question is like that one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from halo_weave.core.words import question_terms

Floats = npt.NDArray[np.float32]
Vector = Floats | None
TERMS = 64  # of a question, that are compared
ALIKE, SAME = 0.5, 0.8  # likeness from which two questions are a little, and altogether, alike


class Marks:
    """The marks of one memory. Questions are compared by meaning, and by words as long as they have no vector."""

    def __init__(self) -> None:
        self._of: dict[int, list[str]] = {}  # questions by the number of the chunk
        self._terms: dict[str, frozenset[str]] = {}
        self._vectors: dict[str, Floats] = {}

    def put(self, marks: Iterable[tuple[int, str]], vectors: Mapping[str, Floats]) -> None:
        """All marks there are; `vectors` of questions as far as they are known."""
        self._of, self._vectors = {}, dict(vectors)
        for number, question in marks:
            self._of.setdefault(number, []).append(question)
        asked = {question for questions in self._of.values() for question in questions}
        self._terms = {question: frozenset(question_terms(question, TERMS)) for question in asked}

    @property
    def questions(self) -> list[str]:
        return list(self._terms)

    def weigh(self, numbers: npt.NDArray[np.int64], text: str, query: Vector) -> Floats | None:
        """(numbers,) 0 to 1: how much the text is like a question for which the chunk is wrong; None without any."""
        marked = [i for i, number in enumerate(numbers.tolist()) if number in self._of] if self._of else []
        if not marked:
            return None
        asked = frozenset(question_terms(text, TERMS))
        alike = {question: self._alike(question, asked, query) for question in self._terms}
        found = np.zeros(len(numbers), np.float32)
        for i in marked:
            found[i] = max(alike[question] for question in self._of[int(numbers[i])])
        return found

    def _alike(self, question: str, asked: frozenset[str], query: Vector) -> float:
        own, vector = self._terms[question], self._vectors.get(question)
        shared = len(own & asked) / len(own | asked) if own | asked else 0.0
        if vector is None or query is None:
            return shared
        near = (float(vector @ query) - ALIKE) / (SAME - ALIKE)
        return max(shared, min(1.0, max(0.0, near)))
