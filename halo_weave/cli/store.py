"""Commands on the stored memory: status, windows, export, import, backup, verify, move, clear, sync."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from halo_weave.app import clear_cache, move_memory, open_store
from halo_weave.chat.capture import drop_captures
from halo_weave.chat.export import ExportFormat, export_conversations
from halo_weave.chat.windows import checked_tags, find_window, window_name
from halo_weave.cli.app import Data, Json, Yes, app, folder_of, memory_place, progress_bar
from halo_weave.cli.terminal import json_line, plain, with_count
from halo_weave.config import read_config
from halo_weave.errors import BadInput, StoreCorrupt
from halo_weave.paths import captures_folder, index_snapshot_file
from halo_weave.search.embedding_worker import is_outdated
from halo_weave.search.index_snapshot import delete_snapshot
from halo_weave.store.records import ExportFilter, VerifyFinding, WindowRecord
from halo_weave.store.sql_store import SqlStore

LAST_TURN = 2**63 - 1
Target = Annotated[Path, typer.Argument(help="File to write. It must not exist yet.")]


def now() -> datetime:
    return datetime.now(UTC)


def open_or_create(data: Path | None) -> SqlStore:
    """Open the memory for a command that may create it."""
    return open_store(memory_place(data))


def open_to_read(data: Path | None) -> SqlStore:
    """Open the memory for a command that changes nothing; also works on a read-only disk."""
    return open_store(memory_place(data), read_only=True)


def open_to_change(data: Path | None) -> SqlStore:
    """Open an existing memory for a command that changes it."""
    open_to_read(data).close()
    return open_or_create(data)


def to_json(value: Any) -> Any:
    """A record as JSON: ids as text, times in ISO format."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def print_json(value: Any) -> None:
    typer.echo(json_line(to_json(value)))


def print_result(as_json: bool, value: Any, sentence: str) -> None:
    """Print the result of a command, as JSON or as a sentence."""
    if as_json:
        print_json(value)
    else:
        typer.echo(sentence)


def _print_written(as_json: bool, target: Path, done: str) -> None:
    size = target.stat().st_size
    print_result(as_json, {"file": str(target), "bytes": size}, f"{done} to {target} ({size / 1e6:,.1f} MB).")


@contextmanager
def counted_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the error stream; a total of 0 means unknown."""
    with progress_bar(counts=True) as report:
        report(title, 0, 0)
        yield lambda done, total: report(title, done, total)


def _moment_of(text: str | None, option: str) -> datetime | None:
    """A date or time; without a time zone it is local time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise BadInput(
            f"{text!r} is not a time for {option}. Write it like 2026-01-31 or 2026-01-31T12:00."
        ) from None


@app.command()
def status(data: Data = None, as_json: Json = False) -> None:
    """Show what the memory holds."""
    with open_to_read(data) as store:
        stats = store.stats()
        place = store.place
    if as_json:
        figures = {
            **to_json(stats),
            "next_turn": str(stats.next_turn),
            "next_position": str(stats.next_position),
        }
        print_json({"memory": place, **figures})
        return
    table = Table(show_header=False, box=None)
    table.add_row("memory", plain(place))
    table.add_row("size", f"{stats.bytes / 1e6:,.1f} MB")
    said = f"{with_count(stats.tokens, 'token')} in {with_count(stats.chunks, 'chunk')}"
    table.add_row("said", f"{said} and {with_count(stats.turns, 'turn')}")
    table.add_row("deleted", with_count(stats.deleted_chunks, "chunk"))
    table.add_row("windows", f"{stats.windows:,}")
    table.add_row("next", f"turn {stats.next_turn}, position {stats.next_position}")
    entries, notes = with_count(stats.entries, "entry", "entries"), with_count(stats.notes, "note")
    table.add_row("structured memory", f"{entries}, {notes}")
    if stats.drafts:
        table.add_row("unfinished replies", f"{stats.drafts:,}")
    for generation in stats.generations:
        if generation.state != "retired":
            left = f", {generation.wanted:,} to do" if generation.wanted else ""
            old = ", by an earlier method: halo-weave reindex renews them" if is_outdated(generation) else ""
            made = f"{generation.vectors:,} by {generation.model}{left}{old}"
            table.add_row(f"vectors, {generation.state}", plain(made))
    Console().print(table)


