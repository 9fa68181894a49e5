"""Write and read one large JSON object piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TextIO

from halo_weave.errors import ImportRefused

STEP = 1 << 16
LIMIT = 1 << 28  # limit of one element in characters, far above any chunk
SPACE = " \t\n\r"
_NOT_SPACE = re.compile(f"[^{SPACE}]")
DELIMITERS = set(SPACE + ",]}")


def write_object(members: Iterable[tuple[str, Any]], write: Callable[[str], object]) -> None:
    """Write members in order. A list or dict is written at once, an iterator as an array with one element per line."""
    write("{")
    comma = ""
    for key, value in members:
        write(f"{comma}\n{json.dumps(key)}: ")
        comma = ","
        if isinstance(value, Iterator):
            write("[")
            between = ""
            for element in value:
                write(f"{between}\n{json.dumps(element, ensure_ascii=False, allow_nan=False)}")
                between = ","
            write("\n]")
        else:
            write(json.dumps(value, ensure_ascii=False, allow_nan=False))
    write("\n}\n")


def _refuse_constant(name: str) -> None:
    raise ImportRefused(f"The file has the value {name}, which is not JSON. Nothing was changed.")


class JsonReader:
    """Reads the members of a file's one object, or its values. White space and the order of members do not matter."""

    def __init__(self, file: TextIO, opened: Collection[str] = ()) -> None:
        """The members of objects in `opened` are read one by one, too, under names such as `outer.inner`."""
        self.read = 0  # characters read from the file
        self.closed = False  # the object has ended
        self._opened = opened
        self._file = file
        self._buffer = ""
        self._at = 0
        self._ended = False
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    @property
    def taken(self) -> int:
        """About how many bytes of the file were read."""
        inside = len(self._buffer) - self._at
        return self._file.buffer.tell() * (self.read - inside) // max(1, self.read)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """(key, value) of each member; of an array, (key, element) of each element."""
        yield from self._members("")
        self.closed = True
        if self._next():
            raise self._refused("something follows after the end")

    def begin(self) -> str:
        """The first character that is not white space; "" if there is none."""
        return self._next()

    def values(self) -> Iterator[Any]:
        """The elements of the file's one array; otherwise its values, one or one per line."""
        if self._next() == "[":
            yield from self._elements()
            if self._next():
                raise self._refused("something follows after the end")
        while self._next():
            yield self._value()

    def _members(self, within: str) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._next() == "}":
            self._at += 1
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise self._refused("a name was expected")
            key = within + name
            self._expect(":")
            begin = self._next()
            if begin == "[":
                yield from ((key, element) for element in self._elements())
            elif begin == "{" and key in self._opened:
                yield from self._members(f"{key}.")
            else:
                yield key, self._value()
            if self._expect(",}") == "}":
                return

    def _elements(self) -> Iterator[Any]:
        self._expect("[")
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            if self._expect(",]") == "]":
                return

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                if not self._more():
                    raise self._refused(f"it breaks off or is malformed ({error.msg})") from error
            except RecursionError as error:
                raise self._refused("it is nested too deeply") from error
            except ValueError as error:
                raise self._refused(str(error)) from error
            else:
                # The text may end within a number.
                whole = self._buffer[end : end + 1] in DELIMITERS if isinstance(value, int | float) else True
                if whole or not self._more():
                    self._at = end
                    return value

    def _next(self) -> str:
        """The next character that is not white space, without consuming it; "" at the end of the file."""
        while True:
            if match := _NOT_SPACE.search(self._buffer, self._at):
                self._at = match.start()
                return match[0]
            self._at = len(self._buffer)
            if not self._more():
                return ""

    def _expect(self, choices: str) -> str:
        found = self._next()
        if not found or found not in choices:
            raise self._refused(f"{' or '.join(choices)} was expected")
        self._at += 1
        return found

    def _more(self) -> bool:
        """Read more; twice as much each time, so that a long element is not decoded too often."""
        if self._ended:
            return False
        rest = self._buffer[self._at :]
        if len(rest) > LIMIT:
            raise self._refused("an element is larger than can be read, or malformed")
        try:
            text = self._file.read(max(STEP, len(rest)))
        except UnicodeDecodeError as error:
            raise ImportRefused("The file is not text in UTF-8, so it cannot be imported.") from error
        self.read += len(text)
        self._ended = not text
        self._buffer, self._at = rest + text, 0
        return bool(text)

    def _refused(self, why: str) -> ImportRefused:
        at = self.read - len(self._buffer) + self._at
        return ImportRefused(
            f"The file is not JSON that can be imported: {why}, at character {at}. Nothing was changed."
        )
