"""Settings that are said to change nothing under a strategy: the same chunks fall asleep whatever their value."""

import pytest

from halo_weave.chat import events
from halo_weave.core.strategies import STRATEGIES
from halo_weave.settings import Settings, described_settings, no_effect
from tests.chat.conftest import SMALL, of
from tests.chat.test_branches import say
from tests.fakes.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.slow

OTHERWISE = {
    "resurrection_brightness": "fresh",
    "score_current_turn": True,
    "initial_brightness": 50.0,
    "brightness_cap": 300.0,
}
SAID = ("My cat is called Mochi.", "The harbour freezes in March.", "Ships need pilots.", "Is Mochi a cat?")


def slept(assembled, **changes):
    weave = assembled(ScriptedEngine())
    settings = SMALL | {"max_context_tokens": 90, "memory_scope": "window"} | changes
    window = weave.windows.create("one", settings=settings).id
    order = []
    base = None
    for number in range(12):
        turn = say(weave, window, f"{SAID[number % 4]} {number} bells.")
        base = base or of(events.MessageStored, turn)[0].turn_id  # ids go on over windows of one memory
        order.append(
            [
                (one.key.turn_id - base, one.key.chunk_id)
                for event in of(events.ChunksPruned, turn)
                for one in event.chunks
            ]
        )
        order.append(
            [(one.key.turn_id - base) for event in of(events.ChunksResurrected, turn) for one in event.chunks]
        )
    assert any(order)
    return order


@pytest.mark.parametrize(
    ("strategy", "name"), [(name, one) for name, kind in STRATEGIES.items() for one in kind.ignores]
)
def test_what_is_ignored_does_not_change_what_falls_asleep(assembled, strategy, name):
    usual = slept(assembled, strategy=strategy)
    assert slept(assembled, strategy=strategy, **{name: OTHERWISE[name]}) == usual


def test_the_default_strategy_says_what_it_ignores():
    told = {one["name"]: one["no_effect"] for one in described_settings()}
    default = Settings().strategy
    assert {name for name, reasons in told.items() if default in reasons} == {
        "resurrection_brightness",
        "score_current_turn",
        "decay",
        "sink",
        "fade_per_token",
        "fade_rate",
        "aggregate",
    }
    assert no_effect("decay")[default] == "only magnitude_voting uses it."
    assert not told["temperature"]


def test_every_ignored_setting_is_a_general_one():
    for kind in STRATEGIES.values():
        assert set(kind.ignores) <= set(OTHERWISE)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [("magnitude_voting", "resurrection_brightness"), ("cumulative", "score_current_turn")],
)
def test_where_it_is_not_ignored_a_setting_changes_what_falls_asleep(assembled, strategy, name):
    usual = slept(assembled, strategy=strategy)
    assert slept(assembled, strategy=strategy, **{name: OTHERWISE[name]}) != usual
