"""No GET writes, HEAD is answered as GET, other methods are refused."""

import time

import pytest

from halo_weave.store.sqlite import SqliteDatabase as Database
from tests.server.talking import chunks_of, get_context, refused, say


@pytest.fixture
def looked_at(client, window):
    say(client, window, "Something to look at.")
    client.put("/api/memory/entry", json={"path": "Looked/At", "content": 1})
    key = client.get(f"/api/windows/{window}/context").json()["turns"][0]["chunks"][0]["key"]
    return {"window_id": window, "key": key, "turn_id": key.partition(".")[0]}


def test_no_get_writes(client, service, looked_at, monkeypatch):
    service.weave.runtime.memory_search.settle(30)
    described = client.get("/api/openapi.json").json()["paths"]
    addresses = [path for path, about in described.items() if "get" in about and not path.endswith("/events")]
    assert len(addresses) > 15

    def refuse(*_, **__):
        raise AssertionError("a GET writes")

    monkeypatch.setattr(Database, "writing", refuse)
    for path in addresses:
        asked = {"q": "look", "path": "Looked" if path.endswith("query") else "Looked/At"}
        asked |= {"first": "0", "stop": "10"}
        asked["turn"] = looked_at["key"].partition(".")[0]
        known = {one["name"] for one in described[path]["get"].get("parameters", ())}
        if path.endswith(("/compare", "/replay")):  # refused: nothing was captured here
            continue
        answer = client.get(path.format(**looked_at), params={n: v for n, v in asked.items() if n in known})
        assert answer.status_code == 200, (path, answer.text)


def test_a_body_is_refused_where_none_is_described(client, window):
    say(client, window, "Keep me.")
    key = chunks_of(get_context(client, window))[0]["key"]
    for method, path in (
        ("POST", f"/api/windows/{window}/stop"),
        ("POST", f"/api/windows/{window}/chunks/{key}/pin"),
        ("GET", f"/api/windows/{window}"),
        ("DELETE", f"/api/windows/{window}"),
        ("POST", "/api/session"),
    ):
        for body in (b"garbage", b'{"x": 1}', iter([b"gar", b"bage"])):
            sentence = refused(client.request(method, path, content=body), 422, "bad_input")
            assert sentence == "This address takes no body. Send the request without one."
    assert not chunks_of(get_context(client, window))[0]["pinned"]
    empty = client.post(f"/api/windows/{window}/stop", content=iter([b""]))
    assert empty.json() == {"stopped": False}


@pytest.mark.parametrize(
    "path",
    ["/", "/favicon.ico", "/static/icon.svg", "/api/status", "/api/export", "/api/openapi.json", "/api/no"],
)
def test_head_is_answered_as_get_without_the_body(client, path):
    whole, head = client.get(path), client.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    for name in ("content-type", "content-length", "content-security-policy"):
        assert head.headers[name] == whole.headers[name]


def test_head_of_events_ends_and_leaves_the_connection_free(client, window, service):
    head = client.head(f"/api/windows/{window}/events")
    assert head.headers["content-type"].startswith("text/event-stream")
    assert client.get("/api/status").status_code == 200
    deadline = time.monotonic() + 10
    while service.weave.turns.hub(window).watchers:
        assert time.monotonic() < deadline
    refused(client.get("/api/windows/x/messages"), 405, "method_not_allowed")
    assert client.head("/api/windows/x/messages").status_code == 405


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/windows/x/chunks/restore"),
        ("POST", "/api/windows/x/chunks/1.0.user/explanation"),
        ("POST", "/api/windows/x/chunks/1.0.user/deletion"),
        ("TRACE", "/api/status"),
        ("QUERY", "/api/status"),
    ],
)
def test_a_method_that_is_not_described_is_refused_as_such(client, method, path):
    answer = client.request(method, path)
    refused(answer, 405, "method_not_allowed")
    assert method not in answer.headers["allow"]
