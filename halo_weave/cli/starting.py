"""What `serve` and `chat` have in common: the options of the system, and a bar while it is assembled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from halo_weave.assemble import Options, named_embedder
from halo_weave.config import configured_settings, text_of, whole_of
from halo_weave.errors import BadSetting, ModelNotFound
from halo_weave.places import data_folder

SMALLEST_CONTEXT = 1024  # the system prompt with its tools, a reply, and some words
Tell = Callable[[str, int, int], None]  # what is being done, how much of it, of how much

Model = Annotated[
    Path | None,
    typer.Option("--model", help="A chat model, any GGUF. Default: a small one, pulled if needed."),
]
Embedder = Annotated[
    str | None, typer.Option("--embedder", help="An embedding model, any GGUF, or off. Default: a small one.")
]
Context = Annotated[
    int | None, typer.Option("--context", min=SMALLEST_CONTEXT, help="Tokens that can be live in one window.")
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Threads of the model.")]


def options_of(
    config: Mapping[str, Any],
    *,
    data: Path | None,
    model: Path | None,
    embedder: str | None,
    context: int | None,
    threads: int | None,
) -> Options:
    """The command line first, then what is configured."""
    weights = _expanded(model or text_of(config, "model"))
    if weights is not None and not weights.is_file():
        raise ModelNotFound(f"There is no model at {weights}. Name a GGUF file, or leave --model out.")
    engine = config.get("engine", "llama")
    if engine not in ("llama", "scripted"):
        raise BadSetting(f"engine is {engine!r}; use llama, or scripted for tests.")
    return Options(
        data=folder_of(config, data),
        model=weights,
        embedder=embedder_of(config, embedder),
        engine=engine,
        context=context or whole_of(config, "context", SMALLEST_CONTEXT, 1 << 24),
        threads=threads or whole_of(config, "threads", 1, 1024),
        settings=configured_settings(config),
    )


def embedder_of(config: Mapping[str, Any], named: str | None) -> Path | Literal["off"] | None:
    """The command line, then what is configured; None for the standard one."""
    wanted = named or text_of(config, "embedder")
    if wanted == "off":
        return "off"
    path = _expanded(wanted)
    return None if path is None else named_embedder(path)


def folder_of(config: Mapping[str, Any], named: Path | None) -> Path:
    """Where the memory lies: the same for every command."""
    return data_folder(_expanded(named or text_of(config, "data")))


def _expanded(path: Path | str | None) -> Path | None:
    return Path(path).expanduser() if path else None


@contextmanager
def progress_bar(*others: Tell) -> Iterator[Tell]:
    """What takes long, on the error stream: what is done, and how far it is if that is known."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("Starting", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total or None)
            for other in others:
                other(what, done, total)

        yield tell
