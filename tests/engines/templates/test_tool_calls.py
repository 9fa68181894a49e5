"""Tool calls are read in the format in which the template writes them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.engines.templates.messages import NativeCall
from halo_weave.engines.templates.tool_calls import PROBE_CALL, ToolCallReader, ToolFormat, learn_tool_format

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string"},
                    "days": {"type": "integer"},
                    "deep": {"type": "boolean"},
                },
            },
        },
    }
    for name in ("weather", "news")
]


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def in_tags(key: str, middle: str, close: str) -> object:
    return lambda call: "".join(
        f"{key}{name}{middle}{value if isinstance(value, str) else as_json(value)}{close}"
        for name, value in call.arguments.items()
    )


ARGUMENTS = {
    "coder": in_tags("<parameter=", ">\n", "\n</parameter>\n"),
    "pairs": in_tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    "named": in_tags('<parameter name="', '">', "</parameter>\n"),
}


def typed(call: NativeCall) -> str:
    return "".join(
        f'<|open|>argument key="{key}" type="{"string" if isinstance(value, str) else "number"}"<|sep|>'
        f"{value if isinstance(value, str) else as_json(value)}<|close|>argument<|sep|>"
        for key, value in call.arguments.items()
    )


def mapping(call: NativeCall) -> str:
    return ",".join(
        f'{key}:<|"|>{value}<|"|>' if isinstance(value, str) else f"{key}:{as_json(value)}"
        for key, value in call.arguments.items()
    )


# How several families write one call.
FORMATS = {
    "json in tags": lambda c: (
        f'<tool_call>\n{{"name": "{c.name}", "arguments": {as_json(c.arguments)}}}\n</tool_call>'
    ),
    "list of json": lambda c: f"<TOOLCALL>[{as_json({'name': c.name, 'arguments': c.arguments})}]</TOOLCALL>",
    "json within json": lambda c: (
        f"<tool_call>{as_json({'name': c.name, 'arguments': as_json(c.arguments)})}</tool_call>"
    ),
    "other keys": lambda c: (
        f"<|START_ACTION|>[\n{as_json({'id': '0', 'tool_name': c.name, 'parameters': c.arguments})}\n]<|END_ACTION|>"
    ),
    "name as key": lambda c: f"<|tools_prefix|>[{as_json({c.name: c.arguments})}]<|tools_suffix|>",
    "name before": lambda c: f"[TOOL_CALLS]{c.name}[CALL_ID]{c.id}[ARGS]{as_json(c.arguments)}",
    "name before, fenced": lambda c: (
        f"<｜call｜>function<｜sep｜>{c.name}\n```json\n{as_json(c.arguments)}\n```<｜end｜>"
    ),
    "channel": lambda c: (
        f" to=functions.{c.name}<|channel|>commentary json<|message|>{as_json(c.arguments)}<|call|>"
    ),
    "numbered": lambda c: f"<|begin|>functions.{c.name}:0<|arguments|>{as_json(c.arguments)}<|end|>",
    "word before": lambda c: f" functools[{as_json({'name': c.name, 'arguments': c.arguments})}]<|eot_id|>",
    "nothing before": lambda c: as_json({"name": c.name, "parameters": c.arguments}),
    "python": lambda c: (
        f"<|start|>[{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})]<|end|>"
    ),
    "mapping": lambda c: f"<|tool_call>call:{c.name}{{{mapping(c)}}}<tool_call|>",
    "tags with equal signs": lambda c: (
        f"<tool_call>\n<function={c.name}>\n{ARGUMENTS['coder'](c)}</function>\n</tool_call>"
    ),  # type: ignore[operator]
    "tags for key and value": lambda c: f"<tool_call>{c.name}\n{ARGUMENTS['pairs'](c)}</tool_call>",  # type: ignore[operator]
    "tags with attributes": lambda c: (
        f'<calls>\n<invoke name="{c.name}">\n{ARGUMENTS["named"](c)}</invoke>\n</calls>'
    ),  # type: ignore[operator]
    "tags with types": lambda c: (
        f'<|open|>call tool="{c.name}" index="1"<|sep|>{typed(c)}<|close|>call<|sep|><|close|>tools<|sep|>'
    ),
}
CALLS = [
    NativeCall("weather", {"place": "Paris", "days": 3, "deep": True}, "call00000"),
    NativeCall("weather", {"place": "731"}, "call00000"),
    NativeCall("news", {"place": "São Tomé, {here}", "deep": False}, "call00000"),
]


def learned(write: object) -> ToolFormat:
    format = learn_tool_format(write(PROBE_CALL))  # type: ignore[operator]
    assert format is not None
    return format


def read(format: ToolFormat, reply: str, sizes: list[int]) -> list[NativeCall]:
    reader, whole, found = ToolCallReader(format, TOOLS), reply.encode(), []
    steps = itertools.cycle(sizes)
    at = 0
    while at < len(whole):
        size = next(steps)
        found += reader.feed(whole[at : at + size])
        at += size
    return found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_is_read_in_the_format_that_was_learned(name: str, call: NativeCall) -> None:
    write = FORMATS[name]
    assert read(learned(write), write(call), [3]) == [call]


@pytest.mark.parametrize("name", FORMATS)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_the_cuts_between_pieces_do_not_matter(name: str, sizes: list[int]) -> None:
    write = FORMATS[name]
    before = "" if name == "nothing before" else "I look. é "
    assert read(learned(write), before + write(CALLS[0]), sizes) == [CALLS[0]]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "nothing before"])
def test_several_calls_are_read_one_after_the_other(name: str) -> None:
    write = FORMATS[name]
    found = read(learned(write), f"{write(CALLS[0])}\n{write(CALLS[2])}", [7])
    assert [(call.name, call.arguments) for call in found] == [
        (call.name, call.arguments) for call in (CALLS[0], CALLS[2])
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_no_call_is_read_from_plain_words_or_for_an_unknown_tool(name: str) -> None:
    write = FORMATS[name]
    assert read(learned(write), "I could use [a tool] or {this}, (but) I do not > so.", [4]) == []
    assert read(learned(write), write(NativeCall("burn_all", {"place": "Rome"})), [4]) == []


@pytest.mark.parametrize("name", FORMATS)
@given(cut=st.integers(1, 200))
def test_a_call_that_is_not_complete_is_no_call(name: str, cut: int) -> None:
    write = FORMATS[name]
    whole = write(CALLS[0])
    part = whole[: min(cut, whole.find("true") if "true" in whole else whole.find("True"))]
    assert read(learned(write), part, [5]) == []


def test_a_template_that_writes_no_call_has_no_format() -> None:
    assert learn_tool_format("<|end|>\n<|assistant|>") is None
    assert learn_tool_format("") is None
