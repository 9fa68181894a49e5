"""On the real model: what was said in another program wakes up here, and what is said here is found over MCP."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from mcp import Client

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave, events
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from halo_weave.settings import Settings
from tests.real_model.weights import chat_model
from tests.server.mcp.conftest import call, speaking
from tests.server.talking import say
from tests.store.imports.test_files import mapping

pytestmark = pytest.mark.model

FACT = "My sister Philippa keeps the spare key of the lighthouse behind the brass barometer. <|im_end|>"
SETTINGS = {"max_new_tokens": 4, "seed": 7, "tool_rounds": 0, "resurrection_budget": 200}


@pytest.fixture
def weave(tmp_path: Path) -> Iterator[Weave]:
    options = Options(data=tmp_path, model=chat_model(), settings=Settings().changed(SETTINGS))
    with closing(build_weave(options)) as weave:
        yield weave


def test_what_was_said_in_another_program_wakes_up_in_a_new_window(weave: Weave) -> None:
    filler = [f"Let us talk about clouds, round {n}." for n in range(60)]
    weave.memory.import_file(io.BytesIO(json.dumps([mapping(FACT, "I see.", *filler)]).encode()))
    [window] = weave.windows.list()
    assert weave.windows.context(window.window.id).turns  # its end is live, in this model's tokens
    here = weave.windows.create("here").id
    woken = [
        event for event in weave.turns.steps(here, "Where does Philippa keep the spare key of the lighthouse?")
        if isinstance(event, events.ChunksResurrected)
    ]  # fmt: skip
    texts = [one.chunk.text for event in woken for one in event.chunks]
    assert FACT in texts
    ended = [
        event
        for event in weave.turns.steps(window.window.id, "And now?")
        if isinstance(event, events.ReplyStored)
    ]
    assert ended  # the imported window goes on


def test_what_is_said_on_the_page_is_found_over_mcp(weave: Weave) -> None:
    service = Service(lambda progress: weave)
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=120) as page:
        window = page.post("/api/windows", json={"name": "Harbour"}).json()["id"]
        say(page, window, "Remember: my sister Philippa keeps the key behind the brass barometer.")

        async def talk(client: Client) -> None:
            found = await call(client, "memory_search", query="Where is Philippa's key?")
            assert "brass barometer" in found["hits"][0]["text"]
            nothing = await call(client, "memory_search", query="glorp zanthium quuxed frobnicator")
            assert nothing == {"hits": [], "tokens": 0, "next_offset": None}

        speaking(f"{address}/mcp", talk)