@app.command()
def windows(
    data: Data = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Show deleted windows too.")] = False,
    archived: Annotated[bool, typer.Option("--archived", help="Show archived windows too.")] = False,
    tag: Annotated[str | None, typer.Option(help="Only windows with this tag.")] = None,
    as_json: Json = False,
) -> None:
    """List the windows with their live and pruned chunks, pinned windows first."""
    with open_to_read(data) as store:
        listed = [
            window
            for window in store.windows(deleted=deleted)
            if (archived or not window.archived) and (tag is None or tag in window.tags)
        ]
        listed.sort(key=lambda window: not window.pinned)
        stats = [store.window_stats(window.id) for window in listed]
    if as_json:
        print_json(
            {
                "windows": [
                    {**to_json(item.window), **to_json(item), "window": item.window.id} for item in stats
                ]
            }
        )
        return
    table = Table(box=SIMPLE)
    tagged = any(item.window.tags for item in stats)
    for heading in ("id", "name", *(["tags"] if tagged else []), "live", "asleep", "said", "created"):
        table.add_column(heading, no_wrap=heading == "id")
    for item in stats:
        table.add_row(
            item.window.id,
            plain(_marked(item.window)),
            *([plain(", ".join(item.window.tags))] if tagged else []),
            with_count(item.live_tokens, "token"),
            with_count(item.pruned_chunks, "chunk"),
            with_count(item.said_tokens, "token"),
            item.window.created.astimezone().strftime("%Y-%m-%d"),
        )
    Console().print(table)


def _marked(window: WindowRecord) -> str:
    """A window's name with its marks: pinned, archived, deleted."""
    marks = {"pinned": window.pinned, "archived": window.archived, "deleted": window.deleted}
    shown = [mark for mark, applies in marks.items() if applies]
    return f"{window.name} ({', '.join(shown)})" if shown else window.name


@app.command()
def window(
    name: Annotated[str, typer.Argument(help="Its name or id.")],
    data: Data = None,
    tags: Annotated[
        str | None, typer.Option("--tags", help="Its new tags, separated by commas; empty for none.")
    ] = None,
    pin: Annotated[bool | None, typer.Option("--pin/--unpin", help="First in lists, or not.")] = None,
    archive: Annotated[
        bool | None,
        typer.Option(
            "--archive/--unarchive", help="Hide it from lists, or show it. What was said stays in memory."
        ),
    ] = None,
    rename: Annotated[str | None, typer.Option(help="Another name.")] = None,
    as_json: Json = False,
) -> None:
    """Change a window's tags, pin, archive and name. Without options: show them."""
    with open_to_change(data) as store:
        record = find_window(store.windows(), name)
        if (tags, pin, archive, rename) != (None, None, None, None):
            record = store.change_window(
                record.id,
                name=None if rename is None else window_name(rename),
                tags=None if tags is None else checked_tags([tag for tag in tags.split(",") if tag.strip()]),
                pinned=pin,
                archived=archive,
                now=now(),
            )
    tagged = f", tagged {', '.join(record.tags)}" if record.tags else ""
    print_result(as_json, record, f"{record.id}: {_marked(record)}{tagged}")


