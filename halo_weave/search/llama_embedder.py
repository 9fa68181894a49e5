"""Embed texts with any embedding GGUF, by default MiniLM, through llama.cpp."""

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

PREFIX_FILE = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What a model expects in front of queries and passages."""

    query: str = ""
    passage: str = ""


BGE_PREFIXES = Prefixes(query="Represent this sentence for searching relevant passages: ")
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
    ("bge-", BGE_PREFIXES),
    ("mxbai-embed", BGE_PREFIXES),
    ("snowflake-arctic-embed", BGE_PREFIXES),
)


def prefixes_of(path: Path, name: str) -> Prefixes:
    """The prefixes from `PREFIX_FILE` beside the model, else those of the model family, which is recognised by the
    beginning of the model's or the file's name."""
    prefix_file = path.parent / PREFIX_FILE
    if prefix_file.is_file():
        try:
            prompts = json.loads(prefix_file.read_text(encoding="utf-8")).get("prompts") or {}
        except (ValueError, AttributeError):
            prompts = {}
        if prompts:
            passage = prompts.get("document", prompts.get("passage", ""))
            return Prefixes(str(prompts.get("query", "")), str(passage))
    for candidate in (name, path.stem):
        plain = candidate.lower().replace(" ", "-").replace("_", "-")
        for family, prefixes in FAMILIES:
            if plain.startswith(family):
                return prefixes
    return Prefixes()


MAX_TOKENS = 256  # MiniLM was trained with no more, and one vector cannot represent a longer text well
BATCH = 512  # most tokens computed together
SEQUENCES = 64  # most texts computed together
BACKLOG = 4096  # tokens in one call from which on the faster encoder is used: more than a turn has
SMALL_MODEL = 200_000_000  # bytes of weights
POOLINGS = (bindings.POOLING_MEAN, bindings.POOLING_CLS, bindings.POOLING_LAST)
INTS = ctypes.POINTER(ctypes.c_int32)


class _Encoder(Protocol):
    """Computes one vector for each text."""

    def encode(self, texts: Sequence[Ids]) -> Vectors: ...


class LlamaEncoder:
    """Computes vectors with llama.cpp, for any architecture that it knows. Calls from several threads wait for each other."""

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
        # None for models without a KV cache, such as BERT.
        self._memory = self._c.llama_get_memory(self._context)

    def encode(self, texts: Sequence[Ids]) -> Vectors:
        with self._lock:
            if not self._context:
                raise EngineError("The embedder is closed.")
            return self._encode(texts)

    def _encode(self, texts: Sequence[Ids]) -> Vectors:
        lengths = [len(text) for text in texts]
        total = sum(lengths)
        tokens = np.concatenate(texts).astype(np.int32)
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        sequences = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
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
                f"llama.cpp could not embed {len(texts)} texts (code {code}){self._model.library.error_detail()}."
            )
        vectors = np.empty((len(texts), self.dimension), np.float32)
        for i in range(len(texts)):
            pooled = self._c.llama_get_embeddings_seq(self._context, i)
            vectors[i] = np.ctypeslib.as_array(pooled, (self.dimension,))
        return vectors

    def close(self) -> None:
        with self._lock:
            if self._context:
                self._c.llama_free(self._context)
                self._context = None


class LlamaEmbedder:
    """An embedding model. Queries have an encoder of their own, so that they do not wait for chunks being embedded.

    A backlog for a plain BERT is computed with BLAS. That is up to twice as fast, but uses all cores and would slow down a
    model that is generating, so single turns are computed with llama.cpp.
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
                f"{path} is a chat model ({header.architecture}) without pooling, so its vectors cannot be "
                "used for search. Give an embedding GGUF, or leave --embedder out for the default."
            )
        self._lock = threading.Lock()  # for the encoders
        self._encoder: LlamaEncoder | None = None
        self._query_encoder: LlamaEncoder | None = None
        self._backlog_encoder: BertEncoder | None = None
        self._compute, self._header = compute, header
        self._model = Model(path, header, library.load(), gpu_layers=0)
        # A small model is fastest on one thread: a layer takes less time than synchronizing two threads.
        self._threads = threads or (1 if header.size < SMALL_MODEL else physical_cores())
        try:
            self._encoder = LlamaEncoder(self._model, self._threads)
        except BaseException:
            self.close()
            raise
        self.dimension = self._encoder.dimension
        self.max_tokens = min(MAX_TOKENS, self._model.trained_context, BATCH)
        name = str(header.values.get("general.name") or path.stem)
        self._prefixes = prefixes_of(path, name)
        self.name, self.file = f"{name} {_fingerprint(path)}", str(path)

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """(texts, dimension), each of length 1. Texts longer than `max_tokens` are truncated."""
        prefix = self._prefixes.query if query else self._prefixes.passage
        token_ids = [self._truncate(self._tokenize(prefix + text)) for text in texts]
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        # An empty text has no tokens if the vocabulary has no tokens for beginning and end; its vector stays zero.
        nonempty = [i for i, ids in enumerate(token_ids) if len(ids)]
        encoder = self._encoder_for(sum(len(ids) for ids in token_ids), query=query)
        for first, stop in _batches([len(token_ids[i]) for i in nonempty]):
            vectors[nonempty[first:stop]] = encoder.encode([token_ids[i] for i in nonempty[first:stop]])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths == 0, 1, lengths), np.float32)

    def close(self) -> None:
        with self._lock:
            for encoder in (self._encoder, self._query_encoder):
                if encoder:
                    encoder.close()
            self._encoder = self._query_encoder = self._backlog_encoder = None
            self._model.close()

    def _encoder_for(self, tokens: int, *, query: bool) -> _Encoder:
        """The encoder for so many tokens: BLAS for a backlog if it can compute the model, else llama.cpp. Encoders are opened
        on first use."""
        with self._lock:
            if not self._encoder:
                raise EngineError("The embedder is closed.")
            if self._compute == "llama" or (self._compute == "auto" and tokens < BACKLOG):
                if not query:
                    return self._encoder
                if self._query_encoder is None:
                    self._query_encoder = LlamaEncoder(self._model, self._threads)
                return self._query_encoder
            if self._backlog_encoder is None:
                self._backlog_encoder = open_bert(self._model.path, self._header)
            return self._backlog_encoder or self._encoder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tokenize(self, text: str) -> Ids:
        clean = text.replace("\x00", " ").encode("utf-8", "replace").decode("utf-8")
        return self._model.tokenize_ids(clean, add_special=True)

    def _truncate(self, ids: Ids) -> Ids:
        if len(ids) <= self.max_tokens:
            return ids
        c, vocabulary = self._model.c, self._model.vocabulary
        closing = c.llama_vocab_sep(vocabulary) if self._model.bert_like else c.llama_vocab_eos(vocabulary)
        # The closing token is kept, since pooling may read it.
        if int(ids[-1]) == int(closing):
            return np.concatenate([ids[: self.max_tokens - 1], ids[-1:]])
        return ids[: self.max_tokens]


