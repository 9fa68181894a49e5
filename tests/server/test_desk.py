"""Documents, presets, the persona of all windows, and the order of windows over HTTP."""

import pytest

from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import following, get_context, refused, until_done

LOG = "The keeper noted thunder.\n\nThe lamp was lit at six."


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server of its own: a document of one word, a thousand times over, would be found by other tests."""
    service = Service(lambda progress: scripted(tmp_path_factory.mktemp("desk")))
    service.begin().join()
    with serve_in_thread(service) as address:
        yield address
    service.close()


@pytest.fixture
def shared(client):
    """What holds for all windows is as it was after a test."""
    before = client.get("/api/persona").json()
    yield
    client.patch("/api/persona", json=before)
    client.patch("/api/settings", json={"reset": ["top_k", "stop"]})
    for preset in client.get("/api/presets").json()["presets"]:
        client.delete("/api/presets", params={"name": preset["name"]})


def test_a_file_is_read_counted_and_said_with_a_message(client, window):
    told = client.post("/api/documents", params={"name": "C:\\log.txt"}, content=LOG.encode())
    assert told.status_code == 200, told.text
    document = told.json()
    assert (document["name"], document["text"]) == ("log.txt", LOG)
    assert document["tokens"] > 5
    about = {"name": document["name"], "text": document["text"]}
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "When?", "documents": [about]})
    with following(client, window, answer.json()["last_event"]) as events:
        until_done(events)
    turns = get_context(client, window)["turns"]
    assert [(turn["speaker"], turn["document"]) for turn in turns] == [
        ("log.txt", True),
        ("User", False),
        ("AI", False),
    ]
    said = client.get(f"/api/windows/{window}/turns").json()["turns"]
    assert said[0]["document"]
    key = turns[0]["chunks"][0]["key"]
    assert client.get(f"/api/windows/{window}/chunks/{key}/explanation").json()["speaker"] == "log.txt"
    hits = client.get("/api/search", params={"q": "keeper thunder"}).json()["hits"]
    assert "log.txt" in {hit["speaker"] for hit in hits}


def test_a_file_that_cannot_be_attached_is_refused_in_a_sentence(client, window):
    post = client.post
    wrong = post("/api/documents", params={"name": "a.bin"}, content=bytes(range(256)) * 20)
    assert "a.bin is not a text" in refused(wrong, 422, "document_refused")
    client.patch(f"/api/windows/{window}", json={"settings": {"document_megabytes": 1}})
    large = post("/api/documents", params={"name": "a.txt", "window": window}, content=b"x" * 1_500_000)
    assert "larger than 1 MB" in refused(large, 422, "document_refused")
    assert post("/api/documents", content=b"x").status_code == 422


def test_a_long_document_comes_with_a_message(client, window):
    client.patch(f"/api/windows/{window}", json={"settings": {"document_tokens": 2_000_000}})
    about = {"name": "long.txt", "text": "word " * 210_000}
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "Keep it.", "documents": [about]})
    assert answer.status_code == 202, answer.text
    with following(client, window, answer.json()["last_event"]) as events:
        until_done(events)
    assert client.get(f"/api/windows/{window}").json()["pruned_chunks"] > 100


def test_windows_have_tags_pins_and_an_archive(client):
    made = client.post("/api/windows", json={"name": "Tagged", "tags": ["work", " work ", "sea"]}).json()
    assert (made["tags"], made["pinned"], made["archived"]) == (["work", "sea"], False, False)
    change = {"tags": ["home"], "pinned": True, "archived": True}
    changed = client.patch(f"/api/windows/{made['id']}", json=change).json()
    assert {name: changed[name] for name in change} == change
    listed = {one["id"]: one for one in client.get("/api/windows").json()["windows"]}[made["id"]]
    assert {name: listed[name] for name in change} == change
    for tags in (["x" * 41], [" "], "work", [f"t{i}" for i in range(40)]):
        refused(client.patch(f"/api/windows/{made['id']}", json={"tags": tags}), 422, "bad_input")
    client.delete(f"/api/windows/{made['id']}")


def test_words_for_all_windows_and_exceptions(client, shared):
    one, other = (client.post("/api/windows", json={"name": name}).json()["id"] for name in ("One", "Other"))
    client.patch(f"/api/windows/{other}", json={"system_prompt": "Speak of the sea."})
    told = client.patch(
        "/api/persona", json={"system_prompt": "Speak like a keeper.", "ai_name": "Ada"}
    ).json()
    assert (told["system_prompt"], told["ai_name"], told["user_name"]) == (
        "Speak like a keeper.",
        "Ada",
        "User",
    )
    found = {window: client.get(f"/api/windows/{window}").json() for window in (one, other)}
    assert (found[one]["system_prompt"], found[one]["ai_name"]) == ("Speak like a keeper.", "Ada")
    assert found[other]["system_prompt"] == "Speak of the sea."
    assert found[other]["inherits"] == ["user_name", "ai_name"]
    back = client.patch(f"/api/windows/{other}", json={"inherits": ["system_prompt"]}).json()
    assert back["system_prompt"] == "Speak like a keeper."
    assert client.post("/api/windows", json={"name": "New"}).json()["ai_name"] == "Ada"
    assert get_context(client, one)["system_text"].startswith("Speak like a keeper.")


def test_presets_are_saved_applied_renamed_and_deleted(client, window, shared):
    client.patch(f"/api/windows/{window}", json={"settings": {"top_k": 7}, "ai_name": "Ada"})
    saved = client.put("/api/presets", json={"name": "calm/talk", "window": window}).json()
    assert (saved["settings"], saved["persona"]) == (
        {"memory_scope": "window", "top_k": 7},
        {"ai_name": "Ada"},
    )
    given = {"name": "given", "settings": {"stop": "\\nUser:"}, "persona": {"system_prompt": "Be calm."}}
    assert client.put("/api/presets", json=given).json()["settings"] == {"stop": "\\nUser:"}
    other = client.post("/api/windows", json={"name": "Other"}).json()["id"]
    client.post("/api/presets/apply", json={"name": "calm/talk", "window": other})
    applied = client.get(f"/api/windows/{other}").json()
    assert (applied["settings"]["top_k"], applied["ai_name"]) == (7, "Ada")
    client.post("/api/presets/apply", json={"name": "given"})
    assert client.get("/api/settings").json()["values"]["stop"] == "\\nUser:"
    assert client.get("/api/persona").json()["system_prompt"] == "Be calm."
    assert (
        client.post("/api/presets/rename", json={"name": "calm/talk", "to": "quiet"}).json()["name"]
        == "quiet"
    )
    refused(client.post("/api/presets/rename", json={"name": "quiet", "to": "given"}), 422, "bad_input")
    assert [one["name"] for one in client.get("/api/presets").json()["presets"]] == ["given", "quiet"]
    assert client.delete("/api/presets", params={"name": "quiet"}).json()["settings"]["top_k"] == 7
    refused(client.post("/api/presets/apply", json={"name": "quiet"}), 404, "unknown_preset")
    refused(client.put("/api/presets", json={"name": "x", "settings": {"top_k": -1}}), 422, "bad_input")


def test_the_settings_that_people_change_are_told(client):
    common = [one["name"] for one in client.get("/api/settings").json()["described"] if one["common"]]
    assert len(common) == 10
    assert {"temperature", "stop", "max_context_tokens"} <= set(common)
