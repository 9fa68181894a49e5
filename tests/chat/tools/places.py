"""What several tests of the AI's memory share: a real store, words as vectors, and a time to count from."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from zlib import crc32

import numpy as np

from halo_weave.chat.tools.notes import JqSandbox
from halo_weave.chat.tools.structured_memory import SnapshotChunk
from halo_weave.core.terms import terms
from halo_weave.core.tokens import ChunkKey, Role

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
PATIENT = JqSandbox(seconds=30)  # a busy machine must not look like an endless program


class BagOfWords:
    """A small embedder: texts that share words are near to each other."""

    def __init__(self, name: str = "bag-of-words", dimension: int = 256) -> None:
        self.name, self.dimension, self.max_tokens = name, dimension, 256
        self.asked: list[str] = []

    def count(self, text: str) -> int:
        return len(terms(text))

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        self.asked.extend(texts)
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in terms(text):
                row[crc32(word.encode()) % self.dimension] += 1
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(lengths, lengths, 1)

    def close(self) -> None:
        pass


def hit(turn: int, text: str, *, tokens: int = 100, similarity: float = 0.5) -> SnapshotChunk:
    said = (NOW - turn % 100 * DAY).isoformat()
    return SnapshotChunk(ChunkKey(turn, 0, Role.USER), text, tokens, similarity, said)
