"""JSON schemas become grammars: bounds of integers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.json_grammar import DIGITS, grammar_from_schema
from halo_weave.errors import BadInput

LONGEST = 10**DIGITS - 1
integers = st.integers(-LONGEST, LONGEST) | st.integers(-1200, 1200)


def integer_pattern(**bounds) -> re.Pattern[str]:
    """The grammar of an integer with bounds, as a regular expression."""
    rules = dict(
        line.split(" ::= ") for line in grammar_from_schema({"type": "integer", **bounds}).splitlines()
    )
    assert rules["root"] == "schema"
    return re.compile(rules["schema"].replace('"', "").replace(" ", ""))


@given(bounds=st.tuples(integers, integers).map(sorted), number=integers)
def test_an_integer_fits_if_it_is_within_the_bounds(bounds, number):
    low, high = bounds
    pattern = integer_pattern(minimum=low, maximum=high)
    for one in (number, low, high, low - 1, high + 1, (low + high) // 2):
        fits = low <= one <= high and abs(one) <= LONGEST
        assert bool(pattern.fullmatch(str(one))) == fits, one
    assert not pattern.fullmatch("-0")
    assert not pattern.fullmatch("007")


@pytest.mark.parametrize(
    ("bounds", "fit", "do_not"),
    [
        ({"minimum": 1}, ["1", "10", "9999999999999999"], ["0", "-1", "01"]),
        ({"maximum": -1}, ["-1", "-20"], ["0", "1"]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"]),
        ({"minimum": 0.5, "maximum": 2.5}, ["1", "2"], ["0", "3"]),
        ({"exclusiveMinimum": 0.5}, ["1"], ["0"]),
        ({"minimum": 7, "maximum": 7}, ["7"], ["6", "8", "77"]),
        ({"maximum": 10**30}, ["0", "-5"], []),
    ],
)
def test_bounds_of_every_kind_hold(bounds, fit, do_not):
    pattern = integer_pattern(**bounds)
    assert all(pattern.fullmatch(one) for one in fit)
    assert not any(pattern.fullmatch(one) for one in do_not)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "minimum": 10**20},
        {"type": "integer", "minimum": "1"},
        {"type": "integer", "maximum": True},
        {"type": "integer", "minimum": float("nan")},
        {"type": "number", "minimum": 1},
        {"type": "integer", "multipleOf": 5},
    ],
)
def test_bounds_that_make_no_grammar_are_refused_in_a_sentence(wrong):
    with pytest.raises(BadInput):
        grammar_from_schema(wrong)
