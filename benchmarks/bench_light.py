"""Whether brightness tells what an answer came from, and keeps what will be asked about: on LoCoMo, by every strategy."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.assemble import Options, calibrate_engine, open_engine
from halo_weave.core.brightness import AttentionRow, Capture, Floats, Light, Sight, Strategy, peaks
from halo_weave.core.heads import Calibration
from halo_weave.core.pruning import choose_prunes
from halo_weave.core.strategies import STRATEGIES
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.tokens import ChunkKey, Role, Tokens
from halo_weave.core.use import UseTally
from halo_weave.core.window import Window, chunk_turn
from halo_weave.ports import Engine, GenerationEvent, Prompt, Read, Sampling, Segment, Step
from halo_weave.weave.prompt import Origin, Scribe, WindowPrompt

SYSTEM = "You are a helpful assistant with a long memory. Answer plainly and briefly."
KINDS = {1: "several pieces", 2: "temporal", 3: "open-domain", 4: "single-hop"}
EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
KEEP = (0.75, 0.5, 0.25)
FRAME = 25  # tokens that a turn takes beside its words, about
GREEDY = Sampling(temperature=0.0, max_new_tokens=1)


@dataclass(frozen=True, slots=True)
class _Oldest(Strategy):
    """First in, first out."""

    def brighten(self, sight: Sight, row: AttentionRow) -> Light:
        return sight.light

    def of_chunks(self, sight: Sight) -> Floats:
        return -sight.ages.astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Random(Strategy):
    def brighten(self, sight: Sight, row: AttentionRow) -> Light:
        return sight.light

    def of_chunks(self, sight: Sight) -> Floats:
        return np.random.default_rng(len(sight.chunks)).random(len(sight.chunks), np.float32)


@dataclass(frozen=True, slots=True)
class Said:
    """What one speaker says in a row, and the names that the data has for it."""

    names: frozenset[str]
    role: Role
    text: str
    said: datetime


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer: str
    kind: str
    evidence: frozenset[str]


def conversation(path: Path) -> tuple[list[Said], list[Question]]:
    """A file of LoCoMo. Who speaks stands in the text, since questions name them."""
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
                    f"{speaker}: " + " ".join(turn["text"].strip() for turn in parts),
                    begun + i * timedelta(seconds=30),
                )
            )
    asked = [
        Question(one["question"], str(one["answer"]), KINDS[one["category"]], frozenset(found))
        for one in held["qa"]
        if one["category"] in KINDS and "answer" in one
        if (found := [f"D{a}:{b}" for text in one["evidence"] for a, b in EVIDENCE.findall(text)])
    ]
    return turns, asked


def parts_of(turns: Sequence[Said], engine: Engine, tokens: int, count: int) -> Iterator[list[Said]]:
    """Windows of about so many tokens, evenly over a conversation; each begins with the user and ends with a reply."""
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


@dataclass(slots=True)
class Talk:
    """One window's talk, said to the model with the replies given, seen by all strategies at once."""

    engine: Engine
    calibration: Calibration
    scribe: Scribe
    windows: dict[str, Window]
    position: int = 0
    turn: int = 1
    origins: dict[int, Origin] = field(default_factory=dict)
    keys: dict[str, list[ChunkKey]] = field(default_factory=dict)  # by the data's names

    @property
    def window(self) -> Window:
        return next(iter(self.windows.values()))

    def exchange(self, question: Said, answer: str, names: frozenset[str] = frozenset()) -> UseTally:
        """The question is read and the given reply said; what it was taken from."""
        user, reply = self.turn, self.turn + 1
        said = self.engine.tokenize(question.text)
        chunks = chunk_turn(said, user, Role.USER, self.position)
        self.origins[user] = Origin(question.said)
        for window in self.windows.values():
            window.add([window.born(chunk) for chunk in chunks])
            window.begin_reply(reply, self.position + len(said), user)
        tally = UseTally(self.calibration)
        forced = self.engine.tokenize(answer)
        prompt = self.scribe.prompt(self.window, self.scribe.system(SYSTEM), self.origins)
        before = sum(len(chunk) for chunk in self.window.chunks if chunk.key.turn_id < user)
        for event in forced_reply(self.engine, prompt, forced, self.calibration):
            if isinstance(event, Read):
                self._read(event, prompt, user, tally, before)
            elif isinstance(event, Step):
                row = prompt.whole(event.row)
                tally.say(row, self.window.chunks, self.window.offsets, user)
                for window in self.windows.values():
                    if window.strategy.capture.reply:
                        window.update(row)
                    window.say(event.id, event.piece, event.surprisal)
        for window in self.windows.values():
            made = window.end_reply()
        for name in question.names:
            self.keys[name] = [chunk.key for chunk in chunks]
        for name in names:
            self.keys[name] = [chunk.key for chunk in made]
        self.position += len(said) + len(forced) + 64
        self.turn += 2
        return tally

    def _read(self, read: Read, prompt: WindowPrompt, user: int, tally: UseTally, before: int) -> None:
        rows = [row for row in map(prompt.whole, read.rows) if row]
        tally.read(rows, before)
        for window in self.windows.values():
            if read.surprisal is not None:
                window.learn_surprisal(user, prompt.whole_surprisal(read.surprisal))
            if window.strategy.capture.reading:
                window.learn_rows(rows)

    def take_back(self) -> None:
        """The last exchange was never said."""
        for window in self.windows.values():
            window.remove([chunk.key for chunk in window.chunks if chunk.key.turn_id >= self.turn - 2])


