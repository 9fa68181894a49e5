"""Tool calls in the model's own format: learned from how its template writes a call, and parsed while a reply streams."""

from __future__ import annotations

import ast
import codecs
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from halo_weave.engines.templates.chat_template import common_prefix
from halo_weave.engines.templates.messages import NativeCall

PROBE_CALL = NativeCall("qzTool", {"qzText": "qzValue", "qzWhole": 731})
_TEXT, _WHOLE = "qzValue", "731"
_MAX_CALL_LENGTH = 100_000  # characters of a reply that are searched for calls
_NAME = r"[\w.\-]+"
_DECODER = json.JSONDecoder(strict=False)
TAG = re.compile(r"<[^<>\s][^<>\n]{0,80}>|<[|｜][^<>\n]{0,80}[|｜]>|\[/?[A-Z_]{2,}\]")

Style = Literal["json", "python", "mapping", "tags"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes a tool call."""

    style: Style
    open: str  # the last mark before a call; empty if a call is the whole reply
    name_key: str = ""  # JSON: where the name stands; empty: before the JSON, or as the only key
    arguments_key: str = ""
    name_first: bool = False  # JSON: the name stands before the arguments
    quote: str = ""  # mapping: what stands around texts
    key_open: str = ""  # tags: before a key,
    between: tuple[str, str] = ("", "")  # between key and value: of a text, of anything else,
    value_close: str = ""  # after a value,
    close: str = ""  # and after the last one
    ids: str = ""  # how calls are numbered, if the template writes no name but the number


def learn_tool_format(call: str, ids: str = "") -> ToolFormat | None:
    """The format, from what a template writes for the call `PROBE` between the header of an answer and its end."""
    return _learn_json(call, ids) or _learn_other(call)


class ToolCallReader:
    """Finds calls in a reply that is fed piece by piece, as soon as they are complete."""

    def __init__(
        self,
        format: ToolFormat,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        only_declared: bool = True,
        made: int = 0,
    ) -> None:
        """`tools`: as declared to the template. `only_declared`: skip calls of other tools. `made`: number of earlier
        calls, for ids."""
        self._format, self._only_declared = format, only_declared
        self._declared = {function["name"]: function for function in map(_function, tools)}
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._at = 0
        self._made = made

    def feed(self, piece: str | bytes) -> tuple[NativeCall, ...]:
        text = self._decoder.decode(piece) if isinstance(piece, bytes) else piece
        if len(self._text) > _MAX_CALL_LENGTH:
            return ()
        self._text += text
        # Only these characters end a call.
        return tuple(self._calls()) if any(end in text for end in ")}]>") or _ends(text, self._format) else ()

    @property
    def rest(self) -> str:
        """The text after the last call that was found."""
        return self._text[self._at :]

    def _calls(self) -> Iterator[NativeCall]:
        while True:
            start = self._start()
            if start < 0:
                return
            found = _READERS[self._format.style](self._format, self._text, start, self._types)
            if found is None:
                return
            calls, end = found
            self._at = max(end, self._at + 1)
            for name, arguments in calls:
                if self._only_declared and self._declared and name not in self._declared:
                    continue
                self._made += 1
                yield NativeCall(name, arguments, self._id(name))

    def _start(self) -> int:
        """Where the next call begins, after its opening delimiter."""
        mark = self._format.open
        if not mark:
            space = len(self._text) - len(self._text.lstrip())
            return space if self._at == 0 else -1
        at = self._text.find(mark, self._at)
        return at + len(mark) if at >= 0 else -1

    def _types(self, name: str) -> Mapping[str, Any]:
        parameters = self._declared.get(name, {}).get("parameters") or {}
        properties = parameters.get("properties") or {}
        return properties if isinstance(properties, dict) else {}

    def _id(self, name: str) -> str:
        number = self._made - 1
        if self._format.ids:
            return self._format.ids.format(name=name, number=number)
        return f"call{number:05d}"


class ToolCallSplitter:
    """Splits an answer, fed in pieces of bytes, into text and the delimiters that make up calls; all bytes are
    returned.

    What may be the beginning of a call is held back until that is decided; what only looks like a call is part of the
    answer. Small models forget the delimiter, so JSON of a declared tool at the beginning of the answer is a call, too:
    bare, in a fence or in a tag.
    """

    def __init__(
        self, format: ToolFormat, tools: Sequence[Mapping[str, Any]] = (), *, header: str = ""
    ) -> None:
        """`header`: how a message of the model begins. Right before a call it is not part of the answer."""
        self._format, self._tools = format, tools
        mark, lead = format.open.encode(), header.strip().encode()
        leads = [lead, lead + b" ", lead + b"\n", b""] if lead else [b""]
        self._opens = [before + mark for before in leads] if mark else []
        self._ends = [end.encode() for end in _counterparts(format.open)]
        self._held = b""
        self._call: ToolCallReader | _LooseReader | None = None  # of the call that is being written
        self._names = frozenset(_function(tool).get("name", "") for tool in tools)
        self._found: list[NativeCall] = []
        self._said = False
        self._made = 0
        self.rest = ""  # what the model has written after its last call

    def feed(self, piece: bytes) -> list[tuple[Literal["answer", "mark"], bytes]]:
        self._held += piece
        if self._call is None:
            said = self._held[: self._begin()]
            self._said |= bool(said.strip())
            self._held = self._held[len(said) :]
            piece = self._held
            told: list[tuple[Literal["answer", "mark"], bytes]] = [("answer", said)] if said else []
            return told if self._call is None else [*told, *self._go_on(self._call, piece)]
        return self._go_on(self._call, piece)

    def finish(self) -> list[tuple[Literal["answer", "mark"], bytes]]:
        """What was held back, when the reply has ended or a thought begins: it is not a call."""
        held, self._held, self._call = self._held, b"", None
        return [("answer", held)] if held else []

    def take_calls(self) -> list[NativeCall]:
        found, self._found = self._found, []
        return found

    def _begin(self) -> int:
        """How many of the held-back bytes are certainly not a call; a call may begin after them."""
        if not self._said and self._opens and self._format.name_key and self._names:
            loose = _LOOSE.match(self._held)
            if loose and not any(
                loose[1].startswith(mark[: len(loose[1])]) for mark in self._opens if loose[1]
            ):
                if loose[2]:
                    self._call = _LooseReader(self._format, self._names)
                return 0
        if not self._opens:  # a call is the whole reply
            start = self._held.lstrip()
            if not self._said and not start:
                return 0
            if not self._said and start[:1] in (b"{", b"["):
                self._call = ToolCallReader(self._format, self._tools, only_declared=False, made=self._made)
                return 0
            return len(self._held)
        places = [at for at in map(self._held.find, self._opens) if at >= 0]
        if places:
            self._call = ToolCallReader(self._format, self._tools, only_declared=False, made=self._made)
            return min(places)
        return len(self._held) - max(partial_match_length(self._held, mark) for mark in self._opens)

    def _go_on(
        self, call: ToolCallReader | _LooseReader, piece: bytes
    ) -> list[tuple[Literal["answer", "mark"], bytes]]:
        calls = call.feed(piece)
        if calls:
            self._found += calls
            self._made += len(calls)
            self.rest = call.rest
            held, self._held, self._call = self._held, b"", None
            return [("mark", held)]
        hopeless = isinstance(call, _LooseReader) and call.hopeless
        if hopeless or len(self._held) > _MAX_CALL_LENGTH or any(end in self._held for end in self._ends):
            return self.finish()
        return []


_LOOSE = re.compile(rb"\s*(`{1,3}|```\w*\s*|<\w*|<\w+>\s*|)(\{.*)?\Z", re.DOTALL)


class _LooseReader:
    """Reads one call in JSON without its delimiters."""

    def __init__(self, format: ToolFormat, names: Collection[str]) -> None:
        self._format, self._names = format, names
        self._raw = b""
        self.rest = ""
        self.hopeless = False  # it is JSON, but not a call

    def feed(self, piece: bytes) -> tuple[NativeCall, ...]:
        self._raw += piece
        if b"}" not in piece:
            return ()
        text = self._raw.decode(errors="replace")
        for start in (text.find("{"), text.find("{{") + 1):
            try:
                value, end = _DECODER.raw_decode(text, start)
            except ValueError:
                continue
            arguments = _as_mapping(value.get(self._format.arguments_key, {}))
            name = value.get(self._format.name_key)
            if name in self._names and arguments is not None:
                self.rest = text[end:].lstrip("}")
                return (NativeCall(name, arguments),)
            self.hopeless = True
        return ()


def _counterparts(mark: str) -> list[str]:
    """What would close a delimiter: if it comes before the call could be parsed, there is no call."""
    if re.fullmatch(r"<\w+>", mark):
        return [f"</{mark[1:]}"]
    return [f"[/{mark[1:]}"] if re.fullmatch(r"\[[A-Z_]+\]", mark) else []


def partial_match_length(text: bytes, mark: bytes) -> int:
    """How many of the last bytes may be the beginning of the delimiter."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


_Found = tuple[list[tuple[str, dict[str, Any]]], int] | None


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function", tool)
    return function if isinstance(function, Mapping) else {"name": ""}


def _ends(text: str, format: ToolFormat) -> bool:
    return bool(format.close) and format.close[-1] in text


# JSON


def _learn_json(call: str, ids: str) -> ToolFormat | None:
    for match in re.finditer(r"[\[{]", call):
        try:
            value, _ = _DECODER.raw_decode(call, match.start())
        except ValueError:
            continue
        entry = value[0] if isinstance(value, list) and value else value
        if not isinstance(entry, dict):
            continue
        before = call[: match.start()]
        if entry == PROBE_CALL.arguments:
            at = before.rfind(PROBE_CALL.name)
            if at < 0:
                return None
            return ToolFormat("json", _last_mark(before[:at]), name_first=True, ids=ids)
        name_key = next((key for key, inner in entry.items() if inner == PROBE_CALL.name), "")
        arguments_key = next(
            (key for key, inner in entry.items() if _as_mapping(inner) == PROBE_CALL.arguments), ""
        )
        if arguments_key:
            alone = arguments_key == PROBE_CALL.name
            return ToolFormat(
                "json", _last_mark(before), "" if alone else name_key, "" if alone else arguments_key
            )
    return None


def _read_json(format: ToolFormat, text: str, start: int, types: Any) -> _Found:
    if format.name_first:
        head = re.compile(rf"\s*({_NAME}?)(?::\d+)?(?=[^\w.\-]|$)[^{{]{{0,120}}").match(text, start)
        if not text[start:].strip() or (head and head.end() == len(text)):
            return None  # it goes on
        if head is None or text[head.end()] != "{":
            return [], start
        name, at = head[1], head.end()
    else:
        opening = re.compile(r"\s*(?=[\[{])").match(text, start)
        if opening is None:
            return None if not text[start:].strip() else ([], start)
        name, at = "", opening.end()
    try:
        value, end = _DECODER.raw_decode(text, at)
    except ValueError:
        return None  # it goes on, or it never becomes JSON
    if format.name_first:
        return [(name, value)], end
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            continue
        if format.name_key:
            called, arguments = entry.get(format.name_key), _as_mapping(entry.get(format.arguments_key, {}))
        else:
            called, arguments = next(((key, _as_mapping(inner)) for key, inner in entry.items()), ("", None))
        if isinstance(called, str) and called and arguments is not None:
            calls.append((called, arguments))
    return calls, end


def _as_mapping(value: Any) -> dict[str, Any] | None:
    """The arguments, which may be JSON inside JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


# Python-like calls, mappings with quotes of their own, and tags


def _learn_other(call: str) -> ToolFormat | None:
    keys = sorted((call.rfind(key), key) for key in PROBE_CALL.arguments)
    name = call.rfind(PROBE_CALL.name, 0, max(0, keys[0][0]))
    if name < 0 or keys[0][0] < 0:
        return None
    values = {"qzText": _TEXT, "qzWhole": _WHOLE}
    spans = []
    for at, key in keys:
        value = call.find(values[key], at + len(key))
        if value < 0:
            return None
        spans.append((key, at, at + len(key), value, value + len(values[key])))
    before_name = call[:name].rpartition(PROBE_CALL.name)[2]
    first = call[name + len(PROBE_CALL.name) : spans[0][1]]
    between = {key: call[key_end:value] for key, _, key_end, value, _ in spans}
    separator = call[spans[0][4] : spans[1][1]]
    rest = call[spans[1][4] :]
    if first.strip() == "(":
        return ToolFormat("python", _last_mark(before_name.rstrip().removesuffix("[")))
    if first.strip() == "{":
        quote = between["qzText"].strip().removeprefix(between["qzWhole"].strip())
        return ToolFormat("mapping", _last_mark(before_name), quote=quote)
    shared = _common_end(first, separator)
    value_close = separator.removesuffix(shared).strip() if shared else separator.strip()
    key_open = shared[shared.find("<") :] if "<" in shared else shared
    if not (key_open.strip() and value_close):
        return None
    return ToolFormat(
        "tags",
        _last_mark(before_name),
        key_open=key_open.strip(),
        between=(between["qzText"].strip(), between["qzWhole"].strip()),
        value_close=value_close,
        close=_closing(rest.strip(), value_close, shared.strip()),
    )


def _closing(rest: str, value_close: str, shared: str) -> str:
    """What ends a call: the first delimiter after its last value that does not also separate two arguments."""
    rest = rest.removeprefix(value_close)
    body = value_close + shared
    units = re.findall(r"<[^<>\s][^<>\n]{0,80}>|\w+|\s+|.", rest, re.DOTALL)
    for unit, following in zip_longest(units, units[1:], fillvalue=""):
        if TAG.fullmatch(unit):
            if unit not in body:
                return unit
            if following.isalnum() and unit + following not in body:
                return unit + following
    return ""


def _read_python(format: ToolFormat, text: str, start: int, types: Any) -> _Found:
    for end in (match.end() for match in re.finditer(r"\)\s*\]?", text[start:])):
        source = text[start : start + end].strip()
        if source.startswith("[") and not source.endswith("]"):
            continue
        try:  # models write line ends within quotes as they are
            body = ast.parse(source.replace("\n", "\\n"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        nodes = body.elts if isinstance(body, ast.List) else [body]
        calls = []
        for node in nodes:
            if isinstance(node, ast.Call):
                values = {word.arg: _literal(word.value) for word in node.keywords if word.arg}
                calls.append((ast.unparse(node.func), values))
        return calls, start + end
    return None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        word = ast.unparse(node)
        return {"true": True, "false": False, "null": None}.get(word, word)


def _read_mapping(format: ToolFormat, text: str, start: int, types: Any) -> _Found:
    head = re.compile(rf"\s*({_NAME})\s*(?={{)").match(text, start)
    if head is None:
        return None if re.fullmatch(rf"\s*({_NAME})?\s*", text[start:]) else ([], start)
    parts = text[head.end() :].split(format.quote) if format.quote else [text[head.end() :]]
    written, sizes = "", []
    for number, part in enumerate(parts):
        quoted = number % 2 == 1
        if quoted and number == len(parts) - 1:
            return None  # a text that goes on
        new = json.dumps(part) if quoted else re.sub(r"([A-Za-z_][\w\-]*)\s*:", r'"\1":', part)
        sizes.append((len(written), len(part)))
        written += new
        try:
            value, end = _DECODER.raw_decode(written)
        except ValueError:
            continue
        # The closing brace stands in the last part that was read; what follows it is as long as before.
        left = len(written) - end
        read = sum(size for _, size in sizes) + number * len(format.quote)
        return [(head[1], value)], head.end() + read - min(left, len(part))
    return None


def _read_tags(format: ToolFormat, text: str, start: int, types: Any) -> _Found:
    end = text.find(format.close, start) if format.close else -1
    if end < 0:
        return None
    head = re.compile(rf"\s*({_NAME})").match(text, start)
    if head is None or head.end() > end:
        return [], start
    name, body = head[1], text[head.end() : end]
    known = types(name)
    prefix = common_prefix(*format.between)
    hint, other = (text.removeprefix(prefix) for text in format.between)
    suffix, same = _common_end(hint, other), hint == other
    hint = hint.removesuffix(suffix) if suffix else hint
    middle = _loose(prefix) if same else f"{_loose(prefix)}([^<>]*?){_loose(suffix)}"
    pattern = rf"{_loose(format.key_open)}\s*({_NAME}?)\s*{middle}\s?(.*?)\s?{_loose(format.value_close)}"
    arguments: dict[str, Any] = {}
    for match in re.finditer(pattern, body, re.DOTALL):
        key, value = match[1], match[match.lastindex or 1]
        value = value.removeprefix("<![CDATA[").removesuffix("]]>")
        kind = known.get(key, {}).get("type") if isinstance(known.get(key), dict) else None
        is_text = kind == "string" if kind else not same and match[2] == hint
        arguments[key] = value if is_text else _value(value)
    return [(name, arguments)], end + len(format.close)


_READERS = {"json": _read_json, "python": _read_python, "mapping": _read_mapping, "tags": _read_tags}


def _value(text: str) -> Any:
    """The JSON value at the beginning; some models write Python's words for true, false and null."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            continue
    return text


def _loose(text: str) -> str:
    """A pattern of the text in which white space may vary."""
    return r"\s*".join(re.escape(word) for word in re.split(r"\s+", text))


def _last_mark(text: str) -> str:
    """The text by which a call is found: from its last tag on, or all of it."""
    text = text.strip()
    opening = max(text.rfind("<"), *(match.start() for match in re.finditer(r"\[[A-Z_]{2,}\]", text)), -1)
    return text[opening:] if opening >= 0 else text


def _common_end(a: str, b: str) -> str:
    return common_prefix(a[::-1], b[::-1])[::-1]
