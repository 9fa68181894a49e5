"""What one window of a memory has read is not computed again in another; what must not be lent is computed."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, PrefillResult, Sampling
from halo_weave.engines.flat_prompt import FlatPrompt
from halo_weave.engines.llama.cache_files import CacheFiles, SavedCells, _read_tokens
from halo_weave.engines.llama.cache_plan import CachedTokens
from halo_weave.engines.llama.engine import LlamaEngine
from tests.contract.talks import Talk
from tests.engines.test_cache_files import LINES, engine_on, files
from tests.engines.tiny import write

ONE = Sampling(temperature=0.0, max_new_tokens=1)
FACT = 3  # the turn that is quoted
asking = itertools.count(1)  # no two questions have the same positions


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    return tmp_path / "cells"


def home_talk(engine: LlamaEngine, *, memory: bool = True) -> Talk:
    talk = Talk(engine, "home", memory=memory)
    for number, line in enumerate(LINES):
        talk.add((Role.USER, Role.ASSISTANT)[number % 2], line)
    return talk


def quoting(home: Talk, window: str = "here", *numbers: int) -> Talk:
    """Another window, which quotes turns of the first one and then asks."""
    talk = Talk(home.engine, window, memory=True)
    for number in numbers or (FACT,):
        talk.quote(home, number)
    talk.next = home.next + 1000 * next(asking)
    talk.add(Role.USER, "What was that?")
    return talk


def restored(talk: Talk, owner: str = "ann") -> int:
    asked = talk.prompt()
    asked = replace(asked, owner=asked.owner and owner)
    heard = talk.engine.generate(talk.window, asked, ONE, None)
    (read,) = (event for event in heard if isinstance(event, PrefillResult))
    assert read.reused + read.restored + read.computed > len(talk.turns[0][2])
    return read.restored


def sleeps(home: Talk, *numbers: int) -> None:
    home.hear(ONE)
    home.asleep = set(numbers)
    home.hear(ONE)


SOURCES: dict[str, Callable[[Talk], object]] = {
    "live": lambda home: home.hear(ONE),
    "pruned": lambda home: sleeps(home, FACT),
    "pruned with others": lambda home: sleeps(home, FACT - 1, FACT, FACT + 1),
}


@pytest.mark.parametrize("restarted", [False, True], ids=["open", "restarted"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_another_window_has_read_is_not_computed(
    source: Callable[[Talk], object], restarted: bool, model: Path, cells: Path
) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        source(home)
        size = len(home.turns[FACT][2])
        if not restarted:
            assert restored(quoting(home)) == size
    if restarted:
        with engine_on(model, cells) as engine:
            assert restored(quoting(home_talk(engine))) == size


def test_a_window_that_gave_way_lends_from_disk_before_it_is_written(model: Path, cells: Path) -> None:
    with engine_on(model, cells, memory_bytes=1) as engine:
        home = home_talk(engine)
        home.hear(ONE)
        assert restored(quoting(home)) == len(home.turns[FACT][2])
        assert "home" not in engine.caches


def test_without_a_folder_cells_are_lent_from_memory(model: Path) -> None:
    with engine_on(model, None) as engine:
        home = home_talk(engine)
        home.hear(ONE)
        assert restored(quoting(home)) == len(home.turns[FACT][2])


def test_what_is_read_ahead_is_borrowed_too(model: Path) -> None:
    with engine_on(model, None) as engine:
        home = home_talk(engine)
        home.hear(ONE)
        talk = quoting(home)
        engine.scheduler.wait_until_idle()
        engine.prefetch("here", talk.prompt(), room=64, max_computed=2)  # only brought into memory
        engine.scheduler.wait_until_idle()
        held = engine.caches["here"].evicted
        assert held
        assert all(one.tokens.borrowed for one in held)
        assert restored(talk) == len(home.turns[FACT][2])


def surprisal(talk: Talk) -> np.ndarray:
    capture = Capture(reply=False, reading_surprisal=True)
    read = talk.hear(ONE, capture, read_from=talk.turns[-1][1]).read
    assert read is not None
    assert read.surprisal is not None
    return read.surprisal


def test_cells_are_those_of_the_chunk_at_its_new_place(model: Path) -> None:
    """The first turn has only the system prompt before it in either window: lent and computed are the same."""
    found = []
    for lends in (True, False):
        with engine_on(model, None) as engine:
            home = home_talk(engine, memory=lends)
            home.system = "You are helpful, and you know a great many things about boats and captains."
            home.hear(ONE)
            talk = quoting(home, "here", 0)
            talk.system = home.system
            found.append(surprisal(talk))
            assert engine.mapping_errors == 0
    np.testing.assert_allclose(found[0], found[1], atol=0.02)


def test_a_reply_that_was_generated_is_lent(model: Path) -> None:
    with engine_on(model, None) as engine:
        home = home_talk(engine)
        home.answer(Sampling(temperature=0.0, max_new_tokens=24))
        reply = len(home.turns) - 1
        lent = restored(quoting(home, "here", reply))
        assert lent >= len(home.turns[reply][2]) - 1  # its last token was not read


# What is not lent


def test_windows_outside_the_memory_neither_lend_nor_borrow(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        outside = home_talk(engine, memory=False)
        sleeps(outside, 1)
        assert restored(quoting(outside)) == 0
        engine.forget("home")
        home = home_talk(engine)
        home.hear(ONE)
        talk = quoting(home, "there")
        talk.memory = False
        assert restored(talk) == 0


@pytest.mark.parametrize("temporary", [False, True])
def test_only_cells_of_temporary_prompts_are_never_written(temporary: bool, model: Path, cells: Path) -> None:
    """Neither when text leaves the prompt, nor when the window gives way to another, nor at the end."""
    with engine_on(model, cells, memory_bytes=1) as engine:
        window = home_talk(engine, memory=False)
        for asleep in ({1}, {2}, set[int]()):
            window.asleep = asleep
            list(engine.generate("home", replace(window.prompt(), temporary=temporary), ONE, None))
        shared = replace(home_talk(engine, memory=False).prompt(), temporary=True)
        list(engine.generate("other", shared, ONE, None))
        assert list(engine.caches) == ["other"]
    assert bool(files(cells)) != temporary


@pytest.mark.parametrize("restarted", [False, True], ids=["open", "restarted"])
def test_windows_of_other_people_borrow_nothing(restarted: bool, model: Path, cells: Path) -> None:
    """Not even what they may read: it was read in sight of what its owner knows."""
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        sleeps(home, FACT)
        if not restarted:
            assert restored(quoting(home), owner="bob") == 0
    if restarted:
        with engine_on(model, cells) as engine:
            assert restored(quoting(home_talk(engine)), owner="bob") == 0


def test_what_was_only_quoted_is_not_lent_on(model: Path, cells: Path) -> None:
    """It was read in sight of what its window knows, and others may not know that."""
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        home.hear(ONE)
        first = quoting(home)
        first.hear(ONE)
        engine.forget("home")
        first.asleep = {0}
        first.hear(ONE)
        assert restored(quoting(home, "there")) == 0
    with engine_on(model, cells) as engine:
        assert restored(quoting(home_talk(engine), "there")) == 0


def test_other_words_at_the_same_positions_are_not_used(model: Path, cells: Path) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        sleeps(home, 1)
        other = home_talk(engine)
        other.turns = [
            (role, start, engine.tokenize(tokens.text[::-1])) for role, start, tokens in home.turns
        ]
        assert restored(quoting(other)) == 0
    with engine_on(model, cells) as engine:
        other.engine = engine
        assert restored(quoting(other, "there")) == 0


@pytest.mark.parametrize("harm", ["cut", "bit", "head", "empty", "foreign"])
def test_a_file_that_was_harmed_is_never_used(model: Path, cells: Path, harm: str) -> None:
    with engine_on(model, cells) as engine:
        sleeps(home_talk(engine), FACT)
    for path in files(cells):
        content = bytearray(path.read_bytes())
        content[{"bit": len(content) - 50, "head": 60}.get(harm, 0)] ^= harm in ("bit", "head")
        path.write_bytes({"cut": content[:-9], "empty": b"", "foreign": b"GGUF" * 50}.get(harm, content))
    with engine_on(model, cells) as engine:
        talk = quoting(home_talk(engine))
        found = surprisal(talk)
        assert engine.caches["here"].count
    with engine_on(model, None) as engine:
        np.testing.assert_allclose(found, surprisal(quoting(home_talk(engine))), atol=0.02)


@pytest.mark.parametrize("of", ["another model", "another window", "another memory"])
def test_a_whole_file_from_elsewhere_is_never_used_for_other_text(
    of: str, model: Path, cells: Path, tmp_path: Path
) -> None:
    """Its checksums are right. A file that was put into another model's folder, or under another window's name."""
    if of == "another model":
        other = tmp_path / "other.gguf"
        content = bytearray(model.read_bytes())
        content[-4000:] = bytes(4000)
        other.write_bytes(content)
        with engine_on(other, tmp_path / "there") as engine:
            sleeps(home_talk(engine), FACT)
    else:
        with engine_on(model, tmp_path / "there") as engine:
            home = home_talk(engine)
            if of == "another window":  # with other text at the same positions
                home.turns = [
                    (role, start, engine.tokenize(said.text[::-1])) for role, start, said in home.turns
                ]
            sleeps(home, FACT)
    with engine_on(model, cells) as engine:
        assert engine.disk is not None
        key = engine.disk.folder.name
    target = cells / key
    target.mkdir(parents=True, exist_ok=True)
    for path in files(tmp_path / "there"):
        shutil.copy(path, target / path.name)
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        owner = "ann of another memory" if of == "another memory" else "ann"
        assert restored(quoting(home), owner=owner) == 0
        found = surprisal(quoting(home, "there")) if of != "another memory" else None
        resumed = home.hear(ONE).read if of != "another memory" else None
    if found is not None:
        assert resumed is not None
        with engine_on(model, None) as engine:
            np.testing.assert_allclose(found, surprisal(quoting(home_talk(engine), "there")), atol=0.02)
    if of == "another model":
        assert resumed is not None
        assert resumed.reused + resumed.restored == 0


# What was deleted


def erase(engine: LlamaEngine, home: Talk, number: int, *windows: str) -> None:
    _, start, tokens = home.turns[number]
    engine.erase([(start, start + len(tokens))], windows or ("home",))


@pytest.mark.parametrize("restarted", [False, True], ids=["open", "restarted"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_was_computed_in_sight_of_deleted_text_is_not_lent(
    source: Callable[[Talk], object], restarted: bool, model: Path, cells: Path
) -> None:
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        source(home)
        if not restarted:
            erase(engine, home, 1)
            assert restored(quoting(home, "later")) == 0
            home.asleep |= {1}
            home.hear(ONE)
            assert restored(quoting(home, "earlier", 0)) > 0
    if restarted:
        with engine_on(model, cells) as engine:
            home = home_talk(engine)
            erase(engine, home, 1)
            assert restored(quoting(home)) == 0


@pytest.mark.parametrize("known", [True, False], ids=["its tokens", "only its window"])
def test_what_was_lent_carries_deleted_text_no_further(known: bool, model: Path, cells: Path) -> None:
    """The borrower never read the deleted turn, and neither did the third window: only cells of it passed on."""
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        home.hear(ONE)
        talk = quoting(home)
        own = len(talk.turns) - 1
        assert talk.hear(ONE).read is not None
        third = quoting(talk, "third", own)
        assert restored(third) > 0
        if known:
            erase(engine, home, 1)
        else:
            engine.erase((), ["home"])
        for borrower in (third, talk):  # what the second one reads again, it may lend again
            borrower.next += 100
            borrower.add(Role.USER, "And what else?")
            read = borrower.hear(ONE).read
            assert read is not None
            assert read.restored == 0
            assert read.computed > len(borrower.turns[-1][2]) + len(borrower.turns[0][2])


def test_quotations_in_another_order_than_their_positions_are_erased_too(model: Path, cells: Path) -> None:
    """An import gives old text new positions, so what stands later may have a lower one."""
    with engine_on(model, cells) as engine:
        home = home_talk(engine)
        talk = Talk(engine, "here", memory=True)
        talk.quote(home, 5)
        talk.quote(home, 2)
        talk.next = home.next + 1000
        talk.add(Role.USER, "What was that?")
        talk.hear(ONE)
        erase(engine, home, 5, "here")
        talk.asleep = {0}
        read = talk.hear(ONE).read
        assert read is not None
        assert read.restored == 0
        assert read.computed > len(home.turns[2][2])


# Files


def saved(first: int = 0, count: int = 40) -> SavedCells:
    labels = np.arange(first, first + count)
    tokens = CachedTokens(labels, (labels % 97).astype(np.int32), np.arange(count, dtype=np.int32))
    state = np.full(500, first % 251, np.uint8)
    return SavedCells(tokens, np.arange(count), state, labels, np.ones(count, np.bool_), owner="ann")


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    one, other = (CacheFiles(tmp_path, "key", 1 << 30) for _ in range(2))
    for number in range(3):
        one.save_evicted(f"w{number}", saved(100 * number))
        one.flush()
        assert len(other.load_evicted(f"w{number}", np.arange(100 * number, 100 * number + 5))) == 1
    other.erase([(210, 211)])
    assert one.load_evicted("w2", np.arange(200, 205)) == []
    assert len(one.load_evicted("w1", np.arange(100, 105))) == 1
    other.discard("w1")
    assert one.load_evicted("w1", np.arange(100, 105)) == []
    one.close()
    other.close()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_on = CacheFiles(tmp_path, "key", 1 << 30)
    files_on.save_evicted("w", saved())
    files_on.flush()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    files_on.save_evicted("w", saved(1000))
    files_on.flush()
    assert files_on.load_evicted("w", np.arange(1000, 1040)) == []
    assert len(files_on.load_evicted("w", np.arange(40))) == 1
    files_on.close()
    assert len(list(tmp_path.rglob("*"))) == 2  # the folder and one file


def test_files_of_an_earlier_form_are_deleted(tmp_path: Path) -> None:
    old = tmp_path / "key" / "window" / "one.cells"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"HWCELLS2")
    CacheFiles(tmp_path, "other", 1 << 30).close()
    assert not old.exists()


def test_a_thousand_windows_are_searched_without_reading_their_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = int(os.environ.get("HALO_WEAVE_WINDOWS", "1000"))
    writer = CacheFiles(tmp_path, "key", 1 << 30)
    for number in range(count):
        writer.save_evicted(f"w{number}", saved(100 * number))
    writer.close()
    reader = CacheFiles(tmp_path, "key", 1 << 30)
    opened = list[Path]()
    read = CacheFiles._read
    monkeypatch.setattr(CacheFiles, "_read", lambda *how: (opened.append(how[1]), read(*how))[1])
    (found,) = reader.load_evicted("w7", np.arange(700, 705))
    assert found.tokens.labels[0] == 700
    assert len(opened) == 1
    reader.close()


def test_of_a_thousand_windows_with_other_words_at_the_same_positions_only_the_right_one_lends(
    tmp_path: Path,
) -> None:
    count = int(os.environ.get("HALO_WEAVE_WINDOWS", "1000"))
    held = CacheFiles(tmp_path, "key", 1 << 30)
    labels = np.arange(40)
    for number in range(count):
        one = saved()
        one.tokens.ids[:] = number
        one.state[:] = number % 251
        held.save_evicted(f"w{number}", one)
    held.close()
    held = CacheFiles(tmp_path, "key", 1 << 30)
    for number in (0, 7, count - 1):
        ids = np.full(40, number, np.int32)
        prompt = FlatPrompt(labels, ids, np.zeros(40, np.uint8), np.zeros(40, np.bool_), "ann")
        (lent,) = held.cells_to_lend("here", prompt, np.ones(40, np.bool_))
        assert (lent.tokens.ids == number).all()
        assert (lent.state == number % 251).all()
    held.close()


@pytest.mark.slow
def test_two_servers_that_write_and_delete_at_the_same_time_use_no_wrong_cells(
    model: Path, cells: Path
) -> None:
    """Each reads the same conversation in its own windows, while the other one writes it and deletes parts of it."""
    # Nothing comes before the first turn, so its cells are the same whether they are lent or computed.
    with engine_on(model, None) as engine:
        expected = surprisal(quoting(home_talk(engine), "here", 0))
    worst, lent, errors = [0.0], [0], list[BaseException]()

    def serve(engine: LlamaEngine, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for turn in range(12):
                home = home_talk(engine)
                home.asleep = {int(rng.integers(1, 7))}
                home.hear(ONE)
                home.asleep = set()
                home.hear(ONE)
                if turn % 4 == 3:
                    erase(engine, home, int(rng.integers(1, 7)))
                talk = quoting(home, f"here {seed} {turn}", 0)
                capture = Capture(reply=False, reading_surprisal=True)
                read = talk.hear(ONE, capture, read_from=talk.turns[-1][1]).read
                assert read is not None
                assert read.surprisal is not None
                lent[0] += read.restored > 0
                worst[0] = max(worst[0], float(np.abs(read.surprisal - expected).max()))
                engine.forget(talk.window)
                if turn % 3 == 2:
                    engine.forget("home")
        except BaseException as error:
            errors.append(error)

    with engine_on(model, cells) as one, engine_on(model, cells) as other:
        threads = [threading.Thread(target=serve, args=how) for how in ((one, 1), (other, 2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    assert lent[0] > 6
    assert worst[0] < 0.1  # the cells of another line give 1.6 to 2.5 (benchmarks/cell_kills.py)
    for path in files(cells):
        assert _read_tokens(path), "a file that is not whole"
