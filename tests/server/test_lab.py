"""The lab over HTTP: captures, replays, and when a capture is deleted."""

from halo_weave.paths import captures_folder
from tests.server.talking import refused, say


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
