"""How often a model that cannot be cut reads everything anew."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.bench_turn import turn
from benchmarks.engine_talk import note
from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave
from halo_weave.core.brightness import INITIAL_BRIGHTNESS
from halo_weave.core.tokens import Role
from halo_weave.core.working_set import LiveChunk, chunk_turn
from halo_weave.settings import Settings

BUDGET, FRAME_TOKENS = 2000, 30  # of the window, and of each of its turns


def turns_between_readings(model: Path, folder: Path, data: Path, turns: int) -> dict[str, float]:
    """How many turns a model that cannot be cut takes from one reading of everything to the next.

    In a conversation that forgets, and in one that remembers too: what wakes up is read at its place, with all after it.
    """
    exact = {
        "max_context_tokens": BUDGET,
        "max_new_tokens": 16,
        "temperature": 0,
        "kv_mode": "exact",
        "prefetch": "off",
    }
    options = Options(data=folder, model=model, settings=Settings().changed(exact))
    weave = build_weave(options)
    lines = said_lines(data)
    found = {}
    try:
        for kind, count, changes in (
            ("forgetting", turns, {"resurrection_budget": 0}),
            ("remembering", max(4, turns // 4), {}),
        ):
            window = weave.windows.create(kind, settings={**changes, "memory_scope": "window"}).id
            fill_window(weave, window, lines, BUDGET)
            turn(weave, window, "Good morning.")
            anew = 0
            for number in range(count):
                read = turn(weave, window, next(lines)).reading
                anew += read.computed > read.reused
                note(f"  {kind}, turn {number + 1}: {read.reused} reused, {read.computed} computed")
            found[kind] = round(count / max(1, anew), 1)
    finally:
        weave.close()
    return found


def said_lines(folder: Path) -> Iterator[str]:
    """What people said to each other, for ever."""
    for file in itertools.cycle(sorted(folder.glob("*.json"))):
        for session in json.loads(file.read_text())["sessions"]:
            yield from (turn["text"] for turn in session["turns"])


def fill_window(weave: Weave, window: str, lines: Iterator[str], tokens: int) -> None:
    """Live tokens that the user said, stored as the product stores them."""
    store, engine, live = weave.runtime.store, weave.engine, 0
    while True:
        said = engine.tokenize(next(lines))
        live += len(said) + FRAME_TOKENS
        if live > tokens:
            return
        ids = store.reserve(len(said))
        born = [
            LiveChunk(chunk, np.full(len(chunk), INITIAL_BRIGHTNESS, np.float32))
            for chunk in chunk_turn(said, ids.user_turn, Role.USER, ids.start)
        ]
        store.append(window, born, tokenizer=engine.info.tokenizer, now=datetime.now(UTC))
