"""Model files that cannot be used are told apart before llama.cpp sees them."""

from __future__ import annotations

import contextlib
import math
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.errors import ModelNotFound, ModelUnusable
from halo_weave.models.gguf_header import read_header
from halo_weave.models.inventory import human_name
from halo_weave.models.memory_estimate import estimate_memory


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
    assert not one.is_embedder
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


# Files that were made to do harm


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ARCHITECTURE = pair("general.architecture", 8, text("llama"))


def hostile(tmp_path: Path, *pairs: bytes, tensors: bytes = b"", count: int = 0) -> Path:
    path = tmp_path / "hostile.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, count, len(pairs) + 1)
    path.write_bytes(head + ARCHITECTURE + b"".join(pairs) + tensors + bytes(4096))
    return path


@pytest.mark.parametrize("depth", [1, 100, 5000])
def test_nested_arrays_are_refused(tmp_path: Path, depth: int) -> None:
    nested = struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQB", 0, 1, 1)
    with pytest.raises(ModelUnusable, match="truncated or damaged"):
        read_header(hostile(tmp_path, pair("x", 9, nested)))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (8, text("32")),
        (6, struct.pack("<f", math.nan)),
        (6, struct.pack("<f", 32.0)),
        (4, struct.pack("<I", 0)),
        (4, struct.pack("<I", 33)),
        (4, struct.pack("<I", 1 << 31)),
        (5, struct.pack("<i", -32)),
        (7, b"\x01"),
        (9, struct.pack("<IQI", 4, 1, 32)),
    ],
)
def test_an_alignment_that_is_none_is_refused(tmp_path: Path, kind: int, value: bytes) -> None:
    path = hostile(tmp_path, pair("general.alignment", kind, value))
    with pytest.raises(ModelUnusable, match="alignment"):
        read_header(path)


@pytest.mark.parametrize("dimensions", [5, 250_000, (1 << 32) - 1])
def test_a_tensor_of_many_dimensions_is_refused_at_once(tmp_path: Path, dimensions: int) -> None:
    tensor = text("t") + struct.pack("<I", dimensions) + b"\xff" * min(8 * dimensions, 2_000_000)
    with pytest.raises(ModelUnusable, match="dimensions"):
        read_header(hostile(tmp_path, tensors=tensor, count=1))


def test_a_tensor_of_more_elements_than_there_are_bytes_is_refused(tmp_path: Path) -> None:
    tensor = text("t") + struct.pack("<I4QIQ", 4, *[(1 << 64) - 1] * 4, 0, 0)
    with pytest.raises(ModelUnusable, match="truncated"):
        read_header(hostile(tmp_path, tensors=tensor, count=1))


@pytest.mark.parametrize(
    "template", ["{% nonsense %}", "{{ (9**9)**(9**9) }}", "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}"]
)
def test_a_template_is_left_to_the_confined_process_whatever_it_is(tmp_path: Path, template: str) -> None:
    header = read_header(hostile(tmp_path, pair("tokenizer.chat_template", 8, text(template))))
    assert header.values["tokenizer.chat_template"] == template


@pytest.mark.parametrize(
    ("key", "kind", "value", "sentence"),
    [
        ("llama.block_count", 4, struct.pack("<I", 0), "block_count"),
        ("llama.block_count", 4, struct.pack("<I", 1 << 31), "block_count"),
        ("llama.block_count", 4, struct.pack("<I", 513), "block_count"),
        ("llama.block_count", 8, text("two"), "block_count"),
        ("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", -1), "epsilon"),
        ("llama.embedding_length", 4, struct.pack("<I", 0), "embedding_length"),
        ("llama.attention.head_count", 9, struct.pack("<IQII", 4, 2, 4, 1 << 31), "head_count"),
        ("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", math.nan), "epsilon"),
        ("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", -1e-5), "epsilon"),
        ("llama.rope.freq_base", 6, struct.pack("<f", math.inf), "freq_base"),
        ("tokenizer.ggml.model", 8, text("no_vocab"), "no vocabulary"),
        ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("b") + text("a"), "twice"),
        ("tokenizer.ggml.token_type", 9, struct.pack("<IQI", 4, 1, 1), "token_type does not have"),
    ],
)
def test_values_that_llama_cpp_aborts_at_are_refused(
    tmp_path: Path, key: str, kind: int, value: bytes, sentence: str
) -> None:
    with pytest.raises(ModelUnusable, match=sentence):
        LlamaEngine(hostile(tmp_path, pair(key, kind, value)))


NUMBERS = st.integers(0, (1 << 64) - 1).map(lambda value: struct.pack("<Q", value))
KINDS = st.integers(0, 14).map(lambda value: struct.pack("<I", value))
PIECES = st.one_of(
    NUMBERS, KINDS, st.binary(max_size=24), st.text(max_size=8).map(text), st.just(struct.pack("<Q", 3))
)


@settings(max_examples=150)
@given(pieces=st.lists(PIECES, max_size=30), tensors=st.integers(0, 5), pairs=st.integers(0, 6))
def test_any_bytes_are_a_header_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], tensors: int, pairs: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + b"".join(pieces))
    with contextlib.suppress(ModelUnusable):
        read_header(path)


@settings(max_examples=150)
@given(data=st.data())
def test_a_good_file_with_some_bytes_changed_is_a_header_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    content = bytearray(
        write(folder / "good.gguf", "llama", {"block_count": 2, "attention.causal": True}).read_bytes()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(content) - 9))
        content[at : at + 8] = data.draw(st.one_of(st.binary(min_size=8, max_size=8), NUMBERS))
    (folder / "x.gguf").write_bytes(content)
    with contextlib.suppress(ModelUnusable):
        header = read_header(folder / "x.gguf")
        human_name(folder / "x.gguf", header)
        estimate_memory(header, header.size)
