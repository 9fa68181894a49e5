"""Refuse grammars that would crash the process or block the engine: llama.cpp parses them recursively and without limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from halo_weave.errors import BadInput

MAX_LENGTH = 100_000  # characters
MAX_DEPTH = 64  # groups inside each other
MAX_ELEMENTS = 50_000  # with counted repetitions written out
MAX_CHOICES = 1_000  # choices in which the text may continue; llama.cpp compares the vocabulary with each
MAX_REPETITIONS = 2_000  # as llama.cpp

_TOKEN = re.compile(
    r"""\s+ | \#[^\n]*
    | (?P<text>"(?:[^"\\\n]|\\.)*" | \[(?:[^\]\\\n]|\\.)*\] | \.)
    | (?P<rule>[A-Za-z0-9_-]+)\s*::=
    | (?P<name>[A-Za-z0-9_-]+)
    | (?P<times>[*+?] | \{\s*\d{1,9}\s*(?:,\s*\d{0,9}\s*)?\})
    | (?P<open>\() | (?P<close>\)) | (?P<or>\|)""",
    re.VERBOSE | re.DOTALL,
)


def check_grammar(grammar: str) -> None:
    """Raise BadInput if a GBNF grammar is too long, too deep, or allows too many choices at one place."""
    if len(grammar) > MAX_LENGTH:
        raise _too_large(f"it has {len(grammar):,} characters; {MAX_LENGTH:,} are allowed")
    rules = _parsed(grammar)
    if "root" not in rules:
        raise BadInput("The grammar has no rule named root. Add one, such as: root ::= [a-z]+")
    sizes = _Sizes(rules)
    if sum(sizes.elements(rule) for rule in rules.values()) > MAX_ELEMENTS:
        raise _too_large(f"with its repetitions it has more than {MAX_ELEMENTS:,} parts")
    for rule in rules.values():
        sizes.check(rule)


def _too_large(reason: str) -> BadInput:
    return BadInput(f"The grammar, or the JSON schema, is too large: {reason}. Make it simpler.")


class _Item(NamedTuple):
    """A text, a rule's name or a group, and how often it is repeated."""

    what: str | _Group
    length: int  # characters of a text; 0 for a rule or a group
    least: int = 1
    most: int | None = 1  # None: without limit


@dataclass(slots=True)
class _Group:
    options: list[list[_Item]]  # alternatives, each a sequence of items


def _parsed(grammar: str) -> dict[str, _Group]:
    rules: dict[str, _Group] = {}
    open_groups = [_Group([[]])]  # everything before the first rule is dropped
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            raise BadInput(
                f"The grammar cannot be read from {grammar[at : at + 20]!r} on. Check its form (GBNF)."
            )
        at = match.end()
        items = open_groups[-1].options[-1]
        match match.lastgroup:
            case "text":
                items.append(_Item("", len(match["text"])))
            case "rule":
                if len(open_groups) > 1 and rules:
                    raise BadInput("The grammar has a parenthesis that is not closed. Close it.")
                open_groups = [rules.setdefault(match["rule"], _Group([]))]
                open_groups[0].options.append([])
            case "name":
                items.append(_Item(match["name"], 0))
            case "open":
                if len(open_groups) > MAX_DEPTH:
                    raise _too_large(f"more than {MAX_DEPTH} groups stand inside each other")
                group = _Group([[]])
                items.append(_Item(group, 0))
                open_groups.append(group)
            case "close":
                if len(open_groups) == 1:
                    raise BadInput("The grammar closes a parenthesis that was not opened. Remove it.")
                open_groups.pop()
            case "or":
                open_groups[-1].options.append([])
            case "times":
                if not items:
                    raise BadInput(
                        f"The grammar repeats nothing with {match['times']}. Put a text before it."
                    )
                least, most = _times(match["times"])
                items[-1] = items[-1]._replace(least=least, most=most)
    if len(open_groups) > 1:
        raise BadInput("The grammar has a parenthesis that is not closed. Close it.")
    return rules


def _times(written: str) -> tuple[int, int | None]:
    if written in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[written]
    first, comma, last = written[1:-1].partition(",")
    least = int(first)
    most = int(last) if last.strip() else None if comma else least
    if max(least, most or 0) > MAX_REPETITIONS:
        raise _too_large(f"a part is repeated more than {MAX_REPETITIONS:,} times")
    return least, most


class _Choices(NamedTuple):
    """In how many choices a part can begin, and in how many it can be empty."""

    begin: int
    empty: int


_NOTHING = _Choices(0, 1)


class _Sizes:
    """Counts elements and choices. Counting stops at the limits, so that it takes no longer than parsing the grammar."""

    def __init__(self, rules: dict[str, _Group]) -> None:
        self._rules = rules
        self._known: dict[str, _Choices] = {}
        self._running: list[str] = []  # rules that are being counted, each inside the one before it

    def elements(self, group: _Group) -> int:
        return sum(
            (self.elements(item.what) if isinstance(item.what, _Group) else 0)
            + max(1, item.length) * max(item.least, item.most or 0, 1)
            for option in group.options
            for item in option
        )

    def check(self, group: _Group) -> None:
        """Raise BadInput if there are too many choices at any place of the group."""
        self._options(group)
        for option in group.options:
            for place, item in enumerate(option):
                self._sequence(option, place)
                if isinstance(item.what, _Group):
                    self.check(item.what)

    def _options(self, group: _Group) -> _Choices:
        begin = empty = 0
        for option in group.options:
            choices = self._sequence(option)
            begin, empty = begin + choices.begin, empty + choices.empty
        return self._limited(begin, empty)

    def _sequence(self, items: list[_Item], start: int = 0) -> _Choices:
        begin, empty = 0, 1
        for place in range(start, len(items)):
            choices = self._repeated(items[place])
            begin, empty = begin + empty * choices.begin, empty * choices.empty
            if not empty:
                break
            self._limited(begin, empty)
        return self._limited(begin, empty)

    def _repeated(self, item: _Item) -> _Choices:
        once = self._once(item)
        if not once.empty:
            return _Choices(once.begin, int(item.least == 0))
        if item.most is None:
            raise BadInput(
                "The grammar repeats without end a part that may be empty. Give it at least one character."
            )
        choices = _NOTHING
        for number in range(item.most, 0, -1):  # from the last repetition to the first
            optional = number > item.least
            choices = self._limited(
                once.begin + once.empty * choices.begin, once.empty * choices.empty + int(optional)
            )
        return choices if item.most else _NOTHING

    def _once(self, item: _Item) -> _Choices:
        if isinstance(item.what, _Group):
            return self._options(item.what)
        if not item.what:
            return _NOTHING if item.length == 2 else _Choices(1, 0)  # "" is empty
        return self._rule(item.what)

    def _rule(self, name: str) -> _Choices:
        if name in self._known:
            return self._known[name]
        if name not in self._rules:
            raise BadInput(f"The grammar names a rule that it does not have: {name[:40]}. Add it.")
        if name in self._running:
            raise BadInput(f"The rule {name[:40]} of the grammar begins with itself. Rewrite it.")
        if len(self._running) > MAX_DEPTH:
            raise _too_large(f"more than {MAX_DEPTH} rules begin with one another")
        self._running.append(name)
        choices = self._known[name] = self._options(self._rules[name])
        self._running.pop()
        return choices

    def _limited(self, begin: int, empty: int) -> _Choices:
        if max(begin, empty) > MAX_CHOICES:
            raise _too_large(f"it allows more than {MAX_CHOICES:,} choices at one place")
        return _Choices(begin, empty)
