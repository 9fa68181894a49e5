import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.errors import BadInput, UnknownChunk

PIECES = st.lists(st.binary(max_size=5), min_size=1, max_size=20)


@given(PIECES, st.data())
def test_tokens_can_be_cut_anywhere_and_joined_again(pieces, data):
    tokens = Tokens.of(range(len(pieces)), pieces)
    at = data.draw(st.integers(0, len(pieces)))
    assert tokens.part(0, at) + tokens.part(at, len(tokens)) == tokens
    assert tokens.pieces() == pieces


def test_a_character_spread_over_tokens_is_whole_in_the_text():
    first, second = "🙂".encode()[:2], "🙂".encode()[2:]
    tokens = Tokens.of([1, 2], [first, second])
    assert tokens.text == "🙂"
    assert tokens.part(0, 1).raw == first


def test_boundaries_that_do_not_fit_are_refused():
    ids = np.array([1, 2], np.int32)
    with pytest.raises(BadInput, match="do not fit"):
        Tokens(ids, b"abc", np.array([1, 2], np.int32))
    with pytest.raises(BadInput, match="do not fit"):
        Tokens(ids, b"abc", np.array([4, 3], np.int32))
    with pytest.raises(BadInput, match="2 token ids came with 1"):
        Tokens(ids, b"a", np.array([1], np.int32))


def test_a_value_cannot_be_changed_from_outside():
    tokens = Tokens.of([1, 2], [b"a", b"b"])
    with pytest.raises(ValueError, match="read-only"):
        tokens.ids[0] = 7


@pytest.mark.parametrize("role", list(Role))
def test_a_key_can_be_written_and_read(role):
    key = ChunkKey(2**62, 3, role)
    assert ChunkKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "1.2", "1.2.bot", "-1.0.user", "a.0.user", "1.0.user.x", "١.0.user"])
def test_what_is_not_a_key_is_refused(text):
    with pytest.raises(BadInput):
        ChunkKey.parse(text)


@pytest.mark.parametrize("number", [2**63, 10**30, "9" * 5000])
def test_beyond_the_last_id_there_is_no_chunk(number):
    for text in (f"{number}.0.user", f"1.{number}.user"):
        with pytest.raises(UnknownChunk, match="There is no chunk"):
            ChunkKey.parse(text)
    assert ChunkKey.parse(f"{2**63 - 1}.0.user").turn_id == 2**63 - 1


def test_a_chunk_without_tokens_or_before_time_is_refused():
    with pytest.raises(BadInput, match="no tokens"):
        Chunk(ChunkKey(1, 0, Role.USER), 0, Tokens.of([], []))
    with pytest.raises(BadInput, match="count up from 0"):
        Chunk(ChunkKey(1, 0, Role.USER), -1, Tokens.of([1], [b"a"]))


def test_a_character_whose_last_token_is_still_to_come_is_left_out_until_then():
    first, rest = "日".encode()[:2], "日".encode()[2:]
    assert Tokens.of([1, 2], [b"a", first]).spelled(ended=False) == ["a", ""]
    assert Tokens.of([1, 2], [b"a", first]).spelled() == ["a", "�"]
    assert Tokens.of([1, 2, 3], [b"a", first, rest]).spelled(ended=False) == ["a", "", "日"]
