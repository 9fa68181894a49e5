"""A memory moves from one kind of store to the other and back; it is the same there, and nothing is half moved."""

import io
import json
from datetime import timedelta

import numpy as np
import pytest

from halo_weave.app import open_store
from halo_weave.errors import BadInput, StoreError
from halo_weave.paths import memory_file
from halo_weave.store import transfer
from halo_weave.store.sqlite import SqliteStore
from halo_weave.store.transfer import transfer_memory
from tests.contract.conftest import Kind
from tests.store.material import NOW, exchange, unit_vectors


class Interrupted(Exception):
    pass


@pytest.fixture
def empty(kind, folder, server):
    """An empty place of the other kind, by name."""
    made = {}

    def place(name: str) -> str:
        if in_file(kind):
            return server.address(made.setdefault(name, server.new()))
        return str(folder / name)

    yield place
    for name in made.values():
        server.drop(name)


def in_file(kind) -> bool:
    return type(kind) is Kind


def told(store) -> dict:
    """All that an export tells, vectors included, except when it was made."""
    text = io.StringIO()
    store.export(text.write, now=NOW, vectors=True)
    return json.loads(text.getvalue())


def test_a_memory_is_the_same_in_the_other_store_and_back_again(rich, empty, kind, folder):
    rich.add_negative_feedback(rich.chunks([2])[0].key, "what was that?", now=NOW)
    rich.name_chat("chat-1", rich.windows()[0].id)
    before = told(rich)
    assert transfer_memory(rich, empty("there")) == []
    back = kind.bare(folder / "back")
    with open_store(empty("there")) as there:
        assert told(there) == before
        assert there.negative_feedback() == rich.negative_feedback()
        assert there.chat_window("chat-1") == rich.windows()[0].id
        assert there.history(limit=1000) == rich.history(limit=1000)
        assert transfer_memory(there, back) == []
    with open_store(back) as again:
        assert told(again) == before
        assert again.negative_feedback() == rich.negative_feedback()


def test_what_is_said_after_a_move_gets_new_ids_and_is_found(rich, empty):
    transfer_memory(rich, empty("there"))
    stats = rich.stats()
    with open_store(empty("there")) as there:
        window = there.windows()[0].id
        ids = exchange(there, window, "a zebra appeared", "indeed", now=NOW + timedelta(30))
        assert ids.user_turn == stats.next_turn
        (found, _) = there.search_terms(["zebra"], 100)[0]
        assert [record.key.turn_id for record in there.chunks(found.tolist())] == [ids.user_turn]
        assert len(there.changes(rich.sequence()).present) == 2
        assert there.verify() == []


def test_a_move_that_broke_off_goes_on_and_copies_only_what_is_missing(rich, empty, monkeypatch):
    monkeypatch.setattr(transfer, "BATCH", 5)
    steps = []

    def stop(done: int, total: int) -> None:
        steps.append(done)
        if len(steps) == 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        transfer_memory(rich, empty("there"), progress=stop)
    with pytest.raises(StoreError):
        open_store(empty("there"), read_only=True).close()  # it is not whole, so nobody can use it
    again = []
    transfer_memory(rich, empty("there"), progress=lambda done, total: again.append(done))
    whole = []
    transfer_memory(rich, empty("whole"), progress=lambda done, total: whole.append(done))
    assert len(again) < len(whole)
    with open_store(empty("there")) as there:
        assert told(there) == told(rich)


def test_rows_that_changed_since_a_move_broke_off_are_what_they_are_now(rich, empty, monkeypatch):
    monkeypatch.setattr(transfer, "BATCH", 5)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        transfer_memory(rich, empty("there"), progress=stop)
    window = rich.windows()[0]
    rich.change_window(window.id, name="renamed", now=NOW)
    live = rich.live(window.id)
    bright = np.full(sum(len(one.chunk) for one in live), 3, np.float32)
    rich.save_brightness(window.id, [one.chunk for one in live], bright)
    rich.delete([live[0].key], now=NOW)
    transfer_memory(rich, empty("there"))
    with open_store(empty("there")) as there:
        assert told(there) == told(rich)


def test_a_memory_is_not_moved_over_another_one(rich, empty):
    transfer_memory(rich, empty("there"))
    exchange(rich, rich.windows()[0].id, "later", "words")
    with pytest.raises(BadInput, match="already"):
        transfer_memory(rich, empty("there"))


def test_nobody_writes_to_a_memory_while_it_is_moved(rich, empty):
    def say(done: int, total: int) -> None:
        with pytest.raises(StoreError):
            rich.reserve(1)
        raise Interrupted

    rich._db.busy_seconds = 0.05
    with pytest.raises(Interrupted):
        transfer_memory(rich, empty("there"), progress=say)


def test_a_backup_is_a_whole_memory_in_one_file(rich, folder):
    rich.backup(folder / "copy.sqlite")
    (folder / "restored").mkdir()
    (folder / "copy.sqlite").rename(memory_file(folder / "restored"))
    with SqliteStore(memory_file(folder / "restored")) as restored:
        assert told(restored) == told(rich)
        assert restored.verify() == []


def test_vectors_are_near_in_both_stores_alike(rich, empty):
    """The database that has an index of its own finds what a comparison of all vectors finds."""
    transfer_memory(rich, empty("there"))
    (generation,) = [one.id for one in rich.generations() if one.state == "current"]
    with open_store(empty("there")) as there:
        searches = [found for one in (rich, there) if (found := one.vector_search(generation))]
        numbers, vectors = zip(*rich.vectors(generation), strict=True)
        numbers, vectors = np.concatenate(numbers), np.concatenate(vectors)
        for query in unit_vectors(5):
            likeness = vectors @ query / np.linalg.norm(vectors, axis=1)
            best = [int(one) for one in numbers[np.argsort(-likeness, kind="stable")]]
            found, similarity = searches[0].nearest(query, limit=3)
            assert found.tolist() == list(dict.fromkeys(best))[:3]
            assert similarity[0] == pytest.approx(likeness.max(), abs=0.01)
