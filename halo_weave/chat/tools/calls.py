"""Tool calls in a reply, in our own format and in that of the chat template: detect them, parse them, write their results."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from halo_weave.chat.prompt import PromptBuilder
from halo_weave.chat.reply import ReplyKind, generation_prompt
from halo_weave.core.tokens import ChunkKey
from halo_weave.core.validation import MAX_JSON_DEPTH, is_shallow
from halo_weave.engines.base import Engine
from halo_weave.engines.templates.messages import ChatMessage, NativeCall
from halo_weave.engines.templates.tool_calls import PROBE_CALL, ToolCallReader, ToolCallSplitter
from halo_weave.errors import BadInput

Json = Any  # a value that json.loads returns

SPACE = re.compile(r"\s*")
NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
NAME = re.compile(r"[A-Za-z_$][\w$]*")
PLAIN = re.compile(r"""[^\\'"`]+""")
HEX = {"x": 2, "u": 4, "U": 8}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": ""}
WORDS = {"true": True, "True": True, "false": False, "False": False}
WORDS_FOR_NOTHING = ("null", "None", "undefined")
DIGITS = 300  # longer numbers are not meant as numbers


class LiteralReader:
    """Reads literals from a text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._comma = False

    # Arguments of a call

    def arguments(self) -> tuple[list[Json], dict[str, Json]]:
        """Read `(1, "a", key=2)`, with `=` or `:` after a key, up to the closing parenthesis."""
        self._expect("(")
        places: list[Json] = []
        named: dict[str, Json] = {}
        for _ in self._items(")"):
            name = self._keyword()
            if name in named:
                raise self._broken(f"{name} is given twice")
            if name is not None:
                named[name] = self.value()
            elif named:
                raise self._broken("a value without a name follows one with a name")
            else:
                places.append(self.value())
        return places, named

    def _keyword(self) -> str | None:
        start = self._space()
        name = NAME.match(self.text, start)
        if name is None:
            return None
        self.at = name.end()
        if self._skip("=") or self._skip(":"):
            return name.group()
        self.at = start
        return None

    # Values

    def value(self, depth: int = 0) -> Json:
        if depth > MAX_JSON_DEPTH:
            raise self._broken(f"it is nested more than {MAX_JSON_DEPTH} deep")
        start = self._space()
        mark = self.text[start : start + 1]
        if mark in ('"', "'", "`") and mark:
            return self._strings()
        if mark == "{":
            return self._object(depth)
        if mark in ("[", "(") and mark:
            return self._list(depth)
        if number := NUMBER.match(self.text, start):
            self.at = number.end()
            return self._number(number.group().replace("_", ""))
        if name := NAME.match(self.text, start):
            if name.group() not in WORDS and name.group() not in WORDS_FOR_NOTHING:
                raise self._broken(f"{name.group()[:40]} is not a value; put text in quotes")
            self.at = name.end()
            return WORDS.get(name.group())
        raise self._broken("a value is missing")

    def _number(self, text: str) -> Json:
        if len(text) > DIGITS:
            raise self._broken("a number is too long")
        if text.lstrip("+-").isdigit():
            return int(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise self._broken("a number is too large")
        return number

    def _list(self, depth: int) -> Json:
        """Read a list. A tuple is one, too; a single value in parentheses is the value itself."""
        closing = {"[": "]", "(": ")"}[self.text[self.at]]
        self.at += 1
        values = [self.value(depth + 1) for _ in self._items(closing)]
        return values[0] if closing == ")" and len(values) == 1 and not self._comma else values

    def _object(self, depth: int) -> dict[str, Json]:
        self.at += 1
        found: dict[str, Json] = {}
        for _ in self._items("}"):
            key = self._key()
            self._expect(":")
            found[key] = self.value(depth + 1)
        return found

    def _items(self, closing: str) -> Iterator[None]:
        """Yield once for each item, which the caller reads; items are separated by commas, and one may follow the last."""
        comma = True
        while not self._skip(closing):
            if not comma:
                raise self._broken(f"a comma or {closing} is missing")
            yield
            comma = self._skip(",")
        self._comma = comma  # whether a comma follows the last item

    def _key(self) -> str:
        start = self._space()
        if self.text[start : start + 1] in ('"', "'", "`"):
            return self._string()
        name = NAME.match(self.text, start) or NUMBER.match(self.text, start)
        if name is None:
            raise self._broken("a key is missing")
        self.at = name.end()
        return name.group()

    def _strings(self) -> str:
        """Read one string, or several adjacent ones, as in Python."""
        text = self._string()
        while self.text[self._space() : self.at + 1] in ('"', "'") and self.at < len(self.text):
            text += self._string()
        return text

    def _string(self) -> str:
        mark = self.text[self.at]
        if self.text.startswith(mark * 3, self.at) and mark != "`":
            mark *= 3
        self.at += len(mark)
        parts: list[str] = []
        while not self.text.startswith(mark, self.at):
            if plain := PLAIN.match(self.text, self.at):
                parts.append(plain.group())
                self.at = plain.end()
            elif self.at >= len(self.text):
                raise self._broken("a quote is not closed")
            elif self.text[self.at] == "\\":
                parts.append(self._escape())
            else:  # another kind of quote
                parts.append(self.text[self.at])
                self.at += 1
        self.at += len(mark)
        # Two escapes may be a surrogate pair; a single surrogate cannot be stored.
        return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _escape(self) -> str:
        kind = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if kind in HEX:
            return chr(self._hex(HEX[kind]))
        if kind in ESCAPES:
            return ESCAPES[kind]
        return kind if kind in ("\\", "/", '"', "'", "`") else "\\" + kind

    def _hex(self, length: int) -> int:
        digits = self.text[self.at : self.at + length]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digits) or int(digits, 16) > 0x10FFFF:
            raise self._broken("an escape in a string is broken")
        self.at += length
        return int(digits, 16)

    # Steps

    def _space(self) -> int:
        match = SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _skip(self, mark: str) -> bool:
        if not self.text.startswith(mark, self._space()):
            return False
        self.at += len(mark)
        return True

    def _expect(self, mark: str) -> None:
        if not self._skip(mark):
            raise self._broken(f"{mark} is missing")

    def end(self) -> None:
        if self._space() < len(self.text):
            raise self._broken("there is more after its end")

    def _broken(self, problem: str) -> BadInput:
        return BadInput(f"This cannot be read at character {self.at + 1}: {problem}.")


def json_size(value: Json) -> int:
    """Bytes of a value as compact JSON. Raises an error if JSON cannot hold it, or if it is nested too deeply."""
    if not is_shallow(value):
        raise BadInput(f"This is nested more than {MAX_JSON_DEPTH} deep, so it cannot be kept.")
    try:
        return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())
    except (TypeError, ValueError):
        raise BadInput("This cannot be kept as JSON: a number is too large, or text is broken.") from None


CONTEXT_TOKENS = 1000
RECENCY_BIAS = 0.3
CONTEXT_LIMIT = 8000
_NEEDED = object()  # marks a parameter without a default

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
# Options of jq that are ignored: the output is compact anyway.
_HARMLESS = ("-r", "-c", "-M", "-rc", "-cr", "--raw-output", "--compact-output")


@dataclass(frozen=True, slots=True)
class Command:
    """A tool's name and its checked arguments."""

    tool: str
    arguments: Mapping[str, Json]

    @classmethod
    def read(cls, text: str) -> Command:
        """Parse the text of a call. Raises BadInput with a sentence."""
        text = text.strip()
        if re.match(r"jq(?:\s|$)", text):
            return cls("jq", _read_jq(text))
        text = text.removesuffix(";").removeprefix("await ")
        reader = LiteralReader(text)
        places: Sequence[Json] = ()
        if text.startswith("{"):
            # `{"name": "query_memory", "arguments": {"path": "A/B"}}`, as many models were trained to write.
            called = reader.value()
            name, named = called.get("name"), called.get("arguments", called.get("parameters", {}))
            if not isinstance(name, str) or not isinstance(named, dict):
                raise BadInput('A call looks like: query_memory("Path/Heading")')
        else:
            match = NAME.match(text)
            if match is None:
                raise BadInput(f"This is no tool. Known: {_KNOWN}.")
            name, reader.at = match.group(), match.end()
            _tool(
                name
            )  # checked before the arguments: for an unknown tool, errors in the arguments do not matter
            places, named = reader.arguments()
        reader.end()
        return cls.of(name, named, places)

    @classmethod
    def of(cls, name: str, named: Mapping[str, Json], places: Sequence[Json] = ()) -> Command:
        """Check the arguments, by name or position; missing ones get their defaults."""
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
        """The command as a model writes it."""
        values = (json.dumps(value, ensure_ascii=False) for value in self.arguments.values())
        return f"{self.tool}({', '.join(values)})"


def _plain(name: str) -> str:
    """The name in a form in which `save_memory`, `saveMemory` and `SaveMemory` are equal."""
    return name.replace("_", "").lower()


_SPELLED = {_plain(name): name for name in TOOLS}
_SPELLED |= {"querymemoryheading": "query_heading", "injectmemorycontext": "inject_memory"}


def _tool(name: str) -> str:
    if _plain(name) not in _SPELLED:
        raise BadInput(f"There is no tool {name[:40]}. Known: {_KNOWN}.")
    return _SPELLED[_plain(name)]


def _fitting(parameter: str, value: Json) -> Json:
    """The checked value of a parameter; a parameter's name means the same in every tool."""
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
    """Parse `jq 'PROGRAM' notes.json`; with `> output` the result becomes the notes."""
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
    """The jq program and the rest. The last quote closes it: models do not escape inner quotes as a shell requires."""
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


_OPEN, _CLOSE = "<tool>", "</tool>"
CALL_LIMIT = 100_000  # characters; a longer call is not kept, and refused when it ends
_FENCES = ("```", "~~~")
_LIKE_A_COMMAND = re.compile(r"\s*(?:jq\s|[A-Za-z]\w*\s*\()")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The text between the tags of a tool call."""

    command: str
    too_long: bool = False


class ToolCallDetector:
    """Finds tool calls in a reply that is fed piece by piece, as soon as their closing tag is complete.

    A tag inside a code fence or right after a backtick is an example, not a call. The first `</tool>` ends a call;
    fences inside a call have no meaning.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tail = ""  # the last characters: as many as a tag has, and one more
        self._line = ""  # the first characters of the line, without its indent
        self._fence = ""  # the marks of the open fence
        self._body: list[str] | None = None  # of the open call
        self._too_long = False

    def feed(self, piece: str | bytes) -> tuple[ToolCall, ...]:
        """Add a piece of the reply. Returns the calls that it completes: usually none."""
        text = self._decoder.decode(piece) if isinstance(piece, bytes) else piece
        calls = (self._step(character) for character in text)
        return tuple(call for call in calls if call is not None)

    def _step(self, character: str) -> ToolCall | None:
        self._tail = (self._tail + character)[-len(_CLOSE) :]
        fence = self._meets_fence(character)
        if self._body is not None:
            return self._step_inside(self._body, character, fence)
        if fence and self._fence in ("", fence):
            self._fence = "" if self._fence else fence
        elif not self._fence and self._tail.endswith(_OPEN) and not self._tail.startswith("`"):
            self._begin()
        return None

    def _step_inside(self, body: list[str], character: str, fence: str) -> ToolCall | None:
        if len(body) < CALL_LIMIT:
            body.append(character)
        else:
            self._too_long = True
        if self._tail == _CLOSE:
            self._body = None
            whole = "".join(body)
            command = whole if self._too_long else whole[: -len(_CLOSE)]
            return ToolCall(command.strip(), self._too_long)
        # "The <tool> tag …" is prose: it neither hides the call after it nor turns an example into one.
        prose = fence or self._tail.endswith(_OPEN)
        if prose and not _LIKE_A_COMMAND.match("".join(body)):
            if fence:
                self._body, self._fence = None, fence
            else:
                self._begin()
        return None

    def _begin(self) -> None:
        self._body, self._too_long = [], False

    def _meets_fence(self, character: str) -> str:
        """Note a code fence, if this character is the third of its marks at the start of a line."""
        if character == "\n":
            self._line = ""
        elif len(self._line) < 3 and (self._line or not character.isspace()):
            self._line += character
            if self._line in _FENCES:
                return self._line
        return ""


TOOL_MARK = "⚙️【"  # begins a tool's output: terminal and page recognise it by this
COMMAND_LENGTH = 200
RESULT_LENGTH = 1500
_MARKS = "⚙【】✓❌→"
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_TAG = re.compile(r"<(?=/?tool>)")
_ESCAPED = re.compile(rf"[{_MARKS}\x7f-\x9f\u2028\u2029]")
_SHOWN_CHANGES = 8
_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a command."""

    command: str
    answer: str  # a value on one line, or the reason of a refusal as a sentence
    ok: bool = True
    to_resurrect: tuple[ChunkKey, ...] = ()  # chunks wanted in the window, the most relevant first

    @property
    def text(self) -> str:
        """The output that the model reads."""
        answer = self.answer if self.ok else f"❌ {shortened(_one_line(self.answer), RESULT_LENGTH)}"
        return f"{TOOL_MARK}{shortened(_one_line(self.command), COMMAND_LENGTH)}】→ {answer}"


def shortened(text: str, limit: int) -> str:
    """The text, cut to so many characters, with the number of characters that were cut."""
    more = len(text) - limit
    return text if more <= 0 else f"{text[:limit]}… ({more} more characters)"


def compact_json(value: Json) -> str:
    """JSON on one line. Delimiters and tags inside strings are escaped; it parses to the same value."""
    return escaped_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def escaped_json(text: str) -> str:
    """JSON text in which everything that could be taken for the frame of a result is escaped."""
    return _TAG.sub(r"\\u003c", _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def json_changes(old: Json, new: Json) -> str:
    """The differences between two JSON documents, as lines of `.path = value`."""
    found = [*_differences(old, new, "")]
    if not found:
        return "nothing changed"
    more = len(found) - _SHOWN_CHANGES
    return ", ".join(found[:_SHOWN_CHANGES]) + (f", … ({more} more changes)" if more > 0 else "")


def _one_line(text: str) -> str:
    """Text that cannot be taken for the frame of a result: without line breaks, delimiters and tags."""
    text = _BREAKS.sub(" ", text).translate(dict.fromkeys(map(ord, _MARKS)))
    return _TAG.sub("", text).strip()


def _differences(old: Json, new: Json, path: str) -> Iterator[str]:
    """The smallest parts that differ. A list is compared item by item unless it got shorter."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in new.items():
            if key not in old:
                yield f"{path}{_step(key)} = {compact_json(value)}"
            else:
                yield from _differences(old[key], value, path + _step(key))
        for key in old:
            if key not in new:
                yield f"deleted {path}{_step(key)}"
    elif isinstance(old, list) and isinstance(new, list) and old and len(old) <= len(new):
        for i, value in enumerate(new):
            if i >= len(old):
                yield f"{path or '.'}[{i}] = {compact_json(value)}"
            else:
                yield from _differences(old[i], value, f"{path or '.'}[{i}]")
    elif type(old) is not type(new) or old != new:  # 1 and true are equal in Python, but not in JSON
        yield f"{path or '.'} = {compact_json(new)}"


def _step(key: str) -> str:
    return f".{key}" if _KEY.fullmatch(key) else f".[{compact_json(key)}]"


Parts = list[tuple[ReplyKind, str]]


class NativeTools:
    """The tool calls of one reply. A message may hold several calls, one after the other."""

    def __init__(self, engine: Engine, prompt_builder: PromptBuilder, effort: str | None) -> None:
        self._engine, self._prompt_builder, self._effort = engine, prompt_builder, effort
        self._after = b""  # what the model has written after its last call

    def call_splitter(self, tools: Sequence[Mapping[str, Any]]) -> ToolCallSplitter | None:
        """A splitter that finds calls of these tools in a reply; None if the template has no format for calls."""
        facts = self._engine.facts
        if facts.tools is None or not tools:
            return None
        prompt = generation_prompt(self._engine, self._effort)
        return ToolCallSplitter(facts.tools, tools, header=prompt.strip().rpartition("\n")[2])

    def note_call(self, rest: str) -> None:
        """Record that a call is complete; `rest` is the text after it in its last token."""
        self._after = rest.encode()

    @property
    def several(self) -> bool:
        """Whether the template writes several calls one after the other."""
        return bool(self._between)

    def continues_calls(self, piece: bytes) -> bool:
        """Whether the next token may belong to a further call of the same message."""
        text, between = _squashed(self._after + piece), self._between
        if not between.startswith(text) and not text.startswith(between):
            return False
        self._after += piece
        return True

    def format_results(self, calls: Sequence[NativeCall], answers: Sequence[str]) -> Parts | None:
        """The results of the calls as the template writes them, all in one message or each in its own."""
        together = self._round_trip(calls, answers)
        if together or len(calls) == 1:
            return together
        each = [self._round_trip([call], [text]) for call, text in zip(calls, answers, strict=True)]
        return [part for one in each if one for part in one] or None

    def _round_trip(self, calls: Sequence[NativeCall], answers: Sequence[str]) -> Parts | None:
        """The template's text around the tool output, and the output, up to where the model continues. None if the
        template has no such form."""
        facts, tools = self._engine.facts, self._prompt_builder.tools
        talk = [ChatMessage("user", "a"), ChatMessage("assistant", "", calls=tuple(calls))]
        talk += [ChatMessage("tool", text, answers=call) for call, text in zip(calls, answers, strict=True)]
        pieces = self._engine.chat(talk, effort=self._effort, tools=tools).pieces

        def places(message: int) -> list[int]:
            return [i for i, one in enumerate(pieces) if one.part == "content" and one.message == message]

        asked, said = places(0), [places(2 + number) for number in range(len(calls))]
        if not asked or not all(said) or facts.tools is None:
            return None
        before = "".join(piece.text for piece in pieces[asked[-1] + 1 : said[0][0]])
        reader = ToolCallReader(facts.tools, tools, only_declared=False)
        if facts.tools.open and len(reader.feed(before)) < len(calls):
            return None
        frame, written = reader.rest if facts.tools.open else before, self._after.decode(errors="replace")
        frame = frame.removeprefix(written) if not written.strip() or frame.startswith(written) else frame
        parts: Parts = [("mark", frame)]
        for own, end in zip(said, [*(one[0] for one in said[1:]), len(pieces)], strict=True):
            parts.append(("tool", "".join(pieces[i].text for i in own)))
            parts.append(("mark", "".join(piece.text for piece in pieces[own[-1] + 1 : end])))
        return parts

    @cached_property
    def _between(self) -> bytes:
        return _squashed(_between_calls(self._engine, self._prompt_builder, self._effort).encode())


def _between_calls(engine: Engine, prompt_builder: PromptBuilder, effort: str | None) -> str:
    """The template's text between two calls of one message; empty if it allows only one, or writes them as a list."""
    facts, other = (
        engine.facts,
        NativeCall(PROBE_CALL.name, {**PROBE_CALL.arguments, "qzWhole": 732}, "call00002"),
    )
    if facts.tools is None or not facts.tools.open:
        return ""
    talk = [ChatMessage("user", "a"), ChatMessage("assistant", "", calls=(PROBE_CALL, other))]
    talk += [ChatMessage("tool", "b", answers=call) for call in (PROBE_CALL, other)]
    pieces = engine.chat(talk, effort=effort, tools=prompt_builder.tools).pieces
    asked = [i for i, piece in enumerate(pieces) if piece.part == "content" and piece.message == 0]
    text = "".join(piece.text for piece in pieces[asked[-1] + 1 :]) if asked else ""
    reader, ends = ToolCallReader(facts.tools, only_declared=False), list[int]()
    for place, letter in enumerate(text):
        ends += [place + 1 for call in reader.feed(letter) if call.name == PROBE_CALL.name]
    if len(ends) != 2 or ends[0] == ends[1]:
        return ""
    rest = text[ends[0] : ends[1]]
    mark = rest.find(facts.tools.open)
    return rest[: mark + len(facts.tools.open)] if mark >= 0 else ""


def _squashed(raw: bytes) -> bytes:
    """The text without white space, which models write in different ways."""
    return b"".join(raw.split())
