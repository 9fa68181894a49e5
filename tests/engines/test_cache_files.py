"""Cells on disk: what was read is not read again after a restart or a switch; what does not fit is computed anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cell_kills import drill
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, Sampling
from halo_weave.engines.llama.cache_files import (
    CacheFiles,
    SavedCells,
    _read_tokens,
    clear_disk,
    disk_use,
)
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.engines.llama.engine import EngineLimits, LlamaEngine
from tests.contract.talks import Heard, Talk
from tests.engines.tiny import write

ONE = Sampling(temperature=0.0, max_new_tokens=1)
SIX = Sampling(temperature=0.0, max_new_tokens=6)
LINES = [
    f"Line {i}: boat number {i * 7 % 97} is blue and has {i % 9 + 2} sails, and its captain is called Marta."
    for i in range(8)
]


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    return tmp_path / "cells"


@contextmanager
def engine_on(model: Path, cells: Path | None, **limits: object) -> Iterator[LlamaEngine]:
    with LlamaEngine(model, limits=EngineLimits(cells=cells, **limits)) as engine:  # type: ignore[arg-type]
        yield engine


def talk_in(engine: LlamaEngine, window: str = "w", lines: list[str] = LINES) -> Talk:
    talk = Talk(engine, window)
    for number, line in enumerate(lines):
        talk.add((Role.USER, Role.ASSISTANT)[number % 2], line)
    return talk


def read_again(
    model: Path, cells: Path | None, asleep: frozenset[int] = frozenset(), **limits: object
) -> Heard:
    """What a new process reads when the talk goes on."""
    with engine_on(model, cells, **limits) as engine:
        talk = talk_in(engine)
        talk.add(Role.USER, "Go on.")
        talk.asleep = set(asleep)
        heard = talk.hear(SIX, Capture())
        assert engine.mapping_errors == 0
    assert heard.read is not None
    return heard


def test_a_system_prompt_that_slept_is_not_read_again_by_the_next_process(model: Path, cells: Path) -> None:
    """As that with tools does, which only some messages ask for."""
    plain, tools = "You are a sailor.", f"You are a sailor. {'You have tools. ' * 12}"
    for computes in (True, False):
        with engine_on(model, cells) as engine:
            talk = talk_in(engine)
            told = len(engine.tokenize(tools)) // 2
            for system in (plain, tools, plain):
                talk.system = system
                read = talk.hear(ONE).read
                assert read is not None
                if system is tools:
                    assert (read.computed > told) is computes
                    assert (read.restored > told) is not computes


def speak(model: Path, cells: Path, *asleep: set[int]) -> None:
    with engine_on(model, cells) as engine:
        talk = talk_in(engine)
        for these in asleep or (set(),):
            talk.asleep = these
            talk.hear(ONE, Capture())


def files(cells: Path) -> list[Path]:
    return sorted(path for path in cells.rglob("*") if path.is_file())


def windows_of(cells: Path) -> set[str]:
    """Keys of the windows that have files."""
    return {path.name.split(".")[0] for path in files(cells)}


def test_after_a_restart_only_what_is_new_is_read(model: Path, cells: Path) -> None:
    speak(model, cells)
    fresh, again = read_again(model, None), read_again(model, cells)
    assert fresh.read is not None
    assert again.read is not None
    assert fresh.read.reused == 0
    assert again.read.computed < fresh.read.computed / 10
    assert again.text == fresh.text
    assert [step.surprisal for step in again.steps] == pytest.approx(
        [step.surprisal for step in fresh.steps], abs=0.02
    )
    for mine, theirs in zip(again.steps, fresh.steps, strict=True):
        assert mine.row is not None
        assert theirs.row is not None
        assert np.allclose(mine.row.tokens, theirs.row.tokens, atol=0.01)


def test_where_other_words_stand_at_a_position_what_begins_alike_is_still_used(
    model: Path, cells: Path
) -> None:
    with engine_on(model, cells) as engine:
        talk_in(engine).hear(SIX)  # the reply is live, and nobody kept it
    fresh, again = read_again(model, None), read_again(model, cells)
    assert again.read is not None
    assert again.read.reused > 0.9 * (again.read.reused + again.read.computed)
    assert again.text == fresh.text


def test_what_fell_asleep_returns_from_disk_after_a_restart_with_its_frame(model: Path, cells: Path) -> None:
    speak(model, cells, set(), {2})
    heard = read_again(model, cells)
    with engine_on(model, None) as engine:
        tokens = len(talk_in(engine).turns[2][2])
    assert heard.read is not None
    assert heard.read.restored > tokens
    assert heard.read.computed < tokens


@pytest.mark.slow
@pytest.mark.parametrize("harm", ["cut", "bit", "empty", "foreign"])
def test_a_file_that_was_harmed_is_computed_anew(model: Path, cells: Path, harm: str) -> None:
    speak(model, cells, set(), {2})
    fresh = read_again(model, None)
    paths = files(cells)
    assert len(paths) > 1
    for path in paths:
        content = bytearray(path.read_bytes())
        if harm == "bit":
            content[len(content) * 2 // 3] ^= 1
        path.write_bytes(
            {"cut": content[:-9], "bit": content, "empty": b"", "foreign": b"GGUF" + bytes(200)}[harm]
        )
    heard = read_again(model, cells)
    assert heard.read is not None
    assert (heard.read.reused, heard.read.restored) == (0, 0)
    assert heard.text == fresh.text


def test_cells_of_another_conversation_with_the_same_positions_are_not_used(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        talk_in(engine, lines=[line[::-1] for line in LINES]).hear(SIX)
    fresh, heard = read_again(model, None), read_again(model, cells)
    assert heard.read is not None
    assert heard.read.restored == 0
    assert heard.text == fresh.text


def test_another_form_of_the_cache_and_another_model_file_have_cells_of_their_own(
    model: Path, cells: Path, tmp_path: Path
) -> None:
    speak(model, cells)
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\0")
    for heard in (read_again(model, cells, kv_type="f32"), read_again(other, cells)):
        assert heard.read is not None
        assert heard.read.reused == 0


def test_windows_that_do_not_fit_together_are_not_read_anew_at_each_switch(model: Path, cells: Path) -> None:
    with engine_on(model, cells, memory_bytes=1) as engine:
        first, second = talk_in(engine, "first"), talk_in(engine, "second")
        for _ in range(2):
            one, two = first.hear(SIX), second.hear(SIX)
            assert list(engine.caches) == ["second"]
        assert one.read is not None
        assert two.read is not None
        assert one.read.computed < 5
        assert two.read.computed < 5


def test_nothing_of_a_deleted_chunk_or_window_stays(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        talk, other = talk_in(engine), talk_in(engine, "other")
        for these in (set(), {2}, {2, 4}):
            talk.asleep = these
            talk.hear(SIX)
        other.hear(SIX)
        _, start, tokens = talk.turns[2]
        engine.erase([(start, start + len(tokens))])
        _, start, tokens = talk.turns[5]
        engine.erase([(start, start + len(tokens))])  # it is live still
        talk.asleep = {2, 4, 5}
        talk.hear(SIX)
        engine.forget("other")
    held = np.concatenate([part.tokens.labels for path in files(cells) for part in _read_tokens(path)])
    for number, (_, start, tokens) in enumerate(talk.turns):
        assert np.isin(np.arange(start, start + len(tokens)), held).any() == (number not in (2, 5))
    assert len(windows_of(cells)) == 1


def test_after_a_restart_all_windows_of_someone_are_forgotten_and_those_of_others_stay(
    model: Path, cells: Path
) -> None:
    names = ["lent ann/one", "lent ann/two", "lent ann", "lent bob/one"]
    with engine_on(model, cells) as engine:
        for name in names:
            talk_in(engine, name, LINES[:2]).hear(ONE)
    assert len(windows_of(cells)) == 4
    with engine_on(model, cells) as engine:
        talk_in(engine, "lent ann/one", LINES[:2]).hear(ONE)
        engine.forget("lent ann/")
    assert len(windows_of(cells)) == 2
    with engine_on(model, cells) as engine:
        for name in names[2:]:
            heard = talk_in(engine, name, LINES[:2]).hear(ONE)
            assert heard.read is not None
            assert heard.read.reused


def test_files_are_for_the_owner_only_and_stay_within_the_quota(model: Path, cells: Path) -> None:
    speak(model, cells, set(), {2}, {2, 4}, {2, 4, 6})
    use = disk_use(cells)
    assert use.files == len(files(cells)) >= 4
    for path in files(cells):
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
    largest = max(path.stat().st_size for path in files(cells))
    with engine_on(model, cells, cells_bytes=largest + 1) as engine:
        talk = talk_in(engine)
        talk.asleep = {1, 2, 4, 6}
        talk.hear(SIX)
    assert 0 < disk_use(cells).bytes <= largest + 1
    assert clear_disk(cells).files
    assert disk_use(cells).files == 0


def test_a_quota_of_nothing_writes_nothing(model: Path, cells: Path) -> None:
    with engine_on(model, cells, cells_bytes=0) as engine:
        talk_in(engine).hear(SIX)
    assert not cells.exists()


def test_a_folder_that_cannot_be_written_costs_only_reading_again(model: Path, cells: Path) -> None:
    cells.write_text("a file where the folder should be")
    speak(model, cells, set(), {2})
    heard = read_again(model, cells)
    assert heard.read is not None
    assert heard.read.reused == 0


WRITER = """
import sys, numpy as np
from pathlib import Path
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.engines.llama.cache_files import CacheFiles, SavedCells, SavedWindow
files = CacheFiles(Path(sys.argv[1]), "key", 1 << 30)
print("go", flush=True)
for number in range(10**6):
    n = 50 + number % 7
    labels = np.arange(n) + 100 * (number % 40)
    tokens = CachedTokens(labels, (labels % 97).astype(np.int32), np.arange(n, dtype=np.int32))
    state = np.full(200_000, labels[0] % 251, np.uint8)
    cells = SavedCells.unshared(tokens, np.arange(n), state)
    files.save_evicted(f"w{number}", cells)
    files.save_live("w", SavedWindow([cells], n))
    while files._waiting.qsize() > 8:
        pass
