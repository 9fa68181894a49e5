"""Before the model is there, and when it never comes."""

import threading

import httpx
import pytest

from halo_weave.errors import ModelNotFound
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import following, say, shown


def test_the_page_is_told_how_far_the_model_is(tmp_path):
    go_on, told = threading.Event(), threading.Event()

    def assemble(progress):
        progress("Downloading the model", 30, 120)
        told.set()
        go_on.wait(30)
        return scripted(tmp_path)

    service = Service(assemble)
    loading = service.begin()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        told.wait(30)
        model = client.get("/api/status").json()["model"]
        assert (model["state"], model["message"], model["progress"]) == (
            "loading",
            "Downloading the model…",
            0.25,
        )
        answer = client.post("/api/windows", json={"name": "Too early"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
        go_on.set()
        loading.join()
        assert client.get("/api/status").json()["model"]["state"] == "ready"
        assert client.post("/api/windows", json={"name": "In time"}).status_code == 201


def test_a_missing_model_is_explained_and_tried_again(tmp_path):
    attempts = []

    def assemble(progress):
        attempts.append(1)
        if len(attempts) == 1:
            raise ModelNotFound("The model could not be downloaded. Try: halo-weave pull")
        return scripted(tmp_path)

    service = Service(assemble)
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        model = client.get("/api/status").json()["model"]
        assert (model["state"], model["message"]) == (
            "missing",
            "The model could not be downloaded. Try: halo-weave pull",
        )
        answer = client.get("/api/windows")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_missing")
        assert answer.json()["error"]["message"] == model["message"]
        assert client.post("/api/model/retry").status_code == 202
        service.begin().join()
        assert client.get("/api/windows").status_code == 200
        client.post("/api/model/retry")
        assert len(attempts) == 2, "what is there is not loaded again"


def test_a_defect_while_loading_is_told_without_its_traceback(caplog):
    def assemble(progress):
        raise ZeroDivisionError("secret detail")

    service = Service(assemble)
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        model = client.get("/api/status").json()["model"]
        assert model["state"] == "missing"
        assert "secret" not in model["message"]
    assert "secret detail" in caplog.text


def test_a_server_that_ends_while_loading_lets_go_of_what_comes_late(tmp_path):
    go_on = threading.Event()
    made = []

    def assemble(progress):
        go_on.wait(30)
        made.append(scripted(tmp_path))
        return made[0]

    service = Service(assemble)
    loading = service.begin()
    with serve_in_thread(service):
        pass
    go_on.set()
    loading.join()
    assert made[0].engine.closed


def test_a_defect_in_a_request_is_a_500_in_the_one_shape(service, client, monkeypatch, caplog):
    monkeypatch.setattr(service.weave.runtime.store, "windows", lambda **_: 1 / 0)
    answer = client.get("/api/windows")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "division" not in answer.text
    assert answer.headers["content-security-policy"]


def test_a_defect_in_a_turn_is_told_to_those_who_listen(service, client, window, monkeypatch):
    def broken():
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(service.engine(), "pause", broken)
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "Will this work?"})
    assert answer.status_code == 202
    with following(client, window, answer.json()["last_event"]) as events:
        failed = next(event for event in events if event.name in {"failed", "done"})
    assert failed.name == "failed"
    assert "secret" not in failed.data["message"]
    monkeypatch.undo()
    assert shown(client.get(f"/api/windows/{window}/context").json())[0] == "Will this work?"
    assert say(client, window, "And now?")[-1].name == "done"


# The page


def test_the_page_and_its_modules_are_served_as_what_they_are(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/static/app.js").headers["content-type"] == "text/javascript; charset=utf-8"
    again = client.get(
        "/static/app.js", headers={"if-none-match": client.get("/static/app.js").headers["etag"]}
    )
    assert again.status_code == 304


@pytest.mark.parametrize(
    "path",
    ["/static/../server/app.py", "/static/..%2fserver/app.py", "/static/%2e%2e/ports.py", "/static/nothing.js",
     "/static/types.d.ts", "/static/", "/static//etc/passwd", "/static/app%00.js"],
)  # fmt: skip
def test_nothing_but_the_page_is_served(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
