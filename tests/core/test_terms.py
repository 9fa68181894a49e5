"""Terms of the word index."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.core.terms import STOP_WORDS, index_terms, query_terms, terms


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
    assert query_terms("What did the fox say to the other Fox?", 10) == {"fox": "fox", "say": "say"}


def test_of_a_long_question_the_longest_words_stay_in_their_order():
    assert query_terms("elephants eat many bananas", 2) == {"eleph": "elephants", "banana": "bananas"}


@settings(deadline=None)
@given(st.text())
def test_terms_hold_nothing_that_a_query_language_could_understand(text):
    for term in terms(text):
        assert term
        assert not set(term) & set("\"'*^:(){}+-\x00 ")


@settings(deadline=None)
@given(st.text(), st.integers(1, 20))
def test_a_question_has_no_more_terms_than_allowed_and_no_stop_words(text, limit):
    asked = query_terms(text, limit)
    assert len(asked) <= limit
    assert len(set(asked)) == len(asked)
    assert not STOP_WORDS["english"] & set(asked.values())


FORMS = [
    ("Die Bücher lagen auf den Tischen.", "Wo ist das Buch, und wo der Tisch?", {"buch", "tisch"}),
    (
        "Nous avons adopté des chevaux et mangé des pommes.",
        "Quelle pomme avons-nous mangée ?",
        {"pomme", "mangée"},
    ),
    (
        "Mis hermanas trabajaban en los hospitales.",
        "¿Cuál es el hospital de mi hermana?",
        {"hospital", "hermana"},
    ),
    ("Мы гуляли с собаками в парке.", "Где гуляет собака?", {"гуляет", "собака"}),
    ("昨日、京都の図書館で本を読みました。", "図書館はどこですか", {"図書", "書館"}),
    ("我们昨天在图书馆看书。", "图书馆在哪里", {"图书", "书馆"}),
    ("زرنا المكتبات في القاهرة", "أين المكتبة؟", {"المكتبة"}),
    ("The libraries were closed.", "Which library is closing?", {"library", "closing"}),
]


@pytest.mark.parametrize(("said", "asked", "words"), FORMS)
def test_another_form_of_a_word_is_the_same_term_in_its_language(said, asked, words):
    held = set(index_terms(said).split())
    assert words <= {word for stem, word in query_terms(asked, 20).items() if stem in held}


@pytest.mark.parametrize(
    "asked",
    ["Wo ist er und was hat sie?", "Où est-ce que tu as été ?", "¿Dónde está él?", "Где он и что это?"],
)
def test_stop_words_of_other_languages_are_not_asked_for(asked):
    assert not query_terms(asked, 20)
