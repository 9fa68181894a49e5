"""Describe the tools to the model and run its calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from halo_weave.chat.tools.calls import (
    CALL_LIMIT,
    RESULT_LENGTH,
    Command,
    Json,
    ToolCall,
    ToolCallDetector,
    ToolResult,
    compact_json,
    escaped_json,
    json_changes,
    shortened,
)
from halo_weave.chat.tools.notes import METADATA, JqOutput, Notes
from halo_weave.chat.tools.structured_memory import (
    DECAY_DAYS,
    HeadingMatch,
    HeadingNode,
    SavedEntry,
    StructuredMemory,
)
from halo_weave.core.tokens import ChunkKey
from halo_weave.core.validation import MAX_PATH_DEPTH, is_shallow
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.store.sql_store import SqlStore

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
    """Declare a tool for chat templates; the first `required` of its parameters are required."""
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
                    else {"description": meaning}  # a value of any type
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


def instructions(tree: HeadingNode) -> str:
    """The description of the tools, and the top of the tree if there is one."""
    return f"{INSTRUCTIONS}\n{memory_overview(tree)}".strip()


def memory_overview(tree: HeadingNode) -> str:
    """The top of the tree, if there is one."""
    top = overview(tree)
    return f"Your memory holds:\n{top}" if top else ""


def overview(tree: HeadingNode, *, length: int = OVERVIEW_LENGTH) -> str:
    """As many levels of the tree as fit; deeper entries are only counted."""
    best = ""
    for depth in range(1, MAX_PATH_DEPTH + 1):
        text = "\n".join(_outline(tree, depth))
        if len(text) > length:
            return best or _newest(tree, length)
        if text == best:
            break
        best = text
    return best


def _outline(tree: HeadingNode, depth: int, indent: str = "") -> Iterator[str]:
    for child in tree.children:
        hidden = child.children and depth == 1
        below = f" ({sum(one.entries for one in child.children)})" if hidden else ""
        yield f"{indent}{child.heading}{'/' if child.children else ''}{below}"
        if depth > 1:
            yield from _outline(child, depth - 1, indent + "  ")


def _newest(tree: HeadingNode, length: int) -> str:
    """Of too many top headings, those that changed last."""
    lines: list[str] = []
    left = length - len("… (9999999 more)")
    for child in sorted(tree.children, key=_changed, reverse=True):
        line = next(_outline(HeadingNode("", "", children=(child,)), 1))
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    return "\n".join([*lines, f"… ({len(tree.children) - len(lines)} more)"])


def _changed(tree: HeadingNode) -> float:
    own = tree.modified.timestamp() if tree.modified else 0.0
    return max([own, *(_changed(child) for child in tree.children)])


SHOWN_MATCHES = 10


class Toolbox:
    """Notes and structured memory as tools of the model."""

    def __init__(
        self,
        notes: Notes,
        tree: StructuredMemory,
        *,
        result_length: int = RESULT_LENGTH,
    ) -> None:
        self.notes = notes
        self.tree = tree
        self._result_length = result_length

    def of(self, store: SqlStore, within: frozenset[str] | None = None) -> Toolbox:
        """The tools on the notes and the structured memory of another person, who may read these windows; None: all."""
        return Toolbox(self.notes.of(store), self.tree.of(store, within), result_length=self._result_length)

    def detector(self) -> ToolCallDetector:
        """A detector of tool calls for one reply."""
        return ToolCallDetector()

    def instructions(self) -> str:
        """The text about the tools in the system prompt, with the current top of the tree."""
        return instructions(self.tree.listing())

    def overview(self) -> str:
        """The text about the top of the tree in the system prompt, if the template declares the tools."""
        return memory_overview(self.tree.listing())

    def declarations(self) -> tuple[Mapping[str, Any], ...]:
        """The tools as templates declare them."""
        return DECLARATIONS

    def native_call(self, name: str, arguments: Mapping[str, Any]) -> ToolCall:
        """A call in the template's format as a command, in the form in which it is shown and run."""
        given = ", ".join(
            f"{parameter}={json.dumps(value, ensure_ascii=False)}" for parameter, value in arguments.items()
        )
        command = f"{name}({given})"
        return ToolCall(command[:CALL_LIMIT], len(command) > CALL_LIMIT)

    def run(
        self,
        call: ToolCall,
        *,
        now: datetime,
        within: frozenset[str] | None = None,
        decay_days: float = DECAY_DAYS,
    ) -> ToolResult:
        """Run a call that was found in a reply."""
        if call.too_long:
            sentence = f"A call has at most {CALL_LIMIT} characters. Use several shorter ones."
            return ToolResult(call.command, sentence, ok=False)
        return self.perform(call.command, now=now, within=within, decay_days=decay_days)

    def perform(
        self,
        command: str | Command,
        *,
        now: datetime,
        within: frozenset[str] | None = None,
        decay_days: float = DECAY_DAYS,
    ) -> ToolResult:
        """Run one command, as text or as a value. An error is a result, too, so that the model can correct itself.

        `within`: the windows that this one recalls from. Only their chunks explain what is saved.
        """
        try:
            asked = Command.read(command) if isinstance(command, str) else command
            answer, keys = self._answer(asked, now, within, decay_days)
            return ToolResult(str(command), answer, to_resurrect=keys)
        except HaloWeaveError as error:
            return ToolResult(str(command), str(error), ok=False)

    def _answer(
        self, command: Command, now: datetime, within: frozenset[str] | None, decay_days: float
    ) -> tuple[str, tuple[ChunkKey, ...]]:
        """The command's output, and the chunks that it asks to resurrect."""
        given, path = command.arguments, command.arguments.get("path", "")
        match command.tool:
            case "jq":
                return self._jq(given["program"], given["write"], now), ()
            case "save_memory":
                tokens, before = given["context_tokens"], self.tree.content(path)
                saved = self.tree.save(path, given["content"], now=now, context_tokens=tokens, within=within)
                replaced = (
                    ""
                    if before in (None, saved.content)
                    else f", before: {self._bounded(compact_json(before))}"
                )
                return f"✓ {saved.path} ({_version(saved)}{replaced})", ()
            case "inject_memory":
                entry = self.tree.query(path, now=now)
                return f"{self._bounded(compact_json(entry.content))} ({_version(entry)})", entry.keys
            case "query_memory":
                return self._with_context(self.tree.query(path, now=now), given["page"]), ()
            case "query_heading":
                found = self.tree.query_heading(
                    path, given["query"], now=now, recency_bias=given["recency_bias"], decay_days=decay_days
                )
                return self._matches(found), ()
            case "list_memory":
                tree = self.tree.listing(path, contents=True)
                return f"{self._bounded(compact_json(_contents(tree)))} ({tree.entries} in all)", ()
            case _:
                gone = self.tree.delete(path, now=now, recursive=given["recursive"])
                return f"✓ {gone} deleted", ()

    def _jq(self, program: str, write: bool, now: datetime) -> str:
        if write:
            return f"✓ {self._bounded(self.notes.write(program, now=now).changes)}"
        output = self.notes.read(program, now=now)
        if unsaved := self._unsaved(output, now):
            return f"{self._bounded(unsaved)} (not saved: end the command with > output)"
        text = escaped_json(" ".join(output.values)) if output.values else "no value"
        return self._bounded(text) + (" (and more)" if output.cut else "")

    def _unsaved(self, output: JqOutput, now: datetime) -> str:
        """A hint with the changes, if the program returned changed notes without `> output`: probably they were meant
        to be saved."""
        try:
            value = output.parsed()[0] if len(output.values) == 1 else None
        except (ValueError, RecursionError):
            return ""
        if not isinstance(value, dict) or METADATA not in value or not is_shallow(value):
            return ""
        old = {**self.notes.document(now=now), METADATA: None}
        new = {**value, METADATA: None}
        return json_changes(old, new) if old != new else ""

    def _with_context(self, entry: SavedEntry, page: int) -> str:
        """The content of an entry and the chunks of its snapshot, also deleted ones, by page."""
        kept: list[Json] = [chunk.text for chunk in entry.snapshot]
        whole = f"{compact_json(entry.content)} ({_version(entry)})" + (
            f" {compact_json(kept)}" if kept else ""
        )
        pages = -(-len(whole) // self._result_length)
        if page > pages:
            raise BadInput(f"{entry.path} has {pages} page{'s' if pages > 1 else ''}.")
        part = whole[(page - 1) * self._result_length : page * self._result_length]
        return f"{part} (page {page} of {pages})" if pages > 1 else part

    def _matches(self, matches: Sequence[HeadingMatch]) -> str:
        shown = {match.entry.path: _match(match) for match in matches[:SHOWN_MATCHES]}
        more = len(matches) - len(shown)
        return self._bounded(compact_json(shown)) + (f" ({more} more)" if more else "")

    def _bounded(self, text: str) -> str:
        return shortened(text, self._result_length)


def _version(entry: SavedEntry) -> str:
    count = len(entry.snapshot)
    snapshot = f", {count} chunk{'s' if count > 1 else ''} kept with it" if count else ""
    return f"version {entry.version}, {entry.modified:%Y-%m-%d}{snapshot}"


def _match(match: HeadingMatch) -> Json:
    """An entry with its similarity and day, and the chunks of its snapshot that match the query."""
    told: dict[str, Json] = {
        "content": match.entry.content,
        "score": round(match.score, 2),
        "modified": f"{match.entry.modified:%Y-%m-%d}",
    }
    chunks: list[Json] = [chunk.text for chunk in match.relevant]
    return {**told, "chunks": chunks} if chunks else told


def _contents(tree: HeadingNode) -> Json:
    """Nested headings; an entry is its content."""
    below: dict[str, Json] = {child.heading: _contents(child) for child in tree.children}
    if tree.version is None:
        return below
    return {"": tree.content, **below} if below else tree.content
