"""Cells that come from another window: how much sooner the first token comes than when they are computed, and what it costs."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_talk import Piece, facts, first_token, leave_to_disk, note, pieces, prompt
from halo_weave.chat.prompt import PromptBuilder, TurnAnnotation
from halo_weave.core.attribution import AttributionTracker, capture_for_attribution
from halo_weave.core.brightness import Capture
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Chunk, Role
from halo_weave.core.working_set import WorkingSet, chunk_turn
from halo_weave.engines.base import PrefillResult, Prompt, Sampling, Step
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.lab.conversations import read_dialogue, read_given_reply

BORROWED, BEFORE, ASKED = 450, 600, 20  # tokens: of the chunk, of its window before it, of the question
SOURCES = ("live", "pruned", "disk", "restart")
HOME, OWNER = "home", "ann"


def cross_window_speedup(path: Path, folder: Path, repeats: int) -> dict[str, float]:
    """First token of a turn in which 450 tokens of another window return: computed over lent, by where they lie.

    `over_nothing`: lent from memory over a turn in which nothing returns.
    """
    limits = EngineLimits(cells=folder / "lent")
    taken: dict[str, list[float]] = {source: [] for source in (*SOURCES, "computed", "nothing")}
    asking = itertools.count(10**5, ASKED)  # nobody has asked it before
    for number in range(repeats):
        for source in taken:
            with LlamaEngine(path, limits=limits) as engine:
                here = f"{source} {number}"
                size = 40 + BEFORE + BORROWED + 100 + 2 * ASKED
                system, before, chunk, later, hello, asked = pieces(
                    facts(engine, size), 40, BEFORE, BORROWED, 100, ASKED, ASKED
                )
                system = replace(system, labels=-1 - system.labels, kind="frame")
                question = Piece(next(asking) + np.arange(ASKED), asked.ids)
                if source in ("live", "pruned", "disk"):
                    first_token(engine, HOME, _in_memory([system, before, chunk, later]), "splice")
                if source in ("pruned", "disk"):
                    first_token(engine, HOME, _in_memory([system, before, later]), "splice")
                if source == "disk":
                    leave_to_disk(engine, HOME)
                first_token(engine, here, _in_memory([system, hello]), "splice")
                returning = [] if source == "nothing" else [chunk]
                coming = _in_memory([system, hello, *returning, question])
                coming = replace(coming, owner=None if source == "computed" else OWNER)
                seconds, read = first_token(engine, here, coming, "splice")
                assert (read.restored > BORROWED / 2) == (source in SOURCES), f"{source}: {read}"
                assert read.computed >= ASKED, f"{source}: {read}"
                taken[source].append(seconds)
                note(f"  {source}: {seconds * 1e3:.0f} ms ({read.restored} lent, {read.computed} computed)")
    median = {source: statistics.median(seconds) for source, seconds in taken.items()}
    return {source: round(median["computed"] / median[source], 1) for source in SOURCES} | {
        "over_nothing": round(median["live"] / median["nothing"], 2)
    }


def _in_memory(parts: list[Piece]) -> Prompt:
    """What a window of the memory reads, all of which was said there."""
    asked = prompt(parts)
    segments = [replace(segment, lendable=segment.kind == "chunk") for segment in asked.segments]
    return replace(asked, segments=segments, owner=OWNER)


# Quality

NAMES = (
    "Okonkwo Lindqvist Abernathy Szymanski Tveit Marchetti Ferreira Haruki Delacroix Brannigan Achterberg Yilmaz "
    "Kowalczyk Sorensen Papadakis Iglesias Thornbury Vandermeer Castellano Eriksen"
).split()
FACTS = [  # what was said, the question, and the answer, each with a name
    ("My dentist is called {}, and I have an appointment in March.", "What is my dentist called?", "Your dentist is called {}."),
    ("I bought the blue boat from a man named {} last week.", "From whom did I buy the blue boat?", "You bought the blue boat from {}."),
    ("Our new neighbour {} plays the cello until midnight.", "Who plays the cello until midnight?", "Your neighbour {} plays the cello."),
    ("The landlord of my studio, {}, wants to raise the rent.", "Who is the landlord of my studio?", "The landlord of your studio is {}."),
    ("My sister named her kitten {}, after a singer.", "What did my sister name her kitten?", "Your sister named her kitten {}."),
    ("The code word for the garden gate is {} since Sunday.", "What is the code word for the garden gate?", "The code word for the garden gate is {}."),
    ("My piano teacher {} is moving to Norway in autumn.", "Which teacher of mine is moving to Norway?", "Your piano teacher {} is moving to Norway."),
    ("The best bread in town is baked by {}, near the station.", "Who bakes the best bread in town?", "The best bread in town is baked by {}."),
    ("I lent my bicycle to {} and have not seen it again.", "To whom did I lend my bicycle?", "You lent your bicycle to {}."),
    ("The surgeon who mended my knee was Doctor {}.", "Who mended my knee?", "Your knee was mended by Doctor {}."),
]  # fmt: skip
ANSWERS = [
    "That is good to know. Tell me more whenever you like.",
    "Thank you for telling me. How do you feel about it?",
    "I see. Is there anything that I can do for you there?",
]
CHATTER = (
    "It rained all day, so I stayed inside, cooked soup, and read two chapters of a long book about the sea.",
    "I slept badly, since the wind shook the windows, and the coffee machine has broken down once more.",
    "At work we talked about the budget for hours, and nobody could say what the new shelves will cost.",
)
SYSTEM = "You are a helpful assistant."
SAID = datetime(2026, 3, 2, tzinfo=UTC)
OTHERS = 3  # exchanges beside the needed one
WAYS = ("computed", "lent", "absent")
LONGEST = 24  # tokens of an answer


@dataclass(frozen=True)
class Question:
    text: str
    answer: str  # as a sentence
    right: str  # what must stand in an answer
    needed: int  # number of the exchange


@dataclass(frozen=True)
class Heard:
    right: bool
    logp: float  # of the answer, per token
    found: bool  # the chunk that is looked at most is of the needed exchange


def lent_quality(
    engine: LlamaEngine, calibration: Calibration, data: Path, count: int
) -> dict[str, dict[str, Any]]:
    """Questions in a new window about a long conversation in another one: right answers, log-probability, attribution."""
    told = {"facts": _invented(count)}
    if any(data.glob("*.json")):
        told["locomo"] = _of_locomo(engine, sorted(data.glob("*.json"))[0], count)
    return {name: _compare(engine, calibration, *one) for name, one in told.items()}


def _invented(count: int) -> tuple[list[tuple[str, str]], list[Question]]:
    """Invented facts among chatter."""
    said, asked = [], []
    for number in range(min(count, len(FACTS) * 2)):
        fact, question, answer = FACTS[number % len(FACTS)]
        if number >= len(FACTS):  # the same kind of fact, about somebody else
            fact, question, answer = (_of_my_uncle(text) for text in (fact, question, answer))
        name = NAMES[number]
        said.append((CHATTER[number % len(CHATTER)], ANSWERS[(number + 1) % len(ANSWERS)]))
        asked.append(Question(question, answer.format(name), name, len(said)))
        said.append((fact.format(name), ANSWERS[number % len(ANSWERS)]))
    return said, asked


def _of_my_uncle(text: str) -> str:
    return (
        f"My uncle told me about himself: {text}"
        if text.endswith(".")
        else f"My uncle asks about himself: {text}"
    )


def _of_locomo(engine: LlamaEngine, path: Path, count: int) -> tuple[list[tuple[str, str]], list[Question]]:
    """What two people said to each other, and questions about single things of it."""
    dialogue = read_dialogue(path)
    said, places = list[tuple[str, str]](), dict[str, int]()
    turns = list(dialogue.turns)
    for one, other in zip(turns[::2], turns[1::2], strict=False):
        for name in (*one.names, *other.names):
            places[name] = len(said)
        said.append((one.text, other.text))
        if sum(len(engine.tokenize(text)) for pair in said for text in pair) > 5000:
            break
    asked = [
        Question(one.text, one.answer, one.answer, places[next(iter(one.evidence))])
        for one in dialogue.questions
        if len(one.evidence) == 1 and next(iter(one.evidence)) in places and len(one.answer) < 30
    ]
    return said, asked[:count]


def _compare(
    engine: LlamaEngine, calibration: Calibration, said: list[tuple[str, str]], asked: list[Question]
) -> dict[str, Any]:
    builder = PromptBuilder(engine)
    system = builder.system_prompt(SYSTEM)
    position, turns = 0, list[tuple[Chunk, ...]]()
    home = WorkingSet(system_tokens=system.tokens, frame_tokens=builder.frame_tokens())
    for number, exchange in enumerate(said):
        for role, text, id in zip(
            (Role.USER, Role.ASSISTANT), exchange, (2 * number, 2 * number + 1), strict=True
        ):
            chunks = chunk_turn(engine.tokenize(text), id, role, position)
            position = chunks[-1].stop
            turns.append(chunks)
            home.add(home.new_chunk(chunk) for chunk in chunks)
    last = len(turns)
    home.begin_reply(last, position, last - 1)
    first_token(
        engine,
        HOME,
        builder.prompt(home, system, {}, own_turns=frozenset(range(last)), owner=OWNER),
        "splice",
    )
    heard: dict[str, list[Heard]] = {way: [] for way in WAYS}
    computed = list[int]()
    for number, question in enumerate(asked):
        rng = np.random.default_rng(number)
        rest = [one for one in range(len(said)) if one != question.needed]
        shown = sorted([question.needed, *rng.choice(rest, OTHERS, replace=False).tolist()])
        words = engine.tokenize(question.text)
        for way in WAYS:
            here = f"{way} {number}"
            window = WorkingSet(system_tokens=system.tokens, frame_tokens=builder.frame_tokens())
            ids = [] if way == "absent" else [id for one in shown for id in (2 * one, 2 * one + 1)]
            for id in ids:
                window.add(window.new_chunk(chunk) for chunk in turns[id])
            asking = chunk_turn(words, last + 1, Role.USER, position + 10**4 * (number + 1))
            window.add(window.new_chunk(chunk) for chunk in asking)
            window.begin_reply(last + 2, asking[-1].stop, last + 1)
            origins = {
                id: TurnAnnotation.quotation(SAID, turns[id][0].key.role, chat="Yesterday") for id in ids
            }
            coming = builder.prompt(window, system, origins, said_at=dict.fromkeys(ids, SAID))
            coming = replace(coming, owner=OWNER if way == "lent" else None)
            heard[way].append(
                _heard(engine, here, calibration, coming, window, question, computed if way == "lent" else [])
            )
            engine.forget(here)
        told = ", ".join(
            f"{way} {heard[way][-1].right:d} {heard[way][-1].logp:.2f} {heard[way][-1].found:d}"
            for way in WAYS
        )
        note(f"  {question.text} {told}")
    engine.forget(HOME)
    return {
        way: {
            "right": sum(one.right for one in all),
            "asked": len(all),
            "logp": round(statistics.mean(one.logp for one in all), 3),
            "found": sum(one.found for one in all),
        }
        for way, all in heard.items()
    } | {"tokens_computed": round(statistics.mean(computed))}


def _heard(
    engine: LlamaEngine,
    here: str,
    calibration: Calibration,
    coming: Prompt,
    window: WorkingSet,
    question: Question,
    computed: list[int],
) -> Heard:
    said = list[bytes]()
    for event in engine.generate(here, coming, Sampling(temperature=0.0, max_new_tokens=LONGEST), Capture()):
        if isinstance(event, Step):
            said.append(event.piece)
        elif isinstance(event, PrefillResult):
            computed.append(event.computed)
    text = b"".join(said).decode(errors="replace")
    chunks = list(window.chunks)
    offsets = np.cumsum([0, *(len(one) for one in chunks)])
    tally = AttributionTracker(calibration)
    exchange = chunks[-1].key.turn_id
    capture = replace(capture_for_attribution(Capture(), calibration), reading_surprisal=True)
    answer = engine.tokenize(question.answer)
    surprisal = list[float]()
    for event in read_given_reply(engine, here, coming, answer, capture):
        if isinstance(event, Step):
            surprisal.append(event.surprisal)
            tally.add_token(event.row, chunks, offsets, exchange)
    use = tally.whole()
    needed = {2 * question.needed, 2 * question.needed + 1}
    return Heard(
        question.right.lower() in text.lower(),
        -float(np.nanmean(surprisal)),
        bool(use.chunks) and use.chunks[0].key.turn_id in needed,
    )
