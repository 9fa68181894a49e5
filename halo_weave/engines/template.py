"""A chat template taken apart: what stands before and after a turn of each role.

The template writes a whole conversation; chunks come and go inside turns. So it is rendered once with marks in
place of what is said, and cut at the marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from halo_weave.core.tokens import Role

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Say = tuple[Role, str]
Render = Callable[[list[Say], bool], str]


@dataclass(frozen=True, slots=True)
class Frame:
    header: str
    footer: str


@dataclass(frozen=True, slots=True)
class Frames:
    """`begin` stands before a turn that comes first, in place of its header; it includes the header."""

    turns: dict[Role, Frame]
    begin: dict[Role, str]

    def frame(self, role: Role, *, first: bool) -> Frame:
        turn = self.turns[role]
        return Frame(self.begin[role], turn.footer) if first else turn


class TemplateUnusable(Exception):
    """The template cannot be rendered, or does not write what it is given."""


def frames_of(template: str, *, bos: str, eos: str, adds_bos: bool, now: datetime) -> Frames:
    """Cut a template into frames. Raises TemplateUnusable."""
    render = renderer(template, bos=bos, eos=eos, now=now)
    user, assistant = cut_turns(render)
    begin_user = cut(render([(Role.USER, mark(0))], False), mark(0))[0]
    try:
        system, begin_system = cut_system(render, user, begin_user)
    except TemplateUnusable:  # some templates know no system role: it speaks as the user does
        system, begin_system = user, begin_user
    start = begin_user.removesuffix(user.header) if begin_user.endswith(user.header) else ""
    begin = {Role.SYSTEM: begin_system, Role.USER: begin_user, Role.ASSISTANT: start + assistant.header}
    if adds_bos and bos:
        begin = {role: text if text.startswith(bos) else bos + text for role, text in begin.items()}
    return Frames({Role.SYSTEM: system, Role.USER: user, Role.ASSISTANT: assistant}, begin)


def renderer(template: str, *, bos: str, eos: str, now: datetime) -> Render:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )

    def refuse(message: str) -> NoReturn:
        raise TemplateUnusable(message)

    environment.globals.update(raise_exception=refuse, strftime_now=now.strftime)
    try:
        compiled = environment.from_string(template)
    except jinja2.TemplateError as error:
        raise TemplateUnusable(str(error)) from error

    def render(said: list[Say], answer_follows: bool) -> str:
        messages = [{"role": str(role), "content": text} for role, text in said]
        values: dict[str, Any] = {"bos_token": bos, "eos_token": eos, "tools": None, "documents": None}
        try:
            return compiled.render(messages=messages, add_generation_prompt=answer_follows, **values)
        except TemplateUnusable:
            raise
        except Exception as error:  # a template may fail in any way
            raise TemplateUnusable(str(error)) from error

    return render


def mark(number: int) -> str:
    return f"MARK{number}KRAM"


def cut(text: str, *marks: str) -> list[str]:
    """What stands around the marks, each of which must be there once and in order."""
    parts = []
    for word in marks:
        before, found, text = text.partition(word)
        if not found:
            raise TemplateUnusable("the template leaves out what is said")
        parts.append(before)
    return [*parts, text]


def cut_turns(render: Render) -> tuple[Frame, Frame]:
    """The frames of user and assistant, from a conversation of several turns."""
    talk = [(Role.USER, mark(0)), (Role.ASSISTANT, mark(1)), (Role.USER, mark(2)), (Role.ASSISTANT, mark(3))]
    _, to_answer, to_question, _, end = cut(render(talk, False), *(text for _, text in talk))
    asked = render(talk[:3], False)
    waiting = render(talk[:3], True)
    header = waiting.removeprefix(asked) if waiting.startswith(asked) else ""
    if header and to_answer.endswith(header):
        footer = to_answer.removesuffix(header)
    else:
        footer, header = to_answer, ""
    # What ends an answer is known from the last one; the rest before a question is the question's own.
    shared = end if to_question.startswith(end) else ""
    return Frame(to_question.removeprefix(shared), footer), Frame(header, shared)


def cut_system(render: Render, user: Frame, begin_user: str) -> tuple[Frame, str]:
    said = [(Role.SYSTEM, mark(0)), (Role.USER, mark(1))]
    begin, between, _ = cut(render(said, False), mark(0), mark(1))
    footer = between.removesuffix(user.header) if between.endswith(user.header) else user.footer
    start = begin_user.removesuffix(user.header) if begin_user.endswith(user.header) else ""
    return Frame(begin.removeprefix(start) if begin.startswith(start) else begin, footer), begin
