"""Text becomes tokens and back, exactly."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Engine
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.errors import BadInput

ABILITY = "token_ids"
SPELLABLE = (
    string.digits + string.ascii_letters + string.punctuation + " \n\t" + "äöüéßñçøž€–“”…日本語中文한국어🎉🐕"
)


@given(text=st.text(max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_join_to_exactly_the_text(engine: Engine, kind: str, text: str) -> None:
    assume(not ("plain" in kind and "\0" in text))  # the prototype's server refuses it
    assert engine.tokenize(text).raw == text.encode()


@given(text=st.text(SPELLABLE, max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_alone_give_back_what_the_vocabulary_can_spell(engine: Engine, kind: str, text: str) -> None:
    assume(
        not ("kobold-plain" in kind and not text.isascii())
    )  # the prototype's server tells texts, not bytes
    tokens = engine.tokenize(text)
    assert engine.pieces(tokens.ids) == tokens


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "日本語のテキスト", "🎉👩‍👩‍👧", "a\x00b", "  two  spaces ", "é̂" * 20]
)
def test_awkward_texts_come_back_exactly(engine: Engine, kind: str, text: str) -> None:
    if "kobold-plain" in kind and "\0" in text:
        pytest.skip("the prototype's server refuses it")
    assert engine.tokenize(text).text == text


def test_half_a_character_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match="surrogate"):
        engine.tokenize("\ud800")


def test_control_tokens_in_a_text_are_plain_text_unless_asked_for(engine: Engine) -> None:
    pieces = engine.chat([ChatMessage("user", "a"), ChatMessage("user", "b")]).pieces
    text = next(piece.text for piece in pieces if piece.part == "header" and piece.message == 1)
    header = engine.tokenize(text, special=True)
    assert header.text == text
    plain = engine.tokenize(header.text)
    assert plain.text == header.text
    assert len(plain) > len(header)


def test_control_tokens_and_ids_outside_of_the_vocabulary_are_told_from_words(engine: Engine) -> None:
    pieces = engine.chat([ChatMessage("user", "a")]).pieces
    text = next(piece.text for piece in pieces if piece.part == "footer")
    assert engine.controls(engine.tokenize(text, special=True).ids).any()
    assert not engine.controls(engine.tokenize(text + "And some words, 日本語.").ids).any()
    assert engine.controls(np.array([-1, 2**31 - 1], np.int32)).all()


def test_every_turn_has_a_frame_and_the_prompt_ends_where_the_model_goes_on(engine: Engine) -> None:
    talk = [ChatMessage(role.value, f"said by {role}") for role in Role]
    pieces = engine.chat([*talk, ChatMessage("user", "and now?")]).pieces
    said = [(piece.message, piece.text) for piece in pieces if piece.said]
    assert said == [*enumerate(message.content for message in talk), (len(talk), "and now?")]
    for number in range(len(talk) + 1):
        assert any(piece.text for piece in pieces if piece.message == number and not piece.said)
    assert pieces[-1].part == "prompt"


def test_an_unknown_token_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput):
        engine.pieces(np.array([engine.info.vocabulary], np.int32))
