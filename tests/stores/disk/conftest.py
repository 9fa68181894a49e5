"""A memory on a real disk, where files can be full, read-only, damaged and locked."""

from datetime import timedelta
from pathlib import Path

import pytest

from halo_weave.stores.sqlite import SqliteStore
from tests.stores.material import NOW


@pytest.fixture
def tmp_path(tmp_path_factory) -> Path:
    """On a real disk."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "memory.sqlite"
    with SqliteStore(path) as store:
        store.create_window("w", now=NOW)
        store.create_window("v", now=NOW + timedelta(seconds=1))
        store.begin_generation("test", 4, now=NOW)
    return path
