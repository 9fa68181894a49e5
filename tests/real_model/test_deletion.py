"""What a user deletes is gone from the KV cache too: what stands later does not carry it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.brightness import Capture
from halo_weave.core.tokens import ChunkKey
from halo_weave.engines.base import GenerationEvent, PrefillResult, Prompt, Segment
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.lab.conversations import GREEDY, GivenReplyEngine
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.store.sqlite import SqliteStore

pytestmark = pytest.mark.model

SECRET = "quorzel-tibbet-7741"
TELLING = f"The code of the shed is {SECRET}. The code is {SECRET}.", f"The code of the shed is {SECRET}."
# Replies that break off where the secret would follow: the cells of their last words carry what the model would say next.
TALK = [
    ("What is the code of the shed?", "The code of the shed is"),
    ("Say it again: what is the code of the shed?", "The code of the shed is"),
    ("Once more: what is the code of the shed?", "The code of the shed is"),
]
QUESTION, ANSWER = "What is the code of the shed?", "The code of the shed is"
SETTINGS = Settings().changed(
    {"resurrection_budget": 0, "tool_rounds": 0, "prefetch": "off", "temperature": 0.0}
)
NOW = datetime(2026, 5, 4, tzinfo=UTC)
Surprisal = npt.NDArray[np.float32]
CLOSE = 0.05  # nats a token


class Asked(GivenReplyEngine):
    """Tells how unexpected the secret would be as the next words of the reply."""

    surprisal: Surprisal

    def generate(self, window: str, prompt: Prompt, *args: Any, **how: Any) -> Iterator[GenerationEvent]:
        if self.reply is not None and self.reply.text == ANSWER:
            said, secret = self.tokenize(ANSWER), self.tokenize(f" {SECRET}")
            labels = np.arange(prompt.next_label, prompt.next_label + len(said) + len(secret))
            segments = [
                *prompt.segments,
                Segment("chunk", labels[: len(said)], said.ids),
                Segment("chunk", labels[len(said) :], secret.ids),
            ]
            whole = Prompt(segments, int(labels[-1]) + 1, int(labels[len(said)]))
            capture = Capture(reply=False, reading_surprisal=True)
            for event in self._engine.generate(window, whole, GREEDY, capture):
                if isinstance(event, PrefillResult):
                    assert event.surprisal is not None
                    self.surprisal = event.surprisal
        yield from super().generate(window, prompt, *args, **how)


def opened(model: Path, folder: Path) -> tuple[Weave, Asked]:
    engine = Asked(LlamaEngine(model, limits=EngineLimits(cells=folder / "cells")))
    store = SqliteStore(folder / "memory.sqlite")
    weave = Weave(engine, store, MemorySearch(store, None), defaults=SETTINGS, now=lambda: NOW)  # type: ignore[arg-type]
    return weave, engine


def say(weave: Weave, engine: Asked, window: str, asked: str, answer: str) -> None:
    engine.reply = engine.tokenize(answer)
    list(weave.turns.steps(window, asked))


def surprisal(weave: Weave, engine: Asked, window: str) -> Surprisal:
    """Of each token of the secret when it is asked for, in nats."""
    say(weave, engine, window, QUESTION, ANSWER)
    return engine.surprisal


def talk(weave: Weave, engine: Asked, window: str, *, secret: bool = True) -> ChunkKey:
    """Returns the key of the secret, or of what is said in its place."""
    say(weave, engine, window, "Hello, are you there?", "Yes, I am here.")
    if secret:
        say(weave, engine, window, *TELLING)
    for exchange in TALK:
        say(weave, engine, window, *exchange)
    return live(weave, window)[2]


def live(weave: Weave, window: str) -> list[ChunkKey]:
    return [one.chunk.key for turn in weave.windows.context(window).turns for one in turn.chunks]


def strays(mine: Surprisal, theirs: Surprisal) -> float:
    """How far apart they are, in nats a token."""
    return float(np.abs(mine - theirs).mean())


@pytest.fixture(scope="module")
def never(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Surprisal:
    """Of the secret in a conversation that never had it."""
    weave, engine = opened(model_file, tmp_path_factory.mktemp("never"))
    with closing(weave):
        window = weave.windows.create("one").id
        talk(weave, engine, window, secret=False)
        return surprisal(weave, engine, window)


def sleeps(weave: Weave, window: str, key: ChunkKey) -> None:
    for one in weave.runtime.store.deletion_of(key):
        weave.chunks.prune(window, one)


def test_what_only_sleeps_is_still_carried_by_what_stands_later(
    model_file: Path, tmp_path: Path, never: Surprisal
) -> None:
    """So the other tests of this file measure something."""
    weave, engine = opened(model_file, tmp_path)
    with closing(weave):
        window = weave.windows.create("one").id
        sleeps(weave, window, talk(weave, engine, window))
        assert strays(surprisal(weave, engine, window), never) > 2 * CLOSE


WAYS: dict[str, Callable[[Weave, str, ChunkKey], object]] = {
    "chunk": lambda weave, window, key: weave.chunks.delete(window, key),
    "memory_forget": lambda weave, window, key: weave.library.forget(str(key)),
    "elsewhere": lambda weave, window, key: weave.chunks.delete(weave.windows.create("other").id, key),
}


@pytest.mark.parametrize("asleep", [False, True], ids=["live", "asleep"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_deleted_secret_is_as_unexpected_as_if_it_had_never_been_told(
    way: Callable[[Weave, str, ChunkKey], object],
    asleep: bool,
    model_file: Path,
    tmp_path: Path,
    never: Surprisal,
) -> None:
    weave, engine = opened(model_file, tmp_path)
    with closing(weave):
        window = weave.windows.create("one").id
        key = talk(weave, engine, window)
        if asleep:
            sleeps(weave, window, key)
            say(weave, engine, window, "Is it late?", "It is.")
            sleeps(weave, window, live(weave, window)[-1])
        way(weave, window, key)
        assert strays(surprisal(weave, engine, window), never) < CLOSE


def test_cells_on_disk_and_those_that_sleep_do_not_bring_a_deleted_secret_back(
    model_file: Path, tmp_path: Path, never: Surprisal
) -> None:
    weave, engine = opened(model_file, tmp_path)
    with closing(weave):
        window = weave.windows.create("one").id
        key = talk(weave, engine, window)
        later = live(weave, window)[4:]
        for one in later:
            weave.chunks.prune(window, one)
        say(weave, engine, window, "Is it late?", "It is.")  # what sleeps leaves the cache
        last = live(weave, window)[-1]
    weave, engine = opened(model_file, tmp_path)
    with closing(weave):
        weave.chunks.delete(window, key)
        weave.chunks.delete(window, last)
        for one in later:
            weave.chunks.undo_prune(window, one)
        assert strays(surprisal(weave, engine, window), never) < CLOSE


def test_a_secret_that_is_deleted_elsewhere_while_a_reply_is_written_is_gone_before_the_next(
    model_file: Path, tmp_path: Path, never: Surprisal
) -> None:
    weave, engine = opened(model_file, tmp_path)
    with closing(weave):
        window, other = weave.windows.create("one").id, weave.windows.create("other").id
        key = talk(weave, engine, window)
        engine.reply = engine.tokenize("It is.")
        for event in weave.turns.steps(window, "Is it late?"):
            if isinstance(event, events.TokenGenerated) and key in live(weave, other) + live(weave, window):
                weave.chunks.delete(other, key)
        weave.chunks.delete(window, live(weave, window)[-1])
        assert strays(surprisal(weave, engine, window), never) < CLOSE
