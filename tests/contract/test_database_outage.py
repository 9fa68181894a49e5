"""The database goes away and comes back, and servers are killed: sentences meanwhile, and then all goes on by itself."""

import threading
import time

import httpx
import pytest

from benchmarks import bench_faults, bench_fleet
from benchmarks.fault_servers import Servers
from benchmarks.fault_witness import events, rooms
from halo_weave.app import Options, build_weave
from halo_weave.chat.events import ReplyNotStored, TurnEnded
from halo_weave.server import service as serving_module
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.contract.test_stores_several_servers import until


@pytest.fixture
def away(server):
    """Stops the database; it is there again after the test, whatever happens."""
    yield server.stop
    server.start()


@pytest.fixture
def weave(address, folder):
    weave = build_weave(Options(data=folder, store=address, engine="scripted", embedder="off"))
    weave.runtime.store._db._pool.timeout = 0.3  # nobody comes
    yield weave
    weave.close()


def test_without_its_database_a_server_answers_503_with_a_sentence_until_it_is_back(weave, server, away):
    window = weave.windows.create("talk").id
    service = Service(lambda progress: weave)
    service.begin().join()
    with serve_in_thread(service) as at, httpx.Client(base_url=at, timeout=30) as client:
        assert client.get("/readyz").status_code == 200
        away()
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert "cannot be reached" in ready.text
        assert client.get("/healthz").status_code == 200
        for answer in (
            client.get("/api/windows"),
            client.post("/api/windows", json={"name": "another"}),
            client.post(f"/api/windows/{window}/messages", json={"text": "hello"}),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "store_unreachable"
            assert "Check that the database runs" in answer.json()["error"]["message"]
        server.start()
        assert until(lambda: client.get("/readyz").status_code == 200)
        assert client.post(f"/api/windows/{window}/messages", json={"text": "hello"}).status_code == 202


def test_a_reply_that_is_written_meanwhile_is_stored_when_the_database_is_back(weave, server, away):
    window = weave.windows.create("talk").id
    middle, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        if middle.is_set():
            time.sleep(0.01)
        else:
            middle.set()
            go_on.wait(20)

    weave.engine.pause = pause
    hub = weave.turns.hub(window)
    begun = weave.turns.send_message(window, "Tell me of the sea.").result()
    assert middle.wait(20)
    away()
    go_on.set()

    def told(kind: type) -> list:
        return [one.event for one in hub.since(0)[0] if isinstance(one.event, kind)]

    assert until(lambda: told(ReplyNotStored))
    assert "cannot be reached" in told(ReplyNotStored)[0].sentence
    server.start()
    assert until(lambda: told(TurnEnded))
    reply = weave.runtime.store.turn(begun.first_event.reply_turn)
    assert b"".join(one.chunk.tokens.raw for one in reply).endswith(b"Tell me of the sea.")


def test_a_server_that_starts_before_its_database_is_ready_when_that_is(
    address, folder, server, away, monkeypatch
):
    monkeypatch.setattr(serving_module, "RETRY_SECONDS", 0.05)
    away()
    options = Options(data=folder, store=address, engine="scripted", embedder="off")
    service = Service(lambda progress: build_weave(options))
    with serve_in_thread(service) as at, httpx.Client(base_url=at, timeout=30) as client:
        loading = service.begin()
        assert until(lambda: "cannot be reached" in client.get("/readyz").text)
        server.start()
        loading.join(20)
        assert client.get("/readyz").text == "ready\n"
    service.close()


def test_servers_killed_and_a_database_restarted_lose_and_double_nothing(server):
    """A short form of `scripts/bench fleet`."""
    report = bench_fleet.drill(server, 4, servers=2, clients=4, windows=2, kill_every=1.5, away=0.2)
    assert not bench_fleet.failed(report), str(report)
    assert report["kills"]
    assert report["database_restarts"] == 1


def test_servers_killed_on_one_database_lose_nothing_acknowledged_or_shown(address):
    """A short form of `scripts/bench faults --store postgres`. A busy machine saves later than a quiet one."""
    report = bench_faults.drill(2, windows=2, only=[], address=address, grace=2.0)
    assert not bench_faults.failed(report), str(report)
    assert report["shown_tokens"]


def test_a_page_on_another_server_sees_a_reply_grow_and_keeps_what_it_saw_when_its_writer_is_killed(
    address, folder
):
    """Two processes; the one that writes is killed in the middle of a reply."""
    writers, readers = (Servers("scripted", None, folder / name) for name in ("writing.log", "reading.log"))
    try:
        with (
            writers.running(folder / "a", "words", store=address) as writer,
            readers.running(folder / "b", store=address) as reader,
            httpx.Client(base_url=reader.address, timeout=60) as http,
        ):
            (window,) = rooms(writer.address, 1)
            told: list[tuple[str, object]] = []

            def watch() -> None:
                with http.stream("GET", f"/api/windows/{window}/events") as stream:
                    for name, data in events(stream.iter_lines()):
                        told.append((name, data))
                        if name == "failed":
                            return

            watching = threading.Thread(target=watch)
            watching.start()
            asked = httpx.post(f"{writer.address}/api/windows/{window}/messages", json={"text": "A story?"})
            reply = asked.json()["reply_turn_id"]

            def seen() -> list[str]:
                context = httpx.get(f"{reader.address}/api/windows/{window}/context", timeout=60).json()
                return (context["generating"] or {"text_pieces": []})["text_pieces"]

            assert until(lambda: len(seen()) == 14)  # then the model pauses
            shown = seen()
            writer.kill()
            watching.join(60)
            assert not watching.is_alive()
            names = [name for name, _ in told]
            assert names[-1] == "failed"
            turns = http.get(f"/api/windows/{window}/turns").json()["turns"]
            (cut,) = (turn for turn in turns if turn["turn_id"] == reply)
            assert cut["interrupted"]
            kept = "".join(piece for chunk in cut["chunks"] for piece in chunk["text_pieces"])
            assert kept.startswith("".join(shown))
            again = http.post(f"/api/windows/{window}/messages", json={"text": "Go on."})
            assert again.status_code == 202
    finally:
        writers.close()
        readers.close()
