"""What a user can do with a chunk over HTTP."""

import pytest

from tests.server.talking import chunks_of, following, get_context, refused, say, shown

LONG = "\n\n".join(f"Paragraph {i} tells of " + "many things and " * 20 for i in range(3))


def test_a_chunk_is_pinned_and_unpinned(client, window):
    say(client, window, "Keep me.")
    key = chunks_of(get_context(client, window))[0]["key"]
    base = f"/api/windows/{window}/chunks/{key}"
    moved = {"resurrected": [], "pruned": []}
    assert client.post(f"{base}/pin").json() == {"key": key, "live": True, "pinned": True, **moved}
    assert chunks_of(get_context(client, window))[0]["pinned"]
    assert (
        get_context(client, window)["budget"]["pinned"] == chunks_of(get_context(client, window))[0]["tokens"]
    )
    assert client.post(f"{base}/unpin").json() == {"key": key, "live": True, "pinned": False, **moved}


def test_a_chunk_sleeps_in_the_graveyard_and_the_gap_and_wakes_up_pinned(client, window):
    say(client, window, "First thing.")
    say(client, window, "Second thing.")
    first, second = chunks_of(get_context(client, window))[:2]
    base = f"/api/windows/{window}/chunks/{first['key']}"
    assert client.post(f"{base}/prune").json()["live"] is False
    context = get_context(client, window)
    assert chunks_of(context)[0]["pruned_before"] == {"chunks": 1, "tokens": first["tokens"]}
    assert context["stats"]["pruned_chunks"] == 1
    page = client.get(f"/api/windows/{window}/graveyard").json()
    assert page["total"] == 1
    assert (page["items"][0]["key"], page["items"][0]["text"]) == (first["key"], "First thing.")
    gap = client.get(f"/api/windows/{window}/pruned", params={"to": second["start"]}).json()["items"]
    assert [one["key"] for one in gap] == [first["key"]]
    assert client.get(f"/api/windows/{window}/pruned", params={"from": second["start"]}).json()["items"] == []
    woken = {"key": first["key"], "live": True, "pinned": True, "resurrected": [first["key"]], "pruned": []}
    assert client.post(f"{base}/resurrect").json() == woken
    back = chunks_of(get_context(client, window))[0]
    assert (back["key"], back["start"], back["pinned"]) == (first["key"], first["start"], True)
    refused(client.post(f"{base}/resurrect"), 422, "bad_input")


def test_a_gap_is_paged_and_tells_how_much_sleeps_in_it(client, window):
    for i in range(3):
        say(client, window, f"Number {i}.")
    chunks = chunks_of(get_context(client, window))
    asleep, last = chunks[:5], chunks[5]
    for chunk in asleep:
        assert client.post(f"/api/windows/{window}/chunks/{chunk['key']}/prune").status_code == 200
    base, keys = f"/api/windows/{window}/pruned", [chunk["key"] for chunk in asleep]
    whole = client.get(base, params={"to": last["start"]}).json()
    assert (whole["total"], whole["tokens"]) == (5, sum(chunk["tokens"] for chunk in asleep))
    assert [one["key"] for one in whole["items"]] == keys
    asked = {"from": asleep[1]["start"], "to": asleep[4]["start"], "offset": 1, "limit": 1}
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
        client.post(f"/api/windows/{window}/chunks/{key}/prune")
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
    for act in ("pin", "unpin", "prune", "resurrect"):
        client.post(f"/api/windows/{window}/chunks/{key}/{act}")
    told = client.get(f"/api/windows/{window}/chunks/{key}/explanation").json()
    assert told["text"] == "Explain yourself."
    assert {"pinned", "pruned", "resurrected"} <= {one["event"] for one in told["history"]}
    assert told["peak"] is not None


def test_deleting_says_what_goes_along_and_can_be_undone(client, window):
    say(client, window, "The marmoset is asleep.")
    question, answer = chunks_of(get_context(client, window))[:2]
    base = f"/api/windows/{window}/chunks"
    would = client.get(f"{base}/{answer['key']}/deletion").json()
    assert (would["turns"], would["chunks"]) == (2, 2)
    assert would["tokens"] == question["tokens"] + answer["tokens"]
    assert would["text"] == "The marmoset is asleep."
    assert get_context(client, window)["turns"], "looking deletes nothing"
    done = client.delete(f"{base}/{answer['key']}").json()
    assert done == would
    assert get_context(client, window)["turns"] == []
    assert "marmoset" not in client.get("/api/search", params={"q": "marmoset"}).text
    assert client.post(f"{base}/restore", json={"keys": done["keys"]}).status_code == 200
    assert shown(get_context(client, window))[0] == "The marmoset is asleep."
    assert "The marmoset is asleep." in client.get("/api/search", params={"q": "marmoset"}).text


@pytest.mark.parametrize("key", ["999.0.user", "9223372036854775807.0.user", "1.999999999.user"])
@pytest.mark.parametrize("act", ["pin", "unpin", "prune", "resurrect", "merge"])
def test_an_unknown_chunk_is_named_so(client, window, key, act):
    answer = client.post(f"/api/windows/{window}/chunks/{key}/{act}")
    assert answer.status_code in {404, 422}, answer.text
    assert "hunk" in answer.json()["error"]["message"]


@pytest.mark.parametrize("key", ["x", "1.0", "1.0.pirate", "-1.0.user", "1.0.user.2"])
def test_what_is_no_key_is_refused(client, window, key):
    refused(client.get(f"/api/windows/{window}/chunks/{key}/explanation"), 422, "bad_input")


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
    refused(client.get(f"{base}/chunks/{key}/explanation"), 404, "unknown_chunk")
    refused(client.post(f"{base}/chunks/{key}/pin"), 404, "unknown_chunk")
    refused(client.post(f"{base}/chunks/restore", json={"keys": [key]}), 404, "unknown_chunk")


def test_an_id_beyond_the_last_is_refused(client, window):
    refused(client.get(f"/api/windows/{window}/pruned", params={"from": "9" * 19}), 422, "bad_input")


def test_a_deletion_is_told_to_every_window_that_it_changes(client):
    here, there = (
        client.post("/api/windows", json={"name": name}).json()["id"] for name in ("here", "there")
    )
    say(client, here, "The lamp is lit.")
    key = get_context(client, here)["turns"][0]["chunks"][0]["key"]
    with following(client, here, get_context(client, here)["last_event"]) as events:
        gone = client.delete(f"/api/windows/{there}/chunks/{key}").json()
        assert next(events).name == "changed"
        client.post(f"/api/windows/{there}/chunks/restore", json={"keys": gone["keys"]})
        assert next(events).name == "changed"
    assert get_context(client, here)["turns"][0]["chunks"][0]["key"] == key
