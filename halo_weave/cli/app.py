"""The halo-weave command, the options that commands share, and progress bars."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from halo_weave import __version__
from halo_weave.app import ENGINES, REMOTE_ENGINES, Options, named_embedder
from halo_weave.cli.terminal import plain
from halo_weave.config import configured_settings, read_config, text_of, whole_of
from halo_weave.engines.engine_list import configured_engines
from halo_weave.errors import BadSetting, HaloWeaveError
from halo_weave.models.catalogue import default_model
from halo_weave.models.hub import SCHEME
from halo_weave.models.inventory import find_model, local_path, resolve
from halo_weave.models.memory_estimate import KV_TYPES, machine_cores, machine_memory
from halo_weave.paths import data_folder
from halo_weave.state_file import remembered_embedder, remembered_model

app = typer.Typer(
    name="halo-weave",
    help="One endless conversation for local models: forgets by attention, remembers in place.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"halo-weave {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


log = logging.getLogger(__name__)
SMALLEST_CONTEXT = 1024  # enough for the system prompt with tools, a short message and a reply
ProgressReport = Callable[[str, int, int], None]  # the current step, the amount done, the total amount

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the memory. Default: HALO_WEAVE_DATA, or the user's data folder."),
]
StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Address of the memory, such as postgresql://user@host/name. Default: HALO_WEAVE_STORE, or a file in the "
        "data folder.",
    ),
]
_named_store: ContextVar[str | None] = ContextVar("store", default=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A chat model: a GGUF file, a name that `halo-weave models` lists, or hf:owner/repository[:quant]. "
        "Default: what the machine has memory for, pulled if needed.",
    ),
]
Embedder = Annotated[
    str | None,
    typer.Option("--embedder", help="An embedding model, named like a chat model, or off. Default: minilm."),
]
Context = Annotated[
    int | None, typer.Option("--context", min=SMALLEST_CONTEXT, help="Tokens that can be live in one window.")
]
KvCacheType = Annotated[
    str | None,
    typer.Option(
        "--kv-type",
        help=f"How keys are stored in the KV cache: {', '.join(KV_TYPES)}. q8_0 takes nearly a quarter less memory and "
        "changed the loss by less than 0.01 nats a token where it was measured.",
    ),
]


NUMBERS = {  # options that are whole numbers, with their ranges in the configuration
    "context": (SMALLEST_CONTEXT, 1 << 24),
    "threads": (1, 1024),
    "gpu_layers": (-1, 1 << 16),
    "batch": (8, 4096),
    "disk_cache": (0, 1 << 16),
    "ram_cache": (0, 1 << 20),
}
_SYSTEM: dict[str, Any] = {  # the options of every command that opens a model, by parameter
    "model": Model,
    "embedder": Embedder,
    "data": Data,
    "context": Context,
    "threads": Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the model.")],
    "gpu_layers": Annotated[
        int | None,
        typer.Option("--gpu-layers", min=-1, help="Layers of the model on the GPU; -1: all."),
    ],
    "kv_type": KvCacheType,
    "batch": Annotated[
        int | None,
        typer.Option("--batch", min=8, max=4096, help="Tokens of a prompt that are read together."),
    ],
    "engine": Annotated[
        str | None,
        typer.Option(
            "--engine", help=f"What runs the model: {', '.join(ENGINES)}. Default: llama, in this process."
        ),
    ],
    "url": Annotated[str | None, typer.Option("--url", help="Address of the server, for a remote engine.")],
    "model_name": Annotated[
        str | None, typer.Option("--model-name", help="Name of the model on the server.")
    ],
    "engine_key": Annotated[str | None, typer.Option("--engine-key", help="API key of the server.")],
    "shadow_model": Annotated[
        str | None,
        typer.Option(
            "--shadow-model",
            help="A small local model that supplies attention if the server hides it, named like a model, or off.",
        ),
    ],
    "disk_cache": Annotated[
        int | None,
        typer.Option(
            "--disk-cache",
            min=0,
            help="GB for the KV cache on disk; 0: none. Default: a tenth of what is free, at most 10.",
        ),
    ],
    "ram_cache": Annotated[
        int | None,
        typer.Option(
            "--ram-cache", min=0, help="MB of memory for the KV cache of pruned text; 0: none. Default: 128."
        ),
    ],
}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that open a model to a command. It gets them as one value, its argument `options`."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    kinds = dict(_SYSTEM)
    if "key" not in (parameter.name for parameter in own):  # the command has no other --key
        kinds["engine_key"] = Annotated[
            str | None,
            typer.Option("--engine-key", "--key", help="API key of the engine's server."),
        ]
    system = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]
    parameters = [
        *(parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own if parameter.name != "options"),
        *system,
    ]

    def run(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in _SYSTEM}
        command(options=options_of(read_config(), **chosen), **values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def add_store_option(family: typer.Typer) -> None:
    """Add --store to every command that has --data."""
    for group in family.registered_groups:
        if group.typer_instance is not None:
            add_store_option(group.typer_instance)
    for command in family.registered_commands:
        if command.callback is not None:
            command.callback = _with_store(command.callback)


def _with_store(command: Callable[..., None]) -> Callable[..., None]:
    own = inspect.signature(command, eval_str=True).parameters
    if "data" not in own:
        return command
    option = inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=StorePlace)
    parameters = [*(parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in own.values()), option]

    def run(*, store: str | None, **values: Any) -> None:
        token = _named_store.set(store)
        try:
            command(**values)
        finally:
            _named_store.reset(token)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def options_of(
    config: Mapping[str, Any],
    *,
    data: Path | None = None,
    model: str | None = None,
    embedder: str | None = None,
    kv_type: str | None = None,
    engine: str | None = None,
    url: str | None = None,
    model_name: str | None = None,
    engine_key: str | None = None,
    shadow_model: str | None = None,
    **numbers: int | None,
) -> Options:
    """The options of the command line; where they are missing, those of the configuration."""
    folder = folder_of(config, data)
    remembered = None
    if not (model or os.environ.get("HALO_WEAVE_MODEL")):
        remembered = remembered_model(folder)  # more recent than the config file
    model = model or (None if remembered else text_of(config, "model") or None)
    if model:
        find_model(model)  # refuses an unknown name at once
    engine = engine or text_of(config, "engine") or "llama"
    if engine not in ENGINES:
        raise BadSetting(f"engine is {engine!r}; use one of {', '.join(ENGINES)}.")
    url = url or text_of(config, "url")
    if engine in REMOTE_ENGINES and not url:
        raise BadSetting(f"The engine {engine} needs the address of its server: --url http://…")
    kv_type = kv_type or text_of(config, "kv_type") or None
    if kv_type not in (None, *KV_TYPES):
        raise BadSetting(f"kv_type is {kv_type!r}; use one of {', '.join(KV_TYPES)}.")
    for name, (low, high) in NUMBERS.items():
        if numbers.get(name) is None:
            numbers[name] = whole_of(config, name, low, high)
    return Options(
        data=folder,
        store=store_of(config),
        model=model,
        remembered=remembered,
        embedder=embedder_of(config, embedder, folder),
        engine=engine,
        url=url,
        model_name=model_name or text_of(config, "model_name"),
        engine_key=engine_key or text_of(config, "engine_key"),
        shadow_model=shadow_model or text_of(config, "shadow_model"),
        kv_type=kv_type,
        engines=configured_engines(config),
        settings=configured_settings(config),
        **numbers,
    )


def announce_default_model(options: Options, console: Console) -> None:
    """If no model was named, print which one is used and how to choose another."""
    if options.engine != "llama" or options.model is not None:
        return
    if options.remembered:
        console.print(
            plain(f"The model is {options.remembered}, as it was chosen before. Choose another with --model.")
        )
    else:
        console.print(plain(default_model(machine_memory(), machine_cores())[1]))


def embedder_of(config: Mapping[str, Any], named: str | None, folder: Path) -> Path | Literal["off"] | None:
    """The embedder of the command line, else of the environment, of an earlier choice for this memory, or of the config
    file; None: the default.

    A missing file is downloaded, unless it was only chosen earlier.
    """
    name, chosen = named or text_of(config, "embedder"), None
    if not (named or os.environ.get("HALO_WEAVE_EMBEDDER")) and name != "off":
        chosen = remembered_embedder(folder)
    if chosen and chosen != "minilm":
        with suppress(HaloWeaveError):
            if file := local_path(find_model(chosen)):
                return file
        log.warning("The embedder %s was chosen for this memory, and its file is missing.", chosen)
    if chosen or name in ("", "minilm"):
        return None
    if name == "off":
        return "off"
    path = Path(name).expanduser()
    if len(path.parts) > 1 and not name.startswith(SCHEME):
        return named_embedder(path)
    with progress_bar() as report:
        return resolve(name, report)


def folder_of(config: Mapping[str, Any], named: Path | None) -> Path:
    """The data folder. It contains the memory, unless --store names an address."""
    place = named or text_of(config, "data")
    return data_folder(Path(place).expanduser() if place else None)


def store_of(config: Mapping[str, Any]) -> str | None:
    """The address of the memory, if it is not in the data folder: --store, else as configured."""
    return _named_store.get() or text_of(config, "store") or None


def memory_place(data: Path | None) -> Path | str:
    """Where the memory is: the same for every command."""
    config = read_config()
    return store_of(config) or folder_of(config, data)


@contextmanager
def progress_bar(*others: ProgressReport, counts: bool = False) -> Iterator[ProgressReport]:
    """Show the progress of a long task on the error stream. `counts`: also show numbers."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    numbers = (MofNCompleteColumn(),) if counts else ()
    console = Console(stderr=True)
    with Progress(*columns, *numbers, TimeRemainingColumn(), console=console, transient=True) as bars:
        task = bars.add_task("Starting", total=None)

        def show(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total or None)
            for other in others:
                other(what, done, total)

        yield show
