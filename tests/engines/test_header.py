"""Model files that cannot be used are told apart before llama.cpp sees them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from halo_weave.engines.llama import LlamaEngine
from halo_weave.errors import ModelNotFound, ModelUnusable
from halo_weave.llama.header import read_header


def write(path: Path, architecture: str, values: dict[str, object] | None = None, tokens: int = 8) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    for key, value in (values or {}).items():
        if isinstance(value, bool):
            writer.add_bool(f"{architecture}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{architecture}.{key}", value)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{i}" for i in range(tokens)])
    writer.add_tensor("token_embd.weight", np.zeros((8, 8), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_good_header_tells_architecture_and_tokenizer(tmp_path: Path) -> None:
    one = read_header(write(tmp_path / "a.gguf", "llama"))
    assert one.architecture == "llama"
    assert one.get("context_length") == 64
    assert not one.embeds
    assert one.tokenizer == read_header(write(tmp_path / "b.gguf", "qwen2")).tokenizer
    assert one.tokenizer != read_header(write(tmp_path / "c.gguf", "llama", tokens=9)).tokenizer


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="halo-weave pull"):
        LlamaEngine(tmp_path / "none.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"\x00" * 5000, b"PK\x03\x04 a zip, perhaps"])
def test_what_is_not_a_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelUnusable, match="not a GGUF file"):
        LlamaEngine(path)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.99])
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path, share: float) -> None:
    whole = write(tmp_path / "a.gguf", "llama").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelUnusable, match="truncated or damaged"):
        LlamaEngine(path)


def test_random_bytes_after_the_magic_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "x.gguf"
    for _ in range(50):
        path.write_bytes(b"GGUF\x03\x00\x00\x00" + rng.bytes(400))
        with pytest.raises(ModelUnusable):
            LlamaEngine(path)


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF\x00\x00\x00\x03" + bytes(100))
    with pytest.raises(ModelUnusable, match="version"):
        LlamaEngine(path)


@pytest.mark.parametrize(
    ("architecture", "values"),
    [
        ("bert", {}),
        ("nomic-bert", {}),
        ("qwen3", {"pooling_type": 3}),
        ("llama", {"attention.causal": False}),
    ],
)
def test_an_embedding_model_is_sent_to_where_it_belongs(
    tmp_path: Path, architecture: str, values: dict[str, object]
) -> None:
    path = write(tmp_path / "e.gguf", architecture, values)
    with pytest.raises(ModelUnusable, match=r"embedding model.*--embedder"):
        LlamaEngine(path)


@pytest.mark.parametrize("architecture", ["llama", "mamba", "no-such-architecture", "clip"])
def test_what_llama_cpp_cannot_load_ends_in_a_sentence_with_its_reason(
    tmp_path: Path, architecture: str
) -> None:
    path = write(tmp_path / "u.gguf", architecture)
    with pytest.raises(ModelUnusable, match=f"cannot load .*{architecture}.*llama.cpp says"):
        LlamaEngine(path)
