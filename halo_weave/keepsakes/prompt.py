"""What the system prompt tells the model of its tools, and of the top of its memory."""

from __future__ import annotations

from collections.abc import Iterator

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


def instructions(tree: Branch) -> str:
    """The tools, and the top of the tree if there is one."""
    top = overview(tree)
    return f"{INSTRUCTIONS}\nYour memory holds:\n{top}" if top else INSTRUCTIONS


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
