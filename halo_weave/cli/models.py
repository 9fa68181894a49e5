"""Commands for models: models, pull, doctor, and the KV cache on disk."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from halo_weave.app import cache_use, clear_cache, idle_reading, inspect_llama
from halo_weave.cli.app import Context, Data, Json, KvCacheType, Model, app, folder_of, options_of
from halo_weave.cli.store import print_result
from halo_weave.cli.terminal import format_bytes, plain
from halo_weave.config import read_config
from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.models import catalogue, inventory
from halo_weave.models.catalogue import CatalogueEntry
from halo_weave.models.gguf_header import read_header
from halo_weave.models.hub import HubReference
from halo_weave.models.inventory import human_name
from halo_weave.models.memory_estimate import (
    DEFAULT_CONTEXT,
    MemoryEstimate,
    estimate_memory,
    machine_cores,
    machine_memory,
)
from halo_weave.paths import models_folder

Name = Annotated[
    str | None,
    typer.Argument(
        help="A model of the catalogue, hf:owner/repository[:quant], or default: the general model that suits this "
        "machine. Without a name: the chat model and the embedder that are used when none are named."
    ),
]


@app.command()
def pull(name: Name = None, as_json: Json = False) -> None:
    """Download a model and check it. Files that are complete are kept; an interrupted download continues."""
    requested: list[CatalogueEntry | HubReference | None] = [None, catalogue.DEFAULT_EMBEDDER]
    if name:
        model = inventory.find_model(name)
        if isinstance(model, Path):
            raise BadInput(f"{model} is on this machine already. Use it with --model.")
        requested = [model]
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    paths = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:
        for entry in requested:
            bar = bars.add_task("Starting", total=None)

            def show(what: str, done: int, total: int, bar: Any = bar) -> None:
                bars.update(bar, description=what, completed=done, total=total or None)

            if entry is None:  # the default, or its substitute, as when the server starts
                chosen = inventory.chosen_weights(None, show)
                paths[inventory.name_of(chosen)] = str(chosen)
            else:
                key = entry.name if isinstance(entry, CatalogueEntry) else str(entry)
                paths[key] = str(inventory.pull_model(entry, show))
    if as_json:
        typer.echo(json.dumps(paths))
    else:
        for path in paths.values():
            typer.echo(path)


@app.command()
def models(as_json: Json = False) -> None:
    """List models: the catalogue, those on this machine, and which fit into its memory."""
    memory = machine_memory()
    listed = inventory.listed_models(memory)
    recommended = [model.name for model in catalogue.recommended(memory)]
    default = catalogue.default_model(memory, machine_cores())[0].name
    if as_json:
        output = [asdict(model) for model in listed]
        typer.echo(
            json.dumps({"memory": memory, "default": default, "models": output, "recommended": recommended})
        )
        return
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "model", "size", "memory", "fits", "where"):
        table.add_column(title, justify="right" if title in ("size", "memory") else "left", overflow="fold")
    for model in listed:
        needs = "" if model.needs is None else format_bytes(model.needs)
        fits = {None: "", True: "yes", False: "no"}[model.fits]
        table.add_row(
            *map(plain, (model.name, model.title, format_bytes(model.size), needs, fits, model.where))
        )
    console.print(table)
    for model in listed:
        if model.problem:
            console.print(plain(f"{model.name}: {model.problem}", "yellow"))
        elif model.note:
            console.print(plain(f"{model.name}: {model.note}"))
    console.print(
        plain(
            f"\nThis machine has {format_bytes(memory)} of memory; the default is {default}. "
            "memory: weights, KV cache at the default context length, and working memory."
        )
    )
    if recommended:
        console.print(
            plain(f"Models on the hub that should fit, the largest first: {', '.join(recommended)}")
        )
    console.print(plain("Use one: halo-weave serve --model NAME. Get one: halo-weave pull NAME"))


@app.command()
def doctor(
    model: Model = None, context: Context = None, kv_type: KvCacheType = None, as_json: Json = False
) -> None:
    """Show llama.cpp, processor, GPU and memory, and what would make the model faster."""
    options = options_of(read_config(), model=model, embedder="off", context=context, kv_type=kv_type)
    memory = machine_memory()
    build, gpu_advice = inspect_llama()
    output: dict[str, Any] = {
        "llama_cpp": {**asdict(build), "file": str(build.file)},
        "memory": memory,
        "models_folder": str(models_folder()),
        "model": _needed_memory(
            options.model or options.remembered, memory, options.context, options.kv_type or "f16"
        ),
        "gpu": gpu_advice,
    }
    if as_json:
        typer.echo(json.dumps(output))
        return
    lines = [
        f"llama.cpp    {build.version}, {build.file}",
        f"backends     {', '.join(build.backends) or 'not told'}",
        *(
            f"{device.kind:<13}{device.name}: {device.description}, {format_bytes(device.total)} of memory"
            for device in build.devices
        ),
        f"processor    uses {', '.join(build.used) or 'nothing special'}",
        *([f"             has, and does not use, {', '.join(build.unused)}"] if build.unused else []),
        f"memory       {format_bytes(memory)}",
        f"models       {models_folder()}",
    ]
    about = output["model"]
    lines.append(
        f"model        {about['title']}: {format_bytes(about['weights'])} of weights, {format_bytes(about['cache'])} of KV cache for "
        f"{about['context']:,} tokens, {format_bytes(about['needs'])} in all: {'fits' if about['fits'] else 'does not fit'}"
    )
    lines += [f"faster       {advice}" for advice in build.advice]
    if not any("GPU" in device.kind for device in build.devices):
        lines += [
            "",
            "No GPU is used. To use one, run in the environment of halo-weave:",
            *gpu_advice.values(),
        ]
    for line in lines:
        Console(highlight=False).print(plain(line), soft_wrap=True)


def _needed_memory(
    model: Path | str | None, memory: int, context: int | None, kv_type: Any
) -> dict[str, Any]:
    """The memory that the chosen model will need; a catalogue model need not be downloaded for that."""
    chosen = (
        inventory.find_model(str(model)) if model else catalogue.default_model(memory, machine_cores())[0]
    )
    path = inventory.local_path(chosen)
    if path:
        header = read_header(path)
        title = human_name(path, header)
        needs = estimate_memory(header, inventory.LocalModel("", path, "").size, context, kv_type)
        context = min(context or DEFAULT_CONTEXT, int(header.get("context_length") or 1 << 30))
    elif isinstance(chosen, CatalogueEntry):
        title, context = chosen.title, context or DEFAULT_CONTEXT
        needs = MemoryEstimate(chosen.size, context * chosen.cache_bytes)
    else:
        raise ModelNotFound(f"{chosen} is not on this machine yet. Get it: halo-weave pull {chosen}")
    return {
        "title": title,
        "path": str(path) if path else None,
        "weights": needs.weights,
        "cache": needs.cache,
        "context": context,
        "needs": needs.total,
        "fits": needs.fits(memory),
    }


cache = typer.Typer(help="The KV cache on disk, which saves prefill after a restart.")
app.add_typer(cache, name="cache")


@cache.command()
def status(data: Data = None, as_json: Json = False) -> None:
    """Show the size of the KV cache on disk, and how much of the memory is in it."""
    folder = _folder(data)
    idle = idle_reading(folder)
    sentence = "{0} in {1} files in {2}"
    if idle:
        sentence += (
            f"\n{idle['model']} has read {idle['done']:,} of {idle['total']:,} tokens of the memory "
            f"({idle['state']})"
        )
    use = dataclasses.asdict(cache_use(folder))
    _print_use({**use, "idle_reading": idle} if as_json else use, as_json, sentence)


@cache.command()
def clear(data: Data = None, as_json: Json = False) -> None:
    """Delete the KV cache on disk. Conversations stay; their prompts are computed again once."""
    _print_use(dataclasses.asdict(clear_cache(_folder(data))), as_json, "Deleted {0} in {1} files in {2}")


def _folder(data: Path | None) -> Path:
    return folder_of(read_config(), data)


def _print_use(use: dict[str, Any], as_json: bool, sentence: str) -> None:
    output = sentence.format(f"{use['bytes'] / 1e6:,.1f} MB", use["files"], use["folder"])
    print_result(as_json, {**use, "folder": str(use["folder"])}, output)
