"""What is too long to wake up whole wakes up in part, whatever brought it there."""

import pytest

from halo_weave.chat import events
from halo_weave.core.tokens import Role
from tests.chat.conftest import SMALL, of

SETTINGS = {**SMALL, "max_context_tokens": 1500, "max_chunk_tokens": 5000, "resurrection_budget": 512}


def pasted(words: int = 600, at: int = 400) -> str:
    """One text without a blank line, with a telling word deep inside."""
    told = ["The spare lighthouse key hangs behind the barometer."]
    filler = [f"Line {i} of this protocol speaks about valve{i} and gasket{i}." for i in range(words // 10)]
    place = at // 10
    return " ".join([*filler[:place], *told, *filler[place:]])


def forget(weave, window: str) -> None:
    """Two short turns in a window that has become small: what was said before falls asleep."""
    weave.windows.change(window, settings={"max_context_tokens": 100})
    for text in ("Bread is baked in the morning.", "Tea is served in the afternoon."):
        list(weave.turns.steps(window, text))
    weave.windows.change(window, settings={"max_context_tokens": 1500})


def test_a_long_chunk_that_is_there_wakes_up_in_part_at_its_place(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SETTINGS)
    said = of(events.MessageStored, list(weave.turns.steps(window.id, pasted())))[0]
    whole = said.chunks[0].chunk
    assert len(said.chunks) == 1
    assert len(whole) > 512
    forget(weave, window.id)
    assert whole.key not in {one.key for one in weave.runtime.store.live(window.id)}
    seen = weave.memory.preview(window.id, "Where does the lighthouse key hang?")
    woken = of(
        events.ChunksResurrected, list(weave.turns.steps(window.id, "Where does the lighthouse key hang?"))
    )
    chunks = [one.chunk for event in woken for one in event.chunks]
    parts = [chunk for chunk in chunks if whole.start <= chunk.start < whole.stop]
    assert any("behind the barometer" in chunk.text for chunk in parts)
    assert sum(event.cost for event in woken) <= 512
    assert {one.key for one in seen.plan.chunks} == {chunk.key for chunk in chunks}
    for chunk in parts:  # at its place: the same tokens as before at the same positions
        at = chunk.start - whole.start
        assert list(chunk.tokens.ids) == list(whole.tokens.ids[at : at + len(chunk)])


def test_what_the_user_put_to_sleep_wakes_up_in_part_in_the_next_turn(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SETTINGS)
    heard = of(events.MessageStored, list(weave.turns.steps(window.id, pasted())))[0].chunks[0].chunk
    weave.chunks.prune(window.id, heard.key)
    woken = of(
        events.ChunksResurrected, list(weave.turns.steps(window.id, "Where does the lighthouse key hang?"))
    )
    assert any("behind the barometer" in one.chunk.text for event in woken for one in event.chunks)


@pytest.mark.parametrize("at", [0, 590])
def test_wherever_it_stands_in_a_pasted_text_it_can_wake_up_within_the_default_budget(assembled, at):
    weave = assembled()
    window = weave.windows.create("one", settings={**SETTINGS, "max_chunk_tokens": 256})
    list(weave.turns.steps(window.id, pasted(at=at)))
    forget(weave, window.id)
    woken = of(
        events.ChunksResurrected, list(weave.turns.steps(window.id, "Where does the lighthouse key hang?"))
    )
    assert any("behind the barometer" in one.chunk.text for event in woken for one in event.chunks)


def test_a_short_chunk_is_never_divided(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SETTINGS)
    text = "A short message about lighthouses."
    list(weave.turns.steps(window.id, text))
    forget(weave, window.id)
    first = next(one for one in weave.runtime.store.chunks([1]) if one.key.role is Role.USER)
    assert first.chunk.text == text
