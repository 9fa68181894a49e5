"""Evaluate strategies on conversations with questions: attribution, what is kept, and evidence end to end."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.chat import Weave, events
from halo_weave.chat.prompt import PromptBuilder, WindowPrompt
from halo_weave.core.attribution import AttributionTracker
from halo_weave.core.brightness import (
    AttentionRow,
    Capture,
    Floats,
    Strategy,
    StrategyInput,
    TokenBrightness,
    peaks,
)
from halo_weave.core.pruning import plan_prune
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.strategies import STRATEGIES
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.working_set import WorkingSet, chunk_turn
from halo_weave.engines.base import Embedder, Engine, GenerationEnd, PrefillResult, Step, Vectors
from halo_weave.errors import BadInput
from halo_weave.lab.conversations import (
    KINDS,
    Dialogue,
    DialogueQuestion,
    DialogueTurn,
    GivenReplyEngine,
    exchanges_of,
    read_given_reply,
)
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.store.records import DEFAULT_PROMPT
from halo_weave.store.sqlite import SqliteStore

KEEP = (0.75, 0.5, 0.25)
WINDOW = "lab"
DRAWS = 20  # of chance, whose mean is what chance keeps
FRAME = 25  # tokens that a turn takes beside its words, about
VOTES = "votes"  # a window without decay and cap, which shows the votes of single replies


@dataclass(frozen=True, slots=True)
class Chance(Strategy):
    """What stays is chosen by chance; the same choice for the same draw and number of chunks."""

    draw: int = 0

    def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
        return state.tokens

    def of_chunks(self, state: StrategyInput) -> Floats:
        return np.random.default_rng((self.draw, len(state.chunks))).random(len(state.chunks), np.float32)


@dataclass(slots=True)
class TrialConversation:
    """One window's talk with the replies given, seen by several windows with a strategy each."""

    engine: Engine
    calibration: Calibration
    prompt_builder: PromptBuilder
    windows: dict[str, WorkingSet]
    position: int = 0
    turn: int = 1
    keys: dict[str, list[ChunkKey]] = field(default_factory=dict)  # by the file's names

    @classmethod
    def begin(
        cls,
        engine: Engine,
        calibration: Calibration,
        prompt_builder: PromptBuilder,
        strategies: Mapping[str, Strategy],
    ) -> TrialConversation:
        engine.forget(WINDOW)
        frame_tokens = prompt_builder.frame_tokens()
        windows = {
            name: WorkingSet(
                strategy=one,
                system_tokens=prompt_builder.system_prompt(DEFAULT_PROMPT).tokens,
                frame_tokens=frame_tokens,
            )
            for name, one in strategies.items()
        }
        return cls(engine, calibration, prompt_builder, windows)

    @property
    def window(self) -> WorkingSet:
        return next(iter(self.windows.values()))

    def exchange(
        self, question: DialogueTurn, answer: str, names: frozenset[str] = frozenset()
    ) -> AttributionTracker:
        """The question is read and the given reply said; what it was taken from."""
        user, reply = self.turn, self.turn + 1
        said = self.engine.tokenize(question.text)
        chunks = chunk_turn(said, user, Role.USER, self.position)
        for window in self.windows.values():
            window.add([window.new_chunk(chunk) for chunk in chunks])
            window.begin_reply(reply, self.position + len(said), user)
        tally = AttributionTracker(self.calibration)
        forced = self.engine.tokenize(answer)
        prompt = self.prompt_builder.prompt(
            self.window, self.prompt_builder.system_prompt(DEFAULT_PROMPT), {}
        )
        before = sum(len(chunk) for chunk in self.window.chunks if chunk.key.turn_id < user)
        for event in read_given_reply(self.engine, WINDOW, prompt, forced, self._capture()):
            if isinstance(event, PrefillResult):
                self._read(event, prompt, user, tally, before)
            elif isinstance(event, Step):
                row = prompt.to_live_tokens(event.row)
                tally.add_token(row, self.window.chunks, self.window.offsets, user)
                for window in self.windows.values():
                    if window.strategy.capture.reply:
                        window.update(row)
                    window.append_reply_token(event.id, event.piece, event.surprisal)
            elif isinstance(event, GenerationEnd) and (row := prompt.to_live_tokens(event.row)):
                tally.end_reply(row)
        for window in self.windows.values():
            made = window.end_reply()
        for name in question.names:
            self.keys[name] = [chunk.key for chunk in chunks]
        for name in names:
            self.keys[name] = [chunk.key for chunk in made]
        self.position += len(said) + len(forced) + 64
        self.turn += 2
        return tally

    def _capture(self) -> Capture:
        """All heads' mean for the strategies that vote by it, and the retrieval heads one by one."""
        capture = Capture(reading=True, reading_surprisal=True)
        if self.calibration.heads:
            capture = replace(capture, raw=True, raw_pairs=self.calibration.pairs)
        return capture

    def _read(
        self, read: PrefillResult, prompt: WindowPrompt, user: int, tally: AttributionTracker, before: int
    ) -> None:
        rows = [row for row in map(prompt.to_live_tokens, read.rows) if row]
        tally.observe_prefill(rows, before)
        for window in self.windows.values():
            if read.surprisal is not None:
                window.observe_surprisal(user, prompt.surprisal_of_live_tokens(read.surprisal))
            if window.strategy.capture.reading:
                window.observe_rows(rows)

    def take_back(self) -> None:
        """The last exchange was never said."""
        for window in self.windows.values():
            window.remove([chunk.key for chunk in window.chunks if chunk.key.turn_id >= self.turn - 2])


