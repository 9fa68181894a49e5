"""The command line: thin, one module per family of commands."""

from __future__ import annotations

import sys

from rich.console import Console

from halo_weave.cli import chat as chat
from halo_weave.cli import memory as memory
from halo_weave.cli import models as models
from halo_weave.cli import recall as recall
from halo_weave.cli import serve as serve
from halo_weave.cli import tree as tree
from halo_weave.cli.app import app
from halo_weave.cli.glow import plain
from halo_weave.errors import HaloWeaveError


def main() -> None:
    """Run the command line. A user's mistake ends with one sentence and exit code 1, never a traceback."""
    try:
        app(sys.argv[1:] or ["serve"], prog_name="halo-weave")
    except HaloWeaveError as error:
        Console(stderr=True, highlight=False).print(plain(f"halo-weave: {error}", "red"))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
