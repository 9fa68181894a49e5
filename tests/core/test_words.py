"""Terms of the word index."""

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.core.words import STOP_WORDS, index_terms, question_terms, terms


def test_an_identifier_gives_its_parts_too():
    assert terms("parseURL2") == ["parseurl2", "parse", "url", "2"]
    assert terms("max_new_tokens") == ["max", "new", "tokens"]


def test_a_script_without_spaces_gives_pairs_of_characters():
    assert terms("日本語 text") == ["日本", "本語", "text"]
    assert terms("字") == ["字"]


def test_speaker_and_date_are_indexed_as_people_write_them():
    said = datetime(2026, 3, 4, tzinfo=UTC)
    assert index_terms("Hello there", speaker="Ada", said=said) == "ada 4 march 2026 hello there"


def test_a_question_loses_its_stop_words_and_repeats():
    assert question_terms("What did the fox say to the other Fox?", 10) == ["fox", "say"]


def test_of_a_long_question_the_longest_words_stay_in_their_order():
    assert question_terms("elephants eat many bananas", 2) == ["elephants", "bananas"]


@settings(deadline=None)
@given(st.text())
def test_terms_hold_nothing_that_a_query_language_could_understand(text):
    for term in terms(text):
        assert term
        assert not set(term) & set("\"'*^:(){}+-\x00 ")


@settings(deadline=None)
@given(st.text(), st.integers(1, 20))
def test_a_question_has_no_more_terms_than_allowed_and_no_stop_words(text, limit):
    asked = question_terms(text, limit)
    assert len(asked) <= limit
    assert len(set(asked)) == len(asked)
    assert not STOP_WORDS & set(asked)
