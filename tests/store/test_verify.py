"""Verify finds what does not fit the record, and rebuilds what the record allows."""

import sqlite3

import pytest

from halo_weave.store.sqlite import SqliteStore
from tests.store.material import (
    NOW,
    ask,
    assistant,
    cut,
    draft,
    embed_all,
    exchange,
    holding,
    live_keys,
    sleep,
    user,
)


@pytest.fixture
def store(tmp_path):
    with SqliteStore(tmp_path / "memory.sqlite") as store:
        window = store.create_window("w", now=NOW).id
        exchange(store, window, "the lighthouse", "stands", " tall")
        exchange(store, window, "the harbour", "sleeps")
        embed_all(store)
        sleep(store, window, user(3))
        store.delete([assistant(4)], now=NOW)
        draft(store, window, store.reserve(300), cut("half a reply"))
        assert store.verify() == []
        yield store


def damage(store: SqliteStore, sql: str) -> None:
    """As a fault of the program or the disk would."""
    with sqlite3.connect(store.path) as db:
        db.executescript(sql)
    db.close()


REPAIRED = {
    "a word row is missing": ("words", "DELETE FROM words WHERE rowid = 1"),
    "words of another text": ("words", "UPDATE words SET terms = 'pirates' WHERE rowid = 1"),
    "words of a deleted chunk": ("words", "INSERT INTO words (rowid, terms) VALUES (5, 'sleeps')"),
    "words of no chunk": ("words", "INSERT INTO words (rowid, terms) VALUES (99, 'ghost')"),
    "the word index is lost": ("word index", "DELETE FROM words_idx; DELETE FROM words_data WHERE id > 10"),
    "a vector is missing": ("vectors", "DELETE FROM vectors WHERE chunk = 1"),
    "a vector is too short": ("vectors", "UPDATE vectors SET vector = x'00000000' WHERE chunk = 2"),
    "a vector of a deleted chunk": (
        "vectors",
        "INSERT INTO vectors (generation, chunk, vector) VALUES (1, 5, zeroblob(16))",
    ),
    "counters fell back": ("ids", "UPDATE memory SET next_turn = 2, next_position = 5"),
    "a change is not listed": ("changes", "DELETE FROM changes WHERE chunk = 2"),
    "brightness of the wrong length": (
        "working sets",
        "UPDATE live SET brightness = x'0000' WHERE start = 0",
    ),
    "live and asleep at once": (
        "working sets",
        "INSERT INTO asleep (window, start, chunk, gone, peak, slept, reason, brightness) "
        "SELECT window, start, chunk, 0, 1, 1, '{}', brightness FROM live WHERE start = 0",
    ),
    "live though deleted": (
        "working sets",
        "INSERT INTO live (window, start, chunk, pinned, since, brightness) "
        "SELECT window, start, chunk, 0, 1, brightness FROM asleep WHERE chunk = 5; DELETE FROM asleep WHERE chunk = 5",
    ),
    "a deleted chunk shows in the graveyard": ("working sets", "UPDATE asleep SET gone = 0"),
    "a draft that is longer than its parts": ("drafts", "UPDATE drafts SET tokens = 9"),
    "a draft of a stored turn": ("drafts", "UPDATE drafts SET turn = 3; UPDATE draft_parts SET turn = 3"),
}


@pytest.mark.parametrize(("check", "sql"), REPAIRED.values(), ids=REPAIRED)
def test_what_can_be_rebuilt_is_found_and_rebuilt(store, check, sql):
    damage(store, sql)
    found = store.verify()
    assert check in {finding.check for finding in found}
    assert not any(finding.repaired for finding in found)
    mended = store.verify(repair=True)
    assert mended
    assert all(finding.repaired for finding in mended)
    assert store.verify() == []
    assert holding(store, "lighthouse") == {1}
    assert holding(store, "sleeps", "pirates", "ghost") == set()
    window = store.windows()[0].id
    assert set(live_keys(store, window)) <= {user(1), assistant(2), assistant(2, 1)}
    assert ask(store, window, "goes on").user_turn >= 5


LOST = {
    "tokens": "UPDATE chunks SET raw = x'78' WHERE number = 1",
    "ids": "UPDATE chunks SET start = 1, span = 200 WHERE number = 1",
    "file": "PRAGMA foreign_keys = OFF; UPDATE chunks SET turn = 77 WHERE number = 3",
}


@pytest.mark.parametrize(("check", "sql"), LOST.items(), ids=LOST)
def test_what_cannot_be_rebuilt_is_told(store, check, sql):
    damage(store, sql)
    left = [finding for finding in store.verify(repair=True) if not finding.repaired]
    assert check in {finding.check for finding in left}
    assert all(finding.sentence.endswith(".") for finding in left)


def test_progress_is_told(store):
    steps = []
    store.verify(progress=lambda done, total: steps.append((done, total)))
    assert steps[0][0] == 0
    assert steps[-1][0] == steps[-1][1]
