"""Light over HTTP: ranks, the budget applied at once, a sleep that is taken back."""

from halo_weave.paths import captures_folder
from tests.server.talking import chunks_of, get_context, refused, say


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


def test_the_lab_replays_what_was_captured_and_quotes_what_was_used(client, window):
    base = f"/api/windows/{window}"
    assert client.get(f"{base}/captures").json() == {"captures": []}
    refused(client.get(f"{base}/compare"), 422, "bad_input")
    client.patch(base, json={"settings": {"capture": "retrieval"}})
    for i in range(6):
        say(client, window, f"Number {i} is about herons and boats.")
    (one,) = client.get(f"{base}/captures").json()["captures"]
    assert (one["turns"], one["heads"]) == (6, "retrieval")
    asked = {"strategies": "first_in_first_out,use_and_surprise", "budget": 200}
    told = client.get(f"{base}/compare", params=asked).json()
    slept = told["pruned"]["first_in_first_out"]
    assert slept[0]["text"] == "Number 0 is about herons and boats."
    assert told["strategies"]["first_in_first_out"]["pruned"] == len(slept) > 0
    assert len(told["live"]["use_and_surprise"]) == 6
    refused(client.get(f"{base}/compare", params={"strategies": "none"}), 422, "bad_input")
    turns = client.get(f"{base}/replay", params={"strategy": "first_in_first_out", "budget": 200}).json()[
        "turns"
    ]
    assert [len(one["brightness"]) for one in turns] == told["live"]["first_in_first_out"]
    assert [key for one in turns for key in one["pruned"]] == [one["key"] for one in slept]
    refused(client.get(f"{base}/replay", params={"strategy": "none"}), 422, "bad_input")
    excerpts = client.get(f"{base}/digest").json()["excerpts"]
    assert excerpts
    assert all(one["replies"] for one in excerpts)


def test_what_was_captured_goes_with_its_window_or_when_it_is_asked_to(client, window, service):
    other = client.post("/api/windows", json={"name": "other"}).json()["id"]
    for one in (window, other):
        client.patch(f"/api/windows/{one}", json={"settings": {"capture": "mean"}})
        say(client, one, "Herons stand still.")
    captures = captures_folder(service.weave.memory.folder)
    assert {path.name for path in captures.iterdir()} >= {window, other}
    assert client.delete(f"/api/windows/{window}/captures").status_code == 204
    assert [(captures / one).exists() for one in (window, other)] == [False, True]
    say(client, window, "Boats as well.")  # capturing goes on
    assert client.get(f"/api/windows/{window}/captures").json()["captures"][0]["turns"] == 1
    client.delete(f"/api/windows/{other}")
    assert [(captures / one).exists() for one in (window, other)] == [True, False]