def run_trial(
    talk: TrialConversation, part: Sequence[DialogueTurn], asked: Sequence[DialogueQuestion], most: int
) -> dict[str, Any]:
    """One part of a conversation: what is kept of what is asked later, and where the answers' light falls.

    `talk` needs windows named magnitude_voting and `VOTES`.
    """
    for question, answer in exchanges_of(part):
        talk.exchange(question, answer.text, answer.names)
    known = [one for one in asked if one.evidence <= talk.keys.keys()]
    kept = _kept_by_strategy(talk, {name for one in known for name in one.evidence})
    if len(known) > most:
        known = [known[i] for i in np.linspace(0, len(known) - 1, most).round().astype(int)]
    return {"kept": kept, "answers": [_attribution_ranks(talk, part, one) for one in known]}


def votes_of_replies() -> Strategy:
    """Magnitude voting that shows what single replies add: nothing is lost, nothing is cut off."""
    return MagnitudeVoting(initial_brightness=0.0, brightness_cap=float(1 << 24), decay=0.0)


def _attribution_ranks(
    talk: TrialConversation, part: Sequence[DialogueTurn], one: DialogueQuestion
) -> dict[str, Any]:
    """By each way of reading, at which place the first right chunk stands; 0: nowhere."""
    right = {key for name in one.evidence for key in talk.keys[name]}
    voting, votes = talk.windows["magnitude_voting"], talk.windows[VOTES]
    count, chunks, offsets = len(voting), list(voting.chunks), voting.offsets.copy()
    before = votes.brightness.copy(), voting.brightness.copy()
    asked = DialogueTurn(frozenset(), Role.USER, one.text, part[-1].said + timedelta(days=1))
    tally = talk.exchange(asked, one.answer)
    ranked = {"default": [used.key for used in tally.whole().chunks]}
    # The votes of the answer's own tokens; and what of them shows, since nothing rises above the cap.
    for way, window, was in (
        ("magnitude_voting", votes, before[0]),
        ("magnitude_voting, under its cap", voting, before[1]),
    ):
        gain = peaks(window.brightness[:count] - was, offsets)
        ranked[way] = [chunks[i].key for i in np.argsort(-gain, kind="stable")]
    talk.take_back()
    places = {way: _place(keys, right) for way, keys in ranked.items()}
    # Where a question was answered, files may name the question as the evidence.
    turns = {key.turn_id for key in right}
    beside = {key for key in ranked["default"] if turns & set(range(key.turn_id - 1, key.turn_id + 2))}
    places["default, or the turn beside it"] = _place(ranked["default"], beside)
    return {"kind": one.kind, "places": places}


def _place(keys: Sequence[ChunkKey], right: Collection[ChunkKey]) -> int:
    return next((place for place, key in enumerate(keys, 1) if key in right), 0)


