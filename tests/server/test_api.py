"""What a user can do with windows, chunks, settings, the AI's own memory and files, over HTTP."""

import errno
import json
import os
import tempfile
import threading
import time
from contextlib import closing

import httpx
import numpy as np
import pytest

from halo_weave.assemble import Options, assemble
from halo_weave.server.listening import serving
from halo_weave.server.service import Service
from tests.server.talking import following, say, shown

LONG = "\n\n".join(f"Paragraph {i} tells of " + "many things and " * 20 for i in range(3))


def get_context(client, window):
    return client.get(f"/api/windows/{window}/context").json()


def chunks_of(context):
    return [chunk for turn in context["turns"] for chunk in turn["chunks"]]


def refused(answer, status, code):
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    return answer.json()["error"]["sentence"]


# Windows


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
    nulls = {"seed": None, "mmr_lambda": None, "top_k": None}
    made = client.post("/api/windows", json={"name": "Empty", "settings": nulls}).json()
    changed = client.patch(f"/api/windows/{window}", json={"settings": nulls}).json()
    client.patch("/api/settings", json={"reset": ["seed"]})
    assert made["settings"] == {"seed": None, "mmr_lambda": None}
    assert changed["settings"] == made["settings"] | {"memory_scope": "window"}
    assert made["effective"]["seed"] is None
    assert made["effective"]["top_k"] == 0


def test_a_window_with_settings_of_a_newer_version_is_listed_with_those_that_hold(client, service, window):
    newer = {"top_k": 7, "a_later_one": {"any": ["thing"]}, "temperature": 99}
    service.weave._system.store.change_window(window, now=service.weave.now(), settings=newer)
    told = {one["id"]: one for one in client.get("/api/windows").json()["windows"]}[window]
    holds = {"memory_scope": "window", "top_k": 7}
    assert told["settings"] == holds
    assert told["effective"] == client.get("/api/settings").json()["values"] | holds


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


@pytest.mark.parametrize("path", ["", "/context", "/graveyard", "/gap", "/preview?q=x", "/events"])
def test_an_unknown_window_is_named_so(client, path):
    refused(client.get(f"/api/windows/nowhere{path}"), 404, "unknown_window")


