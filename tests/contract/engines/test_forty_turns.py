"""The promise on every engine: a fact sleeps through forty turns, and wakes up at its place when it is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from halo_weave.chat import Weave, events
from halo_weave.errors import BadInput
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import Clock, WordRecall
from tests.contract.engines.conftest import make_engine

FACT = "My sister Philippa keeps the spare key of the lighthouse behind the brass barometer."
QUESTION = "Where does Philippa keep the spare key of the lighthouse?"
TOPICS = ["soup", "clouds", "chess", "trains", "violins", "sand", "maps", "tea", "kites", "moss"]
SETTINGS = {
    "max_context_tokens": 260,
    "max_new_tokens": 4,
    "seed": 7,
    "temperature": 0,
    "tools": "off",
    "resurrection_budget": 120,
    "strategy": "first_in_first_out",  # so that it surely sleeps; what light keeps is tested elsewhere
}


@pytest.fixture
def weave(kind: str, tmp_path: Path) -> Iterator[Weave]:
    store = SqliteStore(tmp_path / "memory.sqlite")
    engine = make_engine(kind)
    calibration = getattr(engine, "calibration", None)
    more = {"calibration": calibration} if calibration else {}
    weave = Weave(engine, store, WordRecall(store), now=Clock(), **more)
    yield weave
    with suppress(BadInput):
        weave.close()


@pytest.mark.slow
def test_a_fact_that_slept_for_forty_turns_wakes_up_at_its_place(weave: Weave) -> None:
    window = weave.windows.create("long", settings=SETTINGS).id
    first = list(weave.turns.steps(window, FACT))
    fact = next(event for event in first if isinstance(event, events.MessageStored)).chunks[0].key
    slept = False
    for number in range(38):
        turn = list(
            weave.turns.steps(window, f"Number {number}: tell me something new about {TOPICS[number % 10]}.")
        )
        assert any(isinstance(event, events.TurnEnded) for event in turn)
        slept = slept or any(
            chunk.key == fact
            for event in turn
            if isinstance(event, events.ChunksPruned)
            for chunk in event.chunks
        )
    assert slept
    assert fact not in [c.key for t in weave.windows.context(window).turns for c in t.chunks]
    woken, read, ended = [], [], None
    for event in weave.turns.steps(window, QUESTION):
        if isinstance(event, events.ChunksResurrected):
            woken += [chunk.key for chunk in event.chunks]
        elif isinstance(event, events.TokenGenerated) and not read:
            read = [chunk for turn in weave.windows.context(window).turns for chunk in turn.chunks]
        elif isinstance(event, events.TurnEnded):
            ended = event
    assert fact in woken
    starts = [chunk.chunk.start for chunk in read]
    assert starts == sorted(starts)
    assert read[0].key == fact  # nothing that the model reads was said before it
    assert ended is not None
    assert ended.stats["tokens"] > 0
