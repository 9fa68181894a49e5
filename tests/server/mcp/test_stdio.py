"""`halo-weave mcp` as a host starts it, asked by the official client."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from mcp import Client

from tests.server.mcp.conftest import call, halo_weave, speaking

pytestmark = pytest.mark.slow

READING = ["memory_read", "memory_search", "memory_status", "memory_timeline"]
WRITING = ["memory_forget", "memory_write"]


def here(data: Path, *more: str):
    return halo_weave("mcp", "--data", str(data), "--embedder", "off", *more)


def test_a_host_finds_four_tools_that_only_read_with_schemas_and_instructions(data):
    async def talk(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert sorted(tool.name for tool in tools) == READING
        assert all(tool.annotations.read_only_hint and tool.output_schema for tool in tools)
        assert len(json.dumps([tool.model_dump(mode="json", exclude_none=True) for tool in tools])) < 9000
        assert "memory_search" in client.instructions

    speaking(here(data), talk)


def test_what_was_said_is_found_read_and_told_by_time(data):
    async def talk(client: Client) -> None:
        found = await call(client, "memory_search", query="what grows beside tomatoes, basil?")
        hit = found["hits"][0]
        assert hit["text"].startswith("Basil grows well")
        assert (hit["speaker"], hit["window"], hit["said"][:10]) == ("Claude", "Garden plans", "2025-03-02")
        assert hit["why"]
        around = await call(client, "memory_read", id=hit["id"], around=1)
        assert [turn["speaker"] for turn in around["turns"]] == ["User", "Claude", "User"]
        assert around["turns"][-1]["text"] == "And beside beans?"  # the branch in use
        pages, cursor = [], ""
        while cursor is not None:
            page = await call(
                client, "memory_timeline", since="2024-05-01", until="2024-07-12", limit=3, cursor=cursor
            )
            assert len(page["turns"]) <= 3
            pages += page["turns"]
            cursor = page["next_cursor"]
        assert len(pages) == 9
        assert [turn["said"] for turn in pages] == sorted(turn["said"] for turn in pages)
        assert len({turn["ids"][0] for turn in pages}) == 9

    speaking(here(data), talk)


def test_a_search_keeps_to_its_budget_window_and_time_and_goes_on(data):
    async def talk(client: Client) -> None:
        query = "beside tomatoes beans carrots captain sextant key door steps tower"
        first = await call(client, "memory_search", query=query, budget=1)
        assert len(first["hits"]) == 1
        second = await call(client, "memory_search", query=query, budget=1, offset=first["next_offset"])
        assert second["hits"][0]["id"] != first["hits"][0]["id"]
        within = await call(client, "memory_search", query=query, window="Captain Brill")
        assert {hit["window"] for hit in within["hits"]} == {"Captain Brill"}
        late = await call(client, "memory_search", query=query, since="2025-01-01")
        assert late["hits"]
        assert all(hit["said"] >= "2025" for hit in late["hits"])

    speaking(here(data), talk)


def test_resources_and_the_prompt(data):
    async def talk(client: Client) -> None:
        [listed] = (await client.read_resource("halo://windows")).contents
        windows = {one["name"]: one["id"] for one in json.loads(listed.text)}
        [window] = (await client.read_resource(f"halo://windows/{windows['Captain Brill']}")).contents
        assert "In the green chest." in window.text
        assert "I lost it." not in window.text
        templates = (await client.list_resource_templates()).resource_templates
        assert {one.uri_template for one in templates} == {
            "halo://windows/{window_id}",
            "halo://chunks/{chunk_id}",
        }
        prompt = await client.get_prompt("recall", {"subject": "the sextant"})
        assert "the sextant" in prompt.messages[0].content.text

    speaking(here(data), talk)


REFUSED = [
    ("memory_read", {"id": "nonsense"}, "is not a chunk key"),
    ("memory_read", {"id": "999.0.user"}, "999.0.user"),
    ("memory_search", {"query": "  "}, "query is empty"),
    ("memory_search", {"query": "x", "window": "nowhere"}, "nowhere"),
    ("memory_timeline", {"since": "soon"}, "a time looks like"),
    ("memory_timeline", {"cursor": "x"}, "not a cursor"),
    ("memory_timeline", {"limit": 0}, "limit"),
]


def test_what_cannot_be_done_is_told_to_the_model_in_a_sentence(data):
    async def talk(client: Client) -> None:
        for tool, arguments, sentence in REFUSED:
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            assert sentence in answer.content[0].text

    speaking(here(data), talk)


def test_writing_needs_to_be_allowed(data):
    async def talk(client: Client) -> None:
        answer = await client.call_tool("memory_write", {"text": "x"})
        assert answer.is_error
        assert "memory_write" in answer.content[0].text
        assert (await call(client, "memory_status"))["windows"][-1]["name"] != "Other programs"

    speaking(here(data), talk)


def test_what_is_written_is_found_and_can_be_forgotten_and_brought_back(data):
    async def talk(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert sorted(tool.name for tool in tools) == sorted(READING + WRITING)
        assert [tool.name for tool in tools if tool.annotations.destructive_hint] == ["memory_forget"]
        written = await call(client, "memory_write", text="Mochi the cat likes tuna.", speaker="Scout")
        [id] = written["ids"]

        async def found() -> list[str]:
            return [hit["id"] for hit in (await call(client, "memory_search", query="Mochi tuna"))["hits"]]

        assert await found() == [id]
        assert (await call(client, "memory_forget", id=id))["ids"] == [id]
        assert await found() == []
        assert (await call(client, "memory_forget", id=id))["ids"] == []
        await call(client, "memory_forget", id=id, undo=True)
        assert await found() == [id]
        saved = await call(client, "memory_write", text="Tuna on Sundays.", path="Cats/Mochi")
        assert saved["path"] == "Cats/Mochi"
        status = await call(client, "memory_status")
        assert (status["entries"], status["windows"][-1]["name"]) == (1, "Other programs")

    speaking(here(data, "--allow-writes"), talk)


def test_a_server_that_runs_does_the_work(data):
    """What is told over stdio is found over HTTP at once, since it is one process with one memory."""
    env = halo_weave().env
    serve = ["serve", "--data", str(data), "--port", "0", "--key", "k" * 20]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fakes", *serve], env=env, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            address = next(line.split()[4] for line in server.stderr if "Halo Weave is at" in line)
            headers = {"authorization": f"Bearer {'k' * 20}"}
            _until(lambda: httpx.get(f"{address}/api/stats", headers=headers).status_code == 200)

            async def talk(client: Client) -> None:
                # The command has no embedder, the server has one.
                assert "No embedder" not in (await call(client, "memory_status"))["search"]
                await call(client, "memory_write", text="The ferry leaves at nine.")
                found = await call(client, "memory_search", query="ferry leaves")
                assert found["hits"][0]["text"] == "The ferry leaves at nine."

            speaking(here(data, "--allow-writes", "--key", "k" * 20), talk)
            hits = httpx.get(f"{address}/api/search", params={"q": "ferry"}, headers=headers).json()["hits"]
            assert hits

            async def only_read(client: Client) -> None:
                assert sorted(tool.name for tool in (await client.list_tools()).tools) == READING

            speaking(here(data, "--key", "k" * 20), only_read)
        finally:
            server.terminate()
            server.wait(30)
    assert list((data / "in-use").glob("*-server.json")) == []


def _until(true) -> None:
    for _ in range(300):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("It never came.")
