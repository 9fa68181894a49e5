"""Killed, crowded, full, read-only, corrupt, locked: nothing acknowledged is lost, and the error is a sentence."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from halo_weave.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull
from halo_weave.stores import importfile
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.stores.sqlite.connection import PAGE_BYTES
from tests.stores.material import NOW, ask, exchange, exported, live_keys, user

ROOT = Path(__file__).parents[2]
KILLS = 50

# Says, drafts, prunes and wakes, in a window of its own. Each line tells what was acknowledged, after it was.
WORK = """
import os, sys
from pathlib import Path
import numpy as np
from halo_weave.stores.sqlite import SqliteStore
from tests.stores.material import answer, ask, cut, draft, live_keys, sleep, user, wake

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole lines, also when it is killed

def work(path, which, rounds):
    store = SqliteStore(Path(path))
    window = store.windows()[which].id
    for number in range(rounds):
        ids = ask(store, window, f"question {number}", " and more of it")
        tell("said", ids.user_turn)
        draft(store, window, ids, cut("half an"))
        tell("drafted", ids.assistant_turn)
        answer(store, window, ids, f"answer {number}", " with a second part")
        tell("said", ids.assistant_turn)
        sleep(store, window, user(ids.user_turn), why="test")
        tell("asleep", ids.user_turn)
        if number % 2:
            wake(store, window, user(ids.user_turn))
            tell("awake", ids.user_turn)
        live = store.live(window)[-3:]
        bright = np.concatenate([item.brightness for item in live])
        store.save_brightness(window, [item.chunk for item in live], bright - 1)
        tell("saved", ids.user_turn)
"""
WRITER = WORK + "work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))"
# A new process for each line of its input, without the time it takes to start Python.
NURSERY = (
    WORK
    + """
for line in sys.stdin:
    child = os.fork()
    if not child:
        print("pid", os.getpid(), flush=True)
        work(sys.argv[1], 0, 10**9)
    os.waitpid(child, 0)
    print("dead", child, flush=True)
"""
)


def start(path: Path, which: int = 0, rounds: int = 10**9) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(which), str(rounds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def stop(writer: subprocess.Popen[str]) -> None:
    writer.kill()
    writer.communicate()


@pytest.fixture
def tmp_path(tmp_path_factory) -> Path:
    """On a real disk."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "memory.sqlite"
    with SqliteStore(path) as store:
        store.create_window("w", now=NOW)
        store.create_window("v", now=NOW + timedelta(seconds=1))
        store.begin_generation("test", 4, now=NOW)
    return path


def test_a_killed_process_loses_nothing_that_was_acknowledged(path):
    """Fifty processes, one after the other on the same memory, each killed at a random moment."""
    rng = random.Random(11)
    said: set[int] = set()
    last_steps = Counter()
    nursery = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(KILLS):
        nursery.stdin.write("go\n")
        nursery.stdin.flush()
        word, pid = nursery.stdout.readline().split()
        assert word == "pid"
        threading.Event().wait(rng.uniform(0.0, 0.15))
        os.kill(int(pid), signal.SIGKILL)
        steps = []
        while (step := nursery.stdout.readline().split())[0] != "dead":
            steps.append((step[0], int(step[1])))
        last_steps[steps[-1][0] if steps else "nothing"] += 1
        with SqliteStore(path) as store:
            assert store.verify() == []
            window = store.windows()[0].id
            for turn in (turn for step, turn in steps if step == "said"):
                assert [record.key.chunk_id for record in store.turn(turn)] == [0, 1]
                assert turn not in said
                said.add(turn)
            held = {turn: step for step, turn in steps if step in {"asleep", "awake"}}
            live = set(live_keys(store, window))
            for turn, step in held.items():
                if turn != steps[-1][1]:  # of the last one, the next step may have been taken too
                    assert (user(turn) in live) is (step == "awake")
                    assert step == "awake" or store.sleeping(window, user(turn))
            if steps and steps[-1][0] == "drafted":
                kept = [draft.turn_id for draft in store.drafts(now=NOW)]
                assert steps[-1][1] in kept or store.turn(steps[-1][1])
    nursery.stdin.close()
    nursery.stdout.close()
    assert nursery.wait() == 0
    assert len(last_steps) > 2, "the kills all came at the same step"
    assert len(said) > KILLS


