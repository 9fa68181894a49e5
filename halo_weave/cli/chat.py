"""`halo-weave chat`: a window in the terminal."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from halo_weave.app import Options, build_weave
from halo_weave.chat import events
from halo_weave.chat.documents import Document
from halo_weave.chat.views import PrunedGap
from halo_weave.chat.weave import Weave
from halo_weave.cli.app import announce_default_model, app, progress_bar, with_options
from halo_weave.cli.terminal import TOOL, brightness_range, coloured_chunk, format_bytes, plain, with_count
from halo_weave.core.pruning import PruneReason
from halo_weave.core.tokens import ChunkKey
from halo_weave.engines.base import PrefillPlanned
from halo_weave.errors import BadInput, HaloWeaveError
from halo_weave.models.inventory import listed_models
from halo_weave.models.memory_estimate import machine_memory
from halo_weave.store.records import PUBLIC_EVENT_KINDS, WindowRecord

HELP = """\
/context             what the model sees, in the colours of its brightness, with the keys of the chunks
/pin KEY  /unpin KEY never forget a chunk, or let it be forgotten again
/sleep KEY           put a chunk to sleep
/prune               apply the budget now, in place of after the next reply
/graveyard [TEXT]    what sleeps in this window
/wake KEY            wake a chunk up at its place with its pair, and pin it
/why KEY             why it is bright, why it slept, what woke it
/search TEXT         search all that was ever said
/stats               figures of this window and of the memory
/windows [NAME]      all windows; with a name or id, go there
/new NAME            a new window, and go there
/attach FILE         attach a text, a PDF or a DOCX to your next message; without a file, what is attached
/preset [NAME]       all presets; with a name, it holds in this window
/model [NAME]        all models; with a name, a path or hf:owner/repository, go on with that one
/help  /quit         a key looks like 12.0.user; Ctrl-C stops a reply, Ctrl-D ends"""
SHOWN = 20  # rows of a list
QUIET = "bright_black"


class Chat:
    """A conversation in one window at a time, and the commands that begin with a slash."""

    def __init__(self, weave: Weave, window: WindowRecord, console: Console) -> None:
        self.weave, self.window, self.console = weave, window, console
        self.going = True
        self.thinking = False  # the last token was part of a thought
        self.reading: Status | None = None  # the line that is shown while the model reads
        self.attached: list[Document] = []  # goes with the next message
        self.commands: dict[str, Callable[[str], None]] = {
            "context": self.context,
            "pin": lambda key: self.act(weave.chunks.pin, key, "is pinned"),
            "unpin": lambda key: self.act(weave.chunks.unpin, key, "is not pinned any more"),
            "sleep": lambda key: self.act(weave.chunks.prune, key, "sleeps"),
            "prune": self.prune,
            "wake": self.wake,
            "graveyard": self.graveyard,
            "why": self.why,
            "search": self.search,
            "stats": self.stats,
            "windows": self.windows,
            "new": self.new,
            "attach": self.attach,
            "preset": self.preset,
            "model": self.model,
            "help": lambda _: self.console.print(HELP, markup=False, highlight=False),
            "quit": self.quit,
        }

    def run(self, lines: Iterator[str]) -> None:
        for line in lines:
            try:
                self.hear(line.strip())
            except HaloWeaveError as error:
                self.console.print(plain(str(error), "red"))
            if not self.going:
                return

    def hear(self, line: str) -> None:
        if not line.startswith("/"):
            if line:
                self.say(line)
            return
        name, _, rest = line[1:].partition(" ")
        if name not in self.commands:
            raise BadInput(f"There is no command /{name}. /help shows them.")
        self.commands[name](rest.strip())

    # The turn

    def say(self, text: str) -> None:
        """The turn runs in a thread of its own, so that Ctrl-C can stop the reply and nothing else."""
        turns, window = self.weave.turns, self.window.id
        with _on_interrupt(lambda: turns.abort(window)):
            begun = turns.send_message(window, text, documents=self.attached).result()
            self.attached = []
            try:
                for event in turns.follow(window, begun.last_event):
                    self.show(event)
            finally:
                self.have_read()

    def read(self, tokens: int) -> None:
        """In a terminal, show how many tokens the model has to read, until something else is shown."""
        self.have_read()
        if tokens and self.console.is_terminal:
            words = plain(f"reading {with_count(tokens, 'token')}…", QUIET)
            self.reading = Status(words, console=self.console, spinner_style=QUIET)
            self.reading.start()

    def have_read(self) -> None:
        """Erase that line."""
        if self.reading is not None:
            self.reading.stop()
            self.reading = None

    def show(self, event: events.WindowEvent) -> None:
        if not isinstance(event, PrefillPlanned | events.BrightnessChanged):
            self.have_read()
        match event:
            case PrefillPlanned():
                self.read(event.computed)
            case events.TokenGenerated():
                style = TOOL if event.tool else QUIET if event.thought else "none"
                if self.thinking and not event.thought and event.text:
                    self.console.print("\n")
                self.thinking = event.thought or (self.thinking and not event.text)
                self.console.print(plain(event.text, style), end="", soft_wrap=True)
            case events.ReplyNotStored():
                self.console.print()
                self.print_dim(event.sentence or "The reply is stored now.")
            case events.TurnFailed():
                self.console.print()
                self.console.print(plain(event.sentence, "red"))
            case events.ChunksResurrected():
                for one in event.chunks:
                    words = f", by {', '.join(one.words)}" if one.words else f", {one.part.value}"
                    self.print_dim(f"↻ {one.chunk.key} woke up{words}: {_shortened(one.chunk.text)}")
            case events.ChunksPruned() if any(one.why != PruneReason.TURN_OVER for one in event.chunks):
                tokens = sum(one.tokens for one in event.chunks)
                self.print_dim(
                    f"☾ {with_count(len(event.chunks), 'chunk')}, {with_count(tokens, 'token')}, fell asleep"
                )
            case events.MemoryChanged():
                self.print_dim(
                    f"✎ {event.change}: {event.path} (halo-weave memory history {event.path!r} tells more)"
                )
            case events.ReplyStored():
                self.thinking = False
                self.console.print()
            case events.TurnEnded():
                if event.stats.get("only_thought"):
                    self.print_dim("The reply ended within its thought: there is no answer.")
                ended = {
                    "abort": "stopped, ",
                    "length": "cut at max_new_tokens, ",
                    "context": "no room left, ",
                }
                speed = event.stats.get("tokens_per_second", 0)
                count = with_count(event.stats.get("tokens", 0), "token")
                self.print_dim(f"{ended.get(event.reason, '')}{count}, {speed} a second")
            case _:
                pass

    def print_dim(self, text: str) -> None:
        self.console.print(plain(text, QUIET))

    # Looking

    def context(self, _: str = "") -> None:
        seen = self.weave.windows.context(self.window.id)
        low, high = brightness_range(one.brightness for turn in seen.turns for one in turn.chunks)
        for turn in seen.turns:
            self.console.print(plain(f"{turn.speaker}, {turn.said.astimezone():%Y-%m-%d %H:%M}", "bold"))
            for one in turn.chunks:
                self.gap(one.gap)
                mark = " 📌" if one.pinned else ""
                self.print_dim(
                    f"{one.chunk.key}{mark}, {with_count(len(one.chunk), 'token')}, brightness {one.rank} of 100"
                )
                self.console.print(
                    coloured_chunk(one.chunk.tokens, one.brightness, low, high, tool=one.tool), soft_wrap=True
                )
        self.gap(seen.gaps.tail)
        budget = seen.budget
        self.print_dim(f"{budget.used} tokens of {budget.max_context_tokens or budget.model_context}")

    def prune(self, _: str = "") -> None:
        done = self.weave.windows.prune(self.window.id)
        if not done.chunks:
            self.print_dim(
                "Nothing falls asleep: the window is within its budget, or all that is live stays."
            )
        for one in done.chunks:
            self.print_dim(
                f"☾ {one.key}, {with_count(one.tokens, 'token')}, brightness {one.brightness:.0f}, {one.why}"
            )

    def gap(self, gap: PrunedGap | None) -> None:
        if gap:
            self.print_dim(f"┈ {with_count(gap.chunks, 'chunk')}, {with_count(gap.tokens, 'token')} asleep")

    def graveyard(self, text: str) -> None:
        page = self.weave.windows.graveyard(self.window.id, limit=SHOWN, text=text or None)
        table = Table("key", "tokens", "peak", "slept", "text", box=None)
        for one in page.items:
            when = f"{one.pruned_at.astimezone():%Y-%m-%d %H:%M}"
            words = plain(_shortened(one.record.chunk.text))
            table.add_row(str(one.key), str(len(one.record.chunk)), f"{one.peak:.0f}", when, words)
        if page.items:
            self.console.print(table)
        self.print_dim(f"{with_count(page.total, 'chunk')} asleep here" + (f" with {text!r}" if text else ""))

    def why(self, key: str) -> None:
        about = self.weave.chunks.why(self.window.id, _keyed(key))
        state = "pinned" if about.pinned else "live" if about.live else "asleep"
        self.console.print(plain(about.text))
        bright = "" if about.peak is None else f", peak {about.peak:.0f}, mean {about.mean:.0f}"
        bright += "".join(f", {name} {value:.2f}" for name, value in about.parts.items())
        bright += "" if about.rank is None else f", brightness {about.rank} of 100"
        self.print_dim(
            f"{about.key}, {state}, {with_count(about.tokens, 'token')}{bright}, said by {about.speaker}"
        )
        for one in about.history:
            event = PUBLIC_EVENT_KINDS.get(one.event, one.event)
            detail = ", ".join(
                f"{name} {value}" for name, value in one.detail.items() if value not in ("", [], {})
            )
            self.print_dim(f"{one.happened.astimezone():%Y-%m-%d %H:%M:%S} {event} {detail}")

    def search(self, text: str) -> None:
        if not text:
            raise BadInput("Search for what? Write /search and some words.")
        found = self.weave.memory.search(text, window_id=self.window.id, limit=SHOWN)
        table = Table("key", "similarity", "words", "text", box=None)
        for one in found:
            words = plain(_shortened(one.record.chunk.text))
            table.add_row(
                str(one.record.key), f"{one.hit.similarity:.2f}", plain(" ".join(one.hit.words)), words
            )
        if found:
            self.console.print(table)
        self.print_dim(with_count(len(found), "hit"))

    def stats(self, _: str) -> None:
        now, window = self.weave.memory.status(), self.weave.windows.state(self.window.id)
        memory = now.memory
        table = Table(show_header=False, box=None)
        table.add_row("window", plain(self.window.name))
        live = f"{with_count(window.live_tokens, 'token')} in {with_count(window.live_chunks, 'chunk')}"
        table.add_row("live", live)
        table.add_row("asleep", with_count(window.pruned_chunks, "chunk"))
        said = f"{with_count(memory.tokens, 'token')} in {with_count(memory.chunks, 'chunk')}"
        table.add_row("memory", f"{said}, {with_count(memory.windows, 'window')}")
        table.add_row("model", plain(now.model.name))
        if last := self.weave.turns.last_stats(self.window.id):
            table.add_row("last turn", ", ".join(f"{name} {value}" for name, value in last.items()))
        self.console.print(table)

    # Doing

    def act(self, done: Callable[[str, ChunkKey], object], key: str, what: str) -> None:
        done(self.window.id, _keyed(key))
        self.print_dim(f"{key} {what}")

    def wake(self, key: str) -> None:
        done = self.weave.chunks.resurrect(self.window.id, _keyed(key))
        self.print_dim(f"{key} is awake and pinned")
        for one in done.resurrected[1:]:
            self.print_dim(f"↻ {one.chunk.key} came with it: {_shortened(one.chunk.text)}")
        if done.pruned:
            self.print_dim(f"☾ {with_count(len(done.pruned), 'dimmer chunk')} fell asleep to make room")

    def windows(self, name: str) -> None:
        if name:
            self.go(self.weave.windows.find(name))
            return
        table = Table("id", "name", "tags", "live", "asleep", "last words", box=None)
        known = [one for one in self.weave.windows.list() if not one.window.archived]
        for one in sorted(known, key=lambda one: not one.window.pinned):
            here = " ←" if one.window.id == self.window.id else ""
            named, words = plain(one.window.name + here), plain(_shortened(one.last_text))
            tags = plain(", ".join(one.window.tags))
            table.add_row(one.window.id, named, tags, str(one.live_chunks), str(one.pruned_chunks), words)
        self.console.print(table)

    def new(self, name: str) -> None:
        self.go(self.weave.windows.create(name))

    def attach(self, name: str) -> None:
        """Read the file and count its tokens; it is stored with the next message."""
        if name:
            path = Path(name).expanduser()
            try:
                with path.open("rb") as file:
                    data = file.read(self.weave.documents.most_bytes(self.window.id) + 1)
            except OSError as error:
                raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
            self.attached.append(self.weave.documents.read(path.name, data, self.window.id))
        for one in self.attached:
            self.print_dim(f"{one.name}, {with_count(one.tokens, 'token')}, goes with your next message")
        if not self.attached:
            self.print_dim("Nothing is attached.")

    def preset(self, name: str) -> None:
        presets = self.weave.presets
        if name:
            presets.apply(name, self.window.id)
            self.window = self.weave.windows.get(self.window.id)
            self.print_dim(f"{name} holds in {self.window.name} now.")
            return
        table = Table("name", "sets", box=None)
        for one in presets.list():
            table.add_row(plain(one.name), ", ".join([*one.settings, *one.words]) or "nothing")
        self.console.print(table)

    def go(self, window: WindowRecord) -> None:
        self.window = window
        self.print_dim(f"Now in {window.name}.")

    def model(self, name: str) -> None:
        """Change the model; Ctrl-C stops loading it."""
        models = self.weave.models
        if name:
            with progress_bar() as report, _on_interrupt(models.stop):
                models.change(name, report)
            now = models.state().info
            self.print_dim(f"Now with {now.name}.")
            if now.template_note:
                self.print_dim(now.template_note)
            return
        used = models.state().info.file
        table = Table("name", "model", "size", "fits", "where", box=None)
        for one in listed_models(machine_memory()):
            if one.kind != "embedder":
                here = " ←" if one.path == used else ""
                fits = {None: "", True: "yes", False: "no"}[one.fits]
                table.add_row(
                    *map(plain, (one.name, one.title + here, format_bytes(one.size), fits, one.where))
                )
        self.console.print(table)

    def quit(self, _: str) -> None:
        self.going = False


def _keyed(text: str) -> ChunkKey:
    if not text:
        raise BadInput("Which chunk? Name its key, like 12.0.user; /context shows them.")
    return ChunkKey.parse(text)


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:79] + "…"


def first_window(weave: Weave, name: str | None) -> WindowRecord:
    """The requested window, the most recently used one, or a new one."""
    if name:
        return weave.windows.find(name)
    known = weave.windows.list()
    if not known:
        return weave.windows.create("Chat")
    return max(known, key=lambda one: one.last_said or one.window.modified).window


@contextlib.contextmanager
def _on_interrupt(stop: Callable[[], object]) -> Iterator[None]:
    """While the block runs, Ctrl-C does this and nothing else."""
    if current_thread() is not main_thread():
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        stop()

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _typed(console: Console) -> Iterator[str]:
    """Lines from the keyboard until Ctrl-D, or from a pipe until it ends. Invalid bytes become replacement characters."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - makes the line editable, with its history
    while True:
        try:
            yield input("› ")
        except EOFError:
            console.print()
            return
        except KeyboardInterrupt:
            console.print("\n/quit ends, and so does Ctrl-D.", style=QUIET)


@app.command()
@with_options
def chat(
    options: Options,
    window: Annotated[
        str | None, typer.Option("--window", help="Name or id of a window. Default: the one used last.")
    ] = None,
) -> None:
    """Chat in the terminal. /help lists the commands."""
    if sys.stdin is None:
        raise BadInput(
            "Standard input is closed, so nothing can be said. Run this in a terminal or with a pipe."
        )
    announce_default_model(options, Console(stderr=True, highlight=False))
    with progress_bar() as report:
        weave = build_weave(options, report)
    with contextlib.closing(weave):
        console = Console(highlight=False)
        talk = Chat(weave, first_window(weave, window), console)
        if sys.stdin.isatty():
            talk.context()
            talk.print_dim(
                f"{talk.window.name}, on {weave.memory.status().model.name}. /help shows the commands."
            )
        talk.run(_typed(console))
