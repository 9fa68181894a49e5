"""Processes that are killed, and several at once: nothing acknowledged is lost, no id is given twice."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from halo_weave.store.sqlite import SqliteStore
from tests.store.material import NOW, ask, live_keys, sleeping, user

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
KILLS = 50

# Says, drafts, prunes and wakes, in a window of its own. Each line tells what was acknowledged, after it was.
WORK = """
import os, sys
from pathlib import Path
import numpy as np
from halo_weave.store.sqlite import SqliteStore
from tests.store.material import answer, ask, cut, draft, live_keys, sleep, user, wake

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
                    assert step == "awake" or sleeping(store, window, user(turn))
            if steps and steps[-1][0] == "drafted":
                kept = [draft.turn_id for draft in store.drafts(now=NOW)]
                assert steps[-1][1] in kept or store.turn(steps[-1][1])
    nursery.stdin.close()
    nursery.stdout.close()
    assert nursery.wait() == 0
    assert len(last_steps) > 2, "the kills all came at the same step"
    assert len(said) > KILLS / 10  # how many depends on how busy the machine is


def test_the_draft_of_a_killed_process_is_found_on_restart(path):
    with SqliteStore(path) as store:
        window = store.windows()[0].id
        ids = ask(store, window, "tell me")
    script = f"""
import os, signal
from pathlib import Path
from halo_weave.store.sqlite import SqliteStore
from halo_weave.store.records import Reservation
from tests.store.material import cut, draft
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
from halo_weave.store.sqlite import SqliteStore
from halo_weave.store.records import Reservation
from tests.store.material import cut, draft
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


def test_many_processes_make_the_same_memory_at_once(tmp_path):
    path = tmp_path / "new" / "memory.sqlite"
    script = "import sys; from pathlib import Path; from halo_weave.store.sqlite import SqliteStore; print(SqliteStore(Path(sys.argv[1])).reserve(1).user_turn)"
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    turns = sorted(int(maker.communicate()[0]) for maker in makers)
    assert turns == [1, 3, 5, 7]
