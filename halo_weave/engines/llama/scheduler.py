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
QUEUE_SIZE = 4  # values that a task may produce before its consumer takes them

Work = Generator[T | None, None, None]


class _Task(Generic[T]):
    def __init__(
        self, work: Work[T], key: str, number: int, idle_only: bool, gives_up: bool, must_run: bool
    ) -> None:
        self.work, self.key, self.number = work, key, number
        self.idle_only, self.gives_up, self.must_run = idle_only, gives_up, must_run
        self.out: SimpleQueue[T | None] = SimpleQueue()  # None: the task is done
        self.produced = self.consumed = 0  # number of values
        self.cancelled = self.done = False
        self.error: BaseException | None = None


class FairScheduler(Generic[T]):
    """Runs tasks, each a generator. A new task cancels older ones with the same key, so two of them never overlap."""

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[_Task[T]] = deque()
        self.closed = False
        self.waiting = False  # for a task, or for a consumer to take values
        self.posted = 0
        self.step_began: float | None = None  # start of the current step by the monotonic clock
        self.thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.thread.start()

    def run(self, work: Work[T], key: str) -> Iterator[T]:
        """The values that the work yields. Closing the iterator cancels the work."""
        task = self.post(work, key)
        try:
            while (value := task.out.get()) is not None:
                # Count first, then check `waiting`: the scheduler sets `waiting` before it reads the count.
                task.consumed += 1
                if self.waiting:
                    with self.changed:
                        self.changed.notify_all()
                yield value
            if task.error:
                raise task.error
        finally:
            with self.changed:
                task.cancelled = True
                self.changed.notify_all()

    def post(
        self,
        work: Work[T],
        key: str,
        *,
        idle_only: bool = False,
        gives_up: bool = False,
        must_run: bool = False,
    ) -> _Task[T]:
        """Queue work without waiting for it.

        `idle_only`: run only while there is no other work; it never cancels other work. `gives_up`: cancel the work as soon
        as there is other work, also if that is `idle_only`. `must_run`: finish the work even if the scheduler is closed.
        """
        with self.changed:
            if self.closed:
                raise EngineError("The engine is closed.")
            self.posted += 1
            task = _Task(work, key, self.posted, idle_only, gives_up, must_run)
            unfinished = [older for older in self.tasks if not older.done]
            same = [older for older in unfinished if older.key == key]
            if (idle_only and not all(older.idle_only for older in same)) or (gives_up and unfinished):
                task.done = True
                task.out.put(None)
                work.close()
                return task
            for older in unfinished:
                older.cancelled |= older.gives_up
            for older in same:
                older.cancelled = True
                older.error = EngineError("This was cancelled, since the window began something new.")
            self.tasks.append(task)
            self.changed.notify_all()
        return task

    @property
    def step_seconds(self) -> float:
        """How many seconds the current step has been running; 0 if none runs."""
        began = self.step_began
        return 0.0 if began is None else time.monotonic() - began

    def wait_until_idle(self) -> None:
        """Wait until there is no work."""
        with self.changed:
            while self.tasks and not self.closed:
                self.changed.wait()

    def close(self) -> None:
        """Cancel all work but `must_run`, and wait for the thread."""
        with self.changed:
            self.closed = True
            for task in self.tasks:
                if task.must_run:
                    continue
                task.cancelled = True
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
                if task.cancelled:
                    task.work.close()
                    task.done = True
                else:
                    self.step_began = time.monotonic()
                    value = next(task.work)
            except StopIteration:
                task.done = True
            except BaseException as error:  # raised in the consumer
                task.error, task.done = error, True
            self.step_began = None
            if task.done:
                with self.changed:
                    self.tasks.remove(task)
                    self.changed.notify_all()
            elif value is not None:
                task.produced += 1
            if task.done or value is not None:
                task.out.put(value)

    def _next(self) -> _Task[T] | None:
        """The next task in turn that can run: its consumer keeps up, and no older task has its key."""
        oldest: dict[str, int] = {}
        for task in self.tasks:
            oldest[task.key] = min(task.number, oldest.get(task.key, task.number))
        busy = any(not task.idle_only for task in self.tasks)
        for task in self.tasks:
            if task.number != oldest[task.key] or (task.idle_only and busy and not task.cancelled):
                continue
            if task.cancelled or task.produced - task.consumed < QUEUE_SIZE:
                self.tasks.remove(task)
                self.tasks.append(task)
                return task
        return None
