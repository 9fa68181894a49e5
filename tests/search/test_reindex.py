"""Another embedder: a new generation, built beside the old one."""

import pytest

from halo_weave.errors import BadInput, EngineError
from halo_weave.search import embedding_worker as module
from halo_weave.search.embedding_worker import reindex
from tests.fakes.hashing_embedder import HashingEmbedder
from tests.search.talk import recalling, talk
from tests.store.material import NOW, ask


def states(store) -> dict[str, str]:
    return {one.model: one.state for one in store.generations()}


def test_the_old_vectors_serve_until_the_new_ones_are_complete(store, window, monkeypatch):
    monkeypatch.setattr(module, "REINDEX_BATCH", 3)
    talk(store, window)
    with recalling(store):
        pass
    seen = []

    def progress(done, total):
        seen.append((done, total))
        if done < total:
            assert states(store)["hashing, passages 2"] == "current"
        if 0 < done < total:
            with recalling(store) as old:
                assert old.search("violin", now=NOW)[0].parts["meaning"] > 0

    generation = reindex(store, HashingEmbedder(32, name="new"), now=lambda: NOW, progress=progress)
    assert seen[0] == (0, 10)
    assert seen[-1] == (10, 10)
    assert (generation.state, generation.vectors, generation.wanted) == ("current", 10, 0)
    assert states(store) == {"hashing, passages 2": "retired", "new, passages 2": "current"}
    with recalling(store, lambda: HashingEmbedder(32, name="new")) as recall:
        assert recall.search("violin", now=NOW)[0].parts["meaning"] > 0


def test_it_goes_on_where_it_was_stopped(store, window, monkeypatch):
    monkeypatch.setattr(module, "REINDEX_BATCH", 4)
    talk(store, window)
    with recalling(store):
        pass

    class Failing(HashingEmbedder):
        left = 2

        def embed(self, texts, *, query=False):
            self.left -= 1
            if self.left < 0:
                raise EngineError("out of memory")
            return super().embed(texts, query=query)

    with pytest.raises(EngineError):
        reindex(store, Failing(32, name="new"), now=lambda: NOW)
    half = next(one for one in store.generations() if one.model == "new, passages 2")
    assert (half.state, half.vectors, half.wanted) == ("building", 8, 2)
    with pytest.raises(BadInput, match="halo-weave reindex"):
        store.complete_generation(half.id, now=NOW)
    steps = []
    done = reindex(
        store, HashingEmbedder(32, name="new"), now=lambda: NOW, progress=lambda *step: steps.append(step)
    )
    assert done.id == half.id
    assert done.state == "current"
    assert steps == [(0, 2), (2, 2)]


def test_run_again_with_the_same_embedder_it_adds_only_what_lacks(store, window):
    talk(store, window)
    first = reindex(store, HashingEmbedder(), now=lambda: NOW)
    ask(store, window, "One more thing.")
    steps = []
    second = reindex(store, HashingEmbedder(), now=lambda: NOW, progress=lambda *step: steps.append(step))
    assert (second.id, second.vectors) == (first.id, first.vectors + 1)
    assert steps[-1] == (1, 1)


def test_vectors_of_an_earlier_method_serve_until_they_are_renewed(store, window):
    talk(store, window)
    old = store.begin_generation(
        "hashing", HashingEmbedder().dimension, now=NOW
    )  # as the first method called them
    with recalling(store) as recall:
        status = recall.status()
        assert (status["state"], status["vectors"], status["older"]) == ("ready", 10, True)
        assert "halo-weave reindex" in status["sentence"]
        assert recall.search("violin", now=NOW)[0].parts["meaning"] > 0
    renewed = reindex(store, HashingEmbedder(), now=lambda: NOW)
    assert renewed.id != old.id
    assert (renewed.state, renewed.vectors, renewed.wanted) == ("current", 10, 0)
    assert [one.vectors for one in store.generations() if one.id == old.id] in ([], [0])
    with recalling(store) as recall:
        status = recall.status()
        assert (status["older"], status["sentence"]) == (False, "")
        assert recall.search("violin", now=NOW)[0].parts["meaning"] > 0