def forced_reply(
    engine: Engine, prompt: WindowPrompt, reply: Tokens, calibration: Calibration
) -> Iterator[GenerationEvent]:
    """What the engine would tell if it had chosen these tokens itself."""
    capture = Capture(reading=True, reading_surprisal=True)
    if calibration.heads:
        capture = replace(capture, raw=True, raw_pairs=calibration.pairs)
    first: AttentionRow | None = None
    for event in engine.generate("light", prompt, GREEDY, capture):
        if isinstance(event, Read):
            yield event
        elif isinstance(event, Step):
            first = event.row
    labels = np.arange(prompt.next_label, prompt.next_label + len(reply), dtype=np.int64)
    whole = Prompt(
        [*prompt.segments, Segment("chunk", labels, reply.ids)],
        prompt.next_label + len(reply),
        prompt.next_label,
    )
    rows: list[AttentionRow | None] = [first]
    surprisal = np.full(len(reply), np.nan, np.float32)
    for event in engine.generate("light", whole, GREEDY, replace(capture, reply=False)):
        if isinstance(event, Read):
            rows += event.rows
            surprisal = surprisal if event.surprisal is None else event.surprisal
    for i, piece in enumerate(reply.pieces()):
        yield Step(int(reply.ids[i]), int(labels[i]), piece, float(surprisal[i]), rows[i])


