"""A prompt is read and a reply written, whatever else the engine can do."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import (
    Capture,
    Engine,
    GenerationEnd,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Segment,
    Step,
)
from halo_weave.errors import BadInput, BadSetting, EngineError
from tests.contract.engines.conftest import ABILITIES, UNTOLD, make_engine, window_names
from tests.contract.talks import GREEDY, Talk, size


def test_the_model_and_what_can_be_done_with_it_are_described(engine: Engine, kind: str) -> None:
    info = engine.info
    if info.abilities.attention or info.abilities.late:
        assert info.layers > 0
        assert info.heads >= info.kv_heads > 0
    assert 0 < info.context <= info.trained_context
    assert info.tokenizer
    assert info.abilities == ABILITIES[kind]
    assert all(0 <= id < info.vocabulary for id in info.special.values())


def test_a_generation_is_one_reading_then_steps_then_its_end(talk: Talk) -> None:
    prompt = talk.prompt()
    events = list(talk.engine.generate(talk.window, prompt, GREEDY, None))
    assert [type(event) for event in events] == [
        PrefillPlanned,
        PrefillResult,
        *[Step] * (len(events) - 3),
        GenerationEnd,
    ]
    planned, read, *steps, done = events
    assert planned == PrefillPlanned(0, 0, size(prompt))
    assert isinstance(read, PrefillResult)
    assert isinstance(done, GenerationEnd)
    assert (read.reused, read.restored, read.computed) == (0, 0, size(prompt))
    assert [step.label for step in steps if isinstance(step, Step)] == list(
        range(talk.next, talk.next + len(steps))
    )
    assert done.tokens == len(steps) > 0
    for step in steps:
        assert isinstance(step, Step)
        assert step.piece == talk.engine.pieces(np.array([step.id], np.int32)).raw
        assert step.row is None


def test_what_is_only_appended_is_only_computed(talk: Talk, kind: str) -> None:
    if kind in UNTOLD:
        pytest.skip("its server does not tell what it had read before")
    first = talk.answer()
    talk.add(Role.USER, "And where does he swim?")
    prompt = talk.prompt()
    read = talk.hear().read
    assert first.read is not None
    assert read is not None
    assert read.reused + read.restored + read.computed == size(prompt)
    assert read.restored == 0
    # All of the first turn and of the reply but its last token, which nothing had to follow.
    assert read.reused >= first.read.computed + len(first.steps) - 1


def test_a_forgotten_window_is_read_anew(talk: Talk) -> None:
    talk.hear()
    talk.engine.forget(talk.window)
    read = talk.hear().read
    assert read is not None
    assert (read.reused, read.restored) == (0, 0)


def test_windows_that_generate_at_the_same_time_do_not_mix(engine: Engine) -> None:
    questions = ["Count from one to five.", "Name three colours.", "Who wrote Hamlet?"]

    def talk_about(question: str) -> Talk:
        talk = Talk(engine, next(window_names))
        talk.add(Role.USER, question)
        return talk

    alone = [talk_about(question).hear(capture=Capture()).text for question in questions]
    together: dict[str, Any] = {}
    threads = [
        threading.Thread(
            target=lambda q=question: together.update({q: talk_about(q).hear(capture=Capture())})
        )
        for question in questions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [together[question].text for question in questions] == alone
    for question in questions:
        for step in together[question].steps:
            assert (step.row is not None) == engine.info.abilities.attention
            assert step.row is None or step.row.fault(len(step.row.tokens)) is None


def test_the_same_seed_gives_the_same_text(engine: Engine) -> None:
    texts = []
    for _ in range(2):
        talk = Talk(engine, next(window_names))
        talk.add(Role.USER, "Tell me a story.")
        texts.append(
            talk.hear(Sampling(seed=7, max_new_tokens=8, top_k=40, min_p=0.05, repeat_penalty=1.1)).text
        )
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 2.0},
        {"repeat_penalty": 0.0},
        {"seed": -1},
        {"max_new_tokens": 0},
    ],
)
def test_settings_out_of_range_are_refused(talk: Talk, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting, match=next(iter(wrong))):
        talk.hear(Sampling(**wrong))


def test_a_prompt_that_makes_no_sense_is_refused(engine: Engine, talk: Talk) -> None:
    ids = engine.tokenize("one two three").ids
    labels = np.arange(len(ids), dtype=np.int64)
    for prompt, match in [
        (Prompt([], 0), "no tokens"),
        (Prompt([Segment("chunk", labels * 0, ids)], 9), "same label twice"),
        (Prompt([Segment("chunk", labels, ids + engine.info.vocabulary)], 9), "vocabulary"),
        (Prompt([Segment("chunk", np.arange(9999), np.full(9999, ids[0]))], 9999), "9999 tokens"),
    ]:
        with pytest.raises(BadInput, match=match):
            list(engine.generate(talk.window, prompt, GREEDY, None))
    with pytest.raises(BadInput, match="no token with the label"):
        talk.hear(capture=Capture(reading=True, reading_surprisal=True), read_from=123456)
    assert talk.hear().steps


def test_a_closed_engine_says_so(kind: str) -> None:
    engine = make_engine(kind)
    talk = Talk(engine, "w")
    talk.add(Role.USER, "Hello")
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        talk.hear()
    engine.close()
