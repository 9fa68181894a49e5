"""`halo-weave mcp`: memory for programs that speak MCP, over standard input and output."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import requests
import typer

from halo_weave.assemble import Options, assemble_without_model
from halo_weave.cli.app import app
from halo_weave.cli.starting import with_options
from halo_weave.config import read_config, text_of
from halo_weave.lastrun import running_server

_Writes = Annotated[
    bool,
    typer.Option("--allow-writes", help="Also tools that write into memory and forget. Default: read only."),
]
_OwnKey = Annotated[str | None, typer.Option("--key", help="Of a server that runs, if it has one.")]
_PATIENCE = 3.0  # seconds for a running server to answer


@app.command()
@with_options
def mcp(options: Options, allow_writes: _Writes = False, key: _OwnKey = None) -> None:
    """Serve the memory to an MCP host over standard input and output. No chat model is loaded.

    If `halo-weave serve` runs on the same data folder, it does the work; else the memory is opened here.
    """
    # Here, since it takes a second to import.
    from halo_weave.mcp.stdio import run_here, run_there

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    key = key or text_of(read_config(), "key")
    address = running_server(options.data)
    if address and _answers(address, key):
        run_there(address, key, writes=allow_writes)
        return
    weave = assemble_without_model(options)
    try:
        run_here(weave.library, writes=allow_writes)
    finally:
        weave.close()


def _answers(address: str, key: str) -> bool:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        return requests.get(f"{address}/api/status", headers=headers, timeout=_PATIENCE).status_code == 200
    except requests.RequestException:
        return False