def test_the_draft_of_a_killed_process_is_found_on_restart(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "tell me")
    script = f"""
import os, signal
from pathlib import Path
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.records import Reservation
from tests.stores.material import cut, draft
store = SqliteStore(Path({str(path)!r}))
ids = Reservation({ids.user_turn}, {ids.assistant_turn}, {ids.start}, {ids.stop})
draft(store, {window!r}, ids, cut("once upon"))
draft(store, {window!r}, ids, cut("once upon a time"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    with SqliteStore(path) as store:
        (draft,) = store.drafts(now=NOW)
        assert (draft.tokens.text, draft.turn_id, draft.answers) == (
            "once upon a time",
            ids.assistant_turn,
            ids.user_turn,
        )


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell who has ended")
def test_a_process_that_ended_but_was_not_taken_note_of_holds_nothing(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "tell me")
    script = f"""
from pathlib import Path
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.records import Reservation
from tests.stores.material import cut, draft
ids = Reservation({ids.user_turn}, {ids.assistant_turn}, {ids.start}, {ids.stop})
draft(SqliteStore(Path({str(path)!r})), {window!r}, ids, cut("once upon"))
print("drafted", flush=True)
input()
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with writer, SqliteStore(path) as store:
        assert writer.stdout
        assert writer.stdout.readline() == b"drafted\n"
        assert store.drafts(now=NOW) == []
        writer.kill()
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert [draft.tokens.text for draft in store.drafts(now=NOW)] == ["once upon"]


def test_two_processes_write_without_losing_or_doubling_an_id(path):
    writers = [start(path, which, 60) for which in range(2)]
    outs = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    said = [int(line.split()[1]) for out in outs for line in out.splitlines() if line.startswith("said")]
    assert sorted(said) == list(range(1, 241))
    with SqliteStore(path) as store:
        assert store.verify() == []
        assert (store.stats().turns, store.stats().next_turn) == (240, 241)
        for window in store.windows():
            assert len(live_keys(store, window.id)) + store.graveyard(window.id).total == 240


def test_readers_see_whole_turns_while_another_process_writes(path):
    writer = start(path, rounds=40)
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        while writer.poll() is None:
            turns = {}
            for item in store.live(window):
                turns.setdefault(item.key.turn_id, []).append(item.key.chunk_id)
            for turn, found in turns.items():
                assert found in ([0, 1], [1]), f"half of turn {turn} was seen"
        assert len(live_keys(store, window)) == 140
    writer.communicate()
    assert writer.returncode == 0


def test_a_backup_made_while_others_write_is_sound(path, tmp_path):
    writer = start(path)
    try:
        assert writer.stdout.readline().startswith("said")
        with SqliteStore(path) as store:
            for number in range(5):
                store.backup(tmp_path / f"{number}.sqlite")
                threading.Event().wait(0.05)
    finally:
        stop(writer)
    turns = []
    for number in range(5):
        assert not (tmp_path / f"{number}.sqlite-wal").exists()
        with SqliteStore(tmp_path / f"{number}.sqlite") as copy:
            assert copy.verify() == []
            turns.append(copy.stats().turns)
    assert turns == sorted(turns)
    assert turns[-1] > 0


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


