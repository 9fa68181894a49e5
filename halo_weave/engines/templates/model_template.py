"""The chat template of one model, or ChatML in its place, and what probing it reveals: thought delimiters, thinking switches, tool format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from halo_weave.engines.templates.chat_template import ChatTemplate
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt, NativeCall, Piece
from halo_weave.engines.templates.renderer import TemplateRenderer, TemplateUnusable
from halo_weave.engines.templates.thoughts import ThoughtMarks
from halo_weave.engines.templates.tool_calls import PROBE_CALL, TAG, ToolFormat, learn_tool_format

_WORD_OR_TAG = re.compile(rf"{TAG.pattern}|\w+|\s+|.", re.DOTALL)
_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")
_THINKING_VARIABLE = re.compile(r"think|reason", re.IGNORECASE)
_NOT_THINKING_VARIABLE = re.compile(
    r"content|part|text|block|keep|preserv|clear|drop|skip|past|history|budget|trunc|effort|strength|level|mode|start|end$"
)
_EFFORT = re.compile(r"effort|strength|level|mode")
_EFFORTS = ("none", "no_think", "off", "minimal", "low", "medium", "high", "max")
_OFF = ("none", "no_think", "off")
_KEEPS = re.compile(r"keep|preserv|include")
_DROPS = re.compile(r"clear|drop|trunc|strip")
_THINKS = re.compile(r"think|thought|reason|inner", re.IGNORECASE)
_TOOL_CALL_TAG = re.compile(r"<\|?tool_?calls?\|?>", re.IGNORECASE)
_PAIRS = (("START", "END"), ("start", "end"), ("begin", "end"), ("open", "close"), ("prefix", "suffix"))
_TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": PROBE_CALL.name,
            "description": "qzDescription",
            "parameters": {
                "type": "object",
                "properties": {
                    "qzText": {"type": "string", "description": "a text"},
                    "qzWhole": {"type": "integer", "description": "a number"},
                },
                "required": ["qzText"],
            },
        },
    },
)
_QUESTION, _ANSWER, _THOUGHT = "qzQuestion", "qzAnswer", "qzThought"


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What probing the template has found. `thinking` maps each thinking setting to the variables that select it."""

    marks: ThoughtMarks | None = None  # none: the template has no thoughts
    thinking: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # "off", "on", "low", …
    thinking_words: Mapping[str, str] = field(default_factory=dict)  # the same as text in the system prompt
    system: bool = True  # whether it has a place for a system prompt
    declares_tools: bool = False
    tools: ToolFormat | None = None  # how it writes a call in an earlier turn; none: it does not


def learn_facts(template: ChatTemplate) -> TemplateFacts:
    """Probe a template; what it needs for thoughts and calls is noted in its shape."""
    thinking = _learn_switch(template)
    words = {} if "off" in thinking else _learn_words(template)
    marks = _learn_marks(template, thinking.get("on", {}))
    declares, tools = _learn_tools(template)
    return TemplateFacts(marks, thinking, words, template.shape.takes_system, declares, tools)


# Switches


def _learn_switch(template: ChatTemplate) -> dict[str, Mapping[str, Any]]:
    question = [ChatMessage("user", _QUESTION)]

    def written(**variables: Any) -> str | None:
        result = template.render([question], **variables)[0]
        return None if result.refusal else result.text

    names = [name for name in sorted(template.names) if _THINKING_VARIABLE.search(name)]
    plain = [name for name in names if not _NOT_THINKING_VARIABLE.search(name)]
    works = [name for name in plain if written(**{name: True}) != written(**{name: False})]
    switch: dict[str, Mapping[str, Any]] = {}
    if works:
        on, off = (dict.fromkeys(works, value) for value in (True, False))
        if written(**on) is not None and written(**off) is not None:
            switch = {"off": off, "on": on}
    on = dict(switch.get("on", {}))
    for name in names:
        if not _EFFORT.search(name):
            continue
        nonsense = written(**on, **{name: "qzNonsense"})
        values = ("low", "medium", "high") if nonsense and "qzNonsense" in nonsense else _EFFORTS
        texts = {value: written(**on, **{name: value}) for value in values}
        default = written(**on)
        for value, text in texts.items():
            if text is None or (text == nonsense and text != default):
                continue
            if nonsense is not None and text == nonsense:
                continue
            if value in _OFF:
                switch.setdefault("off", {name: value})
            else:
                switch.setdefault(value, {**on, name: value})
    return switch


