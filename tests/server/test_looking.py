"""Looking changes nothing: no GET writes."""

import pytest

from halo_weave.store.sqlite import SqliteDatabase as Database
from tests.server.talking import say


@pytest.fixture
def looked_at(client, window):
    say(client, window, "Something to look at.")
    client.put("/api/memory/entry", json={"path": "Looked/At", "content": 1})
    key = client.get(f"/api/windows/{window}/context").json()["turns"][0]["chunks"][0]["key"]
    return {"window_id": window, "key": key, "turn_id": key.partition(".")[0]}


def test_no_get_writes(client, service, looked_at, monkeypatch):
    service.weave._system.recall.settle(30)
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
