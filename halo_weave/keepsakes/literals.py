"""Values as a model writes them: JSON, Python and JavaScript literals. Nothing is ever evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from halo_weave.core.depth import DEPTH, shallow
from halo_weave.errors import BadInput

Json = Any  # what json.loads gives

SPACE = re.compile(r"\s*")
NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
NAME = re.compile(r"[A-Za-z_$][\w$]*")
PLAIN = re.compile(r"""[^\\'"`]+""")
HEX = {"x": 2, "u": 4, "U": 8}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": ""}
WORDS = {"true": True, "True": True, "false": False, "False": False}
WORDS_FOR_NOTHING = ("null", "None", "undefined")
DIGITS = 300  # more is no number anyone wrote on purpose


class LiteralReader:
    """Reads literals out of a text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._comma = False

    # Arguments of a call

    def arguments(self) -> tuple[list[Json], dict[str, Json]]:
        """`(1, "a", key=2)`, with `=` or `:` after a key; from the opening parenthesis to the closing one."""
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
        if depth > DEPTH:
            raise self._broken(f"it is nested more than {DEPTH} deep")
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
        """A list; a tuple is one too, and a value in parentheses is itself."""
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
        """Once for each item, which the caller reads; commas stand between them, and may stand after the last."""
        comma = True
        while not self._skip(closing):
            if not comma:
                raise self._broken(f"a comma or {closing} is missing")
            yield
            comma = self._skip(",")
        self._comma = comma  # whether one stood after the last

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
        """One string, or several that stand side by side, as in Python."""
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
        # Two escapes may be the halves of one character; one half alone cannot be stored.
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
    """Bytes of a value as compact JSON. What JSON cannot hold, or is nested too deeply, is refused."""
    if not shallow(value):
        raise BadInput(f"This is nested more than {DEPTH} deep, so it cannot be kept.")
    try:
        return len(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())
    except (TypeError, ValueError):
        raise BadInput("This cannot be kept as JSON: a number is too large, or text is broken.") from None
