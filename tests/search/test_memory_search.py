"""What is found, when, and why."""

import math
from datetime import timedelta

import numpy as np
import pytest

from halo_weave.core.resurrection import plan_recall
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import SearchFilter
from halo_weave.errors import BadSetting
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import EXCHANGES, keys_of, recalling, talk
from tests.store.material import NOW, answer, ask


def test_the_best_hit_is_the_chunk_that_speaks_of_it(store, window):
    keys = talk(store, window)
    with recalling(store) as recall:
        hits = recall.search("Which instrument does Ada play, the violin?", now=NOW)
    assert hits[0].key == keys[1][0]


def test_parts_add_up_to_the_similarity_and_the_matching_words_are_told(store, window):
    keys = talk(store, window)
    with recalling(store) as recall:
        hits = recall.search("What did Grace say about tomatoes and the shed?", now=NOW)
    for hit in hits:
        assert hit.similarity == pytest.approx(sum(hit.parts.values()), abs=1e-3)
    assert hits[0].key == keys[0][0]
    assert set(hits[0].words) >= {"tomatoes", "shed"}  # the chunk holds "tomato": words are stemmed
    assert set(hits[0].parts) == {"meaning", "words", "speaker", "user", "message"}


def test_hits_come_in_the_order_of_their_similarity_and_no_more_than_asked_for(store, window):
    talk(store, window)
    with recalling(store) as recall:
        hits = recall.search("greyhound sofa rent violin", limit=3, now=NOW)
    assert len(hits) == 3
    assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)


def test_an_identifier_is_found_by_its_part(store, window):
    keys = talk(store, window)
    with recalling(store, None) as recall:
        hits = recall.search("url", now=NOW)
    assert hits[0].key == keys[2][0]


def test_words_of_a_neighbour_help_and_do_so_less_than_own_words(store, window):
    keys = talk(store, window)
    with recalling(store, None) as recall:
        hits = recall.search("greyhound called Comet", now=NOW, user_weight=1)
    assert keys_of(hits) == [keys[3][0], keys[3][1]]
    assert hits[0].parts["words"] > hits[1].parts["words"] > 0


def test_a_long_pause_parts_neighbours(store, window):
    first = ask(store, window, "The password is swordfish.", now=NOW)
    ask(store, window, "Good morning.", now=NOW + timedelta(hours=9))
    with recalling(store, None) as recall:
        hits = recall.search("swordfish", now=NOW + timedelta(hours=10))
    assert [hit.key.turn_id for hit in hits] == [first.user_turn]


def test_who_is_named_in_the_question_counts(store, window):
    ids = ask(store, window, "The harbour was full of boats.")
    said = answer(store, window, ids, "The harbour was full of boats.")
    with recalling(store) as recall:
        iris = recall.search("What did Iris say of the harbour?", now=NOW, user_weight=1)
        grace = recall.search("What did Grace say of the harbour?", now=NOW, user_weight=1)
    assert iris[0].key == said[0].chunk.key
    assert grace[0].key.turn_id == ids.user_turn


def test_the_time_that_is_named_counts(store, window):
    march = ask(store, window, "We walked along the river.", now=NOW)
    may = ask(store, window, "We walked along the river.", now=NOW + timedelta(days=65))
    later = NOW + timedelta(days=90)
    with recalling(store) as recall:
        assert recall.search("Where did we walk in May?", now=later)[0].key.turn_id == may.user_turn
        assert (
            recall.search("Where did we walk on 4 March 2026?", now=later)[0].key.turn_id == march.user_turn
        )


def test_a_question_about_a_time_alone_finds_what_was_said_then(store, window):
    talk(store, window, EXCHANGES[:2], begun=NOW)
    then = talk(store, window, EXCHANGES[2:4], begun=NOW + timedelta(days=7))
    with recalling(store) as recall:
        hits = recall.search("What was it that we were on about yesterday?", now=NOW + timedelta(days=8))
    assert set(keys_of(hits)[:4]) == {key for pair in then for key in pair}


def test_the_users_weight_tips_the_scales_among_equals_and_no_further(store, window):
    ids = ask(store, window, "Basalt columns stand by the sea.")
    said = answer(store, window, ids, "Basalt columns stand by the sea.")
    with recalling(store) as recall:
        equal = recall.search("basalt columns", now=NOW)
        assert equal[0].key.turn_id == ids.user_turn
        assert equal[0].parts["user"] == pytest.approx(math.log(2.5), abs=1e-3)
        less = recall.search("basalt columns", now=NOW, user_weight=0.5)
        assert less[0].key == said[0].chunk.key
        with pytest.raises(BadSetting):
            recall.search("basalt", now=NOW, user_weight=0)


def test_one_window_can_be_searched_alone(store, window):
    talk(store, window)
    other = store.create_window("second", now=NOW, user_name="Kay", ai_name="Iris").id
    mine = ask(store, other, "The violin needs a new string.")
    with recalling(store) as recall:
        assert {hit.key.turn_id for hit in recall.search("violin", window=other, now=NOW)} == {mine.user_turn}
        assert len({hit.key.turn_id for hit in recall.search("violin", now=NOW)}) > 1
        assert recall.search("violin", window="nowhere", now=NOW) == []


