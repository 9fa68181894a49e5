"""An embedder for tests: words hashed into a vector."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from halo_weave.core.terms import STOP_WORDS, terms
from halo_weave.engines.base import Vectors


class HashingEmbedder:
    """Texts that share words are near each other."""

    def __init__(self, dimension: int = 64, *, name: str = "hashing") -> None:
        self.name, self.dimension, self.max_tokens = name, dimension, 256
        self.file, self.closed = "", False

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for i, text in enumerate(texts):
            for term in terms(text)[: self.max_tokens]:
                if term not in STOP_WORDS["english"]:
                    digest = hashlib.blake2b(term.encode(), digest_size=8).digest()
                    place = int.from_bytes(digest[:4], "little") % self.dimension
                    vectors[i, place] += 1 if digest[4] & 1 else -1
        vectors[~vectors.any(axis=1), 0] = 1
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)

    def close(self) -> None:
        self.closed = True
