"""Commands for the AI's structured memory and notes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from halo_weave.app import build_weave, snapshot_search
from halo_weave.chat.tools.calls import CONTEXT_LIMIT, CONTEXT_TOKENS
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import HeadingNode, SavedEntry, StructuredMemory
from halo_weave.cli.app import Data, Json, Model, Yes, app, options_of, progress_bar
from halo_weave.cli.search import EmbedderFile, open_search
from halo_weave.cli.store import (
    now,
    open_or_create,
    open_to_change,
    open_to_read,
    print_json,
    print_result,
    to_json,
)
from halo_weave.cli.terminal import plain, printable, with_count
from halo_weave.config import read_config
from halo_weave.errors import BadInput
from halo_weave.store.sql_store import SqlStore

memory = typer.Typer(help="The AI's structured memory: entries under headings.", no_args_is_help=True)
app.add_typer(memory, name="memory")

PathOf = Annotated[str, typer.Argument(metavar="PATH", help="Such as Project/Goals/First.")]
Heading = Annotated[str, typer.Argument(metavar="[PATH]", help="A heading; without one, all of the memory.")]


@memory.command("list")
def _list_memories(path: Heading = "", data: Data = None, as_json: Json = False) -> None:
    """Show the structured memory as a tree."""
    with open_to_read(data) as store:
        found = StructuredMemory(store).listing(path)
    if as_json:
        print_json(found)
    elif not found.entries:
        typer.echo("The memory is empty.")
    else:
        Console().print(_add_branch(found, Tree(_labelled(found, found.path or "memory"))))


@memory.command("show")
def _show_memory(
    path: PathOf,
    data: Data = None,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="With the chunks that explain it.")] = False,
    as_json: Json = False,
) -> None:
    """Show one entry. It does not count as an access by the AI."""
    with open_to_read(data) as store:
        entry = StructuredMemory(store).query(path, now=None)
    if as_json:
        print_json(_entry_json(entry))
        return
    typer.echo(printable(json.dumps(entry.content, ensure_ascii=False, indent=2)))
    typer.echo(
        f"version {entry.version}, saved {_day(entry)}, chunks kept with it: {len(entry.snapshot)}", err=True
    )
    for chunk in entry.snapshot if snapshot else ():
        key = chunk.key or "not in this memory"
        head = f"{key}  similarity {chunk.similarity:.2f}, {with_count(chunk.tokens, 'token')}"
        typer.echo(f"\n{head}\n{printable(chunk.text)}")


@memory.command("find")
def _find_memories(
    query: Annotated[str, typer.Argument(help="Words to look for.")],
    data: Data = None,
    under: Annotated[str, typer.Option("--under", metavar="PATH", help="Only below this heading.")] = "",
    recency_bias: Annotated[
        float, typer.Option(min=0, max=1, help="How much the age of an entry counts, from 0 to 1.")
    ] = 0.3,
    embedder: EmbedderFile = None,
    as_json: Json = False,
) -> None:
    """Find entries by meaning, words and age."""
    with open_to_read(data) as store, _remembering(store, embedder) as tree:
        matches = tree.query_heading(under, query, now=now(), recency_bias=recency_bias)
    if as_json:
        found = [
            {**_entry_json(one.entry), "score": one.score, "similarity": one.similarity} for one in matches
        ]
        print_json({"matches": found})
        return
    if not matches:
        typer.echo("Nothing was found.")
    for one in matches[:20]:
        content = json.dumps(one.entry.content, ensure_ascii=False)[:200]
        typer.echo(printable(f"{one.score:.2f}  {one.entry.path} = {content}"))


@memory.command("save")
def _save_memory(
    path: PathOf,
    content: Annotated[str, typer.Argument(help="JSON or text; - reads it from standard input.")],
    data: Data = None,
    context_tokens: Annotated[
        int,
        typer.Option(
            min=0, max=CONTEXT_LIMIT, help="About this many tokens of explaining chunks are saved with it."
        ),
    ] = CONTEXT_TOKENS,
    embedder: EmbedderFile = None,
    as_json: Json = False,
) -> None:
    """Save an entry or a new version of it, with the chunks that explain it. Older versions are kept."""
    with open_or_create(data) as store, _remembering(store, embedder, writes=True) as tree:
        saved = tree.save(path, _value_of(content), now=now(), context_tokens=context_tokens)
    kept = f"chunks kept with it: {len(saved.snapshot)}"
    print_result(
        as_json, _entry_json(saved), printable(f"Saved {saved.path}, version {saved.version}, {kept}.")
    )


@memory.command("inject")
def _inject_memory(
    path: PathOf,
    window: Annotated[str, typer.Option("--window", help="Name or id of the window.")],
    model: Model = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Resurrect the chunks that explain an entry in a window. The dimmest chunks are pruned to make room."""
    with progress_bar() as report:
        weave = build_weave(options_of(read_config(), data=data, model=model, embedder="off"), report)
    with closing(weave):
        done = weave.memory_tools.inject(weave.windows.find(window).id, path)
    resurrected, pruned = done.resurrected, done.pruned
    cost = sum(one.cost for one in resurrected)
    made_room = f" {with_count(len(pruned), 'dimmer one')} fell asleep to make room." if pruned else ""
    print_result(
        as_json,
        {
            "resurrected": [str(one.key) for one in resurrected],
            "cost": cost,
            "pruned": [str(one.key) for one in pruned],
        },
        f"Woke {with_count(len(resurrected), 'chunk')}, {with_count(cost, 'token')}.{made_room}",
    )


