"""Another embedder is chosen while the server runs: the old vectors serve until all new ones are made."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import httpx
import numpy as np
import pytest

from halo_weave import app as assembling
from halo_weave.app import Options, build_weave, open_store
from halo_weave.cli.app import embedder_of
from halo_weave.errors import ModelNotFound
from halo_weave.models import catalogue
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from halo_weave.state_file import remembered_embedder
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.server.talking import refused, say

pytestmark = pytest.mark.slow

FACT = "The barometer hangs beside the lighthouse door."


class Slow(HashingEmbedder):
    """Embeds when it is let."""

    let = threading.Event()

    def embed(self, texts, *, query=False):
        self.let.wait(30)
        return super().embed(texts, query=query)


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A models folder with one file that stands for an embedder."""
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (folder / "other.gguf").write_bytes(b"GGUF")
    Slow.let.clear()

    def opened(path):
        made = Slow(32, name=f"{path.stem} 0123")
        made.file = str(path)
        return made

    monkeypatch.setattr(assembling, "open_embedder", opened)
    return folder


@contextmanager
def running(options):
    service = Service(lambda progress: build_weave(options))
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        while client.get("/api/status").json()["embedder"]["state"] == "loading":
            time.sleep(0.02)
        yield client


def settled(client):
    while (now := client.get("/api/reindex").json())["state"] == "running":
        time.sleep(0.02)
    return now


def embedded(client):
    while client.get("/api/status").json()["embedder"]["pending"]:
        time.sleep(0.02)


def parts(client):
    hits = client.get("/api/search", params={"q": "Where does the barometer hang?"}).json()["hits"]
    return next(hit["parts"] for hit in hits if hit["text"] == FACT)


def test_the_old_embedder_serves_until_the_new_one_has_embedded_everything(tmp_path, shelf):
    options = Options(data=tmp_path / "data", engine="scripted")
    with running(options) as client:
        window = client.post("/api/windows", json={"name": "Tower"}).json()["id"]
        say(client, window, FACT)
        embedded(client)
        assert settled(client)["state"] == "idle"
        begun = client.post("/api/reindex", json={"embedder": "other"})
        assert begun.status_code == 202
        assert begun.json()["state"] == "running"
        assert begun.json()["model"] == "other"
        assert "meaning" in parts(client)
        assert client.get("/api/status").json()["embedder"]["model"] == "hashing"
        refused(client.post("/api/reindex", json={"embedder": "other"}), 409, "window_busy")
        Slow.let.set()
        assert settled(client)["state"] == "idle"
        status = client.get("/api/status").json()["embedder"]
        assert (status["state"], status["model"]) == ("ready", "other 0123")
        assert "meaning" in parts(client)
        say(client, window, "The window faces west.")
        assert settled(client)["done"] == client.get("/api/stats").json()["chunks"]
    # The next start takes it, without being told.
    assert remembered_embedder(options.data) == "other"
    assert embedder_of({}, None, options.data) == shelf / "other.gguf"
    with running(Options(options.data, engine="scripted", embedder=shelf / "other.gguf")) as client:
        assert client.get("/api/status").json()["embedder"]["model"] == "other 0123"
        assert "meaning" in parts(client)


def test_an_embedder_that_is_named_goes_before_the_one_that_was_chosen(tmp_path, shelf, monkeypatch):
    (shelf / "third.gguf").write_bytes(b"GGUF")
    data = tmp_path / "data"
    assembling.remember_embedder(data, "other")
    assert embedder_of({}, "third", data) == shelf / "third.gguf"
    assert embedder_of({"embedder": "third"}, None, data) == shelf / "other.gguf"
    assert embedder_of({"embedder": "off"}, None, data) == "off"
    monkeypatch.setenv("HALO_WEAVE_EMBEDDER", "third")
    assert embedder_of({"embedder": "third"}, None, data) == shelf / "third.gguf"


def test_an_embedder_that_is_gone_leaves_the_standard_one(tmp_path, shelf, caplog):
    data = tmp_path / "data"
    assembling.remember_embedder(data, "other")
    (shelf / "other.gguf").unlink()
    assert embedder_of({}, None, data) is None
    assert "its file is missing" in caplog.text


def test_an_embedder_that_cannot_be_had_leaves_everything_as_it_was(tmp_path, shelf, monkeypatch):
    def unreachable(name, progress):
        raise ModelNotFound("The hub cannot be reached. Check the network.")

    monkeypatch.setattr(assembling, "resolve", unreachable)
    with running(Options(data=tmp_path / "data", engine="scripted")) as client:
        window = client.post("/api/windows", json={"name": "Tower"}).json()["id"]
        say(client, window, FACT)
        embedded(client)
        client.post("/api/reindex", json={"embedder": "hf:owner/multilingual-GGUF:Q8_0"})
        now = settled(client)
        assert now["state"] == "failed"
        assert "hub cannot be reached" in now["message"]
        assert client.get("/api/status").json()["embedder"]["state"] == "ready"
        assert "meaning" in parts(client)


def test_what_is_no_embedder_is_refused_before_anything_begins(tmp_path, shelf):
    with running(Options(data=tmp_path / "data", engine="scripted")) as client:
        refused(client.post("/api/reindex", json={"embedder": "no-such-thing"}), 404, "unknown_model")
        refused(client.post("/api/reindex", json={"embedder": catalogue.SMOLLM2_135M.name}), 422, "bad_input")
        listed = client.get("/api/models").json()
        kinds = {one["name"]: one for one in listed["models"] if one["kind"] == "embedder"}
        assert {"minilm", "nomic-embed"} <= set(kinds)
        assert all(kinds[name]["note"] for name in ("minilm", "nomic-embed"))
        assert all(name.startswith("hf:") and note for name, note in listed["embedders"].items())


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
        weave.runtime.memory_search.settle(30)
        now = weave.now()
        other = weave.runtime.store.begin_generation("another embedder", 8, now=now)
        wanted = weave.runtime.store.wanted(other.id, 1000)
        weave.runtime.store.add_vectors(
            other.id, wanted, np.eye(8, dtype=np.float32)[np.zeros(len(wanted.numbers), int)]
        )
        weave.runtime.store.complete_generation(other.id, now=now)
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
