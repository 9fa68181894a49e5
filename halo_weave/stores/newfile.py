"""A file that takes its place only when it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from halo_weave.errors import BadInput, StoreError


@contextmanager
def new_backup(target: Path) -> Iterator[Path]:
    """Another name to write to. When the block ends well, the file is on the disk under its own."""
    if target.is_dir():
        raise BadInput(f"{target} is a folder. Name a file for the backup.")
    if target.exists():
        raise BadInput(f"{target} exists already. Name another file for the backup.")
    if not target.parent.is_dir():
        raise BadInput(
            f"There is no folder {target.parent}. Make it first, or name another file for the backup."
        )
    partial = target.with_name(target.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
