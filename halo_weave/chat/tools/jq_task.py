"""Run a jq program; runs in a sandboxed process and imports nothing of this package."""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

# As a library, jq reports no error for `halt_error`, and no reason for `input`.
OWN = """\
def halt_error: error(if type == "string" then . else tojson end); \
def halt_error(code): halt_error; \
def input: error("there is no further input here"); \
"""


def _load_jq(file: str) -> ModuleType:
    loader = ExtensionFileLoader("jq", file)
    module = module_from_spec(ModuleSpec("jq", loader, origin=file))
    loader.exec_module(module)
    return module


def _run(jq: ModuleType, program: str, document: str, limit: int) -> dict[str, Any]:
    # In parentheses, `import` and `include` are syntax errors: no module or data file is ever looked for.
    # `tojson` keeps the digits of numbers as they were written, which Python's floats would not.
    # Two line ends: a backslash may continue a comment over one of them.
    compiled = jq.compile(f"{OWN}(\n{program}\n\n) | tojson")
    values: list[str] = []
    size = 0
    for value in compiled.input_text(document):
        size += len(value)
        if size > limit:
            if not values:
                values.append(value[:limit])
            return {"values": values, "cut": True}
        values.append(value)
        size += 1
    return {"values": values, "cut": False}


def prepared(file: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The function that runs jq programs, with the compiled module of `jq` in this file."""
    jq = _load_jq(file)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        try:
            return _run(jq, **question)
        except MemoryError:
            return {"error": "out of memory"}
        except Exception as error:
            return {"error": str(error)[:2000]}

    return answer
