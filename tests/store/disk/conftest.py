"""A memory on a real disk, where files can be full, read-only, damaged and locked."""

import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from halo_weave.store.sqlite import SqliteStore
from tests.store.material import NOW


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a real disk."""
    with tempfile.TemporaryDirectory(prefix="halo-weave-") as folder:
        yield Path(folder)


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "memory.sqlite"
    with SqliteStore(path) as store:
        store.create_window("w", now=NOW)
        store.create_window("v", now=NOW + timedelta(seconds=1))
        store.begin_generation("test", 4, now=NOW)
    return path
