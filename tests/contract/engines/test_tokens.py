"""Text becomes tokens and back, exactly."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput
from halo_weave.ports import Engine

ABILITY = "token_ids"
SPELLABLE = (
    string.digits + string.ascii_letters + string.punctuation + " \n\t" + "äöüéßñçøž€–“”…日本語中文한국어🎉🐕"
)


@given(text=st.text(max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_join_to_exactly_the_text(engine: Engine, text: str) -> None:
    assert engine.tokenize(text).raw == text.encode()


@given(text=st.text(SPELLABLE, max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_alone_give_back_what_the_vocabulary_can_spell(engine: Engine, text: str) -> None:
    tokens = engine.tokenize(text)
    assert engine.pieces(tokens.ids) == tokens


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "日本語のテキスト", "🎉👩‍👩‍👧", "a\x00b", "  two  spaces ", "é̂" * 20]
)
def test_awkward_texts_come_back_exactly(engine: Engine, text: str) -> None:
    assert engine.tokenize(text).text == text


def test_half_a_character_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match="surrogate"):
        engine.tokenize("\ud800")


def test_control_tokens_in_a_text_are_plain_text_unless_asked_for(engine: Engine) -> None:
    header, _ = engine.frame(Role.USER, first=False)
    assert engine.tokenize(header.text, special=True) == header
    plain = engine.tokenize(header.text)
    assert plain.text == header.text
    assert len(plain) > len(header)


def test_every_role_has_a_frame_and_the_first_one_may_hold_more(engine: Engine) -> None:
    for role in Role:
        header, footer = engine.frame(role, first=False)
        first, _ = engine.frame(role, first=True)
        assert len(header) + len(footer)
        assert first.text.endswith(header.text)


def test_an_unknown_token_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput):
        engine.pieces(np.array([engine.info.vocabulary], np.int32))
