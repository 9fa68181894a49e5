"""Reading ahead on llama.cpp: from disk, within bounds, and ended at once by whoever speaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import UNSENT_LABELS, Capture
from halo_weave.engines.flat_prompt import FlatPrompt, Observation
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.engines.llama.kv_cache import PrefixContext
from halo_weave.engines.llama.model_info import supported_capture
from tests.contract.engines.test_prefetch import WATCHED, assert_alike, sent, typed
from tests.contract.talks import Talk
from tests.engines.test_cache_files import LINES, SIX, engine_on, speak, talk_in
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
        engine.prefetch("w", talk.prompt(), room=64, max_computed=30)
        engine.scheduler.wait_until_idle()
        cache = engine.caches["w"]
        assert cache.count > 0
        assert sum(len(evicted_cells.tokens) for evicted_cells in cache.evicted) >= len(talk.turns[2][2])
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
        whole = len(engine.tokenize(first.system)) // engine.config.batch * engine.config.batch
        assert heard.read.reused >= whole > 0
        assert heard.text == fresh.text
        assert engine.mapping_errors == 0
        assert [step.surprisal for step in heard.steps] == pytest.approx(
            [step.surprisal for step in fresh.steps], abs=0.02
        )


def test_system_prompts_that_take_turns_are_read_once_each(model: Path) -> None:
    """As those with and without tools do."""
    with engine_on(model, None) as engine:
        talk = talk_in(engine)
        computed = {}
        for number, kind in enumerate(("plain", "tools", "plain", "tools", "plain")):
            talk.system = f"You are a sailor. {f'You have {kind}. ' * (12 if kind == 'tools' else 3)}"
            read = talk.hear(SIX).read
            assert read is not None
            computed[number] = read.computed
        told = len(engine.tokenize("You have tools. " * 12))
        assert computed[1] > told // 2
        assert max(computed[2], computed[3], computed[4]) < 8


def stopped_in_the_middle(engine: LlamaEngine) -> None:
    """A stretch in the middle is computed in part, and then somebody speaks."""
    talk = talk_in(engine)
    talk.asleep = {2}
    talk.hear(SIX)
    talk.asleep = set()
    engine.caches["w"].evicted.clear()
    work = engine._prefetch("w", _flat(engine, talk), 64, "splice", None, Observation())
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
        assert engine.mapping_errors == 0
        for step in heard.steps:
            assert step.row is not None
            assert abs(float(step.row.tokens.sum()) + step.row.frames + step.row.system - 1) < 1e-3
        talk.asleep = {4}
        again = talk.hear(SIX, Capture())
        assert again.read is not None
        assert not again.read.rebuilt
        assert engine.mapping_errors == 0


@pytest.mark.slow
def test_a_chunk_that_is_read_apart_is_as_if_it_were_read_in_its_place(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, apart = {}, []
    monkeypatch.setattr(
        PrefixContext, "compute", lambda *a, compute=PrefixContext.compute: apart.append(a[3]) or compute(*a)
    )
    for costs in (0, 10**12):
        monkeypatch.setattr("halo_weave.engines.llama.kv_cache.OPEN_COST", costs)
        with engine_on(model, None) as engine:
            talk = talk_in(engine, lines=LINES * 3)
            talk.asleep = {2, 3, 7}
            talk.hear(SIX)
            talk.asleep = set()
            talk.add(Role.USER, "Go on.")
            heard[costs] = talk.hear(SIX, Capture())
            assert engine.mapping_errors == 0
            sliding = engine.config.sliding_window
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


TYPED = (
    "Which boat has the most sails, and what is the name of its captain, and who painted it blue last summer?"
)


def test_words_that_were_read_in_part_when_they_are_sent_are_read_on_from_there(model: Path) -> None:
    with engine_on(model, None) as engine:
        talk = talk_in(engine)
        fresh = sent(talk, TYPED)
        engine.forget("w")
        talk.hear(SIX)
        prompt = typed(talk, TYPED)
        flat = FlatPrompt.of(prompt, vocabulary=engine.model.size, context=engine.info.context)
        observation = Observation.of(flat, prompt.read_from, supported_capture(engine.info, WATCHED))
        work = engine._prefetch("w", flat, 64, "splice", None, observation)
        for _ in range(6):  # what is planned, and 16 tokens each time
            next(work)
        work.close()
        heard = sent(talk, TYPED)
        words = len(engine.tokenize(TYPED))
        assert heard.read is not None
        assert 1 < heard.read.computed < words
        assert_alike(heard, fresh, words)
        assert engine.mapping_errors == 0


def test_words_that_are_read_with_something_else_awake_are_read_again(model: Path) -> None:
    with engine_on(model, None) as engine:
        talk, heard, words = talk_in(engine), [], len(engine.tokenize(TYPED))
        for ahead in (True, False):
            talk.asleep = {2}
            talk.hear(SIX)
            if ahead:
                engine.prefetch("w", typed(talk, TYPED), room=64, capture=WATCHED)
                engine.scheduler.wait_until_idle()
            talk.asleep = set()
            heard.append(sent(talk, TYPED))
            engine.forget("w")
        assert heard[0].read is not None
        assert heard[0].read.computed >= words
        assert_alike(*heard, words)


def test_of_words_that_were_never_sent_nothing_is_kept(model: Path, tmp_path: Path) -> None:
    with engine_on(model, tmp_path / "cells") as engine:
        talk = talk_in(engine)
        talk.hear(SIX)
        secret = (
            "The combination of the safe is seventeen, forty-two, nine, and nobody else may ever read it."
        )
        engine.prefetch("w", typed(talk, secret), room=64, capture=WATCHED)
        engine.scheduler.wait_until_idle()
        cache = engine.caches["w"]
        assert (cache.live.labels <= UNSENT_LABELS).sum() == len(engine.tokenize(secret))
        saved = cache.snapshot()
        assert sum(len(part.tokens) for part in saved.parts) > 100
        assert all((part.tokens.labels > UNSENT_LABELS).all() for part in saved.parts)
        talk.asleep = {6, 7}  # what stands right before the words leaves with them
        talk.add(Role.USER, "Something else.")
        talk.hear(SIX)
        assert cache.evicted
        assert all((evicted_cells.tokens.labels > UNSENT_LABELS).all() for evicted_cells in cache.evicted)