@dataclass(slots=True)
class Figures:
    """What was found so far."""

    hits: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    kept: dict[str, dict[float, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    windows: int = 0

    def attributed(self, way: str, ranked: Sequence[ChunkKey], right: set[ChunkKey], kind: str) -> None:
        count = self.hits[way]
        count["questions"] += 1
        count[f"{kind} questions"] += 1
        if set(ranked[:1]) & right:
            count["top1"] += 1
            count[f"{kind} top1"] += 1
        count["top3"] += bool(set(ranked[:3]) & right)

    def attribution(self) -> dict[str, Any]:
        return {
            way: {
                "top1": round(count["top1"] / count["questions"], 4),
                "top3": round(count["top3"] / count["questions"], 4),
                "questions": count["questions"],
                "by_category": {
                    kind: {
                        "top1": round(count[f"{kind} top1"] / count[f"{kind} questions"], 4),
                        "questions": count[f"{kind} questions"],
                    }
                    for kind in KINDS.values()
                    if count[f"{kind} questions"]
                },
            }
            for way, count in self.hits.items()
        }

    def keeping(self) -> dict[str, dict[str, float]]:
        return {
            name: {str(share): round(float(np.mean(shares)), 4) for share, shares in of_share.items()}
            for name, of_share in self.kept.items()
        }

    def against(self, one: str, other: str, share: float = 0.5) -> dict[str, float]:
        """The mean difference, and how often chance would make it as large: signs of the windows flipped."""
        differences = np.array(self.kept[one][share]) - np.array(self.kept[other][share])
        flips = np.random.default_rng(1).choice([-1.0, 1.0], (10_000, len(differences)))
        as_large = np.abs((flips * differences).mean(axis=1)) >= abs(differences.mean()) - 1e-12
        return {"difference": round(float(differences.mean()), 4), "p": round(float(as_large.mean()), 4)}


def measure(talk: Talk, part: Sequence[Said], asked: Sequence[Question], most: int, figures: Figures) -> None:
    for question, answer in zip(part[::2], part[1::2], strict=False):
        talk.exchange(question, answer.text, answer.names)
    known = [one for one in asked if one.evidence <= talk.keys.keys()]
    _keep(talk, {name for one in known for name in one.evidence}, figures)
    if len(known) > most:
        known = [known[i] for i in np.linspace(0, len(known) - 1, most).round().astype(int)]
    voting = talk.windows["magnitude_voting"]
    for one in known:
        right = {key for name in one.evidence for key in talk.keys[name]}
        count, chunks = len(voting), list(voting.chunks)
        offsets, bright = voting.offsets.copy(), voting.brightness.copy()
        no_votes = talk.windows["votes"].brightness.copy()
        when = part[-1].said + timedelta(days=1)
        tally = talk.exchange(Said(frozenset(), Role.USER, one.text, when), one.answer)
        # The votes of the answer's own tokens; and what of them shows, since nothing rises above the cap.
        votes = talk.windows["votes"]
        for way, gain in (
            ("magnitude_voting", votes.brightness[:count] - no_votes),
            ("magnitude_voting, under its cap", voting.brightness[:count] - bright),
        ):
            ranked = [chunks[i].key for i in np.argsort(-peaks(gain, offsets), kind="stable")]
            figures.attributed(way, ranked, right, one.kind)
        figures.attributed("default", [used.key for used in tally.whole().chunks], right, one.kind)
        talk.take_back()


def _keep(talk: Talk, evidence: set[str], figures: Figures) -> None:
    """The share of turns that will be asked about of which half is still live."""
    last = {talk.turn - 2, talk.turn - 1}
    wanted = {
        tuple(keys) for name in evidence if (keys := talk.keys[name])[0].turn_id not in last
    }  # two names may stand for one turn
    if not wanted:
        return
    figures.windows += 1
    for name, window in talk.windows.items():
        if name == "votes":
            continue
        sizes = {chunk.key: len(chunk) for chunk in window.chunks}
        for share in KEEP:
            gone = set(choose_prunes(window, int(window.size * share), current=last).keys)
            kept = [
                sum(sizes[key] for key in keys if key not in gone) * 2 >= sum(sizes[key] for key in keys)
                for keys in wanted
            ]
            figures.kept[name][share].append(float(np.mean(kept)))


def run(
    arguments: argparse.Namespace, engine: Engine, calibration: Calibration, say: Callable[[str], None]
) -> Figures:
    figures, scribe = Figures(), Scribe(engine)
    for path in sorted(arguments.data.glob("*.json"))[: arguments.conversations]:
        turns, asked = conversation(path)
        for number, part in enumerate(parts_of(turns, engine, arguments.tokens, arguments.windows)):
            began = time.perf_counter()
            strategies: dict[str, Strategy] = {
                name: strategy(calibration=calibration) for name, strategy in STRATEGIES.items()
            }
            votes = MagnitudeVoting(0.0, float(1 << 24))
            strategies |= {"first in, first out": _Oldest(), "random": _Random(), "votes": votes}
            windows = {
                name: Window(
                    strategy=one,
                    system_tokens=len(scribe.system(SYSTEM)),
                    frame_tokens=scribe.frame_tokens(stamps=True),
                )
                for name, one in strategies.items()
            }
            engine.forget("light")
            measure(Talk(engine, calibration, scribe, windows), part, asked, arguments.questions, figures)
            top = figures.attribution().get("default", {}).get("top1")
            seconds = time.perf_counter() - began
            say(f"{path.stem}, window {number + 1}: {len(part)} turns, {seconds:.0f} s, top 1 so far {top}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="A folder with conversations of LoCoMo.")
    parser.add_argument("--model", default="smollm2-135m", help="A GGUF file or a name of the catalogue.")
    parser.add_argument("--conversations", type=int, default=None, help="At most so many.")
    parser.add_argument("--windows", type=int, default=2, help="Of each conversation.")
    parser.add_argument("--questions", type=int, default=8, help="Of each window, at most.")
    parser.add_argument("--tokens", type=int, default=2_000, help="Of each window, about.")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder), model=arguments.model, embedder="off", context=8192)
        with closing(open_engine(options)) as engine:
            calibration = calibrate_engine(options, engine)
            found = run(arguments, engine, calibration, lambda line: print(line, file=sys.stderr, flush=True))
            told = {
                "model": engine.info.name,
                "heads": [list(pair) for pair in calibration.pairs],
                "windows": found.windows,
                "attribution": found.attribution(),
                "keeping": found.keeping(),
                "use_and_surprise against magnitude_voting at 0.5": found.against(
                    "use_and_surprise", "magnitude_voting"
                ),
                "end_to_end": None,  # not measured by this benchmark yet
            }
    print(json.dumps(told, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
