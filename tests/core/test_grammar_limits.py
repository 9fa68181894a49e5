"""Grammars that would end the process or hold the engine are refused; those that the product writes are not."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.chat.tools.memory_requests import filing_grammar
from halo_weave.core.grammar_limits import MAX_CHOICES, MAX_DEPTH, check_grammar
from halo_weave.core.json_grammar import any_object_grammar, grammar_from_schema, grammar_of_one
from halo_weave.errors import BadInput


def chain(length: int) -> str:
    rules = [f"r{i} ::= r{i + 1}" for i in range(length)]
    return "\n".join(["root ::= r0", *rules, f'r{length} ::= "x"'])


def same_twice(depth: int) -> dict:
    """A schema that says the same in two ways, inside itself."""
    inner = {"type": "string"} if depth == 0 else same_twice(depth - 1)
    return {"anyOf": [inner, inner]}


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("root ::= " + "(" * 90_000 + '"a"' + ")" * 90_000, "characters"),
        ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "inside each other"),
        (chain(2_000), "begin with one another"),
        ('root ::= ("a"? | "b"?){60}', "choices"),
        ("root ::= " + " | ".join(f'"{i}"' for i in range(5_000)), "choices"),
        ('root ::= "a"{1,100000}', "repeated"),
        ('root ::= "abcdefghijklmnopabcdefghijklmnop"{2000}', "parts"),
        ('root ::= root "a"', "begins with itself"),
        ('root ::= ("a"?)*', "without end"),
        ("root ::= other", "does not have"),
        ('other ::= "a"', "no rule named root"),
        ("root ::= [a", "cannot be read"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a" )', "not opened"),
        ("root ::= *", "repeats nothing"),
        ("", "no rule named root"),
    ],
)
def test_it_is_refused_in_a_sentence(grammar, reason):
    with pytest.raises(BadInput, match=reason):
        check_grammar(grammar)


def test_a_schema_that_multiplies_its_alternatives_is_refused():
    check_grammar(grammar_from_schema(same_twice(4)))
    with pytest.raises(BadInput, match="choices"):
        check_grammar(grammar_from_schema(same_twice(9)))


@pytest.mark.parametrize(
    "grammar",
    [
        any_object_grammar(),
        filing_grammar(["Work", "Family"]),
        grammar_of_one('"<tool_call>"', [("a", {"type": "object"}, "b"), ("c", None, "d")]),
        grammar_from_schema({"enum": [f"country {i}" for i in range(MAX_CHOICES - 10)]}),
        grammar_from_schema(
            {
                "type": "object",
                "properties": {f"p{i}": {"type": "string", "maxLength": 80} for i in range(60)},
            }
        ),
        "root ::= " + "(" * (MAX_DEPTH - 1) + '"a"' + ")" * (MAX_DEPTH - 1),
        'root ::= item+ # a list\nitem ::= "- " [^\\n]{1,80}\n  "\\n"',
    ],
)
def test_what_the_product_and_its_clients_need_is_allowed(grammar):
    check_grammar(grammar)


@given(st.text(alphabet='rot:=()[]"\\|*+?{}0123456789, \n#ab', max_size=200))
def test_any_text_is_checked_or_refused(text):
    with suppress(BadInput):  # nothing else may be raised
        check_grammar(text)
