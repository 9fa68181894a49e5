"""Figures, embedding and clearing over HTTP."""

import threading

import httpx

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.talking import following, get_context, refused, say


def test_clearing_needs_the_words(client, window):
    refused(client.post("/api/clear", json={"confirm": "yes"}), 422, "bad_input")
    assert client.get(f"/api/windows/{window}").status_code == 200


def test_stats_count_what_is_there(client, window):
    before = client.get("/api/stats").json()
    say(client, window, "Count me.")
    after = client.get("/api/stats").json()
    assert after["turns"] == before["turns"] + 2
    assert int(after["next_turn"]) == int(before["next_turn"]) + 2


def test_clearing_deletes_everything_and_what_is_said_after_it_is_found(tmp_path):
    service = Service(lambda progress: build_weave(Options(data=tmp_path, engine="scripted")))
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        old = client.post("/api/windows", json={"name": "Old"}).json()["id"]
        for i in range(5):
            say(client, old, f"The old secret number {i}.")
        with following(client, old, get_context(client, old)["last_event"]) as events:
            assert client.post("/api/clear", json={"confirm": "delete everything"}).status_code == 204
            assert [event.name for event in events] == ["deleted"]
        assert client.get("/api/windows").json() == {"windows": []}
        assert client.get("/api/search", params={"q": "old secret"}).json()["hits"] == []
        new = client.post("/api/windows", json={"name": "New"}).json()["id"]
        told = say(client, new, "The new secret is here.")
        assert not [event for event in told if event.name == "resurrected"]
        hits = client.get("/api/search", params={"q": "new secret"}).json()["hits"]
        assert "The new secret is here." in [hit["text"] for hit in hits]
        assert [event.data["turn_id"] for event in told if event.name == "message_stored"] == ["1"], (
            "ids start over"
        )


def test_clearing_while_others_look_breaks_nothing(tmp_path):
    service = Service(lambda progress: build_weave(Options(data=tmp_path, engine="scripted")))
    service.begin().join()
    answers: set[int] = set()
    done = threading.Event()

    def look(address: str) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            while not done.is_set():
                for path in ("windows", "status", "export", "stats", "reindex"):
                    answers.add(client.get(f"/api/{path}").status_code)

    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
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
