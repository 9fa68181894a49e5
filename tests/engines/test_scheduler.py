"""One thread, several pieces of work: fair, stoppable, never stuck."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterator

import pytest

from halo_weave.engines.llama.scheduler import QUEUE_SIZE, FairScheduler
from halo_weave.errors import EngineError

WAIT = 30


@pytest.fixture
def scheduler() -> Iterator[FairScheduler[str]]:
    scheduler: FairScheduler[str] = FairScheduler("test")
    yield scheduler
    scheduler.close()


def count(name: str, upto: int, seen: list[str] | None = None) -> Generator[str | None]:
    for number in range(upto):
        if seen is not None:
            seen.append(name)
        yield f"{name}{number}"


def test_values_come_in_order_and_the_iterator_ends(scheduler: FairScheduler[str]) -> None:
    assert list(scheduler.run(count("a", 100), "a")) == [f"a{i}" for i in range(100)]


def test_two_pieces_of_work_take_turns_slice_by_slice(scheduler: FairScheduler[str]) -> None:
    seen: list[str] = []
    gate = threading.Event()

    def wait() -> Generator[str | None]:
        gate.wait(WAIT)
        yield None

    def slices(name: str) -> Generator[str | None]:
        for _ in range(50):
            seen.append(name)
            yield None
        yield "done"

    scheduler.post(wait(), "gate")
    first = scheduler.post(slices("a"), "a")
    assert first.key == "a"
    second = scheduler.run(slices("b"), "b")
    opener = threading.Timer(0.05, gate.set)
    opener.start()
    assert next(second) == "done"
    opener.join(WAIT)
    both = seen[: 2 * min(seen.count("a"), seen.count("b"))]
    assert seen.count("a") >= 49
    assert all(one != other for one, other in itertools.pairwise(both))


def test_work_does_not_run_far_ahead_of_its_reader(scheduler: FairScheduler[str]) -> None:
    seen: list[str] = []
    values = scheduler.run(count("a", 1000, seen), "a")
    next(values)
    list(scheduler.run(count("b", 50), "b"))  # the other is not held up
    assert len(seen) <= QUEUE_SIZE + 2
    values.close()  # type: ignore[attr-defined]


def test_dropping_the_iterator_ends_the_work(scheduler: FairScheduler[str]) -> None:
    ended = threading.Event()

    def work() -> Generator[str | None]:
        try:
            while True:
                yield "x"
        finally:
            ended.set()

    values = scheduler.run(work(), "a")
    next(values)
    values.close()  # type: ignore[attr-defined]
    assert ended.wait(WAIT)
    assert list(scheduler.run(count("b", 3), "a")) == ["b0", "b1", "b2"]


def test_new_work_of_a_window_ends_its_older_work_instead_of_waiting_for_it(
    scheduler: FairScheduler[str],
) -> None:
    older = scheduler.run(count("a", 1000), "same")
    next(older)
    assert list(scheduler.run(count("b", 3), "same")) == ["b0", "b1", "b2"]
    with pytest.raises(EngineError, match="something new"):
        list(older)


def test_an_error_reaches_the_reader_after_the_values_before_it(scheduler: FairScheduler[str]) -> None:
    def work() -> Generator[str | None]:
        yield "a"
        raise ValueError("no")

    values = scheduler.run(work(), "a")
    assert next(values) == "a"
    with pytest.raises(ValueError, match="no"):
        next(values)


def test_closing_ends_everything_and_refuses_more() -> None:
    scheduler: FairScheduler[str] = FairScheduler("test")
    values = scheduler.run(count("a", 10**9), "a")
    next(values)
    scheduler.close()
    assert not scheduler.thread.is_alive()
    with pytest.raises(EngineError, match="closed"):
        list(values)
    with pytest.raises(EngineError, match="closed"):
        next(scheduler.run(count("b", 1), "b"))


def test_patient_work_waits_for_all_other_work_and_never_takes_its_place(
    scheduler: FairScheduler[str],
) -> None:
    done: list[str] = []

    def noting(name: str, slices: int) -> Generator[str | None]:
        for _ in range(slices):
            done.append(name)
            yield None

    hold = threading.Event()

    def holding() -> Generator[str | None]:
        hold.wait()
        yield None

    scheduler.post(holding(), "first")
    scheduler.post(noting("patient", 2), "a", idle_only=True)
    scheduler.post(noting("other", 3), "b")
    dropped = scheduler.post(noting("late", 1), "b", idle_only=True)
    hold.set()
    scheduler.wait_until_idle()
    assert done == ["other"] * 3 + ["patient"] * 2
    assert dropped.done


def test_work_of_a_window_ends_patient_work_in_it(scheduler: FairScheduler[str]) -> None:
    begun, done = threading.Event(), list[str]()

    def endless() -> Generator[str | None]:
        try:
            while True:
                begun.set()
                yield None
        finally:
            done.append("ended")

    scheduler.post(endless(), "a", idle_only=True)
    assert begun.wait(WAIT)
    assert list(scheduler.run(count("x", 1), "a")) == ["x0"]
    assert done == ["ended"]


def test_what_is_sure_is_done_although_the_scheduler_is_closed(scheduler: FairScheduler[str]) -> None:
    gate, seen = threading.Event(), list[str]()

    def wait() -> Generator[str | None]:
        gate.wait(WAIT)
        yield None

    scheduler.post(wait(), "first")
    scheduler.post(count("dropped", 3, seen), "second")
    scheduler.post(count("done", 3, seen), "third", must_run=True)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    while not scheduler.closed:
        pass
    gate.set()
    closing.join(WAIT)
    assert seen == ["done"] * 3
