"""Light over HTTP: ranks, the budget applied at once, a sleep that is taken back."""

from tests.server.talking import chunks_of, get_context, say


def test_ranks_stand_in_the_context_and_the_raw_numbers_in_why(client, window):
    for i in range(3):
        say(client, window, f"Number {i} is about herons and boats.")
    chunks = chunks_of(get_context(client, window))
    assert {0, 100} <= {one["rank"] for one in chunks}
    why = client.get(f"/api/windows/{window}/chunks/{chunks[0]['key']}/explanation").json()
    assert why["rank"] == chunks[0]["rank"]
    assert why["peak"] == chunks[0]["peak"]
    assert set(why["parts"]) == {"surprisal", "use"}


def test_the_budget_is_applied_at_once(client, window):
    for i in range(6):
        say(client, window, f"Number {i} is about herons and boats.")
    before = [one["key"] for one in chunks_of(get_context(client, window))]
    assert client.post(f"/api/windows/{window}/prune").json()["chunks"] == []
    client.patch(f"/api/windows/{window}", json={"settings": {"max_context_tokens": 200}})
    told = client.post(f"/api/windows/{window}/prune").json()
    gone = {one["key"] for one in told["chunks"]}
    assert gone
    assert told["budget"] == 200
    assert [key for key in before if key not in gone] == [
        one["key"] for one in chunks_of(get_context(client, window))
    ]


def test_a_sleep_by_hand_is_taken_back_without_a_pin(client, window):
    say(client, window, "First thing.")
    first = chunks_of(get_context(client, window))[0]
    base = f"/api/windows/{window}/chunks/{first['key']}"
    client.post(f"{base}/prune")
    again = client.post(f"{base}/undo-prune").json()
    assert (again["key"], again["live"], again["pinned"]) == (first["key"], True, False)
    assert chunks_of(get_context(client, window))[0]["brightness"] == first["brightness"]
