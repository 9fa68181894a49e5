"""What stays whatever its brightness, and what a strategy keeps of tokens that sleep and return."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.store.records import ChunkMove
from tests.chat.conftest import SMALL, Assembled, of
from tests.fakes.scripted_engine import ScriptedEngine, Visible

FACT = "My lighthouse key lies under the blue pot."


def at_the_fact(at: Visible) -> np.ndarray:
    """While a reply is written: only at the fact. While it is read: at everything alike."""
    weights = np.ones(len(at.ids), np.float32)
    if "assistant\n" in at.text[-40:]:
        weights[(at.labels >= 0) & (at.labels < 10)] = 1e6
    return weights


def chatter(weave: Weave, window: str, count: int) -> None:
    for i in range(count):
        list(weave.turns.steps(window, f"Sentence number {i} speaks about weather{i} and bread{i} only."))


def live_keys(weave: Weave, window: str) -> list[ChunkKey]:
    return [one.chunk.key for turn in weave.windows.context(window).turns for one in turn.chunks]


@pytest.mark.parametrize("keep", [True, False])
def test_what_woke_up_and_was_used_stays_for_one_more_turn(assembled: Assembled, keep: bool) -> None:
    weave = assembled(ScriptedEngine(answer=lambda _: "Well.", look=at_the_fact))
    settings = {**SMALL, "strategy": "surprise", "max_context_tokens": 200, "protect_used": keep}
    window = weave.windows.create("one", settings=settings).id
    list(weave.turns.steps(window, FACT))
    fact = ChunkKey(1, 0, Role.USER)
    store = weave.runtime.store
    dark = [ChunkMove(one.key, np.full(len(one.chunk), -1, np.float32)) for one in store.live(window)]
    store.prune(window, dark, now=datetime(2026, 5, 4, tzinfo=UTC))
    chatter(weave, window, 8)
    turn = list(weave.turns.steps(window, "Where is the lighthouse key?"))
    assert fact in {one.chunk.key for event in of(events.ChunksResurrected, turn) for one in event.chunks}
    used = {one.key: one.share for one in of(events.ReplyStored, turn)[0].use.chunks}
    assert used[fact] > 0.5
    assert of(events.ChunksPruned, turn)
    assert (fact in live_keys(weave, window)) == keep


def test_the_last_exchanges_stay(assembled: Assembled) -> None:
    weave = assembled(ScriptedEngine(answer=lambda _: "Well."))
    window = weave.windows.create("one", settings={**SMALL, "max_context_tokens": 60}).id
    chatter(weave, window, 6)
    assert {key.turn_id for key in live_keys(weave, window)} <= {9, 10, 11, 12}
    weave.windows.change(window, settings={"protect_recent_exchanges": 3})
    chatter(weave, window, 2)
    assert {11, 12, 13, 14, 15, 16} <= {key.turn_id for key in live_keys(weave, window)}


def test_what_a_strategy_keeps_of_tokens_survives_sleep_and_restart(assembled: Assembled) -> None:
    weave = assembled()
    window = weave.windows.create("one", settings={**SMALL, "strategy": "use_and_surprise"}).id
    list(weave.turns.steps(window, FACT))
    fact = ChunkKey(1, 0, Role.USER)
    traces = weave.runtime.window_for_reading(window).working_set.at(fact).traces
    assert traces is not None
    assert traces[0].max() > 0
    weave.chunks.prune(window, fact)
    weave.chunks.resurrect(window, fact)
    again = assembled()
    kept = again.runtime.window_for_reading(window).working_set.at(fact).traces
    assert kept is not None
    np.testing.assert_array_equal(kept, traces)
    # Another strategy keeps nothing of the kind, and works with what is there; and back.
    for name in ("magnitude_voting", "use_and_surprise"):
        again.windows.change(window, settings={"strategy": name})
        list(again.turns.steps(window, "And now?"))
    assert fact in live_keys(again, window)
