"""Search and preview over HTTP."""

from halo_weave.chat.prefetch import Prefetcher
from tests.server.talking import chunks_of, get_context, refused, say


def test_search_tells_where_and_when_and_whether_it_is_live(client, window):
    say(client, window, "The codeword is heliotrope.")
    hits = client.get("/api/search", params={"q": "heliotrope", "window": window}).json()["hits"]
    hit = next(one for one in hits if one["role"] == "user")
    assert (hit["window"], hit["window_name"], hit["live"]) == (window, "Test", True)
    assert hit["text"] == "The codeword is heliotrope."
    client.post(f"/api/windows/{window}/chunks/{hit['key']}/prune")
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
        client.post(f"/api/windows/{window}/chunks/{chunk['key']}/prune")
    before = get_context(client, window)
    told = client.get(
        f"/api/windows/{window}/recall-preview", params={"q": "When does the ferry to Ushuaia leave?"}
    ).json()
    assert told["resurrect"][0]["text"] == "The ferry leaves at noon from Ushuaia."
    assert 0 < told["cost"] <= told["room"]
    assert get_context(client, window) == before


def test_a_search_is_narrowed_by_role_speaker_and_time(client, window):
    say(client, window, "The lantern is in the cellar.")

    def roles(**more):
        hits = client.get("/api/search", params={"q": "lantern cellar", **more}).json()["hits"]
        return {one["role"] for one in hits}

    assert roles() == {"user", "assistant"}
    assert roles(role="user") == roles(speaker="user") == {"user"}
    assert roles(since="2000-01-01") == roles()
    assert roles(before="2000-01-01") == roles(since="2100-01-01") == roles(speaker="Nobody") == set()
    refused(client.get("/api/search", params={"q": "x", "role": "king"}), 422, "bad_input")


def test_a_search_is_narrowed_to_windows_with_a_tag(client, window):
    other = client.post("/api/windows", json={"name": "Tagged"}).json()["id"]
    assert client.patch(f"/api/windows/{other}", json={"tags": ["harbour"]}).status_code == 200
    client.patch("/api/settings", json={"min_probability": 0})
    for one in (window, other):
        say(client, one, "The pilot boat is painted vermilion.")
    for asked in ({}, {"budget": 2000}):
        hits = client.get("/api/search", params={"q": "vermilion", "tag": "harbour", **asked}).json()["hits"]
        assert {hit["window"] for hit in hits} == {other}
    assert client.get("/api/search", params={"q": "vermilion", "tag": "none"}).json()["hits"] == []


def test_what_a_preview_would_wake_is_made_ready_for(client, window, monkeypatch):
    wished = []
    monkeypatch.setattr(Prefetcher, "request", lambda _, *asked, **more: wished.append(asked))
    say(client, window, "The ferry leaves at noon from Ushuaia.")
    for chunk in chunks_of(get_context(client, window)):
        client.post(f"/api/windows/{window}/chunks/{chunk['key']}/prune")
    wished.clear()
    told = client.get(
        f"/api/windows/{window}/recall-preview", params={"q": "When does the ferry to Ushuaia leave?"}
    ).json()
    ((where, text, keys, speaker),) = wished
    assert speaker == "", "nobody else writes here"
    assert where == window
    assert text == "When does the ferry to Ushuaia leave?"
    assert [str(key) for key in keys] == [one["key"] for one in told["resurrect"]] != []


def test_what_a_budget_finds_is_what_the_preview_wakes(client, window):
    say(client, window, "The ferry leaves at noon from Ushuaia.")
    for chunk in chunks_of(get_context(client, window)):
        client.post(f"/api/windows/{window}/chunks/{chunk['key']}/prune")
    asked = {"q": "When does the ferry to Ushuaia leave?"}
    told = client.get(f"/api/windows/{window}/recall-preview", params=asked).json()
    found = client.get("/api/search", params=asked | {"window": window, "budget": told["room"]}).json()
    assert [(one["key"], one["part"]) for one in found["hits"]] == [
        (one["key"], one["part"]) for one in told["resurrect"]
    ]
    assert found["cost"] == told["cost"] > 0


