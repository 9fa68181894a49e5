"""halo-weave lab: capture, replay, compare, models, digest."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from halo_weave.app import calibrate_engine, open_engine
from halo_weave.chat.capture import StoredCapture
from halo_weave.chat.transcript import digest as made_digest
from halo_weave.chat.windows import find_window
from halo_weave.cli.app import Data, Json, Model, app, folder_of, options_of, progress_bar
from halo_weave.cli.store import open_to_read, print_json, to_json
from halo_weave.cli.terminal import plain, with_count
from halo_weave.config import read_config
from halo_weave.core.strategies import STRATEGIES
from halo_weave.errors import BadInput
from halo_weave.lab.conversations import read_messages, run_conversation
from halo_weave.lab.plots import write_plots
from halo_weave.lab.replay import compare_strategies
from halo_weave.lab.replay import replay as replayed
from halo_weave.paths import captures_folder
from halo_weave.settings import Settings

lab = typer.Typer(help="Captures of a model's attention, replays, comparisons and digests: docs/lab.md.")
app.add_typer(lab, name="lab")

Capture = Annotated[
    Path, typer.Argument(help="A folder with a capture, or the name of a window that was captured.")
]
Strategies = Annotated[
    str | None, typer.Option("--strategies", help=f"With commas. All: {', '.join(STRATEGIES)}.")
]
Tokens = Annotated[
    int | None, typer.Option("--budget", min=0, help="Budget in tokens. Default: as in the capture.")
]


@lab.command()
def capture(
    folder: Annotated[
        Path, typer.Argument(help="Where the capture is written. An existing one is continued.")
    ],
    text: Annotated[
        Path,
        typer.Argument(
            help="The messages: a text file with one message per line, or a LoCoMo conversation, whose replies are given."
        ),
    ],
    model: Model = None,
    data: Data = None,
    heads: Annotated[
        Literal["mean", "retrieval", "all"], typer.Option(help="Which heads are captured.")
    ] = "retrieval",
    strategy: Annotated[str, typer.Option(help="Decides what is pruned meanwhile.")] = Settings().strategy,
    budget: Annotated[
        int, typer.Option(min=0, help="Budget in tokens; 0 prunes nothing, for replays at any budget.")
    ] = 0,
    exchanges: Annotated[int | None, typer.Option(min=1, help="Only the first exchanges.")] = None,
    megabytes: Annotated[int, typer.Option(min=1, help="Largest size of the capture in megabytes.")] = 1_000,
) -> None:
    """Run a conversation on a model and capture its attention. For windows in use, there is the setting `capture`."""
    options = options_of(read_config(), data=data, model=model, embedder="off")
    says = read_messages(text)[:exchanges]
    settings = options.settings.changed(
        {
            "capture": heads,
            "capture_megabytes": megabytes,
            "strategy": strategy,
            "max_context_tokens": budget,
            "temperature": 0.0,
            "tools": "off",
        }
    )
    with progress_bar(counts=True) as report, closing(open_engine(options, report)) as engine:
        calibration = calibrate_engine(options, engine, report)
        run_conversation(engine, calibration, settings, says, report, folder)
    Console(highlight=False).print(plain(f"Captured {with_count(len(says), 'exchange')} in {folder}."))


@lab.command()
def replay(
    capture: Capture,
    strategy: Annotated[str | None, typer.Option(help="Default: as in the capture.")] = None,
    budget: Tokens = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show what another strategy or budget would have pruned, turn by turn."""
    recording = _recording(capture, data)
    _chosen(strategy)
    done = replayed(recording, strategy=strategy, budget=budget)
    if as_json:
        pruned = [
            {
                "turn": one.turn,
                "key": str(one.key),
                "brightness": one.brightness,
                "age": one.age,
                "reason": one.why,
            }
            for one in done.pruned
        ]
        resurrected = [{"turn": turn, "key": str(key)} for turn, key in done.resurrected]
        counts = {"turns": len(done.brightness), "rows": done.rows}
        print_json({**counts, "pruned": pruned, "resurrected": resurrected})
        return
    table = Table("turn", "key", "brightness", "age", "why", "text", box=SIMPLE)
    for one in done.pruned:
        words = plain(" ".join(done.texts.get(one.key, "").split())[:60])
        table.add_row(str(one.turn + 1), str(one.key), f"{one.brightness:.0f}", str(one.age), one.why, words)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        plain(
            f"{with_count(len(done.brightness), 'turn')}, {with_count(len(done.pruned), 'chunk')} fell asleep."
        )
    )


