"""What llama.cpp reads in idle time lies on disk and is lent; anything else that is wanted ends it, and no window loses by it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.tokens import Role
from halo_weave.engines.base import IdleReadResult, Prompt, positions_of, retokenized_labels
from halo_weave.engines.llama.cache_files import disk_use, overlaps_any
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.engines.llama.scheduler import FairScheduler
from tests.contract.talks import Talk
from tests.engines.test_borrowed_cells import FACT, ONE, home_talk, quoting, restored, surprisal
from tests.engines.test_cache_files import engine_on, files
from tests.engines.tiny import write


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    return tmp_path / "cells"


def never() -> bool:
    return False


def read(home: Talk, stopped: Callable[[], bool] = never) -> IdleReadResult:
    return home.engine.read_idle(home.window, home.prompt(), stopped=stopped)


@pytest.mark.parametrize("restarted", [False, True], ids=["open", "restarted"])
def test_what_was_read_in_idle_time_is_lent_and_restored_at_home(
    restarted: bool, model: Path, cells: Path
) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        size = len(home.turns[FACT][2])
        assert read(home) == "saved"
        assert engine.caches == {}
        if not restarted:
            assert restored(quoting(home)) == size
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        assert restored(quoting(home, "there")) == size
        whole = home.hear(ONE).read
        assert whole is not None
        assert whole.restored >= sum(len(tokens) for _, _, tokens in home.turns[:-1])


def test_cells_read_in_idle_time_are_those_that_a_reply_would_have_left(model: Path, cells: Path) -> None:
    found = []
    for idle in (True, False):
        with engine_on(model, cells / str(idle)) as engine:
            home = home_talk(engine)
            if idle:
                read(home)
            else:
                home.hear(ONE)
            found.append(surprisal(quoting(home)))
    np.testing.assert_allclose(found[0], found[1], atol=0.2)  # on disk, cells have 8 bits


def test_every_position_is_known_to_be_on_disk(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        read(home)
        held = engine.positions_on_disk("ann")
        assert held is not None
        assert held.tolist() == list(range(home.next))
        assert engine.positions_on_disk("bob") is not None
        assert not len(engine.positions_on_disk("bob"))  # type: ignore[arg-type]
    with engine_on(model, None) as engine:
        assert engine.positions_on_disk("ann") is None


def test_what_an_open_window_has_in_memory_is_not_read_again(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        home.answer(replace(ONE, max_new_tokens=3))
        last = home.turns.pop()
        assert len(last[2]) == 3
        assert read(home) == "in memory"
        assert files(cells) == []


def _is_over(calls: Iterator[int], most: int) -> bool:
    return next(calls) >= most


def test_nothing_is_written_when_it_is_stopped_after_the_last_token(model: Path, cells: Path) -> None:
    calls = itertools.count()
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        assert read(home, lambda: next(calls) < 0) == "saved"
        asked = next(calls)
        engine.forget("home")
        for _ in range(1000):  # it forgets in a thread of its own
            if not files(cells):
                break
            time.sleep(0.01)
        for most in (0, asked // 2, asked - 1):
            counted = itertools.count()
            assert read(home, partial(_is_over, counted, most)) == "given up"
            assert engine.disk is not None
            engine.disk.flush()
            assert files(cells) == []


def test_what_does_not_fit_the_quota_is_not_read_and_deletes_nothing(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        read(home)
    size = disk_use(cells).bytes
    with engine_on(model, cells, cells_bytes=size + 1000) as engine:
        other = Talk(engine, "other", memory=True)
        other.next = 10**5
        other.add(Role.USER, "Another text that nobody has read so far, with some more words. " * 4)
        assert read(other) == "disk full"
        assert disk_use(cells).bytes == size
        assert restored(quoting(home_talk(engine))) == len(home.turns[FACT][2])


def test_a_window_keeps_its_cache_and_its_memory(model: Path, cells: Path) -> None:
    with engine_on(model, cells, memory_bytes=1) as engine:
        window = Talk(engine, "window")
        window.add(Role.USER, "Hello there, how are you today?")
        window.hear(ONE)
        read(home_talk(engine))
        assert list(engine.caches) == ["window"]
        again = window.hear(ONE).read
        assert again is not None
        assert again.computed == 1


@pytest.mark.parametrize("what", ["a reply", "a prefetch", "a deletion"])
def test_reading_ends_before_the_next_step_when_something_else_is_wanted(
    what: str, model: Path, cells: Path
) -> None:
    with engine_on(model, cells) as engine:
        home, window = home_talk(engine), Talk(engine, "window")
        window.add(Role.USER, "Hello there, how are you today?")
        asked = window.prompt()
        replies = list[object]()
        steps = 0

        def wanted_meanwhile() -> bool:  # on the engine's thread, between two steps
            nonlocal steps
            steps += 1
            if steps == 1:
                if what == "a prefetch":
                    engine.prefetch("window", asked, room=8)
                elif what == "a deletion":
                    engine.erase([(0, 5)], ["home"])
                else:
                    reply = engine.generate("window", asked, ONE, None)
                    waiter = threading.Thread(target=lambda: replies.extend(reply))
                    posted = engine.scheduler.posted
                    waiter.start()
                    while engine.scheduler.posted == posted:
                        pass
            return False

        assert read(home, wanted_meanwhile) == "given up"
        assert steps == 1
        engine.scheduler.wait_until_idle()
        assert files(cells) == []


def test_it_does_not_begin_while_there_is_other_work() -> None:
    scheduler: FairScheduler[int] = FairScheduler("test")
    go, ran = threading.Event(), list[str]()

    def reply() -> Generator[int | None]:
        go.wait(30)
        yield None
        ran.append("reply")

    def idle() -> Generator[int | None]:
        ran.append("idle")
        yield None

    scheduler.post(reply(), "window")
    refused = scheduler.post(idle(), "idle", idle_only=True, gives_up=True)
    assert refused.out.get() is None
    go.set()
    scheduler.wait_until_idle()
    assert ran == ["reply"]
    assert scheduler.post(idle(), "idle", idle_only=True, gives_up=True).out.get() is None
    assert ran == ["reply", "idle"]
    scheduler.close()


# Chunks that were stored with another tokenizer, as imports are


@given(st.integers(0, 2**36 - 1), st.integers(1, 4095), st.integers(1, 4095))
def test_each_token_of_a_retokenized_chunk_has_a_position_of_it(start: int, span: int, count: int) -> None:
    labels = retokenized_labels(start, span, count)
    assert labels is not None
    positions = positions_of(labels)
    assert (np.diff(labels) == 1).all()
    assert (np.diff(positions) >= 0).all()
    assert start <= positions[0] <= positions[-1] == start + span - 1
    assert overlaps_any(labels, [(start, start + span)])
    assert not overlaps_any(labels, [(start + span, start + span + 10), (start - 10, start)])


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 50), st.integers(1, 50)), unique_by=lambda one: one[0]
    )
)
def test_no_two_chunks_share_a_label(chunks: list[tuple[int, int, int]]) -> None:
    labels = [retokenized_labels(*one) for one in chunks]
    every = np.concatenate([np.arange(6000), *(one for one in labels if one is not None)])
    assert len(np.unique(every)) == len(every)


def test_numbers_that_are_too_large_have_no_labels() -> None:
    assert retokenized_labels(2**36, 5, 6) is None
    assert retokenized_labels(0, 5, 4096) is None
    assert positions_of(np.array([-5, 0, 7])).tolist() == [-5, 0, 7]


def retokenized(prompt: Prompt, talk: Talk, number: int, *, span: int) -> Prompt:
    """The same prompt, with one turn as a chunk with another number of positions."""
    _, start, tokens = talk.turns[number]
    labels = retokenized_labels(start, span, len(tokens))
    assert labels is not None
    segments = [
        replace(one, labels=labels) if one.kind == "chunk" and one.labels[0] == start else one
        for one in prompt.segments
    ]
    return replace(prompt, segments=segments)


def lent(engine: LlamaEngine, prompt: Prompt) -> int:
    for event in engine.generate("here", prompt, ONE, None):
        if isinstance(event, object) and hasattr(event, "restored") and hasattr(event, "rebuilt"):
            return int(event.restored)
    raise AssertionError


@pytest.mark.parametrize("span", [5, 200], ids=["more tokens", "fewer tokens"])
@pytest.mark.parametrize("deleted", [False, True], ids=["kept", "deleted"])
def test_a_retokenized_chunk_is_lent_until_it_is_deleted(
    deleted: bool, span: int, model: Path, cells: Path
) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        _, start, tokens = home.turns[FACT]
        prompt = retokenized(home.prompt(), home, FACT, span=span)
        assert engine.read_idle("home", prompt, stopped=never) == "saved"
        held = engine.positions_on_disk("ann")
        assert held is not None
        assert start + span - 1 in held
        if deleted:
            engine.erase([(start, start + span)], ["home"])
        talk = quoting(home)
        assert lent(engine, retokenized(talk.prompt(), home, FACT, span=span)) == (
            0 if deleted else len(tokens)
        )
