"""Chat templates of several families, cut into frames."""

from __future__ import annotations

from datetime import datetime

import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.template import CHATML, Frames, TemplateUnusable, frames_of, renderer

LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NOW = datetime(2026, 1, 2)


def cut(template: str, *, adds_bos: bool = False) -> Frames:
    return frames_of(template, bos="<s>", eos="</s>", adds_bos=adds_bos, now=NOW)


def written(frames: Frames, talk: list[tuple[Role, str]]) -> str:
    """A conversation put together from frames; the last turn is open."""
    text = ""
    for number, (role, said) in enumerate(talk):
        frame = frames.frame(role, first=number == 0)
        text += frame.header + said + (frame.footer if number < len(talk) - 1 else "")
    return text


TALK = [(Role.USER, "one"), (Role.ASSISTANT, "two"), (Role.USER, "three"), (Role.ASSISTANT, "four")]
WITH_SYSTEM = [(Role.SYSTEM, "zero"), *TALK]


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MISTRAL, GEMMA, DEFAULT_SYSTEM])
def test_frames_put_together_are_what_the_template_writes(template: str) -> None:
    whole = renderer(template, bos="<s>", eos="</s>", now=NOW)(TALK, False)
    assert whole.startswith(written(cut(template), TALK))


@pytest.mark.parametrize("template", [CHATML, LLAMA3, DEFAULT_SYSTEM])
def test_a_system_prompt_is_framed_as_the_template_writes_it(template: str) -> None:
    whole = renderer(template, bos="<s>", eos="</s>", now=NOW)(WITH_SYSTEM, False)
    assert whole.startswith(written(cut(template), WITH_SYSTEM))


@pytest.mark.parametrize("template", [CHATML, LLAMA3, GEMMA, DEFAULT_SYSTEM])
def test_the_open_answer_begins_as_the_template_asks_for_one(template: str) -> None:
    asked = renderer(template, bos="<s>", eos="</s>", now=NOW)(TALK[:3], True)
    assert asked == written(cut(template), [*TALK[:3], (Role.ASSISTANT, "")])


def test_a_template_without_a_system_role_lets_it_speak_as_the_user() -> None:
    frames = cut(MISTRAL)
    assert frames.frame(Role.SYSTEM, first=True).header == "<s>[INST] "
    assert frames.frame(Role.USER, first=False).header == "[INST] "


def test_the_beginning_of_text_is_added_once_if_the_model_wants_it() -> None:
    assert cut(CHATML, adds_bos=True).frame(Role.USER, first=True).header == "<s><|im_start|>user\n"
    assert cut(CHATML, adds_bos=True).frame(Role.USER, first=False).header == "<|im_start|>user\n"
    assert cut(LLAMA3, adds_bos=True).frame(Role.USER, first=True).header.count("<s>") == 1


def test_a_default_system_prompt_belongs_to_what_comes_first() -> None:
    frames = cut(DEFAULT_SYSTEM)
    assert "Be kind" in frames.frame(Role.USER, first=True).header
    assert "Be kind" not in frames.frame(Role.USER, first=False).header
    assert "Be kind" not in frames.frame(Role.SYSTEM, first=True).header


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ raise_exception('no') }}",
        "nothing of what is said",
        "{{ messages | unknown }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_cannot_be_used_says_so_and_harms_nothing(template: str) -> None:
    with pytest.raises(TemplateUnusable):
        cut(template)
