"""`halo-weave sync`: the same memory on several devices, through a folder that they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from halo_weave.cli.app import app
from halo_weave.cli.glow import counted, plain
from halo_weave.cli.memory import answer, now, opened
from halo_weave.cli.starting import Data, Json


@app.command("sync")
def _sync_memory(
    folder: Annotated[Path, typer.Argument(help="A folder that the devices share, such as one of a cloud.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Join this memory with those of your other devices, through a folder that all of them can reach.

    What is new here is written there as a new file; what others wrote is taken in. When all devices have done so, they
    have the same conversations, deletions, notes and structured memory. Run it as often as you like, also while the server
    runs; while a reply is being written it asks you to wait. The files hold all that was said, readable for whoever can
    read the folder.
    """
    with opened(data) as store:
        result = store.sync(folder.expanduser(), now=now())
    told = f"Told {counted(result.told, 'turn or change', 'turns and changes')}"
    came = f"took in {counted(result.turns, 'turn')} and {counted(result.changes, 'change')}"
    lines = [f"{told}, {came}."]
    if result.waiting:
        files = counted(result.waiting, "file")
        lines.append(
            f"{files} there cannot be read yet: the folder may still be synchronising. Sync again later."
        )
    lines += [f"Not taken in: {plain(why)}" for why in result.refused]
    answer(as_json, result, "\n".join(lines))
