"""What holds for PostgreSQL beyond the contract: its server, its index of words and vectors, many processes at once."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from halo_weave.app import open_store
from halo_weave.engines.base import SearchFilter
from halo_weave.errors import StoreError, StoreTooNew
from halo_weave.paths import memory_file
from halo_weave.search.memory_search import MemorySearch
from halo_weave.store.sqlite import SqliteStore
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.store.material import NOW, ask, exchange

ROOT = Path(__file__).parents[2]


def halo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halo_weave", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_words_are_ranked_alike_in_both_stores(address, folder):
    texts = [
        "The café was closed, so Zoë walked to the station.",
        "Zoe came to the station again and again to see the trains.",
        "Über den Wolken ist die Straße lang",
        "Ελλάδα και Ελλάδας, ς σ",
        "plain words about trains and stations",
        "parseURL2 and HTTP_server in one line",
        "東京に行きました",
        "the the the the",
    ]
    with open_store(address) as one, SqliteStore(memory_file(folder)) as other:
        for store in (one, other):
            window = store.create_window("talk", now=NOW).id
            for text in texts:
                ask(store, window, text)
        asked = "cafe café zoë zoe station train über strass ελλαδ the 東京 server parseurl2 nothing".split()
        for (numbers, scores), (others, ranks), term in zip(
            one.search_terms(asked, 100), other.search_terms(asked, 100), asked, strict=True
        ):
            mine, theirs = np.argsort(numbers), np.argsort(others)
            assert numbers[mine].tolist() == others[theirs].tolist(), term
            assert scores[mine] == pytest.approx(ranks[theirs], rel=1e-9), term
        assert len(one.search_terms(["station"], 100)[0][0]) == 3
        assert len(one.search_terms(["station"], 2)[0][0]) == 0  # too many hold it


def test_both_stores_have_the_same_tables_and_columns(address, folder):
    with open_store(address) as one, SqliteStore(memory_file(folder)) as other:
        tables = []
        for store in (one, other):
            with store._db.reading() as db:
                tables.append([(name, sorted(columns), key) for name, columns, key in db.tables()])
        assert tables[0] == tables[1]
        assert one.stats().schema == other.stats().schema


def test_whoever_follows_the_changes_misses_none_of_many_writers(address):
    writers, rounds = 3, 12
    with open_store(address) as store:
        window = store.create_window("busy", now=NOW).id
        done, seen, turns = threading.Event(), set(), []

        def say() -> None:
            with open_store(address) as own:
                turns.extend(ask(own, window, "some words").user_turn for _ in range(rounds))

        def follow() -> None:
            at = 0
            while not done.is_set():
                changes = store.changes(at)
                seen.update(changes.present.tolist())
                at = changes.sequence
            seen.update(store.changes(at).present.tolist())

        follower = threading.Thread(target=follow)
        follower.start()
        threads = [threading.Thread(target=say) for _ in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        follower.join()
        assert len(set(turns)) == writers * rounds
        assert len(seen) == writers * rounds
        assert store.verify() == []


def test_what_is_under_way_fails_when_connections_break_and_then_all_goes_on(address, server):
    database = address.partition("?")[0].rpartition("/")[2]
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    with open_store(address) as store:
        window = store.create_window("talk", now=NOW).id
        exchange(store, window, "hello", "there")
        server.run(end)
        assert len(store.live(window)) == 2
        exchange(store, window, "and", "again")
        with pytest.raises(StoreError, match="reached"):
            broken_off(store, lambda: server.run(end))
        assert store.reserve(1).user_turn < 1000
        assert store.verify() == []


def test_a_question_whose_connection_the_server_ends_is_asked_again(address, server):
    database = address.partition("?")[0].rpartition("/")[2]
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    with open_store(address) as store, store._db.querying() as db:
        server.run(end)
        assert db.execute("SELECT 1").fetchone()[0] == 1


def broken_off(store, end) -> None:
    with store._db.writing() as db:
        db.execute("UPDATE memory SET next_turn = 1000")
        end()
        db.execute("SELECT 1")


WRITER = """
import sys
from halo_weave.app import open_store
from tests.store.material import ask
with open_store(sys.argv[1]) as store:
    print("open", flush=True)
    while True:
        print(ask(store, sys.argv[2], "some words", " of two chunks").user_turn, flush=True)
