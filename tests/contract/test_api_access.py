"""Every address, tried with the key of one person and the ids of another: nothing is told, nothing is changed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.mcp.conftest import call
from tests.server.talking import say

pytestmark = pytest.mark.slow

KEY = "a key of some length"
SECRET = "Zanzibar"
HOARD = "Hoard"  # a name that anyone could guess
QUESTION = "Where is the treasure buried, and where is the map?"
# Answers that are streams without an end, told by their first piece.
ENDLESS = {"/api/windows/{window_id}/events"}


@dataclass
class House:
    """A server with two people: Ann, who has said and kept things, and Bob."""

    address: str
    keys: dict[str, str]
    service: Service
    ids: dict[str, Any] = field(default_factory=dict)  # of Ann's things

    def client(self, name: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[name]}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=60)


@pytest.fixture
def house(kind, folder) -> Iterator[House]:
    options = Options(
        data=folder / "data", store=kind.place(folder / "data"), engine="scripted", embedder="off"
    )
    service = Service(lambda progress: build_weave(options))
    service.begin().join()
    assert service.failure is None, service.failure
    with serve_in_thread(service, key=KEY) as address:
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as owner:
            keys = {
                name: owner.post("/api/people", json={"name": name}).json()["key"] for name in ("ann", "bob")
            }
        yield House(address, {"owner": KEY, **keys}, service)
    service.close()


def test_one_person_cannot_make_a_lent_model_forget_what_it_read_for_another(house):
    with house.client("ann") as ann, house.client("bob") as bob:
        ids = ann.post("/api/remote-kv/tokens", json={"text": "one two three " * 20}).json()["ids"]
        halo = {
            "window": "w",
            "tokenizer": "scripted",
            "labels": list(range(len(ids))),
            "next_label": len(ids),
        }

        def reused(client: httpx.Client) -> int:
            asked = {"input_ids": ids, "max_length": 2, "remote_kv": halo}
            answer = client.post("/api/extra/generate/stream", json=asked)
            told = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
            return next(one["reused"] for one in told if one["type"] == "read")

        assert reused(ann) == 0
        assert reused(bob) == 0  # under the same name, not the same window
        for forgotten in ({"window": "w"}, {"spans": [[0, len(ids)]]}):
            assert reused(bob) > 0
            bob.post("/api/remote-kv/forget", json=forgotten).raise_for_status()
            assert reused(bob) == 0
            assert reused(ann) > 0
        hostile = {"input_ids": ids, "max_length": 2, "remote_kv": {**halo, "grammar": 'root ::= "a"'}}
        assert bob.post("/api/extra/generate/stream", json=hostile).status_code == 403
        assert bob.post("/api/remote-kv/forget", json={"window": "w/"}).status_code == 422
        assert reused(bob) > 0


def furnish(house: House) -> None:
    """Ann talks, branches off, is captured, keeps notes, memories, a preset, and deletes something."""
    with house.client("ann") as ann:
        window = ann.post(
            "/api/windows", json={"name": f"{SECRET} plans", "settings": {"capture": "mean"}}
        ).json()["id"]
        told = say(ann, window, f"The treasure is buried under the {SECRET} tree.")
        assert told[-1].name == "done"
        say(ann, window, f"And the map is in the {SECRET} drawer.")
        turns = ann.get(f"/api/windows/{window}/turns").json()["turns"]
        turn = turns[0]["turn_id"]
        branch = ann.post(
            f"/api/windows/{window}/branch", json={"turn_id": turns[1]["turn_id"], "name": f"{SECRET} branch"}
        )
        say(ann, branch.json()["id"], f"A {SECRET} branch of the talk.")
        key = turns[0]["chunks"][0]["key"]
        gone = turns[2]["chunks"][0]["key"]
        ann.delete(f"/api/windows/{window}/chunks/{gone}").raise_for_status()
        ann.put("/api/memory/entry", json={"path": f"Places/{HOARD}", "content": SECRET}).raise_for_status()
        ann.put("/api/notes", json={"content": {"hidden": SECRET}}).raise_for_status()
        ann.put("/api/presets", json={"name": HOARD, "settings": {}, "persona": {"user_name": SECRET}})
        ann.patch("/api/persona", json={"ai_name": SECRET}).raise_for_status()
        ann.patch("/api/settings", json={"stop": SECRET}).raise_for_status()
        chat = {"model": "any", "messages": [{"role": "user", "content": f"A {SECRET} chat."}]}
        ann.post("/v1/chat/completions", json=chat, headers={"x-openwebui-chat-id": "one"}).raise_for_status()
        ann.post("/api/v1/generate", json={"prompt": f"{SECRET} once", "max_length": 8, "genkey": "K"})
    house.ids = {"window": window, "branch": branch.json()["id"], "turn": turn, "key": key, "gone": gone}


def schema_of(described: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        else:
            schema = next((one for one in schema["anyOf"] if one.get("type") != "null"), {})
    return schema


def value(described: dict[str, Any], name: str, schema: dict[str, Any], ids: dict[str, str]) -> Any:
    """What a parameter or a field of this name gets: an id of Ann's wherever one fits."""
    schema = schema_of(described, schema)
    if name in ids:
        return ids[name]
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "array":
            return [value(described, name.rstrip("s"), schema.get("items", {}), ids)]
        case "object":
            wanted = {
                one: about
                for one, about in schema.get("properties", {}).items()
                if one in schema.get("required", ()) or one in ids or one.rstrip("s") in ids
            }
            return {one: value(described, one, about, ids) for one, about in wanted.items()}
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
    return "x"


