"""Settings become a wired system. The only file that names concrete adapters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, cast

from halo_weave.embedders.hashing import HashingEmbedder
from halo_weave.embedders.standard import open_embedder
from halo_weave.engines.llama import Limits, LlamaEngine
from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.index.recall import Recall
from halo_weave.index.reindex import reindex
from halo_weave.llama import catalogue
from halo_weave.llama.footprint import KvType
from halo_weave.llama.inventory import chosen_weights
from halo_weave.memory import Hit, MemoryTree, Notes, Search, Toolbox
from halo_weave.places import memory_file
from halo_weave.ports import Embedder, Engine
from halo_weave.settings import Settings
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.weave import Weave

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose: where the memory lies, which models, how much of the machine."""

    data: Path
    model: Path | str | None = (
        None  # a file or a name; None: the default of the catalogue, pulled if it is not there
    )
    embedder: Path | Literal["off"] | None = None  # None: the default, likewise
    engine: Literal["llama", "scripted"] = "llama"
    context: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    kv_type: KvType | None = None
    batch: int | None = None
    settings: Settings = field(default_factory=Settings)


def assemble(options: Options, progress: Progress = silent) -> Weave:
    """A whole system. What was opened is closed again if a later part fails."""
    if isinstance(options.embedder, Path):
        named_embedder(options.embedder)  # before the model is loaded
    engine = open_engine(options, progress)
    try:
        store = SqliteStore(memory_file(options.data))
    except BaseException:
        engine.close()
        raise
    recall = open_recall(options, store, progress)
    tree = MemoryTree(store, search=kept_with_memories(store, recall), embedder=recall.embedder)
    return Weave(engine, store, recall, Toolbox(Notes(store), tree), defaults=options.settings)


def open_engine(options: Options, progress: Progress = silent) -> Engine:
    if options.engine == "scripted":
        return ScriptedEngine()
    path = chosen_weights(options.model, progress)
    progress("Loading the model", 0, 0)
    chosen = {
        name: getattr(options, name) for name in ("context", "threads", "gpu_layers", "kv_type", "batch")
    }
    return LlamaEngine(
        path, limits=Limits(**{name: value for name, value in chosen.items() if value is not None})
    )


def open_recall(options: Options, store: SqliteStore, progress: Progress) -> Recall:
    """Search. The embedder opens in the background; until it is there, or without one, words serve."""
    if options.embedder == "off":
        return Recall(store, None)
    if options.engine == "llama" and options.embedder is None and not catalogue.EMBEDDER.present:
        with suppress(ModelNotFound):  # opening it fails in turn, and the status says so
            catalogue.ensure(catalogue.EMBEDDER, progress)
    return Recall(store, lambda: chosen_embedder(options))


def named_embedder(path: Path) -> Path:
    """A file that was named must be there; only the standard one may still be missing."""
    if not path.is_file():
        raise ModelNotFound(
            f"There is no embedder at {path}. Name an embedding GGUF, or off for words alone."
        )
    return path


def chosen_embedder(options: Options) -> Embedder:
    if options.embedder == "off":
        raise BadInput("Nothing can be embedded without an embedder: it is off.")
    if options.engine == "scripted" and options.embedder is None:
        return HashingEmbedder()
    return open_embedder(options.embedder)


def embed_anew(options: Options, weave: Weave, progress: Callable[[int, int], None]) -> None:
    """All of memory by the embedder of the options. Until it is done, the vectors that are there stay."""
    with closing(chosen_embedder(options)) as embedder:
        reindex(cast(SqliteStore, weave.store), embedder, now=weave.now, progress=progress)


def kept_with_memories(store: SqliteStore, recall: Recall) -> Search:
    """Recall as the structured memory asks it: for the chunks that explain what is saved."""

    def search(text: str, limit: int, within: str | None) -> list[Hit]:
        found = recall.search(text, window=within, limit=limit, now=datetime.now(UTC), user_weight=1.0)
        records = {record.key: record for record in store.chunks_by_key([hit.key for hit in found])}
        return [
            Hit(hit.key, record.chunk.text, len(record.chunk), hit.similarity, said=record.said)
            for hit in found
            if (record := records.get(hit.key)) and not record.gone
        ]

    return search
