"""/mcp on the real server, asked by the official client. Key, host and origin hold there as everywhere."""

from __future__ import annotations

import json
import threading

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import Server, bind, policy_for, serve_in_thread
from halo_weave.server.service import Service
from tests.server.mcp.conftest import call, speaking
from tests.server.talking import say

KEY = "a key of some length"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def service(data):
    service = Service(lambda progress: build_weave(Options(data=data, engine="scripted", embedder="off")))
    service.begin().join()
    yield service
    service.close()


def test_what_was_said_on_the_page_is_found_over_mcp_and_what_is_forgotten_there_is_gone_here(service):
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as page:
        window = page.post("/api/windows", json={"name": "Harbour"}).json()["id"]
        say(page, window, "The ferry to Vik leaves at nine.")

        async def talk(client: Client) -> None:
            assert len((await client.list_tools()).tools) == 4
            found = await call(client, "memory_search", query="When does the ferry to Vik leave?")
            assert found["hits"][0]["text"] == "The ferry to Vik leaves at nine."
            assert found["hits"][0]["window"] == "Harbour"

        speaking(f"{address}/mcp", talk)


def test_a_fact_told_by_a_chat_client_wakes_up_on_the_page_and_is_found_over_mcp(service):
    fact = "The ferry to Vik leaves at nine."
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=60) as page:
        asked = {"model": "any", "messages": [{"role": "user", "content": fact}]}
        assert page.post("/v1/chat/completions", json=asked).status_code == 200
        window = page.post("/api/windows", json={"name": "Harbour"}).json()["id"]
        told = say(page, window, "When does the ferry to Vik leave?")
        assert fact in json.dumps([event.data for event in told])  # it woke up

        async def talk(client: Client) -> None:
            found = await call(client, "memory_search", query="ferry to Vik")
            assert fact in [hit["text"] for hit in found["hits"]]

        speaking(f"{address}/mcp", talk)


def test_writes_are_allowed_by_the_server_alone(service):
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = Server(service, policy_for("127.0.0.1", port), mcp_writes=True)

    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:

        async def talk(client: Client) -> None:
            written = await call(client, "memory_write", text="Nell mends nets.", speaker="Scout")
            await call(client, "memory_forget", id=written["ids"][0])

        speaking(f"http://127.0.0.1:{port}/mcp", talk)
        hits = httpx.get(
            f"http://127.0.0.1:{port}/api/search", params={"q": "Nell mends nets"}, timeout=60
        ).json()["hits"]
        assert not [hit for hit in hits if "Nell" in json.dumps(hit)]
    finally:
        server.should_exit = True
        thread.join()


def test_the_key_is_needed(service):
    with serve_in_thread(service, key=KEY) as address:
        refused = httpx.post(f"{address}/mcp", json=INITIALIZE, headers=ACCEPT, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "key_needed")

        async def with_key() -> None:
            headers = {"authorization": f"Bearer {KEY}"}
            async with httpx2.AsyncClient(headers=headers) as http:
                there = streamable_http_client(f"{address}/mcp", http_client=http)
                async with Client(there, read_timeout_seconds=60) as client:
                    assert (await call(client, "memory_status"))["windows"]

        anyio.run(with_key)


@pytest.mark.parametrize(("headers", "code"), [
    ({"origin": "https://elsewhere.example"}, "foreign_origin"), ({"host": "elsewhere.example"}, "foreign_host"),
    ({"sec-fetch-site": "cross-site"}, "foreign_origin"),
])  # fmt: skip
def test_other_sites_stay_outside(service, headers, code):
    with serve_in_thread(service) as address:
        refused = httpx.post(f"{address}/mcp", json=INITIALIZE, headers={**ACCEPT, **headers}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, code)
        assert httpx.post(f"{address}/mcp", json=INITIALIZE, headers=ACCEPT, timeout=60).status_code == 200


def test_a_body_that_is_no_message_is_refused(service):
    with serve_in_thread(service) as address:
        for body in (b"", b"[", b"{}", b"x" * 2_000_000):
            assert (
                400
                <= httpx.post(f"{address}/mcp", content=body, headers=ACCEPT, timeout=60).status_code
                < 500
            )
