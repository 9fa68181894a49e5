"""Convert a JSON schema to a GBNF grammar."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from halo_weave.errors import BadInput

MAX_DEPTH = 24
MAX_RULES = 2_000
MAX_REPETITIONS = 200  # most repetitions that are written as a count

_BASE = {
    "ws": '" "?',
    "null": '"null"',
    "boolean": '"true" | "false"',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "number": 'integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?',
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "string": r'"\"" char* "\""',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws (member (ws "," ws member)*)? ws "}"',
    "member": 'string ws ":" ws value',
    "array": '"[" ws (value (ws "," ws value)*)? ws "]"',
}
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ANNOTATIONS = frozenset(
    "title description default examples $schema $id $comment $defs definitions deprecated readOnly writeOnly "
    "strict nullable additionalProperties required format".split()
)
_FORMATS = {
    "date": '"\\"" [0-9]{4} "-" [0-9]{2} "-" [0-9]{2} "\\""',
    "time": '"\\"" [0-9]{2} ":" [0-9]{2} ":" [0-9]{2} ("." [0-9]{1,6})? ("Z" | [-+] [0-9]{2} ":" [0-9]{2})? "\\""',
    "date-time": '"\\"" [0-9]{4} "-" [0-9]{2} "-" [0-9]{2} "T" [0-9]{2} ":" [0-9]{2} ":" [0-9]{2} '
    '("." [0-9]{1,6})? ("Z" | [-+] [0-9]{2} ":" [0-9]{2}) "\\""',
    "uuid": '"\\"" [0-9a-f]{8} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{4} "-" [0-9a-f]{12} "\\""',
}
_KNOWN = {
    "object": {"properties"},
    "array": {"items", "minItems", "maxItems", "prefixItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
DIGITS = 16  # digits of the longest integer


def any_object_grammar() -> str:
    """The grammar of any JSON object."""
    return _GrammarWriter({}).text("object")


def grammar_from_schema(schema: Any) -> str:
    """The grammar of JSON values that match a schema. A schema that cannot be expressed is refused."""
    if not isinstance(schema, Mapping):
        raise BadInput('A JSON schema is an object, such as {"type": "object"}.')
    writer = _GrammarWriter(schema)
    return writer.text(writer.rule(schema, "schema", 0))


def until(end: str) -> str:
    """An expression for any text up to and including `end`."""
    first, rest = end[:1], end[1:2]
    body = f"[^{_inside(first)}]" + (f" | {_quoted(first)} [^{_inside(rest)}]" if rest else "")
    return f"({body})* {_quoted(end)}"


def grammar_of_one(begin: str, options: Sequence[tuple[str, Any, str]]) -> str:
    """The grammar of `begin`, an expression, followed by one of several options: a text, a value that matches a schema, and
    another text.

    If the schema is None, anything may follow the first text; if it cannot be expressed, any object is allowed.
    """
    writer = _GrammarWriter({})
    found = []
    for i, (before, schema, after) in enumerate(options):
        middle = "anything" if schema is None else writer.loosely(schema, f"option{i}")
        found.append(f"{_quoted(before)} {middle}" + (f" {_quoted(after)}" if after else ""))
    return writer.text(f"{begin} ({' | '.join(found)})", anything=r"[^\x00]*")


class _GrammarWriter:
    def __init__(self, root_schema: Mapping[str, Any]) -> None:
        self._root_schema = root_schema
        self._rules = dict(_BASE)
        self._references: dict[str, str] = {}  # names of rules by reference

    def text(self, root: str, **more: str) -> str:
        rules = {"root": root, **self._rules, **more}
        return "\n".join(f"{name} ::= {body}" for name, body in rules.items()) + "\n"

    def loosely(self, schema: Any, name: str) -> str:
        """A rule for a schema; for one that cannot be expressed, any object."""
        self._root_schema, self._references = schema, {}
        try:
            return self.rule(schema, name, 0)
        except BadInput:
            return "object"

    def rule(self, schema: Any, name: str, depth: int) -> str:
        """The name of a rule, or a short expression, for values that match this schema."""
        if schema is True or schema == {}:
            return "value"
        if not isinstance(schema, Mapping):
            raise BadInput(f"At {name}, the schema is {json.dumps(schema)[:40]}; it has to be an object.")
        if depth > MAX_DEPTH or len(self._rules) > MAX_RULES:
            raise BadInput("The JSON schema is too deep or too large. Make it smaller.")
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), depth)
        if "const" in schema:
            return _literal(schema["const"])
        if "enum" in schema:
            if not isinstance(schema["enum"], list) or not schema["enum"]:
                raise BadInput(f"At {name}, 'enum' has to be a list of values.")
            return self._add(name, " | ".join(map(_literal, schema["enum"])))
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                options = self._list(schema, choice, name)
                parts = [self.rule(one, f"{name}-{i}", depth + 1) for i, one in enumerate(options)]
                return self._add(name, " | ".join(parts))
        if "allOf" in schema:
            options = self._list(schema, "allOf", name)
            if len(options) != 1:
                raise BadInput(f"At {name}, 'allOf' of several schemas is not supported. Write them as one.")
            return self.rule(options[0], name, depth + 1)
        return self._typed(schema, name, depth)

    def _typed(self, schema: Mapping[str, Any], name: str, depth: int) -> str:
        kind = schema.get("type") or (
            "object" if "properties" in schema else "array" if "items" in schema else None
        )
        if isinstance(kind, list):
            parts = [self.rule({**schema, "type": one}, f"{name}-{one}", depth + 1) for one in kind]
            return self._add(name, " | ".join(parts))
        unknown = schema.keys() - _ANNOTATIONS - {"type"} - _KNOWN.get(str(kind), set())
        if unknown:
            raise BadInput(
                f"At {name}, {sorted(unknown)[0]!r} in a JSON schema is not supported. Leave it out."
            )
        match kind:
            case "object":
                return self._object(schema, name, depth)
            case "array":
                return self._array(schema, name, depth)
            case "string":
                return self._string(schema, name)
            case "integer" if schema.keys() & _KNOWN["integer"]:
                return self._add(name, _integers(*_integer_bounds(schema, name)))
            case "number" | "integer" | "boolean" | "null":
                return str(kind)
            case None:
                return "value"
            case _:
                raise BadInput(f"At {name}, {str(kind)[:40]!r} is not a JSON type.")

    def _object(self, schema: Mapping[str, Any], name: str, depth: int) -> str:
        properties = schema.get("properties")
        if not properties:
            return "object"
        if not isinstance(properties, Mapping):
            raise BadInput(f"At {name}, 'properties' has to be an object.")
        needed = schema.get("required", [])
        if not isinstance(needed, list) or not set(map(str, needed)) <= {*properties}:
            raise BadInput(f"At {name}, 'required' names what 'properties' does not have.")
        pairs = [
            (key in needed, f'{_literal(key)} ws ":" ws {self.rule(one, self._below(name, key), depth + 1)}')
            for key, one in properties.items()
        ]
        # Members in the order of the schema. Optional ones may be left out; commas separate the others.
        tail = ""
        for i, (must, pair) in reversed(list(enumerate(pairs))):
            first = self._add(f"{name}-m{i}", pair)
            after = self._add(f"{name}-r{i}", f'ws "," ws {first}{f" {tail}" if tail else ""}')
            skipped = tail or '""'
            tail = after if must else self._add(f"{name}-o{i}", f"{after} | {skipped}")
        begin = self._beginnings(name, [must for must, _ in pairs])
        return self._add(name, f'"{{" ws ({begin}) ws "}}"')

    def _beginnings(self, name: str, must: list[bool]) -> str:
        """The alternatives for the first member: the optional ones up to the first required one."""
        options = []
        for i, needed in enumerate(must):
            rest = f" {name}-{'r' if must[i + 1] else 'o'}{i + 1}" if i + 1 < len(must) else ""
            options.append(f"{name}-m{i}{rest}")
            if needed:
                break
        else:
            options.append('""')
        return " | ".join(options)

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> str:
        if "prefixItems" in schema:
            raise BadInput(f"At {name}, 'prefixItems' in a JSON schema is not supported. Use 'items'.")
        item = self.rule(schema.get("items", {}), f"{name}-item", depth + 1)
        low, high = _bounds(schema, "minItems", "maxItems", name)
        if high == 0:
            return self._add(name, '"[" ws "]"')
        more = f'(ws "," ws {item}){_times(max(0, low - 1), None if high is None else high - 1)}'
        inner = f"{item} {more}"
        return self._add(name, f'"[" ws {inner} ws "]"' if low else f'"[" ws ({inner})? ws "]"')

    def _string(self, schema: Mapping[str, Any], name: str) -> str:
        if schema.get("format") in _FORMATS:
            return self._add(name, _FORMATS[schema["format"]])
        low, high = _bounds(schema, "minLength", "maxLength", name)
        if not low and high is None:
            return "string"
        return self._add(name, f'"\\"" char{_times(low, high)} "\\""')

    def _reference(self, reference: str, depth: int) -> str:
        if reference in self._references:
            return self._references[reference]
        found: Any = self._root_schema
        for part in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        if not reference.startswith("#") or not isinstance(found, Mapping):
            raise BadInput(f"The JSON schema refers to {reference[:80]!r}, which is not in it.")
        name = self._references[reference] = f"ref{len(self._rules)}"
        body = self.rule(found, f"{name}-of", depth + 1)
        self._rules[name] = body
        return name

    def _list(self, schema: Mapping[str, Any], field: str, name: str) -> list[Any]:
        found = schema[field]
        if not isinstance(found, list) or not found:
            raise BadInput(f"At {name}, {field!r} has to be a list of schemas.")
        return found

    def _below(self, name: str, key: str) -> str:
        clean = re.sub(r"[^a-zA-Z0-9]+", "", key)[:20]
        return f"{name}-{clean}{len(self._rules)}"

    def _add(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name


def _literal(value: Any) -> str:
    """A JSON value as literal text of the grammar."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(text) > 2_000:
        raise BadInput("A value in the JSON schema is too long.")
    return _quoted(text)


