"""Given conversations (LoCoMo files or plain text), run on a model with given or generated replies."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from halo_weave.app import open_store
from halo_weave.chat import Weave, events
from halo_weave.chat.capture import CaptureWriter, NewRecorder
from halo_weave.core.attribution import MIN_SHARE
from halo_weave.core.brightness import AttentionRow, Capture
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Role, Tokens
from halo_weave.engines.base import (
    Engine,
    GenerationEnd,
    GenerationEvent,
    PrefillResult,
    Prompt,
    Sampling,
    Segment,
    Step,
)
from halo_weave.errors import BadInput
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings

KINDS = {1: "several pieces", 2: "temporal", 3: "open-domain", 4: "single-hop"}
EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
PACE = timedelta(
    seconds=30
)  # assumed time between turns: the files only have the time of a session's first turn


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """Consecutive text of one speaker, with the file's ids for it."""

    names: frozenset[str]
    role: Role
    text: str
    said: datetime


@dataclass(frozen=True, slots=True)
class DialogueQuestion:
    """A question about a conversation, its answer, and the ids of the evidence."""

    text: str
    answer: str
    kind: str
    evidence: frozenset[str]


@dataclass(frozen=True, slots=True)
class Dialogue:
    name: str
    turns: tuple[DialogueTurn, ...]
    questions: tuple[DialogueQuestion, ...]


def read_dialogues(folder: Path, limit: int | None = None, *, captions: bool = False) -> list[Dialogue]:
    """The conversations in a folder, by name."""
    paths = sorted(folder.glob("*.json"))[:limit]
    if not paths:
        raise BadInput(
            f"There are no conversations in {folder}. Name a folder with files in the format of LoCoMo."
        )
    return [read_dialogue(path, captions=captions) for path in paths]


def read_dialogue(path: Path, *, captions: bool = False) -> Dialogue:
    """A conversation from a file. The text names the speaker, since questions do.

    `captions`: include captions of shared pictures. They were not said, but some answers are only there.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        turns: list[DialogueTurn] = []
        for session in content["sessions"]:
            begun = datetime.strptime(session["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
            spoken = [turn for turn in session["turns"] if turn["text"].strip()]
            for i, (speaker, group) in enumerate(groupby(spoken, key=lambda turn: turn["speaker"])):
                parts = list(group)
                turns.append(
                    DialogueTurn(
                        frozenset(turn["dia_id"] for turn in parts),
                        Role.USER if speaker == content["speakers"][0] else Role.ASSISTANT,
                        f"{speaker}: " + " ".join(_words(turn, captions) for turn in parts),
                        begun + i * PACE,
                    )
                )
        questions = tuple(
            DialogueQuestion(
                entry["question"], str(entry["answer"]), KINDS[entry["category"]], frozenset(ids)
            )
            for entry in content["qa"]
            if entry["category"] in KINDS and "answer" in entry
            if (ids := [f"D{a}:{b}" for text in entry["evidence"] for a, b in EVIDENCE.findall(text)])
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise BadInput(f"{path} is not a conversation in the format of LoCoMo: {error!r}.") from None
    return Dialogue(path.stem, tuple(turns), questions)


def _words(turn: Mapping[str, str], captions: bool) -> str:
    caption = turn.get("blip_caption") if captions else None
    return f"{turn['text'].strip()} [picture: {caption}]" if caption else turn["text"].strip()


def exchanges_of(turns: Sequence[DialogueTurn]) -> Iterator[tuple[DialogueTurn, DialogueTurn]]:
    """Messages of the user with their replies; a message without a reply, such as the last one of a day, is left out."""
    for turn, following in pairwise(turns):
        if turn.role is Role.USER and following.role is Role.ASSISTANT:
            yield turn, following


GREEDY = Sampling(temperature=0.0, max_new_tokens=1)


def read_given_reply(
    engine: Engine, window: str, prompt: Prompt, reply: Tokens, capture: Capture | None, **options: Any
) -> Iterator[GenerationEvent]:
    """The events of the engine as if it had generated these tokens."""
    first: AttentionRow | None = None
    for event in engine.generate(window, prompt, GREEDY, capture, **options):
        if isinstance(event, Step):
            first = event.row
        elif not isinstance(event, GenerationEnd):
            yield event
    labels = np.arange(prompt.next_label, prompt.next_label + len(reply), dtype=np.int64)
    whole = Prompt(
        [*prompt.segments, Segment("chunk", labels, reply.ids)],
        prompt.next_label + len(reply),
        prompt.next_label,
    )
    rows: list[AttentionRow | None] = [first]
    surprisal = np.full(len(reply), np.nan, np.float32)
    prompt_capture = replace(capture, reply=False, reading=capture.reply) if capture else None
    for event in engine.generate(window, whole, GREEDY, prompt_capture, **options):
        if isinstance(event, PrefillResult):
            rows += event.rows
            surprisal = surprisal if event.surprisal is None else event.surprisal
    rows += [None] * (len(reply) + 1)
    for i, piece in enumerate(reply.pieces()):
        yield Step(int(reply.ids[i]), int(labels[i]), piece, float(surprisal[i]), rows[i])
    yield GenerationEnd("eos", len(reply), 0.0, rows[len(reply)])


class GivenReplyEngine:
    """Wraps an engine and replaces its replies by given ones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reply: Tokens | None = None  # tokens of the next reply; None: the model generates it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        options: dict[str, Any] = {"mode": mode, "stopped": stopped}
        if self.reply is None:
            return self._engine.generate(window, prompt, sampling, capture, **options)
        return read_given_reply(self._engine, window, prompt, self.reply, capture, **options)

    def close(self) -> None:
        """Does nothing: the caller owns the engine."""


