"""A store of its own for each test."""

import pytest

from halo_weave.store.sqlite import SqliteStore
from tests.store.material import NOW, quick_folder


@pytest.fixture
def folder():
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def store(folder):
    with SqliteStore(folder / "memory.sqlite") as store:
        yield store


@pytest.fixture
def window(store) -> str:
    return store.create_window("first", now=NOW, user_name="Grace", ai_name="Iris").id
