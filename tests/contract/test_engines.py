"""What every engine does. The same body runs on the scripted engine and on llama.cpp with the default model."""

from __future__ import annotations

import itertools
import string
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halo_weave.core.tokens import Role
from halo_weave.engines.llama import Limits, LlamaEngine
from halo_weave.engines.scripted import ScriptedEngine
from halo_weave.errors import BadInput, BadSetting, EngineError
from halo_weave.ports import Abilities, Capture, Done, Engine, Planned, Prompt, Read, Sampling, Segment, Step
from tests.contract.talks import GREEDY, Talk, size
from tests.model.weights import chat_model

KINDS = ["scripted", pytest.param("llama", marks=pytest.mark.model)]
SPELLABLE = (
    string.digits + string.ascii_letters + string.punctuation + " \n\t" + "äöüéßñçøž€–“”…日本語中文한국어🎉🐕"
)
names = (f"window {number}" for number in itertools.count())


def make_engine(kind: str, *, context: int = 2048) -> Engine:
    if kind == "scripted":
        return ScriptedEngine(context=context)
    return LlamaEngine(chat_model(), limits=Limits(context=context))


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(kind: str) -> Iterator[Engine]:
    engine = make_engine(kind)
    yield engine
    engine.close()


@pytest.fixture
def talk(engine: Engine) -> Iterator[Talk]:
    window = next(names)
    talk = Talk(engine, window)
    talk.add(Role.USER, "My dog Bruno swims in the lake. What is his name?")
    yield talk
    engine.forget(window)


@given(text=st.text(max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_join_to_exactly_the_text(engine: Engine, text: str) -> None:
    assert engine.tokenize(text).raw == text.encode()


@given(text=st.text(SPELLABLE, max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_alone_give_back_what_the_vocabulary_can_spell(engine: Engine, text: str) -> None:
    tokens = engine.tokenize(text)
    assert engine.pieces(tokens.ids) == tokens


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "日本語のテキスト", "🎉👩‍👩‍👧", "a\x00b", "  two  spaces ", "é̂" * 20]
)
def test_awkward_texts_come_back_exactly(engine: Engine, text: str) -> None:
    assert engine.tokenize(text).text == text


def test_half_a_character_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match="surrogate"):
        engine.tokenize("\ud800")


def test_control_tokens_in_a_text_are_plain_text_unless_asked_for(engine: Engine) -> None:
    header, _ = engine.frame(Role.USER, first=False)
    assert engine.tokenize(header.text, special=True) == header
    plain = engine.tokenize(header.text)
    assert plain.text == header.text
    assert len(plain) > len(header)


def test_every_role_has_a_frame_and_the_first_one_may_hold_more(engine: Engine) -> None:
    for role in Role:
        header, footer = engine.frame(role, first=False)
        first, _ = engine.frame(role, first=True)
        assert len(header) + len(footer)
        assert first.text.endswith(header.text)


def test_an_unknown_token_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput):
        engine.pieces(np.array([engine.info.vocabulary], np.int32))


def test_the_model_is_described(engine: Engine) -> None:
    info = engine.info
    assert info.layers > 0
    assert info.heads >= info.kv_heads > 0
    assert 0 < info.context <= info.trained_context
    assert info.tokenizer
    assert info.abilities == Abilities()
    assert all(0 <= id < info.vocabulary for id in info.special.values())


def test_a_generation_is_one_reading_then_steps_then_its_end(talk: Talk) -> None:
    prompt = talk.prompt()
    events = list(talk.engine.generate(talk.window, prompt, GREEDY, None))
    assert [type(event) for event in events] == [Planned, Read, *[Step] * (len(events) - 3), Done]
    planned, read, *steps, done = events
    assert planned == Planned(0, 0, size(prompt))
    assert isinstance(read, Read)
    assert isinstance(done, Done)
    assert (read.reused, read.restored, read.computed) == (0, 0, size(prompt))
    assert [step.label for step in steps if isinstance(step, Step)] == list(
        range(talk.next, talk.next + len(steps))
    )
    assert done.tokens == len(steps) > 0
    for step in steps:
        assert isinstance(step, Step)
        assert step.piece == talk.engine.pieces(np.array([step.id], np.int32)).raw
        assert step.row is None
        assert step.surprisal >= 0