def test_an_unknown_address_and_method_have_the_same_shape(client):
    refused(client.get("/api/nothing"), 404, "not_found")
    refused(client.put("/api/windows"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/api/v1/tokenize", {}, "text: this is needed."),
        ("/api/v1/tokenize", {"text": 5}, "text: use text."),
        ("/api/v1/tokenize", {"text": "a", "colour": 1}, "colour: there is no such field."),
        ("/api/v1/tokenize", [], "Send a JSON object, with content type application/json."),
        ("/api/windows", [], "Send a JSON object, with content type application/json."),
        ("/api/windows", {"name": "a\0b"}, "name: leave out the character NUL: it cannot be stored."),
        ("/api/windows", {"name": " \n"}, "name: write something; blanks alone are not enough."),
        ("/api/windows", {"name": "x", "settings": 1}, "settings: use a JSON object."),
        (
            "/api/windows",
            {"name": "x", "settings": {"temperature": 9, "seed": -1, "max_context_tokens": 10**7}},
            "settings.temperature: use at most 5; settings.seed: use at least 0; "
            "settings.max_context_tokens: use at most 1,000,000.",
        ),
        ("/api/windows", {"name": "x", "settings": {"top_p": 0}}, "settings.top_p: use at least 0.01."),
        ("/api/windows", {"name": "x", "settings": {"sink": "x"}}, "settings.sink: use 'max' or 'first'."),
        ("/api/windows/x/say", {"text": "a\0b"}, "text: leave out the character NUL: it cannot be stored."),
        ("/api/extra/generate/stream", {"prompt": "a", "top_p": 0}, "top_p: use more than 0."),
        (
            "/api/extra/generate/stream",
            {"stop_sequence": ["a"] * 17},
            "stop_sequence: send at most 16 of them.",
        ),
        ("/api/v1/detokenize", {"token_ids": [2**31]}, "token_ids.0: use less than 2,147,483,648."),
        ("/api/v1/detokenize", {"token_ids": 1}, "token_ids: use a list."),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_what_is_wrong_is_said_in_a_plain_sentence(client, path, body, sentence):
    assert refused(client.post(path, json=body), 422, "bad_input") == sentence


def test_a_body_is_refused_where_none_is_described(client, window):
    say(client, window, "Keep me.")
    key = chunks_of(get_context(client, window))[0]["key"]
    for method, path in (
        ("POST", f"/api/windows/{window}/abort"),
        ("POST", f"/api/windows/{window}/chunks/{key}/pin"),
        ("GET", f"/api/windows/{window}"),
        ("DELETE", f"/api/windows/{window}"),
        ("POST", "/api/session"),
    ):
        for body in (b"garbage", b'{"x": 1}', iter([b"gar", b"bage"])):
            sentence = refused(client.request(method, path, content=body), 422, "bad_input")
            assert sentence == "This address takes no body. Send none."
    assert not chunks_of(get_context(client, window))[0]["pinned"]
    empty = client.post(f"/api/windows/{window}/abort", content=iter([b""]))
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
    refused(client.get("/api/windows/x/say"), 405, "method_not_allowed")
    assert client.head("/api/windows/x/say").status_code == 405


def test_the_icon_is_found_where_browsers_look_for_it(client):
    icon = client.get("/favicon.ico")
    assert icon.headers["content-type"] == "image/svg+xml"
    assert icon.content == client.get("/static/icon.svg").content


# Settings


def test_every_setting_is_described_and_can_be_changed_and_reset(client):
    told = client.get("/api/settings").json()
    assert {one["name"] for one in told["described"]} == told["values"].keys()
    for one in told["described"]:
        assert one["meaning"].endswith(".")
        assert one["type"] in {"integer", "number", "boolean", "choice"}
    changed = client.patch("/api/settings", json={"mmr_lambda": 0.5, "top_k": 11}).json()["values"]
    assert (changed["mmr_lambda"], changed["top_k"]) == (0.5, 11)
    emptied = client.patch("/api/settings", json={"mmr_lambda": None, "reset": ["top_k"]}).json()["values"]
    assert (emptied["mmr_lambda"], emptied["top_k"]) == (None, 0)
    assert client.get("/api/settings").json()["values"] == emptied


@pytest.mark.parametrize(
    "body", [{"top_k": -1}, {"top_k": 1.5}, {"top_k": None}, {"colour": 1}, {"reset": ["colour"]}]
)
def test_a_setting_out_of_its_range_is_refused(client, body):
    answer = client.patch("/api/settings", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] in {"bad_input", "bad_setting"}


# Chunks


def test_a_chunk_is_pinned_and_unpinned(client, window):
    say(client, window, "Keep me.")
    key = chunks_of(get_context(client, window))[0]["key"]
    base = f"/api/windows/{window}/chunks/{key}"
    assert client.post(f"{base}/pin").json() == {"key": key, "live": True, "pinned": True}
    assert chunks_of(get_context(client, window))[0]["pinned"]
    assert (
        get_context(client, window)["budget"]["pinned"] == chunks_of(get_context(client, window))[0]["tokens"]
    )
    assert client.post(f"{base}/unpin").json() == {"key": key, "live": True, "pinned": False}


def test_a_chunk_sleeps_in_the_graveyard_and_the_gap_and_wakes_up_pinned(client, window):
    say(client, window, "First thing.")
    say(client, window, "Second thing.")
    first, second = chunks_of(get_context(client, window))[:2]
    base = f"/api/windows/{window}/chunks/{first['key']}"
    assert client.post(f"{base}/sleep").json()["live"] is False
    context = get_context(client, window)
    assert chunks_of(context)[0]["gap"] == {"chunks": 1, "tokens": first["tokens"]}
    assert context["stats"]["asleep_chunks"] == 1
    page = client.get(f"/api/windows/{window}/graveyard").json()
    assert page["total"] == 1
    assert (page["items"][0]["key"], page["items"][0]["text"]) == (first["key"], "First thing.")
    gap = client.get(f"/api/windows/{window}/gap", params={"before": second["start"]}).json()["items"]
    assert [one["key"] for one in gap] == [first["key"]]
    assert client.get(f"/api/windows/{window}/gap", params={"after": second["start"]}).json()["items"] == []
    assert client.post(f"{base}/wake").json() == {"key": first["key"], "live": True, "pinned": True}
    back = chunks_of(get_context(client, window))[0]
    assert (back["key"], back["start"], back["pinned"]) == (first["key"], first["start"], True)
    refused(client.post(f"{base}/wake"), 422, "bad_input")


def test_a_gap_is_paged_and_tells_how_much_sleeps_in_it(client, window):
    for i in range(3):
        say(client, window, f"Number {i}.")
    chunks = chunks_of(get_context(client, window))
    asleep, last = chunks[:5], chunks[5]
    for chunk in asleep:
        assert client.post(f"/api/windows/{window}/chunks/{chunk['key']}/sleep").status_code == 200
    base, keys = f"/api/windows/{window}/gap", [chunk["key"] for chunk in asleep]
    whole = client.get(base, params={"before": last["start"]}).json()
    assert (whole["total"], whole["tokens"]) == (5, sum(chunk["tokens"] for chunk in asleep))
    assert [one["key"] for one in whole["items"]] == keys
    asked = {"after": asleep[1]["start"], "before": asleep[4]["start"], "offset": 1, "limit": 1}
    page = client.get(base, params=asked).json()
    assert (page["total"], page["tokens"]) == (3, sum(chunk["tokens"] for chunk in asleep[1:4]))
    assert [one["key"] for one in page["items"]] == [keys[2]]
    beyond = client.get(base, params={"offset": 5}).json()
    assert (beyond["total"], beyond["items"]) == (5, [])
    assert client.get(base, params={"limit": 0}).status_code == 422


def test_the_graveyard_is_paged_sorted_and_filtered(client, window):
    for i in range(3):
        say(client, window, f"Number {i} " + "x " * 10 * i)
    keys = [chunk["key"] for chunk in chunks_of(get_context(client, window)) if chunk["key"].endswith("user")]
    for key in keys:
        client.post(f"/api/windows/{window}/chunks/{key}/sleep")
    base = f"/api/windows/{window}/graveyard"
    by_size = client.get(base, params={"sort": "tokens", "order": "asc"}).json()["items"]
    assert [one["key"] for one in by_size] == keys
    page = client.get(base, params={"sort": "position", "order": "asc", "offset": 1, "limit": 1}).json()
    assert (page["total"], [one["key"] for one in page["items"]]) == (3, [keys[1]])
    assert client.get(base, params={"text": "Number 2"}).json()["total"] == 1
    assert client.get(base, params={"role": "assistant"}).json()["total"] == 0
    assert client.get(base, params={"sort": "colour"}).status_code == 422


def test_a_chunk_merges_into_the_one_before_it(client, window):
    client.patch(f"/api/windows/{window}", json={"settings": {"min_chunk_tokens": 16}})
    say(client, window, LONG)
    first, second = chunks_of(get_context(client, window))[:2]
    told = client.post(f"/api/windows/{window}/chunks/{second['key']}/merge").json()
    assert told["key"] == first["key"]
    merged = chunks_of(get_context(client, window))[0]
    assert merged["text_pieces"] == first["text_pieces"] + second["text_pieces"]


def test_why_tells_the_history(client, window):
    say(client, window, "Explain yourself.")
    key = chunks_of(get_context(client, window))[0]["key"]
    for act in ("pin", "unpin", "sleep", "wake"):
        client.post(f"/api/windows/{window}/chunks/{key}/{act}")
    told = client.get(f"/api/windows/{window}/chunks/{key}/why").json()
    assert told["text"] == "Explain yourself."
    assert {"pinned", "slept", "woke"} <= {one["event"] for one in told["history"]}
    assert told["peak"] is not None


def test_deleting_says_what_goes_along_and_can_be_undone(client, window):
    say(client, window, "The marmoset is asleep.")
    question, answer = chunks_of(get_context(client, window))[:2]
    base = f"/api/windows/{window}/chunks"
    would = client.get(f"{base}/{answer['key']}/delete").json()
    assert (would["turns"], would["chunks"]) == (2, 2)
    assert would["tokens"] == question["tokens"] + answer["tokens"]
    assert would["text"] == "The marmoset is asleep."
    assert get_context(client, window)["turns"], "looking deletes nothing"
    done = client.delete(f"{base}/{answer['key']}").json()
    assert done == would
    assert get_context(client, window)["turns"] == []
    assert "marmoset" not in client.get("/api/search", params={"q": "marmoset"}).text
    assert client.post(f"{base}/undelete", json={"keys": done["keys"]}).status_code == 200
    assert shown(get_context(client, window))[0] == "The marmoset is asleep."
    assert "The marmoset is asleep." in client.get("/api/search", params={"q": "marmoset"}).text


@pytest.mark.parametrize("key", ["999.0.user", "9223372036854775807.0.user", "1.999999999.user"])
@pytest.mark.parametrize("act", ["pin", "unpin", "sleep", "wake", "merge"])
def test_an_unknown_chunk_is_named_so(client, window, key, act):
    answer = client.post(f"/api/windows/{window}/chunks/{key}/{act}")
    assert answer.status_code in {404, 422}, answer.text
    assert "hunk" in answer.json()["error"]["sentence"]


@pytest.mark.parametrize("key", ["x", "1.0", "1.0.pirate", "-1.0.user", "1.0.user.2"])
def test_what_is_no_key_is_refused(client, window, key):
    refused(client.get(f"/api/windows/{window}/chunks/{key}/why"), 422, "bad_input")


@pytest.mark.parametrize(
    "key",
    [
        f"{2**63}.0.user",
        "99999999999999999999999.0.user",
        f"1.{2**63}.user",
        "1.99999999999999999999999.user",
    ],
)
def test_beyond_the_last_id_there_is_no_chunk(client, window, key):
    base = f"/api/windows/{window}"
    refused(client.get(f"{base}/chunks/{key}/why"), 404, "unknown_chunk")
    refused(client.post(f"{base}/chunks/{key}/pin"), 404, "unknown_chunk")
    refused(client.post(f"{base}/chunks/undelete", json={"keys": [key]}), 404, "unknown_chunk")


def test_an_id_beyond_the_last_is_refused(client, window):
    refused(client.get(f"/api/windows/{window}/gap", params={"after": "9" * 19}), 422, "bad_input")


# Search


def test_search_tells_where_and_when_and_whether_it_is_live(client, window):
    say(client, window, "The codeword is heliotrope.")
    hits = client.get("/api/search", params={"q": "heliotrope", "window": window}).json()["hits"]
    hit = next(one for one in hits if one["role"] == "user")
    assert (hit["window"], hit["window_name"], hit["live"]) == (window, "Test", True)
    assert hit["text"] == "The codeword is heliotrope."
    client.post(f"/api/windows/{window}/chunks/{hit['key']}/sleep")
    hits = client.get("/api/search", params={"q": "heliotrope", "window": window}).json()["hits"]
    assert next(one for one in hits if one["key"] == hit["key"])["live"] is False
    small = client.get("/api/search", params={"q": "heliotrope", "budget": hit["tokens"]}).json()["hits"]
    assert sum(one["tokens"] for one in small) <= hit["tokens"]


def test_only_one_window_is_searched_and_it_has_to_be_named(client, window):
    say(client, window, "The password is halcyon.")
    asked = {"q": "halcyon", "only_window": True}
    hits = client.get("/api/search", params=asked | {"window": window}).json()["hits"]
    assert {hit["window"] for hit in hits} == {window}
    assert "window" in refused(client.get("/api/search", params=asked), 422, "bad_input")


def test_a_preview_tells_what_would_wake_and_changes_nothing(client, window):
    say(client, window, "The ferry leaves at noon from Ushuaia.")
    for chunk in chunks_of(get_context(client, window)):
        client.post(f"/api/windows/{window}/chunks/{chunk['key']}/sleep")
    before = get_context(client, window)
    told = client.get(
        f"/api/windows/{window}/preview", params={"q": "When does the ferry to Ushuaia leave?"}
    ).json()
    assert told["wakes"][0]["text"] == "The ferry leaves at noon from Ushuaia."
    assert 0 < told["cost"] <= told["room"]
    assert get_context(client, window) == before


# The AI's own memory


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
    client.post(f"/api/windows/{window}/chunks/{key}/sleep")
    told = client.post(f"/api/windows/{window}/inject", json={"path": "Things/Kayak"}).json()
    assert key in told["keys"]
    assert key in [chunk["key"] for chunk in chunks_of(get_context(client, window))]
    refused(client.post(f"/api/windows/{window}/inject", json={"path": "Nothing"}), 404, "unknown_memory")


# Files


def test_an_export_is_a_file_and_imports_without_change(client, window):
    say(client, window, "Take me along.")
    answer = client.get("/api/export", params={"window": window})
    assert answer.headers["content-disposition"].startswith("attachment")
    assert int(answer.headers["content-length"]) == len(answer.content)
    exported = json.loads(answer.content)
    assert exported["turns"]
    kind = {"content-type": "application/octet-stream"}
    brought = client.post("/api/import", content=answer.content, headers=kind).json()
    assert (brought["turns"], brought["known_turns"]) == (0, len(exported["turns"]))


def test_an_export_of_a_part(client, window):
    told = say(client, window, "Only this turn.")
    turn = next(event.data["turn_id"] for event in told if event.name == "heard")
    part = client.get("/api/export", params={"first_turn": turn, "last_turn": turn}).json()
    assert [one["turn"] for one in part["turns"]] == [turn, str(int(turn) + 1)]
    assert client.get("/api/export", params={"since": "2199-01-01"}).json()["turns"] == []
    refused(client.get("/api/export", params={"since": "2199-13-01"}), 422, "bad_input")
    refused(client.get("/api/export", params={"window": "nowhere"}), 404, "unknown_window")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b"not json", b"\xff\x00", b'{"format": "halo-weave memory"']
)
def test_a_file_that_is_no_export_is_refused_and_changes_nothing(client, body):
    before = client.get("/api/stats").json()
    refused(client.post("/api/import", content=body), 422, "import_refused")
    assert client.get("/api/stats").json() == before