def as_someone_else(script: str) -> subprocess.CompletedProcess[str]:
    """Run as a user whom file permissions bind, since root may write everywhere."""
    begin = """
import os
from pathlib import Path
from halo_weave.errors import StoreError
from halo_weave.stores.sqlite import SqliteStore, schema
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


@pytest.mark.parametrize(
    "content",
    [b"this is not a database, it only has a name like one" * 100, b"SQLite format 3\0" + b"\xff" * 4000],
)
def test_a_file_that_is_no_database_is_refused(tmp_path, content):
    path = tmp_path / "memory.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match="not a memory"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE songs (name)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="not a memory of Halo Weave"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_damaged_memory_is_told_and_the_rest_can_be_read(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        for number in range(60):
            exchange(store, window, f"question {number} " + "word " * 60, "answer " * 60)
        store.stats()
    content = bytearray(path.read_bytes())
    place = content.find(b"question 30 word")
    while place >= 0:
        page = place // PAGE_BYTES * PAGE_BYTES
        content[page : page + 200] = bytes(range(200))
        place = content.find(b"question 30 word", page + PAGE_BYTES)
    path.write_bytes(content)
    with SqliteStore(path) as store:
        assert store.verify()[0].check == "file"
        with pytest.raises(StoreCorrupt, match="halo-weave verify"):
            store.live(window)
        assert store.turn(119)[0].chunk.text.startswith("question 59")


def test_a_truncated_memory_is_told(path):
    with SqliteStore(path) as store:
        exchange(store, store.windows()[0].id, "one", "two")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(StoreCorrupt), SqliteStore(path) as store:
        exchange(store, store.windows()[0].id, "three", "four")


@pytest.mark.parametrize("read_only", [True, False])
def test_an_empty_file_is_no_memory(path, read_only):
    path.write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="is empty"):
        SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == b""


def vanish(path):
    path.rename(path.with_name("elsewhere.sqlite"))


def replace(path):
    vanish(path)
    with SqliteStore(path) as other:
        other.create_window("another memory", now=NOW)


@pytest.mark.parametrize("change", [vanish, replace])
def test_nothing_is_acknowledged_once_the_file_is_another_one(path, change):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "kept")
        change(path)
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            ask(store, window, "lost")
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.chunk(user(ids.user_turn))
        with pytest.raises(StoreError, match="deleted, moved or replaced"):
            store.version()


def test_a_memory_that_was_moved_away_is_whole_when_it_is_put_back(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "kept")
        vanish(path)
        with pytest.raises(StoreError, match="put the right file in its place"):
            ask(store, window, "lost")
    path.with_name("elsewhere.sqlite").rename(path)
    with SqliteStore(path) as store:
        assert live_keys(store, window) == [user(ids.user_turn)]
        assert store.verify() == []


def test_a_locked_memory_is_waited_for_but_not_for_ever(path):
    with SqliteStore(path, busy_seconds=0.2) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match=r"more than 0\.2 seconds"):
            store.reserve(1)
        assert store.windows()  # reading goes on
        holder.execute("ROLLBACK")
        holder.close()
        assert store.reserve(1).user_turn == 1


def test_a_short_lock_is_only_a_wait(path):
    with SqliteStore(path, busy_seconds=20) as store:
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
        release.start()
        assert store.reserve(1).user_turn == 1
        release.join()
        holder.close()


def test_an_exclusively_locked_memory_cannot_be_opened_with_a_sentence(tmp_path):
    path = tmp_path / "memory.sqlite"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreBusy):
        SqliteStore(path, busy_seconds=0.2)
    holder.execute("ROLLBACK")
    holder.close()
    path.unlink()
    SqliteStore(path).close()


def test_a_path_that_is_a_folder_is_named(tmp_path):
    with pytest.raises(StoreError, match="is a folder"):
        SqliteStore(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be used"):
        SqliteStore(tmp_path / "file" / "memory.sqlite")


def test_a_memory_to_be_read_must_exist(tmp_path):
    with pytest.raises(StoreError, match="no memory"):
        SqliteStore(tmp_path / "memory.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_closing_interrupts_those_who_read_and_breaks_nothing(path):
    with SqliteStore(path) as store:
        window = store.create_window("w", now=NOW).id
        for i in range(100):
            exchange(store, window, f"question {i}", "an answer of some words")
    told = []

    def read(store):
        try:
            while True:
                store.graveyard(window, text="words")
                store.live(window)
                store.stats()
        except StoreError as error:
            told.append(str(error))

    for _ in range(20):
        store = SqliteStore(path)
        readers = [threading.Thread(target=read, args=(store,)) for _ in range(4)]
        for reader in readers:
            reader.start()
        time.sleep(0.02)
        store.close()
        for reader in readers:
            reader.join(timeout=30)
            assert not reader.is_alive()
    assert set(told) == {f"{path} was closed."}


def test_a_closed_store_says_so(path):
    store = SqliteStore(path)
    store.close()
    for step in (store.windows, lambda: store.reserve(1)):
        with pytest.raises(StoreError, match="was closed"):
            step()


def test_many_processes_make_the_same_memory_at_once(tmp_path):
    path = tmp_path / "new" / "memory.sqlite"
    script = "import sys; from pathlib import Path; from halo_weave.stores.sqlite import SqliteStore; print(SqliteStore(Path(sys.argv[1])).reserve(1).user_turn)"
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    turns = sorted(int(maker.communicate()[0]) for maker in makers)
    assert turns == [1, 3, 5, 7]


def test_an_import_that_breaks_off_says_what_stays_and_goes_on(path, monkeypatch):
    monkeypatch.setattr(importfile, "BATCH", 2)
    file = path.with_name("export.json")
    with SqliteStore(path) as store:
        window = store.create_window("w", now=NOW).id
        for number in range(10):
            exchange(store, window, f"question {number}", "answer")
        file.write_text(exported(store))
    with SqliteStore(path.with_name("held.sqlite"), busy_seconds=0.05) as store:
        other = sqlite3.connect(store.path, isolation_level=None)

        def hold(done: int, total: int) -> None:
            if done > 0.6 * total and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")

        with closing(other), pytest.raises(StoreBusy, match=r"broke off: .* so far stays") as raised:
            store.import_file(file, now=NOW, progress=hold)
        assert "Nothing was changed" not in str(raised.value)
        assert 0 < store.stats().turns < 20
        store.import_file(file, now=NOW)
        assert store.stats().turns == 20
        assert store.verify() == []
