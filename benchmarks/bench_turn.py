"""Time from request to first token when nothing, something resident and something computed wakes up; our own share."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from halo_weave.assemble import Options, assemble
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.window import Live, chunk_turn
from halo_weave.index.recall import Recall
from halo_weave.ports import Engine
from halo_weave.settings import Settings
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.weave import Weave, events
from halo_weave.weave.needs import Memory

WORDS = [
    "river",
    "stone",
    "lantern",
    "harbour",
    "copper",
    "winter",
    "garden",
    "letter",
    "thunder",
    "pepper",
    "violin",
    "market",
    "shadow",
    "silver",
    "engine",
    "pocket",
    "meadow",
    "candle",
    "blanket",
    "mirror",
    "planet",
    "button",
    "ladder",
    "kitchen",
    "forest",
    "island",
    "summer",
    "window",
    "bridge",
    "castle",
]
LIVE = 2_000
TURN_CHUNKS = 500  # chunks appended in one step


def prose(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words)) + ".\n\n"


def fill(store: Memory, engine: Engine, window: str, chunks: int, rng: np.random.Generator) -> list[ChunkKey]:
    """Turns of prose, stored as the product stores them; chunks of about 70 tokens."""
    keys: list[ChunkKey] = []
    while len(keys) < chunks:
        count = min(TURN_CHUNKS, chunks - len(keys))
        tokens = engine.tokenize("".join(prose(rng, 64) for _ in range(count)))
        ids = store.reserve(len(tokens))
        said = chunk_turn(tokens, ids.user_turn, Role.USER, ids.start)
        brightness = [Live(chunk, np.full(len(chunk), 9_000, np.float32)) for chunk in said]
        store.append(window, brightness, tokenizer=engine.info.tokenizer, now=datetime.now(UTC))
        keys += [chunk.key for chunk in said]
    return keys


def first_token(weave: Weave, window: str, text: str) -> tuple[float, dict[str, float], events.Reading]:
    """Milliseconds until the first token, the turn's own figures, and what had to be read."""
    began = time.perf_counter()
    first, reading = 0.0, None
    for event in weave.say(window, text):
        if isinstance(event, events.Token) and not first:
            first = (time.perf_counter() - began) * 1e3
        elif isinstance(event, events.Reading):
            reading = event
        elif isinstance(event, events.Done):
            stats = dict(event.stats)
    assert reading is not None
    return first, stats, reading


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench turn", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--chunks", type=int, default=100_000, help="chunks in memory")
    parser.add_argument("--rounds", type=int, default=5, help="turns for each case")
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the default model")
    options = parser.parse_args()
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings().changed(
            {"max_context_tokens": LIVE, "max_new_tokens": 24, "temperature": 0, "tool_rounds": 0}
        )
        weave = assemble(Options(data=Path(folder), model=options.model, settings=settings), progress=told)
        try:
            result = measure(weave, options.chunks, options.rounds, rng)
        finally:
            weave.close()
    if options.json:
        print(json.dumps(result))


def told(what: str, done: int, total: int) -> None:
    if not total:
        print(what, file=sys.stderr)


def measure(weave: Weave, chunks: int, rounds: int, rng: np.random.Generator) -> dict[str, object]:
    archive = weave.create_window("archive").id
    print(f"storing {chunks:,} chunks", file=sys.stderr)
    fill(weave.store, weave.engine, archive, chunks, rng)
    give_vectors(weave, rng)
    window = weave.create_window("talk", settings={"resurrection_budget": 0}).id
    fill(weave.store, weave.engine, window, LIVE // 70, rng)
    first_token(weave, window, "Good morning.")  # the window is read once
    cases: dict[str, list[float]] = {"nothing": [], "resident": [], "computed": []}
    own_turn: list[float] = []
    own_token: list[float] = []
    read: dict[str, events.Reading] = {}
    # Something of 200 tokens wakes up by recall: it is named in a way that only it matches.
    for i in range(rounds):
        for case in cases:
            if case == "nothing":
                weave.change_window(window, settings={"resurrection_budget": 0})
                text = f"Please count to {i}."
            else:
                text = f"Tell me about the zanzibar{case}{i} again."
                secret = f"The zanzibar{case}{i} story. " + prose(rng, 170)
                key = say_elsewhere(weave, archive, secret)
                weave.change_window(window, settings={"resurrection_budget": 300})
                if case == "resident":  # it was live here before, and sleeps
                    first_token(weave, window, text)
                    if key in {one.key for one in weave.store.live(window)}:  # else it fell asleep by itself
                        weave.sleep(window, key)
                    weave.change_window(window, settings={"resurrection_budget": 0})
                    first_token(weave, window, "Something else now.")
                    weave.change_window(window, settings={"resurrection_budget": 300})
            ms, stats, reading = first_token(weave, window, text)
            cases[case].append(ms)
            own_turn.append(stats["own_ms_per_turn"])
            own_token.append(stats["own_ms_per_token"])
            read[case] = reading
            print(
                f"{case:9} {ms:8.1f} ms, own {stats['own_ms_per_turn']:.1f} ms + {stats['own_ms_per_token']:.3f} ms a token, {reading}",
                file=sys.stderr,
            )
    return {
        "own_ms_per_token": round(statistics.median(own_token), 4),
        "own_ms_per_turn": round(statistics.median(own_turn), 2),
        "own_ms_per_turn_worst": round(max(own_turn), 2),
        "first_token_ms": {case: round(statistics.median(times), 1) for case, times in cases.items()},
        "read": {
            case: {"reused": one.reused, "restored": one.restored, "computed": one.computed}
            for case, one in read.items()
        },
        "chunks": chunks,
        "live_tokens": LIVE,
    }


def give_vectors(weave: Weave, rng: np.random.Generator) -> None:
    """Made up ones: embedding so many chunks takes half an hour, and searching them does not care."""
    recall, store = weave.recall, weave.store
    assert isinstance(recall, Recall)
    assert isinstance(store, SqliteStore)
    embedder = recall.embedder()
    if embedder is None:
        print("no embedder: words alone are searched", file=sys.stderr)
        return
    generation = store.begin_generation(embedder.name, embedder.dimension, now=datetime.now(UTC))
    topics = rng.normal(size=(300, embedder.dimension))
    while len((wanted := store.wanted(generation.id, 5_000)).numbers):
        vectors = topics[rng.integers(0, 300, len(wanted.numbers))]
        vectors = vectors + 0.7 * rng.normal(size=vectors.shape)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        store.add_vectors(generation.id, wanted, vectors.astype(np.float32))


def say_elsewhere(weave: Weave, window: str, text: str) -> ChunkKey:
    tokens = weave.engine.tokenize(text)
    ids = weave.store.reserve(len(tokens))
    (chunk,) = chunk_turn(tokens, ids.user_turn, Role.USER, ids.start, min_chunk_tokens=10_000)
    live = Live(chunk, np.full(len(chunk), 9_000, np.float32))
    weave.store.append(window, [live], tokenizer=weave.engine.info.tokenizer, now=datetime.now(UTC))
    weave.recall.note_said()
    return chunk.key


if __name__ == "__main__":
    main()
