"""Any GGUF: what a model's cache and template allow is found out, said, and done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, Sampling
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.engines.templates.chat_template import CHATML
from halo_weave.engines.templates.messages import ChatMessage
from tests.contract.talks import Talk
from tests.engines.tiny import write

SIX = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture(scope="module", params=["llama", "gemma2", "mamba"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaEngine]:
    with LlamaEngine(write(tmp_path_factory.mktemp("models") / "tiny.gguf", request.param)) as engine:
        yield engine


def test_what_the_cache_allows_is_said(engine: LlamaEngine) -> None:
    abilities = engine.info.abilities
    assert abilities.cuts == (engine.info.architecture != "mamba")
    assert engine.info.wide_layers == ((1,) if engine.info.architecture == "gemma2" else ())
    assert abilities.attention == (engine.info.architecture != "mamba")
    assert engine.info.name == f"Tiny {engine.info.architecture.capitalize()}"


def test_a_model_without_a_template_gets_chatml_and_says_so(engine: LlamaEngine) -> None:
    assert engine.info.template == "chatml"
    assert engine.info.template_note == "The model file has no chat template, so ChatML is used."
    header, _, footer, _ = (piece.text for piece in engine.chat([ChatMessage("user", "a")]).pieces)
    assert (header, footer) == ("<|im_start|>user\n", "<|im_end|>\n")
    assert engine.tokenize(header, special=True).ids[0] == 256


def test_a_model_with_a_template_uses_it(tmp_path: Path) -> None:
    shout = CHATML.replace("message['role'] +", "message['role'] | upper +")
    with LlamaEngine(write(tmp_path / "t.gguf", "llama", template=shout)) as engine:
        assert engine.info.template == "model"
        assert engine.chat([ChatMessage("user", "a")]).pieces[0].text == "<|im_start|>USER\n"
        assert engine.info.template_note == ""
    with LlamaEngine(write(tmp_path / "b.gguf", "llama", template="{% broken")) as engine:
        assert engine.info.template == "chatml"
        assert engine.info.template_note.startswith("The model's chat template cannot be used, so ChatML is.")


def test_prune_and_resurrect_give_the_same_text_as_reading_anew(engine: LlamaEngine) -> None:
    """Where cells cannot be mended everything is read from the change on, so the texts are equal."""
    talk = Talk(engine, f"{engine.info.architecture} one")
    talk.add(Role.USER, "My dog is called Bruno.")
    middle = talk.add(Role.ASSISTANT, "A fine name for a dog.")
    talk.add(Role.USER, "What is he called?")
    talk.hear(SIX, Capture())
    for asleep in ({middle}, set(), {middle}, set()):
        talk.asleep = asleep
        heard = talk.hear(SIX, Capture())
        other = Talk(engine, f"{engine.info.architecture} {len(asleep)} other")
        other.turns, other.next, other.asleep = talk.turns, talk.next, asleep
        fresh = other.hear(SIX)
        engine.forget(other.window)
        assert heard.read is not None
        assert fresh.read is not None
        assert heard.read.reused + heard.read.restored + heard.read.computed == fresh.read.computed
        if not engine.info.abilities.cuts:
            assert heard.text == fresh.text
            assert heard.read.restored == 0


def test_rows_fit_where_there_is_attention(engine: LlamaEngine) -> None:
    talk = Talk(engine, f"{engine.info.architecture} rows")
    for number in range(8):
        talk.add(Role.USER, f"Line {number} of a talk that is longer than a sliding window of the model.")
        talk.asleep = {number - 3} if number > 3 else set()
        heard = talk.answer(SIX, Capture(reading=True), read_from=talk.turns[-1][1])
        rows = [step.row for step in heard.steps]
        if engine.info.architecture == "mamba":
            assert all(row is None for row in rows)
            continue
        for row in rows:
            assert row is not None
            assert row.fault(len(row.tokens)) is None
        assert heard.read is not None
        assert all(np.isfinite(row.tokens).all() for row in heard.read.rows)
        assert len(heard.read.rows) > 0
