"""Export conversations as Markdown or in the format of ChatGPT's export."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from itertools import groupby
from typing import Any, Literal

from halo_weave.chat.reply import THOUGHT, TOOL
from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput
from halo_weave.store.records import Progress, StoredChunk, TurnRecord, WindowRecord, silent
from halo_weave.store.sql_store import SqlStore

ExportFormat = Literal["halo-weave", "markdown", "chatgpt"]
Write = Callable[[str], object]


def export_conversations(
    store: SqlStore,
    write: Write,
    form: ExportFormat,
    window_id: str | None = None,
    progress: Progress = silent,
) -> None:
    """Export one window, or all windows if the format allows it."""
    windows = [store.window(window_id)] if window_id else store.windows()
    if form == "markdown":
        if len(windows) != 1:
            raise BadInput("Markdown is written for one window at a time. Name the window.")
        _write_markdown(store, windows[0], write, progress)
    else:
        _write_chatgpt(store, windows, write, progress)


def _write_markdown(store: SqlStore, window: WindowRecord, write: Write, progress: Progress = silent) -> None:
    """The current branch of a window, one heading for each turn. Times are UTC."""
    write(f"# {' '.join(window.name.split())}\n")
    turns = store.branch(window.id)
    for done, turn in enumerate(turns, 1):
        parts = _parts(store, turn)
        if parts:
            speaker = " ".join((turn.speaker or turn.role).split())
            write(f"\n## {speaker}, {turn.said.astimezone(UTC):%Y-%m-%d %H:%M}\n")
        for tag, text in parts:
            heading = {THOUGHT: "*Thought*\n\n", TOOL: "*Tool*\n\n"}.get(tag, "")
            body = (
                "\n".join(f"> {line}".rstrip() for line in (heading + text).splitlines()) if heading else text
            )
            write(f"\n{body}\n")
        progress(done, len(turns))


def _write_chatgpt(
    store: SqlStore, windows: Iterable[WindowRecord], write: Write, progress: Progress = silent
) -> None:
    """Write a list of conversations with all their branches, which importers of ChatGPT's export can read."""
    memory, chosen = store.stats().id, list(windows)
    write("[")
    for done, window in enumerate(chosen, 1):
        write("\n" if done == 1 else ",\n")
        write(json.dumps(_conversation(store, window, memory), ensure_ascii=False))
        progress(done, len(chosen))
    write("\n]\n")


def _conversation(store: SqlStore, window: WindowRecord, memory: str) -> dict[str, Any]:
    root = f"{memory}-{window.id}"
    nodes: dict[str, dict[str, Any]] = {root: {"id": root, "message": None, "parent": None, "children": []}}
    last: dict[int, str] = {0: root}  # the node that ends each turn
    updated = window.modified
    rest = _first_turns(store, window)
    while rest:
        turn = rest.pop()
        at = last[turn.parent or 0]
        for place, message in enumerate(_messages(turn, _parts(store, turn))):
            id = f"{memory}-{turn.id}" + (f"-{place}" if place else "")
            nodes[at]["children"].append(id)
            nodes[id] = {"id": id, "message": {"id": id, **message}, "parent": at, "children": []}
            at = id
        last[turn.id] = at
        updated = max(updated, turn.said)
        rest += reversed(store.followers(turn.id, window.id))
    branch = store.branch(window.id)
    return {
        "title": window.name,
        "create_time": window.created.timestamp(),
        "update_time": updated.timestamp(),
        "mapping": nodes,
        "current_node": last.get(branch[-1].id, root) if branch else root,
        "conversation_id": window.id,
        "id": window.id,
    }


def _first_turns(store: SqlStore, window: WindowRecord) -> list[TurnRecord]:
    """The turns that begin the window; for a window that branched off, its own first turns."""
    branch = store.branch(window.id)
    first = {turn.id: turn for turn in store.followers(0, window.id)}
    if branch and branch[0].parent is None:
        first[branch[0].id] = branch[0]
    return [first[id] for id in sorted(first, reverse=True)]


def _messages(turn: TurnRecord, parts: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for tag, text in parts:
        role, name = str(turn.role), turn.speaker or None
        content: dict[str, Any] = {"content_type": "text", "parts": [text]}
        if tag == THOUGHT:
            content = {"content_type": "thoughts", "thoughts": [{"summary": "", "content": text}]}
        elif tag == TOOL and turn.role is Role.ASSISTANT:
            role, name, content = "tool", None, {"content_type": "execution_output", "text": text}
        yield {
            "author": {"role": role, "name": name, "metadata": {}},
            "create_time": turn.said.timestamp(),
            "content": content,
            "status": "finished_successfully",
            "weight": 1.0,
            "metadata": {},
            "recipient": "all",
        }


def _parts(store: SqlStore, turn: TurnRecord) -> list[tuple[str, str]]:
    """The text of a turn without deleted chunks, as runs of one kind."""
    chunks = sorted(store.turn(turn.id), key=lambda one: one.chunk.start)
    there = [chunk for chunk in chunks if chunk.deleted is None and chunk.merged_into is None]
    parts = (
        (tag, "".join(one.chunk.text for one in group).strip()) for tag, group in groupby(there, key=_tag)
    )
    return [(tag, text) for tag, text in parts if text]


def _tag(record: StoredChunk) -> str:
    return next((tag for tag in (THOUGHT, TOOL) if tag in record.tags), "")
