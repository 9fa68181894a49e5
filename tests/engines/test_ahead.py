"""Reading ahead on llama.cpp: from disk, within bounds, and ended at once by whoever speaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.apart import Apart
from halo_weave.engines.llama import LlamaEngine
from halo_weave.engines.prompts import FlatPrompt
from halo_weave.ports import Capture
from tests.contract.talks import Talk
from tests.engines.test_disk import LINES, SIX, engine_on, speak, talk_in
from tests.engines.tiny import write


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)


def test_what_lies_on_disk_is_brought_into_memory_and_not_more_than_allowed_is_computed(
    model: Path, tmp_path: Path
) -> None:
    cells = tmp_path / "cells"
    speak(model, cells, set(), {2})  # the third turn sleeps on disk
    with engine_on(model, cells) as engine:
        talk = talk_in(engine)
        talk.add(Role.USER, "An ending that nobody has read. " * 20)
        engine.read_ahead("w", talk.prompt(), room=64, most=30)
        engine.scheduler.settle()
        cache = engine.caches["w"]
        assert cache.count > 0
        assert sum(len(grave.tokens) for grave in cache.graves) >= len(talk.turns[2][2])
        assert engine.disk is not None
        engine.disk.discard("w")  # it is not needed any more
        heard = talk.hear(SIX)
        assert heard.read is not None
        assert heard.read.restored >= len(talk.turns[2][2])
        assert heard.read.computed >= len(talk.turns[-1][2])


def test_a_new_window_takes_the_system_prompt_from_another_one(model: Path) -> None:
    with engine_on(model, None) as engine:
        first, second = (Talk(engine, name, "You are a sailor who knows every boat. " * 12) for name in "ab")
        first.add(Role.USER, "Ahoy!")
        second.add(Role.USER, "Which boat is blue?")
        fresh = second.hear(SIX, Capture())
        engine.forget("b")
        first.hear(SIX)
        heard = second.hear(SIX, Capture())
        assert fresh.read is not None
        assert heard.read is not None
        assert fresh.read.reused == 0
        whole = len(engine.tokenize(first.system)) // engine.shape.batch * engine.shape.batch
        assert heard.read.reused >= whole > 0
        assert heard.text == fresh.text
        assert engine.misfits == 0
        assert [step.surprisal for step in heard.steps] == pytest.approx(
            [step.surprisal for step in fresh.steps], abs=0.02
        )


def stopped_in_the_middle(engine: LlamaEngine) -> None:
    """A stretch in the middle is computed in part, and then somebody speaks."""
    talk = talk_in(engine)
    talk.asleep = {2}
    talk.hear(SIX)
    talk.asleep = set()
    engine.caches["w"].graves.clear()
    work = engine._read_ahead("w", _flat(engine, talk), 64, "splice", None)
    next(work)  # what is planned
    next(work)  # 16 of the tokens in the middle
    work.close()


def _flat(engine: LlamaEngine, talk: Talk) -> FlatPrompt:
    return FlatPrompt.of(talk.prompt(), vocabulary=engine.model.size, context=engine.info.context)


def test_a_reading_that_is_ended_in_the_middle_of_a_chunk_costs_that_chunk_only(
    model: Path, tmp_path: Path
) -> None:
    with engine_on(model, None) as engine:
        stopped_in_the_middle(engine)
        talk = talk_in(engine)
        heard = talk.hear(SIX, Capture())
        assert heard.read is not None
        assert not heard.read.rebuilt
        assert heard.read.reused > heard.read.computed > 0
        assert engine.misfits == 0
        for step in heard.steps:
            assert step.row is not None
            assert abs(float(step.row.tokens.sum()) + step.row.frames + step.row.system - 1) < 1e-3
        talk.asleep = {4}
        again = talk.hear(SIX, Capture())
        assert again.read is not None
        assert not again.read.rebuilt
        assert engine.misfits == 0


def test_a_chunk_that_is_read_apart_is_as_if_it_were_read_in_its_place(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, apart = {}, []
    monkeypatch.setattr(Apart, "read", lambda *a, read=Apart.read: apart.append(a[3]) or read(*a))
    for costs in (0, 10**12):
        monkeypatch.setattr("halo_weave.engines.apart.OPEN", costs)
        with engine_on(model, None) as engine:
            talk = talk_in(engine, lines=LINES * 3)
            talk.asleep = {2, 3, 7}
            talk.hear(SIX)
            talk.asleep = set()
            talk.add(Role.USER, "Go on.")
            heard[costs] = talk.hear(SIX, Capture())
            assert engine.misfits == 0
            sliding = engine.shape.sliding
    assert len(apart) == (0 if sliding else 2)
    mine, theirs = heard[0], heard[10**12]
    assert mine.read is not None
    assert theirs.read is not None
    assert (mine.read.computed, mine.read.reused) == (theirs.read.computed, theirs.read.reused)
    assert mine.text == theirs.text
    assert [step.surprisal for step in mine.steps] == pytest.approx(
        [step.surprisal for step in theirs.steps], abs=0.01
    )
    for one, other in zip(mine.steps, theirs.steps, strict=True):
        assert one.row is not None
        assert other.row is not None
        assert np.allclose(one.row.tokens, other.row.tokens, atol=0.01)
