"""The AI's tools: runs one command and answers it in one line, errors included."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from halo_weave.core.depth import shallow
from halo_weave.core.tokens import ChunkKey
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.keeping import Keepsakes
from halo_weave.keepsakes.calls import CALL_LIMIT, ToolCall, ToolDetector
from halo_weave.keepsakes.commands import Command
from halo_weave.keepsakes.literals import Json
from halo_weave.keepsakes.notes import METADATA, Notes
from halo_weave.keepsakes.prompt import DECLARATIONS, holdings, instructions
from halo_weave.keepsakes.results import RESULT_LENGTH, ToolResult, bounded, changes, compact, quoted
from halo_weave.keepsakes.sandbox import JqOutput
from halo_weave.keepsakes.structured_memory import (
    DECAY_DAYS,
    Branch,
    HeadingMatch,
    Remembered,
    StructuredMemory,
)

SHOWN_MATCHES = 10


class Toolbox:
    """Notes and structured memory as the model reaches them."""

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

    def of(self, store: Keepsakes, within: frozenset[str] | None = None) -> Toolbox:
        """The tools on the notes and the structured memory of someone else, who may read these windows; None: all."""
        return Toolbox(self.notes.of(store), self.tree.of(store, within), result_length=self._result_length)

    def detector(self) -> ToolDetector:
        """For one reply: finds the calls in it."""
        return ToolDetector()

    def instructions(self) -> str:
        """What the system prompt says of the tools, with the top of the tree as it is now."""
        return instructions(self.tree.listing())

    def overview(self) -> str:
        """What the system prompt says of the top of the tree, where a template declares the tools."""
        return holdings(self.tree.listing())

    def declarations(self) -> tuple[Mapping[str, Any], ...]:
        """The tools as chat templates take them."""
        return DECLARATIONS

    def native_call(self, name: str, arguments: Mapping[str, Any]) -> ToolCall:
        """A call in the format of the model's template, in the words in which it is shown and run."""
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
        """Do what a call found in a reply asks."""
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
        """Run one command, as text or as a value. An error is an answer too, so that the model can do better.

        `within`: the windows that this one recalls from. What it saves is explained by their talk alone.
        """
        try:
            asked = Command.read(command) if isinstance(command, str) else command
            answer, wake = self._answer(asked, now, within, decay_days)
            return ToolResult(str(command), answer, wake=wake)
        except HaloWeaveError as error:
            return ToolResult(str(command), str(error), ok=False)

    def _answer(
        self, command: Command, now: datetime, within: frozenset[str] | None, decay_days: float
    ) -> tuple[str, tuple[ChunkKey, ...]]:
        """What the command gives, and the chunks that it wants awake."""
        given, path = command.arguments, command.arguments.get("path", "")
        match command.tool:
            case "jq":
                return self._jq(given["program"], given["write"], now), ()
            case "save_memory":
                tokens, before = given["context_tokens"], self.tree.content(path)
                saved = self.tree.save(path, given["content"], now=now, context_tokens=tokens, within=within)
                replaced = (
                    "" if before in (None, saved.content) else f", before: {self._bounded(compact(before))}"
                )
                return f"✓ {saved.path} ({_version(saved)}{replaced})", ()
            case "inject_memory":
                entry = self.tree.query(path, now=now)
                return f"{self._bounded(compact(entry.content))} ({_version(entry)})", entry.keys
            case "query_memory":
                return self._with_context(self.tree.query(path, now=now), given["page"]), ()
            case "query_heading":
                found = self.tree.query_heading(
                    path, given["query"], now=now, recency_bias=given["recency_bias"], decay_days=decay_days
                )
                return self._matches(found), ()
            case "list_memory":
                tree = self.tree.listing(path, contents=True)
                return f"{self._bounded(compact(_contents(tree)))} ({tree.entries} in all)", ()
            case _:
                gone = self.tree.delete(path, now=now, recursive=given["recursive"])
                return f"✓ {gone} deleted", ()

    def _jq(self, program: str, write: bool, now: datetime) -> str:
        if write:
            return f"✓ {self._bounded(self.notes.write(program, now=now).changes)}"
        output = self.notes.read(program, now=now)
        if unsaved := self._unsaved(output, now):
            return f"{self._bounded(unsaved)} (not saved: end the command with > output)"
        text = quoted(" ".join(output.values)) if output.values else "no value"
        return self._bounded(text) + (" (and more)" if output.cut else "")

    def _unsaved(self, output: JqOutput, now: datetime) -> str:
        """If the program gave changed notes, what it would change: most likely it was meant to write."""
        try:
            value = output.parsed()[0] if len(output.values) == 1 else None
        except (ValueError, RecursionError):
            return ""
        if not isinstance(value, dict) or METADATA not in value or not shallow(value):
            return ""
        old = {**self.notes.document(now=now), METADATA: None}
        new = {**value, METADATA: None}
        return changes(old, new) if old != new else ""

    def _with_context(self, entry: Remembered, page: int) -> str:
        """What an entry says, and what was said when it was saved, whether that still exists or not; by pages."""
        kept: list[Json] = [chunk.text for chunk in entry.snapshot]
        whole = f"{compact(entry.content)} ({_version(entry)})" + (f" {compact(kept)}" if kept else "")
        pages = -(-len(whole) // self._result_length)
        if page > pages:
            raise BadInput(f"{entry.path} has {pages} page{'s' if pages > 1 else ''}.")
        part = whole[(page - 1) * self._result_length : page * self._result_length]
        return f"{part} (page {page} of {pages})" if pages > 1 else part

    def _matches(self, matches: Sequence[HeadingMatch]) -> str:
        shown = {match.entry.path: _match(match) for match in matches[:SHOWN_MATCHES]}
        more = len(matches) - len(shown)
        return self._bounded(compact(shown)) + (f" ({more} more)" if more else "")

    def _bounded(self, text: str) -> str:
        return bounded(text, self._result_length)


def _version(entry: Remembered) -> str:
    count = len(entry.snapshot)
    snapshot = f", {count} chunk{'s' if count > 1 else ''} kept with it" if count else ""
    return f"version {entry.version}, {entry.modified:%Y-%m-%d}{snapshot}"


def _match(match: HeadingMatch) -> Json:
    """An entry with its score and day, and the kept chunks that fit the query."""
    told: dict[str, Json] = {
        "content": match.entry.content,
        "score": round(match.score, 2),
        "modified": f"{match.entry.modified:%Y-%m-%d}",
    }
    chunks: list[Json] = [chunk.text for chunk in match.relevant]
    return {**told, "chunks": chunks} if chunks else told


def _contents(tree: Branch) -> Json:
    """Headings within headings; an entry is what it says."""
    below: dict[str, Json] = {child.heading: _contents(child) for child in tree.children}
    if tree.version is None:
        return below
    return {"": tree.content, **below} if below else tree.content
