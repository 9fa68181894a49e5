"""The interface of a database: connections, transactions, the statements that differ, and the coordination of several
servers."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol


class Cursor(Protocol):
    """The rows of a statement."""

    @property
    def rowcount(self) -> int: ...
    @property
    def description(self) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchmany(self, size: int, /) -> list[Any]: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


Values = Sequence[Any] | Mapping[str, Any]


class Table(NamedTuple):
    """A table that a copy of a memory must contain. Its first columns are the key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


NOT_COPIED = {"memory", "migrations", "leases", "feed", "images"}
WORD_INDEX = Table("words", ("rowid", "terms"), ("rowid",))


def table_of(name: str, columns: Sequence[str], key: Sequence[str]) -> Table:
    if name == "vectors":  # its row numbers have no meaning
        columns, key = ("generation", "chunk", "vector"), ("generation", "chunk")
    return Table(name, (*key, *(column for column in columns if column not in key)), tuple(key))


class Connection(Protocol):
    """A connection. Statements are written for SQLite, with `?`, `?1` or `:name`; docs/decisions/0013 says what to
    avoid in them."""

    def execute(self, sql: str, values: Values = (), /) -> Cursor: ...
    def executemany(self, sql: str, rows: Iterable[Values], /) -> Cursor: ...
    def stream(self, sql: str, values: Values = (), /) -> Cursor:
        """Like `execute`, for more rows than fit into memory. Other statements may run while they are read."""

    def mark_changed(self, numbers: Sequence[int]) -> None:
        """Mark chunks as changed: they get a sequence number greater than all before."""

    def last_change(self) -> int: ...
    def add_to_word_index(self, rows: Sequence[tuple[int, str]]) -> None:
        """Add numbers and terms of chunks that are not in the word index yet."""

    def remove_from_word_index(self, numbers: Sequence[int]) -> None: ...
    def put_vectors(self, generation: int, dimension: int, rows: Sequence[tuple[int, bytes]]) -> None:
        """Replace the vectors of chunks: numbers and packed vectors."""

    def check_lease(self, window_id: str) -> None:
        """Within a transaction: raise an error if another process writes the window, or has taken it over."""

    def fence(self, windows: Sequence[str]) -> None:
        """Within a transaction: take these windows from other processes that write them."""

    def writes(self, owner: str, window_id: str) -> bool | None:
        """Whether a process still writes a window; None: unknown."""

    def defer_references(self) -> None:
        """Until the transaction ends, rows may refer to missing rows."""

    def tables(self) -> list[Table]:
        """The tables of a copy, in an order in which rows only refer to earlier tables."""

    def reset_row_counters(self) -> None:
        """After rows were copied with their numbers: continue counting after the highest."""


Repair = Callable[[Connection], object]
Fault = tuple[str, Repair | None]  # what is wrong, and what would repair it
Check = Callable[[Connection], Iterator[Fault]]


class Database(Protocol):
    """One memory in a database, for all threads of this process."""

    @property
    def place(self) -> str:
        """Where the memory is, as its user knows it."""

    @property
    def folder(self) -> Path:
        """The folder for temporary files."""

    @property
    def conflict(self) -> type[Exception]:
        """The exception for a row that exists already."""

    @property
    def checks(self) -> Mapping[str, Check]:
        """The checks of `verify` that only this database has."""

    @property
    def fleet(self) -> Coordinator:
        """The coordination with other processes."""

    def reading(self) -> AbstractContextManager[Connection]:
        """A read transaction: one consistent state of the memory until the block ends."""

    def querying(self) -> AbstractContextManager[Connection]:
        """A connection for a single statement, without a transaction."""

    def writing(self, *, durable: bool = False, urgent: bool = False) -> AbstractContextManager[Connection]:
        """A write transaction: all of the block, or nothing. `urgent`: before other threads that wait."""

    def import_lock(self, *, timeout: float) -> AbstractContextManager[None]:
        """Hold the lock for imports and clearing, among all processes; wait up to `timeout` seconds for it."""

    def empty(self, db: Connection) -> None:
        """Delete all rows, except from tables that survive a clearing."""

    def vacuum(self) -> None:
        """Give free space back to the system."""

    def schema(self) -> int: ...
    def size(self) -> int:
        """Bytes."""

    def version(self) -> int: ...
    def close(self) -> None: ...


class WriteLock:
    """A lock for one writer at a time. `urgent` writers go before the others that wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0  # number of waiting urgent writers

    def acquire(self, timeout: float | None = None, *, urgent: bool = False) -> bool:
        with self._changed:
            self._urgent += urgent
            try:
                free = self._changed.wait_for(
                    lambda: not self._taken and (urgent or not self._urgent), timeout
                )
            finally:
                self._urgent -= urgent
            self._taken = self._taken or free
            return free

    def release(self) -> None:
        with self._changed:
            self._taken = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _start_time(pid: int) -> str:
    """When a process started, if the system says: process ids are reused. None for one that has ended and waits for its
    parent."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""


def this_process() -> str:
    """A name by which another process can see whether this one still exists."""
    pid = os.getpid()
    return f"{socket.gethostname()} {pid} {_start_time(pid)}".strip()


def is_running(owner: str) -> bool | None:
    """Whether the process still exists; None: unknown, as on another host or in another container."""
    host, pid, *started = owner.split(" ")
    if owner == this_process():
        return True
    if host != socket.gethostname() or sys.platform == "win32":
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not started or started[0] == _start_time(int(pid))


class RemoteChange(NamedTuple):
    """A change that another server made in a window, or its request to the server that writes the window. Without a
    window: for all servers."""

    window: str | None
    event: Literal["changed", "deleted", "erased", "stop"]


class Coordinator(Protocol):
    """Coordinates this process with others that use the memory."""

    def lease(self, window_id: str) -> AbstractContextManager[None]:
        """While the block runs, no other process writes the window. Raises WindowBusy if one does.

        A process that is silent for too long loses the window: what it writes then is refused with LeaseLost. When the
        block ends, the other processes are notified.
        """

    def tell(
        self, windows: Iterable[str], event: Literal["changed", "deleted", "erased"] = "changed"
    ) -> None:
        """Notify other processes within a second. Never fails: a lost notification is noticed at their next poll."""

    def written(self, window_id: str) -> bool:
        """Whether another process, alive as far as is known, is writing the window."""

    def stop(self, window_id: str) -> bool:
        """Ask the process that writes the window to end its reply; False if there is none."""

    def listen(self, hear: Callable[[RemoteChange], object]) -> None:
        """Call this for notifications of other processes, in a thread of its own."""


class SingleProcess:
    """Only one process uses the memory, as with SQLite."""

    def lease(self, window_id: str) -> AbstractContextManager[None]:
        return nullcontext()

    def tell(
        self, windows: Iterable[str], event: Literal["changed", "deleted", "erased"] = "changed"
    ) -> None:
        pass

    def written(self, window_id: str) -> bool:
        return False

    def stop(self, window_id: str) -> bool:
        return False

    def listen(self, hear: Callable[[RemoteChange], object]) -> None:
        pass
