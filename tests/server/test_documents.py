"""Documents over HTTP: read, counted, sent with a message."""

import pytest

from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import following, get_context, refused, until_done

LOG = "The keeper noted thunder.\n\nThe lamp was lit at six."


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A server of its own: a document of one word, a thousand times over, would be found by other tests."""
    service = Service(lambda progress: scripted(tmp_path_factory.mktemp("documents")))
    service.begin().join()
    with serve_in_thread(service) as address:
        yield address
    service.close()


def test_a_file_is_read_counted_and_said_with_a_message(client, window):
    told = client.post("/api/documents", params={"name": "C:\\log.txt"}, content=LOG.encode())
    assert told.status_code == 200, told.text
    document = told.json()
    assert (document["name"], document["text"]) == ("log.txt", LOG)
    assert document["tokens"] > 5
    about = {"name": document["name"], "text": document["text"]}
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "When?", "documents": [about]})
    with following(client, window, answer.json()["last_event"]) as events:
        until_done(events)
    turns = get_context(client, window)["turns"]
    assert [(turn["speaker"], turn["document"]) for turn in turns] == [
        ("log.txt", True),
        ("User", False),
        ("AI", False),
    ]
    said = client.get(f"/api/windows/{window}/turns").json()["turns"]
    assert said[0]["document"]
    key = turns[0]["chunks"][0]["key"]
    assert client.get(f"/api/windows/{window}/chunks/{key}/explanation").json()["speaker"] == "log.txt"
    hits = client.get("/api/search", params={"q": "keeper thunder"}).json()["hits"]
    assert "log.txt" in {hit["speaker"] for hit in hits}


def test_a_file_that_cannot_be_attached_is_refused_in_a_sentence(client, window):
    post = client.post
    wrong = post("/api/documents", params={"name": "a.bin"}, content=bytes(range(256)) * 20)
    assert "a.bin is not a text" in refused(wrong, 422, "document_refused")
    client.patch(f"/api/windows/{window}", json={"settings": {"document_megabytes": 1}})
    large = post("/api/documents", params={"name": "a.txt", "window": window}, content=b"x" * 1_500_000)
    assert "larger than 1 MB" in refused(large, 422, "document_refused")
    assert post("/api/documents", content=b"x").status_code == 422


@pytest.mark.slow
def test_a_long_document_comes_with_a_message(client, window):
    client.patch(f"/api/windows/{window}", json={"settings": {"document_tokens": 2_000_000}})
    about = {"name": "long.txt", "text": "word " * 210_000}
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "Keep it.", "documents": [about]})
    assert answer.status_code == 202, answer.text
    with following(client, window, answer.json()["last_event"]) as events:
        until_done(events)
    assert client.get(f"/api/windows/{window}").json()["pruned_chunks"] > 100
