"""Models have the names that people say."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_weave.models.gguf_header import GgufHeader
from halo_weave.models.inventory import human_name


def header(**general: str) -> GgufHeader:
    return GgufHeader("llama", {f"general.{key}": value for key, value in general.items()}, "", 0)


@pytest.mark.parametrize(
    ("file", "told", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2 135M Instruct"),
        (
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            "Qwen2.5 Coder 1.5B Instruct GGUF",
            "Qwen2.5 Coder 1.5B Instruct",
        ),
        ("smollm2-360m-instruct-q8_0.gguf", "Smollm2 360M 8k Lc100K Mix1 Ep2", "SmolLM2 360M Instruct"),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Models Meta Llama", "Meta Llama 3.1 8B Instruct"),
        ("google_gemma-3-4b-it-IQ3_XXS.gguf", "", "Google Gemma 3 4B it"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL-00001-of-00002.gguf", "", "Qwen3 30B A3B"),
        ("DeepSeek-R1-Distill-Qwen-7B-Q4_K_M.gguf", "", "DeepSeek R1 Distill Qwen 7B"),
        ("ggml-model-q4_k_m.gguf", "Mistral 7B Instruct v0.3", "Mistral 7B Instruct V0.3"),
        ("model.gguf", "qwen3-4b-gguf", "Qwen3 4B"),
        ("sha256-0123", "Phi 3 Mini 4K Instruct", "Phi 3 Mini 4K Instruct"),
        ("ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M.gguf", "", "Gemma 3 1B it"),
        ("model.gguf", "", "model.gguf"),
    ],
)
def test_the_name_is_the_one_people_say(file: str, told: str, name: str) -> None:
    assert human_name(Path("/models") / file, header(name=told)) == name


def test_a_header_without_a_name_is_read_by_its_parts() -> None:
    parts = header(basename="Qwen2.5-Coder", size_label="0.5B", finetune="Instruct-AWQ")
    assert human_name(Path("model.gguf"), parts) == "Qwen2.5 Coder 0.5B Instruct"
