"""What a reply took from chunks is kept with it, found from both ends, and goes along into another memory."""

import json

import pytest

from halo_weave.core.attribution import Attribution, ChunkShare, TokenSource
from halo_weave.errors import ImportRefused, UnknownChunk
from tests.store.material import NOW, assistant, exchange, exported, live_keys, user


@pytest.fixture
def use(store, window) -> Attribution:
    """The reply in turn 4 took most from turn 1, and something from turn 2."""
    exchange(store, window, "the lighthouse stands", "tall and", " white")
    exchange(store, window, "what is white", "the lighthouse is")
    starts = {item.key: item.chunk.start for item in store.live(window)}
    use = Attribution(
        (
            ChunkShare(user(1), starts[user(1)], 0.5),
            ChunkShare(assistant(2, 1), starts[assistant(2, 1)], 0.25),
        ),
        0.25,
        ((TokenSource(0, 0, 1.0),), (), (TokenSource(0, 1, 0.6), TokenSource(1, 0, 0.2))),
    )
    store.save_use(4, use)
    return use


def test_the_use_of_a_reply_is_there_again(store, again, use):
    assert again().use_of(4) == use
    assert store.use_of(2) is None
    assert [(one.turn_id, one.share) for one in store.used_in(user(1))] == [(4, 0.5)]
    assert store.used_in(assistant(4)) == []
    with pytest.raises(UnknownChunk):
        store.used_in(user(99))


def test_what_is_known_stays(store, use):
    store.save_use(4, Attribution((), 1.0, ()))
    assert store.use_of(4) == use


def test_a_deleted_chunk_is_no_source_any_more(store, use):
    store.delete([user(1)], now=NOW)
    found = store.use_of(4)
    assert [one.key for one in found.chunks] == [assistant(2, 1)]
    assert [[(one.place, round(one.share, 1)) for one in sources] for sources in found.tokens] == [
        [],
        [],
        [(0, 0.2)],
    ]
    store.undelete([user(1)], now=NOW)
    assert store.use_of(4) == use


def test_a_merged_chunk_is_known_by_the_one_it_became_part_of(store, window, use):
    store.merge(window, assistant(2, 1), now=NOW)
    found = store.use_of(4).chunks[1]
    assert found.key == assistant(2)
    assert found.start == use.chunks[1].start
    assert [one.share for one in store.used_in(assistant(2))] == [0.25]


def test_use_goes_along_and_follows_the_ids(store, use, other, load, content):
    text = exported(store)
    load(other, text)
    (reply,) = (key for window in other.windows() for key in live_keys(other, window.id) if key.turn_id == 6)
    found = other.use_of(reply.turn_id)
    assert [(one.key, one.share) for one in found.chunks] == [(user(3), 0.5), (assistant(4, 1), 0.25)]
    assert found.chunks[0].start == other.chunk(user(3)).chunk.start
    assert (found.tokens, found.nothing) == (use.tokens, use.nothing)
    assert other.verify() == []


def test_a_part_of_a_memory_keeps_what_of_it_is_there(store, use, elsewhere, load):
    held = json.loads(exported(store))
    held["turns"] = [turn for turn in held["turns"] if turn["turn"] != "1"]
    for turn in held["turns"]:
        if turn.get("answers") == "1":
            del turn["answers"]
    load(elsewhere, json.dumps(held))
    found = elsewhere.use_of(4)
    assert [(one.key, one.share) for one in found.chunks] == [(assistant(2, 1), 0.25)]
    assert [len(sources) for sources in found.tokens] == [0, 0, 1]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", "AAAA"), ("tokens", "////fw=="), ("nothing", 2.0), ("chunks", [{"turn": "1", "chunk": 0}])],
)
def test_what_is_no_use_is_refused(store, use, elsewhere, load, field, value):
    held = json.loads(exported(store))
    held["turns"][3]["use"][field] = value
    with pytest.raises(ImportRefused, match="Nothing was changed"):
        load(elsewhere, json.dumps(held))


def test_a_clear_leaves_nothing(store, use):
    store.clear(confirm=True)
    assert store.use_of(4) is None
    assert store.verify() == []