@memory.command("delete")
def _delete_memory(
    path: PathOf,
    data: Data = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="With all entries below it.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete an entry. Its versions stay in its history."""
    with open_to_change(data) as store:
        tree = StructuredMemory(store)
        count = tree.listing(path).entries if recursive else 1
        if count > 1 and not yes:
            typer.confirm(f"Delete {count} memories at and below {path}?", abort=True, err=True)
        gone = tree.delete(path, now=now(), recursive=recursive)
    print_result(as_json, {"deleted": gone}, f"Deleted {gone}.")


@memory.command("history")
def _show_history(path: PathOf, data: Data = None, as_json: Json = False) -> None:
    """Show all versions of an entry, newest first; also of a deleted one."""
    with open_to_read(data) as store:
        versions = StructuredMemory(store).history(path)
    if as_json:
        print_json({"versions": [_entry_json(version) for version in versions]})
        return
    for version in versions:
        until = f" to {version.ended.astimezone():%Y-%m-%d %H:%M}" if version.ended else ""
        content = json.dumps(version.content, ensure_ascii=False)
        typer.echo(printable(f"{version.version}  {_day(version)}{until}  {content}"))


@app.command()
def notes(
    program: Annotated[str, typer.Argument(metavar="[FILTER]", help="A jq program.")] = ".",
    data: Data = None,
    write: Annotated[bool, typer.Option("--write", help="Replace the notes by the result.")] = False,
    as_json: Json = False,
) -> None:
    """Read the AI's notes, or change them, with jq."""
    if write:
        with open_or_create(data) as store:
            written = Notes(store).write(program, now=now())
        print_result(
            as_json, {"changes": written.changes, "notes": written.document}, printable(written.changes)
        )
        return
    with open_to_read(data) as store:
        output = Notes(store).read(program, now=now())
    if output.cut:
        raise BadInput("The result is too large to show. Use a filter that gives less.")
    try:
        values = output.parsed()
    except RecursionError:
        raise BadInput("The result is nested too deeply to show. Use a filter that gives less.") from None
    if as_json:
        print_json({"values": values})
        return
    for value in values:
        typer.echo(printable(json.dumps(value, ensure_ascii=False, indent=2)))


@contextmanager
def _remembering(
    store: SqlStore, embedder: str | None, *, writes: bool = False
) -> Iterator[StructuredMemory]:
    """The structured memory as the AI has it: with search by meaning and snapshots."""
    with open_search(store, embedder, writes=writes) as recall:
        yield StructuredMemory(store, search=snapshot_search(store, recall), embedder=recall.embedder)


def _value_of(text: str) -> Any:
    """The text as JSON if it is valid, else as text."""
    if text == "-":
        if sys.stdin is None:
            raise BadInput("Standard input is closed, so nothing can be read from it.")
        text = sys.stdin.read()
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise BadInput("This is nested too deeply to be kept.") from None


def _entry_json(entry: SavedEntry) -> dict[str, Any]:
    chunks = [{**asdict(chunk), "key": chunk.key and str(chunk.key)} for chunk in entry.snapshot]
    return {**to_json(entry), "snapshot": chunks}


def _day(entry: SavedEntry) -> str:
    return f"{entry.modified.astimezone():%Y-%m-%d %H:%M}"


def _add_branch(branch: HeadingNode, node: Tree) -> Tree:
    for child in branch.children:
        _add_branch(child, node.add(_labelled(child, child.heading)))
    return node


def _labelled(branch: HeadingNode, name: str) -> Text:
    """The heading, with version and day if it is an entry."""
    label = plain(name)
    if branch.version and branch.modified:
        label.append(f"  version {branch.version}, {branch.modified.astimezone():%Y-%m-%d}", style="dim")
    return label
