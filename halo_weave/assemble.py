"""Settings become a wired system. The only file that names concrete adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from halo_weave.core.words import terms
from halo_weave.engines.llama import Limits, LlamaEngine
from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.llama import catalogue
from halo_weave.memory import MemoryTree, Notes, Toolbox
from halo_weave.places import memory_file
from halo_weave.ports import Engine
from halo_weave.settings import Settings
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.weave import Weave
from halo_weave.weave.needs import RecallHit

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


def silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose: where the memory lies, which models, how much of the machine."""

    data: Path
    model: Path | None = None  # None: the default of the catalogue, pulled if it is not there
    embedder: Path | Literal["off"] | None = None  # None: the default, likewise
    engine: Literal["llama", "scripted"] = "llama"
    context: int | None = None
    threads: int | None = None
    settings: Settings = field(default_factory=Settings)


def assemble(options: Options, progress: Progress = silent) -> Weave:
    """A whole system. What was opened is closed again if a later part fails."""
    engine = open_engine(options, progress)
    try:
        store = SqliteStore(memory_file(options.data))
    except BaseException:
        engine.close()
        raise
    toolbox = Toolbox(Notes(store), MemoryTree(store))
    return Weave(engine, store, _Words(store), toolbox, defaults=options.settings)


def open_engine(options: Options, progress: Progress = silent) -> Engine:
    if options.engine == "scripted":
        return ScriptedEngine()
    path = options.model or catalogue.ensure(catalogue.CHAT, progress)
    progress("Loading the model", 0, 0)
    limits = Limits(threads=options.threads)
    if options.context:
        limits = Limits(threads=options.threads, context=options.context)
    return LlamaEngine(path, limits=limits)


class _Words:
    """Words alone, until recall is wired."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def search(self, text: str, *, window: str | None = None, limit: int = 50, **_: Any) -> list[RecallHit]:
        asked = list(dict.fromkeys(word for word in terms(text) if len(word) > 3))
        if not asked:
            return []
        match = " OR ".join(f'"{word}"' for word in asked)
        found = dict(self.store.search_words(match, limit, window=window))
        return [
            RecallHit(one.key, float(found[one.number]), {"words": float(found[one.number])}, tuple(asked))
            for one in self.store.chunks(found)
        ]

    def note_said(self) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return {"state": "off"}

    def close(self) -> None:
        pass
