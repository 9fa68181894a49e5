"""What holds for every embedder."""

import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from halo_weave.engines.base import Embedder
from halo_weave.errors import ModelError
from halo_weave.models import catalogue
from halo_weave.search.llama_embedder import LlamaEmbedder, default_embedder_file
from tests.fakes.hashing_embedder import HashingEmbedder


def minilm(compute: str) -> Embedder:
    try:
        catalogue.ensure(catalogue.DEFAULT_EMBEDDER)
        return LlamaEmbedder(default_embedder_file(), compute=compute)
    except ModelError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"the default embedder is not here: {error}")


KINDS: dict[str, Callable[[], Embedder]] = {
    "hashing": HashingEmbedder,
    "llama": lambda: minilm("llama"),
    "blas": lambda: minilm("blas"),
}


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "hashing"]  # a model


@pytest.fixture(params=["hashing", *SLOW], scope="module")
def embedder(request) -> Iterator[Embedder]:
    made = KINDS[request.param]()
    yield made
    made.close()


TEXTS = [
    "A fox crossed the frozen river.",
    "Rent is due on the 28th.",
    "A fox!",
    "Ein Fuchs läuft über das Eis.",
]


def test_vectors_have_the_dimension_and_length_one(embedder):
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_vector_does_not_depend_on_its_company(embedder):
    together = embedder.embed(TEXTS * 40)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert np.allclose(together[: len(TEXTS)], alone, atol=2e-3)
    assert np.allclose(together[-len(TEXTS) :], alone, atol=2e-3)


def test_texts_that_speak_of_the_same_are_nearer(embedder):
    fox, rent, again, _ = embedder.embed(TEXTS)
    assert fox @ again > fox @ rent


@pytest.mark.parametrize("text", ["", " ", "\x00", "🦊", "\ud83d", "word " * 20_000, "x" * 100_000])
def test_any_text_has_a_vector(embedder, text):
    vectors = embedder.embed([text, "a fox"], query=True)
    assert np.isfinite(vectors).all()
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors[1], embedder.embed(["a fox"], query=True)[0], atol=2e-3)


def test_no_texts_give_no_vectors(embedder):
    assert embedder.embed([]).shape == (0, embedder.dimension)


def test_a_text_beyond_the_limit_loses_its_end(embedder):
    head = "river " * (embedder.max_tokens + 10)
    first, second = embedder.embed([head + "fox", head + "rent " * 50])
    assert np.allclose(first, second, atol=1e-4)


def test_threads_take_turns(embedder):
    alone = embedder.embed(TEXTS)
    wrong = []

    def work():
        if not np.allclose(embedder.embed(TEXTS), alone, atol=2e-3):
            wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