def _kept_by_strategy(talk: TrialConversation, evidence: set[str]) -> dict[str, dict[str, float]]:
    """For each strategy, the share of turns that will be asked about of which half is still live."""
    last = {talk.turn - 2, talk.turn - 1}
    # Two names may stand for one turn.
    wanted = {tuple(keys) for name in evidence if (keys := talk.keys[name])[0].turn_id not in last}
    found: dict[str, dict[str, float]] = {}
    for name, window in talk.windows.items() if wanted else ():
        if name == VOTES:
            continue
        chance = isinstance(window.strategy, Chance)
        for share in KEEP:
            draws = []
            for draw in range(DRAWS if chance else 1):
                if chance:
                    window.use(Chance(draw=draw))
                draws.append(_live_share(window, share, last, wanted))
            found.setdefault(name, {})[str(share)] = float(np.mean(draws))
    return found


def _live_share(window: WorkingSet, share: float, last: set[int], wanted: set[tuple[ChunkKey, ...]]) -> float:
    """What of the wanted is live for at least half once the window is pruned to a share of its size."""
    sizes = {chunk.key: len(chunk) for chunk in window.chunks}
    gone = set(plan_prune(window, int(window.size * share), current=last).keys)
    return float(
        np.mean(
            [
                sum(sizes[key] for key in keys if key not in gone) * 2 >= sum(sizes[key] for key in keys)
                for keys in wanted
            ]
        )
    )


class CachingEmbedder:
    """An embedder that computes no text twice: the same conversation is said again and again."""

    def __init__(self, embedder: Embedder) -> None:
        self.inner, self.name, self.dimension = embedder, embedder.name, embedder.dimension
        self.file = embedder.file
        self._known: dict[tuple[str, bool], Vectors] = {}

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        new = list(dict.fromkeys(text for text in texts if (text, query) not in self._known))
        if new:
            self._known |= {
                (text, query): vector
                for text, vector in zip(new, self.inner.embed(new, query=query), strict=True)
            }
        found = [self._known[text, query] for text in texts]
        return np.stack(found) if found else np.zeros((0, self.dimension), np.float32)

    def close(self) -> None:
        """The embedder is its owner's to close."""


def run_whole_conversation(
    dialogue: Dialogue,
    engine: Engine,
    calibration: Calibration,
    embedder: Embedder,
    settings: Settings,
    *,
    exchanges: int | None = None,
) -> dict[str, Any]:
    """What of the evidence of all questions is in the context when they are asked, and what was read anew until then.

    `exchanges`: only the first so many, and the questions about them.
    """
    forced, now = GivenReplyEngine(engine), dialogue.turns[0].said
    keys: dict[str, list[ChunkKey]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "memory.sqlite")
        recall = MemorySearch(store, lambda: embedder)
        weave = Weave(
            forced,
            store,
            recall,
            defaults=settings.changed({"prefetch": "off"}),
            calibration=calibration,
            now=lambda: now,
        )
        with closing(weave):
            window = weave.windows.create(dialogue.name).id
            read = woken = 0
            for user, reply in list(exchanges_of(dialogue.turns))[:exchanges]:
                now = max(user.said, now)
                forced.reply = engine.tokenize(reply.text)
                for event in weave.turns.steps(window, user.text):
                    if isinstance(event, events.MessageStored):
                        keys |= {name: [one.key for one in event.chunks] for name in user.names}
                    elif isinstance(event, events.ReplyStored):
                        keys |= {name: [one.key for one in event.chunks] for name in reply.names}
                    elif isinstance(event, events.ChunksResurrected):
                        woken += event.cost
                    elif isinstance(event, events.TurnEnded):
                        read += int(event.stats["computed"])
                recall.settle()
            now += timedelta(days=1)
            found = _evidence_in_context(dialogue, weave, window, keys)
            weave.engine.forget(window)
    return {**found, "read_tokens": read, "woken_tokens": woken}