def _quoted(text: str) -> str:
    """A quoted text of the grammar."""
    return f'"{"".join(_ESCAPED.get(sign, sign) for sign in text)}"'


def _inside(sign: str) -> str:
    """A character inside brackets."""
    return f"\\{sign}" if sign in "]\\" else _ESCAPED.get(sign, sign)


def _bounds(schema: Mapping[str, Any], least: str, most: str, name: str) -> tuple[int, int | None]:
    low, high = schema.get(least, 0), schema.get(most)
    for value in (low, high):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise BadInput(f"At {name}, {least!r} and {most!r} have to be whole numbers.")
    if low > MAX_REPETITIONS or (high is not None and high < low):
        raise BadInput(f"At {name}, {least!r} is more than {MAX_REPETITIONS}, or more than {most!r}.")
    return low, None if high is None or high > MAX_REPETITIONS else high


def _times(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}" if low or high is not None else "*"


def _integer_bounds(schema: Mapping[str, Any], name: str) -> tuple[int, int]:
    """The smallest and the largest allowed integer; without a bound, the longest one."""
    limit = 10**DIGITS - 1
    low, high = -limit, limit
    for key in sorted(schema.keys() & _KNOWN["integer"]):
        bound = schema[key]
        if not isinstance(bound, int | float) or isinstance(bound, bool) or not math.isfinite(bound):
            raise BadInput(f"At {name}, {key!r} has to be a number.")
        step = 1 if key.startswith("exclusive") and bound == int(bound) else 0
        if key.lower().endswith("minimum"):
            low = max(low, math.ceil(bound) + step)
        else:
            high = min(high, math.floor(bound) - step)
    if low > high:
        raise BadInput(f"At {name}, no integer of at most {DIGITS} digits is within the bounds.")
    return low, high


def _integers(low: int, high: int) -> str:
    """An expression for the integers from `low` to `high`."""
    parts = [f'"-" ({_integers(max(1, -high), -low)})'] if low < 0 else []
    at = max(0, low)
    while at <= high:  # numbers of each length
        last = min(high, 10 ** len(str(at)) - 1)
        parts.append(_same_length(str(at), str(last)))
        at = last + 1
    return " | ".join(parts)


def _same_length(low: str, high: str) -> str:
    """An expression for the numbers from `low` to `high`, which have the same number of digits."""
    rest = len(low) - 1
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return f"[{low[0]}-{high[0]}]" + (f" [0-9]{{{rest}}}" if rest else "")
    if low[0] == high[0]:
        return f"[{low[0]}] ({_same_length(low[1:], high[1:])})"
    parts = [f"[{low[0]}] ({_same_length(low[1:], '9' * rest)})"]
    if int(high[0]) - int(low[0]) > 1:
        parts.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}] [0-9]{{{rest}}}")
    return " | ".join([*parts, f"[{high[0]}] ({_same_length('0' * rest, high[1:])})"])
