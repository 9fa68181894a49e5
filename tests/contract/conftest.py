"""The stores that the contract holds for, and a memory of each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halo_weave.stores.sqlite import SqliteStore
from tests.stores.material import NOW, quick_folder

KINDS = {"sqlite": lambda folder: SqliteStore(folder / "memory.sqlite")}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def again(kind, folder) -> Iterator[Callable[[], SqliteStore]]:
    """Opens the same memory, as another process would."""
    opened = []

    def open_one() -> SqliteStore:
        opened.append(kind(folder))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(again):
    return again()


@pytest.fixture
def window(store) -> str:
    return store.create_window("first", now=NOW).id


@pytest.fixture
def elsewhere(kind, folder):
    """Another memory of the same kind, empty."""
    with kind(folder / "elsewhere") as store:
        yield store
