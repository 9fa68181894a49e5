"""Conversations that are given, with questions about them: files in the form of LoCoMo."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np

from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput
from halo_weave.ports import Engine

KINDS = {1: "several pieces", 2: "temporal", 3: "open-domain", 4: "single-hop"}
EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
PACE = timedelta(seconds=30)  # between turns, of which the files tell only when the first was said
FRAME = 25  # tokens that a turn takes beside its words, about


@dataclass(frozen=True, slots=True)
class Said:
    """What one speaker says in a row, and the names that the file has for it."""

    names: frozenset[str]
    role: Role
    text: str
    said: datetime


@dataclass(frozen=True, slots=True)
class AskedLater:
    """A question about a conversation: its answer, and where that stands."""

    text: str
    answer: str
    kind: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Dialogue:
    name: str
    turns: tuple[Said, ...]
    asked: tuple[AskedLater, ...]


def dialogues(folder: Path, most: int | None = None, *, captions: bool = False) -> list[Dialogue]:
    """The conversations of a folder, by name."""
    found = sorted(folder.glob("*.json"))[:most]
    if not found:
        raise BadInput(
            f"There are no conversations in {folder}. Name a folder with files in the form of LoCoMo."
        )
    return [dialogue_of(path, captions=captions) for path in found]


def dialogue_of(path: Path, *, captions: bool = False) -> Dialogue:
    """A conversation out of a file. Who speaks stands in the text, since questions name them.

    `captions`: those of shared pictures too. They were not said, but some answers stand nowhere else.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        turns: list[Said] = []
        for session in held["sessions"]:
            begun = datetime.strptime(session["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            spoken = [turn for turn in session["turns"] if turn["text"].strip()]
            for i, (speaker, group) in enumerate(groupby(spoken, key=lambda turn: turn["speaker"])):
                parts = list(group)
                turns.append(
                    Said(
                        frozenset(turn["dia_id"] for turn in parts),
                        Role.USER if speaker == held["speakers"][0] else Role.ASSISTANT,
                        f"{speaker}: " + " ".join(_words(turn, captions) for turn in parts),
                        begun + i * PACE,
                    )
                )
        asked = tuple(
            AskedLater(one["question"], str(one["answer"]), KINDS[one["category"]], frozenset(found))
            for one in held["qa"]
            if one["category"] in KINDS and "answer" in one
            if (found := [f"D{a}:{b}" for text in one["evidence"] for a, b in EVIDENCE.findall(text)])
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise BadInput(f"{path} is no conversation in the form of LoCoMo: {error!r}.") from None
    return Dialogue(path.stem, tuple(turns), asked)


def _words(turn: Mapping[str, str], captions: bool) -> str:
    caption = turn.get("blip_caption") if captions else None
    return f"{turn['text'].strip()} [picture: {caption}]" if caption else turn["text"].strip()


def exchanges_of(turns: Sequence[Said]) -> Iterator[tuple[Said, Said]]:
    """What the user said with what was answered; what has no counterpart, as the last words of a day, is left out."""
    for one, other in pairwise(turns):
        if one.role is Role.USER and other.role is Role.ASSISTANT:
            yield one, other


def windows_of(turns: Sequence[Said], engine: Engine, tokens: int, count: int) -> Iterator[list[Said]]:
    """Parts of about so many tokens, evenly over a conversation; each begins with the user and ends with a reply."""
    sizes = np.array([len(engine.tokenize(turn.text)) + FRAME for turn in turns])
    ends = np.cumsum(sizes)
    for place in range(count):
        first = int(np.searchsorted(ends, (ends[-1] - tokens) * place / max(1, count - 1)))
        while first < len(turns) and turns[first].role is not Role.USER:
            first += 1
        last = int(np.searchsorted(ends, ends[first] - sizes[first] + tokens, side="right"))
        while last > first and turns[last - 1].role is not Role.ASSISTANT:
            last -= 1
        yield list(turns[first:last])
