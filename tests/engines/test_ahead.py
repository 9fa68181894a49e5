"""Reading ahead on llama.cpp: from disk, within bounds, and ended at once by whoever speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.llama import LlamaEngine
from halo_weave.engines.prompts import FlatPrompt
from halo_weave.ports import Capture
from tests.contract.talks import Talk
from tests.engines.test_disk import SIX, engine_on, speak, talk_in
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
