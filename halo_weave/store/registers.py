"""Last-writer-wins registers: a JSON document by path and time, which copies can merge in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Path = tuple[str, ...]
# When it was set, and the value in a tuple; an empty tuple if it was removed then.
Register = tuple[int, tuple[Any, ...]]
Registers = dict[Path, Register]


def merged(one: Mapping[Path, Register], other: Mapping[Path, Register]) -> Registers:
    """By path, the register that was set last. With equal times the greater value wins, so that all devices choose
    alike."""
    both = dict(one)
    for path, register in other.items():
        if path not in both or _rank(register) > _rank(both[path]):
            both[path] = register
    return both


def document_of(registers: Mapping[Path, Register]) -> dict[str, Any]:
    """The document of the registers. If one register hides another, the later one wins."""
    document: dict[str, Any] = {}
    for path, (_, held) in sorted(registers.items(), key=lambda item: (item[1][0], len(item[0]), item[0])):
        if not held:
            continue
        at = document
        for step in path[:-1]:
            if not isinstance(at.get(step), dict):
                at[step] = {}
            at = at[step]
        if held[0] != {} or not isinstance(at.get(path[-1]), dict):
            at[path[-1]] = json.loads(json.dumps(held[0]))  # an object: members may be set in it
    return document


def changed_registers(
    registers: Mapping[Path, Register], document: Mapping[str, Any], depth: int, stamp: Callable[[Path], int]
) -> Registers:
    """The registers that turn one document into another. They are later than those that they replace. `depth`: how deep
    nested objects are compared by member."""
    before, after = _flat(document_of(registers), depth), _flat(document, depth)
    changed: Registers = {}
    for path in before.keys() | after.keys():
        if path in before and path in after and _text(before[path]) == _text(after[path]):
            continue
        earlier = registers[path][0] + 1 if path in registers else 0
        changed[path] = max(stamp(path), earlier), (after[path],) if path in after else ()
    return changed


def _flat(document: Mapping[str, Any], depth: int) -> dict[Path, Any]:
    found: dict[Path, Any] = {}
    for name, value in document.items():
        if depth > 1 and isinstance(value, dict) and value:
            found |= {(name, *path): inner for path, inner in _flat(value, depth - 1).items()}
        else:
            found[name,] = value
    return found


def _rank(register: Register) -> tuple[int, str]:
    return register[0], _text(register[1])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