def _batches(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive texts that fit into one batch."""
    first = total = 0
    for i, length in enumerate(lengths):
        if i > first and (total + length > BATCH or i - first == SEQUENCES):
            yield first, i
            first, total = i, 0
        total += length
    if first < len(lengths):
        yield first, len(lengths)


def _fingerprint(path: Path) -> str:
    """A hash that distinguishes files of the same name, without reading all of them."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 16))
        file.seek(max(0, size - (1 << 16)))
        digest.update(file.read())
    return digest.hexdigest()[:8]


DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"


def default_embedder_file() -> Path:
    """The path of the default embedder. The GGUF is converted from the published weights if only these are there."""
    entry = catalogue.DEFAULT_EMBEDDER
    folder = entry.path.parent
    target = folder / f"{DEFAULT_EMBEDDER}.F16.gguf"
    if not target.is_file():
        if not entry.present:
            raise ModelNotFound(f"There is no embedder at {target}. Try: halo-weave pull")
        # Imported here, since it is needed only once.
        from halo_weave.search.embedder_conversion import convert

        convert(folder, target, name=DEFAULT_EMBEDDER)
    return target


def open_embedder(path: Path | None = None) -> LlamaEmbedder:
    """Open an embedding GGUF, or the default embedder."""
    return LlamaEmbedder(path or default_embedder_file())
