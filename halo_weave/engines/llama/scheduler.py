"""A fair scheduler: one thread runs several generators, one step of each in turn."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

from halo_weave.errors import EngineError

T = TypeVar("T")
QUEUE_SIZE = 4  # values a piece of work may be ahead of its reader

Work = Generator[T | None, None, None]


class _Task(Generic[T]):
    def __init__(self, work: Work[T], key: str, number: int, idle_only: bool, must_run: bool) -> None:
        self.work, self.key, self.number, self.idle_only, self.must_run = (
            work,
            key,
            number,
            idle_only,
            must_run,
        )
        self.out: SimpleQueue[T | None] = SimpleQueue()  # None: it is over
        self.given = self.taken = 0  # values, by the scheduler and by who reads them
        self.unwanted = self.over = False
        self.error: BaseException | None = None


class FairScheduler(Generic[T]):
    """Work with the same key never overlaps: newer work ends the older, so that nothing waits for itself."""

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[_Task[T]] = deque()
        self.closed = False
        self.waiting = False  # for room, or for work
        self.posted = 0
        self.step_began: float | None = None  # when the step that runs now began, by the monotonic clock
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def run(self, work: Work[T], key: str) -> Iterator[T]:
        """The values of the work, as they come. Dropping the iterator ends the work."""
        task = self.post(work, key)
        try:
            while (value := task.out.get()) is not None:
                # First counted, then asked who waits: the scheduler says that it waits before it counts.
                task.taken += 1
                if self.waiting:
                    with self.changed:
                        self.changed.notify_all()
                yield value
            if task.error:
                raise task.error
        finally:
            with self.changed:
                task.unwanted = True
                self.changed.notify_all()

    def post(self, work: Work[T], key: str, *, idle_only: bool = False, must_run: bool = False) -> _Task[T]:
        """Do the work without waiting for it. `patient`: only while there is no other, and never in its place.

        `sure`: it is done to its end, also when the scheduler is closed meanwhile.
        """
        with self.changed:
            if self.closed:
                raise EngineError("The engine is closed.")
            self.posted += 1
            task = _Task(work, key, self.posted, idle_only, must_run)
            same = [older for older in self.tasks if older.key == key and not older.over]
            if idle_only and not all(older.idle_only for older in same):
                task.over = True
                work.close()
                return task
            for older in same:
                older.unwanted = True
                older.error = EngineError("The window began something new, so this was ended.")
            self.tasks.append(task)
            self.changed.notify_all()
        return task

    @property
    def step_seconds(self) -> float:
        """How long the step that runs now has been running; 0 if none runs."""
        began = self.step_began
        return 0.0 if began is None else time.monotonic() - began

    def settle(self) -> None:
        """Returns when there is nothing to do."""
        with self.changed:
            while self.tasks and not self.closed:
                self.changed.wait()

    def close(self) -> None:
        """End everything that is not sure, and wait for the thread."""
        with self.changed:
            self.closed = True
            for task in self.tasks:
                if task.must_run:
                    continue
                task.unwanted = True
                task.error = task.error or EngineError("The engine was closed.")
            self.changed.notify_all()
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def _loop(self) -> None:
        while True:
            with self.changed:
                self.waiting = True
                while (task := self._next()) is None:
                    if self.closed and not self.tasks:
                        return
                    self.changed.wait()
                self.waiting = False
            value: T | None = None
            try:
                if task.unwanted:
                    task.work.close()
                    task.over = True
                else:
                    self.step_began = time.monotonic()
                    value = next(task.work)
            except StopIteration:
                task.over = True
            except BaseException as error:  # handed to the reader
                task.error, task.over = error, True
            self.step_began = None
            if task.over:
                with self.changed:
                    self.tasks.remove(task)
                    self.changed.notify_all()
            elif value is not None:
                task.given += 1
            if task.over or value is not None:
                task.out.put(value)

    def _next(self) -> _Task[T] | None:
        """The next task in the round that can go on: its reader keeps up, and no older one has its key."""
        oldest: dict[str, int] = {}
        for task in self.tasks:
            oldest[task.key] = min(task.number, oldest.get(task.key, task.number))
        busy = any(not task.idle_only for task in self.tasks)
        for task in self.tasks:
            if task.number != oldest[task.key] or (task.idle_only and busy and not task.unwanted):
                continue
            if task.unwanted or task.given - task.taken < QUEUE_SIZE:
                self.tasks.remove(task)
                self.tasks.append(task)
                return task
        return None
