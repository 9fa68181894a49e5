"""Windows and settings over HTTP."""

import pytest

from tests.server.talking import refused, say


def test_a_window_is_made_changed_listed_and_deleted(client):
    made = client.post("/api/windows", json={"name": "Garden", "settings": {"temperature": 1.25}})
    assert made.status_code == 201
    window = made.json()
    assert window["settings"] == {"temperature": 1.25}
    assert window["effective"]["temperature"] == 1.25
    changed = client.patch(
        f"/api/windows/{window['id']}",
        json={
            "name": "Orchard",
            "system_prompt": "Speak of trees.",
            "settings": {"temperature": None, "top_k": 7},
        },
    ).json()
    assert (changed["name"], changed["system_prompt"]) == ("Orchard", "Speak of trees.")
    assert changed["settings"] == {"top_k": 7}
    assert changed["effective"]["temperature"] == client.get("/api/settings").json()["values"]["temperature"]
    assert changed["id"] in [one["id"] for one in client.get("/api/windows").json()["windows"]]
    assert client.delete(f"/api/windows/{window['id']}").status_code == 204
    assert changed["id"] not in [one["id"] for one in client.get("/api/windows").json()["windows"]]
    refused(client.get(f"/api/windows/{window['id']}"), 404, "unknown_window")


def test_null_empties_a_setting_of_a_new_window_as_it_does_of_an_old_one(client, window):
    client.patch("/api/settings", json={"seed": 7})
    nulls = {"seed": None, "recall_role": None, "top_k": None}
    made = client.post("/api/windows", json={"name": "Empty", "settings": nulls}).json()
    changed = client.patch(f"/api/windows/{window}", json={"settings": nulls}).json()
    client.patch("/api/settings", json={"reset": ["seed"]})
    assert made["settings"] == {"seed": None, "recall_role": None}
    assert changed["settings"] == made["settings"] | {"memory_scope": "window"}
    assert made["effective"]["seed"] is None
    assert made["effective"]["top_k"] == 0


def test_a_window_with_settings_of_a_newer_version_is_listed_with_those_that_hold(client, service, window):
    newer = {"top_k": 7, "a_later_one": {"any": ["thing"]}, "temperature": 99}
    service.weave.runtime.store.change_window(window, now=service.weave.now(), settings=newer)
    told = {one["id"]: one for one in client.get("/api/windows").json()["windows"]}[window]
    holds = {"memory_scope": "window", "top_k": 7}
    assert told["settings"] == holds
    shared = client.get("/api/settings").json()
    assert shared["auto"] == {"max_context_tokens": 6656}
    assert told["effective"] == shared["values"] | shared["auto"] | holds


def test_what_was_said_in_a_deleted_window_is_still_found(client, window):
    say(client, window, "The heirloom is a zither.")
    client.delete(f"/api/windows/{window}")
    hits = client.get("/api/search", params={"q": "zither"}).json()["hits"]
    assert "The heirloom is a zither." in [hit["text"] for hit in hits]


def test_the_list_shows_the_last_words(client, window):
    told = say(client, window, "Last words of mine.")
    listed = next(one for one in client.get("/api/windows").json()["windows"] if one["id"] == window)
    reply = "".join(event.data["text"] for event in told if event.name == "token")
    assert listed["last_text"] == " ".join(reply.split())
    assert listed["live_chunks"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "  "},
        {"name": "x" * 201},
        {"name": "x", "colour": "red"},
        {"name": "x", "settings": {"colour": "red"}},
        {"name": "x", "settings": {"temperature": 99}},
        {"name": "x", "settings": {"temperature": "hot"}},
        {"name": 3},
    ],
)
def test_a_window_that_makes_no_sense_is_refused(client, body):
    refused(client.post("/api/windows", json=body), 422, "bad_input")


@pytest.mark.parametrize("path", ["", "/context", "/graveyard", "/pruned", "/recall-preview?q=x", "/events"])
def test_an_unknown_window_is_named_so(client, path):
    refused(client.get(f"/api/windows/nowhere{path}"), 404, "unknown_window")


def test_every_setting_is_described_and_can_be_changed_and_reset(client):
    told = client.get("/api/settings").json()
    assert {one["name"] for one in told["described"]} == told["values"].keys()
    for one in told["described"]:
        assert one["meaning"].endswith(".")
        assert one["type"] in {"integer", "number", "boolean", "choice", "text", "day"}
    changed = client.patch("/api/settings", json={"max_context_tokens": 900, "top_k": 11}).json()["values"]
    assert (changed["max_context_tokens"], changed["top_k"]) == (900, 11)
    emptied = client.patch("/api/settings", json={"max_context_tokens": None, "reset": ["top_k"]}).json()[
        "values"
    ]
    assert (emptied["max_context_tokens"], emptied["top_k"]) == (None, 0)
    assert client.get("/api/settings").json()["values"] == emptied


@pytest.mark.parametrize(
    "body", [{"top_k": -1}, {"top_k": 1.5}, {"top_k": None}, {"colour": 1}, {"reset": ["colour"]}]
)
def test_a_setting_out_of_its_range_is_refused(client, body):
    answer = client.patch("/api/settings", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] in {"bad_input", "bad_setting"}


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
