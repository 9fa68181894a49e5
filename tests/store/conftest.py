"""Tests that ask nothing of the disk keep their files in memory, where waiting for the disk takes no time."""

import pytest

from tests.store.material import quick_folder


@pytest.fixture
def tmp_path():
    with quick_folder() as folder:
        yield folder
