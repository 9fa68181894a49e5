"""Presets and the persona of all windows over HTTP."""

import pytest

from tests.server.talking import get_context, refused


@pytest.fixture
def shared(client):
    """What holds for all windows is as it was after a test."""
    before = client.get("/api/persona").json()
    yield
    client.patch("/api/persona", json=before)
    client.patch("/api/settings", json={"reset": ["top_k", "stop"]})
    for preset in client.get("/api/presets").json()["presets"]:
        client.delete("/api/presets", params={"name": preset["name"]})


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
