"""Embed texts with any embedding GGUF through llama.cpp, by default with MiniLM."""

from __future__ import annotations

import ctypes
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.engines.base import Vectors
from halo_weave.engines.llama import bindings, library
from halo_weave.engines.llama.model import Model, physical_cores
from halo_weave.errors import EngineError, ModelNotFound, ModelUnusable
from halo_weave.models import catalogue
from halo_weave.models.gguf_header import read_header
from halo_weave.search.bert_encoder import BertEncoder, open_bert

DECLARATION = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class Prefixes:
    query: str = ""
    passage: str = ""


SEARCHING = Prefixes(query="Represent this sentence for searching relevant passages: ")
FAMILIES: tuple[tuple[str, Prefixes], ...] = (
    ("nomic-embed", Prefixes("search_query: ", "search_document: ")),
    ("embeddinggemma", Prefixes("task: search result | query: ", "title: none | text: ")),
    (
        "qwen3-embedding",
        Prefixes(
            "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
        ),
    ),
    ("multilingual-e5", Prefixes("query: ", "passage: ")),
    ("e5-", Prefixes("query: ", "passage: ")),
    ("bge-m3", Prefixes()),
    ("bge-", SEARCHING),
    ("mxbai-embed", SEARCHING),
    ("snowflake-arctic-embed", SEARCHING),
)


def prefixes_of(path: Path, name: str) -> Prefixes:
    """As declared beside the file, else by the family that the model's name or the file's name begins with."""
    declaration = path.parent / DECLARATION
    if declaration.is_file():
        try:
            prompts = json.loads(declaration.read_text(encoding="utf-8")).get("prompts") or {}
        except (ValueError, AttributeError):
            prompts = {}
        if prompts:
            passage = prompts.get("document", prompts.get("passage", ""))
            return Prefixes(str(prompts.get("query", "")), str(passage))
    for called in (name, path.stem):
        plain = called.lower().replace(" ", "-").replace("_", "-")
        for family, prefixes in FAMILIES:
            if plain.startswith(family):
                return prefixes
    return Prefixes()


MAX_TOKENS = 256  # MiniLM was trained no further, and a longer text says too many things for one vector
BATCH = 512  # tokens computed together
SEQUENCES = 64  # texts computed together
BACKLOG = 4096  # tokens asked for at once: more than a turn ever has
SMALL = 200_000_000  # bytes of weights
POOLINGS = (bindings.POOLING_MEAN, bindings.POOLING_CLS, bindings.POOLING_LAST)
INTS = ctypes.POINTER(ctypes.c_int32)


class _Encoder(Protocol):
    """Token ids to one vector for each text."""

    def encode(self, runs: Sequence[Ids]) -> Vectors: ...


