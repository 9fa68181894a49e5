"""Tiny reasoning models that recite a thought and an answer, with marks and with channels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.reciting import write_reciting
from tests.engines.templates.samples import CHANNELS, OPENS_THOUGHT, THINKS

REAL = (
    Path(__file__).parents[3] / "shared" / "data" / "templates"
)  # of published models, where they are at hand
THOUGHT = ["The", " keeper", " polishes", " his", " lantern", "."]
ANSWER = ["Ahoy", ",", " friend", "!"]
MARKED = ["<think>", "\nSo:", *THOUGHT, "</think>", "\n\n", *ANSWER]
HARMONY = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>"]
FINAL = "<|channel|>final<|message|>"
# By name: the template, the reply, how the generation prompt ends, control tokens, the effort to choose.
THINKERS = {
    "marks": (THINKS, MARKED, "assistant\n", ["<|im_start|>", "<|im_end|>"], None),
    "opened by the prompt": (OPENS_THOUGHT, MARKED[2:], "<think>\n", ["<|User|>", "<|Assistant|>", "</s>"], None),
    "channels": (
        CHANNELS,
        ["<|channel|>", "analysis", "<|message|>", *THOUGHT, "<|end|>", "<|start|>", "assistant", FINAL, *ANSWER],
        "assistant",
        HARMONY,
        None,
    ),
    "DeepSeek-R1": (
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
        MARKED[2:],
        "<think>\n",
        ["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"],
        None,
    ),
    "Gemma 4": (
        "google-gemma-4-31B-it-interleaved.jinja",
        ["<|channel>", "thought\n", *THOUGHT, "<channel|>", *ANSWER],
        "model\n",
        ["<|channel>", "<channel|>", "<|turn>", "<turn|>"],
        "high",
    ),
}  # fmt: skip


def thinker(folder: Path, name: str) -> tuple[Path, str | None]:
    """The file of a model, and the effort at which it thinks."""
    template, reply, after, controls, effort = THINKERS[name]
    if template.endswith(".jinja"):
        if not (REAL / template).exists():
            pytest.skip(f"{template} is not here: it would lie in {REAL}")
        template = (REAL / template).read_text()
    path = folder / f"{name.replace(' ', '-')}-Thinker-1B.gguf"
    return write_reciting(path, template, reply, after=after, controls=controls), effort
