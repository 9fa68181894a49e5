"""Values as models write them are read, never evaluated."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.chat.tools.calls import LiteralReader, json_size
from halo_weave.core.validation import MAX_JSON_DEPTH, is_shallow
from halo_weave.errors import BadInput

text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


def read_literal(source):
    reader = LiteralReader(source)
    value = reader.value()
    reader.end()
    return value


@given(values, st.booleans())
def test_json_is_read_as_it_is(value, ascii_only):
    assert read_literal(json.dumps(value, ensure_ascii=ascii_only)) == value
    assert read_literal(json.dumps(value, ensure_ascii=ascii_only, indent=2)) == value


@given(values)
def test_python_literals_are_read_as_they_are(value):
    assert read_literal(repr(value)) == value


@given(st.text(alphabet="""{}[](),:='"`\\ntrue1.e-_$xu0 """, max_size=60))
def test_whatever_is_written_is_a_value_or_a_sentence(source):
    with suppress(BadInput):
        json_size(read_literal(source))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{goal: 'x', count: 2,}", {"goal": "x", "count": 2}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ("('a', 'b')", ["a", "b"]),
        ("('a' 'b')", "ab"),
        ("(1,)", [1]),
        ("()", []),
        ('"""two\nlines "quoted" here"""', 'two\nlines "quoted" here'),
        ('"a\nb"', "a\nb"),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\ud83d"', "\N{REPLACEMENT CHARACTER}"),
        ("'it\\'s'", "it's"),
        ('"C:\\dir"', "C:\\dir"),
        ("`back`", "back"),
        ("1_000", 1000),
        (".5", 0.5),
        ("+3", 3),
        ("undefined", None),
    ],
)
def test_habits_of_models_are_understood(source, value):
    assert read_literal(source) == value


@pytest.mark.parametrize(
    "source",
    [
        "__import__('os').system('true')",
        "open",
        "1 + 1",
        "f'{1}'",
        "lambda: 0",
        "[x for x in y]",
        "1e999",
        "9" * 400,
        "",
        "'open",
        "{1: }",
        "{a}",
        "[1 2]",
        "{'a' 1}",
        "'\\u12'",
        "'\\U99999999'",
        "1.2.3",
        "12abc",
    ],
)
def test_what_is_no_literal_is_refused(source):
    with pytest.raises(BadInput):
        read_literal(source)


def test_depth_has_a_limit_and_costs_nothing():
    assert read_literal("[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH)
    for hostile in ("[" * 100_000, '{"a":' * 100_000, "(" * 100_000):
        with pytest.raises(BadInput):
            read_literal(hostile)


def test_what_json_cannot_hold_is_refused():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert not is_shallow(deep)
    for value in (deep, float("nan"), float("inf"), "\ud800", {"a": {1, 2}}, b"bytes"):
        with pytest.raises(BadInput):
            json_size(value)
    while deep:  # taken apart step by step: at once, it would need a stack as deep
        deep = deep.pop()


def test_size_is_counted_in_bytes():
    assert json_size("é") == 4
