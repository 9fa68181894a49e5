"""Conversations for measuring recall: how their files are read and written into a store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.working_set import LiveChunk, chunk_turn
from halo_weave.engines.base import Embedder, Engine, Vectors
from halo_weave.store.sql_store import SqlStore

CATEGORIES = {
    1: "several pieces",
    2: "temporal",
    3: "open-domain",
    4: "single piece",
    11: "list",
    12: "update",
    13: "contradiction",
    14: "ordering",
    15: "instruction",
    16: "preference",
    17: "summary",
    19: "in the flow",
}
UNANSWERABLE = (5, 18)  # categories of questions that nothing in the talk answers
PACE = timedelta(seconds=30)  # between turns, of which only the first has a time
EVIDENCE = re.compile(r"D:?(\d+):(\d+)")


@dataclass(frozen=True, slots=True)
class Turn:
    name: str
    user: bool
    text: str
    said: datetime


@dataclass(frozen=True, slots=True)
class Query:
    """A message and what it needs. Without evidence it needs nothing."""

    text: str
    category: int
    evidence: tuple[str, ...]  # names of turns
    words: Mapping[str, str]  # of a turn, if only the part with these words is needed


@dataclass(frozen=True, slots=True)
class Talk:
    """Sessions in order. What is asked in the flow is asked when only earlier sessions are in memory."""

    name: str
    speakers: tuple[str, str]  # the user, the assistant
    sessions: list[list[Turn]]
    asked: list[Query]  # the day after
    in_flow: list[list[Query]]  # during each session

    @property
    def flows(self) -> bool:
        return any(self.in_flow)


def read_talk(path: Path, captions: bool = False) -> Talk:
    """The first speaker is the user. The caption of a shared image was not said; it can be added."""
    file = json.loads(path.read_text(encoding="utf-8"))
    user, other = file["speakers"]
    sessions = []
    for session in file["sessions"]:
        begun = datetime.strptime(session["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        turns = []
        for i, turn in enumerate(session["turns"]):
            caption = turn.get("blip_caption") if captions else None
            text = f"{turn['text']} [image: {caption}]" if caption else turn["text"]
            turns.append(Turn(turn["dia_id"], turn["speaker"] == user, text.strip(), begun + i * PACE))
        sessions.append(turns)
    known = {turn.name for turns in sessions for turn in turns}
    asked, at = [], dict[str, Query]()
    for one in file["qa"]:
        found = (f"D{a}:{b}" for entry in one["evidence"] for a, b in EVIDENCE.findall(entry))
        evidence = tuple(dict.fromkeys(name for name in found if name in known))
        query = Query(one["question"], one["category"], evidence, one.get("words", {}))
        if "at" in one:
            at[one["at"]] = query
        elif one["category"] in UNANSWERABLE or evidence:
            asked.append(query)
    flow = [[at.get(t.name) or Query(t.text, 0, (), {}) for t in turns if t.user] for turns in sessions]
    return Talk(path.stem, (user, other), sessions, asked, flow if at else [])


@dataclass(slots=True)
class Written:
    """What of a talk is in a store."""

    window: str = ""
    turns: dict[str, list[ChunkKey]] = field(default_factory=dict)  # by name
    texts: dict[ChunkKey, str] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of turns, by id
    questions: dict[str, str] = field(default_factory=dict)  # what an answer answers, by name
    last: datetime = datetime.min
    asked: int | None = None  # the user's turn that the next answer belongs to

    def needed(self, query: Query) -> Iterator[tuple[str, list[ChunkKey]]]:
        """The name and the chunks of each piece of evidence."""
        for name in query.evidence:
            words = query.words.get(name, "")
            keys = self.turns.get(name, [])
            yield name, [key for key in keys if words in self.texts[key]] or keys

    def add(self, talk: Talk, turns: Sequence[Turn], store: SqlStore, engine: Engine) -> None:
        """An answer is the assistant's turn right after one of the user's."""
        for turn in turns:
            if not self.window:
                user, other = talk.speakers
                self.window = store.create_window(talk.name, now=turn.said, user_name=user, ai_name=other).id
            tokens = engine.tokenize(turn.text)
            if not len(tokens):
                continue
            reserved = store.reserve(len(tokens))
            role = Role.USER if turn.user else Role.ASSISTANT
            number = reserved.user_turn if turn.user else reserved.assistant_turn
            answers = None if turn.user else self.asked
            chunks = chunk_turn(tokens, number, role, reserved.start, answers)
            live = [LiveChunk(chunk, np.full(len(chunk), 10_000, np.float32)) for chunk in chunks]
            store.append(self.window, live, tokenizer=engine.info.tokenizer, now=turn.said, asleep=True)
            if answers is not None:
                self.questions[turn.name] = self.names[answers]
            self.asked = number if turn.user else None
            self.names[number] = turn.name
            self.turns[turn.name] = [chunk.key for chunk in chunks]
            self.texts |= {chunk.key: chunk.text for chunk in chunks}
            self.last = turn.said


class KeptVectors:
    """Gives the same vector for the same text again without computing, if wished also in later runs."""

    def __init__(self, embedder: Embedder, file: Path | None = None) -> None:
        self.inner, self._kept, self._known = embedder, file, dict[str, Vectors]()
        self.name, self.dimension, self.file = embedder.name, embedder.dimension, embedder.file
        self._new = False
        if file and file.is_file():
            with np.load(file) as stored:
                self._known = dict(zip(stored["texts"].tolist(), stored["vectors"], strict=True))

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        keys = [f"{query}{text}" for text in texts]
        unknown = [text for key, text in zip(keys, texts, strict=True) if key not in self._known]
        if unknown:
            found = self.inner.embed(unknown, query=query)
            self._known.update(zip((f"{query}{text}" for text in unknown), found, strict=True))
            self._new = True
        return np.stack([self._known[key] for key in keys])

    def save(self) -> None:
        if self._kept and self._new:
            values: Any = np.stack(list(self._known.values()))
            np.savez(self._kept, texts=np.array(list(self._known)), vectors=values)

    def close(self) -> None:
        pass
