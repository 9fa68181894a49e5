"""An older file is brought up to date with a copy beside it; a newer one is refused."""

import sqlite3

import pytest

from halo_weave.errors import StoreTooNew
from halo_weave.store import schema
from halo_weave.store import sqlite as connection
from halo_weave.store.sqlite import SqliteStore
from tests.store.material import NOW, exchange, live_keys

NEWEST = schema.migrations()[-1].number
NEXT = schema.Migration(
    NEWEST + 1, "moods", "CREATE TABLE moods (name TEXT);\nINSERT INTO moods VALUES ('calm');"
)
BROKEN = schema.Migration(
    NEWEST + 1, "broken", "CREATE TABLE moods (name TEXT);\nINSERT INTO nowhere VALUES (1);"
)


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
    newer(NEXT)
    with SqliteStore(path) as store:
        assert store.stats().schema == NEWEST + 1
        assert len(live_keys(store, store.windows()[0].id)) == 2
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM moods").fetchall() == [("calm",)]
        assert [row[0] for row in db.execute("SELECT name FROM migrations ORDER BY number")] == [
            *(step.name for step in schema.migrations()),
            "moods",
        ]
    db.close()
    backup = path.with_name(f"memory.sqlite.schema-{NEWEST}.backup")
    with sqlite3.connect(backup) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (NEWEST,)
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (2,)
    db.close()


def test_the_backup_of_an_older_file_can_be_used_by_the_older_version(path, newer, monkeypatch):
    newer(NEXT)
    SqliteStore(path).close()
    monkeypatch.undo()
    with SqliteStore(path.with_name(f"memory.sqlite.schema-{NEWEST}.backup")) as store:
        assert store.verify() == []
        assert store.stats().turns == 2


def test_a_newer_file_is_refused_and_left_alone(path, newer, monkeypatch):
    newer(NEXT)
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
        assert store.stats().schema == NEWEST
        assert store.verify() == []
    with sqlite3.connect(path) as db:
        assert not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'moods'").fetchone()
    db.close()


def test_an_up_to_date_file_gets_no_backup(path):
    SqliteStore(path).close()
    assert [file.name for file in path.parent.iterdir() if "backup" in file.name] == []


def test_reading_only_never_migrates(path, newer):
    newer(NEXT)
    with pytest.raises(StoreTooNew, match="older schema"):
        SqliteStore(path, read_only=True)


def test_a_file_of_the_first_schema_keeps_its_working_sets(tmp_path, monkeypatch):
    path = tmp_path / "memory.sqlite"
    real = schema.migrate
    first = schema.migrations()[:1]
    db = sqlite3.connect(path, isolation_level=None)
    real(db, path, steps=first)
    settings = '{"relevance_floor": 0.3, "seed": 5}'
    db.execute("INSERT INTO windows VALUES ('w', 'w', '', 'User', 'AI', ?, 0, 0, NULL)", (settings,))
    db.execute("INSERT INTO settings VALUES ('windows', ?, 0)", (settings,))
    db.execute("INSERT INTO tokenizers VALUES (1, 't')")
    db.execute("INSERT INTO turns VALUES (1, 'w', 'user', NULL, 'User', 0)")
    db.execute(
        """INSERT INTO chunks (number, turn, chunk, window, start, span, tokenizer, ids, lengths, raw)
           VALUES (1, 1, 0, 'w', 0, 1, 1, x'0700', x'03', 'one')"""
    )
    db.execute("INSERT INTO live VALUES ('w', 0, 1, 1, 0, NULL, NULL, x'0000803f', NULL, NULL, NULL)")
    db.execute("UPDATE memory SET next_turn = 2, next_position = 1")
    db.close()
    with SqliteStore(path) as store:
        (live,) = store.live("w")
        assert (live.brightness.tolist(), live.pinned, live.traces) == ([1.0], True, None)
        assert store.window("w").settings == {"seed": 5}  # the floor was on another scale then
        assert store.settings()["windows"] == {"seed": 5}
