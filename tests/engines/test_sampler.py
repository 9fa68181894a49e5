"""Which token is chosen, and that the likeliest one is found without a copy of the whole vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_weave.core.json_grammar import grammar_from_schema
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Sampling, Step
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.engines.llama.sampler import Sampler
from tests.contract.talks import Talk
from tests.engines.tiny import write

LIKELIEST = Sampling(temperature=0.0, max_new_tokens=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama")


def test_the_likeliest_token_is_the_one_that_llama_cpp_takes(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both: list[tuple[int, int]] = []

    def sampled(self: Sampler, context: int | None, plain=Sampler.sample) -> int:  # type: ignore[no-untyped-def]
        both.append((plain(self, context), int(self.c.llama_sampler_sample(self.chain, context, -1))))
        return both[-1][0]

    monkeypatch.setattr(Sampler, "sample", sampled)
    with LlamaEngine(model) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "Which boat is blue, and who is its captain?")
        talk.hear(LIKELIEST)
    assert len(both) > 3
    assert all(ours == theirs for ours, theirs in both)
    assert len({ours for ours, _ in both}) > 1


@pytest.mark.parametrize(
    ("sampling", "whole"),
    [
        (LIKELIEST, False),
        (Sampling(temperature=0.7), False),
        (Sampling(temperature=1.5, top_p=1.0), False),
        (Sampling(temperature=0.0, repeat_penalty=1.3), True),
        (Sampling(temperature=0.0, grammar='root ::= "a"'), True),
    ],
)
def test_the_whole_vocabulary_is_copied_only_where_any_token_may_be_chosen(
    model: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling, whole: bool
) -> None:
    with LlamaEngine(model) as engine:
        monkeypatch.setattr(engine.model, "logits", lambda *_: np.array([0.0, 3.0, -60.0], np.float32))
        shown: list[int] = []

        class Samplers:
            def llama_sampler_sample(self, *_: object) -> int:
                shown.append(engine.model.size)
                return 1

            def llama_sampler_apply(self, chain: int, choices: object) -> None:
                array = choices._obj  # type: ignore[attr-defined]
                shown.append(array.size)
                array.selected = 1

        with Sampler(engine.model, sampling, np.zeros(0, np.int32)) as sampler:
            monkeypatch.setattr(sampler, "c", Samplers())
            assert sampler.sample(None) == 1
            monkeypatch.undo()
        # The third token is far less likely than the first, and is not shown.
        assert shown == ([engine.model.size] if whole else [2] if sampling.temperature else [])


def test_logits_that_are_no_numbers_are_left_to_llama_cpp(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlamaEngine(model) as engine:
        monkeypatch.setattr(engine.model, "logits", lambda *_: np.full(3, np.nan, np.float32))

        class Samplers:
            def llama_sampler_sample(self, *_: object) -> int:
                return 2

            def llama_sampler_apply(self, *_: object) -> None:
                raise AssertionError("An empty list of choices ends the process.")

        with Sampler(engine.model, Sampling(), np.zeros(0, np.int32)) as sampler:
            monkeypatch.setattr(sampler, "c", Samplers())
            assert sampler.sample(None) == 2
            monkeypatch.undo()


@pytest.mark.parametrize(("low", "high"), [(5, 120), (-30, -7), (100_000, 9_999_999_999)])
def test_integers_stay_within_the_bounds_of_a_schema(model: Path, low: int, high: int) -> None:
    grammar = grammar_from_schema({"type": "integer", "minimum": low, "maximum": high})
    with LlamaEngine(model) as engine:
        for seed in range(4):
            talk = Talk(engine, f"w{seed}")
            talk.add(Role.USER, "How many ships?")
            sampling = Sampling(temperature=1.0, seed=seed, max_new_tokens=20, grammar=grammar)
            steps = engine.generate(talk.window, talk.prompt(), sampling, None)
            reply = b"".join(one.piece for one in steps if isinstance(one, Step))
            assert low <= int(reply) <= high