def test_each_row_covers_the_chunk_tokens_so_far_and_sums_to_one(talk: Talk) -> None:
    heard = talk.hear(capture=Capture())
    before = talk.chunk_tokens
    aside = size(talk.prompt()) - before
    assert len(heard.steps) > 1
    for number, step in enumerate(heard.steps):
        row = step.row
        assert row is not None
        assert len(row.tokens) == before + number
        assert row.fault(before + number) is None
        assert float(row.tokens.sum()) + row.frames + row.system == pytest.approx(1, abs=1e-4)
        assert row.aside == aside
        assert min(row.frames, row.system) > 0
        assert row.first is not None
        assert row.first <= row.aside_peak <= row.frames + row.system
        assert row.raw is None


@pytest.mark.parametrize("combine", ["mean", "max"])
def test_layers_and_heads_are_the_callers_to_choose(talk: Talk, combine: Any) -> None:
    capture = Capture(layers=(1,), heads=(0, 2), combine=combine, raw=True)
    row = talk.hear(capture=capture).steps[0].row
    assert row is not None
    assert row.raw is not None
    assert row.raw.shape == (2, talk.chunk_tokens)
    assert float(row.tokens.sum()) + row.frames + row.system == pytest.approx(1, abs=1e-4)


def test_rows_of_the_reply_can_be_left_out(talk: Talk) -> None:
    assert all(step.row is None for step in talk.hear(capture=Capture(reply=False)).steps)


def test_the_rows_and_the_surprisal_of_the_user_turn_are_known_after_it_is_read(talk: Talk) -> None:
    talk.answer()
    before = talk.chunk_tokens
    question = talk.add(Role.USER, "And where does he swim?")
    _, start, tokens = talk.turns[question]
    capture = Capture(reading=True, reading_surprisal=True)
    read = talk.hear(capture=capture, read_from=start).read
    assert read is not None
    assert [len(row.tokens) for row in read.rows] == [before + 1 + i for i in range(len(tokens))]
    assert all(row.fault(len(row.tokens)) is None for row in read.rows)
    assert read.surprisal is not None
    assert read.surprisal.shape == (len(tokens),)
    assert np.all(read.surprisal > 0)
    # Asked again, nothing is new, and yet the rows are there.
    again = talk.hear(capture=capture, read_from=start).read
    assert again is not None
    assert len(again.rows) == len(tokens)


def test_what_is_only_appended_is_only_computed(talk: Talk) -> None:
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


def test_a_pruned_chunk_leaves_the_rows_and_returns_without_computing(talk: Talk) -> None:
    talk.answer()
    middle = talk.add(Role.USER, "The weather is nice today and the sky is blue.")
    talk.answer()
    talk.add(Role.USER, "What is my dog's name?")
    whole = talk.hear(capture=Capture())
    live = talk.chunk_tokens

    talk.asleep = {middle}
    pruned = talk.hear(capture=Capture())
    assert pruned.read is not None
    assert pruned.read.computed <= len(whole.steps) + 1
    assert pruned.steps[0].row is not None
    assert len(pruned.steps[0].row.tokens) == talk.chunk_tokens < live

    talk.asleep = set()
    back = talk.hear(capture=Capture())
    assert back.read is not None
    assert back.read.restored >= len(talk.turns[middle][2])
    assert back.read.computed <= len(whole.steps) + 1
    assert not back.read.rebuilt
    assert back.steps[0].row is not None
    assert len(back.steps[0].row.tokens) == live
    assert back.text == whole.text


def test_exact_mode_brings_nothing_back(talk: Talk) -> None:
    talk.answer()
    middle = talk.add(Role.USER, "The weather is nice today and the sky is blue.")
    talk.answer()
    talk.add(Role.USER, "What is my dog's name?")
    whole = talk.hear()
    talk.asleep = {middle}
    talk.hear(mode="exact")
    talk.asleep = set()
    back = talk.hear(mode="exact")
    assert back.read is not None
    assert back.read.restored == 0
    assert back.read.computed > len(talk.turns[middle][2])
    assert back.text == whole.text


def test_a_chunk_from_elsewhere_is_put_into_the_middle(talk: Talk) -> None:
    strange = talk.add(Role.USER, "A cat named Minka sleeps on the roof.")
    talk.add(Role.USER, "What is my dog's name?")
    talk.asleep = {strange}
    talk.hear()
    talk.asleep = set()
    heard = talk.hear(capture=Capture())
    assert heard.read is not None
    assert heard.read.restored == 0
    assert heard.read.computed >= len(talk.turns[strange][2])
    assert heard.read.reused > 0
    assert heard.steps[0].row is not None
    assert heard.steps[0].row.fault(talk.chunk_tokens) is None


