"""Templates that would freeze or eat the machine cost a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.engines.templates.model_template import ModelTemplate
from halo_weave.engines.templates.renderer import Rendered, TemplateRenderer, TemplateUnusable

NOW = datetime(2026, 1, 2)
SAYS_X = [Rendered("x", "")]


@pytest.fixture(scope="module")
def hasty() -> Iterator[TemplateRenderer]:
    """Stops what takes longer than a second, for templates that never end."""
    with TemplateRenderer(seconds=1, characters=100_000) as renderer:
        yield renderer


@pytest.mark.parametrize(
    "template",
    [
        "{{ (9**9)**(9**9) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set l = [1] %}{% for i in l %}{% set _ = l.append(i) %}{% endfor %}",
    ],
)
def test_a_template_without_end_is_stopped_and_the_next_one_is_rendered(
    hasty: TemplateRenderer, template: str
) -> None:
    with pytest.raises(TemplateUnusable, match=r"took longer than 1 second|was stopped"):
        hasty.render(template, [{}], NOW)
    assert hasty.render("{{ x }}", [{"x": "x"}], NOW) == SAYS_X


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ x * 10**10 }}", "memory"),
        ("{% for i in range(99999) %}{{ x * 100 }}{% endfor %}", "more than 100000 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
        ("{{ x.__class__.__mro__ }}", "unsafe"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('not like this') }}", "not like this"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_what_a_template_may_not_do_is_refused_with_a_reason(
    renderer: TemplateRenderer, template: str, reason: str
) -> None:
    with TemplateRenderer(seconds=60, characters=100_000) as own:
        result = own.render(template, [{"x": "x"}], NOW)[0]
    assert not result.text
    assert reason in result.refusal


@pytest.mark.parametrize("template", ["{% for %}", "{{ x ", "x" * 2_000_000])
def test_a_template_that_cannot_be_read_is_said(renderer: TemplateRenderer, template: str) -> None:
    with pytest.raises(TemplateUnusable) as caught:
        renderer.names(template)
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 800


def test_one_process_renders_many_times(renderer: TemplateRenderer) -> None:
    renderer.render("{{ x }}", [{"x": "x"}], NOW)
    child = renderer._process.child
    for number in range(20):
        assert renderer.render("{{ x }}", [{"x": number}], NOW) == [Rendered(str(number), "")]
    assert renderer._process.child is child


def test_a_closed_renderer_leaves_no_process_behind() -> None:
    renderer = TemplateRenderer()
    renderer.render("x", [{}], NOW)
    child = renderer._process.child
    assert child is not None
    renderer.close()
    assert child.returncode is not None


def test_json_is_written_as_the_hub_writes_it(renderer: TemplateRenderer) -> None:
    template = "{{ x | tojson }} {{ x | tojson(indent=2) }} {{ x | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}"
    (result,) = renderer.render(template, [{"x": {"b": "<é>", "a": 1}}], NOW)
    assert result.text == '{"b": "<é>", "a": 1} {\n  "b": "<é>",\n  "a": 1\n} {"a":1,"b":"<\\u00e9>"}'


def test_the_time_is_the_one_that_was_given(renderer: TemplateRenderer) -> None:
    (result,) = renderer.render("{{ strftime_now('%d %b %Y') }}", [{}], datetime(2031, 5, 6))
    assert result.text == "06 May 2031"


@pytest.mark.parametrize(
    "template",
    [
        "{{ (9**9)**(9**9) }}",
        "{% for %}",
        "nothing of what is said",
        "{{ raise_exception('no') }}",
        "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
        "{{" + "+".join(["1"] * 5000) + "}}",
        "{% if a %}" * 2000 + "{% endif %}" * 2000,
        "{{ " + "not " * 5000 + "a }}",
        "{{ a" + "|upper" * 5000 + " }}",
        "{% if a %}1" + "{% elif b %}2" * 5000 + "{% endif %}",
    ],
    ids=[
        "endless",
        "broken",
        "silent",
        "refusing",
        "brackets",
        "sums",
        "blocks",
        "nots",
        "filters",
        "branches",
    ],
)
def test_chatml_is_taken_for_a_template_that_cannot_be_used_and_the_reason_is_said(
    hasty: TemplateRenderer, template: str
) -> None:
    model = ModelTemplate(template, hasty, specials={"bos_token": "<s>"}, adds_bos=True, now=NOW)
    assert model.origin == "chatml"
    assert model.reason.startswith("The model's chat template cannot be used, so ChatML is. It ")
    prompt = model.write([ChatMessage("user", "Hello")])
    assert prompt.text == "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.notes == (model.reason,)