def _evidence_in_context(
    dialogue: Dialogue, weave: Weave, window: str, keys: dict[str, list[ChunkKey]]
) -> dict[str, Any]:
    """Each question as if it were the next thing said; nothing is changed by it."""
    live = {one.key for turn in weave.windows.context(window).turns for one in turn.chunks}
    each: list[int] = []  # for each question, whether all of its evidence is there
    live_already = cost = 0
    for one in dialogue.questions:
        if not one.evidence <= keys.keys():
            continue
        needed = {key for name in one.evidence for key in keys[name]}
        plan = weave.memory.preview(window, one.text).plan
        each.append(int(needed <= live.union(plan.keys)))
        live_already += needed <= live
        cost += plan.cost
    return {
        "questions": len(each),
        "found": sum(each),
        "each": each,
        "live": live_already,
        "asked_tokens": cost,
    }


FLIPS = 10_000
SLIDING = "first_in_first_out"  # what a sliding window does: the measure end to end
Record = Mapping[str, Any]


class Records:
    """Records by what they are about. With a file they are kept, so that a long measurement can go on later."""

    def __init__(self, file: Path | None, **about: Any) -> None:
        """`about`: what must be the same for records to belong together, such as the model."""
        self._file, self._about = file, about
        self.known: dict[str, Record] = {}
        if file is not None and file.exists():
            lines = file.read_text(encoding="utf-8").splitlines()
            try:
                first, *rest = [json.loads(line) for line in lines if line.strip()]
            except ValueError:
                raise BadInput(f"{file} holds no records of a measurement.") from None
            if first != json.loads(json.dumps(about)):
                raise BadInput(f"{file} holds records of another measurement: {first}. Name another file.")
            self.known = {one["name"]: one for one in rest}

    def add(self, name: str, record: Record) -> None:
        self.known[name] = {"name": name, **record}
        if self._file is not None:
            fresh = not self._file.exists()
            with self._file.open("a", encoding="utf-8") as out:
                if fresh:
                    out.write(json.dumps(self._about) + "\n")
                out.write(json.dumps(self.known[name]) + "\n")

    def of(self, kind: str) -> list[Record]:
        return [one for name, one in sorted(self.known.items()) if name.startswith(f"{kind} ")]


