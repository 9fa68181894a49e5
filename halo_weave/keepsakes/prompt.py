"""What the system prompt tells the model of its tools, and of the top of its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halo_weave.core.paths import DEPTH
from halo_weave.keepsakes.structured_memory import Branch

OVERVIEW_LENGTH = 800  # characters
INSTRUCTIONS = """\
You keep notes and a memory that outlast this conversation. To use them, write a call like these and wait:
<tool>jq '.topics' notes.json</tool> reads your notes (topics, reminders, context, scratch)
<tool>jq '.topics.NAME = "TEXT"' notes.json > output</tool> writes them
<tool>save_memory("Heading/Name", {"key": "value"})</tool> saves a memory
In the same tags: query_memory("Heading/Name"), query_heading("Heading", "words"), list_memory(), \
delete_memory("Heading/Name"), inject_memory("Heading/Name") to recall what was said when it was saved.
The answer appears as ⚙️【call】→ answer; never write it yourself."""


def _declared(name: str, description: str, required: int, **parameters: str) -> dict[str, Any]:
    """A tool as chat templates take it; the first `required` of its parameters must be given."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    one: {"type": _TYPES.get(one, "string"), "description": meaning}
                    if one != "content"
                    else {"description": meaning}  # of any type
                    for one, meaning in parameters.items()
                },
                "required": list(parameters)[:required],
            },
        },
    }


_TYPES = {
    "write": "boolean",
    "recursive": "boolean",
    "page": "integer",
    "contextTokens": "integer",
    "recencyBias": "number",
}
_PATH = "headings separated by slashes"
DECLARATIONS: tuple[Mapping[str, Any], ...] = (
    _declared(
        "save_memory",
        "Remember something when the user asks to. Use a new path for something new.",
        2,
        path=_PATH,
        content="what to remember: text, number, list or object",
        contextTokens="how much of the conversation is kept with it",
    ),
    _declared(
        "query_memory",
        "Read what was saved under a path, and what was said then.",
        1,
        path=_PATH,
        page="the first is 1",
    ),
    _declared(
        "query_heading",
        "Look up saved memories by words.",
        0,
        path="look below this path",
        query="the words",
        recencyBias="0: only the words count, 1: only how new it is",
    ),
    _declared("list_memory", "List the paths of all saved memories.", 0, path="list below this path"),
    _declared(
        "delete_memory",
        "Forget what was saved under a path.",
        1,
        path=_PATH,
        recursive="also all that is below the path",
    ),
    _declared("inject_memory", "Recall what was said when a memory was saved.", 1, path=_PATH),
    _declared(
        "jq",
        "Read your notes with a jq program, or write them.",
        1,
        program="the program",
        write="the result becomes the notes",
    ),
)


def instructions(tree: Branch) -> str:
    """The tools, and the top of the tree if there is one."""
    return f"{INSTRUCTIONS}\n{holdings(tree)}".strip()


def holdings(tree: Branch) -> str:
    """The top of the tree, if there is one."""
    top = overview(tree)
    return f"Your memory holds:\n{top}" if top else ""


def overview(tree: Branch, *, length: int = OVERVIEW_LENGTH) -> str:
    """As many levels of the tree as fit; what lies deeper is counted."""
    best = ""
    for depth in range(1, DEPTH + 1):
        text = "\n".join(_outline(tree, depth))
        if len(text) > length:
            return best or _newest(tree, length)
        if text == best:
            break
        best = text
    return best


def _outline(tree: Branch, depth: int, indent: str = "") -> Iterator[str]:
    for child in tree.children:
        hidden = child.children and depth == 1
        below = f" ({sum(one.entries for one in child.children)})" if hidden else ""
        yield f"{indent}{child.heading}{'/' if child.children else ''}{below}"
        if depth > 1:
            yield from _outline(child, depth - 1, indent + "  ")


def _newest(tree: Branch, length: int) -> str:
    """Of too many top headings, those that changed last."""
    lines: list[str] = []
    left = length - len("… (9999999 more)")
    for child in sorted(tree.children, key=_changed, reverse=True):
        line = next(_outline(Branch("", "", children=(child,)), 1))
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    return "\n".join([*lines, f"… ({len(tree.children) - len(lines)} more)"])


def _changed(tree: Branch) -> float:
    own = tree.modified.timestamp() if tree.modified else 0.0
    return max([own, *(_changed(child) for child in tree.children)])
