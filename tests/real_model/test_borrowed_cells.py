"""What was read in one chat is not read again in another: on the real model, through the whole product."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halo_weave.chat import Weave, events, idle_reading
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import Capture, Sampling
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from halo_weave.lab.conversations import GivenReplyEngine
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.store.sqlite import SqliteStore
from tests.contract.talks import Talk
from tests.store.imports.test_files import mapping

pytestmark = pytest.mark.model

NOW = datetime(2026, 5, 4, tzinfo=UTC)
FACT = (
    "The password of the old boat house by the northern pier is wandering heron forty two, and only my aunt "
    "Philippa and I know it, since she wrote it on a card that she keeps in the blue tin above her stove."
)
QUESTION = "What is the password of the old boat house by the northern pier?"
CHATTER = "It rained all day, so I stayed inside and read a long book about the history of lighthouses."
SETTINGS = Settings().changed({"tool_rounds": 0, "prefetch": "off", "temperature": 0.0, "max_new_tokens": 8})
ONE = Sampling(temperature=0.0, max_new_tokens=1)


@contextmanager
def opened(model: Path, folder: Path) -> Iterator[Weave]:
    engine = GivenReplyEngine(LlamaEngine(model, limits=EngineLimits(cells=folder / "cells")))
    store = SqliteStore(folder / "memory.sqlite")
    weave = Weave(engine, store, MemorySearch(store, None), defaults=SETTINGS, now=lambda: NOW)  # type: ignore[arg-type]
    with closing(weave), closing(engine._engine):
        yield weave


def say(weave: Weave, window: str, text: str) -> list[Any]:
    return list(weave.turns.steps(window, text))


def told(weave: Weave, *, pruned: bool = False) -> ChunkKey:
    """A chat in which the fact was told."""
    window = weave.windows.create("one").id
    say(weave, window, CHATTER)
    (heard,) = (e for e in say(weave, window, FACT) if isinstance(e, events.MessageStored))
    say(weave, window, "Thank you.")
    key = heard.chunks[0].key
    if pruned:
        weave.chunks.prune(window, key)
        say(weave, window, "Good night.")
    return key


def recalled(weave: Weave, key: ChunkKey) -> events.PrefillFinished:
    """How the message is read for which the fact is resurrected in another chat."""
    turn = say(weave, weave.windows.create("two").id, QUESTION)
    woken = {one.key for e in turn if isinstance(e, events.ChunksResurrected) for one in e.chunks}
    assert key in woken
    return next(e for e in turn if isinstance(e, events.PrefillFinished))


@pytest.mark.parametrize("source", ["live", "pruned", "restarted", "pruned and restarted"])
def test_a_fact_of_another_chat_is_not_read_again(source: str, model_file: Path, tmp_path: Path) -> None:
    with opened(model_file, tmp_path) as weave:
        key = told(weave, pruned="pruned" in source)
        size = len(weave.engine.tokenize(FACT))
        if "restarted" not in source:
            assert recalled(weave, key).restored >= size
    if "restarted" in source:
        with opened(model_file, tmp_path) as weave:
            assert recalled(weave, key).restored >= size


@pytest.mark.parametrize("restarted", [False, True], ids=["open", "restarted"])
def test_an_imported_chunk_is_computed_before_idle_time_and_restored_after_it(
    restarted: bool, model_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_reading, "on_battery", lambda: False)
    with opened(model_file, tmp_path) as weave:
        weave.memory.import_file(
            io.BytesIO(json.dumps([mapping(CHATTER, "I see.", FACT, "Thank you.")]).encode())
        )
        found = weave.memory.search(FACT)
        key = next(one.record.key for one in found if one.record.chunk.text == FACT)
        size = len(weave.engine.tokenize(FACT))
        assert recalled(weave, key).restored == 0
        while weave.idle_reader.read_slice() == "reading":
            pass
        assert weave.idle_reader.progress.state == "done"
        if not restarted:
            (before,) = (one.id for one in weave.runtime.store.windows() if one.name == "two")
            weave.engine.forget(before)  # a new window would copy the beginning of its prompt
            assert recalled(weave, key).restored >= size
    if restarted:
        with opened(model_file, tmp_path) as weave:
            assert recalled(weave, key).restored >= size


def test_the_cells_of_a_deleted_chat_are_gone_and_its_text_is_read_again(
    model_file: Path, tmp_path: Path
) -> None:
    with opened(model_file, tmp_path) as weave:
        key = told(weave)
        weave.windows.delete(weave.windows.find("one").id)
        assert recalled(weave, key).restored == 0


def test_cells_of_another_chat_bring_what_they_say(engine: LlamaEngine, window: str) -> None:
    """The same words are expected when they come again, as if they had been computed here."""
    losses = {}
    for way in ("lent", "computed", "absent"):
        home = Talk(engine, f"{window} home {way}", memory=way == "lent")
        for number, text in enumerate((CHATTER, "I see.", FACT, "Thank you.")):
            home.add((Role.USER, Role.ASSISTANT)[number % 2], text)
        home.hear(ONE)
        talk = Talk(engine, f"{window} {way}", memory=True)
        if way != "absent":
            talk.quote(home, 2)
        talk.next = home.next + 1000
        talk.add(Role.USER, FACT)
        read = talk.hear(ONE, Capture(reading_surprisal=True, reply=False), read_from=talk.turns[-1][1]).read
        assert read is not None
        assert read.surprisal is not None
        assert (read.restored > 0) == (way == "lent")
        losses[way] = float(np.mean(read.surprisal[4:]))
        engine.forget(home.window)
        engine.forget(talk.window)
    assert losses["absent"] > losses["computed"] + 1
    assert abs(losses["lent"] - losses["computed"]) < 0.25


SECRET = "quorzel-tibbet-7741"


def secret_surprisal(engine: LlamaEngine, talk: Talk) -> np.ndarray:
    number = talk.add(Role.USER, f"The code of the shed is {SECRET}.")
    read = talk.hear(ONE, Capture(reading_surprisal=True, reply=False), read_from=talk.turns[-1][1]).read
    talk.asleep.add(number)
    assert read is not None
    assert read.surprisal is not None
    return read.surprisal


def test_a_deleted_secret_does_not_come_back_with_cells_of_another_chat(
    engine: LlamaEngine, window: str
) -> None:
    def talks(name: str, *, secret: bool) -> tuple[Talk, Talk, tuple[int, int]]:
        home = Talk(engine, f"{window} home {name}", memory=True)
        home.next = 10**5 * secret  # the same words at the same positions would be lent from one to the other
        home.add(Role.USER, "Hello, are you there?")
        at = home.add(Role.USER, f"The code of the shed is {SECRET}. The code is {SECRET}.")
        _, start, tokens = home.turns[at]
        for _ in range(3):
            home.add(Role.USER, "What is the code of the shed?")
            home.add(Role.ASSISTANT, "Of course I know it well. The code of the shed is")
        if secret:
            home.hear(ONE)
        here = Talk(engine, f"{window} here {name}", memory=True)
        for number in range(2, len(home.turns)):
            here.quote(home, number)
        here.next = home.next + 1000
        return home, here, (start, start + len(tokens))

    _, never, _ = talks("never", secret=False)
    expected = secret_surprisal(engine, never)
    home, here, span = talks("told", secret=True)
    carried = secret_surprisal(engine, here)
    engine.erase([span], [home.window])
    after = secret_surprisal(engine, here)
    assert np.abs(carried - expected).mean() > 0.1  # so the test measures something
    assert np.abs(after - expected).mean() < 0.05
