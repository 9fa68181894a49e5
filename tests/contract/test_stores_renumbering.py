"""Under which ids every store knows what it imports, and how the keys inside follow."""

import json
from datetime import timedelta

import pytest

from halo_weave.core.tokens import ChunkKey
from halo_weave.store.records import ExportFilter
from halo_weave.store.sql_store import SqlStore
from tests.store.material import (
    NOW,
    assistant,
    exchange,
    exported,
    live_keys,
    sleep,
    unit_vectors,
    user,
    wake,
)


def test_a_memory_with_other_content_gives_new_ids_once(rich, memory, load):
    other = memory("other")
    exchange(other, other.create_window("mine", now=NOW).id, "my own words", "indeed")
    result = load(other, exported(rich, vectors=True))
    assert not result.kept_ids
    assert other.verify() == []
    assert other.chunk(user(1)).chunk.text == "my own words"
    shift = 2
    assert other.chunk(user(1 + shift)).chunk.text == "question 0"
    assert other.chunk(assistant(2 + shift)).chunk.answers == 1 + shift
    for window in rich.windows():
        assert [key.turn_id - shift for key in live_keys(other, window.id)] == [
            key.turn_id for key in live_keys(rich, window.id)
        ]
    assert load(other, exported(rich)).turns == 0


def test_two_copies_that_went_on_apart_can_be_joined(memory, twin_of, tmp_path, load):
    """Both used the same ids for different words; each is kept, once, in both directions."""
    one = memory("one")
    window = one.create_window("w", now=NOW).id
    exchange(one, window, "common", "ground")
    two = twin_of(one, "two")
    exchange(one, window, "said in one", "yes", now=NOW + timedelta(1))
    exchange(two, window, "said in two", "no", now=NOW + timedelta(2))
    for _ in range(2):
        load(one, exported(two))
        load(two, exported(one))
    for store in (one, two):
        assert store.verify() == []
        assert store.stats().turns == 6
        texts = sorted(record.chunk.text for record in store.chunks(range(20)))
        assert texts == ["common", "ground", "no", "said in one", "said in two", "yes"]


def test_what_was_cleared_comes_back_under_its_own_ids(rich, load, content):
    text = exported(rich)
    rich.clear(confirm=True)
    result = load(rich, text)
    assert result.kept_ids
    assert content(exported(rich)) == content(text)


def test_copies_that_went_on_apart_are_joined_after_a_clear(rich, twin_of, tmp_path, load):
    twin = twin_of(rich, "twin")
    for store, said, day in ((rich, "said here", 8), (twin, "said there", 9)):
        exchange(store, store.windows()[0].id, said, "yes", now=NOW + timedelta(day))
    here, there = exported(rich), exported(twin)
    rich.clear(confirm=True)
    assert load(rich, here).kept_ids
    assert load(rich, there).turns == 2
    assert rich.verify() == []
    live = [item.chunk.text for item in rich.live(rich.windows()[0].id)]
    assert [text for text in live if text.startswith("said")] == ["said here", "said there"]


def kept(key: str | None, text: str) -> dict:
    return {"key": key, "text": text, "tokens": 2, "similarity": 0.5, "said": None}


@pytest.fixture
def told(memory) -> SqlStore:
    """A memory whose reasons and snapshots name turns: 3 and 4, woken by turn 3; an entry explained by 1 and 3."""
    store = memory("told")
    window = store.create_window("w", now=NOW).id
    for number in range(3):
        exchange(store, window, f"question {number}", f"answer {number}", now=NOW + timedelta(number))
    sleep(store, window, user(3), assistant(4), why="dimmest")
    wake(store, window, user(3), part="hit", hit="3.0.user")
    wake(store, window, assistant(4), part="answer", hit="3.0.user")
    store.save_entry("Agatha", "viola", now=NOW, snapshot=[kept("1.0.user", "question 0")])
    snapshot = [kept("3.0.user", "question 1"), {"own": "Agatha violin"}]
    vectors = unit_vectors(2)
    store.save_entry("Agatha", "violin", now=NOW, snapshot=snapshot, vectors=vectors, model="m")
    return store


def hits(store: SqlStore, key) -> list[str | None]:
    """What is told of the wakings of a chunk."""
    return [event.detail.get("hit") for event in store.history(key=key) if event.event == "woke"]


