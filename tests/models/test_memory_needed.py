"""How much memory a model takes, and which default that makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halo_weave.errors import ModelNotFound
from halo_weave.llama import catalogue
from halo_weave.llama.catalogue import CHAT, CODER_05B, CODER_15B, default_model, ensure_default, recommended
from halo_weave.llama.footprint import cache_bytes, footprint, machine_memory
from halo_weave.llama.header import Header

GB = 1_000_000_000


def header(**values: int) -> Header:
    named = {f"x.{key.replace('__', '.')}": value for key, value in values.items()}
    return Header("x", named, "", 0)


QWEN = header(
    block_count=28,
    context_length=32_768,
    embedding_length=1536,
    attention__head_count=12,
    attention__head_count_kv=2,
)


def test_the_cache_is_counted_from_the_header() -> None:
    assert cache_bytes(QWEN) == CODER_15B.cache_bytes == 28_672
    assert footprint(QWEN, 1000).cache == 8192 * 28_672
    assert footprint(QWEN, 1000, 100_000).cache == 32_768 * 28_672, "no more than the model was trained for"


def test_keys_in_fewer_bits_take_less_and_values_do_not() -> None:
    assert cache_bytes(QWEN, "q8_0") == 28 * 2 * (128 * 34 // 32 + 256)
    assert cache_bytes(QWEN, "f32") == 2 * cache_bytes(QWEN, "bf16")


def test_layers_without_attention_take_no_cache() -> None:
    mixed = header(block_count=4, embedding_length=64, attention__head_count=4, attention__head_count_kv=4)
    lists = {"x.attention.head_count_kv": (0, 2, 0, 2)}
    assert cache_bytes(replace(mixed, lists=lists)) == 2 * 2 * (16 + 16) * 2
    assert cache_bytes(header(block_count=2, embedding_length=8)) == 0


def test_this_machine_has_memory() -> None:
    assert 100_000_000 < machine_memory() < 1 << 50


@pytest.mark.parametrize(
    ("memory", "entry"),
    [(64 * GB, CODER_15B), (4 * GB, CODER_15B), (2 * GB, CODER_05B), (1 * GB, CHAT), (0, CHAT)],
)
def test_the_default_is_the_largest_that_fits_and_says_how_to_choose(memory: int, entry) -> None:
    chosen, sentence = default_model(memory)
    assert chosen is entry
    assert entry.title in sentence
    assert "--model" in sentence


def test_a_default_that_cannot_be_had_gives_way_to_the_next_with_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensure(entry, progress):
        if entry is not CHAT:
            raise ModelNotFound(f"{entry.title} could not be pulled.")
        return folder / "smollm2"

    monkeypatch.setattr(catalogue, "ensure", ensure)
    path, sentence = ensure_default(64 * GB)
    assert path == folder / "smollm2"
    assert sentence == (
        "For now the model is SmolLM2 135M Instruct. Qwen2.5 Coder 1.5B Instruct could not be pulled."
    )


def test_without_any_the_first_reason_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure(entry, progress):
        raise ModelNotFound(f"no {entry.name}")

    monkeypatch.setattr(catalogue, "ensure", ensure)
    with pytest.raises(ModelNotFound, match=r"no qwen2\.5-coder-1\.5b"):
        ensure_default(64 * GB)


def test_recommendations_grow_with_the_memory() -> None:
    assert recommended(2 * GB) == ()
    assert all(one.startswith("hf:") for size in catalogue.RECOMMENDED for one in recommended(size * GB))
    assert recommended(16 * GB) != recommended(64 * GB)