def _learn_words(template: ChatTemplate) -> dict[str, str]:
    """Find out whether the template reacts to `/no_think` in messages."""
    if "no_think" not in template.source:
        return {}
    found = {}
    talks = [
        [ChatMessage("system", f"S {word}"), ChatMessage("user", _QUESTION)]
        for word in ("x", "/think", "/no_think")
    ]
    plain, on, off = (result.text.rpartition(_QUESTION)[2] for result in template.render(talks))
    if on != off:
        found = {"on": "/think", "off": "/no_think"}
    return found if plain else {}


# Thoughts


def _learn_marks(template: ChatTemplate, on: Mapping[str, Any]) -> ThoughtMarks | None:
    keeps = {name: True for name in template.names if _THINKING_VARIABLE.search(name) and _KEEPS.search(name)}
    keeps |= {
        name: False for name in template.names if _THINKING_VARIABLE.search(name) and _DROPS.search(name)
    }
    for variables in ({}, on, {**on, **keeps}):
        for name in _FIELDS:
            if name not in template.source:
                continue
            template.shape = replace(template.shape, thought_field=name)
            pair = _marks_shown(template, variables, on)
            if pair:
                return _with_answer(template, *pair, on)
    template.shape = replace(template.shape, thought_field=_FIELDS[0])
    known = _marks_in_source(template.source)
    return _with_answer(template, *known, "", on) if known else None


def _after_question(template: ChatTemplate, talk: Sequence[ChatMessage], variables: Mapping[str, Any]) -> str:
    result = template.render([talk], **variables)[0]
    return "" if result.refusal else result.text.partition(_QUESTION)[2]


def _prompts(template: ChatTemplate, on: Mapping[str, Any]) -> list[str]:
    """The generation prompts: default, with thinking on, and with thinking off."""
    ask = [ChatMessage("user", _QUESTION)]
    ways: tuple[Mapping[str, Any], ...] = ({}, on, dict.fromkeys(on, False))
    return [text for way in ways if (text := _after_question(template, ask, way))]


