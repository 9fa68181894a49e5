"""What a load balancer and Prometheus ask of a server."""

import re
import threading

import httpx

from halo_weave.errors import StoreError
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.conftest import scripted
from tests.server.talking import say

SAMPLE = re.compile(r'halo_weave_\w+(?:\{\w+="[^"]*"\})? \d+(?:\.\d+)?(?:e[-+]\d+)?')


def figures(client) -> dict[str, float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines)
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines)}


def window(client) -> str:
    return client.post("/api/windows", json={"name": "figures"}).json()["id"]


def test_a_turn_shows_in_the_figures(client):
    before = figures(client)
    say(client, window(client), "hello there")
    after = figures(client)
    assert after["halo_weave_turns_total"] == before["halo_weave_turns_total"] + 1
    assert after["halo_weave_tokens_total"] > before["halo_weave_tokens_total"]
    assert after["halo_weave_overhead_seconds_total"] > before["halo_weave_overhead_seconds_total"]
    computed = 'halo_weave_prompt_tokens_total{from="computed"}'
    assert after[computed] > before[computed]


def test_turns_that_wait_for_the_model_are_counted_and_those_that_ended_are_not(tmp_path):
    service = Service(lambda progress: scripted(tmp_path))
    service.begin().join()
    gate = threading.Event()
    service.weave.engine.pause = lambda: gate.wait(60)
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=60) as client:
        rooms = [window(client), window(client)]
        for room in rooms:
            client.post(f"/api/windows/{room}/messages", json={"text": "hello"}).raise_for_status()
        queue = figures(client)
        assert (queue["halo_weave_turns_running"], queue["halo_weave_turns_waiting"]) == (2, 2)
        gate.set()
        for room in rooms:
            assert list(
                service.weave.turns.follow(room, f"{service.weave.turns.hub(room).last.rpartition('-')[0]}-0")
            )
        queue = figures(client)
        assert (queue["halo_weave_turns_running"], queue["halo_weave_turns_waiting"]) == (0, 0)
    service.close()


def test_no_said_word_is_in_the_figures(client):
    say(client, window(client), "marimba")
    assert "marimba" not in client.get("/metrics").text


def test_a_server_is_alive_before_it_is_ready(tmp_path):
    service = Service(lambda progress: scripted(tmp_path))
    with serve_in_thread(service) as address, httpx.Client(base_url=address) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        service.begin().join()
        assert client.get("/readyz").text == "ready\n"
    service.close()


def test_a_server_whose_memory_is_gone_is_not_ready(client, service, monkeypatch):
    def fail() -> int:
        raise StoreError("The memory cannot be reached.")

    assert client.get("/readyz").status_code == 200
    monkeypatch.setattr(service.weave.runtime.store, "sequence", fail)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "The memory cannot be reached.\n")
    assert client.get("/healthz").status_code == 200


def test_a_server_whose_model_hangs_in_one_step_is_not_ready(client, service, monkeypatch):
    monkeypatch.setattr(type(service.weave.engine), "step_seconds", 90.0)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "computing one step for 90 s" in answer.text
    assert client.get("/healthz").status_code == 200


def test_health_needs_no_key_and_figures_do(tmp_path):
    service = Service(lambda progress: scripted(tmp_path))
    service.begin().join()
    with serve_in_thread(service, key="k" * 20) as address, httpx.Client(base_url=address) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200
        assert client.get("/metrics").status_code == 401
        key = {"authorization": f"Bearer {'k' * 20}"}
        assert client.get("/metrics", headers=key).status_code == 200
    service.close()
