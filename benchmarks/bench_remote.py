"""Engines elsewhere: speed and bytes through the kobold engine, what a server's cache keeps, how well a reader's eyes do."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import own_talk
from benchmarks.evaluation import TrialConversation, windows_of
from benchmarks.peer_server import halo_server, llama_server
from halo_weave.app import Options, build_weave, calibrate_engine, open_engine
from halo_weave.chat import events
from halo_weave.chat.prompt import PromptBuilder
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, Engine, PrefillResult, Prompt, Sampling, Segment, Step
from halo_weave.engines.kobold import KoboldEngine
from halo_weave.errors import HaloWeaveError
from halo_weave.lab.conversations import (
    Dialogue,
    DialogueQuestion,
    DialogueTurn,
    exchanges_of,
    read_dialogue,
    read_dialogues,
)
from halo_weave.models.inventory import chosen_weights
from halo_weave.settings import Settings

PARTS = ("speed", "cache", "reader")
SMALL, SPEAKER, READERS = "smollm2-135m", "qwen2.5-coder-1.5b", ("smollm2-135m", "qwen2.5-coder-0.5b")
ROUNDS, TOKENS, CONTEXT = 5, 48, 2000
FACTS = (
    "My sister Philippa keeps the spare key of the lighthouse behind the brass barometer.",
    "The dentist moved our appointment to the ninth of October at noon.",
    "Our cat Mooncake is afraid of balloons and hides in the piano.",
    "The password of the guest network is seven marmalade foxes.",
    "Grandfather built the boat Albatross in the winter of 1962.",
)
TURNS, EVERY, REPLY = 30, 5, 32  # each fifth thing that is said is a question about what was said before
Say = Callable[[str], None]
TOPICS = "soup clouds chess trains violins sand maps tea kites moss bridges bees snow paper salt".split()


# Through the kobold engine


def _prompt(engine: Engine, tokens: int) -> Prompt:
    text = " ".join(
        f"{FACTS[i % len(FACTS)]} Then we spoke of {TOPICS[i % len(TOPICS)]}." for i in range(200)
    )
    ids = engine.tokenize(text).ids[:tokens]
    return Prompt([Segment("chunk", np.arange(len(ids), dtype=np.int64), ids)], len(ids))


def _rate(engine: Engine, prompt: Prompt, capture: Capture, window: str) -> tuple[float, int]:
    """Tokens per second from the first to the last, and how many."""
    times = []
    sampling = Sampling(temperature=0.7, seed=1, max_new_tokens=TOKENS)
    for event in engine.generate(window, prompt, sampling, capture):
        if isinstance(event, Step):
            times.append(time.perf_counter())
        elif isinstance(event, PrefillResult):
            assert not event.rebuilt
    return (len(times) - 1) / (times[-1] - times[0]), len(times)


def speed() -> dict[str, Any]:
    """The same tokens in process and over loopback, in turn, with the rows of the calibrated heads."""
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        options = Options(Path(here), model=SMALL, embedder="off", context=4096)
        with (
            halo_server(Path(there), "--model", SMALL, "--context", "4096") as server,
            closing(open_engine(options)) as own,
            closing(KoboldEngine(server.url)) as far,
        ):
            heads = calibrate_engine(options, own).pairs
            capture = Capture(pairs=heads, raw=True)
            ratios: list[float] = []
            for number in range(ROUNDS):
                prompt = _prompt(own, 512)
                near, _ = _rate(own, prompt, capture, f"near {number}")
                distant, _ = _rate(far, prompt, capture, f"far {number}")
                ratios.append(distant / near)
            before = far.server.received
            _, count = _rate(far, _prompt(own, CONTEXT), capture, "bytes")
            return {
                "speed_ratio": round(statistics.median(ratios), 3),
                "speed_ratios": [round(one, 3) for one in ratios],
                "bytes_per_token": round((far.server.received - before) / count),
                "heads": len(heads),
                "malformed": far.malformed,
            }


# The cache of a server that nobody here wrote


def _conversation(talk: Dialogue) -> list[str]:
    """Thirty things to say: what somebody tells in a few days, and now and then a question about it."""
    said: list[str] = []
    told: set[str] = set()
    for one, other in exchanges_of(talk.turns):
        said.append(one.text)
        told |= one.names | other.names
        known = [asked.text for asked in talk.questions if asked.evidence <= told and asked.text not in said]
        if len(said) % EVERY == EVERY - 1 and known:
            said.append(known[len(known) // 2])
    return said[:TURNS]


def cache(data: Path | None, talks: int, say: Say) -> dict[str, Any]:
    """Thirty turns with forgetting and waking against llama-server, settings as they are: what it says it had read before."""
    settings = Settings().changed(
        {"max_context_tokens": CONTEXT, "max_new_tokens": REPLY, "temperature": 0, "tools": "off", "seed": 1}
    )
    whole, shares = Counter[str](), {}
    for talk in _talks(data, talks):
        say(f"{talk.name}: {TURNS} turns against llama-server")
        found, turns = _cached(talk, settings)
        whole += found
        shares[talk.name] = {"share": round(found["cached"] / found["prompted"], 3), "turns": turns}
    return {
        "cached_share": round(whole["cached"] / whole["prompted"], 3),
        "cached_shares": shares,
        "pruned": whole["pruned"],
        "resurrected": whole["resurrected"],
    }


def _cached(talk: Dialogue, settings: Settings) -> tuple[Counter[str], list[float]]:
    whole, shares = Counter[str](), []
    with (
        tempfile.TemporaryDirectory() as folder,
        llama_server(chosen_weights(SMALL), context=4096) as address,
    ):
        options = Options(Path(folder), engine="openai", url=address, shadow_model="off", settings=settings)
        with closing(build_weave(options)) as weave:
            window = weave.windows.create("w").id
            for number, text in enumerate(_conversation(talk)):
                for event in weave.turns.steps(window, text):
                    if isinstance(event, events.TurnEnded):
                        stats = Counter(
                            {n: int(event.stats[n]) for n in ("pruned", "resurrected", "prompted", "cached")}
                        )
                        whole += (
                            stats if number else Counter()
                        )  # of the first turn nothing can have been read before
                        shares.append(round(stats["cached"] / max(1, stats["prompted"]), 2))
    return whole, shares[1:]


# The reader


def _use(
    engine: Engine, calibration: Calibration, part: Sequence[DialogueTurn], asked: Sequence[DialogueQuestion]
) -> list[dict[int, float]]:
    """For each question, what its answer was taken from: shares by turn."""
    talk = TrialConversation.begin(
        engine, calibration, PromptBuilder(engine), {"only": Settings().brightness_strategy(calibration)}
    )
    for question, answer in zip(part[::2], part[1::2], strict=False):
        talk.exchange(question, answer.text, answer.names)
    found = []
    for one in asked:
        said = DialogueTurn(frozenset(), Role.USER, one.text, part[-1].said + timedelta(days=1))
        shares: dict[int, float] = dict.fromkeys(range(1, talk.turn), 0.0)
        for used in talk.exchange(said, one.answer).whole().chunks:
            shares[used.key.turn_id] = shares.get(used.key.turn_id, 0.0) + used.share
        talk.take_back()
        found.append(shares)
    return found


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Places in order; equal ones share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)


def _talks(data: Path | None, most: int = 1) -> list[Dialogue]:
    if data is not None:
        return read_dialogues(data, most)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "own.json"
        file.write_text(json.dumps(own_talk.build()), encoding="utf-8")
        return [read_dialogue(file)]


def _trials(data: Path | None, engine: Engine, tokens: int, windows: int, most: int) -> Iterator[Any]:
    for dialogue in _talks(data):
        for part in windows_of(dialogue.turns, engine, tokens, windows):
            names = {name for said in part for name in said.names}
            asked = [one for one in dialogue.questions if one.evidence and one.evidence <= names][:most]
            if asked:
                yield part, asked


def reader(data: Path | None, tokens: int, windows: int, most: int, say: Say) -> dict[str, Any]:
    """How often the reader's brightest turn is the speaker's, and how alike all turns are ranked."""
    seen: dict[str, list[dict[int, float]]] = {}
    trials: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (SPEAKER, *READERS):
            options = Options(Path(folder), model=name, embedder="off", context=4096)
            try:
                engine = open_engine(options)
            except HaloWeaveError as error:
                say(f"{name} is left out: {error}")
                continue
            with closing(engine):
                calibration = calibrate_engine(options, engine)
                trials = trials or list(_trials(data, engine, tokens, windows, most))
                seen[name] = []
                for number, (part, asked) in enumerate(trials):
                    say(f"{name}: window {number + 1} of {len(trials)}")
                    seen[name] += _use(engine, calibration, part, asked)
    own = seen.get(SPEAKER)
    found: dict[str, Any] = {"speaker": SPEAKER if own else "", "questions": len(own or ()), "reader": {}}
    for name in READERS if own else ():
        if name not in seen:
            continue
        pairs = list(zip(own or (), seen[name], strict=True))
        same = [max(a, key=lambda t: a[t]) == max(b, key=lambda t: b[t]) for a, b in pairs]
        alike = [
            float(np.corrcoef(_ranks(list(a.values())), _ranks([b.get(t, 0.0) for t in a]))[0, 1])
            for a, b in pairs
        ]
        known = [one for one in alike if np.isfinite(one)]
        found["reader"][name] = {
            "top1": round(sum(same) / len(same), 3),
            "rank_correlation": round(statistics.fmean(known), 3) if known else 0.0,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="One part.")
    parser.add_argument("--data", type=Path, help="A folder with conversations of LoCoMo to use.")
    parser.add_argument("--talks", type=int, default=1, help="Conversations of the folder for the cache.")
    parser.add_argument(
        "--tokens", type=int, default=900, help="Of each window that the reader reads, about."
    )
    parser.add_argument("--windows", type=int, default=3, help="That the reader reads.")
    parser.add_argument("--questions", type=int, default=6, help="Of each window, at most.")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    told: dict[str, Any] = {}
    if asked.only in (None, "speed"):
        told |= speed()
    if asked.only in (None, "cache"):
        told |= cache(asked.data, asked.talks, say)
    if asked.only in (None, "reader"):
        told |= reader(asked.data, asked.tokens, asked.windows, asked.questions, say)
    print(json.dumps(told, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
