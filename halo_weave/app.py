"""Build a running system from the configuration: open the engine, the store, search and the tools, and connect them."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from halo_weave.chat import Weave
from halo_weave.chat.capture import CaptureWriter, TurnRecorder, drop_captures
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import SnapshotChunk, SnapshotSearch, StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, Calibration
from halo_weave.engines.base import Embedder, Engine, SearchFilter
from halo_weave.engines.calibration import load_calibration, load_or_calibrate, pending_calibration
from halo_weave.engines.engine_list import EngineList, NamedEngine
from halo_weave.engines.llama import library
from halo_weave.engines.llama.cache_files import DiskUse, clear_disk, disk_use
from halo_weave.engines.llama.devices import ADVICE, LlamaBuild, inspect_build
from halo_weave.engines.no_model import NoModelEngine
from halo_weave.errors import BadInput, HaloWeaveError, ModelNotFound, StoreError, StoreTooNew
from halo_weave.models import catalogue
from halo_weave.models.inventory import resolve
from halo_weave.models.memory_estimate import KvType
from halo_weave.paths import (
    calibration_folder,
    captures_folder,
    index_snapshot_file,
    kv_cache_folder,
    memory_file,
    models_folder,
)
from halo_weave.search.embedding_worker import reindex
from halo_weave.search.llama_embedder import LlamaEmbedder, default_embedder_file, open_embedder
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.state_file import (
    changed_models,
    forget_idle_reading,
    mark_model_in_use,
    remember_embedder,
    remember_idle_reading,
    remember_model,
    remembered_idle_reading,
)
from halo_weave.store.records import MemoryStats, VerifyFinding
from halo_weave.store.sql_store import SqlStore
from halo_weave.store.sqlite import SqliteStore
from halo_weave.store.transfer import transfer_memory

log = logging.getLogger(__name__)
EMBEDDERS: dict[str, Callable[[], Embedder]] = {}  # default embedders by engine; for engines of tests
Progress = Callable[[str, int, int], None]  # the current step, the amount done, the total amount


ProgressDisplay = Callable[
    [Progress], AbstractContextManager[Progress]
]  # takes a progress callback, returns one that also shows the progress


def _no_progress(what: str, done: int, total: int) -> None:
    pass


def _no_display(progress: Progress) -> AbstractContextManager[Progress]:
    return nullcontext(progress)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line and the configuration: memory, models, resources."""

    data: Path
    store: str | None = None  # the memory's address; None: it is in the data folder
    model: Path | str | None = None  # a file or a name; None: the default model, downloaded if it is missing
    remembered: str | None = None  # the model chosen in an earlier run; used if `model` is None
    embedder: Path | Literal["off"] | None = None  # None: the default embedder, downloaded if it is missing
    engine: str = "llama"  # one of `ENGINES`
    url: str = ""  # URL of the server, for a remote engine
    model_name: str = ""  # name of the model on the server
    shadow_model: str = ""  # the shadow model: a file, a name or "off"; empty: the smallest of the catalogue
    engine_key: str = field(default="", repr=False)  # API key of the server, for a remote engine
    context: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    kv_type: KvType | None = None
    batch: int | None = None
    disk_cache: int | None = None  # GB for the KV cache on disk; 0: none
    ram_cache: int | None = None  # MB of memory for saved cells of pruned text; 0: none
    engines: Mapping[str, NamedEngine] = field(
        default_factory=dict
    )  # engines of the config file, which windows can choose
    settings: Settings = field(default_factory=Settings)


def build_weave(options: Options, progress: Progress = _no_progress) -> Weave:
    """Build the whole system. If a later part fails, the parts that are open already are closed again."""
    if isinstance(options.embedder, Path):
        named_embedder(options.embedder)  # before the model is loaded
    _warn_about_changed_models(options)
    engine = open_model(options, None, progress)
    try:
        calibration = calibrate_engine(options, engine, progress)
        store = open_store(options.store or options.data, beside=options.data)
    except BaseException:
        engine.close()
        raise
    chosen = _EmbedderChoice(options)
    return _connect_parts(
        options, engine, calibration, store, _open_recall(chosen, store, progress), chosen, _no_display
    )


def build_weave_without_model(options: Options, display: ProgressDisplay = _no_display) -> Weave:
    """Build the system without its model, which `weave.models.load()` opens. `display` shows the progress."""
    if isinstance(options.embedder, Path):
        named_embedder(options.embedder)
    _warn_about_changed_models(options)
    store = open_store(options.store or options.data, beside=options.data)
    chosen = _EmbedderChoice(options)
    recall, engine = _open_recall(chosen, store), NoModelEngine(kv_cache_folder(options.data))
    return _connect_parts(options, engine, NOT_CALIBRATED, store, recall, chosen, display)


