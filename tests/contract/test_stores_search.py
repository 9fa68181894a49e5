"""What every store does for recall: words, vectors, changes, what a plan needs."""

import numpy as np
import pytest

from halo_weave.core.resurrection import RecallHit, plan_recall
from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput
from tests.store.material import (
    NOW,
    answer,
    ask,
    assistant,
    embed_all,
    exchange,
    holding,
    sleep,
    unit_vectors,
    user,
)

# Words


def test_the_better_match_of_a_word_scores_higher(store, window):
    exchange(
        store, window, "lighthouses lighthouse", "a lighthouse among many other words of little weight here"
    )
    ((numbers, scores),) = store.search_terms(["lighthous"], 10)
    held = dict(zip((one.key.role for one in store.chunks(numbers)), scores, strict=True))
    assert held[Role.USER] > held[Role.ASSISTANT] > 0


def test_the_speaker_and_the_date_can_be_searched(store):
    window = store.create_window("w", now=NOW, user_name="Melanie").id
    ids = exchange(store, window, "hello", "hi")
    assert holding(store, "melanie") == {store.chunk(user(ids.user_turn)).number}
    assert len(holding(store, "march")) == 2


def test_a_renamed_speaker_keeps_the_name_for_what_was_said_before(store):
    window = store.create_window("w", now=NOW, user_name="Melanie").id
    first = ask(store, window, "one")
    store.change_window(window, now=NOW, user_name="Mel")
    second = ask(store, window, "two")
    assert [store.chunk(user(ids.user_turn)).speaker for ids in (first, second)] == ["Melanie", "Mel"]


def test_each_term_is_answered_for_itself(store, window):
    exchange(store, window, "a lighthouse", "an island")
    (first, _), (nowhere, none), (second, _) = store.search_terms(["lighthous", "ghost", "island"], 5)
    assert [one.chunk.text for one in store.chunks([*first, *second])] == ["a lighthouse", "an island"]
    assert (nowhere.size, none.size) == (0, 0)
    assert store.search_terms([], 5) == []


def test_a_term_that_too_many_chunks_hold_finds_none(store, window):
    other = store.create_window("other", now=NOW).id
    for number in range(6):
        ask(store, (window, other)[number % 2], f"common {'rare' if not number else ''}")
    assert [len(numbers) for numbers, _ in store.search_terms(["common", "rare"], 5)] == [0, 1]
    assert [len(numbers) for numbers, _ in store.search_terms(["common", "rare"], 6)] == [6, 1]
    assert [len(numbers) for numbers, _ in store.search_terms(["common"], 6, window=other)] == [3]


@pytest.mark.parametrize(
    "term", ['"', "AND", "a AND", "(", "nothing:x", "*", "", "thing OR some", "some*", "\0"]
)
def test_a_term_is_no_expression(store, window, term):
    ask(store, window, "something")
    assert holding(store, term) == set()


# Vectors


def test_new_chunks_want_a_vector_once(store, window):
    generation = store.begin_generation("model", 4, now=NOW)
    assert generation.state == "current"
    ids = ask(store, window, "one", " two")
    wanted = store.wanted(generation.id, 10)
    assert sorted(wanted.numbers.tolist()) == [1, 2]
    assert store.add_vectors(generation.id, wanted, unit_vectors(2)) == 2
    assert not len(store.wanted(generation.id, 10).numbers)
    answer(store, window, ids, "three")
    assert store.wanted(generation.id, 10).numbers.tolist() == [3]


def test_vectors_come_back_nearly_exactly(store, window, again):
    for number in range(30):
        ask(store, window, f"number {number}")
    generation, vectors = embed_all(store)
    blocks = list(again().vectors(generation.id))
    loaded = {int(n): v for numbers, block in blocks for n, v in zip(numbers, block, strict=True)}
    assert loaded.keys() == vectors.keys()
    assert all(np.allclose(loaded[number], vectors[number], atol=1 / 250) for number in loaded)
    numbers, some = store.vectors_of(generation.id, [3, 999, 5])
    assert sorted(numbers.tolist()) == [3, 5]
    assert some.shape == (2, 4)


def test_a_vector_of_another_dimension_is_refused(store, window):
    ask(store, window, "one")
    generation = store.begin_generation("model", 4, now=NOW)
    wanted = store.wanted(generation.id, 10)
    for vectors in (unit_vectors(1, 5), unit_vectors(2, 4), np.full((1, 4), np.nan, np.float32)):
        with pytest.raises(BadInput):
            store.add_vectors(generation.id, wanted, vectors)
    with pytest.raises(BadInput, match="no generation"):
        store.add_vectors(99, wanted, unit_vectors(1))


