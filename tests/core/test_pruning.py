import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.pruning import PruneReason, plan_prune
from halo_weave.core.strategies.surprise import Surprise
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.working_set import WorkingSet
from halo_weave.errors import BadSetting
from tests.core.conversations import chunk, live, said, window_of

U, A = Role.USER, Role.ASSISTANT


def names(plan) -> list[str]:
    return [f"{key.role[0].upper()}T{key.turn_id}S{key.chunk_id}" for key in plan.keys]


def turns_3_and_4() -> WorkingSet:
    """The seeds' example: bright 9,000, medium 5,000, dim 1,000, very dim 100."""
    levels = {3: [9_000, 1_001, 5_000], 4: [9_001, 1_002, 5_001, 9_002, 100]}
    items, position = [], 0
    for turn, brightness in levels.items():
        for number, level in enumerate(brightness):
            item = chunk(turn, number, U if turn == 3 else A, position, 10, 3 if turn == 4 else None)
            items.append(live(item, level))
            position += 10
    items.append(live(chunk(5, 0, U, position, 10)))
    return WorkingSet(items)


def test_the_pruning_sequence_of_turns_3_and_4():
    window = turns_3_and_4()
    plan = plan_prune(window, 30, current={5})
    assert names(plan) == ["AT4S4", "UT3S1", "AT4S1", "UT3S2", "AT4S2", "AT4S3"]
    window.remove(plan.keys)
    assert [chunk.key.chunk_id for chunk in window.chunks] == [0, 0, 0]


def test_the_anchors_of_turns_3_and_4_go_together():
    window = turns_3_and_4()
    window.add([live(chunk(6, 0, U, 1_000, 10))])
    plan = plan_prune(window, 20, current={5})
    assert names(plan)[-2:] == ["UT3S0", "AT4S0"]
    assert [prune.why for prune in plan.chunks[-2:]] == [PruneReason.DIMMEST, PruneReason.PAIR]
    assert plan.after == 20


def test_an_anchor_whose_pair_is_gone_goes_alone_once_it_is_the_last_of_its_turn():
    window = WorkingSet(
        [
            live(chunk(2, 0, A, 0, 5, answers=1), 1),
            live(chunk(2, 1, A, 5, 5, answers=1), 2),
            live(chunk(9, 0, U, 50, 5)),
        ]
    )
    assert names(plan_prune(window, 12)) == ["AT2S1"]
    assert names(plan_prune(window, 5)) == ["AT2S1", "AT2S0"]


def test_a_question_stays_while_any_chunk_of_its_answer_is_live():
    window = WorkingSet(
        [live(chunk(1, 0, U, 0, 5), 1), live(chunk(2, 3, A, 30, 5, answers=1), 9_000, pinned=True)]
    )
    window.add([live(chunk(5, 0, U, 100, 5), 50), live(chunk(6, 0, U, 200, 5), 60)])
    assert names(plan_prune(window, 1)) == ["UT5S0"]


def test_pairs_need_not_be_neighbours():
    """With several windows, a question and its answer may have other turns between them."""
    window = WorkingSet(
        [
            live(chunk(1, 0, U, 0, 5), 1),
            live(chunk(7, 0, A, 100, 5, answers=1), 9_000),
            live(chunk(8, 0, U, 200, 5), 5_000),
            live(chunk(9, 0, U, 300, 5), 6_000),
        ]
    )
    assert names(plan_prune(window, 12)) == ["UT1S0", "AT7S0"]


def test_a_pinned_anchor_keeps_its_pair():
    window = WorkingSet(
        [live(chunk(1, 0, U, 0, 5), 1), live(chunk(2, 0, A, 5, 5, answers=1), 1, pinned=True)]
    )
    window.add([live(chunk(3, 0, U, 50, 5)), live(chunk(5, 0, U, 70, 5))])
    assert names(plan_prune(window, 1)) == ["UT3S0"]


def test_ties_go_to_the_older_chunk():
    window = WorkingSet([live(chunk(turn, 0, U, turn * 10, 5), 7) for turn in (1, 3, 5)])
    assert names(plan_prune(window, 10)) == ["UT1S0"]
    assert [one.why for one in plan_prune(window, 10).chunks] == [PruneReason.OLDEST]