def requests(described: dict[str, Any], ids: dict[str, str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation, with the ids wherever one is taken: (method, path as described, what to send)."""
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", [])
            acts = next(
                (schema_of(described, one["schema"])["enum"] for one in parameters if one["name"] == "act"),
                [None],
            )
            for act in acts:
                where, query, headers = path, {}, {}
                for one in parameters:
                    if one["name"] == "act":
                        where = where.replace("{act}", act)
                    elif one["in"] == "path":
                        told = value(described, one["name"], one["schema"], ids)
                        where = where.replace("{" + one["name"] + "}", str(told))
                    elif one["in"] == "query" and (one.get("required") or one["name"] in ids):
                        query[one["name"]] = value(described, one["name"], one["schema"], ids)
                more: dict[str, Any] = {"url": where, "params": query, "headers": headers}
                body = operation.get("requestBody", {}).get("content", {})
                if "application/json" in body and "application/octet-stream" not in body:
                    more["json"] = value(described, "", body["application/json"]["schema"], ids)
                elif body:
                    more["content"] = b"{}"
                yield method, path, more


def names_for(window: str, turn: str, key: str) -> dict[str, Any]:
    """Ids by every name that an address has for them, and names that Ann has used."""
    return {
        **dict.fromkeys(("window_id", "window"), window),
        **dict.fromkeys(("turn", "turn_id", "around", "after", "first_turn", "last_turn"), turn),
        **dict.fromkeys(("key", "exclude", "include"), key),
        **dict.fromkeys(("q", "text", "question", "prompt", "content"), QUESTION),
        "path": f"Places/{HOARD}",
        "name": HOARD,
        "to": "Another",
        "person": "ann",
        "genkey": "K",
        "first": "0",
        "stop": "9000",
        "recall": {"include": [key], "make_room": True},
    }


def sent(client: httpx.Client, method: str, path: str, more: dict[str, Any]) -> tuple[int, str]:
    with client.stream(method, **more) as answer:
        if path in ENDLESS and answer.status_code == 200:
            return 200, next(answer.iter_text())
        text = answer.read().decode("utf-8", "replace")
    while answer.status_code == 202 and client.get("/api/status").json()["generating"]:
        time.sleep(0.01)
    return answer.status_code, text


def without_ids(text: str, ids: dict[str, Any]) -> str:
    for one in sorted({str(one) for one in ids.values()}, key=len, reverse=True):
        text = text.replace(one, "…")
    return text


def exported(client: httpx.Client) -> dict[str, Any]:
    told: dict[str, Any] = client.get("/api/export").json()
    del told["memory"]
    return told


def test_every_address_tells_and_changes_nothing_of_somebody_else(house):
    furnish(house)
    ids = house.ids
    with house.client("ann") as ann, house.client("bob") as bob:
        described = bob.get("/api/openapi.json").json()
        own = bob.post("/api/windows", json={"name": "Bob"}).json()["id"]
        say(bob, own, "A word of my own.")
        before, settings = exported(ann), ann.get("/api/settings").json()["values"]
        assert SECRET in json.dumps(before)
        tried = 0
        for window, nowhere in ((ids["window"], "0123456789"), (ids["branch"], "9876543210"), (own, own)):
            real = names_for(window, ids["turn"], ids["gone" if window == ids["branch"] else "key"])
            made_up = names_for(nowhere, "999999", "999999.0.user")
            pairs = zip(requests(described, real), requests(described, made_up), strict=True)
            for (method, path, more), (_, _, unreal) in pairs:
                if window == own and (method, path) == ("delete", "/api/windows/{window_id}"):
                    continue
                status, text = sent(bob, method, path, more)
                place = f"{method} {more}: {status} {text[:600]}"
                assert SECRET not in text, place
                for one in {ids["window"], ids["branch"]} - {window}:
                    assert one not in text, place
                if window in text:
                    assert window == own or status >= 400, place
                if status >= 400:  # as if it were not there
                    other = sent(bob, method, path, unreal)
                    assert (status, without_ids(text, real)) == (other[0], without_ids(other[1], made_up)), (
                        place
                    )
                tried += 1
        assert tried > 250
        assert exported(ann) == before
        assert ann.get("/api/settings").json()["values"] == settings
        assert SECRET not in json.dumps(exported(bob))


def test_the_doors_outside_the_description_are_scoped_too(house):
    furnish(house)
    with house.client("bob") as bob:
        chat = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
        named = bob.post("/v1/chat/completions", json=chat, headers={"x-halo-window": house.ids["window"]})
        unknown = bob.post("/v1/chat/completions", json=chat, headers={"x-halo-window": "0123456789"})
        assert named.status_code == unknown.status_code == 404
        assert named.text.replace(house.ids["window"], "0123456789") == unknown.text
        fresh = bob.post("/v1/chat/completions", json=chat, headers={"x-openwebui-chat-id": "one"})
        assert fresh.status_code == 200
        assert SECRET not in fresh.text
        previous = f"resp_{house.ids['window']}_{house.ids['turn']}"
        again = {"model": "any", "input": QUESTION, "previous_response_id": previous}
        assert SECRET not in bob.post("/v1/responses", json=again).text
        for window in bob.get("/api/windows").json()["windows"]:
            assert SECRET not in bob.get(f"/api/windows/{window['id']}/context").text
        assert bob.get("/metrics").status_code == 403
        assert SECRET not in bob.post("/api/extra/generate/check", json={"genkey": "K"}).text

    async def talk() -> None:
        bearer = {"authorization": f"Bearer {house.keys['bob']}", "x-halo-writes": "yes"}
        async with httpx2.AsyncClient(headers=bearer) as sender:
            link = streamable_http_client(f"{house.address}/mcp", http_client=sender)
            async with Client(link) as client:
                assert (await call(client, "memory_search", query=QUESTION))["hits"] == []
                told = [await client.call_tool("memory_timeline", {})]
                told += [await client.call_tool("memory_status", {})]
                for tool in ("memory_read", "memory_forget"):
                    answer = await client.call_tool(tool, {"id": house.ids["key"]})
                    assert answer.is_error
                    told.append(answer)
                assert SECRET not in str(told)

    anyio.run(talk)
    with house.client("ann") as ann:
        assert SECRET in ann.get(f"/api/windows/{house.ids['window']}/context").text


def kept(house: House, client: httpx.Client) -> dict[str, Any]:
    """All that a person has: their export, their settings, and what the lab captured of their window."""
    captured = client.get(f"/api/windows/{house.ids['window']}/captures").json()
    assert captured["captures"]
    return {
        "export": exported(client),
        "settings": client.get("/api/settings").json()["values"],
        "captures": captured,
    }


@pytest.fixture
def forgotten(house, monkeypatch) -> list[tuple[Any, ...]]:
    """What engines were asked to drop of their caches, in memory and on disk."""
    asked: list[tuple[Any, ...]] = []
    engine = house.service.unrestricted_weave.engine
    monkeypatch.setattr(engine, "forget", lambda window: asked.append(("forget", window)))
    monkeypatch.setattr(engine, "erase", lambda spans, windows=(): asked.append(("erase", *windows)))
    return asked


def test_a_foreign_key_changes_nothing_over_mcp(house, forgotten):
    furnish(house)
    window, key = house.ids["window"], house.ids["key"]

    async def talk() -> None:
        bearer = {"authorization": f"Bearer {house.keys['bob']}", "x-halo-writes": "yes"}
        async with httpx2.AsyncClient(headers=bearer) as sender:
            link = streamable_http_client(f"{house.address}/mcp", http_client=sender)
            async with Client(link) as client:
                told = []
                for tool, arguments in (
                    ("memory_search", {"query": QUESTION, "window": window}),
                    ("memory_timeline", {"window": window}),
                    ("memory_read", {"id": key, "around": 5}),
                    ("memory_forget", {"id": key}),
                    ("memory_forget", {"id": house.ids["gone"], "undo": True}),
                ):
                    answer = await client.call_tool(tool, arguments)
                    assert answer.is_error, tool
                    told.append(answer)
                for address in (f"halo://windows/{window}", f"halo://chunks/{key}"):
                    with pytest.raises(Exception, match="There is no"):
                        await client.read_resource(address)
                told.append(await client.read_resource("halo://windows"))
                await call(client, "memory_write", text="The attic is dry.", path=f"Places/{HOARD}")
                await call(client, "memory_write", text="The attic is dry.")
                assert SECRET not in str(told)
                assert window not in str(told[-1])

    with house.client("ann") as ann:
        before = kept(house, ann)
        forgotten.clear()
        anyio.run(talk)
        assert kept(house, ann) == before
    assert forgotten == []


def test_a_foreign_key_changes_nothing_over_v1_and_the_kobold_api(house, forgotten):
    furnish(house)
    window, turn = house.ids["window"], house.ids["turn"]
    with house.client("ann") as ann, house.client("bob") as bob:
        before = kept(house, ann)
        text = ann.post("/api/extra/generate/check", json={"genkey": "K"}).text
        forgotten.clear()
        chat = {"model": "any", "messages": [{"role": "user", "content": QUESTION}]}
        named = {"x-halo-window": window, "x-openwebui-chat-id": "one"}
        answers = [
            bob.post("/v1/chat/completions", json=chat, headers={"x-halo-window": window}),
            bob.post("/v1/chat/completions", json=chat, headers=named),
            bob.post("/v1/chat/completions", json=chat, headers={"x-openwebui-chat-id": "one"}),
            bob.post("/v1/chat/completions", json={**chat, "user": window}),
            bob.post("/v1/completions", json={"model": "any", "prompt": QUESTION}, headers=named),
            bob.post(
                "/v1/responses",
                json={"model": "any", "input": QUESTION, "previous_response_id": f"resp_{window}_{turn}"},
            ),
            bob.get("/v1/models"),
            bob.post("/api/v1/generate", json={"prompt": "Hello", "max_length": 8, "genkey": "K"}),
            bob.post("/api/extra/generate/check"),
            bob.post("/api/extra/abort", json={"genkey": "K"}),
            bob.post("/api/extra/abort"),
            bob.get("/api/extra/perf"),
            bob.post("/api/remote-kv/forget", json={"window": window}),
        ]
        for answer in answers:
            assert SECRET not in answer.text, answer.url
            assert answer.status_code < 500, answer.url
        assert ann.post("/api/extra/generate/check", json={"genkey": "K"}).text == text
        assert kept(house, ann) == before
    dropped = [one for _, *windows in forgotten for one in windows]
    assert len(dropped) == 1, forgotten  # what Bob's own programs have read under this name
    assert dropped[0].startswith("remote ")
    assert dropped[0].endswith(f"/{window}")


def test_a_foreign_key_drops_no_captures_and_no_cells(house, forgotten):
    furnish(house)
    window, branch, key = house.ids["window"], house.ids["branch"], house.ids["key"]
    with house.client("ann") as ann, house.client("bob") as bob:
        before = kept(house, ann)
        forgotten.clear()
        for one in (window, branch):
            assert bob.get(f"/api/windows/{one}/captures").status_code == 404
            assert bob.get(f"/api/windows/{one}/replay").status_code == 404
            assert bob.delete(f"/api/windows/{one}/captures").status_code == 404
            assert bob.delete(f"/api/windows/{one}/chunks/{key}").status_code == 404
            assert bob.delete(f"/api/windows/{one}").status_code == 404
        own = bob.post("/api/windows", json={"name": "Bob"}).json()["id"]
        assert bob.delete(f"/api/windows/{own}/chunks/{key}").status_code == 404
        assert forgotten == []
        assert kept(house, ann) == before
        ann.delete(f"/api/windows/{window}/chunks/{key}").raise_for_status()
        assert any(window in one for one in forgotten)  # the owner's own request does reach the cells


def test_nothing_is_told_without_a_key_and_a_revoked_one_ends_at_once(house):
    furnish(house)
    assert httpx.get(f"{house.address}/api/windows").status_code == 401
    with house.client("ann") as ann, house.client("owner") as owner:
        ann.post("/api/session").raise_for_status()
        cookie = {"cookie": "; ".join(f"{name}={value}" for name, value in ann.cookies.items())}
        assert httpx.get(f"{house.address}/api/windows", headers=cookie).status_code == 200
        with ann.stream("GET", f"/api/windows/{house.ids['window']}/events") as stream:
            pieces = stream.iter_text()
            assert next(pieces).startswith("retry")
            assert owner.delete("/api/people/ann").json()["revoked"]
            with suppress(httpx.RemoteProtocolError):  # it is cut off
                assert list(pieces) == []
        assert httpx.get(f"{house.address}/api/windows", headers=cookie).status_code == 401
        assert ann.get("/api/windows", headers={"cookie": ""}).status_code == 401
        key = owner.post("/api/people", json={"name": "ann"}).json()["key"]
    back = httpx.get(f"{house.address}/api/windows", headers={"authorization": f"Bearer {key}"})
    assert house.ids["window"] in back.text
    # A session that the old key began is not one of the new key.
    assert httpx.get(f"{house.address}/api/windows", headers=cookie).status_code == 401
