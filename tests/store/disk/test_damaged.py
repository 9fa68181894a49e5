"""Files that are damaged, empty, of another program, or not there any more: told, and left as they are."""

import sqlite3

import pytest

from halo_weave.errors import StoreCorrupt, StoreError
from halo_weave.store.sqlite import PAGE_BYTES, SqliteStore
from tests.store.material import NOW, ask, exchange, live_keys, user


@pytest.mark.parametrize(
    "content",
    [b"this is not a database, it only has a name like one" * 100, b"SQLite format 3\0" + b"\xff" * 4000],
)
def test_a_file_that_is_no_database_is_refused(tmp_path, content):
    path = tmp_path / "memory.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="not a memory"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE songs (name)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a memory of Halo Weave"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_damaged_memory_is_told_and_the_rest_can_be_read(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        for number in range(60):
            exchange(store, window, f"question {number} " + "word " * 60, "answer " * 60)
        store.stats()
    content = bytearray(path.read_bytes())
    place = content.find(b"question 30 word")
    while place >= 0:
        page = place // PAGE_BYTES * PAGE_BYTES
        content[page : page + 200] = bytes(range(200))
        place = content.find(b"question 30 word", page + PAGE_BYTES)
    path.write_bytes(content)
    with SqliteStore(path) as store:
        assert store.verify()[0].check == "file"
        with pytest.raises(StoreCorrupt, match="halo-weave verify"):
            store.live(window)
        assert store.turn(119)[0].chunk.text.startswith("question 59")


def test_a_truncated_memory_is_told(path):
    with SqliteStore(path) as store:
        exchange(store, store.windows()[0].id, "one", "two")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(StoreCorrupt), SqliteStore(path) as store:
        exchange(store, store.windows()[0].id, "three", "four")


@pytest.mark.parametrize("read_only", [True, False])
def test_an_empty_file_is_no_memory(path, read_only):
    path.write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="is empty"):
        SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == b""


def vanish(path):
    path.rename(path.with_name("elsewhere.sqlite"))


def replace(path):
    vanish(path)
    with SqliteStore(path) as other:
        other.create_window("another memory", now=NOW)


@pytest.mark.parametrize("change", [vanish, replace])
def test_nothing_is_acknowledged_once_the_file_is_another_one(path, change):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "kept")
        change(path)
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            ask(store, window, "lost")
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.chunk(user(ids.user_turn))
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.version()


def test_a_memory_that_was_moved_away_is_whole_when_it_is_put_back(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "kept")
        vanish(path)
        with pytest.raises(StoreError, match="put the right file in its place"):
            ask(store, window, "lost")
    path.with_name("elsewhere.sqlite").rename(path)
    with SqliteStore(path) as store:
        assert live_keys(store, window) == [user(ids.user_turn)]
        assert store.verify() == []