Messages = Sequence[tuple[str, str]]  # the user's message, and the reply if it is given
Progress = Callable[[str, int, int], None]


def read_messages(path: Path) -> list[tuple[str, str]]:
    """The user's messages in a LoCoMo conversation, or in a text file with one message on each line."""
    if path.suffix == ".json":
        return [(user.text, reply.text) for user, reply in exchanges_of(read_dialogue(path).turns)]
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    if not any(lines):
        raise BadInput(f"There are no messages in {path}.")
    return [(line, "") for line in lines if line]


def run_conversation(
    engine: Engine,
    calibration: Calibration,
    settings: Settings,
    messages: Messages,
    progress: Progress,
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Run a conversation in a memory of its own, captured if there is a folder. Returns the result of `send_messages`."""
    given_engine, place = GivenReplyEngine(engine), folder

    def new_recorder(window: str, chosen: Settings, model: Engine, heads: Calibration) -> CaptureWriter:
        assert place is not None
        return CaptureWriter.open(
            place, place.name, model, heads, heads=chosen.capture, most=chosen.capture_megabytes
        )

    recording: NewRecorder | None = new_recorder if folder else None
    with tempfile.TemporaryDirectory() as work:
        store = open_store(Path(work))
        recall = MemorySearch(store, None)
        with closing(
            Weave(
                given_engine,
                store,
                recall,
                defaults=settings.changed({"prefetch": "off"}),
                calibration=calibration,
                new_recorder=recording,
            )
        ) as weave:
            return send_messages(weave, given_engine, messages, progress)


def send_messages(
    weave: Weave, given_engine: GivenReplyEngine, messages: Messages, progress: Progress
) -> list[dict[str, Any]]:
    """For each message: the reply, and the text of the chunks that it used most."""
    window = weave.windows.create("lab").id
    outcomes = []
    for number, (text, reply) in enumerate(messages):
        progress("Running the conversation", number, len(messages))
        given_engine.reply = given_engine.tokenize(reply) if reply else None
        said, stats = [], {}
        for event in weave.turns.steps(window, text):
            if isinstance(event, events.TokenGenerated) and not event.thought:
                said.append(event.text)
            elif isinstance(event, events.ReplyStored) and event.use is not None:
                use = event.use
            elif isinstance(event, events.TurnEnded):
                stats = dict(event.stats)
        sources = [
            {
                "key": str(source.key),
                "share": round(source.share, 3),
                "text": weave.chunks.why(window, source.key).text,
            }
            for source in use.chunks[:3]
            if source.share >= MIN_SHARE
        ]
        outcomes.append(
            {
                "said": text,
                "reply": "".join(said).strip(),
                "sources": sources,
                "nothing": round(use.nothing, 3),
                "tokens": stats.get("tokens"),
                "tokens_per_second": stats.get("tokens_per_second"),
                "pruned": stats.get("pruned"),
            }
        )
    return outcomes
