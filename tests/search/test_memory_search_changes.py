"""What is said, deleted, merged or cleared while recall is open is found, or not any more."""

import threading

import pytest

from halo_weave.search.memory_search import MemorySearch
from halo_weave.store.sqlite import SqliteStore
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import keys_of, recalling, talk
from tests.store.material import NOW, ask


def test_what_was_just_said_is_found_at_once_by_its_words(store, window):
    gate = threading.Event()

    class Slow(HashingEmbedder):
        def embed(self, texts, *, query=False):
            assert query or gate.wait(30)
            return super().embed(texts, query=query)

    talk(store, window)
    recall = MemorySearch(store, Slow, now=lambda: NOW)
    try:
        assert recall.embedder(30) is not None
        ids = ask(store, window, "The lighthouse keeper retired.")
        recall.embed_soon()
        hits = recall.search("lighthouse", now=NOW)
        assert hits[0].key.turn_id == ids.user_turn
        assert "meaning" not in hits[0].parts
        assert recall.status()["wanted"] > 0
        gate.set()
        assert recall.settle(30)
        assert recall.status()["wanted"] == 0
        assert recall.search("lighthouse", now=NOW)[0].parts["meaning"] > 0
    finally:
        gate.set()
        recall.close()


def test_deleted_chunks_are_not_found_and_undeleted_ones_are(store, window):
    keys = talk(store, window)
    with recalling(store) as recall:
        assert recall.search("violin Lisbon", now=NOW)
        gone = list(store.deletion_of(keys[1][0]))
        store.delete(gone, now=NOW)
        assert not set(keys_of(recall.search("violin Lisbon lovely city music", now=NOW))) & set(gone)
        store.undelete(gone, now=NOW)
        recall.embed_soon()
        assert recall.settle(30)
        hits = recall.search("violin Lisbon", now=NOW)
    assert hits[0].key == keys[1][0]
    assert {"meaning", "words"} <= set(hits[0].parts)


def test_a_merged_chunk_is_found_under_the_key_that_stays(store, window):
    ids = ask(store, window, "Olives grow here.", "Capers grow there.")
    with recalling(store) as recall:
        assert next(hit.key.chunk_id for hit in recall.search("capers", now=NOW)) == 1
        kept = store.merge(window, recall.search("capers", now=NOW)[0].key, now=NOW)
        hits = recall.search("capers", now=NOW)
    assert hits[0].key == kept
    assert (kept.turn_id, kept.chunk_id) == (ids.user_turn, 0)
    assert all(hit.key.chunk_id == 0 for hit in hits)


def test_what_another_process_writes_is_found(store, window, folder):
    talk(store, window)
    with recalling(store) as recall:
        assert (
            recall.search("walrus", now=NOW) == []
            or "walrus" not in recall.search("walrus", now=NOW)[0].words
        )
        with SqliteStore(folder / "memory.sqlite") as other:
            ids = ask(other, window, "A walrus came to the beach.")
        assert recall.search("walrus", now=NOW)[0].key.turn_id == ids.user_turn
        assert recall.settle(30)  # and it is embedded here, since nobody else does
        assert recall.search("walrus", now=NOW)[0].parts["meaning"] > 0


def test_a_restart_finds_the_same(store, window):
    talk(store, window)
    with recalling(store) as recall:
        before = recall.search("tomato violin greyhound", now=NOW)
    with recalling(store) as recall:
        after = recall.search("tomato violin greyhound", now=NOW)
    assert [hit.key for hit in after] == [hit.key for hit in before]
    assert [hit.similarity for hit in after] == pytest.approx([hit.similarity for hit in before], abs=1e-3)


def test_many_threads_search_while_others_speak(store, window):
    talk(store, window)
    failures = []
    with recalling(store) as recall:

        def search():
            try:
                for _ in range(20):
                    assert recall.search("violin tomato", now=NOW)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        for i in range(20):
            ask(store, window, f"Something new, number {i}.")
            recall.embed_soon()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_memory_that_another_process_cleared_is_searched_as_new(store, window, folder):
    talk(store, window)
    with recalling(store) as recall:
        assert recall.search("violin", now=NOW)
        with SqliteStore(folder / "memory.sqlite") as other:
            other.clear(confirm=True)
            again = other.create_window("again", now=NOW).id
            ids = ask(other, again, "A walrus came to the beach.")
        (hit,) = recall.search("walrus", now=NOW)
        assert hit.key.turn_id == ids.user_turn
        assert recall.settle(30)
        assert (recall.status()["state"], recall.status()["vectors"]) == ("ready", 1)


@pytest.mark.parametrize("moment", ["chunks", "add_vectors"])
def test_a_memory_that_another_process_clears_while_it_is_embedded_is_embedded_as_new(
    store, window, folder, monkeypatch, moment
):
    talk(store, window)
    with recalling(store) as recall:
        step = getattr(store, moment)

        def cleared(*given):
            monkeypatch.undo()
            with SqliteStore(folder / "memory.sqlite") as other:
                other.clear(confirm=True)
            return step(*given)

        monkeypatch.setattr(store, moment, cleared)
        ask(store, window, "Never to be embedded.")
        recall.embed_soon()
        assert recall.settle(30)
        assert recall.status()["sentence"] == ""
        again = store.create_window("again", now=NOW).id
        ids = ask(store, again, "A walrus came to the beach.")
        (hit,) = recall.search("walrus", now=NOW)
        assert hit.key.turn_id == ids.user_turn
        assert recall.settle(30)
        status = recall.status()
        assert (status["state"], status["vectors"], status["wanted"]) == ("ready", 1, 0)