@app.command("export")
def _export_memory(
    target: Annotated[
        Path, typer.Argument(help="File to write, or - for standard output. It must not exist yet.")
    ],
    data: Data = None,
    window: Annotated[
        str | None, typer.Option(help="Only what was said or resurrected in this window: its name or id.")
    ] = None,
    first_turn: Annotated[
        int | None, typer.Option(min=0, max=LAST_TURN, help="Only from this turn on.")
    ] = None,
    last_turn: Annotated[int | None, typer.Option(min=0, max=LAST_TURN, help="Only up to this turn.")] = None,
    since: Annotated[str | None, typer.Option(help="Only what was said at this time or later.")] = None,
    until: Annotated[str | None, typer.Option(help="Only what was said at this time or before.")] = None,
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Include the embeddings, which can also be computed again.")
    ] = False,
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format", help="markdown: one window to read. chatgpt: what importers of ChatGPT's export read."
        ),
    ] = "halo-weave",
    as_json: Json = False,
) -> None:
    """Write the memory, or a part of it, to a file."""
    spans = _moment_of(since, "--since"), _moment_of(until, "--until")
    to_stdout = str(target) == "-"
    if target.exists():
        raise BadInput(f"{target} exists already. Name another file for the export.")
    if not to_stdout and not target.parent.is_dir():
        raise BadInput(
            f"There is no folder {target.parent}. Make it first, or name another file for the export."
        )
    with open_to_read(data) as store, counted_progress("Exporting turns") as progress:
        chosen = find_window(store.windows(), window).id if window else None
        subset = ExportFilter(chosen, first_turn, last_turn, *spans)
        if form != "halo-weave" and replace(subset, window=None) != ExportFilter():
            raise BadInput(
                f"The format {form} takes whole windows. Leave out the turns and times, or the format."
            )

        def export(write: Callable[[str], object]) -> None:
            if form == "halo-weave":
                store.export(write, now=now(), subset=subset, vectors=vectors, progress=progress)
            else:
                export_conversations(store, write, form, chosen, progress)

        if to_stdout:
            export(sys.stdout.write)
            return
        partial = target.with_name(target.name + ".partial")
        try:
            with partial.open("w", encoding="utf-8") as file:
                export(file.write)
            partial.replace(target)
        except OSError as error:
            raise BadInput(f"{target} cannot be written: {error.strerror}.") from error
        finally:
            partial.unlink(missing_ok=True)
    _print_written(as_json, target, "Exported")


