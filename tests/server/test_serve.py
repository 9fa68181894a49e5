"""`halo-weave serve` as a process: it starts, it says what is wrong, it ends cleanly."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest

from benchmarks.bench_faults import drill, failed
from halo_weave.errors import BadSetting
from halo_weave.server.http_server import bind, policy_for
from tests.server.talking import following, say, shown

pytestmark = pytest.mark.slow

KEY = "correct-horse-battery"


class Process:
    """A server of its own, and what it says."""

    def __init__(self, folder, *options, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes", "serve", "--port", "0", "--data", str(folder), *options],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "HALO_WEAVE_ENGINE": "scripted",
                "HALO_WEAVE_CONFIG": os.devnull,
                "COLUMNS": "1000",  # a path is not broken, however long it is
                **environment,
            },
        )

    def __enter__(self):
        line = self.process.stderr.readline()
        self.address = re.search(r"http://\S+", line)[0]
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def client(self, **headers):
        return httpx.Client(base_url=self.address, timeout=30, headers=headers)

    @contextmanager
    def ready(self, **headers):
        with self.client(**headers) as client:
            while client.get("/api/status").json()["model"]["state"] == "loading":
                time.sleep(0.02)
            yield client

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=30)


def refused(folder, *options, **environment):
    process = Process(folder, *options, **environment)
    _, said = process.process.communicate(timeout=60)
    assert process.process.returncode == 1
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_in_the_middle_of_a_reply_ends_it_stored_and_in_time(tmp_path, how):
    text = "word " * 800
    with Process(tmp_path) as server, server.ready() as client:
        about = {"name": "Kept", "settings": {"max_new_tokens": 4_000, "max_context_tokens": 0}}
        window = client.post("/api/windows", json=about).json()["id"]
        answer = client.post(f"/api/windows/{window}/messages", json={"text": text}).json()
        heard = ""
        with following(client, window, answer["last_event"]) as events:
            for event in events:
                if event.name == "token":
                    heard += event.data["text"]
                    if len(heard) > 30:
                        break
        assert server.end(how) == 0
    with Process(tmp_path) as server, server.ready() as client:
        context = client.get(f"/api/windows/{window}/context").json()
        question, reply = shown(context)
        assert question == text
        assert reply.startswith(heard)
        assert len(reply) < len(text), "the reply would have repeated all of it"
        assert context["generating"] is None
        told = say(client, window, "And then?")
        turn = next(event.data["turn_id"] for event in told if event.name == "message_stored")
        assert int(turn) > int(answer["reply_turn_id"]), "ids move on"


def test_a_killed_server_shows_what_was_stored_of_the_reply(tmp_path):
    with Process(tmp_path) as server, server.ready() as client:
        about = {"name": "Killed", "settings": {"max_new_tokens": 4_000, "max_context_tokens": 0}}
        window = client.post("/api/windows", json=about).json()["id"]
        answer = client.post(f"/api/windows/{window}/messages", json={"text": "word " * 800}).json()
        last = answer["last_event"]
        heard, began = "", None
        with following(client, window, last) as events:
            for event in events:
                last = event.id
                if event.name == "token":
                    heard += event.data["text"]
                    began = began or time.monotonic()
                    if time.monotonic() - began > 0.6:  # by then a part of it is on the disk
                        break
        server.process.kill()
        server.process.wait()
    with Process(tmp_path) as server, server.ready() as client:
        texts = shown(client.get(f"/api/windows/{window}/context").json())
        assert texts[0] == "word " * 800
        assert len(texts) == 2
        assert heard.startswith(texts[1]) or texts[1].startswith(heard)
        with following(client, window, last) as events:
            assert next(events).name == "reset", "a client of the old run is told to load anew"


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} is in use" in refused(tmp_path, "--port", str(port))


def test_another_address_needs_a_key(tmp_path):
    assert "needs a key" in refused(tmp_path, "--host", "0.0.0.0")
    assert "16" in refused(tmp_path, "--host", "0.0.0.0", HALO_WEAVE_KEY="short")


def test_a_model_that_is_not_there_or_none_is_named(tmp_path):
    assert "no model at" in refused(
        tmp_path, "--model", str(tmp_path / "none.gguf"), HALO_WEAVE_ENGINE="llama"
    )
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"not weights" * 100)
    assert "wrong.gguf" in refused(tmp_path, "--model", str(wrong), HALO_WEAVE_ENGINE="llama")


def test_without_a_model_the_page_is_served_and_says_so(tmp_path):
    blocked = tmp_path / "models"
    blocked.write_text("a file where the folder of models should be")
    environment = {"HALO_WEAVE_ENGINE": "llama", "HALO_WEAVE_MODELS": str(blocked / "below")}
    with Process(tmp_path / "data", **environment) as server, server.ready() as client:
        status = client.get("/api/status").json()
        assert status["model"]["state"] == "missing"
        assert "halo-weave pull" in status["model"]["message"]
        window = client.post("/api/windows", json={"name": "Already"}).json()["id"]
        answer = client.post(f"/api/windows/{window}/messages", json={"text": "Is anybody there?"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_missing")
        assert client.get("/").status_code == 200
        assert client.post("/api/model/retry").json()["model"]["state"] in {"loading", "missing"}
        assert server.end() == 0


def test_a_key_is_asked_of_everyone_and_traded_for_a_cookie(tmp_path):
    with Process(tmp_path, HALO_WEAVE_KEY=KEY) as server:
        with server.client() as stranger:
            assert stranger.get("/api/status").status_code == 401
            assert stranger.get("/").status_code == 200
            assert stranger.post("/api/session").status_code == 401
        with server.ready(authorization=f"Bearer {KEY}") as friend:
            assert friend.post("/api/session").status_code == 204
            del friend.headers["authorization"]
            assert friend.get("/api/windows").status_code == 200
            assert friend.delete("/api/session").status_code == 204
            assert friend.get("/api/windows").status_code == 401


def test_names_and_origins_are_taken_from_the_options(tmp_path):
    with Process(tmp_path, "--allow-host", "box.lan", "--origin", "https://app.example") as server:
        port = server.address.rpartition(":")[2]
        with server.client() as client:
            assert client.get("/api/status", headers={"host": f"box.lan:{port}"}).status_code == 200
            assert client.get("/api/status", headers={"host": f"evil.example:{port}"}).status_code == 403
            answer = client.get("/api/status", headers={"origin": "https://app.example"})
            assert answer.headers["access-control-allow-origin"] == "https://app.example"


def test_loopback_is_answered_without_a_key_and_the_network_only_with_one():
    assert not policy_for("127.0.0.1", 1).key
    assert not policy_for("localhost", 1).any_address
    with pytest.raises(BadSetting, match="key"):
        policy_for("192.168.1.7", 1)
    open_to_all = policy_for("0.0.0.0", 4256, key=KEY)
    assert open_to_all.is_own_host("192.168.1.7:4256")
    assert not open_to_all.is_own_host("evil.example:4256")


def test_an_address_that_is_not_ours_is_named():
    with pytest.raises(BadSetting, match=r"--host|Cannot listen"):
        bind("203.0.113.77", 0)
    with pytest.raises(BadSetting, match="not a name"):
        bind("no such name", 0)


def test_killed_servers_lose_nothing_acknowledged_or_shown():
    # How soon what is shown is saved depends on how busy the machine is; the two faults wait for it.
    report = drill(4, only=["model_pause", "tool_answer"], grace=2.0)
    assert not failed(report), report
    assert report["faults"] == {"model_pause": "survived", "tool_answer": "survived"}
    assert report["shown_tokens"]
