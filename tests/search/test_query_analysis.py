"""Time words become days; a question about someone is embedded as that one would say it."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.search.query_analysis import mentioned_dates, rephrase_as_speaker
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import NOW as TALK_TIME
from tests.search.talk import recalling, talk

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)  # a Wednesday


def day(text: str) -> date:
    return date.fromisoformat(text)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("What did we do today?", "2026-11-18", "2026-11-18"),
        ("yesterday evening", "2026-11-17", "2026-11-17"),
        ("last night", "2026-11-17", "2026-11-17"),
        ("this week", "2026-11-16", "2026-11-18"),
        ("Last  week we spoke", "2026-11-09", "2026-11-15"),
        ("last weekend", "2026-11-14", "2026-11-15"),
        ("last month", "2026-10-01", "2026-10-31"),
        ("this year", "2026-01-01", "2026-11-18"),
        ("last year", "2025-01-01", "2025-12-31"),
        ("3 days ago", "2026-11-15", "2026-11-15"),
        ("two weeks ago", "2026-11-01", "2026-11-07"),
        ("last Friday", "2026-11-13", "2026-11-13"),
        ("on Wednesday", "2026-11-11", "2026-11-11"),
        ("in May", "2026-05-01", "2026-05-31"),
        ("in December", "2025-12-01", "2025-12-31"),
        ("in May 2023", "2023-05-01", "2023-05-31"),
        ("in February, 2024", "2024-02-01", "2024-02-29"),
        ("on 23 January, 2022", "2022-01-23", "2022-01-23"),
        ("on the 2nd of March 2025", "2025-03-02", "2025-03-02"),
        ("on January 23rd", "2026-01-23", "2026-01-23"),
        ("on December 24", "2025-12-24", "2025-12-24"),
        ("in 2019", "2019-01-01", "2019-12-31"),
        ("2026-02-03", "2026-02-03", "2026-02-03"),
    ],
)
def test_a_time_is_understood(text, first, last):
    assert mentioned_dates(text, NOW) == [(day(first), day(last))]


@pytest.mark.parametrize(
    "text",
    [
        "You may go.",
        "31 February 2024",
        "The march was long.",
        "room 2023",
        "It was the second of its kind.",
        "",
    ],
)
def test_what_is_no_time_is_not_taken_for_one(text):
    assert mentioned_dates(text, NOW) == []


@settings(deadline=None)
@given(st.text(), st.datetimes(timezones=st.just(UTC), min_value=datetime(1990, 1, 1)))
def test_any_text_gives_days_in_order(text, now):
    assert all(first <= last for first, last in mentioned_dates(text, now))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("Was habe ich am 8. Mai 2023 gesagt?", date(2023, 5, 8), date(2023, 5, 8)),
        ("Qu'ai-je dit le 8 mai 2023 ?", date(2023, 5, 8), date(2023, 5, 8)),
        ("¿Qué dije el 8 de mayo de 2023?", date(2023, 5, 8), date(2023, 5, 8)),
        ("Что я сказал 8 мая 2023 года?", date(2023, 5, 8), date(2023, 5, 8)),
        ("2023年5月8日に何を言いましたか", date(2023, 5, 8), date(2023, 5, 8)),
        ("我2023年5月说了什么", date(2023, 5, 1), date(2023, 5, 31)),
        ("ماذا قلت في 8 مايو 2023", date(2023, 5, 8), date(2023, 5, 8)),
        ("am 8.5.2023", date(2023, 5, 8), date(2023, 5, 8)),
        ("gestern", date(2026, 3, 3), date(2026, 3, 3)),
        ("Qu'est-ce que j'ai dit hier ?", date(2026, 3, 3), date(2026, 3, 3)),
        ("ayer", date(2026, 3, 3), date(2026, 3, 3)),
        ("вчера", date(2026, 3, 3), date(2026, 3, 3)),
        ("昨日何を話しましたか", date(2026, 3, 3), date(2026, 3, 3)),
        ("我昨天说了什么", date(2026, 3, 3), date(2026, 3, 3)),
        ("أمس", date(2026, 3, 3), date(2026, 3, 3)),
        ("vor drei Tagen", date(2026, 3, 1), date(2026, 3, 1)),
        ("il y a 3 jours", date(2026, 3, 1), date(2026, 3, 1)),
        ("hace tres días", date(2026, 3, 1), date(2026, 3, 1)),
        ("3 дня назад", date(2026, 3, 1), date(2026, 3, 1)),
        ("3日前", date(2026, 3, 1), date(2026, 3, 1)),
        ("3天前", date(2026, 3, 1), date(2026, 3, 1)),
        ("letztes Jahr", date(2025, 1, 1), date(2025, 12, 31)),
        ("la semaine dernière", date(2026, 2, 23), date(2026, 3, 1)),
        ("im Januar", date(2026, 1, 1), date(2026, 1, 31)),
    ],
)
def test_times_in_other_languages(text, first, last):
    assert mentioned_dates(text, datetime(2026, 3, 4, 12, tzinfo=UTC)) == [(first, last)]


@pytest.mark.parametrize(
    "text",
    [
        "Ich kaufe die Anhier-Tasse",
        "99月99日",
        "vor vielen Jahren",
        "I like mars",
        "32.13.2023",
        "Wer ist denn hier?",
    ],
)
def test_what_is_no_time_in_another_language_gives_none(text):
    assert mentioned_dates(text, datetime(2026, 3, 4, 12, tzinfo=UTC)) == []


NAMES = ["Ada", "Bo", "You"]


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("What did Ada paint for her son?", "Ada: What did I paint for my son?"),
        ("Where is Bo's bicycle?", "Bo: Where is my bicycle?"),
        ("Did Bo meet Ada?", "Bo: Did I meet Ada?"),
        ("Wo wohnt Ada?", "Ada: Wo wohnt I?"),
        ("Where do I work?", "Where do I work?"),
        ("Thank you!", "Thank you!"),
        ("What is an Adagio?", "What is an Adagio?"),
        ("", ""),
    ],
)
def test_a_question_is_turned_to_the_first_who_is_named(question, asked):
    assert rephrase_as_speaker(question, NAMES) == asked


@pytest.mark.parametrize("name", ["(", "a.b", "\\", "İ", " "])
def test_any_name_is_only_a_name(name):
    rephrase_as_speaker(f"Who is {name}?", [name, ""])


def test_the_question_is_embedded_that_way(store, window):
    asked = []

    class Hearing(HashingEmbedder):
        def embed(self, texts, *, query=False):
            asked.extend(texts if query else ())
            return super().embed(texts, query=query)

    talk(store, window)
    with recalling(store, Hearing) as recall:
        recall.search("Where does Grace keep the violin?", now=TALK_TIME)
    assert "Grace: Where does I keep the violin?" in asked
