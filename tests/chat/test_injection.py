"""What is asked for by name comes back with its pairs; the dimmest make room, never the newest exchange."""

import pytest

from halo_weave.errors import BadInput
from tests.chat.conftest import SMALL

LONG = "The kayak lies behind the boathouse.\n\nIt is red and it has two wide seats.\n\nIts paddle hangs on the wall of the shed."


def say(weave, window, text):
    return list(weave.turns.steps(window, text))


def live(weave, window):
    return {str(one.chunk.key): one for turn in weave.windows.context(window).turns for one in turn.chunks}


def asleep(weave, window):
    """All chunks of the first exchange, put to sleep by hand."""
    turns = weave.windows.context(window).turns[:2]
    keys = [one.chunk.key for turn in turns for one in turn.chunks]
    for key in keys:
        weave.chunks.prune(window, key)
    return keys


@pytest.fixture
def talk(assembled):
    weave = assembled()
    window = weave.windows.create(
        "one", settings={**SMALL, "max_context_tokens": 0, "max_new_tokens": 200}
    ).id
    say(weave, window, LONG)
    say(weave, window, "It rains.")
    return weave, window, asleep(weave, window)


def test_a_users_chunk_brings_its_answer_and_only_the_chunk_itself_is_pinned(talk):
    weave, window, keys = talk
    question, answer = keys[0], next(key for key in keys if key.role == "assistant" and not key.chunk_id)
    done = weave.chunks.resurrect(window, question)
    assert [one.key for one in done.resurrected] == [question, answer]
    now = live(weave, window)
    assert (now[str(question)].pinned, now[str(answer)].pinned) == (True, False)


def test_an_answer_brings_its_question(talk):
    weave, window, keys = talk
    answer = next(key for key in keys if key.role == "assistant" and not key.chunk_id)
    assert [one.key for one in weave.chunks.resurrect(window, answer).resurrected] == [answer, keys[0]]


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_later_chunk_of_a_turn_brings_the_turns_first_chunk(talk, role):
    weave, window, keys = talk
    own = [key for key in keys if key.role == role]
    other = next(key for key in keys if key.role != role)
    assert len(own) > 1
    done = weave.chunks.resurrect(window, own[-1])
    assert {one.key for one in done.resurrected} == {own[-1], own[0], other}
    assert [key for key, one in live(weave, window).items() if one.pinned] == [str(own[-1])]


def test_what_comes_back_by_hand_makes_room_but_the_newest_exchange_stays(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "max_context_tokens": 260}).id
    say(weave, window, LONG)
    for number in range(8):
        say(weave, window, f"Let us speak of weather number {number}, which is cold and wet.")
    key = weave.windows.said(window).turns[0].chunks[0].key
    newest = {str(turn.chunks[0].chunk.key) for turn in weave.windows.context(window).turns[-2:]}
    assert str(key) not in live(weave, window)
    done = weave.chunks.resurrect(window, key)
    assert done.pruned
    assert newest <= live(weave, window).keys()
    assert weave.windows.context(window).budget.used <= 260


def test_what_does_not_fit_is_refused_with_the_tokens_that_are_missing(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "max_context_tokens": 0}).id
    say(weave, window, LONG)
    say(weave, window, "Let us speak of weather, which is cold and wet and grey and dark.")
    keys = asleep(weave, window)
    before = set(live(weave, window))
    used = weave.windows.context(window).budget.used
    weave.windows.change(window, settings={"max_context_tokens": used + 5})
    with pytest.raises(BadInput, match=r"tokens missing: [1-9]"):
        weave.chunks.resurrect(window, keys[0])
    assert set(live(weave, window)) == before
