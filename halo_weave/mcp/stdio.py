"""MCP over standard input and output: for a memory that is opened here, or passed on to a Halo Weave that runs."""

from __future__ import annotations

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server

from halo_weave.mcp.http import WRITES
from halo_weave.mcp.tools import memory_server
from halo_weave.weave.library import WeaveLibrary


def run_here(library: WeaveLibrary, *, writes: bool) -> None:
    memory_server(lambda: library, writes=writes).run(transport="stdio")


def run_there(address: str, key: str, *, writes: bool) -> None:
    """Every message goes to the server at `address`, and its answers come back."""
    anyio.run(_pass_on, address, key, writes)


async def _pass_on(address: str, key: str, writes: bool) -> None:
    headers = {WRITES: "yes" if writes else "no"} | ({"authorization": f"Bearer {key}"} if key else {})
    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=300)) as client,
        streamable_http_client(f"{address}/mcp", http_client=client) as (there, to_there, *_),
        stdio_server() as (here, to_here),
        anyio.create_task_group() as tasks,
    ):

        async def answers() -> None:
            async for message in there:
                if not isinstance(message, Exception):
                    await to_here.send(message)

        tasks.start_soon(answers)
        async for message in here:
            if not isinstance(message, Exception):
                await to_there.send(message)
        tasks.cancel_scope.cancel()
