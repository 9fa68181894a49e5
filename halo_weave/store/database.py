"""The interface of a database (connections, transactions, steps that differ), the write lock, and the identity of the writing process."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from halo_weave.store.coordination import Coordinator


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
    """A table whose rows a copy of a memory must have. Rows are found by their key, which comes first."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


NOT_COPIED = {"memory", "migrations", "leases", "feed", "images"}
WORD_INDEX = Table("words", ("rowid", "terms"), ("rowid",))


def table_of(name: str, columns: Sequence[str], key: Sequence[str]) -> Table:
    if name == "vectors":  # it has numbers of its own that mean nothing
        columns, key = ("generation", "chunk", "vector"), ("generation", "chunk")
    return Table(name, (*key, *(column for column in columns if column not in key)), tuple(key))


class Connection(Protocol):
    """Statements are written for SQLite, with `?`, `?1` or `:name`; docs/decisions/0013 says what to avoid in them."""

    def execute(self, sql: str, values: Values = (), /) -> Cursor: ...
    def executemany(self, sql: str, rows: Iterable[Values], /) -> Cursor: ...
    def stream(self, sql: str, values: Values = (), /) -> Cursor:
        """As `execute`, for more rows than fit into memory. Other statements may run while they are read."""

    def mark_changed(self, numbers: Sequence[int]) -> None:
        """These chunks are not what they were. Others see it by a number that is greater than all before."""

    def last_change(self) -> int: ...
    def add_to_word_index(self, rows: Sequence[tuple[int, str]]) -> None:
        """Numbers and terms of chunks that the word index does not hold."""

    def remove_from_word_index(self, numbers: Sequence[int]) -> None: ...
    def put_vectors(self, generation: int, dimension: int, rows: Sequence[tuple[int, bytes]]) -> None:
        """Numbers of chunks, and the packed vectors that each has from now on."""

    def check_lease(self, window_id: str) -> None:
        """Within a transaction: refuse to write a window that another process writes, or has taken over."""

    def fence(self, windows: Sequence[str]) -> None:
        """Within a transaction: other processes that write these windows lose them, and write nothing more."""

    def writes(self, owner: str, window_id: str) -> bool | None:
        """Whether this process still writes a window; None if it cannot be known."""

    def defer_references(self) -> None:
        """Rows may point to what is not there until the transaction ends."""

    def tables(self) -> list[Table]:
        """What a copy must have, in an order in which rows only point to what comes before."""

    def reset_row_counters(self) -> None:
        """After rows were copied with their numbers: new ones are counted on from there."""


Repair = Callable[[Connection], object]
Fault = tuple[str, Repair | None]  # what is wrong, and what would mend it
Check = Callable[[Connection], Iterator[Fault]]


class Database(Protocol):
    """One memory in a database, for all threads of this process."""

    @property
    def place(self) -> str:
        """As its user knows it."""

    @property
    def folder(self) -> Path:
        """Where large files may lie for a while."""

    @property
    def conflict(self) -> type[Exception]:
        """What is raised if a row is there already."""

    @property
    def checks(self) -> Mapping[str, Check]:
        """What `verify` looks at in this database only."""

    @property
    def fleet(self) -> Coordinator:
        """This process among all that use the memory."""

    def reading(self) -> AbstractContextManager[Connection]:
        """One state of the memory until the block ends."""

    def asking(self) -> AbstractContextManager[Connection]:
        """For one statement only, which sees one state by itself: no transaction has to begin and end."""

    def writing(self, *, durable: bool = False, urgent: bool = False) -> AbstractContextManager[Connection]:
        """A transaction: all of the block, or nothing. `urgent`: before other threads that wait to write."""

    def alone(self, *, patience: float) -> AbstractContextManager[None]:
        """One import or clearing at a time, among all processes: wait for others up to `patience` seconds."""

    def empty(self, db: Connection) -> None:
        """Wipe all tables but those that a clearing keeps."""

    def vacuum(self) -> None:
        """Give the space of what was wiped back."""

    def schema(self) -> int: ...
    def size(self) -> int:
        """Bytes."""

    def version(self) -> int: ...
    def close(self) -> None: ...


class WriteLock:
    """A lock for one writer at a time. Whoever is `urgent` goes before all others that wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0  # how many of those wait

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
    """When a process began, as far as the system tells: process ids are used again. Of one that has ended and only waits
    for its parent to take note, nothing."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    except (OSError, ValueError, IndexError):
        return ""


def this_process() -> str:
    """A name by which another process can tell whether this one is still there."""
    pid = os.getpid()
    return f"{socket.gethostname()} {pid} {_start_time(pid)}".strip()


def is_running(owner: str) -> bool | None:
    """None if it cannot be known from here: a process of another host or container, or a system without a way to ask."""
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
