from hypothesis import given
from hypothesis import strategies as st

from halo_weave.engines.base import Step
from halo_weave.engines.stop_strings import StopStrings


def said(pieces: list[bytes], strings: list[str]) -> tuple[bytes, bool, bytes]:
    stops = StopStrings(strings)
    out, met = b"", False
    for number, piece in enumerate(pieces):
        steps, met = stops.feed(Step(number, number, piece, 0.0, None))
        out += b"".join(step.piece for step in steps)
        if met:
            break
    rest = b"".join(step.piece for step in stops.rest())
    return out, met, rest


@given(
    st.lists(st.binary(max_size=4), max_size=20),
    st.lists(st.text("ab<|", min_size=1, max_size=5), max_size=3),
)
def test_what_goes_out_is_the_text_up_to_the_first_stop_string(
    pieces: list[bytes], strings: list[str]
) -> None:
    text = b"".join(pieces)
    out, met, rest = said(pieces, strings)
    # The stream is cut at the first moment a stop string is complete.
    for end in range(len(pieces) + 1):
        so_far = b"".join(pieces[:end])
        found = [at for at in (so_far.find(string.encode()) for string in strings) if at >= 0]
        if found:
            assert (out, met) == (so_far[: min(found)], True)
            return
    assert (out + rest, met) == (text, False)


def test_a_stop_string_across_tokens_never_shows() -> None:
    assert said([b"Hello", b" <", b"|en", b"d|> more"], ["<|end|>"]) == (b"Hello ", True, b"")


def test_a_token_that_only_may_begin_a_stop_string_goes_out_when_it_does_not() -> None:
    assert said([b"a <", b"b"], ["<|end|>"]) == (b"a <b", False, b"")


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert said([b"a", b"b"], []) == (b"ab", False, b"")
