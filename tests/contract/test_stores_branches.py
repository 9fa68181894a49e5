"""What every store does with branches: turns go aside and come back, and nothing of it is lost."""

import json
from datetime import timedelta

import pytest

from halo_weave.core.terms import query_terms
from halo_weave.core.tokens import Role
from halo_weave.core.turn_text import turn_hash
from halo_weave.errors import BadInput
from tests.store.material import (
    NOW,
    TOKENIZER,
    answer,
    ask,
    assistant,
    chunks,
    embed_all,
    exchange,
    sleep,
    user,
    wake,
)


def line(store, window):
    return [turn.id for turn in store.branch(window)]


def live(store, window):
    return [one.chunk.text for one in store.live(window)]


def found(store, *words):
    """Which of the words a search finds."""
    stems = {word: next(iter(query_terms(word, 1))) for word in words}
    return [word for word, stem in stems.items() if len(store.search_terms([stem], 100)[0][0])]


def exported(store):
    parts = []
    store.export(parts.append, now=NOW)
    return "".join(parts)


@pytest.fixture
def talk(store, window):
    """Three exchanges: turns 1 to 6."""
    for word in ("apples", "bananas", "cherries"):
        exchange(store, window, f"about {word}", f"yes {word}")
    return window


def test_a_turn_follows_the_one_before_it_in_its_window(store, talk):
    other = store.create_window("other", now=NOW).id
    exchange(store, other, "elsewhere", "indeed")
    assert line(store, talk) == [1, 2, 3, 4, 5, 6]
    assert [store.turn_record(turn).parent for turn in range(1, 9)] == [None, 1, 2, 3, 4, 5, None, 7]
    assert store.window(talk).head == 6


def test_what_is_said_after_an_earlier_turn_sets_aside_what_followed_it(store, talk):
    ask(store, talk, "about dates", after=2)
    assert line(store, talk) == [1, 2, 7]
    assert live(store, talk) == ["about apples", "yes apples", "about dates"]
    assert found(store, "apples", "bananas", "cherries", "dates") == ["apples", "dates"]
    assert store.chunk(user(3)).gone
    assert store.turn_record(6).aside
    assert store.verify() == []


def test_the_first_words_can_be_said_anew(store, talk):
    ask(store, talk, "about dates", after=0)
    assert line(store, talk) == [7]
    assert [turn.id for turn in store.followers(0, talk)] == [1, 7]
    assert store.siblings([1, 3])[1] == [1, 7]


def test_a_second_answer_takes_the_place_of_the_first(store, talk):
    ids = store.reserve(200)
    again = chunks(ids.assistant_turn, Role.ASSISTANT, ids.start, ["no cherries"], answers=5)
    store.append(talk, again, tokenizer=TOKENIZER, now=NOW)
    assert line(store, talk) == [1, 2, 3, 4, 5, ids.assistant_turn]
    assert store.siblings([ids.assistant_turn]) == {ids.assistant_turn: [6, ids.assistant_turn]}
    assert live(store, talk)[-1] == "no cherries"


def test_a_branch_comes_back_as_it_was(store, talk, again):
    embed_all(store)
    sleep(store, talk, user(3), why="dimmest")
    store.pin(talk, assistant(4), now=NOW)
    before, vectors = store.live(talk), store.generations()[0].vectors
    ask(store, talk, "about dates", after=2)
    store.close()
    store = again()
    assert store.switch(talk, 6, now=NOW) == (talk,)
    assert line(store, talk) == [1, 2, 3, 4, 5, 6]
    after = store.live(talk)
    assert [one.chunk.text for one in after] == [one.chunk.text for one in before]
    assert [one.pinned for one in after] == [one.pinned for one in before]
    assert all((a.brightness == b.brightness).all() for a, b in zip(after, before, strict=True))
    assert [one.key for one in store.graveyard(talk).items] == [user(3)]
    assert found(store, "apples", "bananas", "cherries", "dates") == ["apples", "bananas", "cherries"]
    assert store.generations()[0].vectors == vectors
    assert store.generations()[0].wanted == 0, "what came back still has its vectors"
    assert store.verify() == []


def test_what_is_aside_is_not_in_the_vectors_that_a_search_loads(store, talk):
    embed_all(store)
    generation = store.generations()[0].id
    numbers = {one.number for turn in (3, 4, 5, 6) for one in store.turn(turn)}
    store.switch(talk, 2, now=NOW)
    loaded = {number for block, _ in store.vectors(generation) for number in block.tolist()}
    assert len(loaded) == 2
    assert not loaded & numbers
    assert set(store.changes(0).gone.tolist()) == numbers
    assert len(store.vectors_of(generation, numbers)[0]) == 0


def test_what_goes_aside_leaves_other_windows_too_and_returns_there(store, talk):
    other = store.create_window("other", now=NOW).id
    wake(store, other, assistant(4), part="hit")
    assert set(ask(store, talk, "about dates", after=2) and live(store, other)) == set()
    assert set(store.switch(talk, 6, now=NOW)) == {talk, other}
    assert live(store, other) == ["yes bananas"]
    assert store.verify() == []


