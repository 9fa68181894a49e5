"""What the engine's benchmarks are made of: stretches of text as prompts, first tokens, losses."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from halo_weave.core.tokens import Ids
from halo_weave.engines.base import Capture, GenerationEvent, PrefillResult, Prompt, Sampling, Segment, Step
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.settings import KvMode

PREFIX, CHUNK, MIDDLE, LATER, CONTINUATION = 128, 96, 96, 192, 64
GREEDY = Sampling(temperature=0.0, max_new_tokens=1)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Piece:
    """A run of tokens with its place in time; a prompt is some of them."""

    labels: np.ndarray
    ids: Ids
    kind: Literal["chunk", "frame"] = "chunk"


def pieces(ids: Ids, *sizes: int) -> list[Piece]:
    edges = np.cumsum([0, *sizes])
    labels = np.arange(len(ids), dtype=np.int64)
    return [Piece(labels[a:b], ids[a:b]) for a, b in itertools.pairwise(edges)]


def prompt(parts: list[Piece], *, read: Piece | None = None, next_label: int = 10**6) -> Prompt:
    parts = [*parts, read] if read else parts
    segments = [Segment(part.kind, part.labels, part.ids) for part in parts]
    return Prompt(segments, next_label, int(read.labels[0]) if read else None)


def facts(engine: LlamaEngine, count: int) -> Ids:
    """A text that a model goes on with for ever: numbered facts."""
    text = " ".join(
        f"Fact {i}: boat number {i * 7 % 97} is blue and has {i % 9 + 2} sails." for i in range(1, count)
    )
    return engine.tokenize(text).ids[:count]


def first_token(
    engine: LlamaEngine, window: str, ask: Prompt, mode: KvMode, capture: Capture | None = None
) -> tuple[float, PrefillResult]:
    start = time.perf_counter()
    read = None
    for event in engine.generate(window, ask, GREEDY, capture or Capture(), mode=mode):
        if isinstance(event, PrefillResult):
            read = event
        elif isinstance(event, Step):
            break
    assert read is not None
    return time.perf_counter() - start, read


def leave_to_disk(engine: LlamaEngine, window: str) -> None:
    """What sleeps is on disk only."""
    assert engine.disk is not None
    list(
        engine.generate("idle", prompt(pieces(facts(engine, 8), 8)), GREEDY, None)
    )  # the turn before has ended
    engine.disk.flush()
    engine.caches[window].evicted.clear()


def dialogues(engine: LlamaEngine, folder: Path, count: int) -> Iterator[Ids]:
    """Stretches of real dialogue, spread over the conversations."""
    length = PREFIX + CHUNK + MIDDLE + LATER + CONTINUATION
    files = sorted(folder.glob("*.json"))
    for number in range(count):
        sessions = json.loads(files[number % len(files)].read_text())["sessions"]
        start = (number // len(files)) * len(sessions) // (count // len(files) + 1)
        lines: list[str] = []
        while len(ids := engine.tokenize("\n".join(lines)).ids) < length:
            lines += [
                f"{turn['speaker']}: {turn['text']}" for turn in sessions[start % len(sessions)]["turns"]
            ]
            start += 1
        yield ids[:length]


def forget_asleep(engine: LlamaEngine, window: str) -> None:
    """What sleeps is nowhere."""
    leave_to_disk(engine, window)
    assert engine.disk is not None
    engine.disk.discard(window)


def loss(
    engine: LlamaEngine, window: str, parts: list[Piece], read: Piece, mode: KvMode = "splice"
) -> tuple[float, PrefillResult]:
    """Mean surprisal of what is read, after everything before it, and how it was read."""
    ask = prompt(parts, read=read)
    for event in engine.generate(
        window, ask, GREEDY, Capture(reply=False, reading_surprisal=True), mode=mode
    ):
        if isinstance(event, PrefillResult):
            assert event.surprisal is not None
            return float(event.surprisal.mean()), event
    raise AssertionError("nothing was read")


def give_way(engine: LlamaEngine, window: str) -> None:
    """The window is on disk only, as after a restart or when others took its room."""

    def put_aside() -> Generator[GenerationEvent | None]:
        engine._save_and_drop(window)
        return
        yield

    engine.scheduler.post(put_aside(), f"put {window} aside")
    engine.scheduler.wait_until_idle()
    assert engine.disk is not None
    engine.disk.flush()