"""


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_whole_files_or_none(tmp_path: Path) -> None:
    kills = int(os.environ.get("HALO_WEAVE_KILLS", "10"))
    whole = 0
    for number in range(kills):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02 + 0.013 * (number % 8))
            process.send_signal(signal.SIGKILL)
        found = CacheFiles(tmp_path, "key", 1 << 30)
        saved = found.load_live("w")
        parts = [*(saved.parts if saved else ()), *found.load_evicted("w1", np.arange(100, 200))]
        found.close()
        for part in parts:
            whole += 1
            first = int(part.tokens.labels[0])
            assert np.array_equal(part.tokens.ids, part.tokens.labels % 97)
            assert (part.state == first % 251).all()
            assert len(part.state) == 200_000
    assert whole > kills / 2


@pytest.mark.slow
def test_after_kills_while_cells_are_written_the_model_reads_as_if_all_were_computed(tmp_path: Path) -> None:
    kills = int(os.environ.get("HALO_WEAVE_KILLS", "2"))
    told = drill(write(tmp_path / "tiny.gguf", "llama"), kills)
    assert told["kills"] == kills
    assert told["from_disk"] > 0
    assert (told["errors"], told["wrong"]) == (0, 0)


def test_what_a_killed_process_left_half_written_is_deleted_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "key"
    folder.mkdir()
    for name, age in (("old", 3600), ("new", 0)):
        path = folder / f"{name}.cells.partial"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    CacheFiles(tmp_path, "key", 1 << 30).close()
    assert [path.name for path in folder.iterdir()] == ["new.cells.partial"]


def test_the_same_tokens_are_written_once(tmp_path: Path) -> None:
    held = CacheFiles(tmp_path, "key", 1 << 30)
    tokens = CachedTokens(np.arange(9), np.arange(9, dtype=np.int32), np.arange(9, dtype=np.int32))
    for fill in (1, 2):
        held.save_evicted("w", SavedCells.unshared(tokens, np.arange(9), np.full(9, fill, np.uint8)))
        held.flush()
    held.close()
    assert len(list(tmp_path.rglob("*.cells"))) == 1
    (evicted_cells,) = CacheFiles(tmp_path, "key", 1 << 30).load_evicted("w", np.array([3]))
    assert (evicted_cells.state == 1).all()
