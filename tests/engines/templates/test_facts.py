"""What probing finds out about a template: marks of thoughts, switches, the format of tool calls."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bench_templates import NOW, SPECIALS
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.engines.templates.model_template import ModelTemplate
from halo_weave.engines.templates.renderer import TemplateRenderer
from halo_weave.engines.templates.thoughts import ThoughtMarks
from tests.engines.templates import samples


def learn(source: str, renderer: TemplateRenderer) -> ModelTemplate:
    return ModelTemplate(source, renderer, specials=SPECIALS, now=NOW)


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        (samples.CHATML, None),
        (samples.THINKS, ThoughtMarks("<think>", "</think>")),
        (samples.OPENS_THOUGHT, ThoughtMarks("<think>", "</think>")),
        (samples.BRACKETS, ThoughtMarks("[THINK]", "[/THINK]")),
        (
            samples.CHANNELS,
            ThoughtMarks(
                "<|channel|>analysis<|message|>",
                "<|end|>",
                ("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
            ),
        ),
        (samples.THINKS.replace("think>", "seed:think>"), ThoughtMarks("<seed:think>", "</seed:think>")),
    ],
)
def test_the_marks_of_thoughts_are_those_that_the_template_writes(
    renderer: TemplateRenderer, source: str, marks: ThoughtMarks | None
) -> None:
    assert learn(source, renderer).facts.marks == marks


@pytest.mark.parametrize(
    ("source", "thinking", "opened"),
    [
        (samples.OPENS_THOUGHT, "auto", True),
        (samples.THINKS, "auto", False),
        (samples.THINKS, "off", False),
        (samples.WORDS_SWITCH, "auto", True),
        (samples.WORDS_SWITCH, "off", False),
    ],
)
def test_it_is_known_whether_the_prompt_opens_a_thought(
    renderer: TemplateRenderer, source: str, thinking: str, opened: bool
) -> None:
    model = learn(source, renderer)
    prompt = model.write([ChatMessage("user", "Hello")], thinking=thinking)
    assert model.facts.marks is not None
    assert model.facts.marks.opened_by(prompt.pieces[-1].text) is opened


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (samples.CHATML, {}),
        (samples.THINKS, {"off": {"enable_thinking": False}, "on": {"enable_thinking": True}}),
        (samples.CHANNELS, {value: {"reasoning_effort": value} for value in ("low", "medium", "high")}),
        (
            "{% if mode_of_thinking is defined and mode_of_thinking not in ['low', 'high', 'none'] %}{{ raise_exception('no') }}"
            "{% endif %}{{ mode_of_thinking }}{{ messages[0].content }}",
            {
                "off": {"mode_of_thinking": "none"},
                "low": {"mode_of_thinking": "low"},
                "high": {"mode_of_thinking": "high"},
            },
        ),
    ],
)
def test_the_switches_are_those_that_change_what_is_written(
    renderer: TemplateRenderer, source: str, settings: dict[str, Any]
) -> None:
    assert learn(source, renderer).facts.thinking == settings


def test_a_template_without_degrees_thinks_when_it_is_asked_to_think_hard(renderer: TemplateRenderer) -> None:
    model = learn(samples.THINKS, renderer)
    assert model.variables("high") == model.variables("on") == {"enable_thinking": True}
    assert model.variables("auto") == {}


def test_a_template_that_knows_no_tools_is_known_by_it(renderer: TemplateRenderer) -> None:
    facts = learn(samples.CHATML, renderer).facts
    assert not facts.declares_tools
    assert facts.tools is None
    assert learn(samples.THINKS, renderer).facts.declares_tools