def attribution(windows: Iterable[Record]) -> dict[str, Any]:
    """By each way of reading: how often the brightest chunk, or one of three, is what the answer came from."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in (answer for one in windows for answer in one["answers"]):
        for way, place in answer["places"].items():
            for group in ("", answer["kind"]):
                counts[way][f"questions {group}"] += 1
                counts[way][f"top1 {group}"] += place == 1
                counts[way][f"top3 {group}"] += 1 <= place <= 3

    def told(count: Counter[str], group: str) -> dict[str, float]:
        asked = count[f"questions {group}"]
        tops = {top: round(count[f"{top} {group}"] / asked, 4) for top in ("top1", "top3")}
        return {**tops, "questions": asked}

    return {
        way: {
            **told(count, ""),
            "by_category": {kind: told(count, kind) for kind in KINDS.values() if count[f"questions {kind}"]},
        }
        for way, count in counts.items()
    }


def kept_shares(windows: Sequence[Record]) -> dict[str, dict[str, float]]:
    """By strategy and share of the window that was kept: the mean over windows."""
    return {
        name: {share: round(float(np.mean(values)), 4) for share, values in shares.items()}
        for name, shares in _kept_records(windows).items()
    }


def compare_to_others(windows: Sequence[Record], one: str) -> dict[str, dict[str, dict[str, float]]]:
    """How far a strategy is ahead of each other one, and how often chance would do as much.

    The signs of the windows' differences are flipped at random, for a difference in either direction.
    """
    kept = _kept_records(windows)
    return {
        other: {
            share: sign_flip_test(np.array(kept[one][share]) - np.array(values))
            for share, values in shares.items()
        }
        for other, shares in kept.items()
        if other != one
    }


def sign_flip_test(differences: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    flips = np.random.default_rng(1).choice([-1.0, 1.0], (FLIPS, len(differences)))
    as_large = np.abs((flips * differences).mean(axis=1)) >= abs(differences.mean()) - 1e-12
    return {"difference": round(float(differences.mean()), 4), "p": round(float(as_large.mean()), 4)}


def end_to_end(wholes: Iterable[Record]) -> dict[str, dict[str, dict[str, Any]]]:
    """By budget and strategy: the share of questions with all their evidence in the context, and tokens read.

    `ahead`: of first in, first out, on the same questions; p as in `against`, over the questions.
    """
    wholes = list(wholes)
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in wholes:
        count = sums[one["budget"], one["strategy"]]
        count.update({name: value for name, value in one.items() if isinstance(value, int)})
        count["conversations"] += 1
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for (budget, strategy), count in sums.items():
        asked = max(1, count["questions"])
        found[budget][strategy] = {
            "evidence": round(count["found"] / asked, 4),
            "evidence_live": round(count["live"] / asked, 4),
            "read_tokens": count["read_tokens"],
            "woken_tokens": count["woken_tokens"],
            "questions": count["questions"],
            "conversations": count["conversations"],
        }
        if strategy != SLIDING and (pairs := _same_questions(wholes, budget, strategy)):
            found[budget][strategy]["ahead"] = sign_flip_test(np.concatenate(pairs))
    return dict(found)


def _same_questions(
    wholes: Sequence[Record], budget: str, strategy: str
) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """For each conversation said with both: for each question 1 if only the strategy has its evidence, -1 if only the other."""
    there: dict[str, dict[str, Any]] = defaultdict(dict)
    for one in wholes:
        if one["budget"] == budget and "each" in one:
            there[one["dialogue"]][one["strategy"]] = one["each"]
    return [
        np.array(by[strategy], np.float64) - np.array(by[SLIDING], np.float64)
        for by in there.values()
        if len(by.get(strategy, ())) == len(by.get(SLIDING, ())) > 0
    ]


def _kept_records(windows: Sequence[Record]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in windows:
        for name, shares in one["kept"].items():
            for share, value in shares.items():
                found[name][share].append(value)
    return found


CHANCE = "random"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """How much is measured."""

    windows: int = 4  # of each conversation
    questions: int = 12  # of each window, at most
    tokens: int = 2_000  # of each window, about
    budgets: tuple[int, ...] = (1_000, 2_000, 4_000)
    strategies: tuple[str, ...] = (Settings().strategy, "first_in_first_out")  # said whole
    exchanges: int | None = None  # of each conversation that is said whole; None: all


def windows_of(
    turns: Sequence[DialogueTurn], engine: Engine, tokens: int, count: int
) -> Iterator[list[DialogueTurn]]:
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


def measure_windows(
    talks: Iterable[Dialogue],
    engine: Engine,
    calibration: Calibration,
    extent: Workload,
    records: Records,
    say: Say,
    time_left: Callable[[], bool],
) -> bool:
    """Attribution and keeping. False: there was no time for all of it."""
    prompt_builder = PromptBuilder(engine)
    for dialogue in talks:
        for number, part in enumerate(windows_of(dialogue.turns, engine, extent.tokens, extent.windows)):
            name = f"window {dialogue.name} {number + 1} of {extent.windows}"
            if name in records.known:
                continue
            if not time_left():
                return False
            strategies: dict[str, Strategy] = {
                name: strategy(calibration=calibration) for name, strategy in STRATEGIES.items()
            }
            strategies |= {CHANCE: Chance(), VOTES: votes_of_replies()}
            talk = TrialConversation.begin(engine, calibration, prompt_builder, strategies)
            records.add(name, run_trial(talk, part, dialogue.questions, extent.questions))
            top = attribution(records.of("window")).get("default", {}).get("top1")
            say(f"{name}: {len(part)} turns, top 1 so far {top}")
    return True


def measure_whole(
    talks: Sequence[Dialogue],
    engine: Engine,
    calibration: Calibration,
    embedder: Embedder,
    extent: Workload,
    records: Records,
    say: Say,
    time_left: Callable[[], bool],
) -> bool:
    """End to end. False: there was no time for all of it."""
    for dialogue in talks:
        for budget in extent.budgets:
            for strategy in extent.strategies:
                name = f"whole {dialogue.name} {budget} {strategy}"
                if name in records.known:
                    continue
                if not time_left():
                    return False
                settings = replace(Settings(), max_context_tokens=budget, strategy=strategy)
                found: dict[str, Any] = run_whole_conversation(
                    dialogue, engine, calibration, embedder, settings, exchanges=extent.exchanges
                )
                about = {"dialogue": dialogue.name, "budget": str(budget), "strategy": strategy}
                records.add(name, about | found)
                say(f"{name}: {found['found']} of {found['questions']} questions have all their evidence")
    return True
