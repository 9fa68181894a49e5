"""Several imports into one memory at once: every store takes them one after the other."""

import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from halo_weave.errors import StoreBusy
from halo_weave.store import importing
from tests.store.material import NOW, exchange, exported, sleep, user

ROOT = Path(__file__).parents[2]


def in_the_middle(step):
    """A progress that takes this step once, when a part of the file was brought."""
    taken = []

    def progress(done: int, total: int) -> None:
        if done > total * 0.6 and not taken:
            taken.append(True)
            step()

    return progress


@pytest.fixture
def two_files(rich, memory, twin_of, tmp_path, monkeypatch):
    """Exports of two copies of one memory that went on apart, and a store for both."""
    monkeypatch.setattr(importing, "BATCH", 2)
    twin = twin_of(rich, "twin")
    files = []
    for store, said, day in ((rich, "said here", 8), (twin, "said there", 9)):
        ids = exchange(store, store.windows()[0].id, said, "yes", now=NOW + timedelta(day))
        sleep(store, store.windows()[0].id, user(ids.user_turn), why=said)
        files.append(tmp_path / f"{said}.json")
        files[-1].write_text(exported(store))
    return memory("both"), *files


def assert_unmixed(store):
    assert store.verify() == []
    assert store.stats().turns == 20
    asleep = {one.record.chunk.text: one.reason for one in store.graveyard(store.windows()[0].id).items}
    assert [asleep[said] for said in ("said here", "said there")] == [
        {"why": "said here"},
        {"why": "said there"},
    ]


def test_a_second_import_waits_for_the_first(two_files):
    store, first, second = two_files
    result = []
    thread = threading.Thread(target=lambda: result.append(store.import_file(second, now=NOW)))

    def begin_another() -> None:
        thread.start()
        thread.join(0.3)
        store.reserve(1)  # all else goes on

    store.import_file(first, now=NOW, progress=in_the_middle(begin_another))
    thread.join()
    assert (result[0].turns, result[0].known_turns) == (2, 16)
    assert_unmixed(store)


IMPORT = """
import sys
from pathlib import Path
from halo_weave.app import open_store
from tests.store.material import NOW
with open_store(sys.argv[1]) as store:
    print("ready", flush=True)
    print(store.import_file(Path(sys.argv[2]), now=NOW).turns)
"""


@pytest.mark.slow
def test_an_import_waits_for_that_of_another_process(two_files, kind, folder):
    store, first, second = two_files
    others = []

    def begin_another() -> None:
        command = [sys.executable, "-c", IMPORT, kind.place(folder / "both"), str(second)]
        others.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        assert others[0].stdout.readline() == "ready\n"
        with suppress(subprocess.TimeoutExpired):
            others[0].wait(0.5)

    store.import_file(first, now=NOW, progress=in_the_middle(begin_another))
    assert others[0].communicate(timeout=60)[0] == "2\n"
    assert_unmixed(store)


def test_while_an_import_goes_on_for_long_others_are_asked_to_wait(two_files, monkeypatch):
    store, first, second = two_files
    monkeypatch.setattr(importing, "IMPORT_LOCK_SECONDS", 0.1)

    def try_others() -> None:
        for other in (lambda: store.import_file(second, now=NOW), lambda: store.clear(confirm=True)):
            with pytest.raises(StoreBusy, match=r"Another import .* Nothing was changed; try again when"):
                other()

    store.import_file(first, now=NOW, progress=in_the_middle(try_others))
    store.import_file(second, now=NOW)
    assert_unmixed(store)
    store.clear(confirm=True)
