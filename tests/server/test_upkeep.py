"""Figures, embedding and clearing over HTTP."""

import threading
import time
from contextlib import closing
from datetime import UTC, datetime

import httpx
import numpy as np

from halo_weave.app import Options, build_weave, open_store
from halo_weave.search.hashing_embedder import HashingEmbedder
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
    service = Service(lambda progress: build_weave(Options(data=tmp_path, engine="scripted", embedder="off")))
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        assert client.get("/api/reindex").json()["state"] == "off"
        refused(client.post("/api/reindex"), 409, "embedder_off")


def test_another_embedder_takes_over_when_it_has_embedded_everything(tmp_path):
    options = Options(data=tmp_path, engine="scripted")
    with closing(build_weave(options)) as weave:
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
    service = Service(lambda progress: build_weave(options))
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        while client.get("/api/status").json()["embedder"]["state"] == "loading":
            time.sleep(0.02)
        status = client.get("/api/status").json()["embedder"]
        assert status["state"] == "off"
        assert "another embedder" in status["message"]
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
        assert serving_now == ["hashing, passages 2"]


def test_vectors_of_an_earlier_method_are_renewed_when_asked_for(tmp_path):
    options = Options(data=tmp_path, engine="scripted")
    with open_store(tmp_path) as store:
        store.begin_generation("hashing", HashingEmbedder().dimension, now=datetime.now(UTC))
    service = Service(lambda progress: build_weave(options))
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        window = client.post("/api/windows", json={"name": "Old"}).json()["id"]
        say(client, window, "The harbour is closed on Sundays.")
        while client.get("/api/reindex").json()["state"] != "idle":
            time.sleep(0.02)
        status = client.get("/api/status").json()["embedder"]
        assert (status["state"], status["pending"]) == ("ready", 0)
        assert "To renew them" in status["message"]
        assert client.post("/api/reindex").status_code == 202
        while (now := client.get("/api/reindex").json())["state"] == "running":
            time.sleep(0.02)
        assert (now["state"], now["message"]) == ("idle", "")
        stats = client.get("/api/stats").json()["generations"]
        assert [one["model"] for one in stats if one["state"] == "current"] == ["hashing, passages 2"]


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
