"""A memory opened from a snapshot of its index is the same as one read from the store, or the snapshot is not used."""

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from halo_weave.core.quantization import quantize
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.search import index_snapshot, index_state, vector_index
from halo_weave.search.memory_search import MemorySearch
from halo_weave.search.vector_index import row_size
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.store.material import NOW, ask

pytestmark = pytest.mark.slow

WORDS = [f"w{i}" for i in range(60)]
QUESTIONS = ("w1 w2 w3", "w7", "w11 w12 w13 w14 w15", "w59 w1")


def embedder() -> HashingEmbedder:
    return HashingEmbedder(100)  # wider than the narrow view


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Images and the narrow view for memories of any size."""
    monkeypatch.setattr(index_state, "MIN_SNAPSHOT_CHUNKS", 1)
    monkeypatch.setattr(index_state, "MIN_SNAPSHOT_CHANGES", 1)
    monkeypatch.setattr(vector_index, "EXACT_BELOW", 20)


@pytest.fixture
def path(folder) -> Path:
    return folder / "memory.index"


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """Grows whenever a memory is read from its store."""
    times: list[int] = []
    whole = index_state.IndexState._load_from_store

    def noted(self, ready):
        times.append(len(times))
        return whole(self, ready)

    monkeypatch.setattr(index_state.IndexState, "_load_from_store", noted)
    return times


@contextmanager
def recalling(store, path=None, **more):
    recall = MemorySearch(store, embedder, now=lambda: NOW, snapshot_path=path, **more)
    try:
        recall.embedder(30)
        assert recall.settle(30) or not more.get("writes", True)
        yield recall
    finally:
        recall.close()


def say(store, window, rng, turns: int = 5) -> list[ChunkKey]:
    said = []
    for _ in range(turns):
        texts = [" " + " ".join(rng.choices(WORDS, k=8)) for _ in range(8)]
        ids = ask(store, window, *texts, speaker=rng.choice(["Ada", "Ida"]))
        said += [ChunkKey(ids.user_turn, i, Role.USER) for i in range(len(texts))]
    return said


def answers(recall) -> list[dict[ChunkKey, float]]:
    """How well each chunk that is found answers."""
    found = [recall.search(text, limit=1000, now=NOW) for text in QUESTIONS]
    assert all(found)
    return [{hit.key: hit.similarity for hit in hits} for hits in found]


def same(some: list[dict[ChunkKey, float]], others: list[dict[ChunkKey, float]]) -> bool:
    """But for rounding, which may put a chunk just above or below what counts as a hit."""
    return all(
        abs(one.get(key, 0) - other.get(key, 0)) < 0.01
        for one, other in zip(some, others, strict=True)
        for key in {*one, *other}
    )


def expected(store) -> list[dict[ChunkKey, float]]:
    """The answers of a memory in which all is embedded, read from the store."""
    with recalling(store):
        pass
    with recalling(store) as recall:
        return answers(recall)


def left_behind(store, path) -> list:
    """The answers of a memory that was read from its store and left a snapshot."""
    with recalling(store, path) as recall:
        found = answers(recall)
    assert path.exists()
    return found


def head_of(path) -> dict:
    return index_snapshot._SnapshotFile(
        path, index_snapshot.OpenFile(os.open(path, os.O_RDONLY)), False
    ).header


@pytest.mark.parametrize("seed", range(4))
def test_a_memory_opened_from_its_snapshot_answers_as_one_read_from_the_store(store, again, path, read, seed):
    rng = random.Random(seed)
    windows = [store.create_window(name, now=NOW).id for name in ("first", "second", "third")]
    said, deleted = say(store, windows[0], rng), []
    left_behind(store, path)
    for _ in range(4):
        for _ in range(rng.randrange(3)):
            said += say(store, rng.choice(windows), rng, turns=rng.randrange(1, 4))
        if rng.random() < 0.7:
            gone = rng.sample(sorted(set(said) - set(deleted)), 6)
            store.delete(gone, now=NOW)
            deleted += gone
        if deleted and rng.random() < 0.4:
            back = rng.sample(deleted, 3)
            store.undelete(back, now=NOW)
            deleted = [key for key in deleted if key not in back]
        known = expected(store)
        read.clear()
        with recalling(again(), path) as recall:
            assert same(answers(recall), known)
            assert len(recall._table) == len(said) - len(deleted)
        assert not read


def test_a_vector_is_erased_from_the_file_with_its_chunk(store, window, again, path, read):
    said = say(store, window, random.Random(1))
    left_behind(store, path)
    with recalling(store, path) as recall:
        recall.search("w1", now=NOW)
        index, number = recall._index, store.chunk(said[5]).number
        if index is None:  # the store searches: no vector is in the file
            assert "codes" not in head_of(path)
            return
        codes = quantize(index.of(np.array([number]))[0])[0].tobytes()
        narrow = index.view.codes[index._first[np.array([number])][0]].tobytes()
        assert codes in path.read_bytes()
        assert narrow in path.read_bytes()
        store.delete([said[5]], now=NOW)
        recall.search("w1", now=NOW)
        assert codes not in path.read_bytes()
        assert narrow not in path.read_bytes()
    before = path.read_bytes()
    store.delete([said[6]], now=NOW)  # while nobody has the snapshot open
    known = expected(store)
    read.clear()
    with recalling(again(), path) as recall:
        assert same(answers(recall), known)
    assert not read  # the snapshot is still good
    assert path.read_bytes() != before


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "other", "head"])
def test_a_damaged_snapshot_is_not_used_and_made_anew(store, window, again, path, read, damage):
    say(store, window, random.Random(2))
    known = left_behind(store, path)
    blob = path.read_bytes()
    damaged = {
        "cut": blob[: len(blob) // 2],
        "longer": blob + b"\0",
        "empty": b"",
        "other": b"SQLite format 3\0" + blob[16:],
        "head": blob[:60] + bytes([blob[60] ^ 1]) + blob[61:],
    }[damage]
    path.write_bytes(damaged)
    read.clear()
    with recalling(again(), path) as recall:
        assert same(answers(recall), known)
    assert read
    read.clear()
    with recalling(again(), path) as recall:
        assert same(answers(recall), known)
    assert not read


def test_whatever_bit_of_a_snapshot_is_wrong_the_answers_are_right(store, window, again, path):
    say(store, window, random.Random(3))
    known = left_behind(store, path)
    blob = path.read_bytes()
    rng = random.Random(4)
    held = [place for place in range(len(blob)) if blob[place]]
    for place in rng.sample(held, 40):
        path.write_bytes(blob[:place] + bytes([blob[place] ^ (1 << rng.randrange(8))]) + blob[place + 1 :])
        with recalling(again(), path) as recall:
            assert same(answers(recall), known), place


def test_a_wrong_bit_in_any_array_of_a_snapshot_is_noticed(store, window, again, path, read):
    say(store, window, random.Random(19))
    left_behind(store, path)
    blob, head = path.read_bytes(), head_of(path)
    for start, kind, shape, _ in head["sections"].values():
        place = start + np.dtype(kind).itemsize * int(np.prod(shape)) - 1  # the last byte in use
        path.write_bytes(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :])
        read.clear()
        with recalling(again(), path, writes=False):
            assert read


def test_a_vector_that_is_wrong_in_the_file_is_noticed_when_it_is_read(store, window, again, path, read):
    say(store, window, random.Random(5))
    known = left_behind(store, path)
    head = head_of(path)
    if "codes" not in head:
        pytest.skip("the store searches the vectors itself")
    blob = bytearray(path.read_bytes())
    for place in range(head["codes"], len(blob), row_size(head["dimension"])):
        blob[place] ^= 4
    path.write_bytes(bytes(blob))
    read.clear()
    with recalling(again(), path) as recall:
        assert same(answers(recall), known)
    assert read


def test_a_snapshot_of_another_memory_is_not_used(store, window, elsewhere, path, read):
    say(store, window, random.Random(6))
    left_behind(store, path)
    say(elsewhere, elsewhere.create_window("first", now=NOW).id, random.Random(7), turns=9)
    known = expected(elsewhere)
    read.clear()
    with recalling(elsewhere, path) as recall:
        assert same(answers(recall), known)
    assert read


def test_an_earlier_memory_is_not_served_by_a_later_snapshot(store, window, twin_of, path, read):
    rng = random.Random(8)
    said = say(store, window, rng)
    left_behind(store, path)
    early = twin_of(store, "early")
    say(store, window, rng)
    store.delete(said[:10], now=NOW)
    left_behind(store, path)
    say(early, window, random.Random(9), turns=20)  # it has had more changes by now than the later one
    with recalling(early) as recall:
        known = answers(recall)
    read.clear()
    with recalling(early, path) as recall:
        assert same(answers(recall), known)
    assert read


def test_what_was_erased_after_a_backup_is_found_when_the_backup_is_put_back(
    store, window, twin_of, path, monkeypatch
):
    said = say(store, window, random.Random(14))
    left_behind(store, path)
    backup = twin_of(store, "backup")
    known = expected(backup)
    monkeypatch.setattr(index_state, "MIN_SNAPSHOT_CHANGES", 1000)  # the snapshot is not written anew
    with recalling(store, path) as recall:
        store.delete(said[:1], now=NOW)
        answers(recall)
    with recalling(backup, path) as recall:
        assert same(answers(recall), known)


@pytest.mark.parametrize("writes", [True, False])
def test_a_damaged_snapshot_that_cannot_be_deleted_is_passed_over(
    store, window, again, path, monkeypatch, writes
):
    say(store, window, random.Random(15))
    known = left_behind(store, path)
    if "codes" not in (head := head_of(path)):
        pytest.skip("the store searches the vectors itself")
    blob = bytearray(path.read_bytes())
    for place in range(head["codes"], len(blob), row_size(head["dimension"])):
        blob[place] ^= 4
    path.write_bytes(bytes(blob))
    if writes:

        def refused(self, missing_ok=False):
            raise PermissionError(f"{self} must stay")

        monkeypatch.setattr(Path, "unlink", refused)
    with recalling(again(), path, writes=writes) as recall:
        assert same(answers(recall), known)
        assert same(answers(recall), known)
    assert path.read_bytes() == bytes(blob) or writes


def test_a_cleared_memory_leaves_no_snapshot_and_takes_none_from_before(store, window, again, path, read):
    say(store, window, random.Random(10))
    left_behind(store, path)
    kept = shutil.copy(path, path.with_name("kept"))
    path.with_name("memory.index.dead.partial").write_bytes(b"torn")
    with recalling(store, path) as recall:
        store.clear(confirm=True)
        recall.forget()
        assert not [one.name for one in path.parent.glob("memory.index*")]
    shutil.copy(kept, path)
    read.clear()
    with recalling(again(), path) as recall:
        assert not recall.search("w1", now=NOW)
    assert read
    assert not path.exists()


def test_a_snapshot_that_was_begun_before_a_clearing_is_not_kept(store, window, again, path):
    say(store, window, random.Random(11))
    with recalling(store) as recall:
        snapshot = index_snapshot.IndexSnapshot(
            index_state.LoadedIndex(recall._table, recall._index, recall._sequence)
        )
        generation = recall._generation
    again().clear(confirm=True)
    index_snapshot.write_snapshot(path, store, generation, snapshot)
    assert not list(path.parent.glob("memory.index*"))


def test_a_repaired_memory_takes_no_snapshot_from_before(store, window):
    say(store, window, random.Random(12))
    generation = store.begin_generation("m", 8, now=NOW).id
    assert store.record_index_snapshot("one", generation)
    assert store.knows_index_snapshot("one")
    assert not store.knows_index_snapshot("two")
    assert not store.record_index_snapshot("two", generation + 1)
    with store._db.writing() as db:
        db.execute("DELETE FROM wanted")
    assert any(finding.repaired for finding in store.verify(repair=True))
    assert not store.knows_index_snapshot("one")


def test_two_processes_share_a_snapshot(store, window, again, path, read):
    said = say(store, window, random.Random(13))
    left_behind(store, path)
    read.clear()
    with recalling(store, path) as one, recalling(again(), path) as other:
        store.delete(said[:3], now=NOW)
        assert same(answers(one), answers(other))
        assert not read
        say(store, window, random.Random(14), turns=20)
        other.embed_soon()
        assert other.settle(30)
        other.search("w1", now=NOW)
        other._save_snapshot()  # a new file takes the name of the one that both have open
        assert same(answers(one), answers(other))
        inode = path.stat().st_ino
        store.delete(said[3:6], now=NOW)
        assert same(answers(one), answers(other))
        assert not path.exists() or path.stat().st_ino == inode
    assert same(expected(store), expected(again()))


def test_whoever_only_reads_uses_the_snapshot_and_leaves_it(store, window, again, path, read):
    said = say(store, window, random.Random(15))
    left_behind(store, path)
    store.delete(said[:20], now=NOW)
    before = path.read_bytes()
    read.clear()
    with recalling(again(), path, writes=False) as recall:
        found = answers(recall)
    assert not read
    assert path.read_bytes() == before
    assert same(found, expected(store))


def test_only_its_owner_can_read_a_snapshot(store, window, path):
    say(store, window, random.Random(16))
    left_behind(store, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_snapshot_that_cannot_be_written_is_done_without(store, window, path, monkeypatch):
    say(store, window, random.Random(17))
    known = expected(store)
    old = path.with_name("memory.index.old.partial")
    old.write_bytes(b"torn")
    os.utime(old, (0, 0))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_snapshot, "_write_checksums", full)
    with recalling(store, path) as recall:
        assert same(answers(recall), known)
    assert not list(path.parent.glob("memory.index*"))


KILLED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from halo_weave.app import open_store
from tests.fakes.hashing_embedder import HashingEmbedder
from halo_weave.search import index_state, vector_index
from halo_weave.search.memory_search import MemorySearch
index_state.MIN_SNAPSHOT_CHUNKS = index_state.MIN_SNAPSHOT_CHANGES = 1
vector_index.EXACT_BELOW = 20
recall = MemorySearch(open_store(sys.argv[1]), lambda: HashingEmbedder(100), snapshot_path=Path(sys.argv[2]))
recall.embedder()
print("open", flush=True)
while True:
    recall.search("w1", now=datetime.now(UTC))
    recall._unsaved = 1 << 20
    recall._save_snapshot()
"""


def test_a_process_killed_while_it_writes_snapshots_leaves_a_good_one_or_none(store, window, again, path):
    rng = random.Random(18)
    say(store, window, rng)
    known = left_behind(store, path)
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, store.place, str(path)]
        if store.place.endswith(".sqlite"):
            command[3] = str(Path(store.place).parent)
        else:
            command[3] = store._db.address
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        time.sleep(rng.random() / 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with recalling(again(), path) as recall:
            assert same(answers(recall), known)