def _connect_parts(
    options: Options,
    engine: Engine,
    calibration: Calibration,
    store: SqlStore,
    recall: MemorySearch,
    embedder: _EmbedderChoice,
    display: ProgressDisplay,
) -> Weave:
    listed = EngineList(options.data, options.engines)
    tree = StructuredMemory(store, search=snapshot_search(store, recall), embedder=recall.embedder)

    def open_now(name: str | None, progress: Progress) -> tuple[Engine, Calibration | None]:
        with display(progress) as report:
            engine = open_model(options, name, report)
            try:
                return engine, _stored_calibration(options, engine, report)
            except BaseException:
                engine.close()
                raise

    return Weave(
        engine,
        store,
        recall,
        Toolbox(Notes(store), tree),
        defaults=options.settings,
        calibration=calibration,
        new_recorder=partial(_new_recorder, options.data),
        delete_recordings=partial(drop_captures, captures_folder(options.data)),
        embed_anew=None if options.embedder == "off" else partial(embedder.embed_anew, store),
        open_model=open_now,
        calibrate=partial(calibrate_engine, options),
        remember_model=partial(remember_model, options.data),
        engine_list=listed,
        open_other=lambda name: open_named(options, listed.get(name)),
        local_tokenizer=NoModelEngine(kv_cache_folder(options.data)),
        remember_idle_reading=lambda progress: remember_idle_reading(options.data, asdict(progress)),
    )


def _new_recorder(
    data: Path, window_id: str, settings: Settings, engine: Engine, calibration: Calibration
) -> TurnRecorder:
    folder, most = captures_folder(data) / window_id, settings.capture_megabytes
    return CaptureWriter.open(folder, window_id, engine, calibration, heads=settings.capture, most=most)


def _warn_about_changed_models(options: Options) -> None:
    for sentence in changed_models(options.data):
        log.warning(sentence)


def open_model(options: Options, name: str | None, progress: Progress = _no_progress) -> Engine:
    """Open the engine of a model.

    Without a name: the model of the options, else the one chosen in an earlier run, else the default of the catalogue.
    A named model runs in this process, even if the options name a remote engine.
    """
    if name is not None:
        here = "llama" if options.engine in REMOTE_ENGINES else options.engine
        engine = open_engine(replace(options, engine=here, model=name), progress, check_fits=True)
    elif options.model is None and options.remembered:
        try:
            engine = open_engine(replace(options, model=options.remembered), progress, check_fits=True)
        except HaloWeaveError as error:
            log.warning("%s was chosen before and cannot be used: %s", options.remembered, error)
            engine = open_engine(options, progress)
    else:
        engine = open_engine(options, progress)
    if engine.info.file:
        mark_model_in_use(options.data, engine.info.file)
    return engine


def open_named(
    options: Options, named: NamedEngine, progress: Progress = _no_progress
) -> tuple[Engine, Calibration]:
    """Open an engine that a window has chosen, with its calibration if there is one."""
    local = named.kind == "llama"
    chosen = replace(
        options,
        engine=named.kind,
        url=named.url,
        engine_key=named.key,
        shadow_model=named.shadow_model,
        model=named.model_name or None if local else None,
        model_name="" if local else named.model_name,
    )
    engine = open_engine(chosen, progress, check_fits=local)
    try:
        return engine, _stored_calibration(chosen, engine, progress) or pending_calibration(engine)
    except BaseException:
        engine.close()
        raise


def open_store(place: Path | str, *, read_only: bool = False, beside: Path | None = None) -> SqlStore:
    """Open the memory in a folder, or at an address such as scheme://host/name.

    `read_only`: the memory must exist already. `beside`: the folder for temporary files if the memory has none.
    """
    scheme = str(place).partition("://")[0] if "://" in str(place) else ""
    if scheme not in STORES:
        raise BadInput(
            f"There is no store for {scheme}:// addresses. Name a folder, or postgresql://user@host/name."
        )
    return STORES[scheme](str(place), read_only, beside)


def _open_sqlite(folder: str, read_only: bool, beside: Path | None) -> SqlStore:
    path = memory_file(Path(folder))
    try:
        return SqliteStore(path, read_only=read_only)
    except StoreTooNew:
        # An older schema is brought up to date when the file is opened for writing; a newer one is refused again.
        return SqliteStore(path)


