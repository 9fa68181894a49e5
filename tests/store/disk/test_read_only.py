"""A memory that may only be read is read, and writing to it is refused in a sentence."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from halo_weave.store.sqlite import SqliteStore
from tests.store.material import exchange

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def as_someone_else(script: str) -> subprocess.CompletedProcess[str]:
    """Run as a user whom file permissions bind, since root may write everywhere."""
    begin = """
import os
from pathlib import Path
from halo_weave.errors import StoreError
from halo_weave.store import schema
from halo_weave.store.sqlite import SqliteStore
schema.migrations()  # what Python loads late, it could not load as someone else
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
"""
    command = [sys.executable, "-c", begin + script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def kept(path) -> Iterator[Path]:
    """A memory with two chunks in a folder that every user can reach."""
    with SqliteStore(path) as store:
        exchange(store, store.windows()[0].id, "kept", "safe")
    folder = Path(tempfile.mkdtemp())
    shutil.copy(path, folder / "memory.sqlite")
    yield folder / "memory.sqlite"
    folder.chmod(0o755)
    shutil.rmtree(folder)


READ = """
with SqliteStore(Path({path!r}), read_only={read_only}) as store:
    print([item.chunk.text for item in store.live(store.windows()[0].id)])
"""
WRITE = """
try:
    with SqliteStore(Path({path!r}), read_only={read_only}) as store:
        store.reserve(10)
except StoreError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("folder", [0o555, 0o777], ids=["folder read-only too", "folder writable"])
def test_a_read_only_memory_can_be_read(kept, folder):
    kept.chmod(0o444)
    kept.parent.chmod(folder)
    done = as_someone_else(READ.format(path=str(kept), read_only=True))
    assert (done.stdout, done.stderr) == ("['kept', 'safe']\n", "")


VERIFY = """
with SqliteStore(Path({path!r}), read_only=True) as store:
    print(store.verify())
"""


@pytest.mark.parametrize("folder", [0o555, 0o777], ids=["folder read-only too", "folder writable"])
@pytest.mark.parametrize("file", [0o444, 0o666], ids=["file read-only too", "file writable"])
def test_a_sound_memory_in_a_read_only_folder_is_sound(kept, folder, file):
    kept.chmod(file)
    kept.parent.chmod(folder)
    done = as_someone_else(VERIFY.format(path=str(kept)))
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("folder", [0o555, 0o777], ids=["folder read-only too", "folder writable"])
@pytest.mark.parametrize("read_only", [True, False])
def test_writing_to_a_read_only_memory_is_a_sentence(kept, folder, read_only):
    kept.chmod(0o444)
    kept.parent.chmod(folder)
    before = kept.read_bytes()
    done = as_someone_else(WRITE.format(path=str(kept), read_only=read_only))
    assert done.stderr == ""
    assert done.stdout.startswith(("StoreFull", "StoreError"))
    assert "read" in done.stdout or "cannot be opened" in done.stdout
    assert kept.read_bytes() == before
