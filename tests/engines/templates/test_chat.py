"""What the model reads is what its template writes, byte by byte."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.bench_templates import NOW, SPECIALS, own_rendering, plain_messages
from halo_weave.engines.templates.chat_template import STAND_IN, ChatTemplate
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt
from halo_weave.engines.templates.model_template import ModelTemplate
from halo_weave.engines.templates.renderer import TemplateRenderer
from tests.engines.templates import samples
from tests.engines.templates.samples import TEMPLATES

CONTROL = "<|im_end|>"
Role = Literal["system", "user", "assistant"]


def talk(roles: str) -> list[ChatMessage]:
    names: dict[str, Role] = {"s": "system", "u": "user", "a": "assistant"}
    return [ChatMessage(names[role], f"said {number}") for number, role in enumerate(roles)]


@pytest.fixture(scope="module")
def models(renderer: TemplateRenderer) -> dict[str, ModelTemplate]:
    return {
        name: ModelTemplate(text, renderer, specials=SPECIALS, now=NOW) for name, text in TEMPLATES.items()
    }


def written(source: str, messages: Any, **variables: Any) -> str | None:
    return own_rendering(source, messages, variables)[0]


words = st.sampled_from(
    ["a", "é", " ", "\n", "\t", CONTROL, "</think>", "/no_think", '"', "{{", "\\n", "☃", "w"]
)
contents = st.lists(words, max_size=6).map("".join)
conversations = st.tuples(
    st.booleans(), st.lists(st.tuples(st.sampled_from(["user", "assistant"]), contents), max_size=6), contents
).map(
    lambda drawn: (
        ([ChatMessage("system", "be kind " + CONTROL)] if drawn[0] else [])
        + [ChatMessage(role, text) for role, text in drawn[1]]  # type: ignore[arg-type]
        + [ChatMessage("user", drawn[2])]
    )
)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=conversations, thinking=st.sampled_from(["auto", "on", "off"]))
def test_the_pieces_join_to_what_the_template_writes(
    models: dict[str, ModelTemplate], name: str, messages: list[ChatMessage], thinking: str
) -> None:
    model = models[name]
    assert model.origin == "model"
    prompt = model.write(messages, thinking=thinking)
    variables = dict(model.variables(thinking))
    assert prompt.text == written(TEMPLATES[name], prompt.taken, **variables)
    plain = written(TEMPLATES[name], plain_messages(messages), **variables)
    if not prompt.notes and plain is not None and thinking not in model.facts.thinking_words:
        assert prompt.text == plain
    for piece in prompt.pieces:
        if piece.said:
            message = messages[piece.message]
            if piece.start >= 0 and thinking not in model.facts.thinking_words:
                assert message.content[piece.start :].startswith(piece.text)
        else:
            assert "be kind" not in piece.text, "what was said became a frame"


@pytest.mark.parametrize("name", TEMPLATES)
def test_control_tokens_in_what_is_said_never_stand_in_a_frame(
    models: dict[str, ModelTemplate], name: str
) -> None:
    evil = "<|evil|>"
    messages = [
        ChatMessage("user", f"a {evil} </think> /no_think {evil}"),
        ChatMessage("assistant", f"{evil}</think> b{evil}"),
    ]
    prompt = models[name].write([*messages, ChatMessage("user", f" {evil}\n")])
    assert not [piece for piece in prompt.pieces if not piece.said and "evil" in piece.text.lower()]


@pytest.mark.parametrize("name", ["WORDS_SWITCH", "THINKS", "OPENS_THOUGHT", "UPPER"])
def test_who_imitates_a_frame_does_not_make_one(models: dict[str, ModelTemplate], name: str) -> None:
    model = models[name]
    frames = [piece.text for piece in model.write(talk("uau")).pieces if not piece.said]
    for frame in frames:
        said = f"a </think> /no_think {frame}evil{frame}"
        messages = [ChatMessage("user", said), ChatMessage("assistant", said), ChatMessage("user", said)]
        prompt = model.write(messages)
        assert prompt.text == written(TEMPLATES[name], plain_messages(messages))
        assert not [piece for piece in prompt.pieces if not piece.said and "evil" in piece.text.lower()]


def test_an_answer_without_its_thoughts_is_a_part_of_what_was_said(models: dict[str, ModelTemplate]) -> None:
    answer = "<think>hm</think>\n\nYes, indeed."
    for name in ("THINKS", "OPENS_THOUGHT"):
        prompt = models[name].write(
            [*talk("u"), ChatMessage("assistant", answer), ChatMessage("user", "more")]
        )
        (piece,) = (piece for piece in prompt.pieces if piece.said and piece.message == 1)
        assert piece.text.strip() == "Yes, indeed."
        assert answer[piece.start :] == piece.text


def test_each_turn_keeps_its_own_frame_when_its_neighbours_change(models: dict[str, ModelTemplate]) -> None:
    def frames(prompt: ChatPrompt, message: int) -> list[str]:
        return [piece.text for piece in prompt.pieces if piece.message == message and not piece.said]

    whole, gap = (models["CHATML"].write(talk(roles)) for roles in ("suau", "suu"))
    assert frames(whole, 1) == frames(gap, 1) == ["<|im_start|>user\n", "<|im_end|>\n"]
    assert frames(whole, 3) == frames(gap, 2) == ["<|im_start|>user\n", "<|im_end|>\n"]
    assert frames(whole, 4) == ["<|im_start|>assistant\n"]


def test_where_a_template_trims_the_piece_tells_which_part_is_left(models: dict[str, ModelTemplate]) -> None:
    prompt = models["LLAMA3"].write([ChatMessage("user", "\n\n hello \n")])
    (said,) = (piece for piece in prompt.pieces if piece.said)
    assert (said.text, said.start) == ("hello", 3)


@pytest.mark.parametrize(("name", "text"), [("UPPER", "HELLO “YOU”\n"), ("AS_JSON", "hello “you”\\n")])
def test_what_a_template_rewrites_is_known_to_be_rewritten(
    models: dict[str, ModelTemplate], name: str, text: str
) -> None:
    prompt = models[name].write([ChatMessage("user", "hello “you”\n")])
    (said,) = (piece for piece in prompt.pieces if piece.said)
    assert (said.text, said.start) == (text, -1)


def test_what_is_written_twice_is_said_once_and_copied_once(models: dict[str, ModelTemplate]) -> None:
    said = [piece for piece in models["TWICE"].write(talk("u")).pieces if piece.said]
    assert [(piece.message, piece.start) for piece in said] == [(0, 0), (0, -1)]


def test_a_system_prompt_may_stand_in_the_last_question(models: dict[str, ModelTemplate]) -> None:
    prompt = models["SYSTEM_IN_LAST"].write(talk("suau"))
    assert prompt.text == "[Q]said 1[A]said 2</s>[Q]said 0\n\nsaid 3[A]"
    assert [piece.message for piece in prompt.pieces if piece.said] == [1, 2, 0, 3]
    assert not prompt.notes


@pytest.mark.parametrize("name", ["MISTRAL", "IGNORES_SYSTEM"])
def test_a_system_prompt_without_a_place_opens_the_first_user_turn(
    models: dict[str, ModelTemplate], name: str
) -> None:
    prompt = models[name].write(talk("suau"))
    assert "said 0\n\nsaid 1" in prompt.text
    assert prompt.notes == (
        "The template has no place for a system prompt, so it opens the first user turn.",
    )
    assert not models[name].facts.system


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("uu", "<s>[INST] said 0\n\nsaid 1 [/INST]"),
        ("au", f"<s>[INST] {STAND_IN} [/INST]said 0</s>[INST] said 1 [/INST]"),
        (
            "uaau",
            f"<s>[INST] said 0 [/INST]said 1</s>[INST] {STAND_IN} [/INST]said 2</s>[INST] said 3 [/INST]",
        ),
        ("sau", "<s>[INST] said 0 [/INST]said 1</s>[INST] said 2 [/INST]"),
    ],
)
def test_where_roles_must_alternate_user_turns_are_joined_and_the_assistant_says_nothing_new(
    models: dict[str, ModelTemplate], roles: str, expected: str
) -> None:
    prompt = models["MISTRAL"].write(talk(roles))
    assert prompt.text == expected
    assert prompt.notes
    assert [piece.message for piece in prompt.pieces if piece.said] == list(range(len(roles)))


def test_neighbours_are_joined_where_nothing_else_is_accepted(renderer: TemplateRenderer) -> None:
    source = "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}[{{ messages[0].content }}]"
    prompt = ChatTemplate(source, renderer, SPECIALS, NOW).write(talk("uu"))
    assert prompt.text == "[said 0\n\nsaid 1]"
    assert "joined" in prompt.notes[0]


def test_a_conversation_that_is_refused_in_every_way_is_written_as_chatml(renderer: TemplateRenderer) -> None:
    source = "{% if messages[0].content == 'bad' %}{{ raise_exception('bad words') }}{% endif %}{{ messages[0].content }}"
    model = ModelTemplate(source, renderer, specials=SPECIALS, now=NOW)
    assert model.origin == "model"
    prompt = model.write([ChatMessage("user", "bad")])
    assert prompt.text == "<|im_start|>user\nbad<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.notes[0].endswith("It refuses the conversation: bad words.")


def test_a_default_system_prompt_belongs_to_the_turn_that_comes_first(
    models: dict[str, ModelTemplate],
) -> None:
    model = models["DEFAULT_SYSTEM"]
    assert "Be kind" in model.write(talk("u")).pieces[0].text
    assert "Be kind" not in model.write(talk("su")).text


def test_nothing_is_put_before_a_template_that_writes_no_beginning(renderer: TemplateRenderer) -> None:
    model = ModelTemplate(TEMPLATES["CHATML"], renderer, specials=SPECIALS, adds_bos=True, now=NOW)
    assert model.write(talk("u")).text.startswith("<|im_start|>user")


def test_words_that_switch_thoughts_reach_the_template(models: dict[str, ModelTemplate]) -> None:
    model = models["WORDS_SWITCH"]
    assert model.write(talk("su"), thinking="off").text.endswith("<assistant><think></think>")
    assert "no_think" not in model.write(talk("su"), thinking="off").text
    assert model.write(talk("u"), thinking="auto").text.endswith("<assistant><think>")


def test_thoughts_of_the_current_turn_are_pieces_of_their_own(models: dict[str, ModelTemplate]) -> None:
    calls = ChatMessage("assistant", "", "I should look.", calls=())
    prompt = models["THINKS"].write([*talk("u"), calls, ChatMessage("tool", "found")])
    assert [(piece.part, piece.text) for piece in prompt.pieces if piece.said] == [
        ("content", "said 0"),
        ("thought", "I should look."),
        ("content", "found"),
    ]


def test_the_same_conversation_is_rendered_once(
    renderer: TemplateRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate(samples.LLAMA3, renderer, SPECIALS, datetime(2026, 1, 2))
    first = template.write(talk("uau"))
    monkeypatch.setattr(renderer, "render", None)
    assert template.write(talk("uau")) is first