@app.command("import")
def _import_memory(
    source: Annotated[
        Path,
        typer.Argument(
            help="A file or zip: an export of Halo Weave or of another program, or a character card."
        ),
    ],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Import the conversations in a file. What is stored already stays unchanged.

    Known formats: Halo Weave, ChatGPT, Claude, SillyTavern, Open WebUI, KoboldAI Lite, LM Studio, Jan,
    text-generation-webui, and character cards (JSON or PNG). Importing again adds only what is new.
    """
    with open_or_create(data) as store, counted_progress("Importing") as progress:
        known = {window.id for window in store.windows()}
        result = store.import_file(source, now=now(), progress=progress)
        new = [window for window in store.windows() if window.id not in known]  # without those deleted there
    if as_json:
        print_json(result)
        return
    said = f"{with_count(result.tokens, 'token')} in {with_count(result.turns, 'turn')}"
    origin = f" from {result.program}" if result.program != "Halo Weave" else ""
    typer.echo(f"Imported {said}, {with_count(len(new), 'window')}{origin}.")
    if result.known_turns:
        were = "was" if result.known_turns == 1 else "were"
        typer.echo(f"{with_count(result.known_turns, 'turn')} {were} here already and stayed the same.")
    if result.left:
        typer.echo(
            "Not taken: " + "; ".join(f"{reason}: {count:,}" for reason, count in result.left.items()) + "."
        )
    if result.ids:
        typer.echo(result.ids)


@app.command()
def backup(target: Target, data: Data = None, as_json: Json = False) -> None:
    """Copy the memory as it is now, also while it is in use."""
    with open_to_read(data) as store, counted_progress("Copying pages") as progress:
        store.backup(target, progress=progress)
    _print_written(as_json, target, "Backed up")


@app.command()
def verify(
    data: Data = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be rebuilt from the stored chunks.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the memory: its file, ids, ranges and indexes."""
    try:
        with (
            open_to_change(data) if repair else open_to_read(data) as store,
            counted_progress("Checking") as progress,
        ):
            findings = store.verify(repair=repair, progress=progress)
    except StoreCorrupt as error:  # it cannot even be opened
        findings = [VerifyFinding.of(error)]
    left = [finding for finding in findings if not finding.repaired]
    if as_json:
        print_json({"ok": not left, "findings": findings})
    else:
        for finding in findings:
            typer.echo(f"{finding.check}: {finding.sentence}{' Repaired.' if finding.repaired else ''}")
        typer.echo(
            "The memory is sound."
            if not left
            else "The memory is not sound. Some of it can be rebuilt: --repair"
        )
    if left:
        raise typer.Exit(1)


@app.command("move")
def _move_memory(
    to: Annotated[
        str, typer.Option("--to", help="A folder, or an address such as postgresql://user@host/name.")
    ],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Copy the memory into another store, compare every row, and leave this one unchanged.

    The target must have no memory yet. End other programs that use the memory first. An interrupted move continues when
    it is repeated.
    """
    place = memory_place(data)
    target: Path | str = to if "://" in to else Path(to).expanduser()
    with counted_progress("Moving rows") as progress:
        stats, findings = move_memory(place, target, progress)
    said = f"{with_count(stats.tokens, 'token')} in {with_count(stats.turns, 'turn')}"
    print_result(
        as_json,
        {"turns": stats.turns, "tokens": stats.tokens, "windows": stats.windows, "findings": findings},
        f"Moved {said}; every row was compared. From now on name the new place, with "
        f"{'--store' if isinstance(target, str) else '--data'} or in the config. The old one was not changed.",
    )
    for finding in [] if as_json else findings:
        typer.echo(f"{finding.check}: {finding.sentence}")


@app.command()
def clear(data: Data = None, yes: Yes = False, as_json: Json = False) -> None:
    """Delete everything that was said and saved. This cannot be undone."""
    with open_to_change(data) as store:
        stats = store.stats()
        if not yes:
            said = f"{with_count(stats.tokens, 'token')} in {with_count(stats.turns, 'turn')}"
            kept = f"{with_count(stats.entries, 'entry', 'entries')} and {with_count(stats.notes, 'note')}"
            typer.confirm(
                f"Wipe {said}, {with_count(stats.windows, 'window')}, {kept} from {store.place}?",
                abort=True,
                err=True,
            )
        store.clear(confirm=True)
    folder = folder_of(read_config(), data)
    delete_snapshot(index_snapshot_file(folder))
    clear_cache(folder)
    drop_captures(captures_folder(folder), None)
    print_result(as_json, {"cleared_turns": stats.turns, "cleared_tokens": stats.tokens}, "Cleared.")


@app.command("sync")
def _sync_memory(
    folder: Annotated[
        Path, typer.Argument(help="A folder that the devices share, such as one of a cloud drive.")
    ],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Merge this memory with those of your other devices, through a folder that all of them can reach.

    What is new here is written there as a new file, and the files of the others are imported. When all devices have
    done so, they have the same conversations, deletions, notes and structured memory. Run it as often as you like, also
    while the server runs; while a reply is being written, it asks you to wait. The files contain all that was said,
    readable for everybody who can read the folder.
    """
    with open_or_create(data) as store:
        result = store.sync(folder.expanduser(), now=now())
    sent = f"Sent {with_count(result.sent, 'turn or change', 'turns and changes')}"
    received = f"received {with_count(result.turns, 'turn')} and {with_count(result.changes, 'change')}"
    lines = [f"{sent}, {received}."]
    if result.waiting:
        files = with_count(result.waiting, "file")
        lines.append(
            f"{files} there cannot be read yet: the folder may still be synchronising. Sync again later."
        )
    lines += [f"Refused: {plain(why)}" for why in result.refused]
    print_result(as_json, result, "\n".join(lines))
