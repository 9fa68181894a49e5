"""Twenty turns within 600 tokens on the real model: it forgets by attention and never loses its place."""

from __future__ import annotations

import pytest

from halo_weave.chat.prompt import PromptBuilder
from halo_weave.core.pruning import plan_prune
from halo_weave.core.tokens import Role
from halo_weave.core.working_set import WorkingSet, chunk_turn
from halo_weave.engines.base import Capture, GenerationEnd, PrefillResult, Sampling, Step
from halo_weave.engines.llama.engine import LlamaEngine

pytestmark = pytest.mark.model

BUDGET = 600
TOPICS = ["my garden", "a trip to Norway", "baking bread", "an old bicycle", "the stars at night"]


def test_twenty_turns_stay_within_the_budget_and_every_row_fits(engine: LlamaEngine, window: str) -> None:
    prompt_builder = PromptBuilder(engine)
    system = prompt_builder.system_prompt("You are a friendly companion who answers briefly.")
    talk = WorkingSet(system_tokens=system.tokens, frame_tokens=prompt_builder.frame_tokens())
    mapping_errors = engine.mapping_errors
    position, asleep, restored, reused, pruned = 0, {}, 0, 0, 0
    for number in range(20):
        question = 2 * number
        text = f"Turn {number}: tell me something about {TOPICS[number % len(TOPICS)]}, and why I should care for it today."
        chunks = chunk_turn(engine.tokenize(text), question, Role.USER, position)
        position = chunks[-1].stop
        talk.add(talk.new_chunk(chunk) for chunk in chunks)
        if number % 5 == 4 and asleep:
            # What was said about this topic before wakes up at its place.
            key = next(iter(asleep))
            talk.add([asleep.pop(key)])
        talk.begin_reply(question + 1, position, question)
        read = None
        for event in engine.generate(
            window,
            prompt_builder.prompt(talk, system, {}),
            Sampling(temperature=0.0, max_new_tokens=24),
            Capture(),
        ):
            match event:
                case PrefillResult():
                    read = event
                case Step():
                    assert talk.update(event.row) is None
                    talk.append_reply_token(event.id, event.piece, event.surprisal)
                case GenerationEnd():
                    assert event.reason in ("length", "eos")
        assert read is not None
        assert read.rebuilt == ""
        restored += read.restored
        reused += read.reused
        position += 24
        talk.end_reply()
        plan = plan_prune(talk, BUDGET, current=(question, question + 1))
        for live in talk.remove(plan.keys):
            asleep[live.chunk.key] = live
            pruned += 1
        assert talk.size <= BUDGET
    assert pruned > 5
    assert restored > 20
    assert reused > 5000
    assert not talk.faults
    assert engine.mapping_errors == mapping_errors
