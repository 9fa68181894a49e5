"""Engines by window over HTTP: added, chosen, told of without their keys; and a model that is lent to another Halo Weave."""

import json

import httpx
import pytest

from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import say, spoken


@pytest.fixture
def cellar(address):
    """This very server, as an engine of its own windows."""
    return {"kind": "kobold", "url": address, "key": "not-asked-for"}


def test_an_engine_is_added_chosen_and_removed_and_its_key_is_never_told(client, cellar, window):
    told = client.put("/api/engines/cellar", json=cellar)
    assert told.status_code == 200
    one = next(e for e in told.json()["engines"] if e["name"] == "cellar")
    assert (one["kind"], one["has_key"], one["open"], one["remote_host"]) == ("kobold", True, False, "")
    assert "not-asked-for" not in told.text
    changed = client.patch(f"/api/windows/{window}", json={"settings": {"engine_name": "cellar"}})
    assert changed.json()["effective"]["engine_name"] == "cellar"
    events = say(client, window, "Hello from the laptop")
    assert "Hello from the laptop" in spoken(events)
    where = client.get(f"/api/windows/{window}/engine").json()
    assert (where["name"], where["model"], where["remote_host"], where["malformed_rows"]) == (
        "cellar",
        "scripted",
        "",
        0,
    )
    client.patch(f"/api/windows/{window}", json={"settings": {"engine_name": ""}})
    assert client.delete("/api/engines/cellar").json() == {"engines": [], "notice": ""}
    assert "not-asked-for" not in client.get("/api/export").text


def test_a_window_on_a_far_engine_says_where_its_words_would_go(client, window):
    client.put(
        "/api/engines/hosted", json={"kind": "openai", "url": "https://far.example/v1", "key": "s3cret"}
    )
    client.patch(f"/api/windows/{window}", json={"settings": {"engine_name": "hosted"}})
    where = client.get(f"/api/windows/{window}/engine").json()
    assert (where["remote_host"], where["remote_scope"], where["model"]) == ("far.example", "window", "")
    client.patch(f"/api/windows/{window}", json={"settings": {"remote_scope": "all"}})
    assert client.get(f"/api/windows/{window}/engine").json()["remote_scope"] == "all"
    client.delete("/api/engines/hosted")


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "magic", "url": "http://x"},
        {"kind": "kobold"},
        {"kind": "kobold", "url": "file:///etc/passwd"},
        {"kind": "kobold", "url": "http://x", "more": 1},
    ],
)
def test_what_is_no_engine_is_refused(client, wrong):
    refused = client.put("/api/engines/x", json=wrong)
    assert refused.status_code == 422
    assert refused.json()["error"]["message"]


def lent(client, ids, **halo):
    asked = {
        "window": "w",
        "tokenizer": "scripted",
        "labels": list(range(len(ids))),
        "next_label": len(ids),
        **halo,
    }
    with client.stream(
        "POST", "/api/extra/generate/stream", json={"input_ids": ids, "max_length": 4, "remote_kv": asked}
    ) as answer:
        answer.read()
        if answer.status_code != 200:
            return answer
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_a_lent_model_shows_the_heads_that_were_asked_for_and_no_more(client):
    ids = client.post("/api/remote-kv/tokens", json={"text": "one two three " * 40}).json()["ids"]
    messages = lent(client, ids, heads=[[0, 1], [1, 2]])
    assert [m["type"] for m in messages][:3] == ["planned", "read", "token"]
    attention = messages[2]["attention"]
    assert attention["shape"] == [2, 64]
    assert "mean" not in attention
    assert len(json.dumps(messages[2])) < 2_000


@pytest.mark.parametrize(
    ("remote_kv", "status"),
    [
        ({"tokenizer": "another"}, 409),
        ({"labels": [1]}, 422),
        ({"labels": [1, 1, 1]}, 200),
        ({"heads": [[99, 0]]}, 200),
        ({"read_from": 99}, 422),
        ({"window": ""}, 422),
    ],
)
def test_what_cannot_be_lent_is_refused_in_a_sentence(client, remote_kv, status):
    ids = client.post("/api/remote-kv/tokens", json={"text": "a b c"}).json()["ids"][:3]
    answer = lent(client, ids, **remote_kv)
    if status == 200:  # found out while the stream has begun
        assert answer[-1]["type"] == "error"
    else:
        assert answer.status_code == status
        assert answer.json()["error"]["message"]


def test_remote_kv_needs_the_key_like_all_else(tmp_path):
    service = Service(lambda progress: scripted(tmp_path))
    service.begin().join()
    with (
        serve_in_thread(service, key="correct-horse-battery") as address,
        httpx.Client(base_url=address) as stranger,
    ):
        for path in ("/api/remote-kv", "/api/engines", "/props"):
            assert stranger.get(path).status_code == 401
    service.close()
