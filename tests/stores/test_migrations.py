"""An older file is brought up to date with a copy beside it; a newer one is refused."""

import sqlite3

import pytest

from halo_weave.errors import StoreTooNew
from halo_weave.stores.sqlite import SqliteStore, connection, schema
from tests.stores.material import NOW, exchange, live_keys

SECOND = schema.Migration(2, "moods", "CREATE TABLE moods (name TEXT);\nINSERT INTO moods VALUES ('calm');")
BROKEN = schema.Migration(2, "broken", "CREATE TABLE moods (name TEXT);\nINSERT INTO nowhere VALUES (1);")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "memory.sqlite"
    with SqliteStore(path) as store:
        exchange(store, store.create_window("w", now=NOW).id, "one", "two")
    return path


@pytest.fixture
def newer(monkeypatch):
    """A Halo Weave that knows one more migration."""

    def know(step: schema.Migration) -> None:
        steps = (*schema.migrations(), step)
        real = schema.migrate
        monkeypatch.setattr(
            connection, "migrate", lambda db, path, **more: real(db, path, steps=steps, **more)
        )

    return know


def test_migrations_are_numbered_without_a_gap():
    assert [step.number for step in schema.migrations()] == list(range(1, len(schema.migrations()) + 1))


def test_an_older_file_is_migrated_with_a_backup_beside_it(path, newer):
    newer(SECOND)
    with SqliteStore(path) as store:
        assert store.stats().schema == 2
        assert len(live_keys(store, store.windows()[0].id)) == 2
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM moods").fetchall() == [("calm",)]
        assert [row[0] for row in db.execute("SELECT name FROM migrations ORDER BY number")] == [
            "first",
            "moods",
        ]
    db.close()
    backup = path.with_name("memory.sqlite.schema-1.backup")
    with sqlite3.connect(backup) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (2,)
    db.close()


def test_the_backup_of_an_older_file_can_be_used_by_the_older_version(path, newer, monkeypatch):
    newer(SECOND)
    SqliteStore(path).close()
    monkeypatch.undo()
    with SqliteStore(path.with_name("memory.sqlite.schema-1.backup")) as store:
        assert store.verify() == []
        assert store.stats().turns == 2


def test_a_newer_file_is_refused_and_left_alone(path, newer, monkeypatch):
    newer(SECOND)
    SqliteStore(path).close()
    monkeypatch.undo()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreTooNew, match="newer Halo Weave"):
            SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == before


def test_a_migration_that_fails_leaves_nothing_behind(path, newer, monkeypatch):
    newer(BROKEN)
    with pytest.raises(Exception, match="nowhere"):
        SqliteStore(path)
    monkeypatch.undo()
    with SqliteStore(path) as store:
        assert store.stats().schema == 1
        assert store.verify() == []
    with sqlite3.connect(path) as db:
        assert not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'moods'").fetchone()
    db.close()


def test_an_up_to_date_file_gets_no_backup(path):
    SqliteStore(path).close()
    assert [file.name for file in path.parent.iterdir() if "backup" in file.name] == []


def test_reading_only_never_migrates(path, newer):
    newer(SECOND)
    with pytest.raises(StoreTooNew, match="older schema"):
        SqliteStore(path, read_only=True)