def _marks_shown(
    template: ChatTemplate, variables: Mapping[str, Any], on: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """The delimiters of a thought as the template writes them, and the beginning of the answer after it."""
    ask, result = ChatMessage("user", _QUESTION), ChatMessage("tool", "qzResult", answers=PROBE_CALL)
    closed = {**variables, "add_generation_prompt": False}
    plain = ChatMessage("assistant", _ANSWER)
    others = [_after_question(template, talk, closed) for talk in ([ask, plain], [ask, plain, ask])]
    others += _prompts(template, on)
    for end, talk in (
        (_ANSWER, [ask, ChatMessage("assistant", _ANSWER, _THOUGHT)]),
        (PROBE_CALL.name, [ask, ChatMessage("assistant", "", _THOUGHT, (PROBE_CALL,)), result]),
    ):
        shown = _after_question(template, talk, closed)
        at, stop = shown.find(_THOUGHT), shown.rfind(end)
        if 0 <= at < stop:
            opening = _opening(shown[:at], [text for text in others if text])
            close, rest = _closing(shown[at + len(_THOUGHT) : stop], opening)
            if opening and close:
                return opening, close, rest if end == _ANSWER else ""
    return None


def _with_answer(
    template: ChatTemplate, opening: str, close: str, rest: str, on: Mapping[str, Any]
) -> ThoughtMarks:
    """The delimiters of thoughts, with those of the answer: what the template writes around an answer without thoughts."""
    talk = [ChatMessage("user", _QUESTION), ChatMessage("assistant", _ANSWER)]
    silent = _after_question(template, talk, {"add_generation_prompt": False})
    header = min((_common_units(silent, prompt) for prompt in _prompts(template, on)), default=0)
    before, _, after = silent.rpartition(_ANSWER)
    starts = [
        text for text in (rest, _tidy(before[header:])) if text and opening not in text and close not in text
    ]
    footer = [match.group() for match in TAG.finditer(after)]
    return ThoughtMarks(
        opening, close, tuple(dict.fromkeys(starts)), footer[0] if starts and len(footer) > 1 else ""
    )


def _opening(shown: str, others: Sequence[str]) -> str:
    """The text before a thought that an answer without thoughts does not have."""
    start = min(_common_units(shown, other) for other in others)
    units = _WORD_OR_TAG.findall(shown[start:])
    before = _WORD_OR_TAG.findall(shown[:start])
    while units and units[0].isspace():
        units.pop(0)
    if not "".join(units).strip():  # the header of every answer has it: it is the last delimiter
        tags = list(TAG.finditer(shown))
        return tags[-1].group() if tags else ""
    if not TAG.fullmatch(units[0]) and before and TAG.fullmatch(before[-1]):
        units.insert(0, before[-1])
    return "".join(units).strip()


def _closing(text: str, opening: str) -> tuple[str, str]:
    """The text that ends a thought and begins the answer."""
    text = text.strip()
    tag = TAG.match(text)
    if not tag:
        return text, ""
    end = tag.end()
    word = re.compile(r"\w+").match(text, end)
    if word and word.group() in _WORD_OR_TAG.findall(opening):
        following = TAG.match(text, word.end())
        end = following.end() if following else word.end()
    return text[:end], _tidy(text[end:])


def _tidy(text: str) -> str:
    """The delimiter without optional white space around it; beside words white space counts."""
    text = text.lstrip()
    stripped = text.rstrip()
    return stripped if not stripped or TAG.search(stripped[-1:]) or stripped.endswith((">", "]")) else text


def _common_units(a: str, b: str) -> int:
    """The length of the common beginning of two texts, in whole delimiters and words."""
    size = 0
    for x, y in zip(_WORD_OR_TAG.finditer(a), _WORD_OR_TAG.finditer(b), strict=False):
        if x.group() != y.group():
            break
        size = x.end()
    return size


def _marks_in_source(source: str) -> tuple[str, str] | None:
    """Delimiters of thoughts in the source of a template that never writes thoughts: it may remove them, or open one."""
    tags = [tag for tag in dict.fromkeys(TAG.findall(source)) if _THINKS.search(tag)]
    for close in tags:
        for open in _counterparts(close):
            if open in tags or close.startswith(("</", "[/")):
                return open, close
    return None


def _counterparts(close: str) -> Iterator[str]:
    if close.startswith(("</", "[/")):
        yield close[0] + close[2:]
    for start, end in _PAIRS:
        if end in close:
            yield close.replace(end, start)


# Tools


def _learn_tools(template: ChatTemplate) -> tuple[bool, ToolFormat | None]:
    ask = [ChatMessage("user", _QUESTION)]
    tools: dict[str, Any] = {"tools": list(_TOOLS)}
    if "functions" in template.names:
        tools["functions"] = str(_TOOLS)
    prompt = template.render([ask], **tools)[0].text
    declares = "qzDescription" in prompt or PROBE_CALL.name in prompt
    shape = template.shape
    for number in ("", "functions.{name}:{number}"):
        call = replace(PROBE_CALL, id=number.format(name=PROBE_CALL.name, number=0) or PROBE_CALL.id)
        for silent in (False, True):
            for as_text in (False, True):
                template.shape = replace(shape, calls_as_text=as_text, silent_calls=silent)
                found = _format_shown(template, call, prompt, tools, number)
                if found:
                    return declares, found
    template.shape = shape
    # Some only tell the model in words how to call tools, and do not write calls of earlier turns.
    call_tag = _TOOL_CALL_TAG.search(prompt) if declares else None
    return declares, ToolFormat("json", call_tag.group(), "name", "arguments") if call_tag else None


def _format_shown(
    template: ChatTemplate, call: NativeCall, prompt: str, tools: Mapping[str, Any], number: str
) -> ToolFormat | None:
    talk = [
        ChatMessage("user", _QUESTION),
        ChatMessage("assistant", "", calls=(call,)),
        ChatMessage("tool", "qzResult", answers=call),
    ]
    result = template.render([talk], **tools)[0]
    if result.refusal:
        return None
    text = result.text[_common_units(result.text, prompt) :]
    text = text.partition("qzResult")[0]
    return learn_tool_format(text, number)


class ModelTemplate:
    """Renders any conversation, also if the template in the model's file cannot be used."""

    def __init__(
        self,
        source: str | None,
        renderer: TemplateRenderer,
        *,
        specials: Mapping[str, str],
        adds_bos: bool = False,
        now: datetime,
    ) -> None:
        """`specials`: `bos_token`, `eos_token` and others as texts. `adds_bos` is used for ChatML only: other templates
        write the token themselves."""
        self.origin: Literal["model", "chatml"] = "chatml"
        self.reason = ""  # why the model's own template is not used
        self.facts = TemplateFacts()
        self.source, self.words, self.adds_bos = source or "", dict(specials), adds_bos
        self._begin = specials.get("bos_token", "") if adds_bos else ""
        self._template: ChatTemplate | None = None
        if not source:
            self.reason = "The model file has no chat template, so ChatML is used."
            return
        try:
            self._template = ChatTemplate(source, renderer, specials, now)
            self.facts = learn_facts(self._template)
            self.origin = "model"
        except TemplateUnusable as error:
            self._template = None
            self.reason = f"The model's chat template cannot be used, so ChatML is. {error}"

    def write(
        self,
        messages: Sequence[ChatMessage],
        *,
        thinking: str = "auto",
        tools: Sequence[Mapping[str, Any]] = (),
        now: datetime | None = None,
    ) -> ChatPrompt:
        """Render the conversation up to where the model continues."""
        if self._template is not None:
            words = self.facts.thinking_words.get(thinking)
            said = _with_words(messages, words) if words else messages
            variables = self.variables(thinking)
            try:
                return self._template.write(said, tools=tools, variables=variables, now=now)
            except TemplateUnusable as error:
                note = (
                    f"The model's chat template cannot be used for this conversation, so ChatML is. {error}"
                )
                return ChatPrompt(tuple(self._chatml(messages)), (note,))
        return ChatPrompt(tuple(self._chatml(messages)), (self.reason,))

    def variables(self, thinking: str) -> Mapping[str, Any]:
        """The variables that select a level of thinking; "on" for a level that the template does not have."""
        known = self.facts.thinking
        if thinking in ("auto", "off") or thinking in known:
            return known.get(thinking, {})
        return known.get("on", {})

    def _chatml(self, messages: Sequence[ChatMessage]) -> list[Piece]:
        pieces = []
        for i, message in enumerate(messages):
            pieces.append(Piece(f"<|im_start|>{message.role}\n", "header", i))
            if message.content:
                pieces.append(Piece(message.content, "content", i))
            pieces.append(Piece("<|im_end|>\n", "footer", i))
        begin = [Piece(self._begin, "begin", 0)] if self._begin else []
        return [*begin, *pieces, Piece("<|im_start|>assistant\n", "prompt", len(messages))]


def _with_words(messages: Sequence[ChatMessage], words: str) -> list[ChatMessage]:
    """The words that switch thinking, at the end of the system prompt or of the last question."""
    said = list(messages)
    place = 0 if said and said[0].role == "system" else len(said) - 1
    if said:
        said[place] = replace(said[place], content=f"{said[place].content} {words}")
    return said