class LlamaEncoder:
    """llama.cpp computes: any architecture that it knows. Calls from several threads take turns."""

    def __init__(self, model: Model, threads: int) -> None:
        self._model, self._c = model, model.c
        self._lock = threading.Lock()
        declared = model.header.get("pooling_type")
        self._context: int | None = model.context(
            n_ctx=BATCH,
            n_batch=BATCH,
            n_ubatch=BATCH,
            n_seq_max=SEQUENCES,
            n_threads=threads,
            n_threads_batch=threads,
            embeddings=True,
            kv_unified=True,
            pooling_type=bindings.POOLING_UNSPECIFIED if declared else bindings.POOLING_MEAN,
        )
        if self._c.llama_pooling_type(self._context) not in POOLINGS:
            self.close()
            raise ModelUnusable(f"{model.path} is a reranker, not an embedder. Give an embedding GGUF.")
        self.dimension = int(self._c.llama_model_n_embd_out(model.handle))
        # An encoder reads the whole text at once and keeps no cache.
        self._memory = self._c.llama_get_memory(self._context)

    def encode(self, runs: Sequence[Ids]) -> Vectors:
        with self._lock:
            if not self._context:
                raise EngineError("The embedder is closed.")
            return self._encode(runs)

    def _encode(self, runs: Sequence[Ids]) -> Vectors:
        lengths = [len(run) for run in runs]
        total = sum(lengths)
        tokens = np.concatenate(runs).astype(np.int32)
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        sequences = np.repeat(np.arange(len(runs), dtype=np.int32), lengths)
        ones = np.ones(total, np.int32)
        flags = np.ones(total, np.int8)
        at = sequences.ctypes.data
        batch = bindings.Batch(
            total,
            tokens.ctypes.data_as(INTS),
            None,
            positions.ctypes.data_as(INTS),
            ones.ctypes.data_as(INTS),
            (INTS * total)(*(ctypes.cast(at + 4 * i, INTS) for i in range(total))),
            flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        if self._memory:
            self._c.llama_memory_clear(self._memory, False)
        code = (self._c.llama_decode if self._memory else self._c.llama_encode)(self._context, batch)
        if code:
            raise EngineError(
                f"llama.cpp could not embed {len(runs)} texts (code {code}){self._model.library.error_detail()}."
            )
        vectors = np.empty((len(runs), self.dimension), np.float32)
        for i in range(len(runs)):
            pooled = self._c.llama_get_embeddings_seq(self._context, i)
            vectors[i] = np.ctypeslib.as_array(pooled, (self.dimension,))
        return vectors

    def close(self) -> None:
        with self._lock:
            if self._context:
                self._c.llama_free(self._context)
                self._context = None


class LlamaEmbedder:
    """One model. Questions have an encoder of their own, since a user waits for them; what was just said can wait.

    A backlog of a plain BERT goes through BLAS: faster by more than half, but on all cores, where it would hold up a
    model that is speaking.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int | None = None,
        compute: Literal["auto", "llama", "blas"] = "auto",
    ) -> None:
        header = read_header(path)
        if not header.is_embedder:
            raise ModelUnusable(
                f"{path} is a chat model ({header.architecture}): it has no pooling, so its vectors would not be "
                "of use for search. Give an embedding GGUF, or leave --embedder out for the default."
            )
        self._lock = threading.Lock()  # of what is open
        self._encoder: LlamaEncoder | None = None
        self._questions: LlamaEncoder | None = None
        self._bulk: BertEncoder | None = None
        self._compute, self._header = compute, header
        self._model = Model(path, header, library.load(), gpu_layers=0)
        # A small model is fastest on one thread: its layers take less time than it takes to wake a second one.
        self._threads = threads or (1 if header.size < SMALL else physical_cores())
        try:
            self._encoder = LlamaEncoder(self._model, self._threads)
        except BaseException:
            self.close()
            raise
        self.dimension = self._encoder.dimension
        self.max_tokens = min(MAX_TOKENS, self._model.trained_context, BATCH)
        called = str(header.values.get("general.name") or path.stem)
        self._prefixes = prefixes_of(path, called)
        self.name, self.file = f"{called} {_fingerprint(path)}", str(path)

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """(texts, dimension), each of length 1. What is longer than `max_tokens` loses its end."""
        prefix = self._prefixes.query if query else self._prefixes.passage
        runs = [self._cut(self._ids(prefix + text)) for text in texts]
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        # A vocabulary without opening and closing tokens leaves nothing of an empty text.
        some = [i for i, run in enumerate(runs) if len(run)]
        encoder = self._encoder_for(sum(len(run) for run in runs), query=query)
        for first, last in _packed([len(runs[i]) for i in some]):
            vectors[some[first:last]] = encoder.encode([runs[i] for i in some[first:last]])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths == 0, 1, lengths), np.float32)

    def close(self) -> None:
        with self._lock:
            for encoder in (self._encoder, self._questions):
                if encoder:
                    encoder.close()
            self._encoder = self._questions = self._bulk = None
            self._model.close()

    def _encoder_for(self, tokens: int, *, query: bool) -> _Encoder:
        """BLAS for a backlog, if the model is one that it can compute. What else is needed is opened when it is."""
        with self._lock:
            if not self._encoder:
                raise EngineError("The embedder is closed.")
            if self._compute == "llama" or (self._compute == "auto" and tokens < BACKLOG):
                if not query:
                    return self._encoder
                if self._questions is None:
                    self._questions = LlamaEncoder(self._model, self._threads)
                return self._questions
            if self._bulk is None:
                self._bulk = open_bert(self._model.path, self._header)
            return self._bulk or self._encoder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ids(self, text: str) -> Ids:
        clean = text.replace("\x00", " ").encode("utf-8", "replace").decode("utf-8")
        return self._model.tokenize_ids(clean, add_special=True)

    def _cut(self, ids: Ids) -> Ids:
        if len(ids) <= self.max_tokens:
            return ids
        c, vocabulary = self._model.c, self._model.vocabulary
        closing = c.llama_vocab_sep(vocabulary) if self._model.bert_like else c.llama_vocab_eos(vocabulary)
        # The token that closes a text stays: pooling may read it.
        if int(ids[-1]) == int(closing):
            return np.concatenate([ids[: self.max_tokens - 1], ids[-1:]])
        return ids[: self.max_tokens]


def _packed(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of texts, in order, that fit one batch together."""
    first = total = 0
    for i, length in enumerate(lengths):
        if i > first and (total + length > BATCH or i - first == SEQUENCES):
            yield first, i
            first, total = i, 0
        total += length
    if first < len(lengths):
        yield first, len(lengths)


def _fingerprint(path: Path) -> str:
    """Tells one file from another of the same name, without reading all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 16))
        file.seek(max(0, size - (1 << 16)))
        digest.update(file.read())
    return digest.hexdigest()[:8]


DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"


def default_embedder_file() -> Path:
    """Where the GGUF lies; it is made if only the published weights are there."""
    entry = catalogue.DEFAULT_EMBEDDER
    folder = entry.path.parent
    target = folder / f"{DEFAULT_EMBEDDER}.F16.gguf"
    if not target.is_file():
        if not entry.present:
            raise ModelNotFound(f"There is no embedder at {target}. Try: halo-weave pull")
        # Here, since it is needed once.
        from halo_weave.search.embedder_conversion import convert

        convert(folder, target, name=DEFAULT_EMBEDDER)
    return target


def open_embedder(path: Path | None = None) -> LlamaEmbedder:
    """An embedding GGUF, or the standard one."""
    return LlamaEmbedder(path or default_embedder_file())
