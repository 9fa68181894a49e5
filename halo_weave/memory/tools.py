"""The AI's tools: a call found in a reply is run, and answered in one line whatever it asks."""

from __future__ import annotations

from datetime import datetime

from halo_weave.core.depth import shallow
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.memory.calls import CALL_LIMIT, ToolCall, ToolDetector
from halo_weave.memory.commands import (
    Command,
    DeleteMemory,
    InjectMemory,
    Jq,
    ListMemory,
    QueryHeading,
    QueryMemory,
    SaveMemory,
    parse,
)
from halo_weave.memory.literals import Json
from halo_weave.memory.notes import METADATA, Notes, without_metadata
from halo_weave.memory.prompt import OVERVIEW_LENGTH, instructions
from halo_weave.memory.results import (
    RESULT_LENGTH,
    ToolResult,
    answered,
    bounded,
    changes,
    compact,
    quoted,
    refused,
)
from halo_weave.memory.sandbox import Output
from halo_weave.memory.tree import Branch, MemoryTree, Remembered

SHOWN_MATCHES = 10


class Toolbox:
    """Notes and structured memory as the model reaches them."""

    def __init__(
        self,
        notes: Notes,
        tree: MemoryTree,
        *,
        result_length: int = RESULT_LENGTH,
        overview_length: int = OVERVIEW_LENGTH,
    ) -> None:
        self.notes = notes
        self.tree = tree
        self._result_length = result_length
        self._overview_length = overview_length

    def detector(self) -> ToolDetector:
        """For one reply: finds the calls in it."""
        return ToolDetector()

    def instructions(self) -> str:
        """What the system prompt says of the tools, with the top of the tree as it is now."""
        return instructions(self.tree.listing(), length=self._overview_length)

    def snapshot(self, path: str, *, now: datetime) -> tuple[ChunkKey, ...]:
        """The chunks that explain a memory, the most relevant first."""
        return keys_of(self.tree.query(path, now=now))

    def run(self, call: ToolCall, *, now: datetime, within: str | None = None) -> ToolResult:
        """Do what the call asks. An error is an answer too, so that the model can do better.

        `within`: a window that recalls only its own. What it saves is explained by its own talk alone.
        """
        try:
            if call.too_long:
                raise BadInput(f"A call has at most {CALL_LIMIT} characters. Use several shorter ones.")
            return self._run(call.command, parse(call.command), now, within)
        except HaloWeaveError as error:
            return refused(call.command, str(error))

    def close(self) -> None:
        """Nothing stays open between two calls."""

    def _run(self, text: str, command: Command, now: datetime, within: str | None) -> ToolResult:
        match command:
            case Jq(program, write=True):
                written = self.notes.write(program, now=now)
                return answered(text, f"✓ {self._bounded(written.changes)}", changed="notes")
            case Jq(program):
                return answered(text, self._read_notes(program, now))
            case SaveMemory(path, content, context_tokens):
                saved = self.tree.save(path, content, now=now, context_tokens=context_tokens, within=within)
                return answered(text, f"✓ {told(saved)}", changed="memory")
            case QueryMemory(path):
                return answered(text, self._told(self.tree.query(path, now=now)))
            case QueryHeading(path, query, recency_bias):
                return answered(text, self._found(path, query, recency_bias, now))
            case ListMemory(path):
                return answered(text, self._bounded(compact(dated(self.tree.listing(path)))))
            case DeleteMemory(path, recursive):
                gone = self.tree.delete(path, now=now, recursive=recursive)
                return answered(text, f"✓ {gone} deleted", changed="memory")
            case InjectMemory(path):
                entry = self.tree.query(path, now=now)
                return answered(text, self._told(entry), wake=keys_of(entry))

    def _read_notes(self, program: str, now: datetime) -> str:
        output = self.notes.read(program, now=now)
        if unsaved := self._unsaved(output, now):
            return f"{self._bounded(unsaved)} (not saved: end the command with > output)"
        text = quoted(" ".join(output.values)) if output.values else "no value"
        return self._bounded(text) + (" (and more)" if output.cut else "")

    def _unsaved(self, output: Output, now: datetime) -> str:
        """If the program gave changed notes, what it would change: most likely it was meant to write."""
        try:
            value = output.parsed()[0] if len(output.values) == 1 else None
        except (ValueError, RecursionError):
            return ""
        if not isinstance(value, dict) or METADATA not in value or not shallow(value):
            return ""
        old, new = without_metadata(self.notes.document(now=now)), without_metadata(value)
        return changes(old, new) if old != new else ""

    def _told(self, entry: Remembered) -> str:
        return f"{self._bounded(compact(entry.content))} ({told_of(entry)})"

    def _found(self, path: str, query: str | None, recency_bias: float, now: datetime) -> str:
        matches = self.tree.query_heading(path, query, now=now, recency_bias=recency_bias)
        shown = {match.entry.path: match.entry.content for match in matches[:SHOWN_MATCHES]}
        more = len(matches) - len(shown)
        return self._bounded(compact(shown)) + (f" ({more} more)" if more else "")

    def _bounded(self, text: str) -> str:
        return bounded(text, self._result_length)


def keys_of(entry: Remembered) -> tuple[ChunkKey, ...]:
    return tuple(chunk.key for chunk in entry.snapshot if chunk.key is not None)


def told(entry: Remembered) -> str:
    return f"{entry.path} ({told_of(entry)})"


def told_of(entry: Remembered) -> str:
    count = len(entry.snapshot)
    snapshot = f", {count} chunk{'s' if count > 1 else ''} kept with it" if count else ""
    return f"version {entry.version}, {entry.modified:%Y-%m-%d}{snapshot}"


def dated(tree: Branch) -> Json:
    """Headings within headings; an entry is the day it was saved."""
    own = tree.modified.strftime("%Y-%m-%d") if tree.modified else None
    if not tree.children:
        return own if own else {}
    below = {child.heading: dated(child) for child in tree.children}
    return {"": own, **below} if own else below