def test_a_chunk_that_changed_while_it_was_embedded_stays_wanted(store, window):
    generation = store.begin_generation("model", 4, now=NOW)
    ids = ask(store, window, "one", " two")
    wanted = store.wanted(generation.id, 10)
    store.merge(window, user(ids.user_turn, 1), now=NOW)
    store.add_vectors(generation.id, wanted, unit_vectors(2))
    assert store.wanted(generation.id, 10).numbers.tolist() == [1]


def test_a_chunk_may_have_several_vectors(store, window, again):
    generation = store.begin_generation("model", 4, now=NOW)
    ask(store, window, "one", " two")
    wanted = store.wanted(generation.id, 10)
    given = unit_vectors(5)
    store.add_vectors(generation.id, wanted, given, [2, 3])
    ((numbers, vectors),) = again().vectors(generation.id)
    order = {2: given[:2], 1: given[2:]} if wanted.numbers[0] == 2 else {1: given[:2], 2: given[2:]}
    for number, own in order.items():
        assert np.allclose(vectors[numbers == number], own, atol=1 / 250)
    with pytest.raises(BadInput):
        store.add_vectors(generation.id, wanted, given, [5, 0])


def test_a_chunk_deleted_while_it_was_embedded_gets_no_vector(store, window):
    generation = store.begin_generation("model", 4, now=NOW)
    ids = ask(store, window, "one")
    wanted = store.wanted(generation.id, 10)
    store.delete([user(ids.user_turn)], now=NOW)
    assert store.add_vectors(generation.id, wanted, unit_vectors(1)) == 0
    assert list(store.vectors(generation.id)) == []


def test_the_old_embedder_serves_until_the_new_one_is_complete(store, window, again):
    for number in range(10):
        ask(store, window, f"number {number}")
    old, _ = embed_all(store)
    new = store.begin_generation("better", 6, now=NOW)
    assert new.state == "building"
    assert new.wanted == 10
    part = store.wanted(new.id, 4)
    store.add_vectors(new.id, part, unit_vectors(4, 6))
    with pytest.raises(BadInput, match="lacks 6"):
        store.complete_generation(new.id, now=NOW)

    resumed = again()  # another process goes on where this one stopped
    assert resumed.begin_generation("better", 6, now=NOW).id == new.id
    ask(resumed, window, "said meanwhile")
    rest = resumed.wanted(new.id, 100)
    assert len(rest.numbers) == 7
    resumed.add_vectors(new.id, rest, unit_vectors(7, 6))
    resumed.complete_generation(new.id, now=NOW)

    states = {item.id: item.state for item in store.generations()}
    assert states == {old.id: "retired", new.id: "current"}
    assert store.delete_old_vectors() == 10
    assert [item.vectors for item in store.generations()] == [0, 11]


def test_changes_reach_other_processes(store, window, again):
    other = again()
    seen = other.sequence()
    ids = exchange(store, window, "one", "two")
    changes = other.changes(seen)
    assert sorted(changes.present.tolist()) == [1, 2]
    assert other.changes(changes.sequence).present.size == 0
    store.delete([user(ids.user_turn)], now=NOW)
    assert other.changes(changes.sequence).gone.tolist() == [1]
    generation = store.begin_generation("model", 4, now=NOW)
    store.add_vectors(generation.id, store.wanted(generation.id, 5), unit_vectors(1))
    latest = other.changes(changes.sequence)
    assert latest.present.tolist() == [2]
    store.clear(confirm=True)
    assert other.sequence() >= latest.sequence


# What belongs together


def test_sleepers_are_what_the_plan_needs(store, window):
    ids = ask(store, window, "how does it work", " exactly")
    answer(store, window, ids, "magnitude voting", " and", " more")
    every = [user(1), user(1, 1), assistant(2), assistant(2, 1), assistant(2, 2)]
    sleep(store, window, *every[1:])
    sleepers = store.recall_candidates(window, [assistant(2, 2)])
    assert sleepers.keys() == {assistant(2), assistant(2, 2)}
    hit = sleepers[assistant(2, 2)]
    assert (hit.tokens, hit.pair_key) == (1, user(1))
    assert hit.peak == pytest.approx(2200 + 1 / 3, abs=1e-3)
    plan = plan_recall([RecallHit(assistant(2, 2), 0.9)], sleepers, 100, live={user(1)})
    assert plan.keys == (assistant(2, 2), assistant(2))


def test_memory_of_other_windows_can_be_planned_too(store, window):
    other = store.create_window("other", now=NOW).id
    exchange(store, window, "my cat", "a siamese")
    sleepers = store.recall_candidates(other, [user(1)])
    assert sleepers.keys() == {user(1), assistant(2)}
    assert store.recall_candidates(window, [user(1)]) == {}  # live there
