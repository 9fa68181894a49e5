"""Reading ahead: what is made ready while nobody waits is not read again, and changes no answer."""

from __future__ import annotations

from dataclasses import replace

from halo_weave.core.tokens import Role
from halo_weave.engines.llama import LlamaEngine
from halo_weave.ports import Capture, Engine, Prompt
from tests.contract.talks import GREEDY, Talk, size

ABILITY = "ahead"


def begun(talk: Talk, text: str) -> Prompt:
    """The prompt of a message up to its words."""
    number = talk.add(Role.USER, text)
    whole = talk.prompt()
    first = talk.turns[number][1]
    cut = next(
        i
        for i, segment in enumerate(whole.segments)
        if segment.kind == "chunk" and int(segment.labels[0]) == first
    )
    return replace(whole, segments=whole.segments[:cut])


def settle(engine: Engine) -> None:
    if isinstance(engine, LlamaEngine):
        engine.scheduler.settle()


def test_a_message_whose_frame_was_read_ahead_computes_its_own_words_only(talk: Talk) -> None:
    talk.answer()
    ahead = begun(talk, "And where does he swim?")
    talk.engine.read_ahead(talk.window, ahead, room=64)
    settle(talk.engine)
    heard = talk.hear(capture=Capture())
    assert heard.read is not None
    assert heard.read.computed == size(talk.prompt()) - size(ahead)
    assert not heard.read.rebuilt
    assert heard.steps[0].row is not None
    assert heard.steps[0].row.fault(talk.chunk_tokens) is None
    talk.engine.forget(talk.window)
    assert talk.hear().text == heard.text


def test_what_would_wake_up_is_live_when_it_does_and_leaves_if_it_does_not(talk: Talk) -> None:
    strange = talk.add(Role.USER, "A cat named Minka sleeps on the roof.")
    talk.asleep = {strange}
    talk.answer()
    talk.asleep = set()
    ahead = begun(talk, "What is my dog's name?")
    talk.engine.read_ahead(talk.window, ahead, room=64)
    settle(talk.engine)
    woken = talk.hear(capture=Capture())
    assert woken.read is not None
    assert woken.read.computed == size(talk.prompt()) - size(ahead)
    talk.asleep = {strange}
    without = talk.hear(capture=Capture())
    assert without.read is not None
    assert without.read.computed < size(talk.prompt()) / 2
    assert without.steps[0].row is not None
    assert without.steps[0].row.fault(talk.chunk_tokens) is None


def test_nothing_is_read_ahead_in_a_window_that_speaks(talk: Talk) -> None:
    generation = talk.engine.generate(talk.window, talk.prompt(), GREEDY, None)
    said = [next(generation)]
    other = Talk(talk.engine, talk.window)
    other.add(Role.USER, "Something else entirely, which nobody asked about.")
    if isinstance(talk.engine, LlamaEngine):
        talk.engine.read_ahead(talk.window, other.prompt(), room=64)
    said += generation
    settle(talk.engine)
    heard = talk.hear()
    assert heard.read is not None
    assert heard.read.computed <= 2
    assert len(said) > 3
