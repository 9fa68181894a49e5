"""What the user chooses in a preview: what does not wake up, what wakes up too, and room for all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halo_weave.chat import Weave, events
from halo_weave.chat.recall_plan import RecallOverrides
from halo_weave.core.tokens import ChunkKey
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, Clock, WordRecall
from tests.fakes.scripted_engine import ScriptedEngine

FACTS = [
    "The lighthouse keeper is called Amaruq.",
    "The lighthouse lamp turns every nine seconds.",
    "The lighthouse stairs have two hundred steps.",
]
ASKED = "Tell me of the lighthouse."


def told(weave: Weave, **settings) -> tuple[str, list[ChunkKey]]:
    """Facts that sleep, among answers that have nothing to do with them."""
    assert isinstance(weave.engine, ScriptedEngine)
    weave.engine.replies = ["I see."] * 3
    window = weave.windows.create("one", settings={**SMALL, "resurrect_pairs": "off", **settings}).id
    keys = []
    for fact in FACTS:
        list(weave.turns.steps(window, fact))
        keys.append(weave.windows.context(window).turns[-2].chunks[0].chunk.key)
    for turn in weave.windows.context(window).turns:
        for chunk in turn.chunks:
            weave.chunks.prune(window, chunk.chunk.key)
    return window, keys


def said(weave: Weave, window: str, wish: RecallOverrides, text: str = ASKED) -> list[events.WindowEvent]:
    begun = weave.turns.send_message(window, text, overrides=wish).result(30)
    return list(weave.turns.follow(window, begun.last_event))


def woken(turn: list[events.WindowEvent]) -> list[ChunkKey]:
    return [
        chunk.key for event in turn if isinstance(event, events.ChunksResurrected) for chunk in event.chunks
    ]


def test_what_is_unticked_does_not_wake_up_and_the_rest_does(assembled):
    weave = assembled()
    window, (keeper, lamp, stairs) = told(weave)
    wish = RecallOverrides(without=frozenset([lamp]))
    assert set(weave.memory.preview(window, ASKED, wish).plan.keys) == {keeper, stairs}
    assert set(woken(said(weave, window, wish))) == {keeper, stairs}


def test_a_pair_that_is_unticked_does_not_come_along(assembled):
    weave = assembled()
    window = weave.windows.create("one", settings=SMALL).id
    weave.engine.replies = ["Amaruq and her two sons keep the lighthouse by the northern harbour."]
    list(weave.turns.steps(window, "Who keeps the lighthouse?"))
    for turn in weave.windows.context(window).turns:
        for chunk in turn.chunks:
            weave.chunks.prune(window, chunk.chunk.key)
    preview = weave.memory.preview(window, "lighthouse")
    assert len(preview.plan.keys) == 2
    wish = RecallOverrides(without=frozenset(key for key in preview.plan.keys if key.role == "user"))
    assert [key.role for key in woken(said(weave, window, wish, "lighthouse"))] == ["assistant"]


def test_a_chunk_that_is_ticked_wakes_up_though_the_words_do_not_find_it(assembled):
    weave = assembled()
    window, (keeper, *_) = told(weave)
    assert not weave.memory.preview(window, "Good morning.").plan.chunks
    wish = RecallOverrides(also=(keeper,))
    assert weave.memory.preview(window, "Good morning.", wish).plan.keys == (keeper,)
    assert woken(said(weave, window, wish, "Good morning.")) == [keeper]
    why = weave.chunks.why(window, keeper)
    assert why.live
    assert not why.pinned
    assert next(one.detail["by"] for one in why.history if one.event == "woke") == "user"


def test_what_is_ticked_comes_before_what_recall_finds(assembled):
    weave = assembled()
    window, keys = told(weave)
    one = weave.memory.preview(window, ASKED).plan.chunks[0].cost
    tokens = weave.memory.preview(window, ASKED).tokens
    weave.windows.change(window, settings={"resurrection_budget": tokens + one + 2})
    first = weave.memory.preview(window, ASKED)
    assert len(first.plan.keys) == 1
    left = next(key for key in keys if key not in first.plan.keys)
    assert {waking.key for waking in first.plan.passed_over} == set(keys) - set(first.plan.keys)
    assert left in first.texts
    assert woken(said(weave, window, RecallOverrides(also=(left,)))) == [left]


def test_room_is_made_for_one_message_beyond_the_recall_budget(assembled):
    weave = assembled()
    window, keys = told(weave, resurrection_budget=0)
    assert not weave.memory.preview(window, ASKED).plan.chunks
    given = RecallOverrides(room=True)
    assert set(weave.memory.preview(window, ASKED, given).plan.keys) == set(keys)
    assert set(woken(said(weave, window, given))) == set(keys)
    assert not woken(said(weave, window, RecallOverrides(), "And the lighthouse again?"))


def test_the_dimmest_make_room_when_the_models_context_is_full(assembled):
    weave = assembled(ScriptedEngine(context=260))
    window, keys = told(weave, max_context_tokens=0, max_new_tokens=20, resurrection_budget=0)
    while True:
        list(weave.turns.steps(window, "Some weather and some bread, on and on, as it goes every day."))
        preview = weave.memory.preview(window, ASKED, RecallOverrides(room=True))
        if preview.tokens_to_prune:
            break
    assert set(preview.plan.keys) == set(keys)
    turn = said(weave, window, RecallOverrides(room=True))
    made = [event for event in turn if isinstance(event, events.ChunksPruned) and event.before_turn]
    slept = {chunk.key for event in made for chunk in event.chunks}
    assert slept
    assert set(woken(turn)) == set(keys)
    assert not slept & set(woken(turn))
    assert isinstance(turn[-1], events.TurnEnded)
    assert turn[-1].reason == "eos"


class FarRecall(WordRecall):
    """All that it finds is far from what was asked."""

    def search(self, text, **more):
        return [replace(hit, similarity=-6.0) for hit in super().search(text, **more)]


@pytest.fixture
def far(tmp_path):
    store = SqliteStore(tmp_path / "memory.sqlite")
    weave = Weave(ScriptedEngine(), store, FarRecall(store), None, now=Clock())
    yield weave
    weave.close()


def test_near_misses_are_told_with_their_cost_and_wake_up_when_they_are_ticked(far):
    window, keys = told(far)
    preview = far.memory.preview(window, ASKED)
    assert not preview.plan.chunks
    assert {one.key for one in preview.near} == set(keys)
    assert all(one.cost > 0 and preview.texts[one.key] in FACTS for one in preview.near)
    one = preview.near[0]
    ticked = far.memory.preview(window, ASKED, RecallOverrides(also=(one.key,)))
    assert ticked.plan.keys == (one.key,)
    assert ticked.plan.cost == one.cost
    assert one.key not in {near.key for near in ticked.near}
    assert woken(said(far, window, RecallOverrides(also=(one.key,)))) == [one.key]
