"""A window's life: what became of all that was said in it, turn by turn."""

from tests.chat.conftest import SMALL
from tests.chat.test_turn import FACT, chatter


def states(life, step: int) -> dict[str, bool]:
    """What was live after a turn: by the last event up to it, else the opposite of the first one after it."""
    found = {}
    for place, key in enumerate(life.keys):
        own = [one for one in life.events if one.chunk == place and one.event in ("slept", "woke")]
        before = [one for one in own if one.step <= step]
        if before:
            found[str(key)] = before[-1].event == "woke"
        elif own:
            found[str(key)] = own[0].event == "slept"
        else:
            found[str(key)] = place in life.live
    return found


def test_the_steps_tell_what_was_live_after_each_turn(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, FACT))
    seen = []
    for i in range(12):
        chatter(weave, window, 1)
        list(weave.turns.steps(window, f"Now number {i}." if i % 4 else "What about the lighthouse?"))
        live = {str(one.chunk.key) for turn in weave.windows.context(window).turns for one in turn.chunks}
        seen.append((len(weave.windows.life(window).turns) - 1, live))
    life = weave.windows.life(window)
    assert {"slept", "woke"} <= {one.event for one in life.events}
    for step, live in seen:
        after = {key for key, state in states(life, step).items() if state}
        said = {str(key) for key in life.keys if key.turn_id <= life.turns[step]}
        assert after & said == live


def test_what_recall_wakes_belongs_to_the_turn_it_wakes_for(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, FACT))
    chatter(weave, window, 20)
    list(weave.turns.steps(window, "What about the lighthouse?"))
    life = weave.windows.life(window)
    (woke,) = [one for one in life.events if one.event == "woke" and one.chunk == 0]
    assert life.turns[woke.step] == life.turns[-2]
    assert woke.why == "recall"


def test_what_another_window_lent_is_part_of_the_life_and_marked(assembled):
    weave = assembled()
    there = weave.windows.create("there", settings=SMALL).id
    list(weave.turns.steps(there, FACT))
    here = weave.windows.create("here", settings=SMALL).id
    list(weave.turns.steps(here, "What about the lighthouse?"))
    life = weave.windows.life(here)
    foreign = {life.keys[place].turn_id for place in life.foreign}
    assert foreign
    assert foreign.isdisjoint(life.turns)
    assert set(life.foreign) <= set(life.live)
