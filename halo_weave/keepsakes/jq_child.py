"""Runs one jq program, alone in its process: started by `sandbox`, it never imports the package.

Input: a line of JSON `[extension file, program, document text, memory bytes, CPU seconds, result characters]`.
Output: a line of JSON, `{"values": [JSON texts], "cut": false}` or `{"error": sentence}`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType

# As a library jq stops at `halt_error` as if all were well, and for `input` names no reason.
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


def confine(memory: int, seconds: int) -> None:
    """As far as the system can: little memory and time, no new file, process or dump."""
    try:
        import resource
    except ImportError:  # not a POSIX system: the time limit of the parent alone holds
        return
    limits = {
        "RLIMIT_AS": memory,
        "RLIMIT_CPU": seconds,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 3,  # the three that are open: no file can be opened any more
    }
    for name, limit in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, OSError, ValueError):  # this system does not know it
            continue


def _run(jq: ModuleType, program: str, document: str, limit: int) -> dict[str, object]:
    # In parentheses, `import` and `include` are syntax errors: no module or data file is ever looked for.
    # `tojson` keeps the digits of numbers as they were written, which Python's floats would not.
    # A comment may reach over one line end, by a backslash, so there are two.
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


def _main() -> None:
    os.environ.clear()
    file, program, document, memory, seconds, limit = json.loads(sys.stdin.buffer.readline())
    jq = _load_jq(file)
    confine(memory, seconds)
    try:
        answer = _run(jq, program, document, limit)
    except MemoryError:
        answer = {"error": "out of memory"}
    except Exception as error:
        answer = {"error": str(error)[:2000]}
    sys.stdout.buffer.write(json.dumps(answer).encode("ascii"))
    sys.stdout.buffer.flush()
    os._exit(0)  # freeing a large result in an orderly way takes time and, nested deeply, the stack


if __name__ == "__main__":
    _main()
