"""MiniLM for real: the vectors that it is known for, and files that are not embedders."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from halo_weave.errors import EngineError, ModelNotFound, ModelUnusable
from halo_weave.search import llama_embedder
from halo_weave.search.llama_embedder import LlamaEmbedder, default_embedder_file, open_embedder
from tests.contract.test_embedders import minilm

pytestmark = pytest.mark.model

SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
]
# The similarities that sentence-transformers gives for these, to four places.
KNOWN = np.array([[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]])


@pytest.mark.parametrize("compute", ["llama", "blas"])
def test_similarities_are_those_of_sentence_transformers(compute):
    embedder = minilm(compute)
    vectors = embedder.embed(SENTENCES)
    embedder.close()
    assert np.allclose(vectors @ vectors.T, KNOWN, atol=2e-3)


def test_llama_and_blas_agree():
    texts = [
        f"{sentence} Number {i}, {'and so on, ' * (i % 40)}the end."
        for i in range(0, 60, 6)
        for sentence in SENTENCES
    ]
    first, second = minilm("llama"), minilm("blas")
    likeness = (first.embed(texts) * second.embed(texts)).sum(axis=1)
    first.close()
    second.close()
    assert likeness.min() > 0.9999


def test_a_backlog_goes_through_blas_and_a_question_through_llama(monkeypatch):
    used = []
    monkeypatch.setattr(
        llama_embedder.LlamaEncoder, "encode", lambda self, runs: used.append("llama") or blank(runs)
    )
    monkeypatch.setattr(
        llama_embedder.BertEncoder, "encode", lambda self, runs: used.append("blas") or blank(runs)
    )

    def blank(runs):
        return np.ones((len(runs), 384), np.float32)

    embedder = minilm("auto")
    embedder.embed(["a question"], query=True)
    embedder.embed(["many words of a long talk"] * 2000)
    embedder.close()
    assert used[0] == "llama"
    assert set(used[1:]) == {"blas"}


def test_the_standard_embedder_has_a_name_that_tells_its_file():
    minilm("llama").close()
    with open_embedder() as embedder:
        assert embedder.name.startswith("all-MiniLM-L6-v2 ")
        assert (embedder.dimension, embedder.max_tokens) == (384, 256)


def test_a_closed_embedder_says_so():
    embedder = minilm("llama")
    embedder.close()
    embedder.close()
    with pytest.raises(EngineError, match="closed"):
        embedder.embed(["fox"])


def test_a_chat_model_is_refused_as_an_embedder(model_file):
    with pytest.raises(ModelUnusable, match="chat model"):
        LlamaEmbedder(model_file)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path):
    minilm("llama").close()
    whole = default_embedder_file().read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelUnusable, match="truncated"):
        LlamaEmbedder(tmp_path / "cut.gguf")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ModelNotFound, match=r"none\.gguf"):
        LlamaEmbedder(tmp_path / "none.gguf")


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path):
    (tmp_path / "x.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelUnusable, match="GGUF"):
        LlamaEmbedder(tmp_path / "x.gguf")


def test_a_model_that_llama_cannot_load_is_told_in_a_sentence(tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "bert")
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelUnusable):
        LlamaEmbedder(tmp_path / "x.gguf")
