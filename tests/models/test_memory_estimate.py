"""How much memory a model takes, and which default that makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halo_weave.errors import ModelNotFound
from halo_weave.models import catalogue
from halo_weave.models.catalogue import CODER_15B, SMOLLM2_135M, default_model, ensure_default, recommended
from halo_weave.models.gguf_header import GgufHeader
from halo_weave.models.hub import HubUnreachable
from halo_weave.models.memory_estimate import estimate_memory, kv_bytes_per_token, machine_memory

GB = 1_000_000_000


def header(**values: int) -> GgufHeader:
    named = {f"x.{key.replace('__', '.')}": value for key, value in values.items()}
    return GgufHeader("x", named, "", 0)


QWEN = header(
    block_count=28,
    context_length=32_768,
    embedding_length=1536,
    attention__head_count=12,
    attention__head_count_kv=2,
)


def test_the_cache_is_counted_from_the_header() -> None:
    assert kv_bytes_per_token(QWEN) == CODER_15B.cache_bytes == 28_672
    assert estimate_memory(QWEN, 1000).cache == 8192 * 28_672
    assert estimate_memory(QWEN, 1000, 100_000).cache == 32_768 * 28_672, (
        "no more than the model was trained for"
    )


def test_keys_in_fewer_bits_take_less_and_values_do_not() -> None:
    assert kv_bytes_per_token(QWEN, "q8_0") == 28 * 2 * (128 * 34 // 32 + 256)
    assert kv_bytes_per_token(QWEN, "f32") == 2 * kv_bytes_per_token(QWEN, "bf16")


def test_layers_without_attention_take_no_cache() -> None:
    mixed = header(block_count=4, embedding_length=64, attention__head_count=4, attention__head_count_kv=4)
    lists = {"x.attention.head_count_kv": (0, 2, 0, 2)}
    assert kv_bytes_per_token(replace(mixed, lists=lists)) == 2 * 2 * (16 + 16) * 2
    assert kv_bytes_per_token(header(block_count=2, embedding_length=8)) == 0


def test_this_machine_has_memory() -> None:
    assert 100_000_000 < machine_memory() < 1 << 50


@pytest.mark.parametrize(
    ("memory", "cores", "entry"),
    [
        (64 * GB, 8, catalogue.QWEN_4B),
        (64 * GB, 2, catalogue.QWEN_15B),  # a larger one would be too slow to talk with
        (4 * GB, 8, catalogue.QWEN_15B),
        (2 * GB, 8, catalogue.QWEN_05B),
        (1 * GB, 8, SMOLLM2_135M),
        (0, 1, SMOLLM2_135M),
    ],
)
def test_the_default_is_the_largest_that_suits_the_machine_and_says_how_to_choose(
    folder: Path, memory: int, cores: int, entry
) -> None:
    chosen, sentence = default_model(memory, cores)
    assert chosen is entry
    assert entry.title in sentence
    assert "--model" in sentence


@pytest.mark.parametrize("general", [True, False])
def test_what_lies_here_goes_before_a_download(folder: Path, present, general: bool) -> None:
    present(CODER_15B, *([catalogue.QWEN_15B] if general else []))
    chosen, sentence = default_model(64 * GB, 8)
    assert chosen is (catalogue.QWEN_15B if general else CODER_15B)
    assert ("made for code" in sentence) is not general
    assert ("halo-weave pull default" in sentence) is not general
    assert ensure_default(64 * GB, 8) == (chosen.path, "")


def test_a_small_model_that_lies_here_for_other_reasons_is_not_the_default(folder: Path, present) -> None:
    present(SMOLLM2_135M)
    assert default_model(64 * GB, 8)[0] is catalogue.QWEN_4B


@pytest.fixture
def present(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """These models lie in the folder, as far as one can see without reading them."""

    def lie(*entries) -> None:
        known = {entry.name for entry in entries}
        monkeypatch.setattr(catalogue.CatalogueEntry, "present", property(lambda one: one.name in known))

    return lie


def unreachable(entry, *_: object, **__: object):
    raise HubUnreachable(f"{entry.title} could not be pulled.")


def test_a_default_that_cannot_be_had_gives_way_to_the_next_with_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensure(entry, progress, retries=None, *, hub=True):
        assert not hub, "the hub is asked once"
        if entry is not SMOLLM2_135M:
            raise ModelNotFound(f"{entry.title} could not be pulled.")
        return folder / "smollm2"

    monkeypatch.setattr(catalogue, "pull", unreachable)
    monkeypatch.setattr(catalogue, "ensure", ensure)
    path, sentence = ensure_default(64 * GB, 8)
    assert path == folder / "smollm2"
    assert sentence == (
        "The model hub could not be reached, so Halo Weave uses SmolLM2 135M Instruct. "
        "When the hub can be reached: halo-weave pull default"
    )


def test_without_any_the_first_reason_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ensure(entry, progress, retries=None, *, hub=True):
        raise ModelNotFound(f"no {entry.name}")

    monkeypatch.setattr(catalogue, "pull", unreachable)
    monkeypatch.setattr(catalogue, "ensure", ensure)
    with pytest.raises(ModelNotFound, match=r"Qwen3 4B Instruct 2507 could not be pulled"):
        ensure_default(64 * GB, 8)


def test_recommendations_are_what_fits_the_largest_first() -> None:
    assert recommended(1 * GB) == ()
    assert all(one.name.startswith("hf:") for one in catalogue.RECOMMENDED)
    titles = [one.title for one in recommended(24 * GB)]
    assert titles[:2] == ["gpt-oss 20B", "Qwen3 14B"]
    assert len(recommended(16 * GB)) < len(titles) < len(recommended(128 * GB)) == len(catalogue.RECOMMENDED)
