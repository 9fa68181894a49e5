"""The name of a model as people say it: "SmolLM2 135M Instruct"."""

from __future__ import annotations

import re
from pathlib import Path

from halo_weave.llama import catalogue
from halo_weave.llama.header import Header
from halo_weave.llama.hub import QUANT, SHARD

SIZE = re.compile(r"(?i)(\d+x)?e?\d+(\.\d+)?[bmk](-a\d+(\.\d+)?b)?")
CACHED = re.compile(r"(?i)[-_]gguf_")  # llama.cpp's cache puts the repository before the name of the file
NOISE = {"gguf", "ggml", "awq", "gptq", "imatrix", "i1", "hf", "model", "ud", "bnb", "4bit", "8bit", "mlx"}
SPELLED = {
    "ai": "AI",
    "deepseek": "DeepSeek",
    "gpt": "GPT",
    "glm": "GLM",
    "it": "it",
    "lfm2": "LFM2",
    "minilm": "MiniLM",
    "olmo": "OLMo",
    "oss": "OSS",
    "qwq": "QwQ",
    "smollm": "SmolLM",
    "smollm2": "SmolLM2",
    "smollm3": "SmolLM3",
    "tinyllama": "TinyLlama",
    "vl": "VL",
}


def human_name(path: Path, header: Header | None = None) -> str:
    """Out of the catalogue if the file is one of it, else from the file's name, else from its header.

    The name in a header is often that of a training run; a file that tells a size was named for people.
    """
    for entry in catalogue.ENTRIES:
        if path.name == entry.files[0].name:
            return entry.title
    own = CACHED.split(path.name.removesuffix(".gguf"))[-1]
    from_file = _spelled(own, SHARD.search(path.name) is not None)
    values = header.values if header else {}
    told = str(values.get("general.name") or "")
    if not told:
        told = " ".join(
            str(values.get(f"general.{key}") or "") for key in ("basename", "size_label", "finetune")
        )
    if any(SIZE.fullmatch(word) for word in from_file.split()) or not told.strip():
        return from_file or path.name
    return _spelled(told) or from_file or path.name


def _spelled(text: str, shard: bool = False) -> str:
    """Words with capitals, without what tells how the weights are stored."""
    if shard:
        text = SHARD.sub("", text + ".gguf")
    for quant in QUANT.findall(text):
        text = re.sub(rf"(?:^|[-._/]){re.escape(quant)}(?=[-._/]|$)", "", text)
    words = [
        word
        for word in re.split(r"[\s_/-]+|\.(?!\d)", text[:200])
        if word and word.lower() not in NOISE and word.isprintable()
    ]
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    if word.lower() in SPELLED:
        return SPELLED[word.lower()]
    if SIZE.fullmatch(word):
        return word.upper().replace("X", "x")
    return word[0].upper() + word[1:] if word.islower() or not word.isalpha() else word