def _open_postgres(address: str, read_only: bool, beside: Path | None) -> SqlStore:
    try:
        from halo_weave.store.postgres.store import PostgresStore
    except ImportError as error:
        raise StoreError("PostgreSQL needs: pip install 'halo-weave[postgres]'") from error
    try:
        return PostgresStore(address, read_only=read_only, folder=beside)
    except StoreTooNew:
        return PostgresStore(address, folder=beside)  # as for SQLite


# By scheme; a folder has none.
STORES: dict[str, Callable[[str, bool, Path | None], SqlStore]] = {
    "": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}


def move_memory(
    source: Path | str, target: Path | str, progress: Callable[[int, int], None]
) -> tuple[MemoryStats, list[VerifyFinding]]:
    """Copy a memory to another place. Returns what `verify` finds there. The source stays unchanged."""
    if str(source) == str(target):
        raise BadInput(f"The memory is at {target} already. Name another place with --to.")
    open_store(source, read_only=True).close()  # do not create a memory
    with open_store(source) as store:
        assert isinstance(store, SqlStore)  # true for all entries of STORES
        return store.stats(), transfer_memory(store, target, progress=progress)


class _OpenEngine(Protocol):
    def __call__(
        self, model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
    ) -> Engine: ...


def _open_llama(
    model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
) -> Engine:
    from halo_weave.engines.llama.devices import check_memory
    from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
    from halo_weave.models.inventory import chosen_weights, title_of

    path = chosen_weights(model, progress)
    if check_fits:
        check_memory(path, limits.get("context"), limits.get("kv_type") or "f16")
    progress("Loading the model", 0, 0)
    return LlamaEngine(path, limits=EngineLimits(**limits), name=title_of(path))


def _open_kobold(
    model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
) -> Engine:
    from halo_weave.engines.kobold import KoboldEngine

    progress("Asking the server for its model", 0, 0)
    client = f"{platform.node()} {limits.get('cells')}"
    return KoboldEngine(limits["url"], limits.get("key") or "", client=client, context=limits.get("context"))


def _open_openai(
    model: Path | str | None, progress: Progress, *, check_fits: bool = False, **limits: Any
) -> Engine:
    from halo_weave.engines.openai import OpenAiEngine

    shadow_model = None
    if limits.get("shadow_model") != "off":
        shadow_model = limits["open_shadow_model"](limits.get("shadow_model") or None, progress)
    try:
        progress("Asking the server for its model", 0, 0)
        return OpenAiEngine(
            limits["url"],
            limits.get("key") or "",
            model=limits.get("model_name") or "",
            shadow_model=shadow_model,
            context=limits.get("context"),
        )
    except BaseException:
        if shadow_model is not None:
            shadow_model.close()
        raise


ENGINES: dict[str, _OpenEngine] = {
    "llama": _open_llama,
    "kobold": _open_kobold,
    "openai": _open_openai,
}
REMOTE_ENGINES = ("kobold", "openai")  # engines that need the address of a server


def open_engine(options: Options, progress: Progress = _no_progress, *, check_fits: bool = False) -> Engine:
    """Open an engine. `check_fits`: refuse a model that needs more memory than this machine has, before loading it."""
    names = ("context", "threads", "gpu_layers", "kv_type", "batch")
    chosen = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.disk_cache is not None:
        chosen["cells_bytes"] = options.disk_cache << 30
    if options.ram_cache is not None:
        chosen["graveyard_bytes"] = options.ram_cache << 20
    chosen["cells"] = kv_cache_folder(options.data)
    if options.engine in REMOTE_ENGINES:
        chosen |= {"url": options.url, "key": options.engine_key}
        chosen |= {"model_name": options.model_name, "shadow_model": options.shadow_model}
        chosen["open_shadow_model"] = partial(_open_shadow_model, options)
    return ENGINES[options.engine](options.model, progress, check_fits=check_fits, **chosen)


def _open_shadow_model(options: Options, name: str | None, progress: Progress) -> Engine:
    """Open the small model that supplies attention where the server hides it; by default the smallest of the catalogue."""
    return open_engine(replace(options, engine="llama", model=name or catalogue.SMOLLM2_135M.name), progress)


def calibrate_engine(
    options: Options, engine: Engine, progress: Progress = _no_progress, *, force: bool = False
) -> Calibration:
    """The calibration of the engine's model. It is computed once for each model file."""
    folder, shared = _calibration_folders(options)
    return load_or_calibrate(engine, folder, progress, force=force, shared=shared)