@lab.command()
def compare(
    captures: Annotated[list[Path], typer.Argument(help="Folders with captures, or names of windows.")],
    strategies: Strategies = None,
    budget: Tokens = None,
    plots: Annotated[Path | None, typer.Option(help="A folder for plots, as PNG and as SVG.")] = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Compare strategies on captures."""
    output: dict[str, Any] = {}
    for capture in captures:
        recording = _recording(capture, data)
        done, output[str(capture)] = compare_strategies(recording, _chosen(strategies), budget)
        if plots:
            place = plots if len(captures) == 1 else plots / capture.name
            output[str(capture)]["plots"] = [str(path) for path in write_plots(recording, done, place)]
    if as_json:
        print_json(output)
        return
    console = Console(highlight=False)
    for name, found in output.items():
        console.print(plain(name, "bold"))
        for title, rows in found.items():
            if isinstance(rows, dict) and rows:
                _print_table(console, title, rows)
            elif rows not in ({}, None):
                console.print(
                    plain(f"{title}: {', '.join(map(str, rows)) if isinstance(rows, list) else rows}")
                )


@lab.command()
def models(
    text: Annotated[Path, typer.Argument(help="The messages: a text file with one message per line.")],
    model: Annotated[list[str], typer.Option("--model", help="A model; give at least two.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Run the same conversation on several models, and compare their replies and attribution."""
    says = read_messages(text)
    output: dict[str, Any] = {}
    for name in model:
        options = options_of(read_config(), data=data, model=name, embedder="off")
        settings = options.settings.changed({"temperature": 0.0, "tools": "off"})
        with progress_bar(counts=True) as report, closing(open_engine(options, report)) as engine:
            calibration = calibrate_engine(options, engine, report)
            turns = run_conversation(engine, calibration, settings, [(said, "") for said, _ in says], report)
            output[engine.info.name] = {"light": calibration.sentence, "turns": turns}
    if as_json:
        print_json(output)
        return
    console = Console(highlight=False)
    for i, (said, _) in enumerate(says):
        console.print(plain(f"\n{said}", "bold"))
        for name, found in output.items():
            turn = found["turns"][i]
            console.print(plain(f"{name}: {turn['reply']}"))
            for source in turn["sources"]:
                words = " ".join(source["text"].split())[:80]
                console.print(plain(f"    {source['share']:4.0%} from {source['key']}  {words}", "dim"))


@lab.command()
def digest(
    window: Annotated[str, typer.Argument(help="A window, by name or id.")],
    tokens: Annotated[int, typer.Option(min=1, help="At most this many tokens.")] = 400,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Show what a window used most, in the original words, with its sources."""
    with open_to_read(data) as store:
        found = made_digest(store, find_window(store.windows(), window).id, tokens)
    if as_json:
        print_json([{**to_json(one), "key": str(one.key)} for one in found])
        return
    console = Console(highlight=False)
    for one in found:
        when = f"{one.said.astimezone():%Y-%m-%d %H:%M}"
        used = with_count(len(one.replies), "reply", "replies")
        console.print(plain(f"{one.key}, {one.speaker}, {when}: {one.share:.0%} of {used}", "dim"))
        console.print(plain(one.text))
    if not found:
        console.print(plain("No reply of this window has used anything yet."))


def _recording(capture: Path, data: Path | None) -> StoredCapture:
    """The capture in a folder, or of a window by its name or id."""
    if not capture.is_dir():
        with open_to_read(data) as store:
            window = find_window(store.windows(), str(capture)).id
        capture = captures_folder(folder_of(read_config(), data)) / window
    return StoredCapture.open(capture)


def _chosen(named: str | None) -> list[str]:
    chosen = [name for name in named.split(",") if name] if named else list(STRATEGIES)
    if unknown := [name for name in chosen if name not in STRATEGIES]:
        raise BadInput(f"There is no strategy {unknown[0]!r}. There are: {', '.join(STRATEGIES)}.")
    return chosen


def _print_table(console: Console, title: str, rows: dict[str, Any]) -> None:
    """Print a table of numbers by name; of nested values, only the numbers."""
    first = next(iter(rows.values()))
    if not isinstance(first, dict):
        table = Table(title, "", box=SIMPLE)
        for name, value in rows.items():
            table.add_row(name, str(value))
    else:
        names = [name for name, value in first.items() if not isinstance(value, dict)]
        table = Table(box=SIMPLE)
        table.add_column(title, no_wrap=True)
        for name in names:
            table.add_column(name.replace("_", " "))
        for name, found in rows.items():
            table.add_row(name, *(str(found.get(one, "")) for one in names))
    console.print(table)