def test_what_is_no_better_than_any_other_is_no_hit(store, window):
    talk(store, window)
    with recalling(store, None) as recall:
        assert recall.search("zeppelin", now=NOW) == []


def test_hits_become_a_plan_within_the_room_with_their_pairs(store, window):
    keys = talk(store, window)
    elsewhere = store.create_window("where none of it is live", now=NOW).id
    with recalling(store) as recall:
        hits = recall.search("Who plays the violin?", now=NOW)
    sleepers = store.recall_candidates(elsewhere, keys_of(hits))
    plan = plan_recall(hits, sleepers, 16, pairs="with")
    assert plan.keys == keys[1]
    assert plan.cost <= 16


def test_a_search_can_be_narrowed_by_role_speaker_and_time(store, window):
    talk(store, window)
    with recalling(store) as recall:

        def found(**only):
            return [
                hit.key
                for hit in recall.search(
                    "violin city tomato greyhound sofas rent", now=NOW, only=SearchFilter(**only)
                )
            ]

        everything = found()
        assert {key.role for key in everything} == {Role.USER, Role.ASSISTANT}
        assert {key.role for key in found(role=Role.USER)} == {Role.USER}
        (speaker,) = {one.speaker for one in store.chunks_by_key(found(role=Role.USER))}
        assert found(speaker=speaker.upper()) == found(role=Role.USER)
        assert found(speaker="Nobody") == []
        middle = NOW + timedelta(hours=3)
        assert {*found(since=middle), *found(before=middle)} == set(everything)
        assert found(since=middle)
        assert found(before=middle)
        assert not {*found(since=middle)} & {*found(before=middle)}


@pytest.mark.parametrize("embedder", [HashingEmbedder, None])
def test_a_wrong_memory_does_not_come_for_such_a_question_and_still_for_others(store, window, embedder):
    keys = talk(store, window)
    violin = keys[1][0]
    question = "Who plays the violin in Lisbon?"
    with recalling(store, embedder) as recall:
        assert recall.search(question, now=NOW)[0].key == violin
        store.add_negative_feedback(violin, question, now=NOW)
        assert violin not in [hit.key for hit in recall.search(question, now=NOW)]
        assert violin not in [hit.key for hit in recall.search("who plays violin, in Lisbon", now=NOW)]
        assert violin in [hit.key for hit in recall.search("Ada", now=NOW)]
        store.add_negative_feedback(violin, None, now=NOW)
        assert recall.search(question, now=NOW)[0].key == violin


def test_a_wrong_memory_stays_wrong_after_a_restart(store, window):
    keys = talk(store, window)
    violin, question = keys[1][0], "Who plays the violin in Lisbon?"
    with recalling(store) as recall:
        assert violin in keys_of(recall.search(question, now=NOW))
    store.add_negative_feedback(violin, question, now=NOW)
    with recalling(store) as recall:
        assert violin not in keys_of(recall.search(question, now=NOW))


def test_an_earlier_question_does_not_outrank_the_fact(store, window):
    ids = ask(store, window, "I work at the harbour office.", now=NOW)
    fact = ChunkKey(ids.user_turn, 0, Role.USER)
    for day in range(1, 4):
        asked = ask(store, window, "Do you remember where I work?", now=NOW + timedelta(days=day))
        answer(store, window, asked, "I'm not sure where you work.", now=NOW + timedelta(days=day))
    talk(store, window, begun=NOW + timedelta(days=9))
    with recalling(store) as recall:
        hits = recall.search("Do you remember where I work?", now=NOW + timedelta(days=10))
    assert hits[0].key == fact
    assert all(hit.parts["asking"] < 0 for hit in hits if "work" in hit.words and hit.key != fact)


# Bad input

ODD = {
    "empty": "",
    "blank": " \n\t ",
    "stop words": "what is it that you were and to the of",
    "emoji": "🦊🎻✨",
    "another script": "バイオリンは誰が弾きますか",
    "right to left": "من يعزف على الكمان؟",
    "operators": 'AND OR NOT NEAR(violin, 2) ^violin violin* "violin',
    "columns": "terms : violin {terms} - violin",
    "quotes": '"\'`""\'violin',
    "NUL": "vio\x00lin \x00",
    "half a character": "\ud83d violin",
    "SQL": "'; DROP TABLE chunks; --",
    "long": "violin " * 15_000,
    "one long word": "v" * 100_000,
    "many words": " ".join(f"word{i}" for i in range(12_000)),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_any_text_gets_an_answer_or_an_empty_one(store, window, text):
    talk(store, window)
    with recalling(store) as recall:
        hits = recall.search(text, now=NOW)
        assert all(np.isfinite(hit.similarity) for hit in hits)
        if not text.strip():
            assert hits == []
        if "violin" in text:
            assert any("violin" in hit.words for hit in hits)


def test_an_empty_memory_gives_nothing(store):
    with recalling(store) as recall:
        assert recall.search("violin", now=NOW) == []


def test_a_script_without_spaces_is_found_by_a_part_of_a_sentence(store, window):
    ids = ask(store, window, "妹はリスボンでバイオリンを弾いています。")
    talk(store, window)
    with recalling(store, None) as recall:
        assert recall.search("バイオリン", now=NOW)[0].key.turn_id == ids.user_turn
