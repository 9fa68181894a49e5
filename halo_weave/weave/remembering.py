"""What the user asks to be remembered or forgotten is done by the program, whatever the model answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import numpy as np

from halo_weave.core.paths import HEADING_LENGTH, checked_path
from halo_weave.core.words import question_terms
from halo_weave.errors import HaloWeaveError
from halo_weave.keepsakes.requests import MemoryRequest
from halo_weave.keepsakes.structured_memory import KeptChunk, StructuredMemory
from halo_weave.ports import Engine, Prompt, Sampling, Segment, Step
from halo_weave.records import MemoryEntry
from halo_weave.templates.messages import ChatMessage
from halo_weave.weave.events import MemoryChanged

log = logging.getLogger(__name__)
UNSORTED = "Unsorted"
MOST_HEADINGS = 20  # that the model may choose from
MOST_TOKENS = 48  # of what it writes to file something
TITLE = 40  # characters
MOST_TOLD = 300  # characters of saved memories in front of a message, about 100 tokens
WORTH_TELLING = 0.34  # share of the words of a question that an entry must hold
FILING = "halo-weave filing"  # the engine's window in which something is filed
_ASKED = (
    "Note: {note}\nHeadings so far: {headings}\n"
    "File the note: give one of the headings or a new one-word heading, and a title that says what the note is about."
)


def keep(tree: StructuredMemory, text: str, source: Sequence[KeptChunk], *, now: datetime) -> MemoryChanged:
    """Save the user's own words at once, under a path that nothing has yet."""
    path = free_path(tree, f"{UNSORTED}/{_title_of(text)}")
    saved = tree.save(path, text, now=now, source=source)
    return MemoryChanged("saved", saved.path, text)


def file_away(
    engine: Engine, tree: StructuredMemory, kept: MemoryChanged, *, now: datetime, stopped: Callable[[], bool]
) -> MemoryChanged:
    """Move what was kept to a heading that fits, as the model sees it. If it finds none, everything stays as it is."""
    headings = [one.heading for one in tree.listing().children if one.heading != UNSORTED][:MOST_HEADINGS]
    try:
        place = _chosen_path(engine, str(kept.content), headings, stopped)
    except HaloWeaveError as error:  # a server that takes no grammar, or one that failed
        log.debug("%s stays unsorted: %s", kept.path, error)
        place = None
    if place is None:
        return kept
    saved = tree.move(kept.path, free_path(tree, place), now=now)
    return MemoryChanged("saved", saved.path, kept.content)


def forget(tree: StructuredMemory, text: str, *, now: datetime) -> MemoryChanged | None:
    """Take out the saved memory that a text is about, if there is one. Its versions stay in the history."""
    found = about(tree, text)
    if not found:
        return None
    tree.delete(found[0].path, now=now)
    return MemoryChanged("forgotten", found[0].path, found[0].content)


def told(tree: StructuredMemory, request: MemoryRequest | None) -> str:
    """What the model is told of saved memories in front of a message that asks for them; empty for other messages.

    Other questions are answered by recall: it also finds what was said since and corrects what is saved.
    """
    if request is None or request.kind != "ask":
        return ""
    found = about(tree, request.text)
    if not found and not question_terms(request.text, 8):
        found = tree.newest()
    lines: list[str] = []
    for entry in found:
        line = f"- {_words_of(entry)}"
        if sum(map(len, lines)) + len(line) > MOST_TOLD:
            break
        lines.append(line)
    return "\n".join(["What I asked you to remember:", *lines, "", ""]) if lines else ""


def about(tree: StructuredMemory, text: str) -> list[MemoryEntry]:
    """Entries that hold enough of a text's words, those that hold most of them first."""
    asked = question_terms(text, 32).keys()
    if not asked:
        return []
    found = []
    for entry in tree.newest():
        held = question_terms(f"{entry.path} {_words_of(entry)}", 400).keys()
        share = len(asked & held) / len(asked)
        if share >= WORTH_TELLING:
            found.append((share, entry))
    return [entry for _, entry in sorted(found, key=lambda one: -one[0])]


def _words_of(entry: MemoryEntry) -> str:
    return entry.content if isinstance(entry.content, str) else json.dumps(entry.content, ensure_ascii=False)


def free_path(tree: StructuredMemory, path: str) -> str:
    """The path, or the first one like it that nothing has: what is saved never takes the place of something else."""
    taken, number, free = set(tree.paths()), 1, path
    while free in taken:
        number += 1
        free = f"{path} {number}"
    return free


def _title_of(text: str) -> str:
    words = " ".join(text.replace("/", " ").split())
    cut = words if len(words) <= TITLE else words[:TITLE].rpartition(" ")[0] or words[:TITLE]
    return cut.strip(" .,:;!?\"'") or "Note"


def _chosen_path(
    engine: Engine, note: str, headings: Sequence[str], stopped: Callable[[], bool]
) -> str | None:
    """A heading and a title as the model writes them, held by a grammar; None if it wrote none."""
    asked = _ASKED.format(note=note[:400], headings=", ".join(headings) or "none")
    written = engine.chat([ChatMessage("user", asked)])
    parts = [engine.tokenize(one.text, special=not one.said).ids for one in written.pieces]
    ids = np.concatenate(parts)
    prompt = Prompt(
        [Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)],
        len(ids),
        messages=(ChatMessage("user", asked),),
    )
    sampling = Sampling(temperature=0.0, max_new_tokens=MOST_TOKENS, grammar=grammar(headings))
    steps = engine.generate(FILING, prompt, sampling, None, mode="exact", stopped=stopped)
    text = b"".join(step.piece for step in steps if isinstance(step, Step)).decode(errors="replace")
    engine.forget(FILING)
    try:
        answer = json.loads(text)
        return checked_path(f"{answer['heading'].strip()}/{answer['title'].strip()}")
    except (ValueError, KeyError, AttributeError, HaloWeaveError):
        return None


def grammar(headings: Iterable[str]) -> str:
    """GBNF of a JSON object with one of these headings, or a new one, and a title."""
    known = [json.dumps(json.dumps(one, ensure_ascii=False)[1:-1], ensure_ascii=False) for one in headings]
    choices = " | ".join([*(one for one in known if len(one) <= HEADING_LENGTH), "new"])
    return (
        r'root ::= "{\"heading\": \"" heading "\", \"title\": \"" title "\"}"' + "\n"
        f"heading ::= {choices}\n"
        r"new ::= letter letter{2,19}" + "\n"
        r'title ::= letter ( letter | " " | "-" | [0-9] ){1,39}' + "\n"
        r"letter ::= [^\x00-\x40\x5b-\x60\x7b-\xbf]" + "\n"
    )
