"""What every store does with what is said: ids, turns, drafts, windows."""

import threading
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.core.tokens import Chunk, Role, Tokens
from halo_weave.core.working_set import LiveChunk
from halo_weave.errors import BadInput, StoreFull, UnknownChunk, UnknownWindow
from tests.store.material import (
    NOW,
    TOKENIZER,
    answer,
    ask,
    assistant,
    chunks,
    cut,
    draft,
    exchange,
    holding,
    quick_folder,
    user,
)

# Ids


def test_turn_ids_begin_at_1_and_positions_at_0(store):
    ids = store.reserve(10)
    assert (ids.user_turn, ids.assistant_turn, ids.start, ids.stop) == (1, 2, 0, 10)


def test_reserved_ids_are_never_given_again_not_even_after_a_restart(store, again):
    first = store.reserve(10)
    store.close()
    second = again().reserve(5)
    assert second.user_turn == first.assistant_turn + 1
    assert second.start == first.stop


def test_reservations_of_many_threads_do_not_overlap(again):
    stores = [again(), again()]
    given_ids = []

    def reserve(store):
        for _ in range(25):
            given_ids.append(store.reserve(7))

    threads = [threading.Thread(target=reserve, args=(stores[i % 2],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns = [turn for ids in given_ids for turn in (ids.user_turn, ids.assistant_turn)]
    assert sorted(turns) == list(range(1, 301))
    assert sorted(ids.start for ids in given_ids) == list(range(0, 7 * 150, 7))


def test_ids_end_at_2_to_the_63_with_a_sentence(store):
    store.reserve(2**63 - 2)
    with pytest.raises(StoreFull, match="no more ids"):
        store.reserve(2)
    assert store.reserve(1).stop == 2**63 - 1


@pytest.mark.parametrize("positions", [0, -3])
def test_a_reservation_of_nothing_is_refused(store, positions):
    with pytest.raises(BadInput):
        store.reserve(positions)


# Saying


def test_what_was_said_comes_back_exactly(store, window, again):
    ids = ask(store, window, "The cat", " sleeps on the mat", tags=lambda key: ["home"])
    record = again().chunk(user(ids.user_turn, 1))
    assert record.chunk.text == " sleeps on the mat"
    assert record.chunk.tokens == cut(" sleeps on the mat")
    assert (record.window, record.speaker, record.said, record.tokenizer) == (window, "User", NOW, TOKENIZER)
    assert record.chunk.start == ids.start + 2
    assert record.tags == ("home",)


@pytest.mark.slow
@given(
    pieces=st.lists(st.binary(max_size=300), min_size=1, max_size=20),
    ids=st.lists(st.integers(0, 2**31 - 1), min_size=20, max_size=20),
)
@settings(max_examples=40, deadline=None)
def test_tokens_of_any_bytes_and_ids_come_back(kind, pieces, ids):
    tokens = Tokens.of(ids[: len(pieces)], pieces)
    with quick_folder() as folder, kind.open(folder) as store:
        window = store.create_window("any", now=NOW).id
        given_ids = store.reserve(30)
        live = LiveChunk(
            Chunk(user(given_ids.user_turn), given_ids.start, tokens), np.ones(len(tokens), np.float32)
        )
        store.append(window, [live], tokenizer="t", now=NOW)
        assert store.chunk(user(given_ids.user_turn)).chunk.tokens == tokens
        assert store.live(window)[0].chunk.tokens == tokens


def test_a_turn_cannot_be_stored_twice(store, window):
    ids = ask(store, window, "once")
    with pytest.raises(BadInput, match="are taken"):
        store.append(
            window, chunks(ids.user_turn, Role.USER, ids.start, ["twice"]), tokenizer=TOKENIZER, now=NOW
        )
    assert store.chunk(user(ids.user_turn)).chunk.text == "once"


def test_a_turn_grows_by_chunks_that_follow(store, window):
    ids = ask(store, window, "one two")
    more = LiveChunk(Chunk(user(ids.user_turn, 1), ids.start + 2, cut("three")), np.ones(1, np.float32))
    store.append(window, [more], tokenizer=TOKENIZER, now=NOW)
    assert [record.chunk.text for record in store.turn(ids.user_turn)] == ["one two", "three"]


@pytest.mark.parametrize(
    ("turn", "start"), [(3, 0), (1, 195), (99, 0)], ids=["unreserved turn", "past the range", "far turn"]
)
def test_ids_that_were_not_reserved_are_refused(store, window, turn, start):
    store.reserve(200)
    with pytest.raises(BadInput, match="never reserved"):
        store.append(window, chunks(turn, Role.USER, start, ["a b c d e f g"]), tokenizer=TOKENIZER, now=NOW)


def test_positions_are_never_shared(store, window):
    ids = ask(store, window, "one two three")
    with pytest.raises(BadInput, match="taken"):
        store.append(
            window,
            chunks(ids.assistant_turn, Role.ASSISTANT, ids.start + 2, ["four"], ids.user_turn),
            tokenizer=TOKENIZER,
            now=NOW,
        )


def test_an_answer_needs_a_stored_question(store, window):
    ids = store.reserve(200)
    with pytest.raises(BadInput, match="cannot answer"):
        answer(store, window, ids, "to what?")


def test_nothing_is_said_in_a_window_that_is_not_there(store):
    with pytest.raises(UnknownWindow):
        ask(store, "nowhere", "hello")


def test_a_time_without_a_zone_is_refused(store, window):
    with pytest.raises(BadInput, match="time zone"):
        ask(store, window, "when?", now=datetime(2026, 1, 1))


def test_times_are_kept_to_the_microsecond_in_any_zone(store, window):
    local = NOW.astimezone(__import__("zoneinfo").ZoneInfo("Asia/Kathmandu"))
    ids = ask(store, window, "when?", now=local)
    assert store.chunk(user(ids.user_turn)).said == NOW


def test_pairs_are_recorded_not_computed(store, window):
    other = store.create_window("second", now=NOW).id
    first, second = store.reserve(200), store.reserve(200)
    for name, ids in ((window, first), (other, second)):
        store.append(name, chunks(ids.user_turn, Role.USER, ids.start, ["q"]), tokenizer=TOKENIZER, now=NOW)
    answer(store, other, second, "a2")
    answer(store, window, first, "a1")
    assert store.chunk(assistant(first.assistant_turn)).chunk.answers == first.user_turn
    assert store.chunk(assistant(second.assistant_turn)).chunk.answers == second.user_turn
    for ids in (first, second):
        pair = {user(ids.user_turn), assistant(ids.assistant_turn)}
        assert set(store.deletion_of(user(ids.user_turn))) == pair
        assert set(store.deletion_of(assistant(ids.assistant_turn))) == pair


def test_chunks_are_found_by_number_and_key_in_the_order_asked_for(store, window):
    ids = exchange(store, window, "question", "answer one", "two")
    keys = [
        assistant(ids.assistant_turn, 1),
        user(ids.user_turn),
        assistant(9),
        assistant(ids.assistant_turn),
    ]
    found = store.chunks_by_key(keys)
    assert [record.key for record in found] == [keys[0], keys[1], keys[3]]
    assert store.chunks([record.number for record in found] + [999]) == found
    with pytest.raises(UnknownChunk):
        store.chunk(user(ids.assistant_turn))


# Drafts


def test_a_reply_is_kept_while_it_streams(store, window):
    ids = ask(store, window, "tell me")
    whole = cut("a long story that goes on and on")
    for length in (1, 3, 3, 7, 8):
        draft(store, window, ids, whole.part(0, length))
    (kept,) = store.drafts(now=NOW, abandoned=False)
    assert kept.tokens == whole
    assert (kept.window, kept.turn_id, kept.answers) == (window, ids.assistant_turn, ids.user_turn)
    assert kept.tokenizer == TOKENIZER


def test_a_draft_of_a_living_process_is_not_abandoned(store, window, again):
    draft(store, window, ask(store, window, "tell me"), cut("well"))
    assert again().drafts(now=NOW) == []


def test_the_finished_turn_closes_its_draft(store, window):
    ids = ask(store, window, "tell me")
    draft(store, window, ids, cut("a story"))
    answer(store, window, ids, "a story and its end")
    assert store.drafts(now=NOW, abandoned=False) == []
    with pytest.raises(BadInput, match="already stored"):
        draft(store, window, ids, cut("late"))


def test_a_draft_can_be_dropped(store, window):
    ids = ask(store, window, "tell me")
    draft(store, window, ids, cut("a story"))
    store.drop_draft(ids.assistant_turn)
    assert store.drafts(now=NOW, abandoned=False) == []


# Windows


def test_windows_are_made_changed_deleted_and_undeleted(store, again):
    made = store.create_window("cats", now=NOW, system_prompt="Purr.", ai_name="Tom", settings={"top_p": 0.5})
    later = NOW + timedelta(hours=1)
    changed = store.change_window(
        made.id, now=later, name="dogs", settings={"seed": 3, "top_k": None}, reset=["top_p"]
    )
    assert again().window(made.id) == changed
    assert (changed.name, changed.system_prompt, changed.ai_name) == ("dogs", "Purr.", "Tom")
    assert (changed.settings, changed.created, changed.modified) == ({"seed": 3, "top_k": None}, NOW, later)
    assert store.change_window(made.id, now=later, settings={"min_p": 1}).settings == {
        "seed": 3,
        "top_k": None,
        "min_p": 1,
    }
    store.delete_window(made.id, now=later)
    assert store.windows() == []
    assert [window.deleted for window in store.windows(deleted=True)] == [later]
    with pytest.raises(UnknownWindow):
        store.change_window(made.id, now=later, name="x")
    assert store.window_names() == {made.id: "dogs"}


def test_what_was_said_outlives_its_window(store, window):
    ids = ask(store, window, "remember the lighthouse")
    store.delete_window(window, now=NOW)
    assert store.chunk(user(ids.user_turn)).chunk.text == "remember the lighthouse"
    assert holding(store, "lighthouse")


def test_an_unknown_window_is_named(store):
    for step in (store.window, store.window_stats):
        with pytest.raises(UnknownWindow, match="'zz'"):
            step("zz")
