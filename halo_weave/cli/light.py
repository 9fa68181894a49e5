"""Commands about light: `calibrate` finds a model's retrieval heads, `why` tells what a chunk was used for."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from halo_weave.assemble import calibrate_engine, open_engine
from halo_weave.cli.app import app
from halo_weave.cli.glow import plain
from halo_weave.cli.memory import opened_to_read, say, shown
from halo_weave.cli.starting import Data, Json, Model, options_of, progress_bar
from halo_weave.config import read_config
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.use import LEAST_SHARE


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


@app.command()
def why(
    key: Annotated[str, typer.Argument(help="The key of a chunk, such as 12.0.user.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """What happened to a chunk, which replies used it, and what the reply that it belongs to used."""
    named = ChunkKey.parse(key)
    with opened_to_read(data) as store:
        record, history = store.chunk(named), store.history(key=named)
        uses, use = store.used_in(named), store.use_of(named.turn_id)
        names = store.window_names()
        sources = {
            one.key: one for one in store.chunks_by_key([one.key for one in use.chunks] if use else [])
        }
    if as_json:
        took = [{"key": str(one.key), "share": one.share} for one in use.chunks] if use else []
        say(
            {
                "key": str(record.key),
                "text": record.chunk.text,
                "window": record.window,
                "speaker": record.speaker,
                "said": record.said,
                "history": [{**shown(one), "key": str(one.key)} for one in history],
                "uses": [{**shown(one), "turn_id": str(one.turn_id)} for one in uses],
                "use": {"chunks": took, "nothing": use.nothing} if use else None,
            }
        )
        return
    console = Console(highlight=False)
    said = record.said.astimezone()
    console.print(
        plain(
            f"{record.key}  {record.speaker}  {said:%Y-%m-%d %H:%M}  {names.get(record.window, '')}", "bold"
        )
    )
    console.print(plain(record.chunk.text))
    for event in history:
        where = f" in {names.get(event.window, '')}" if event.window else ""
        reason = event.detail.get("why") or event.detail.get("by") or ""
        console.print(
            plain(f"{event.happened.astimezone():%Y-%m-%d %H:%M}  {event.event}{where}  {reason}".rstrip())
        )
    for one in uses:
        where = names.get(one.window, "")
        console.print(plain(f"{one.share:4.0%} of the reply in turn {one.turn_id}, {where}, came from it."))
    if use:
        console.print(plain("Its reply took:", "bold"))
        for source in use.chunks:
            if source.share >= LEAST_SHARE:
                text = " ".join(sources[source.key].chunk.text.split())[:80] if source.key in sources else ""
                console.print(plain(f"{source.share:4.0%} from {source.key}  {text}"))
        console.print(plain(f"{use.nothing:4.0%} from nothing in particular, or from itself"))
    elif named.role is Role.ASSISTANT:
        console.print(plain("It is not known where this reply came from."))
