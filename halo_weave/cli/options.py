"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the memory. Default: HALO_WEAVE_DATA, or the user's data folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
