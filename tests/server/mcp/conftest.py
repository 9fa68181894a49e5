"""The official MCP client, and a memory with imported conversations to ask about."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from halo_weave.app import open_store
from tests.fuzz import CORPUS
from tests.store.imports.conftest import NOW

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with open_store(tmp_path / "data") as store:
        for name in ("chatgpt.json", "claude.json", "sillytavern.jsonl"):
            store.import_file(CORPUS / "imports" / name, now=NOW)
    return tmp_path / "data"


def halo_weave(*args: str) -> StdioServerParameters:
    """The command as a host starts it."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HALO_WEAVE_ENGINE": "scripted",
        "HALO_WEAVE_CONFIG": os.devnull,
    }
    return StdioServerParameters(command=sys.executable, args=["-m", "tests.fakes", *args], env=env)


def speaking(server: Any, talk: Callable[[Client], Awaitable[None]]) -> None:
    """Run a conversation of the official client with a server."""

    async def run() -> None:
        with anyio.fail_after(60):
            async with Client(server) as client:
                await talk(client)

    anyio.run(run)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of an answer that is no error."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    return answer.structured_content
