"""What is told of brightness: ranks, pins that can be taken back, the budget applied at once."""

from __future__ import annotations

import numpy as np
import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput
from tests.chat.conftest import SMALL, Assembled, of
from tests.chat.test_pruning_protection import FACT, chatter, live_keys
from tests.fakes.scripted_engine import ScriptedEngine

KEY = ChunkKey(1, 0, Role.USER)


def talked(assembled: Assembled, **settings: object) -> tuple[Weave, str]:
    weave = assembled(ScriptedEngine(answer=lambda _: "Well."))
    window = weave.windows.create("one", settings={**SMALL, "max_context_tokens": 0, **settings}).id
    list(weave.turns.steps(window, FACT))
    chatter(weave, window, 5)
    return weave, window


def brightness(weave: Weave, window: str) -> np.ndarray:
    return weave.windows.context(window).turns[0].chunks[0].brightness


@pytest.mark.parametrize("strategy", ["magnitude_voting", "use_and_surprise"])
def test_a_pinned_chunk_is_the_brightest_and_unpinned_it_is_what_it_was(
    assembled: Assembled, strategy: str
) -> None:
    weave, window = talked(assembled, strategy=strategy)
    before = brightness(weave, window)
    assert before.max() < 10_000
    weave.chunks.pin(window, KEY)
    assert np.all(brightness(weave, window) == 10_000)
    assert weave.chunks.why(window, KEY).rank == 100
    weave.chunks.unpin(window, KEY)
    np.testing.assert_array_equal(brightness(weave, window), before)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_sleep_by_hand_can_be_taken_back(assembled: Assembled, pinned: bool) -> None:
    weave, window = talked(assembled)
    if pinned:
        weave.chunks.pin(window, KEY)
    before = weave.windows.context(window).turns[0].chunks[0]
    weave.chunks.prune(window, KEY)
    assert KEY not in live_keys(weave, window)
    weave.chunks.undo_prune(window, KEY)
    after = weave.windows.context(window).turns[0].chunks[0]
    assert after.pinned == pinned
    np.testing.assert_array_equal(after.brightness, before.brightness)
    with pytest.raises(BadInput, match="awake already"):
        weave.chunks.undo_prune(window, KEY)


def test_what_the_user_wakes_is_pinned_and_unpinned_as_bright_as_it_was(assembled: Assembled) -> None:
    weave, window = talked(assembled)
    before = brightness(weave, window)
    weave.chunks.prune(window, KEY)
    assert weave.chunks.resurrect(window, KEY).resurrected[0].pinned
    weave.chunks.unpin(window, KEY)
    np.testing.assert_array_equal(brightness(weave, window), before)


def test_ranks_order_the_chunks_from_0_to_100_and_are_told_at_the_end_of_a_turn(assembled: Assembled) -> None:
    weave, window = talked(assembled, strategy="use_and_surprise")
    turn = list(weave.turns.steps(window, "And one more sentence about herons."))
    seen = [one for turn in weave.windows.context(window).turns for one in turn.chunks]
    ranks = [one.rank for one in seen]
    assert (min(ranks), max(ranks)) == (0, 100)
    bright = weave.runtime.window_for_reading(window).working_set.chunk_brightness()
    assert np.all(np.diff(np.array(ranks)[np.argsort(bright)]) >= 0)
    assert of(events.TurnEnded, turn)[0].ranks == {str(one.key): one.rank for one in seen}
    why = weave.chunks.why(window, KEY)
    assert set(why.parts) == {"surprisal", "use"}
    assert why.rank == seen[0].rank


def test_the_budget_can_be_applied_at_once_and_says_what_went(assembled: Assembled) -> None:
    weave, window = talked(assembled)
    everything = live_keys(weave, window)
    assert weave.windows.prune(window).chunks == ()
    weave.windows.change(window, settings={"max_context_tokens": 120})
    slept = weave.windows.prune(window)
    assert [one.key for one in slept.chunks] == [
        key for key in everything if key not in live_keys(weave, window)
    ]
    assert slept.chunks
    assert weave.windows.context(window).budget.used <= 120
    last = max(key.turn_id for key in everything)
    assert {last, last - 1} <= {key.turn_id for key in live_keys(weave, window)}
    assert weave.windows.prune(window).chunks == ()
