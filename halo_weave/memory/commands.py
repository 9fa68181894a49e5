"""What a tool call asks for, read out of its text. Whatever the text is, the answer is a command or a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args

from halo_weave.errors import BadInput
from halo_weave.memory.literals import NAME, Json, Reader

CONTEXT_TOKENS = 1000
RECENCY_BIAS = 0.3
CONTEXT_LIMIT = 8000


@dataclass(frozen=True, slots=True)
class Jq:
    """`jq 'PROGRAM' notes.json`, and with `> output` the result becomes the notes."""

    program: str
    write: bool = False


@dataclass(frozen=True, slots=True)
class SaveMemory:
    path: str
    content: Json
    context_tokens: int = CONTEXT_TOKENS


@dataclass(frozen=True, slots=True)
class QueryMemory:
    path: str


@dataclass(frozen=True, slots=True)
class QueryHeading:
    path: str = ""
    query: str | None = None
    recency_bias: float = RECENCY_BIAS


@dataclass(frozen=True, slots=True)
class ListMemory:
    path: str = ""


@dataclass(frozen=True, slots=True)
class DeleteMemory:
    path: str
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class InjectMemory:
    path: str


Call = SaveMemory | QueryMemory | QueryHeading | ListMemory | DeleteMemory | InjectMemory
Command = Jq | Call


def plain(name: str) -> str:
    """`save_memory`, `saveMemory` and `SaveMemory` are the same tool."""
    return name.replace("_", "").lower()


TOOLS: dict[str, type[Call]] = {plain(kind.__name__): kind for kind in get_args(Call)}
TOOLS |= {"querymemoryheading": QueryHeading, "injectmemorycontext": InjectMemory}
KNOWN = "jq, save_memory, query_memory, query_heading, list_memory, delete_memory, inject_memory"

JQ = re.compile(r"jq\s+(?P<flags>(?:-{1,2}[\w-]+\s+)*)(?P<rest>\S.*)", re.DOTALL)
FILE = re.compile(r"\s*(?P<file>[\w./-]+)\s*(?:>\s*(?P<target>[\w./-]+)\s*)?")
NOTES, OUTPUTS = "notes.json", ("output", "notes.json", "output.json")
HARMLESS = {
    "-r",
    "-c",
    "-M",
    "-rc",
    "-cr",
    "--raw-output",
    "--compact-output",
}  # the answer is compact anyway


def parse(text: str) -> Command:
    """The command in a call's text. BadInput says in a sentence what is wrong with it."""
    text = text.strip()
    if re.match(r"jq(?:\s|$)", text):
        return parse_jq(text)
    return parse_call(text)


def parse_jq(text: str) -> Jq:
    match = JQ.fullmatch(text)
    if match is None:
        raise BadInput(f"A jq command looks like: jq '.topics' {NOTES}")
    if unknown := [flag for flag in match["flags"].split() if flag not in HARMLESS]:
        raise BadInput(f"jq takes no options here; leave out {unknown[0][:40]}.")
    program, tail = split_program(match["rest"])
    place = FILE.fullmatch(tail)
    if place is None:
        raise BadInput(f"After the program in quotes comes {NOTES}, and > output to write.")
    if place["file"].removeprefix("./") != NOTES:
        raise BadInput(f"There is one file, {NOTES}.")
    target = place["target"]
    if target is not None and target.removeprefix("./") not in OUTPUTS:
        raise BadInput("To write, end the command with > output.")
    return Jq(program, target is not None)


def split_program(rest: str) -> tuple[str, str]:
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


def parse_call(text: str) -> Call:
    text = text.removesuffix(";").removeprefix("await ")
    reader = Reader(text)
    if text.startswith("{"):
        name, places, named = described_call(reader)
    else:
        match = NAME.match(text)
        if match is None:
            raise BadInput(f"This is no tool. Known: {KNOWN}.")
        name = match.group()
        reader.at = match.end()
        if plain(name) not in TOOLS:
            raise BadInput(f"There is no tool {name[:40]}. Known: {KNOWN}.")
        places, named = reader.arguments()
    reader.end()
    if plain(name) not in TOOLS:
        raise BadInput(f"There is no tool {name[:40]}. Known: {KNOWN}.")
    return bound(TOOLS[plain(name)], name, places, named)


def described_call(reader: Reader) -> tuple[str, list[Json], Mapping[str, Json]]:
    """`{"name": "query_memory", "arguments": {"path": "A/B"}}`, as many models have learnt it."""
    called = reader.value()
    name = called.get("name")
    arguments = called.get("arguments", called.get("parameters", {}))
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadInput('A call looks like: query_memory("Path/Heading")')
    return name, [], arguments


def bound(kind: type[Call], name: str, places: list[Json], named: Mapping[str, Json]) -> Call:
    """The arguments at their parameters, each of its right type."""
    parameters = {field.name: field for field in fields(kind)}
    if len(places) > len(parameters):
        raise BadInput(f"{name} takes {', '.join(parameters)}.")
    given: dict[str, Any] = dict(zip(parameters, places, strict=False))
    spelled = {plain(parameter): parameter for parameter in parameters}
    for word, value in named.items():
        parameter = spelled.get(plain(word))
        if parameter is None:
            raise BadInput(f"{name} has no {word[:40]}; it takes {', '.join(parameters)}.")
        if parameter in given:
            raise BadInput(f"{name} got its {parameter} twice.")
        given[parameter] = value
    for parameter, field in parameters.items():
        if parameter in given:
            given[parameter] = fitting(parameter, given[parameter])
        elif field.default is MISSING:
            raise BadInput(f"{name} needs its {parameter}.")
    return kind(**given)


def fitting(parameter: str, value: Json) -> Json:
    """The value for a parameter, which has the same meaning in every tool."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match parameter:
        case "path" if not isinstance(value, str):
            raise BadInput('A path is text in quotes, such as "Project/Goals".')
        case "query" if not isinstance(value, str | None):
            raise BadInput("A query is text in quotes.")
        case "recursive" if not isinstance(value, bool):
            raise BadInput("recursive is true or false.")
        case "recency_bias" if not number or not 0 <= value <= 1:
            raise BadInput("recency_bias is a number from 0 to 1.")
        case "context_tokens" if not number or value != int(value) or not 0 <= value <= CONTEXT_LIMIT:
            raise BadInput(f"context_tokens is a whole number from 0 to {CONTEXT_LIMIT}.")
        case "context_tokens":
            return int(value)
    return value
