"""Safetensors become a GGUF that says what the model is."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from halo_weave.errors import ModelNotFound, ModelUnusable
from halo_weave.search.bert_encoder import read_tensors
from halo_weave.search.embedder_conversion import convert, read_safetensors

WIDTH, VOCABULARY = 32, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "fox", "##es", "river"]


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), WIDTH),
        "embeddings.position_embeddings.weight": (16, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
        "encoder.layer.0.attention.self.query.weight": (WIDTH, WIDTH),
        "encoder.layer.0.attention.self.query.bias": (WIDTH,),
        "encoder.layer.0.intermediate.dense.weight": (64, WIDTH),
        "pooler.dense.weight": (WIDTH, WIDTH),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / "model.safetensors", tensors())
    config = {
        "model_type": "bert",
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": 16,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    return tmp_path


def test_tensors_keep_their_values_under_the_names_of_llama(published):
    target = convert(published, published / "out" / "m.gguf", name="Fox")
    found = read_tensors(target)
    wanted = tensors()
    words = wanted["embeddings.word_embeddings.weight"]
    assert np.allclose(found["token_embd.weight"], words, atol=2e-3)
    assert np.array_equal(found["blk.0.attn_q.bias"], wanted["encoder.layer.0.attention.self.query.bias"])
    dense = wanted["encoder.layer.0.intermediate.dense.weight"]
    assert np.allclose(found["blk.0.ffn_up.weight"], dense, atol=2e-3)
    assert len(found) == len(wanted) - 1  # the pooler is of no use here


def test_half_precision_halves_matrices_and_leaves_the_rest_exact(published):
    found = read_tensors(convert(published, published / "m.gguf", name="Fox"))
    wanted = tensors()
    assert found["blk.0.attn_q.weight"].dtype == np.float16
    assert np.allclose(
        found["blk.0.attn_q.weight"], wanted["encoder.layer.0.attention.self.query.weight"], atol=2e-3
    )
    assert np.array_equal(found["token_embd_norm.bias"], wanted["embeddings.LayerNorm.bias"])


def test_the_file_says_what_the_model_is(published):
    reader = gguf.GGUFReader(convert(published, published / "m.gguf", name="Fox"))

    def value(key: str):
        return reader.fields[key].contents()

    assert value("general.architecture") == "bert"
    assert value("general.name") == "Fox"
    assert value("bert.pooling_type") == gguf.PoolingType.MEAN
    assert value("bert.attention.causal") is False
    assert (value("bert.embedding_length"), value("bert.context_length")) == (WIDTH, 16)
    assert value("tokenizer.ggml.tokens")[6:] == ["\u2581fox", "es", "\u2581river"]


def test_nothing_half_done_is_left_under_the_name(published):
    (published / "vocab.txt").write_text("fox\n")
    with pytest.raises(ModelUnusable, match=r"vocab\.txt has 1 entries"):
        convert(published, published / "m.gguf", name="Fox")
    assert not (published / "m.gguf").exists()


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "vocab.txt"])
def test_what_is_missing_is_named(published, missing):
    (published / missing).unlink()
    with pytest.raises(ModelNotFound, match=missing):
        convert(published, published / "m.gguf", name="Fox")


@pytest.mark.parametrize("keep", [0, 5, 100, 2000])
def test_a_safetensors_file_that_is_cut_off_is_refused(published, keep):
    path = published / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelUnusable, match=r"safetensors|cut off"):
        read_safetensors(path)
