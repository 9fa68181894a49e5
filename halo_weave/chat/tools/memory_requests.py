"""Do what the user asks of the structured memory: save something, forget it, tell what is saved."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import numpy as np

from halo_weave.chat.events import MemoryChanged
from halo_weave.chat.tools.structured_memory import SnapshotChunk, StructuredMemory
from halo_weave.core.memory_requests import MemoryRequest
from halo_weave.core.terms import query_terms
from halo_weave.core.validation import MAX_HEADING_LENGTH, checked_path
from halo_weave.engines.base import Engine, Prompt, Sampling, Segment, Step
from halo_weave.engines.templates.messages import ChatMessage
from halo_weave.errors import HaloWeaveError
from halo_weave.store.records import MemoryEntry

log = logging.getLogger(__name__)
UNSORTED = "Unsorted"
MAX_HEADINGS = 20  # that the model may choose from
MOST_TOKENS = 48  # of what it writes to file something
TITLE = 40  # characters
SAVED_CHARACTERS = 300  # characters of saved memories in front of a message, about 100 tokens
MATCHING_SHARE = 0.34  # share of the words of a question that an entry must hold
FILING = "halo-weave filing"  # the engine's window for filing
_FILING_PROMPT = (
    "Note: {note}\nHeadings so far: {headings}\n"
    "File the note: give one of the headings or a new one-word heading, and a title that says what the note is about."
)


def save_user_request(
    tree: StructuredMemory,
    text: str,
    source: Sequence[SnapshotChunk],
    *,
    now: datetime,
    within: frozenset[str] | None,
) -> MemoryChanged:
    """Save the user's own words at once, under an unused path. `within`: windows whose chunks may explain them."""
    path = free_path(tree, f"{UNSORTED}/{_title_of(text)}")
    saved = tree.save(path, text, now=now, within=within, source=source)
    return MemoryChanged("saved", saved.path, text)


def file_entry(
    engine: Engine,
    tree: StructuredMemory,
    saved: MemoryChanged,
    *,
    now: datetime,
    stopped: Callable[[], bool],
) -> MemoryChanged:
    """Let the model choose a heading and a title for a saved entry, and move the entry there.

    The entry stays where it is if the model chooses none, or if it has been changed or moved since it was saved.
    """
    headings = [child.heading for child in tree.listing().children if child.heading != UNSORTED][
        :MAX_HEADINGS
    ]
    try:
        path = _chosen_path(engine, str(saved.content), headings, stopped)
    except HaloWeaveError as error:  # a server that takes no grammar, or one that failed
        log.debug("%s stays unsorted: %s", saved.path, error)
        return saved
    entry = next((one for one in tree.newest() if one.path == saved.path), None)
    if path is None or entry is None or entry.content != saved.content:
        return saved
    moved = tree.move(saved.path, free_path(tree, path), now=now)
    return MemoryChanged("saved", moved.path, saved.content, moved_from=saved.path)


def forget_entry(tree: StructuredMemory, text: str, *, now: datetime) -> MemoryChanged | None:
    """Delete the entry that a text is about, if there is one. Its versions stay in the history."""
    found = matching_entries(tree, text)
    if not found:
        return None
    tree.delete(found[0].path, now=now)
    return MemoryChanged("forgotten", found[0].path, found[0].content)


def saved_memories_note(tree: StructuredMemory, request: MemoryRequest | None) -> str:
    """Text with saved memories, added to a message that asks for them; empty for other messages.

    Other questions are answered by recall, which also finds later corrections of what was saved.
    """
    if request is None or request.kind != "ask":
        return ""
    found = matching_entries(tree, request.text)
    if not found and not query_terms(request.text, 8):
        found = tree.newest()
    lines: list[str] = []
    for entry in found:
        line = f"- {_words_of(entry)}"
        if sum(map(len, lines)) + len(line) > SAVED_CHARACTERS:
            break
        lines.append(line)
    return "\n".join(["What I asked you to remember:", *lines, "", ""]) if lines else ""


def matching_entries(tree: StructuredMemory, text: str) -> list[MemoryEntry]:
    """Entries that contain enough of a text's words, those with the most first."""
    asked = query_terms(text, 32).keys()
    if not asked:
        return []
    found = []
    for entry in tree.newest():
        held = query_terms(f"{entry.path} {_words_of(entry)}", 400).keys()
        share = len(asked & held) / len(asked)
        if share >= MATCHING_SHARE:
            found.append((share, entry))
    return [entry for _, entry in sorted(found, key=lambda one: -one[0])]


def _words_of(entry: MemoryEntry) -> str:
    return entry.content if isinstance(entry.content, str) else json.dumps(entry.content, ensure_ascii=False)


def free_path(tree: StructuredMemory, path: str) -> str:
    """The path, or the first similar one that is unused: saving never overwrites another entry."""
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
    """A heading and a title, generated by the model under a grammar; None if it generated none."""
    asked = _FILING_PROMPT.format(note=note[:400], headings=", ".join(headings) or "none")
    written = engine.chat([ChatMessage("user", asked)])
    parts = [engine.tokenize(piece.text, special=not piece.said).ids for piece in written.pieces]
    ids = np.concatenate(parts)
    prompt = Prompt(
        [Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)],
        len(ids),
        messages=(ChatMessage("user", asked),),
        temporary=True,
    )
    sampling = Sampling(temperature=0.0, max_new_tokens=MOST_TOKENS, grammar=filing_grammar(headings))
    steps = engine.generate(FILING, prompt, sampling, None, mode="exact", stopped=stopped)
    text = b"".join(step.piece for step in steps if isinstance(step, Step)).decode(errors="replace")
    engine.forget(FILING)
    try:
        answer = json.loads(text)
        return checked_path(f"{answer['heading'].strip()}/{answer['title'].strip()}")
    except (ValueError, KeyError, AttributeError, HaloWeaveError):
        return None


def filing_grammar(headings: Iterable[str]) -> str:
    """GBNF of a JSON object with a title and one of these headings, or a new one."""
    known = [
        json.dumps(json.dumps(heading, ensure_ascii=False)[1:-1], ensure_ascii=False) for heading in headings
    ]
    choices = " | ".join([*(one for one in known if len(one) <= MAX_HEADING_LENGTH), "new"])
    return (
        r'root ::= "{\"heading\": \"" heading "\", \"title\": \"" title "\"}"' + "\n"
        f"heading ::= {choices}\n"
        r"new ::= letter letter{2,19}" + "\n"
        r'title ::= letter ( letter | " " | "-" | [0-9] ){1,39}' + "\n"
        r"letter ::= [^\x00-\x40\x5b-\x60\x7b-\xbf]" + "\n"
    )
