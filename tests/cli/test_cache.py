"""The cache on disk on the command line, and what goes from it while there is no model."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import halo_weave.cli
from halo_weave.chat.idle_reading import IdleReading
from halo_weave.cli.app import app
from halo_weave.engines.llama.cache_files import CacheFiles, SavedCells
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.engines.no_model import NoModelEngine
from halo_weave.paths import index_snapshot_file, kv_cache_folder
from halo_weave.state_file import remember_idle_reading
from halo_weave.store.sqlite import SqliteStore

assert halo_weave.cli  # registers the commands


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    """Ten tokens in each of three files of two windows."""
    folder = kv_cache_folder(tmp_path)
    files = CacheFiles(folder, "some model", 1 << 30)
    for window, first in (("one", 0), ("one", 100), ("two", 200)):
        labels = np.arange(first, first + 10)
        tokens = CachedTokens(labels, labels.astype(np.int32), np.arange(10, dtype=np.int32))
        files.save_evicted(window, SavedCells.unshared(tokens, np.arange(10), np.zeros(1000, np.uint8)))
    files.close()
    return folder


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_how_much_of_the_memory_was_read_in_idle_time_is_shown_until_the_cache_is_cleared(
    cells: Path,
) -> None:
    data = str(cells.parent)
    assert json.loads(run("cache", "status", "--data", data, "--json"))["idle_reading"] is None
    progress = IdleReading("disk full", 1200, 3400, "SmolLM2")
    remember_idle_reading(cells.parent, asdict(progress))
    assert json.loads(run("cache", "status", "--data", data, "--json"))["idle_reading"] == asdict(progress)
    shown = run("cache", "status", "--data", data).replace("\n", " ")
    assert "SmolLM2 has read 1,200 of 3,400 tokens of the memory (disk full)" in shown
    run("cache", "clear", "--data", data)
    assert json.loads(run("cache", "status", "--data", data, "--json"))["idle_reading"] is None


def test_the_cache_is_told_and_deleted(cells: Path) -> None:
    data = str(cells.parent)
    told = json.loads(run("cache", "status", "--data", data, "--json"))
    assert told["files"] == 3
    assert 3000 < told["bytes"] < 7000
    assert f"in 3 files in {cells}" in run("cache", "status", "--data", data).replace("\n", "")
    assert "Deleted" in run("cache", "clear", "--data", data)
    assert json.loads(run("cache", "status", "--data", data, "--json"))["files"] == 0


def test_wiping_the_memory_wipes_its_cells_and_the_image_of_its_index(cells: Path) -> None:
    SqliteStore(cells.parent / "memory.sqlite").close()
    index_snapshot_file(cells.parent).write_bytes(b"vectors")
    run("clear", "--yes", "--data", str(cells.parent))
    assert not cells.exists()
    assert not index_snapshot_file(cells.parent).exists()


def test_what_is_deleted_before_a_model_is_there_leaves_no_cells(cells: Path) -> None:
    engine = NoModelEngine(cells)
    engine.erase([(105, 106)])
    assert len(list(cells.rglob("*.cells"))) == 2
    engine.forget("two")
    (left,) = cells.rglob("*.cells")
    files = CacheFiles(cells, "some model", 1 << 30)
    (evicted_cells,) = files.load_evicted("one", np.array([3]))
    files.close()
    assert evicted_cells.tokens.labels[0] == 0
    assert left.is_file()
