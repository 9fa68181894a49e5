"""Reading ahead: what is made ready while nobody waits is not read again, and changes no answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from halo_weave.core.tokens import Role
from halo_weave.engines.base import UNSENT_LABELS, Capture, Engine, Prompt, Segment
from halo_weave.engines.llama.engine import LlamaEngine
from tests.contract.talks import GREEDY, Heard, Talk, down, size

ABILITY = "prefetch"


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
        engine.scheduler.wait_until_idle()


def test_a_message_whose_frame_was_read_ahead_computes_its_own_words_only(talk: Talk) -> None:
    talk.answer()
    ahead = begun(talk, "And where does he swim?")
    talk.engine.prefetch(talk.window, ahead, room=64)
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
    talk.engine.prefetch(talk.window, ahead, room=64)
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
        talk.engine.prefetch(talk.window, other.prompt(), room=64)
    said += generation
    settle(talk.engine)
    heard = talk.hear()
    assert heard.read is not None
    assert heard.read.computed <= 2
    assert len(said) > 3


WATCHED = Capture(reading=True, reading_surprisal=True)


def typed(talk: Talk, text: str) -> Prompt:
    """The prompt of a message that is not sent yet, as it would be if it were."""
    number = talk.add(Role.USER, text)
    _, first, words = talk.turns[number]
    whole = talk.prompt(read_from=UNSENT_LABELS)
    segments = [
        Segment("chunk", down(UNSENT_LABELS, len(words)), one.ids)
        if one.kind == "chunk" and int(one.labels[0]) == first
        else one
        for one in whole.segments
    ]
    talk.turns.pop()
    talk.next = first
    return replace(whole, segments=segments)


def sent(talk: Talk, text: str) -> Heard:
    number = talk.add(Role.USER, text)
    heard = talk.hear(capture=WATCHED, read_from=talk.turns[number][1])
    talk.turns.pop()
    talk.next -= len(talk.engine.tokenize(text))
    assert heard.read is not None
    assert not heard.read.rebuilt
    return heard


def assert_alike(one: Heard, other: Heard, words: int) -> None:
    """What is known of the words is the same, whether they were read before they were sent or after."""
    assert one.read is not None
    assert other.read is not None
    assert len(one.read.rows) == len(other.read.rows) == words
    for mine, theirs in zip(one.read.rows, other.read.rows, strict=True):
        assert mine.tokens == pytest.approx(theirs.tokens, abs=0.02)
    if one.read.surprisal is None:
        assert other.read.surprisal is None
    else:
        assert one.read.surprisal == pytest.approx(other.read.surprisal, abs=0.3)
        assert len(one.read.surprisal) == words


@pytest.mark.parametrize("before", ["And where does he swim?", "And where does he sleep?"])
def test_words_that_were_typed_are_read_once_and_as_well_known_as_others(talk: Talk, before: str) -> None:
    talk.answer()
    text = "And where does he swim?"
    fresh = sent(talk, text)
    talk.engine.forget(talk.window)
    talk.hear()
    talk.engine.prefetch(talk.window, typed(talk, before), room=64, capture=WATCHED)
    settle(talk.engine)
    heard = sent(talk, text)
    tokens, known = (talk.engine.tokenize(one).ids for one in (text, before))
    most = min(len(tokens), len(known))
    same = int(np.argmin(np.append(tokens[:most] == known[:most], False)))
    assert heard.read is not None
    whole = typed(talk, text)
    start = next(i for i, one in enumerate(whole.segments) if int(one.labels[0]) == UNSENT_LABELS)
    first = sum(len(segment.ids) for segment in whole.segments[:start])
    expected = 1 if before == text else size(whole) - (first + same - 1)
    assert heard.read.computed == expected
    assert_alike(heard, fresh, len(tokens))
    assert heard.text == fresh.text