def test_files_in_passing_lie_nameless_beside_the_memory(client, service, window, monkeypatch, tmp_path):
    say(client, window, "Not into the RAM.")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # the system's folder is not asked
    folder = service.weave.memory.folder
    store = service.weave._system.store
    seen, import_open_file = [], store.import_open_file

    def watched(file, **more):
        seen.append({path.name for path in folder.iterdir()})
        assert os.fstat(file.fileno()).st_dev == folder.stat().st_dev
        return import_open_file(file, **more)

    monkeypatch.setattr(store, "import_open_file", watched)
    answer = client.get("/api/export", params={"window": window})
    assert client.post("/api/import", content=answer.content).status_code == 200
    refused(client.post("/api/import", content=b"{}"), 422, "import_refused")
    assert len(seen) == 2
    for names in (*seen, {path.name for path in folder.iterdir()}):
        assert all(name.startswith("memory.sqlite") for name in names)


def test_a_disk_without_room_for_a_file_is_said_so(client, monkeypatch):
    def full(dir):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    for answer in (client.get("/api/export"), client.post("/api/import", content=b"{}")):
        assert "No space left" in refused(answer, 507, "store_full")


def test_clearing_needs_the_words(client, window):
    refused(client.post("/api/clear", json={"confirm": "yes"}), 422, "bad_input")
    assert client.get(f"/api/windows/{window}").status_code == 200


