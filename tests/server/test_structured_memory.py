"""The AI's structured memory and notes over HTTP."""

import pytest

from tests.server.talking import chunks_of, get_context, refused, say


def test_memories_are_kept_in_versions_found_and_deleted(client):
    for version in (1, 2):
        kept = client.put(
            "/api/memory/entry", json={"path": "Pets/Mochi", "content": {"age": version}}
        ).json()
        assert kept["version"] == version
    client.put("/api/memory/entry", json={"path": "Petsitter", "content": "Ana"})
    assert client.get("/api/memory/entry", params={"path": "Pets/Mochi"}).json()["content"] == {"age": 2}
    tree = client.get("/api/memory").json()
    assert {"Pets", "Petsitter"} <= {child["heading"] for child in tree["children"]}
    versions = client.get("/api/memory/history", params={"path": "Pets/Mochi"}).json()["versions"]
    assert [one["content"]["age"] for one in versions] == [2, 1]
    matches = client.get("/api/memory/query", params={"path": "Pets", "q": "age of Mochi"}).json()["matches"]
    assert [one["entry"]["path"] for one in matches] == ["Pets/Mochi"]
    refused(client.delete("/api/memory/entry", params={"path": "Pets"}), 404, "unknown_memory")
    gone = client.delete("/api/memory/entry", params={"path": "Pets", "recursive": True}).json()
    assert gone == {"deleted": 1}
    refused(client.get("/api/memory/entry", params={"path": "Pets/Mochi"}), 404, "unknown_memory")
    assert client.get("/api/memory/entry", params={"path": "Petsitter"}).json()["content"] == "Ana"


@pytest.mark.parametrize(
    "body",
    [
        b'{"path": "a", "content": NaN}',
        b'{"path": "a", "content": [1e999]}',
        b'{"path": "a", "content": {"\\ud800": 1}}',
        b'{"path": "a", "content": "\\udfff"}',
        b'{"path": "a", "content": ' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"path": "a", "content": ' + b"9" * 30 + b"}",
        b'{"path": "../a", "content": 1}',
        b'{"path": "a//b", "content": 1}',
        b'{"path": "", "content": 1}',
        b'{"path": "a\\u0000", "content": 1}',
        b'{"path": "a"}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_what_cannot_be_kept_is_refused(client, body):
    answer = client.put("/api/memory/entry", content=body, headers={"content-type": "application/json"})
    refused(answer, 422, "bad_input")


def test_content_comes_back_as_it_was_kept(client):
    content = {"text": 'naïve 🐈\n\t"quoted"', "list": [1, 2.5, None, True, {"deep": []}], "": ""}
    client.put("/api/memory/entry", json={"path": "Exact", "content": content})
    assert client.get("/api/memory/entry", params={"path": "Exact"}).json()["content"] == content


def test_notes_are_read_and_replaced(client):
    notes = client.get("/api/notes").json()["content"]
    written = client.put("/api/notes", json={"content": {**notes, "topics": {"tea": "green"}}}).json()[
        "content"
    ]
    assert written["topics"] == {"tea": "green"}
    assert client.get("/api/notes").json()["content"] == written
    assert written["_metadata"]["created"] == notes["_metadata"]["created"]
    refused(client.put("/api/notes", json={"content": []}), 422, "bad_input")
    refused(client.put("/api/notes", json={"content": {"long": "x" * 300_000}}), 422, "bad_input")


def test_notes_that_were_changed_meanwhile_are_not_overwritten(client):
    read = client.get("/api/notes").json()
    mine = {"content": {"topics": {"tea": "green"}}, "version": read["version"]}
    theirs = client.put("/api/notes", json={"content": {"topics": {"tea": "black"}}}).json()
    refused(client.put("/api/notes", json=mine), 409, "notes_changed")
    assert client.get("/api/notes").json() == theirs
    written = client.put("/api/notes", json={**mine, "version": theirs["version"]}).json()
    assert written["content"]["topics"] == {"tea": "green"}
    assert client.get("/api/notes").json() == written
    again = client.put("/api/notes", json={"content": {}, "version": written["version"]})
    assert again.json()["version"] != written["version"]


def test_what_explains_a_memory_wakes_up(client, window):
    say(client, window, "The kayak is stored behind the boathouse.")
    kept = client.put(
        "/api/memory/entry", json={"path": "Things/Kayak", "content": "stored behind the boathouse"}
    ).json()
    key = next(one["key"] for one in kept["snapshot"] if one["key"].endswith("user"))
    client.post(f"/api/windows/{window}/chunks/{key}/prune")
    told = client.post(f"/api/windows/{window}/inject", json={"path": "Things/Kayak"}).json()
    assert key in told["resurrected"]
    assert key in [chunk["key"] for chunk in chunks_of(get_context(client, window))]
    refused(client.post(f"/api/windows/{window}/inject", json={"path": "Nothing"}), 404, "unknown_memory")