def test_the_beginning_can_leave(talk: Talk) -> None:
    talk.answer()
    talk.add(Role.USER, "What is my dog's name?")
    talk.hear()
    talk.asleep = {0, 1}
    talk.system = talk.engine.tokenize("")
    heard = talk.hear(capture=Capture())
    assert heard.steps[0].row is not None
    assert heard.steps[0].row.fault(talk.chunk_tokens) is None


def test_a_generation_ends_at_the_asked_length(talk: Talk) -> None:
    heard = talk.hear(Sampling(temperature=0.0, max_new_tokens=3))
    assert heard.done is not None
    assert (heard.done.reason, heard.done.tokens) == ("length", 3)


def test_a_generation_ends_before_a_stop_string(talk: Talk) -> None:
    free = talk.hear(Sampling(temperature=0.0, max_new_tokens=12)).text
    stop = free[4:9]
    heard = talk.hear(Sampling(temperature=0.0, max_new_tokens=12, stop=("not there", stop)))
    assert heard.done is not None
    assert heard.done.reason == "stop"
    assert heard.text == free[: free.index(stop)]


def test_a_generation_stops_within_one_token_when_told_to(talk: Talk) -> None:
    heard: list[Step] = []
    reason = ""
    sampling = Sampling(temperature=0.0, max_new_tokens=50)
    asked = iter([False, False, False])
    for event in talk.engine.generate(
        talk.window, talk.prompt(), sampling, None, stopped=lambda: next(asked, True)
    ):
        if isinstance(event, Step):
            heard.append(event)
        elif isinstance(event, Done):
            reason = event.reason
    assert reason == "abort"
    assert len(heard) <= 3


def test_a_dropped_iterator_ends_its_generation_and_the_window_goes_on(talk: Talk) -> None:
    expected = talk.hear().text
    events = talk.engine.generate(
        talk.window, talk.prompt(), Sampling(temperature=0.0, max_new_tokens=500), None
    )
    next(event for event in events if isinstance(event, Step))
    events.close()  # type: ignore[attr-defined]
    assert talk.hear().text == expected


def test_a_forgotten_window_is_read_anew(talk: Talk) -> None:
    talk.hear()
    talk.engine.forget(talk.window)
    read = talk.hear().read
    assert read is not None
    assert (read.reused, read.restored) == (0, 0)


def test_windows_that_generate_at_the_same_time_do_not_mix(engine: Engine) -> None:
    questions = ["Count from one to five.", "Name three colours.", "Who wrote Hamlet?"]

    def talk_about(question: str) -> Talk:
        talk = Talk(engine, next(names))
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
            assert step.row is not None
            assert step.row.fault(len(step.row.tokens)) is None


def test_the_same_seed_gives_the_same_text(engine: Engine) -> None:
    texts = []
    for _ in range(2):
        talk = Talk(engine, next(names))
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
        (Prompt([Segment("chunk", labels * 0, ids)], 9), "twice"),
        (Prompt([Segment("chunk", labels, ids + engine.info.vocabulary)], 9), "vocabulary"),
        (Prompt([Segment("chunk", np.arange(9999), np.full(9999, ids[0]))], 9999), "9999 tokens"),
    ]:
        with pytest.raises(BadInput, match=match):
            list(engine.generate(talk.window, prompt, GREEDY, None))
    with pytest.raises(BadInput, match="to read from"):
        talk.hear(capture=Capture(reading=True), read_from=123456)
    assert talk.hear().steps


def test_a_full_context_ends_the_generation_with_that_reason(kind: str) -> None:
    engine = make_engine(kind, context=48)
    try:
        talk = Talk(engine, "w", system="Hi")
        talk.add(Role.USER, "Say a lot about everything that there is in the whole wide world.")
        heard = talk.hear(Sampling(temperature=0.0, max_new_tokens=400))
        assert heard.done is not None
        assert heard.done.reason == "context"
        assert size(talk.prompt()) + len(heard.steps) <= 49
    finally:
        engine.close()


def test_a_closed_engine_says_so(kind: str) -> None:
    engine = make_engine(kind)
    talk = Talk(engine, "w")
    talk.add(Role.USER, "Hello")
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        talk.hear()
    engine.close()