def _stored_calibration(options: Options, engine: Engine, progress: Progress) -> Calibration | None:
    folder, shared = _calibration_folders(options)
    return load_calibration(engine, folder, progress, shared=shared)


def _calibration_folders(options: Options) -> tuple[Path, Path]:
    """The folder in the user's data folder, and the one beside the models."""
    return calibration_folder(options.data), calibration_folder(models_folder())


class _EmbedderChoice:
    """The embedder that makes and searches vectors: the one of the options, until the user chooses another."""

    def __init__(self, options: Options) -> None:
        self.options, self.file = options, options.embedder

    def pull(self, progress: Progress) -> None:
        if (
            self.file is None
            and self.options.engine not in EMBEDDERS
            and not catalogue.DEFAULT_EMBEDDER.present
        ):
            catalogue.ensure(catalogue.DEFAULT_EMBEDDER, progress)

    def open(self) -> Embedder:
        return self._opened(self.file)

    def embed_anew(self, store: SqlStore, name: str | None, progress: Progress) -> None:
        """Embed all of memory with the embedder of this name. The existing vectors are used until it is done."""
        file = self.file if name is None else embedder_file(name, progress)
        with closing(self._opened(file)) as embedder:
            report = partial(progress, "")
            reindex(store, embedder, now=lambda: datetime.now(UTC), progress=report)
        self.file = file
        if name is not None:
            remember_embedder(self.options.data, name)

    def _opened(self, file: Path | Literal["off"] | None) -> Embedder:
        if file is None and (own := EMBEDDERS.get(self.options.engine)):
            return own()
        return open_embedder(None if file == "off" else file)


def _open_recall(chosen: _EmbedderChoice, store: SqlStore, progress: Progress | None = None) -> MemorySearch:
    """Open search. The embedder opens in the background; until then, or without one, only words are searched.

    Without `progress`, the embedder is downloaded in the background, too.
    """
    if chosen.file == "off":
        return MemorySearch(store, None)
    if progress:
        with suppress(ModelNotFound):  # opening it will fail later, and the status will say why
            chosen.pull(progress)

    def open_now() -> Embedder:
        if not progress:
            chosen.pull(_no_progress)
        return chosen.open()

    return MemorySearch(store, open_now, snapshot_path=index_snapshot_file(chosen.options.data))


def embedder_file(name: str, progress: Progress = _no_progress) -> Path:
    """The file of an embedder by its catalogue name, `hf:` reference or path; downloaded if it is missing."""
    if name == catalogue.DEFAULT_EMBEDDER.name:
        catalogue.ensure(catalogue.DEFAULT_EMBEDDER, progress)
        return default_embedder_file()
    return resolve(name, progress)


def named_embedder(path: Path) -> Path:
    """Check that a named embedder file exists. Only the default one may be missing: it is downloaded later."""
    if not path.is_file():
        raise ModelNotFound(
            f"There is no embedder at {path}. Name an embedding GGUF, or off for words alone."
        )
    return path


def snapshot_search(store: SqlStore, recall: MemorySearch) -> SnapshotSearch:
    """Search as the structured memory needs it: for the chunks that explain an entry."""

    def search(text: str, limit: int, within: frozenset[str] | None) -> list[SnapshotChunk]:
        only = SearchFilter(windows=within)
        hits = recall.search(text, limit=limit, now=datetime.now(UTC), user_weight=1.0, only=only)
        records = {record.key: record for record in store.chunks_by_key([hit.key for hit in hits])}
        return [
            SnapshotChunk(
                hit.key, record.chunk.text, len(record.chunk), hit.similarity, record.said.isoformat()
            )
            for hit in hits
            if (record := records.get(hit.key)) and not record.gone
        ]

    return search


def open_local_embedder(file: Path | None) -> LlamaEmbedder:
    """Open an embedder for one command; None: the default one."""
    return open_embedder(file)


def inspect_llama() -> tuple[LlamaBuild, Mapping[str, str]]:
    """The llama.cpp of this process (version, backends, devices), and how to install one that uses a GPU."""
    return inspect_build(library.load()), ADVICE


def cache_use(data: Path) -> DiskUse:
    """The size of the KV cache on disk."""
    return disk_use(kv_cache_folder(data))


def idle_reading(data: Path) -> dict[str, Any] | None:
    """How much of the memory a server has read in idle time; None: nothing yet."""
    return remembered_idle_reading(data)


def clear_cache(data: Path) -> DiskUse:
    """Delete the KV cache on disk. Returns its size before."""
    forget_idle_reading(data)
    return clear_disk(kv_cache_folder(data))
