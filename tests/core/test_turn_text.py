"""Time stamps that a model writes at the beginning of a reply are not part of it."""

import pytest

from halo_weave.core.turn_text import leading_stamps_length, may_be_stamp

STAMPED = [
    ("[2026-11-18 06:44, in First steps] That sounds nice.", "That sounds nice."),
    ("[2026-11-18 06:44] [2026-11-17 22:01, in A [b] Hello", "Hello"),
    ("\n[2026-11-18]\nHello", "Hello"),
    ("[Wednesday, 18 November 2026]\nHello", "Hello"),
    ("[2026-11-18 06:44, file notes.txt] Ada: Hello", "Ada: Hello"),
]
PLAIN = [
    "Hello [2026-11-18] there",
    "[1, 2, 3]",
    "[x] done",
    "[Saturday is fine]",
    "[20 apples]",
    "",
    "2026-11-18: fine",
]


@pytest.mark.parametrize(("text", "rest"), STAMPED)
def test_stamps_at_the_beginning_are_found(text, rest):
    assert text[leading_stamps_length(text) :] == rest


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_has_none(text):
    assert leading_stamps_length(text) == 0


@pytest.mark.parametrize("text", [text for text, _ in STAMPED])
def test_a_stamp_is_held_back_until_it_is_complete(text):
    end = leading_stamps_length(text)
    assert all(may_be_stamp(text[:size]) for size in range(end + 1))
    assert not may_be_stamp(text)


@pytest.mark.parametrize("text", ["H", "[1,", "[x", "[Saturday i", "[20 a", "A [2026-11-18"])
def test_text_that_can_be_no_stamp_is_not_held_back(text):
    assert not may_be_stamp(text)