def test_a_snapshot_and_its_versions_name_the_same_words_under_new_ids(told, other, load):
    assert not load(other, exported(told)).kept_ids
    entry, [old] = other.entry("Agatha"), other.entry_versions("Agatha")
    assert entry.snapshot == (kept("5.0.user", "question 1"), {"own": "Agatha violin"})
    assert entry.vectors.tobytes() == unit_vectors(2).tobytes()
    assert old.snapshot == (kept("3.0.user", "question 0"),)
    assert other.chunk(user(5)).chunk.text == "question 1"
    assert other.chunk(user(3)).chunk.text == "question 0"


def test_why_a_chunk_woke_names_the_same_hit_under_new_ids(told, other, load):
    load(other, exported(told))
    live = {one.key: one.resurrect_reason for one in other.live(told.windows()[0].id)}
    assert live[user(5)] == {"part": "hit", "hit": "5.0.user"}
    assert live[assistant(6)] == {"part": "answer", "hit": "5.0.user"}
    assert hits(other, user(5)) == hits(other, assistant(6)) == ["5.0.user"]


def test_what_was_deleted_while_awake_is_undeleted_with_its_hit_under_new_ids(told, other, load):
    told.delete([assistant(4)], now=NOW)
    load(other, exported(told))
    other.undelete([assistant(6)], now=NOW)
    live = {one.key: one.resurrect_reason for one in other.live(told.windows()[0].id)}
    assert live[assistant(6)] == {"part": "answer", "hit": "5.0.user"}


def test_keys_follow_when_a_memory_that_was_joined_is_cleared_and_imported_again(told, other, load):
    load(other, exported(told))
    text = exported(other)
    other.clear(confirm=True)
    load(other, text)
    key = ChunkKey.parse(other.entry("Agatha").snapshot[0]["key"])
    assert other.chunk(key).chunk.text == "question 1"
    assert hits(other, key) == [str(key)]


def test_importing_under_new_ids_twice_changes_nothing(told, other, load):
    load(other, exported(told))
    before = exported(other)
    load(other, exported(told))
    assert exported(other) == before


def test_a_key_of_a_turn_that_is_not_in_the_file_names_nobody(told, other, load):
    found = json.loads(exported(told))
    found["turns"] = [turn for turn in found["turns"] if turn["turn"] not in {"1", "2", "3"}]
    found["turns"][0]["answers"] = None
    load(other, json.dumps(found))
    entry, [old] = other.entry("Agatha"), other.entry_versions("Agatha")
    assert entry.snapshot == (kept(None, "question 1"), {"own": "Agatha violin"})
    assert entry.vectors.tobytes() == unit_vectors(2).tobytes()
    assert old.snapshot == (kept(None, "question 0"),)
    assert other.chunk(assistant(4)).chunk.text == "answer 1"
    live = {one.key: one.resurrect_reason for one in other.live(told.windows()[0].id)}
    assert live[assistant(4)] == {"part": "answer"}
    assert hits(other, assistant(4)) == [None]


def test_an_entry_without_the_keys_of_its_chunks_goes_on_to_a_third_memory(told, other, memory, load):
    found = json.loads(exported(told))
    found["turns"], found["live"], found["asleep"], found["history"] = [], [], [], []
    load(other, json.dumps(found))
    third = memory("third")
    load(third, exported(other))
    assert third.entry("Agatha").snapshot == (kept(None, "question 1"), {"own": "Agatha violin"})


def test_a_part_without_the_hit_tells_no_event_twice(told, other, load):
    """First the part, then the whole; and the part into the memory that it came from."""
    second = told.create_window("second", now=NOW).id
    wake(told, second, user(5), part="hit", hit="3.0.user")
    before, part = exported(told), exported(told, subset=ExportFilter(window=second))
    load(told, part)
    assert exported(told) == before
    for text in (part, before, part):
        load(other, text)
    [here] = [one.chunk.key for one in other.chunks(range(20)) if one.chunk.text == "question 2"]
    assert hits(other, here) == [None]
    assert other.verify() == []


@pytest.mark.parametrize("hit", [None, 5, [], "the third", f"{2**70}.0.user", f"{'9' * 5000}.0.user"])
def test_a_hit_that_is_no_key_is_left_out(told, other, hit, load):
    found = json.loads(exported(told))
    for event in found["history"]:
        event["detail"]["hit"] = hit
    load(other, json.dumps(found))
    assert hits(other, user(5)) == [None]
