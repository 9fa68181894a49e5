"""The server that runs the model goes wrong, seen by those who use ours: 502 with a sentence, nothing lost, and it goes on."""

from __future__ import annotations

import json
import socket
from contextlib import contextmanager

import httpx
import pytest

from halo_weave.app import Options, build_weave, build_weave_without_model
from halo_weave.engines import remote_server
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.engines.faulty import KEY, WORDS, faulty_server
from tests.server.talking import get_context, refused, say, shown, spoken

pytestmark = pytest.mark.slow

REPLY = "".join(WORDS)
# What goes wrong, what was said until then, and a part of the sentence.
FAULTS = {
    "dies": ("The cat", "was lost during"),
    "half an event": ("The cat", "was lost during"),
    "wrong length": ("The cat", "was lost during"),
    "no JSON": ("The cat", "not JSON"),
    "hangs": ("", "in time"),
    "html": ("", "page"),
}


@pytest.fixture(scope="module")
def server():
    with faulty_server() as server:
        yield server


@pytest.fixture(scope="module", params=["kobold", "openai"])
def service(request, server, tmp_path_factory):
    options = Options(
        tmp_path_factory.mktemp("server"),
        engine=request.param,
        url=server.url,
        engine_key=KEY,
        embedder="off",
        shadow_model="off",
    )
    service = Service(lambda progress: build_weave(options, progress))
    service.begin().join()
    yield service
    service.close()


@pytest.fixture(scope="module")
def client(service):
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
        yield client


@contextmanager
def failing(service, server, fault):
    """The server goes wrong; only one that hangs is silent for too long, however slow the machine is."""
    ours = service.weave.engine.server
    patience, server.fault = ours.read_timeout, fault
    if fault == "hangs":
        ours.read_timeout = 0.2
    try:
        yield
    finally:
        ours.read_timeout, server.fault = patience, ""


@pytest.fixture
def window(client):
    return client.post("/api/windows", json={"name": "w", "settings": {"memory_scope": "window"}}).json()[
        "id"
    ]


@pytest.fixture(autouse=True)
def sound(server, monkeypatch):
    monkeypatch.setattr(remote_server, "RETRY_DELAYS", (0.01,))
    server.fault, server.turned_away = "", 0
    yield
    server.fault, server.turned_away = "", 0


@pytest.mark.parametrize("fault", FAULTS)
def test_the_window_is_told_keeps_what_was_said_and_goes_on(client, service, server, window, fault):
    kept, sentence = FAULTS[fault]
    with failing(service, server, fault):
        last = say(client, window, "What does the cat do?")[-1]
    assert (last.name, last.data["remote"]) == ("failed", True)
    assert sentence in last.data["message"]
    assert shown(get_context(client, window)) == ["What does the cat do?", *([kept] if kept else [])]
    assert spoken(say(client, window, "And then?")) == REPLY


@pytest.mark.parametrize("fault", FAULTS)
def test_a_program_is_answered_with_502_and_asks_again(client, service, server, fault):
    words = {"messages": [{"role": "user", "content": f"What does it do when it {fault}?"}]}
    with failing(service, server, fault):
        answer = client.post("/v1/chat/completions", json=words)
        assert answer.status_code == 502
        assert FAULTS[fault][1] in answer.json()["error"]["message"]
        with client.stream("POST", "/v1/chat/completions", json={**words, "stream": True}) as stream:
            told = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert told[-1] == "[DONE]"
    assert FAULTS[fault][1] in json.loads(told[-2])["error"]["message"]
    answer = client.post("/v1/chat/completions", json=words)
    assert answer.json()["choices"][0]["message"]["content"] == REPLY


def test_a_token_that_comes_twice_does_no_harm(client, server, window):
    server.fault = "repeats"
    assert spoken(say(client, window, "What does the cat do?")).startswith("The cat cat")
    server.fault = ""
    assert spoken(say(client, window, "And then?")) == REPLY


def test_a_server_that_has_too_much_to_do_is_told_of(client, server, window):
    server.turned_away = 2
    last = say(client, window, "What does the cat do?")[-1]
    assert (last.name, last.data["remote"]) == ("failed", True)
    assert "is overloaded" in last.data["message"]


@pytest.mark.parametrize("kind", ["kobold", "openai"])
def test_a_chosen_engine_that_cannot_be_had_is_502_with_the_reason_and_the_window_goes_on(
    client, server, window, kind
):
    with socket.create_server(("127.0.0.1", 0)) as free:
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    for name, url, sentence in (("dead", dead, "cannot be reached"), ("locked", server.url, "the key")):
        told = {"kind": kind, "url": url, "key": "not-this-one", "shadow_model": "off"}
        client.put(f"/api/engines/{name}", json=told)
        client.patch(f"/api/windows/{window}", json={"settings": {"engine_name": name}})
        said = refused(
            client.post(f"/api/windows/{window}/messages", json={"text": "Hello?"}), 502, "server_failed"
        )
        assert sentence in said
        assert "not-this-one" not in said
        assert get_context(client, window)["turns"] == []
    client.patch(f"/api/windows/{window}", json={"settings": {"engine_name": ""}})
    assert spoken(say(client, window, "And you?")) == REPLY


def test_a_server_that_was_not_there_at_the_start_answers_as_soon_as_it_is(tmp_path):
    with faulty_server(started=False) as server:
        how = {
            "engine": "openai",
            "url": server.url,
            "engine_key": KEY,
            "embedder": "off",
            "shadow_model": "off",
        }
        service = Service(lambda progress: build_weave_without_model(Options(tmp_path, **how)))
        service.begin().join()
        with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=30) as client:
            service.weave.models.load()
            window = client.post("/api/windows", json={"name": "w"}).json()["id"]
            unheard = client.post(f"/api/windows/{window}/messages", json={"text": "Hello?"})
            assert "cannot be reached" in refused(unheard, 502, "server_failed")
            server.start()
            assert spoken(say(client, window, "And now?")) == REPLY
        service.close()
