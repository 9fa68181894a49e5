"""A memory that others hold is waited for, closing breaks nothing, and paths that cannot be used are named."""

import sqlite3
import threading
import time
from contextlib import closing

import pytest

from halo_weave.errors import StoreBusy, StoreError
from halo_weave.store import importing
from halo_weave.store.sqlite import SqliteStore
from tests.store.material import NOW, exchange, exported


def test_a_locked_memory_is_waited_for_but_not_for_ever(path):
    with SqliteStore(path, busy_seconds=0.2) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match=r"more than 0\.2 seconds"):
            store.reserve(1)
        assert store.windows()  # reading goes on
        holder.execute("ROLLBACK")
        holder.close()
        assert store.reserve(1).user_turn == 1


def test_a_short_lock_is_only_a_wait(path):
    with SqliteStore(path, busy_seconds=20) as store:
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
        release.start()
        assert store.reserve(1).user_turn == 1
        release.join()
        holder.close()


def test_an_exclusively_locked_memory_cannot_be_opened_with_a_sentence(tmp_path):
    path = tmp_path / "memory.sqlite"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreBusy):
        SqliteStore(path, busy_seconds=0.2)
    holder.execute("ROLLBACK")
    holder.close()
    path.unlink()
    SqliteStore(path).close()


def test_a_path_that_is_a_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match="is a folder"):
        SqliteStore(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path / "file" / "memory.sqlite")


def test_a_memory_to_be_read_must_exist(tmp_path):
    with pytest.raises(StoreError, match="no memory"):
        SqliteStore(tmp_path / "memory.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_closing_interrupts_those_who_read_and_breaks_nothing(path):
    with SqliteStore(path) as store:
        window = store.create_window("w", now=NOW).id
        for i in range(100):
            exchange(store, window, f"question {i}", "an answer of some words")
    told = []

    def read(store):
        try:
            while True:
                store.graveyard(window, text="words")
                store.live(window)
                store.stats()
        except StoreError as error:
            told.append(str(error))

    for _ in range(20):
        store = SqliteStore(path)
        readers = [threading.Thread(target=read, args=(store,)) for _ in range(4)]
        for reader in readers:
            reader.start()
        time.sleep(0.02)
        store.close()
        for reader in readers:
            reader.join(timeout=30)
            assert not reader.is_alive()
    assert set(told) == {f"{path} was closed."}


def test_a_closed_store_says_so(path):
    store = SqliteStore(path)
    store.close()
    for step in (store.windows, lambda: store.reserve(1)):
        with pytest.raises(StoreError, match="was closed"):
            step()


def test_an_import_that_breaks_off_says_what_stays_and_goes_on(path, monkeypatch):
    monkeypatch.setattr(importing, "BATCH", 2)
    file = path.with_name("export.json")
    with SqliteStore(path) as store:
        window = store.create_window("w", now=NOW).id
        for number in range(10):
            exchange(store, window, f"question {number}", "answer")
        file.write_text(exported(store))
    with SqliteStore(path.with_name("held.sqlite"), busy_seconds=0.05) as store:
        other = sqlite3.connect(store.path, isolation_level=None)

        def hold(done: int, total: int) -> None:
            if done > 0.6 * total and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")

        with closing(other), pytest.raises(StoreBusy, match=r"was interrupted: .* so far is kept") as raised:
            store.import_file(file, now=NOW, progress=hold)
        assert "Nothing was changed" not in str(raised.value)
        assert 0 < store.stats().turns < 20
        store.import_file(file, now=NOW)
        assert store.stats().turns == 20
        assert store.verify() == []
