"""The shadow model: it supplies attention that a server does not send, later than the tokens and without delaying them."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest

from halo_weave.core.retrieval_heads import Calibration, RetrievalHead
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, GenerationEnd, LateAttention, PrefillResult, Sampling, Step
from halo_weave.engines.calibration import load_or_calibrate, pending_calibration
from halo_weave.engines.openai import OpenAiEngine
from halo_weave.engines.shadow_model import TOKENS_PER_PASS, ShadowRun
from tests.contract.talks import Talk
from tests.engines.faulty import KEY, faulty_server
from tests.fakes.scripted_engine import ScriptedEngine

EYES = Calibration((RetrievalHead(1, 0, 0.9, 0.9, 1.0),), "By one head.")
WATCHED = Capture(pairs=EYES.pairs, raw=True, reading=True, reading_surprisal=True)


@pytest.fixture
def server():
    with faulty_server() as server:
        yield server


def spoken_to(server, reader):
    return closing(OpenAiEngine(server.url, KEY, shadow_model=reader))


def test_the_reader_sees_what_it_would_see_if_it_spoke_itself(server):
    """The same words, forced on the reader and spoken by the server: the same rows, each for its token."""
    with spoken_to(server, ScriptedEngine()) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "What does the cat do?")
        prompt = talk.prompt(read_from=0)
        events = list(engine.generate("w", prompt, Sampling(), WATCHED))
    steps = [event for event in events if isinstance(event, Step)]
    words = [word for event in events if isinstance(event, LateAttention) for word in event.tokens]
    with closing(ScriptedEngine(["".join(step.piece.decode() for step in steps)])) as alone:
        own = [event for event in alone.generate("w", prompt, Sampling(), WATCHED) if isinstance(event, Step)]
    assert [step.id for step in own] == [step.id for step in steps]
    assert [word.label for word in words] == [step.label for step in own]
    for word, step in zip(words, own, strict=True):
        np.testing.assert_allclose(word.row.tokens, step.row.tokens, atol=1e-6)
        np.testing.assert_allclose(word.row.raw, step.row.raw, atol=1e-6)
        assert word.surprisal == pytest.approx(step.surprisal)


def test_what_the_question_looked_at_is_told_before_the_reply_is_over(server):
    with spoken_to(server, ScriptedEngine()) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "What does the cat do?")
        events = list(engine.generate("w", talk.prompt(read_from=0), Sampling(), WATCHED))
    read = next(event.prefill for event in events if isinstance(event, LateAttention) and event.prefill)
    assert isinstance(read, PrefillResult)
    assert len(read.rows) == len(read.surprisal) == talk.chunk_tokens
    assert isinstance(events[-1], GenerationEnd)


def test_a_slow_reader_does_not_hold_up_the_stream(server):
    """Every token is there while the reader has not read a single one; then it catches up."""
    free = threading.Event()
    reader = ScriptedEngine(pause=lambda: free.wait(20))
    with spoken_to(server, reader) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "What does the cat do?")
        events = engine.generate("w", talk.prompt(read_from=0), Sampling(), WATCHED)
        got = []
        for event in events:
            got.append(event)
            if not free.is_set() and "".join(e.piece.decode() for e in got if isinstance(e, Step)).endswith(
                "."
            ):
                assert not any(isinstance(e, LateAttention) and e.tokens for e in got)
                free.set()
    assert sum(len(e.tokens) for e in got if isinstance(e, LateAttention)) == sum(
        isinstance(e, Step) for e in got
    )


def test_a_reader_that_fails_costs_light_and_no_word(server):
    def broken():
        raise RuntimeError("out of memory")

    with spoken_to(server, ScriptedEngine(pause=broken)) as engine:
        talk = Talk(engine, "w")
        talk.add(Role.USER, "What does the cat do?")
        heard = talk.hear(Sampling(), WATCHED)
    assert heard.text == "The cat sleeps."
    assert heard.done.reason == "eos"


def test_a_long_reply_is_read_in_strides():
    reader = ScriptedEngine()
    reads = []
    spy = ScriptedEngine.generate

    def generate(self, window, prompt, *rest, **how):
        reads.append(sum(len(s.ids) for s in prompt.segments))
        return spy(self, window, prompt, *rest, **how)

    reader.generate = generate.__get__(reader)
    talk = Talk(reader, "w")
    talk.add(Role.USER, "Count.")
    shadow_run = ShadowRun(reader, "w", talk.prompt(read_from=0), WATCHED)
    ids = reader.tokenize("one two three four five six seven eight nine ten " * 4).ids.tolist()
    for id in ids:
        shadow_run.add_tokens([id])
    shadow_run.end()
    words = []
    while not shadow_run.over:
        shadow_run.wait(0.1)
        words += [word for seen in shadow_run.take() for word in seen.tokens]
    words += [word for seen in shadow_run.take() for word in seen.tokens]
    assert [word.label for word in words] == list(range(talk.next, talk.next + len(ids)))
    assert len(reads) <= 2 + len(ids) // TOKENS_PER_PASS
    reader.close()


def test_without_a_reader_surprise_comes_from_the_server_and_the_page_is_told(server):
    with closing(OpenAiEngine(server.url, KEY)) as engine:
        assert "no shadow model" in engine.calibration.sentence
        talk = Talk(engine, "w")
        talk.add(Role.USER, "What does the cat do?")
        heard = talk.hear(Sampling(), WATCHED)
        assert server.asked[-1]["logprobs"] is True
        assert all(step.row is None for step in heard.steps)
        assert heard.steps[0].surprisal == pytest.approx(0.5, abs=0.3)


def test_with_a_reader_the_page_is_told_whose_eyes_they_are(server, tmp_path):
    reader = ScriptedEngine()
    with spoken_to(server, reader) as engine:
        assert pending_calibration(engine).pending
        assert pending_calibration(engine).sentence.startswith(
            "Attention comes from the shadow model scripted"
        )
        reader.calibration = EYES
        told = load_or_calibrate(engine, tmp_path, lambda what, done, total: None)
        assert told.sentence == "Attention comes from the shadow model scripted. By one head."
        assert told.pairs == EYES.pairs