"""


def test_a_killed_process_loses_nothing_that_was_acknowledged(address):
    rng, said = random.Random(5), 0
    with open_store(address) as store:
        window = store.create_window("talk", now=NOW).id
        for _ in range(4):
            command = [sys.executable, "-c", WRITER, address, window]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout.readline() == "open\n"
                last = [int(writer.stdout.readline()) for _ in range(rng.randint(1, 6))]
                os.kill(writer.pid, signal.SIGKILL)
                last += [int(line) for line in writer.stdout.read().split()]
            for turn in last:
                assert [record.key.chunk_id for record in store.turn(turn)] == [0, 1]
            said += len(last)
        assert store.stats().turns >= said > 4
        assert store.verify() == []


def test_many_vectors_are_searched_by_an_index_and_no_window_gets_too_few(address, monkeypatch):
    monkeypatch.setattr("halo_weave.store.postgres.store.EXACT_BELOW", 100)
    rng = np.random.default_rng(3)
    with open_store(address) as store:
        windows = [store.create_window(name, now=NOW).id for name in ("large", "small")]
        for i in range(12):
            ask(store, windows[i % 6 == 0], *(f"chunk {i} {j}" for j in range(50)))
        generation = store.begin_generation("tests", 32, now=NOW)
        wanted = store.wanted(generation.id, 1000)
        vectors = rng.standard_normal((len(wanted.numbers), 32)).astype(np.float32)
        store.add_vectors(generation.id, wanted, vectors)
        search = store.vector_search(generation.id)
        queries = rng.standard_normal((20, 32)).astype(np.float32)
        with store._db.reading() as db:
            exact = [[number for number, _ in search._compared(db, query, 50)] for query in queries]
        search.build()
        found = [search.nearest(query, limit=50)[0].tolist() for query in queries]
        assert search._indexed
        shares = [len({*one} & {*other}) / 50 for one, other in zip(exact, found, strict=True)]
        assert np.mean(shares) > 0.98
        for window in windows:
            numbers, _ = search.nearest(queries[0], limit=50, window=window)
            assert len(numbers) == 50
            assert {record.window for record in store.chunks(numbers.tolist())} == {window}
        gone = store.chunks(found[0][:1])[0].key
        store.delete([gone], now=NOW)
        assert found[0][0] not in search.nearest(queries[0], limit=50)[0]


def test_a_search_within_little_of_a_memory_finds_as_much_as_on_sqlite(address, folder):
    """Chunks that are asked for are few among those that are nearest."""
    rng = random.Random(2)
    words = [f"w{i}" for i in range(200)]
    with open_store(address) as one, SqliteStore(memory_file(folder)) as other:
        found = []
        for store in (one, other):
            rng.seed(3)
            windows = [store.create_window(name, now=NOW).id for name in ("large", "small")]
            for i in range(24):
                texts = [" ".join(rng.choices(words, k=6)) for _ in range(40)]
                ask(store, windows[i % 12 == 0], *texts, room=400, speaker="Ida" if i % 8 == 5 else "Ada")
            recall = MemorySearch(store, HashingEmbedder)
            recall.settle()
            masks = (
                SearchFilter(),
                SearchFilter(speaker="Ida"),
                SearchFilter(since=NOW, windows=frozenset(windows[1:])),
            )
            hits = [recall.search("w1 w2 w3 w4 w5", limit=50, now=NOW, only=only) for only in masks]
            found.append([[hit.key for hit in some] for some in hits])
            recall.close()
        for mine, theirs in zip(*found, strict=True):
            assert len(mine) == 50
            assert len({*mine} & {*theirs}) >= 49  # vectors are rounded otherwise


def test_an_address_is_shown_without_its_password():
    with pytest.raises(StoreError, match=r"^postgresql://ada@127\.0\.0\.1:1/halo cannot be reached") as error:
        open_store("postgresql://ada:secret@127.0.0.1:1/halo")
    assert "secret" not in str(error.value)


def test_two_schemas_of_a_database_hold_two_memories(address, server):
    database = address.partition("?")[0].rpartition("/")[2]
    server.run("CREATE SCHEMA second", database)
    with open_store(address) as one, open_store(f"{address}&options=-csearch_path%3Dsecond,public") as other:
        exchange(one, one.create_window("first", now=NOW).id, "hello", "there")
        assert other.stats().turns == 0
        assert one.stats().id != other.stats().id


def test_a_database_of_something_else_and_a_newer_memory_are_refused(address, server):
    database = address.partition("?")[0].rpartition("/")[2]
    with pytest.raises(StoreError, match="There is no memory"):
        open_store(address, read_only=True)
    server.run("CREATE TABLE turns (id integer)", database)
    with pytest.raises(StoreError, match="not a memory"):
        open_store(address)
    server.run("DROP TABLE turns", database)
    open_store(address).close()
    server.run("INSERT INTO migrations VALUES (9999, 'later', 0)", database)
    with pytest.raises(StoreTooNew, match="newer"):
        open_store(address)


def test_commands_look_after_a_memory_in_a_database(address, folder):
    with open_store(address) as store:
        exchange(store, store.create_window("talk", now=NOW).id, "hello there", "good morning")
    status = halo("status", "--store", address, "--json")
    assert json.loads(status.stdout)["turns"] == 2, status.stderr
    assert halo("verify", "--store", address).stdout == "The memory is sound.\n"
    backup = halo("backup", str(folder / "copy.sqlite"), "--store", address)
    assert backup.returncode == 0, backup.stderr
    moved = halo("move", "--to", str(folder / "file"), "--store", address, "--json")
    assert json.loads(moved.stdout)["turns"] == 2, moved.stderr
    again = halo("move", "--to", str(folder / "file"), "--store", address)
    assert again.returncode == 1
    assert "already" in again.stderr
    assert json.loads(halo("status", "--data", str(folder / "file"), "--json").stdout)["turns"] == 2


@pytest.mark.postgres
def test_the_server_of_a_test_run_that_is_killed_ends_with_it():
    script = (
        "import sys\nfrom benchmarks.database import postgres_server\n"
        "with postgres_server() as server:\n    print(server._socket, flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        folder = Path(run.stdout.readline().strip())
        assert (folder / "postmaster.pid").exists()
        server = int((folder / "postmaster.pid").read_text().split()[0])
        run.kill()
    end = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.02)
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
