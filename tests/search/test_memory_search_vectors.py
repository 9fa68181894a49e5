"""Where vectors come from: without an embedder, from another one, from the store's own index, and once for each question."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from halo_weave.errors import EngineError, ModelUnusable
from halo_weave.search import memory_search as module
from halo_weave.search.memory_search import MemorySearch
from halo_weave.search.ranking import BASELINE_SENTENCES
from halo_weave.search.vector_index import VectorIndex
from halo_weave.store.sqlite import SqliteStore
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import recalling, talk
from tests.store.material import NOW, ask


def test_words_alone_serve_when_the_embedder_fails_to_load_and_the_status_says_why(store, window):
    def broken():
        raise ModelUnusable("x.gguf is damaged.")

    keys = talk(store, window)
    with recalling(store, broken) as recall:
        assert recall.search("violin", now=NOW)[0].key == keys[1][0]
        status = recall.status()
    assert status["state"] == "off"
    assert "x.gguf is damaged" in status["sentence"]
    assert "by words only" in status["sentence"]


def test_an_embedder_that_fails_in_an_unforeseen_way_while_it_opens_keeps_nobody_waiting(store, window):
    def broken():
        raise ValueError("bad JSON beside the model")

    keys = talk(store, window)
    with recalling(store, broken) as recall:
        assert recall.embedder(timeout=None) is None
        assert recall.search("violin", now=NOW)[0].key == keys[1][0]
        status = recall.status()
    assert status["state"] == "off"
    assert status["sentence"] == (
        "The embedder could not be opened (ValueError: bad JSON beside the model). Search goes by words only."
    )


def test_after_an_unforeseen_failure_the_rest_is_embedded_when_more_is_said(store, window):
    class Once(HashingEmbedder):
        fails = True

        def embed(self, texts, *, query=False):
            if self.fails and not query:
                raise IndexError("list index out of range")
            return super().embed(texts, query=query)

    talk(store, window)
    embedder = Once()
    with recalling(store, lambda: embedder) as recall:
        status = recall.status()
        assert (status["state"], status["vectors"], status["wanted"]) == ("ready", 0, 10)
        assert "Embedding failed (IndexError: list index out of range)." in status["sentence"]
        embedder.fails = False
        ask(store, window, "A walrus came to the beach.")
        recall.embed_soon()
        assert recall.settle(30)
        status = recall.status()
        assert (status["sentence"], status["vectors"], status["wanted"]) == ("", 11, 0)


def test_words_serve_a_question_that_cannot_be_embedded(store, window):
    class Failing(HashingEmbedder):
        def embed(self, texts, *, query=False):
            if query:
                raise EngineError("out of memory.")
            return super().embed(texts)

    keys = talk(store, window)
    with recalling(store, Failing) as recall:
        hits = recall.search("violin", now=NOW)
        assert hits[0].key == keys[1][0]
        assert "meaning" not in hits[0].parts
        assert "out of memory" in recall.status()["sentence"]


def test_vectors_of_another_embedder_are_never_compared(store, window):
    keys = talk(store, window)
    with recalling(store):
        pass
    with recalling(store, lambda: HashingEmbedder(32, name="other")) as recall:
        hits = recall.search("violin", now=NOW)
        assert hits[0].key == keys[1][0]
        assert "meaning" not in hits[0].parts
        assert "halo-weave reindex" in recall.status()["sentence"]


def test_a_memory_that_is_only_read_is_searched_and_not_embedded(store, window, folder):
    talk(store, window)
    with SqliteStore(folder / "memory.sqlite", read_only=True) as reader:
        with recalling(reader, writes=False) as recall:
            assert recall.search("violin", now=NOW)
            assert recall.status()["state"] == "off"
        with recalling(store):
            pass
        with recalling(reader, writes=False) as recall:
            assert recall.search("violin", now=NOW)[0].parts["meaning"] > 0


class SearchingStore:
    """A store with a vector index of its own, as a database may have it: here it compares all."""

    def __init__(self, store):
        self._store, self.asked = store, []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def vectors(self, generation):
        raise AssertionError("All vectors were loaded, though the store searches them itself.")

    def vector_search(self, generation):
        def nearest(vector, *, limit, window=None, among=None):
            self.asked.append((limit, window))
            index = VectorIndex(len(vector))
            for numbers, vectors in self._store.vectors(generation):
                index.put(numbers, vectors)
            found = index.nearest(vector, 10_000)
            windows = {place.number: place.window for place in self._store.chunk_places()}
            found = np.array([n for n in found.tolist() if window in (None, windows[n])], np.int64)[:limit]
            return found, np.zeros(len(found), np.float32)

        return SimpleNamespace(nearest=nearest)


@pytest.mark.parametrize("shortlist", [400, 2])
def test_a_store_that_searches_vectors_itself_gives_the_same_hits_and_none_are_loaded(
    store, window, shortlist, monkeypatch
):
    monkeypatch.setattr(module, "SHORTLIST", shortlist)
    talk(store, window)
    other = store.create_window("second", now=NOW).id
    talk(store, other, [("My brother plays the cello.", "Where does he play?")])
    searching = SearchingStore(store)
    for within in (None, window):
        with recalling(store) as recall:
            expected = recall.search("Who plays the violin in Lisbon?", now=NOW, window=within)
        with recalling(searching) as recall:
            found = recall.search("Who plays the violin in Lisbon?", now=NOW, window=within)
            assert recall.status()["bytes"] == 0
        assert found == expected
        assert found
    assert searching.asked == ([(2, None), (2, window)] if shortlist == 2 else [])


def test_what_is_said_later_is_found_through_the_stores_own_index(store, window):
    talk(store, window)
    with recalling(SearchingStore(store)) as recall:
        recall.search("violin", now=NOW)
        ids = ask(store, window, "My cousin repairs accordions in Ghent.")
        recall.embed_soon()
        assert recall.settle(30)
        hits = recall.search("accordions", now=NOW)
    assert hits[0].key.turn_id == ids.user_turn
    assert hits[0].parts["meaning"] > 0


class CountingEmbedder(HashingEmbedder):
    questions = 0

    def embed(self, texts, *, query=False):
        self.questions += query and texts != BASELINE_SENTENCES
        return super().embed(texts, query=query)


def test_a_question_is_embedded_once_for_a_preview_and_for_the_turn_after_it(store, window):
    talk(store, window)
    embedder = CountingEmbedder()
    with recalling(store, lambda: embedder) as recall:
        before = recall.search("Which instrument does Ada play?", now=NOW)
        recall.prefetch_query("Which instrument does Ada play?")
        assert recall.search("Which instrument does Ada play?", now=NOW) == before
        assert embedder.questions == 1
        recall.prefetch_query("Where is the rent?")
        assert recall.search("Where is the rent?", now=NOW)
        assert embedder.questions == 2


def test_what_was_asked_before_the_embedder_was_there_is_embedded_when_it_is_asked_again(store, window):
    talk(store, window)
    opened, embedder = threading.Event(), CountingEmbedder()

    def open_late():
        assert opened.wait(30)
        return embedder

    recall = MemorySearch(store, open_late, now=lambda: NOW)
    try:
        assert all("meaning" not in hit.parts for hit in recall.search("the violin of Ada", now=NOW))
        opened.set()
        assert recall.settle(30)
        assert any("meaning" in hit.parts for hit in recall.search("the violin of Ada", now=NOW))
    finally:
        recall.close()
