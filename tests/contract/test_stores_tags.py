"""Tags of chunks in a store: each person has their own, and they follow what becomes of a chunk."""

import pytest

from halo_weave.errors import UnknownChunk
from halo_weave.store.records import ExportFilter
from tests.store.material import NOW, ask, assistant, exchange, exported, user


def test_a_chunk_has_the_tags_that_it_was_given_last(store, window):
    exchange(store, window, "a question", "an answer", " in parts")
    exchange(store, window, "another", "answer")
    store.tag_chunk(user(1), ["red", "blue"], now=NOW)
    store.tag_chunk(assistant(2, 1), ["red"], now=NOW)
    store.tag_chunk(user(1), ["blue", "green"], now=NOW)
    assert store.chunk_tags([user(1), user(3), assistant(2), assistant(2, 1)]) == {
        user(1): ("blue", "green"),
        assistant(2, 1): ("red",),
    }
    assert store.tagged(["red", "green"]).keys() == {user(1), assistant(2, 1)}
    assert [store.chunks([number])[0].key for number in store.tagged(["red"]).values()] == [assistant(2, 1)]
    assert store.tag_counts() == {"blue": 1, "green": 1, "red": 1}
    assert store.tagged([]) == {}
    with pytest.raises(UnknownChunk):
        store.tag_chunk(user(99), ["red"], now=NOW)


def test_a_deleted_chunk_has_no_tags_until_it_is_undeleted(store, window):
    ask(store, window, "one", " two")
    store.tag_chunk(user(1, 1), ["red"], now=NOW)
    store.delete([user(1, 1)], now=NOW)
    assert (store.chunk_tags([user(1, 1)]), store.tagged(["red"]), store.tag_counts()) == ({}, {}, {})
    with pytest.raises(UnknownChunk):
        store.tag_chunk(user(1, 1), ["blue"], now=NOW)
    store.undelete([user(1, 1)], now=NOW)
    assert store.chunk_tags([user(1, 1)]) == {user(1, 1): ("red",)}
    store.clear(confirm=True)
    assert store.tag_counts() == {}


def test_tags_follow_chunks_that_are_merged_and_divided(store, window):
    ask(store, window, "one", " two")
    store.tag_chunk(user(1), ["red"], now=NOW)
    store.tag_chunk(user(1, 1), ["blue"], now=NOW)
    store.merge(window, user(1, 1), now=NOW)
    assert store.chunk_tags([user(1), user(1, 1)]) == {user(1): ("blue", "red")}
    ask(store, window, " ".join(f"word {i}." for i in range(300)), asleep=True, room=1_000)
    store.tag_chunk(user(3), ["long"], now=NOW)
    assert store.split_long_chunks(100, now=NOW) == 1
    parts = [one.key for one in store.turn(3)]
    assert len(parts) > 2
    assert store.tagged(["long"]).keys() == {*parts}
    assert store.verify() == []


def test_nobody_has_the_tags_of_somebody_else(store, elsewhere, window, tmp_path):
    ann = store.add_person("ann", "ab" * 32, now=NOW).id
    ask(store, window, "shared words")
    store.tag_chunk(user(1), ["mine"], now=NOW)
    store.tag_chunk(user(1), ["hers"], now=NOW, owner=ann)
    assert store.chunk_tags([user(1)]) == {user(1): ("mine",)}
    assert store.chunk_tags([user(1)], owner=ann) == {user(1): ("hers",)}
    assert (store.tagged(["hers"]), store.tagged(["mine"], owner=ann)) == ({}, {})
    assert store.tag_counts(owner=ann) == {}  # she may not read it
    store.share("", window, ann, writes=False, now=NOW)
    assert store.tag_counts(owner=ann) == {"hers": 1}
    assert "hers" not in exported(store, subset=ExportFilter(reader=""))
    (tmp_path / "all.json").write_text(exported(store))
    elsewhere.import_file(tmp_path / "all.json", now=NOW)
    (there,) = elsewhere.people()
    assert elsewhere.chunk_tags([user(1)]) == {user(1): ("mine",)}
    assert elsewhere.chunk_tags([user(1)], owner=there.id) == {user(1): ("hers",)}


def test_a_wrong_memory_stays_one_when_it_is_merged_or_divided(store, window):
    ask(store, window, "one", " two")
    store.add_negative_feedback(user(1), "which?", now=NOW)
    store.add_negative_feedback(user(1, 1), "which?", now=NOW)
    store.add_negative_feedback(user(1, 1), "what else?", now=NOW)
    store.merge(window, user(1, 1), now=NOW)
    number = store.chunk(user(1)).number
    assert sorted(store.negative_feedback()) == [(number, "what else?"), (number, "which?")]
    store.add_negative_feedback(user(1), None, now=NOW)
    assert store.negative_feedback() == []
    ask(store, window, " ".join(f"word {i}." for i in range(300)), asleep=True, room=1_000)
    store.add_negative_feedback(user(3), "which word?", now=NOW)
    store.split_long_chunks(100, now=NOW)
    parts = {one.number for one in store.turn(3)}
    assert len(parts) > 2
    assert {marked for marked, _ in store.negative_feedback()} == parts
    assert store.verify() == []
