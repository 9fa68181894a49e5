"""What every store makes of the prototype's export: live tokens live, deleted ones asleep, each as bright as it was."""

import json

import pytest

from halo_weave.core.tokens import Role
from halo_weave.errors import ImportRefused
from tests.store.material import NOW, assistant, exchange, holding, live_keys, user


def token(
    position,
    text,
    turn,
    role="user",
    sentence=0,
    *,
    brightness=9000,
    deleted=False,
    at_deletion=None,
    pinned=False,
):
    found = {
        "token_id": 1000 + position,
        "text": text,
        "position": position,
        "brightness": brightness,
        "turn_id": turn,
        "sentence_id": sentence,
        "role": role,
        "deleted": deleted,
        "pinned": pinned,
    }
    if at_deletion is not None:
        found["brightness_at_deletion"] = at_deletion
    return found


def conversation() -> list[dict]:
    return [
        token(0, "You", 1, "system"),
        token(1, " are kind", 1, "system"),
        token(2, "Hel", 2, brightness=10000),
        token(3, "lo", 2, brightness=-17),
        token(4, "Hi", 3, "assistant", 0, brightness=12.5),
        token(5, " there", 3, "assistant", 1, brightness=10, deleted=True, at_deletion=77),
        token(6, "!", 3, "assistant", 1, brightness=10, deleted=True, at_deletion=-3),
        token(7, "Pinned", 4, pinned=True),
        token(12, "Later", 5, "assistant"),
    ]


def load(store, tmp_path, tokens, **more):
    file = tmp_path / "prototype.json"
    file.write_text(
        json.dumps({"version": 3, "tokens": tokens, "currentTurnId": 5, "nextPosition": 13, **more})
    )
    return store.import_file(file, now=NOW)


def test_live_tokens_are_live_deleted_ones_sleep_and_brightness_is_kept(store, tmp_path):
    result = load(store, tmp_path, conversation())
    assert (result.turns, result.tokens, result.windows, result.kept_ids) == (5, 9, 1, True)
    (window,) = store.windows()
    live = store.live(window.id)
    assert [(item.key, item.chunk.text) for item in live] == [
        ((1, 0, Role.SYSTEM), "You are kind"),
        (user(2), "Hello"),
        (assistant(3), "Hi"),
        (user(4), "Pinned"),
        (assistant(5), "Later"),
    ]
    assert live[1].brightness.tolist() == [10000, -17]
    assert live[1].chunk.tokens.ids.tolist() == [1002, 1003]
    assert [item.pinned for item in live] == [False, False, False, True, False]
    (asleep,) = store.graveyard(window.id).items
    assert (asleep.key, asleep.record.chunk.text) == (assistant(3, 1), " there!")
    assert asleep.brightness.tolist() == [77, -3]
    assert store.chunk(assistant(3)).chunk.answers == 2
    assert store.chunk(assistant(5)).chunk.answers == 4
    assert store.verify() == []
    assert holding(store, "hello")
    assert store.reserve(1).start == 13
    assert live[4].chunk.start == 12


def test_importing_it_twice_changes_nothing(store, tmp_path):
    load(store, tmp_path, conversation())
    before = store.stats()
    again = load(store, tmp_path, conversation())
    assert (again.turns, again.known_turns, again.windows) == (0, 5, 0)
    assert store.stats() == before


def test_a_conversation_that_went_on_brings_only_what_is_new(store, tmp_path):
    load(store, tmp_path, conversation())
    more = load(store, tmp_path, [*conversation(), token(13, "New", 6), token(14, "Yes", 7, "assistant")])
    assert (more.turns, more.known_turns, more.windows) == (2, 5, 0)
    assert len(store.windows()) == 1
    assert store.chunk(assistant(7)).chunk.answers == 6


def test_another_conversation_with_the_same_ids_gets_ids_of_its_own(store, tmp_path):
    load(store, tmp_path, conversation())
    other = [token(0, "Another", 1), token(1, "Answer", 2, "assistant")]
    result = load(store, tmp_path, other)
    assert not result.kept_ids
    assert len(store.windows()) == 2
    assert store.verify() == []
    assert [item.chunk.text for item in store.live(store.windows()[1].id)] == ["Another", "Answer"] or [
        item.chunk.text for item in store.live(store.windows()[0].id)
    ] == ["Another", "Answer"]


def test_it_comes_into_a_memory_that_is_in_use(store, tmp_path):
    window = store.create_window("mine", now=NOW).id
    exchange(store, window, "mine", "too")
    load(store, tmp_path, conversation())
    assert len(live_keys(store, window)) == 2
    assert store.stats().turns == 7
    assert store.verify() == []


def test_tokens_may_come_in_any_order_and_with_ids_as_text(store, tmp_path):
    shuffled = [
        {**found, "position": str(found["position"]), "turn_id": str(found["turn_id"])}
        for found in conversation()
    ]
    load(store, tmp_path, shuffled[::-1])
    assert [item.chunk.text for item in store.live(store.windows()[0].id)][:2] == ["You are kind", "Hello"]


def test_a_chunk_that_is_half_deleted_is_parted(store, tmp_path):
    tokens = [
        token(0, "a", 1),
        token(1, "b", 1, deleted=True),
        token(2, "c", 1),
        token(3, "d", 1, sentence=1),
    ]
    load(store, tmp_path, tokens)
    window = store.windows()[0].id
    assert [item.chunk.text for item in store.live(window)] == ["a", "c", "d"]
    assert [item.record.chunk.text for item in store.graveyard(window).items] == ["b"]
    assert store.verify() == []


def test_a_turn_zero_and_roles_that_share_a_turn_get_turns_of_their_own(store, tmp_path):
    load(store, tmp_path, [token(0, "S", 0, "system"), token(1, "Q", 1), token(2, "A", 1, "assistant")])
    assert [item.key for item in store.live(store.windows()[0].id)] == [
        (1, 0, "system"),
        (2, 0, "user"),
        (3, 0, "assistant"),
    ]
    assert store.chunk(assistant(3)).chunk.answers == 2


def test_an_empty_conversation_brings_nothing(store, tmp_path):
    file = tmp_path / "empty.json"
    file.write_text('{"version": 1, "tokens": []}')
    with pytest.raises(ImportRefused):
        store.import_file(file, now=NOW)
    assert store.windows() == []


@pytest.mark.parametrize(("field", "value"), [
    ("role", "robot"), ("position", -1), ("position", None), ("turn_id", "x"), ("text", 7), ("brightness", "bright"),
    ("token_id", 2**70), ("token_id", 2**40), ("brightness", 1e300), ("deleted", "no"), ("text", "\ud83d"),
])  # fmt: skip
def test_a_broken_token_refuses_the_whole_file(store, tmp_path, field, value):
    tokens = conversation()
    tokens[3][field] = value
    with pytest.raises(ImportRefused):
        load(store, tmp_path, tokens)
    assert store.stats().turns == 0
    assert store.windows() == []


def test_two_tokens_at_one_position_are_refused(store, tmp_path):
    with pytest.raises(ImportRefused, match="position 3"):
        load(store, tmp_path, [*conversation(), token(3, "again", 9)])
    assert store.stats().turns == 0
