import pytest

from halo_weave.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path):
    with SqliteStore(tmp_path / "memory.sqlite") as store:
        yield store
