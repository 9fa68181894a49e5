"""A full disk loses nothing, and the error says where there is no space."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from halo_weave.errors import StoreFull
from halo_weave.store.sqlite import SqliteStore
from tests.store.material import NOW, exchange, live_keys


def talk_on(store, window: str, said: list) -> None:
    for _ in range(10_000):
        said.append(exchange(store, window, "word " * 20, "more " * 20))


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)


def test_a_full_disk_loses_nothing(path):
    """SQLite's own limit on pages stands for the disk's end: the same error, at an exact place."""
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        store._db._writer.execute("PRAGMA max_page_count = 120")
        said = []
        with pytest.raises(StoreFull, match="No space"):
            talk_on(store, window, said)
        assert said
        assert [record.chunk.text for record in store.turn(said[-1].user_turn)] == ["word " * 19 + "word"]
        store._db._writer.execute("PRAGMA max_page_count = 10000")
        exchange(store, window, "there is room", "again")
        assert store.verify() == []


def test_a_really_full_disk_loses_nothing():
    """A small file system in memory, filled up by others."""
    folder = Path(tempfile.mkdtemp())
    mounted = os.name == "posix" and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not mounted:
        folder.rmdir()
        pytest.skip(
            "a file system of its own can be mounted by root only; the limit on pages is tested above"
        )
    try:
        with SqliteStore(folder / "memory.sqlite") as store:
            window = store.create_window("w", now=NOW).id
            exchange(store, window, "before", "it")
            with pytest.raises(OSError, match="No space"):
                fill(folder / "filler")
            said = []
            with pytest.raises(StoreFull, match="No space"):
                talk_on(store, window, said)
            (folder / "filler").unlink()
            exchange(store, window, "room", "again")
            assert store.verify() == []
            assert store.stats().turns >= 2 * (len(said) + 2)
        with SqliteStore(folder / "memory.sqlite") as store:
            assert len(live_keys(store, window)) == store.stats().turns
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def export_on(store, file: Path) -> None:
    with file.open("w", buffering=1) as out:
        while True:
            store.export(out.write, now=NOW)


def test_a_backup_or_an_export_that_finds_no_space_says_where(path, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    ).returncode:
        pytest.skip("a file system of its own can be mounted by root only")
    try:
        with SqliteStore(path) as store:
            with pytest.raises(StoreFull, match=r"No space is left for .*copy\.sqlite"):
                store.backup(folder / "copy.sqlite")
            assert list(folder.iterdir()) == []
            with pytest.raises(OSError, match="No space"):
                export_on(store, folder / "export.json")
            assert store.verify() == []
    finally:
        subprocess.run(["umount", str(folder)], check=True)
