"""One command of the AI's tools, as a value: made from the text of a call, or from a name and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halo_weave.errors import BadInput
from halo_weave.keepsakes.literals import NAME, Json, LiteralReader

CONTEXT_TOKENS = 1000
RECENCY_BIAS = 0.3
CONTEXT_LIMIT = 8000
_NEEDED = object()  # stands where a parameter has no default

# Each tool's parameters in their order, with their defaults.
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "jq": {"program": _NEEDED, "write": False},  # write: the result becomes the notes
    "save_memory": {"path": _NEEDED, "content": _NEEDED, "context_tokens": CONTEXT_TOKENS},
    "query_memory": {"path": _NEEDED, "page": 1},
    "query_heading": {"path": "", "query": None, "recency_bias": RECENCY_BIAS},
    "list_memory": {"path": ""},
    "delete_memory": {"path": _NEEDED, "recursive": False},
    "inject_memory": {"path": _NEEDED},
}
_KNOWN = ", ".join(TOOLS)

_JQ = re.compile(r"jq\s+(?P<flags>(?:-{1,2}[\w-]+\s+)*)(?P<rest>\S.*)", re.DOTALL)
_FILE = re.compile(r"\s*(?P<file>[\w./-]+)\s*(?:>\s*(?P<target>[\w./-]+)\s*)?")
_NOTES, _OUTPUTS = "notes.json", ("output", "notes.json", "output.json")
# Options of jq that make no difference here: the answer is compact anyway.
_HARMLESS = ("-r", "-c", "-M", "-rc", "-cr", "--raw-output", "--compact-output")


@dataclass(frozen=True, slots=True)
class Command:
    """A tool's name and all of its arguments, checked."""

    tool: str
    arguments: Mapping[str, Json]

    @classmethod
    def read(cls, text: str) -> Command:
        """The command in a call's text. BadInput says in a sentence what is wrong with it."""
        text = text.strip()
        if re.match(r"jq(?:\s|$)", text):
            return cls("jq", _read_jq(text))
        text = text.removesuffix(";").removeprefix("await ")
        reader = LiteralReader(text)
        places: Sequence[Json] = ()
        if text.startswith("{"):
            # `{"name": "query_memory", "arguments": {"path": "A/B"}}`, as many models have learnt it.
            called = reader.value()
            name, named = called.get("name"), called.get("arguments", called.get("parameters", {}))
            if not isinstance(name, str) or not isinstance(named, dict):
                raise BadInput('A call looks like: query_memory("Path/Heading")')
        else:
            match = NAME.match(text)
            if match is None:
                raise BadInput(f"This is no tool. Known: {_KNOWN}.")
            name, reader.at = match.group(), match.end()
            _tool(name)  # before its arguments are read: what is no tool needs no better arguments
            places, named = reader.arguments()
        reader.end()
        return cls.of(name, named, places)

    @classmethod
    def of(cls, name: str, named: Mapping[str, Json], places: Sequence[Json] = ()) -> Command:
        """The arguments, with names and in their places, each checked; those left out have their defaults."""
        tool = _tool(name)
        parameters = TOOLS[tool]
        if len(places) > len(parameters):
            raise BadInput(f"{name} takes {', '.join(parameters)}.")
        given: dict[str, Json] = dict(zip(parameters, places, strict=False))
        spelled = {_plain(parameter): parameter for parameter in parameters}
        for word, value in named.items():
            parameter = spelled.get(_plain(word))
            if parameter is None:
                raise BadInput(f"{name} has no {word[:40]}; it takes {', '.join(parameters)}.")
            if parameter in given:
                raise BadInput(f"{name} got its {parameter} twice.")
            given[parameter] = value
        for parameter, default in parameters.items():
            if parameter not in given and default is _NEEDED:
                raise BadInput(f"{name} needs its {parameter}.")
        return cls(tool, {one: _fitting(one, given.get(one, default)) for one, default in parameters.items()})

    def __str__(self) -> str:
        """As a model writes it."""
        values = (json.dumps(value, ensure_ascii=False) for value in self.arguments.values())
        return f"{self.tool}({', '.join(values)})"


def _plain(name: str) -> str:
    """`save_memory`, `saveMemory` and `SaveMemory` are the same tool."""
    return name.replace("_", "").lower()


_SPELLED = {_plain(name): name for name in TOOLS}
_SPELLED |= {"querymemoryheading": "query_heading", "injectmemorycontext": "inject_memory"}


def _tool(name: str) -> str:
    if _plain(name) not in _SPELLED:
        raise BadInput(f"There is no tool {name[:40]}. Known: {_KNOWN}.")
    return _SPELLED[_plain(name)]


def _fitting(parameter: str, value: Json) -> Json:
    """The value for a parameter, which has the same meaning in every tool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match parameter:
        case "path" if not isinstance(value, str):
            raise BadInput('A path is text in quotes, such as "Project/Goals".')
        case "program" if not isinstance(value, str):
            raise BadInput("A jq program is text in quotes.")
        case "query" if not isinstance(value, str | None):
            raise BadInput("A query is text in quotes.")
        case "recursive" | "write" if not isinstance(value, bool):
            raise BadInput(f"{parameter} is true or false.")
        case "recency_bias" if not number or not 0 <= value <= 1:
            raise BadInput("recency_bias is a number from 0 to 1.")
        case "context_tokens" if not number or not 0 <= value <= CONTEXT_LIMIT or value != int(value):
            raise BadInput(f"context_tokens is a whole number from 0 to {CONTEXT_LIMIT}.")
        case "page" if not number or value < 1 or value != int(value):
            raise BadInput("page is a whole number; the first page is 1.")
        case "context_tokens" | "page":
            return int(value)
    return value


def _read_jq(text: str) -> dict[str, Json]:
    """`jq 'PROGRAM' notes.json`, and with `> output` the result becomes the notes."""
    match = _JQ.fullmatch(text)
    if match is None:
        raise BadInput(f"A jq command looks like: jq '.topics' {_NOTES}")
    if unknown := [flag for flag in match["flags"].split() if flag not in _HARMLESS]:
        raise BadInput(f"jq takes no options here; leave out {unknown[0][:40]}.")
    program, tail = _split_program(match["rest"])
    place = _FILE.fullmatch(tail)
    if place is None:
        raise BadInput(f"After the program in quotes comes {_NOTES}, and > output to write.")
    if place["file"].removeprefix("./") != _NOTES:
        raise BadInput(f"There is one file, {_NOTES}.")
    target = place["target"]
    if target is not None and target.removeprefix("./") not in _OUTPUTS:
        raise BadInput("To write, end the command with > output.")
    return {"program": program, "write": target is not None}


def _split_program(rest: str) -> tuple[str, str]:
    """The program and what follows it. The last quote closes: a model does not escape those within as a shell wants."""
    quote = rest[0]
    if quote not in "'\"":
        program, _, tail = rest.partition(" ")
        return program, tail
    close = rest.rfind(quote, 1)
    if close < 1:
        raise BadInput("The quote of the jq program is not closed.")
    program = rest[1:close]
    if quote == "'":
        return program.replace("'\\''", "'"), rest[close + 1 :]
    return re.sub(r'\\(["\\$`])', r"\1", program), rest[close + 1 :]
