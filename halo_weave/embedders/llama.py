"""Any embedding GGUF through llama.cpp: texts of different length share a batch, without padding."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.embedders.prefixes import prefixes_of
from halo_weave.errors import EngineError, ModelUnusable
from halo_weave.llama import abi, library
from halo_weave.llama.header import read_header
from halo_weave.llama.model import Model, cores
from halo_weave.ports import Vectors

MAX_TOKENS = 256  # MiniLM was trained no further, and a longer text says too many things for one vector
BATCH = 512  # tokens computed together
SEQUENCES = 64  # texts computed together
INTS = ctypes.POINTER(ctypes.c_int32)


class LlamaEmbedder:
    """One model, one context. Calls from several threads wait for each other."""

    def __init__(self, path: Path, *, threads: int | None = None, max_tokens: int = MAX_TOKENS) -> None:
        header = read_header(path)
        if not header.embeds:
            raise ModelUnusable(
                f"{path} is a chat model ({header.architecture}): it has no pooling, so its vectors would not be "
                "of use for search. Give an embedding GGUF, or leave --embedder out for the default."
            )
        self._model = Model(path, header, library.load(), gpu_layers=0)
        self._c = self._model.c
        self._context: int | None = None
        self._lock = threading.Lock()
        try:
            self._open(path, threads or cores(), max_tokens)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, threads: int, max_tokens: int) -> None:
        model = self._model
        declared = model.header.get("pooling_type")
        self._max_tokens = min(max_tokens, model.trained_context)
        self._context = model.context(
            n_ctx=BATCH,
            n_batch=BATCH,
            n_ubatch=BATCH,
            n_seq_max=SEQUENCES,
            n_threads=threads,
            n_threads_batch=threads,
            embeddings=True,
            kv_unified=True,
            pooling_type=abi.POOLING_UNSPECIFIED if declared else abi.POOLING_MEAN,
        )
        self._pooling = int(self._c.llama_pooling_type(self._context))
        if self._pooling not in (abi.POOLING_MEAN, abi.POOLING_CLS, abi.POOLING_LAST):
            raise ModelUnusable(f"{path} is a reranker, not an embedder. Give an embedding GGUF.")
        self._dimension = int(self._c.llama_model_n_embd_out(model.handle))
        called = str(model.header.values.get("general.name") or path.stem)
        self._prefixes = prefixes_of(path, called)
        self._name = f"{called} {fingerprint(path)}"
        # An encoder reads the whole text at once and keeps no cache.
        self._causal = bool(self._c.llama_get_memory(self._context))

    @property
    def name(self) -> str:
        return self._name

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def max_tokens(self) -> int:
        return self._max_tokens

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """(texts, dimension), each of length 1. What is longer than `max_tokens` loses its end."""
        prefix = self._prefixes.query if query else self._prefixes.passage
        runs = [self._cut(self._ids(prefix + text)) for text in texts]
        vectors = np.zeros((len(texts), self._dimension), np.float32)
        for first, last in packed([len(run) for run in runs]):
            # One batch per turn of the lock, so that a question does not wait for a long backlog.
            with self._lock:
                vectors[first:last] = self._batch(runs[first:last])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths == 0, 1, lengths), np.float32)

    def close(self) -> None:
        with self._lock:
            if self._context:
                self._c.llama_free(self._context)
                self._context = None
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ids(self, text: str) -> Ids:
        clean = text.replace("\x00", " ").encode("utf-8", "replace").decode("utf-8")
        return self._model.tokenize_ids(clean, around=True)

    def _cut(self, ids: Ids) -> Ids:
        if len(ids) <= self._max_tokens:
            return ids
        closing = self._c.llama_vocab_sep if self._model.bert_like else self._c.llama_vocab_eos
        # The token that closes a text stays: pooling may read it.
        if int(ids[-1]) == int(closing(self._model.vocabulary)):
            return np.concatenate([ids[: self._max_tokens - 1], ids[-1:]])
        return ids[: self._max_tokens]

    def _batch(self, runs: Sequence[Ids]) -> Vectors:
        if not self._context:
            raise EngineError("The embedder is closed.")
        total = sum(len(run) for run in runs)
        vectors = np.zeros((len(runs), self._dimension), np.float32)
        if not total:
            return vectors
        tokens = np.concatenate(runs).astype(np.int32)
        positions = np.concatenate([np.arange(len(run), dtype=np.int32) for run in runs])
        sequences = np.repeat(np.arange(len(runs), dtype=np.int32), [len(run) for run in runs])
        ones = np.ones(total, np.int32)
        flags = np.ones(total, np.int8)
        at = sequences.ctypes.data
        pointers = (INTS * total)(*(ctypes.cast(at + 4 * i, INTS) for i in range(total)))
        batch = abi.Batch(
            total,
            tokens.ctypes.data_as(INTS),
            None,
            positions.ctypes.data_as(INTS),
            ones.ctypes.data_as(INTS),
            pointers,
            flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        if self._causal:
            self._c.llama_memory_clear(self._c.llama_get_memory(self._context), False)
            code = self._c.llama_decode(self._context, batch)
        else:
            code = self._c.llama_encode(self._context, batch)
        if code:
            raise EngineError(
                f"llama.cpp could not embed {len(runs)} texts (code {code}){self._model.library.complaint()}."
            )
        for i, run in enumerate(runs):
            if len(run):
                pooled = self._c.llama_get_embeddings_seq(self._context, i)
                vectors[i] = np.ctypeslib.as_array(pooled, (self._dimension,))
        return vectors


def packed(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of texts, in order, that fit one batch together."""
    first = total = 0
    for i, length in enumerate(lengths):
        if i > first and (total + length > BATCH or i - first == SEQUENCES):
            yield first, i
            first, total = i, 0
        total += length
    if first < len(lengths):
        yield first, len(lengths)


def fingerprint(path: Path) -> str:
    """Tells one file from another of the same name, without reading all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 16))
        file.seek(max(0, size - (1 << 16)))
        digest.update(file.read())
    return digest.hexdigest()[:8]
