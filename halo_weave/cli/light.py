"""Commands about light: `calibrate` finds a model's retrieval heads."""

from __future__ import annotations

from contextlib import closing

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from halo_weave.assemble import calibrate_engine, open_engine
from halo_weave.cli.app import app
from halo_weave.cli.glow import plain
from halo_weave.cli.memory import say
from halo_weave.cli.options import Data, Json
from halo_weave.cli.starting import Model, options_of, progress_bar
from halo_weave.config import read_config


@app.command()
def calibrate(data: Data = None, model: Model = None, as_json: Json = False) -> None:
    """Find out anew which heads of a model look at what its words are taken from."""
    options = options_of(read_config(), data=data, model=model, embedder="off")
    with progress_bar() as telling, closing(open_engine(options, telling)) as engine:
        found, name = calibrate_engine(options, engine, telling, anew=True), engine.info.name
    if as_json:
        heads = [one._asdict() for one in found.heads]
        say({"model": name, "sentence": found.sentence, "heads": heads})
        return
    console = Console(highlight=False)
    console.print(plain(f"{name}: {found.sentence}"))
    if found.heads:
        table = Table(box=SIMPLE)
        for title in ("layer", "head", "copying", "needles", "weight"):
            table.add_column(title, justify="right")
        for one in found.heads:
            table.add_row(
                str(one.layer),
                str(one.head),
                f"{one.copying:.2f}",
                f"{one.needles:.2f}",
                f"{one.weight:.2f}",
            )
        console.print(table)