def test_stats_count_what_is_there(client, window):
    before = client.get("/api/stats").json()
    say(client, window, "Count me.")
    after = client.get("/api/stats").json()
    assert after["turns"] == before["turns"] + 2
    assert int(after["next_turn"]) == int(before["next_turn"]) + 2


def test_everything_is_embedded_anew_in_the_background(client, window):
    say(client, window, "Embed me twice.")
    begun = client.post("/api/reindex")
    assert begun.status_code == 202
    assert begun.json()["total"] > 0
    while (now := client.get("/api/reindex").json())["state"] == "running":
        assert 0 <= now["done"] <= now["total"]
        time.sleep(0.02)
    assert now["state"] == "idle"
    assert now["done"] == now["total"]
    hits = client.get(
        "/api/search", params={"q": "embed twice", "window": window, "only_window": True}
    ).json()["hits"]
    assert hits[0]["text"] == "Embed me twice."


def test_embedding_anew_without_an_embedder_is_refused_in_a_sentence(tmp_path):
    service = Service(lambda progress: assemble(Options(data=tmp_path, engine="scripted", embedder="off")))
    service.begin().join()
    with serving(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        assert client.get("/api/reindex").json()["state"] == "off"
        refused(client.post("/api/reindex"), 409, "embedder_off")


def test_another_embedder_takes_over_when_it_has_embedded_everything(tmp_path):
    options = Options(data=tmp_path, engine="scripted")
    with closing(assemble(options)) as weave:
        window = weave.windows.create("Old")
        for i in range(20):
            list(weave.turns.steps(window.id, f"Sentence {i} of the old embedder."))
        weave._system.recall.settle(30)
        now = weave.now()
        other = weave._system.store.begin_generation("another embedder", 8, now=now)
        wanted = weave._system.store.wanted(other.id, 1000)
        weave._system.store.add_vectors(
            other.id, wanted, np.eye(8, dtype=np.float32)[np.zeros(len(wanted.numbers), int)]
        )
        weave._system.store.complete_generation(other.id, now=now)
    service = Service(lambda progress: assemble(options))
    service.begin().join()
    with serving(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        while client.get("/api/status").json()["embedder"]["state"] == "loading":
            time.sleep(0.02)
        status = client.get("/api/status").json()["embedder"]
        assert status["state"] == "off"
        assert "another embedder" in status["sentence"]
        assert client.post("/api/reindex").json()["state"] == "running"
        while True:
            answer = client.get("/api/reindex")
            if answer.status_code == 200 and answer.json()["state"] != "running":
                break
            time.sleep(0.02)
        assert answer.json()["state"] == "idle"
        assert client.get("/api/status").json()["embedder"]["state"] == "ready"
        hits = client.get("/api/search", params={"q": "Sentence 7 of the old embedder"}).json()["hits"]
        assert "Sentence 7 of the old embedder." in [hit["text"] for hit in hits]
        serving_now = [
            one["model"]
            for one in client.get("/api/stats").json()["generations"]
            if one["state"] == "current"
        ]
        assert serving_now == ["hashing"]


def test_clearing_deletes_everything_and_what_is_said_after_it_is_found(tmp_path):
    service = Service(lambda progress: assemble(Options(data=tmp_path, engine="scripted")))
    service.begin().join()
    with serving(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        old = client.post("/api/windows", json={"name": "Old"}).json()["id"]
        for i in range(5):
            say(client, old, f"The old secret number {i}.")
        with following(client, old, get_context(client, old)["last_event"]) as events:
            assert client.post("/api/clear", json={"confirm": "delete everything"}).status_code == 204
            assert [event.name for event in events] == ["deleted"]
        assert client.get("/api/windows").json() == {"windows": []}
        assert client.get("/api/search", params={"q": "old secret"}).json() == {"hits": []}
        new = client.post("/api/windows", json={"name": "New"}).json()["id"]
        told = say(client, new, "The new secret is here.")
        assert not [event for event in told if event.name == "woken"]
        hits = client.get("/api/search", params={"q": "new secret"}).json()["hits"]
        assert "The new secret is here." in [hit["text"] for hit in hits]
        assert int(next(event.data["turn_id"] for event in told if event.name == "heard")) > 10, "ids go on"


def test_clearing_while_others_look_breaks_nothing(tmp_path):
    service = Service(lambda progress: assemble(Options(data=tmp_path, engine="scripted")))
    service.begin().join()
    answers: set[int] = set()
    done = threading.Event()

    def look(address: str) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while not done.is_set():
                for path in ("windows", "status", "export", "stats", "reindex"):
                    answers.add(client.get(f"/api/{path}").status_code)

    with serving(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        others = [threading.Thread(target=look, args=(address,)) for _ in range(3)]
        for other in others:
            other.start()
        for _ in range(8):
            window = client.post("/api/windows", json={"name": "w"}).json()["id"]
            say(client, window, "A word or two.")
            cleared = client.post("/api/clear", json={"confirm": "delete everything"})
            assert cleared.status_code == 204, cleared.text
            assert client.get("/api/status").json()["model"]["state"] == "ready"  # nothing is loaded anew
        done.set()
        for other in others:
            other.join()
    assert answers == {200}


def test_a_deletion_is_told_to_every_window_that_it_changes(client):
    here, there = (
        client.post("/api/windows", json={"name": name}).json()["id"] for name in ("here", "there")
    )
    say(client, here, "The lamp is lit.")
    key = get_context(client, here)["turns"][0]["chunks"][0]["key"]
    with following(client, here, get_context(client, here)["last_event"]) as events:
        gone = client.delete(f"/api/windows/{there}/chunks/{key}").json()
        assert next(events).name == "changed"
        client.post(f"/api/windows/{there}/chunks/undelete", json={"keys": gone["keys"]})
        assert next(events).name == "changed"
    assert get_context(client, here)["turns"][0]["chunks"][0]["key"] == key


@pytest.mark.parametrize(
    ("method", "path", "sent", "sentence"),
    [
        ("GET", "/api/memory/entry", {}, "path: this is needed."),
        (
            "POST",
            "/api/windows",
            {"json": {"name": "  "}},
            "name: write something; blanks alone are not enough.",
        ),
        ("POST", "/api/windows", {"json": {"name": "x" * 201}}, "name: use at most 200 characters."),
        ("POST", "/api/windows", {"json": {"name": "x", "colour": 1}}, "colour: there is no such field."),
        ("POST", "/api/windows", {"content": "{bad"}, "The body is not valid JSON"),
        ("POST", "/api/windows", {}, "Send a JSON object as the body."),
        ("GET", "/api/search?q=x&limit=many", {}, "limit: use a whole number."),
        ("GET", "/api/search?q=x&limt=1", {}, "This address takes no parameter 'limt'. It takes q, "),
        ("PUT", "/api/memory/entry", {"json": {"path": "", "content": 1}}, "path: this cannot be empty."),
    ],
)
def test_a_request_that_does_not_fit_is_told_so_in_words(client, method, path, sent, sentence):
    headers = {"content-type": "application/json"} if "content" in sent else {}
    assert refused(client.request(method, path, headers=headers, **sent), 422, "bad_input").startswith(
        sentence
    )
