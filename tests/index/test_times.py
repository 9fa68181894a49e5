"""Time words become days."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.index.times import spans

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
    assert spans(text, NOW) == [(day(first), day(last))]


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
    assert spans(text, NOW) == []


@settings(deadline=None)
@given(st.text(), st.datetimes(timezones=st.just(UTC), min_value=datetime(1990, 1, 1)))
def test_any_text_gives_days_in_order(text, now):
    assert all(first <= last for first, last in spans(text, now))