def test_a_wrong_memory_is_marked_and_unmarked(client, window):
    say(client, window, "The tram to Valparaiso begins at dusk.")
    (key,) = [one["key"] for one in chunks_of(get_context(client, window)) if "user" in one["key"]]
    asked = {"q": "When does the tram to Valparaiso begin?"}

    def found():
        return [one["key"] for one in client.get("/api/search", params=asked).json()["hits"]]

    base = f"/api/windows/{window}/chunks/{key}"
    assert key in found()
    assert client.post(f"{base}/negative-feedback", json={"question": asked["q"]}).status_code == 204
    assert key not in found()
    assert client.get(f"{base}/explanation").json()["history"][0]["event"] == "marked"
    assert client.delete(f"{base}/negative-feedback").status_code == 204
    assert key in found()
    refused(client.post(f"{base}/negative-feedback", json={"question": ""}), 422, "bad_input")


def test_a_chunk_tells_how_often_it_woke_up(client, window):
    say(client, window, "The ferry leaves at noon from Ushuaia.")
    key = chunks_of(get_context(client, window))[0]["key"]
    base = f"/api/windows/{window}/chunks/{key}"
    assert client.get(f"{base}/explanation").json()["resurrections"] == 0
    for _ in range(2):
        client.post(f"{base}/prune")
        client.post(f"{base}/resurrect")
    assert client.get(f"{base}/explanation").json()["resurrections"] == 2


def test_tokens_are_told_by_their_positions(client, window):
    say(client, window, "The ferry leaves at noon from Ushuaia.")
    chunk = chunks_of(get_context(client, window))[0]
    key, first = chunk["key"], int(chunk["start"])
    told = client.get("/api/tokens", params={"first": str(first), "stop": str(first + 10_000)}).json()[
        "tokens"
    ]
    own = [one for one in told if one["key"] == key]
    assert "".join(one["text"] for one in own) == "The ferry leaves at noon from Ushuaia."
    places = [int(one["position"]) for one in told]
    assert places == sorted(set(places))
    part = client.get("/api/tokens", params={"first": own[1]["position"], "stop": own[3]["position"]}).json()
    assert part["tokens"] == own[1:3]
    refused(client.get("/api/tokens", params={"first": "0", "stop": "10001"}), 422, "bad_input")


def test_a_message_says_what_is_to_wake_up_for_it(client, window):
    client.patch(f"/api/windows/{window}", json={"settings": {"min_probability": 0}})
    for place in ("Ushuaia", "Punta Arenas"):
        say(client, window, f"The ferry leaves at noon from {place}.")
    for chunk in chunks_of(get_context(client, window)):
        client.post(f"/api/windows/{window}/chunks/{chunk['key']}/prune")
    asked = {"q": "When does the ferry leave?"}
    told = client.get(f"/api/windows/{window}/recall-preview", params=asked).json()
    left, *others = [one["key"] for one in told["resurrect"] if one["key"].endswith("user")]
    answers = [one["key"] for one in told["resurrect"] if one["key"].endswith("assistant")]
    asked |= {"exclude": [left, *answers]}
    assert [
        one["key"]
        for one in client.get(f"/api/windows/{window}/recall-preview", params=asked).json()["resurrect"]
    ] == others
    say(
        client,
        window,
        "When does the ferry leave?",
        recall={"exclude": [left, *answers], "include": answers[:1]},
    )
    live = {one["key"] for one in chunks_of(get_context(client, window))}
    assert {*others} <= live
    assert left not in live
    bad = {"text": "x", "recall": {"include": ["nonsense"]}}
    refused(client.post(f"/api/windows/{window}/messages", json=bad), 422, "bad_input")


def test_a_windows_life_tells_what_sleeps_and_when_it_fell_asleep(client, window):
    say(client, window, "The ferry leaves at noon.")
    key = chunks_of(get_context(client, window))[0]["key"]
    client.post(f"/api/windows/{window}/chunks/{key}/prune")
    life = client.get(f"/api/windows/{window}/timeline").json()
    assert len(life["turns"]) == 2
    assert life["keys"][0] == key
    assert 0 not in life["live"]
    assert life["events"][-1] == {"step": 1, "chunk": 0, "event": "pruned", "reason": "by the user"}