def test_one_bright_token_keeps_a_chunk():
    dim, bright = np.full(5, 50.0), np.array([-900, -900, 60, -900, -900])
    window = WorkingSet([live(chunk(1, 0, U, 0, 5), dim), live(chunk(3, 0, U, 10, 5), bright)])
    assert names(plan_prune(window, 5)) == ["UT1S0"]
    window.use(Surprise())
    assert names(plan_prune(window, 5)) == ["UT3S0"]  # by its mean it is the dimmest


def test_the_last_prunable_chunk_stays_and_what_is_over_is_said():
    window = WorkingSet([live(chunk(1, 0, U, 0, 50), 1), live(chunk(3, 0, U, 100, 50), 2)])
    plan = plan_prune(window, 10)
    assert names(plan) == ["UT1S0"]
    assert (plan.after, plan.over) == (50, 40)


def test_a_budget_below_the_protected_part_prunes_what_it_can():
    window = WorkingSet(
        [
            live(chunk(1, 0, U, 0, 50), pinned=True),
            live(chunk(3, 0, U, 100, 50), 1),
            live(chunk(5, 0, U, 200, 9), 2),
        ]
    )
    window.add([live(chunk(7, 0, U, 300, 20))])
    plan = plan_prune(window, 10, current={7})
    assert names(plan) == ["UT3S0"]
    assert plan.over == 69


def test_a_budget_of_zero_prunes_nothing_and_a_negative_one_is_refused():
    window = turns_3_and_4()
    assert plan_prune(window, 0).chunks == ()
    with pytest.raises(BadSetting, match="positive"):
        plan_prune(window, -1)


def test_the_plan_says_how_bright_each_was_among_how_many():
    window = turns_3_and_4()
    first = plan_prune(window, 80, current={5}).chunks[0]
    assert (first.key, first.brightness, first.tokens) == (ChunkKey(4, 4, A), 100, 10)
    assert first.rivals == 5  # the other prunable chunks: two of turn 3, three of turn 4


def test_the_frame_of_a_turn_that_is_gone_counts():
    window = WorkingSet(
        [live(chunk(1, 0, U, 0, 5), 1), live(chunk(3, 0, U, 10, 5), 2)], frame_tokens={U: 4}, system_tokens=3
    )
    assert window.size == 21
    assert plan_prune(window, 12).after == 12


def lone_units(window: WorkingSet, current: set[int]) -> int:
    """How many more units a plan would take if it could: found by asking for one chunk less, again and again."""
    count = 0
    while (plan := plan_prune(window, max(1, window.size - 1), current=current)).chunks:
        window.remove(plan.keys)
        count += 1
    return count


@given(said(), st.integers(1, 80), st.data())
def test_the_budget_is_kept_while_anything_prunable_is_left(items, budget, data):
    window = window_of(items)
    turns = sorted({item.chunk.key.turn_id for item in items})
    current = set(data.draw(st.lists(st.sampled_from(turns), max_size=2)))
    plan = plan_prune(window, budget, current=current)
    before = {chunk.key: chunk for chunk in window.chunks}
    for key in plan.keys:
        assert key.turn_id not in current
        assert key.role is not Role.SYSTEM
        assert key not in window.pinned
    gone = window.remove(plan.keys)
    assert window.size == plan.after
    assert plan.after <= budget or lone_units(window, current) == 0
    assert {item.chunk.key for item in gone} | {chunk.key for chunk in window.chunks} >= set(before) - {
        key for key in before if key not in plan.keys and key not in window
    }


@given(said(), st.integers(1, 80))
def test_no_chunk_is_pruned_that_was_not_needed(items, budget):
    """Without the last unit of the plan, the window would still be over its budget."""
    window = window_of(items)
    plan = plan_prune(window, budget)
    if plan.chunks:
        last = max(i for i, prune in enumerate(plan.chunks) if prune.why is not PruneReason.PAIR)
        window.remove(plan.keys[:last])
        assert window.size > budget


@given(said(), st.integers(1, 80))
def test_an_answer_is_never_left_without_its_question(items, budget):
    window = window_of(items)
    window.remove(plan_prune(window, budget).keys)
    live_keys = {chunk.key for chunk in window.chunks}
    for chunk_ in window.chunks:
        if chunk_.answers is not None:
            assert ChunkKey(chunk_.answers, 0, Role.USER) in live_keys
        assert ChunkKey(chunk_.key.turn_id, 0, chunk_.key.role) in live_keys  # its own opening


@given(said(), st.integers(1, 80))
def test_the_same_window_gives_the_same_plan(items, budget):
    assert plan_prune(window_of(items), budget) == plan_prune(window_of(items[::-1]), budget)
