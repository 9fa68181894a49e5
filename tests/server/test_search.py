"""Search and preview over HTTP."""

from tests.server.talking import chunks_of, get_context, refused, say


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