def test_a_window_can_go_on_from_a_turn_of_another_one(store, talk):
    other = store.create_window("other", now=NOW).id
    store.switch(other, 4, now=NOW)
    ask(store, other, "about dates")
    assert line(store, other) == [1, 2, 3, 4, 7]
    store.switch(talk, 2, now=NOW)
    assert not store.turn_record(4).aside, "the other window goes through it"
    assert store.turn_record(5).aside
    assert live(store, talk) == ["about apples", "yes apples"]
    assert not store.recall_candidates(talk, [user(3), assistant(4)]), "here it was left"
    store.switch(other, 0, now=NOW)
    assert store.turn_record(4).aside
    assert store.verify() == []
    store.switch(talk, 6, now=NOW)
    assert live(store, talk)[2:] == ["about bananas", "yes bananas", "about cherries", "yes cherries"]
    assert store.verify() == []


def test_a_deleted_chunk_stays_deleted_on_its_branch(store, talk):
    store.delete([user(3)], now=NOW)
    store.switch(talk, 2, now=NOW)
    store.undelete([user(3)], now=NOW)
    assert store.chunk(user(3)).gone
    assert found(store, "bananas") == []
    store.delete([assistant(4)], now=NOW)
    store.switch(talk, 6, now=NOW)
    assert "about bananas" in live(store, talk)
    assert "yes bananas" not in live(store, talk)
    store.undelete([assistant(4)], now=NOW)
    assert "yes bananas" in live(store, talk)
    assert store.verify() == []


def test_turns_that_two_processes_store_out_of_order_stay_in_order_of_their_ids(store, window):
    first, second = ask(store, window, "one"), ask(store, window, "two")
    answer(store, window, first, "to one")
    answer(store, window, second, "to two")
    assert line(store, window) == [1, 2, 3, 4]
    assert live(store, window) == ["one", "to one", "two", "to two"]
    assert store.verify() == []


@pytest.mark.parametrize("after", [99, 5])
def test_a_turn_cannot_follow_one_that_is_not_there_or_later(store, window, after):
    exchange(store, window, "one", "to one")
    late = store.reserve(10)
    ask(store, window, "two")
    said = chunks(late.user_turn, Role.USER, late.start, ["x"])
    with pytest.raises(BadInput):
        store.append(window, said, tokenizer=TOKENIZER, now=NOW, after=after)
    assert line(store, window) == [1, 2, 5]


def test_figures_count_what_is_on_a_current_branch(store, talk):
    before = store.stats()
    store.switch(talk, 2, now=NOW)
    after = store.stats()
    assert (before.turns, after.turns, after.chunks, after.aside_chunks) == (6, 2, 2, 4)
    assert store.window_stats(talk).last_text == "yes apples"
    assert store.window_stats(talk).said_tokens == 4


def test_branches_go_with_an_export(store, talk, load, elsewhere, content):
    ask(store, talk, "about dates", after=2)
    other = store.create_window("other", now=NOW).id
    store.switch(other, 2, now=NOW)
    text = exported(store)
    load(elsewhere, text)
    assert line(elsewhere, talk) == [1, 2, 7]
    assert line(elsewhere, other) == [1, 2]
    assert content(exported(elsewhere)) == content(text)
    assert elsewhere.verify() == []
    elsewhere.switch(talk, 6, now=NOW)
    assert live(elsewhere, talk)[-1] == "yes cherries"


def test_an_import_that_moves_ids_keeps_who_follows_whom(store, talk, load, other):
    ask(store, talk, "about dates", after=2)
    load(other, exported(store))
    assert line(other, talk) == [3, 4, 9]
    assert [other.turn_record(turn).parent for turn in (5, 6, 7, 8)] == [4, 5, 6, 7]
    assert other.verify() == []


def test_a_file_without_branches_is_one_line(store, talk, load, elsewhere):
    file = json.loads(exported(store))
    for turn in file["turns"]:
        turn.pop("parent", None)
    for one in file["windows"]:
        one.pop("head")
    load(elsewhere, json.dumps(file))
    assert line(elsewhere, talk) == [1, 2, 3, 4, 5, 6]
    assert elsewhere.verify() == []


def test_what_a_file_says_of_branches_is_made_to_fit(store, talk, load, elsewhere):
    file = json.loads(exported(store))
    file["turns"][1]["aside"] = True  # but what follows it is not
    load(elsewhere, json.dumps(file))
    assert elsewhere.verify() == []
    assert line(elsewhere, talk) == [1, 3, 4, 5, 6]


def test_what_was_said_meanwhile_in_two_copies_of_a_window_is_all_found(store, talk, load, twin_of):
    twin = twin_of(store, "twin")
    exchange(twin, talk, "about figs", "yes figs", now=NOW + timedelta(1))
    exchange(store, talk, "about grapes", "yes grapes")
    load(store, exported(twin))
    assert found(store, "figs", "grapes") == ["figs", "grapes"]
    assert len(line(store, talk)) == 10
    assert store.verify() == []


def test_turns_are_known_by_their_words(store, talk):
    words = turn_hash(Role.ASSISTANT, " yes  bananas\n<think>hm</think>")
    assert [turn.id for turn in store.turns_with_hash(words)] == [4]
    assert store.turns_with_hash(words, window="nowhere") == []
    assert [turn for turn, _ in store.hashes_before(4, 3)] == [4, 3, 2]
    assert store.hashes_before(4, 3)[0][1] == words


def test_verify_mends_what_does_not_fit_the_branches(store, talk):
    store.switch(talk, 4, now=NOW)
    with store._db.writing() as db:
        db.execute("UPDATE turns SET aside = 1 - aside WHERE id IN (3, 5)")
        db.execute("UPDATE turns SET parent = 6 WHERE id = 2")
    assert {one.check for one in store.verify(repair=True)} == {"branches"}
    assert store.verify() == []
    assert line(store, talk) == [1, 2, 3, 4]
