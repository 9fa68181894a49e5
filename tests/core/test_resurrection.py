import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.resurrection import (
    RecallCandidate,
    RecallHit,
    ResurrectReason,
    plan_recall,
    recall_threshold,
    resurrection_room,
)
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.errors import BadInput, BadSetting, UnknownChunk

U, A, S = Role.USER, Role.ASSISTANT, Role.SYSTEM


def sleeper(turn: int, number: int, role: Role, tokens: int, **more) -> RecallCandidate:
    return RecallCandidate(ChunkKey(turn, number, role), tokens, **more)


def asleep(*sleepers: RecallCandidate) -> dict[ChunkKey, RecallCandidate]:
    return {one.key: one for one in sleepers}


QUESTION = sleeper(29, 0, U, 30, pair_key=ChunkKey(30, 0, A))
OPENING = sleeper(30, 0, A, 70, pair_key=ChunkKey(29, 0, U))
FIFTH = sleeper(30, 5, A, 80, pair_key=ChunkKey(29, 0, U))
GRAVEYARD = asleep(QUESTION, OPENING, FIFTH)


@pytest.mark.parametrize(("live", "user", "room"), [(0, 200, 31_600), (25_000, 200, 6_600)])
def test_the_universal_equation(live, user, room):
    assert resurrection_room(model_context=32_000, live=live, user=user, max_new=200) == room


@pytest.mark.parametrize(("user", "room"), [(40, 472), (200, 312), (512, 0), (800, 0)])
def test_the_quota_of_the_graveyard(user, room):
    assert resurrection_room(model_context=32_000, live=0, user=user, max_new=200, quota=512) == room


def test_the_windows_budget_limits_the_room_and_zero_does_not():
    assert (
        resurrection_room(model_context=8_192, live=1_900, user=50, max_new=256, max_context=2_000) == 2_000
    )
    assert resurrection_room(model_context=8_192, live=1_900, user=50, max_new=256, max_context=0) == 5_986


def test_negative_room_says_that_something_must_sleep_first():
    assert resurrection_room(model_context=2_048, live=1_900, user=100, max_new=256) == -208
    with pytest.raises(BadSetting, match="negative"):
        resurrection_room(model_context=-1, live=0, user=0, max_new=0)


def test_the_cost_of_an_s5_hit_is_its_question_its_opening_and_itself():
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], GRAVEYARD, 500)
    assert plan.cost == 30 + 70 + 80
    assert {(planned.key, planned.reason) for planned in plan.chunks} == {
        (FIFTH.key, ResurrectReason.HIT),
        (QUESTION.key, ResurrectReason.QUESTION),
        (OPENING.key, ResurrectReason.ANCHOR),
    }


def test_the_opening_counts_once_when_it_is_the_hit():
    plan = plan_recall([RecallHit(OPENING.key, 0.9)], GRAVEYARD, 500)
    assert plan.cost == 30 + 70


def test_a_question_brings_the_opening_of_its_answer():
    plan = plan_recall([RecallHit(QUESTION.key, 0.9)], GRAVEYARD, 500)
    assert [(planned.key, planned.reason) for planned in plan.chunks] == [
        (QUESTION.key, ResurrectReason.HIT),
        (OPENING.key, ResurrectReason.ANSWER),
    ]


def test_what_is_live_is_free():
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], asleep(FIFTH, OPENING), 500, live={QUESTION.key})
    assert plan.cost == 150


def test_a_hit_and_its_pairs_wake_up_together_or_not_at_all():
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], GRAVEYARD, 179)
    assert plan.chunks == ()
    assert plan.passed_over[0].cost == 180


def test_a_smaller_hit_takes_the_room_that_a_larger_one_could_not():
    small = sleeper(99, 0, U, 20)
    plan = plan_recall(
        [RecallHit(FIFTH.key, 0.9), RecallHit(small.key, 0.1)], {**GRAVEYARD, **asleep(small)}, 100
    )
    assert plan.keys == (small.key,)


def test_ranked_pairs_come_before_weaker_hits_and_after_stronger_ones():
    strong, weak = sleeper(99, 0, U, 10), sleeper(97, 0, U, 10)
    hits = [RecallHit(FIFTH.key, 10.0), RecallHit(strong.key, 8.0), RecallHit(weak.key, 3.0)]
    plan = plan_recall(hits, {**GRAVEYARD, **asleep(strong, weak)}, 500, pairs="ranked")
    assert plan.keys[:3] == (FIFTH.key, strong.key, QUESTION.key)
    assert plan.keys[-1] == weak.key


@pytest.mark.parametrize(("pairs", "first"), [("ranked", 97), ("off", 97), ("with", 99)])
def test_of_hits_that_fit_about_as_well_the_shorter_comes_first_unless_pairs_come_with_them(pairs, first):
    long, short = sleeper(99, 0, U, 200), sleeper(97, 0, U, 20)
    hits = [RecallHit(long.key, 5.0), RecallHit(short.key, 4.5)]
    assert plan_recall(hits, asleep(long, short), 500, pairs=pairs).keys[0].turn_id == first
    hits = [RecallHit(long.key, 9.0), RecallHit(short.key, 4.5)]
    assert plan_recall(hits, asleep(long, short), 500, pairs=pairs).keys[0].turn_id == 99


def test_ranked_a_hit_wakes_up_without_a_pair_that_does_not_fit():
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], GRAVEYARD, FIFTH.tokens, pairs="ranked")
    assert plan.keys == (FIFTH.key,)
    assert plan.passed_over == ()


def test_ranked_pairs_of_a_hit_that_did_not_fit_stay_asleep():
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], GRAVEYARD, FIFTH.tokens - 1, pairs="ranked")
    assert plan.keys == ()


def test_pairs_off_wakes_the_hits_alone():
    assert plan_recall([RecallHit(FIFTH.key, 0.9)], GRAVEYARD, 500, pairs="off").keys == (FIFTH.key,)


def test_system_chunks_come_alone():
    alone = sleeper(1, 1, S, 10, pair_key=QUESTION.key)
    everything = {**GRAVEYARD, **asleep(alone, sleeper(1, 0, S, 10))}
    assert plan_recall([RecallHit(alone.key, 1.0)], everything, 500).keys == (alone.key,)


def test_equals_go_by_brightness_at_deletion_then_by_recency():
    one = sleeper(1, 0, U, 10, peak=5, start=0)
    two = sleeper(3, 0, U, 10, peak=9, start=10)
    three = sleeper(5, 0, U, 10, peak=5, start=20)
    hits = [RecallHit(item.key, 0.5) for item in (one, two, three)]
    assert plan_recall(hits, asleep(one, two, three), 30).keys == (two.key, three.key, one.key)


def test_a_frame_is_paid_once_for_a_turn_that_is_not_live():
    frames = {U: 3, A: 5}
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], GRAVEYARD, 500, frame_tokens=frames)
    assert plan.cost == 180 + 3 + 5
    plan = plan_recall(
        [RecallHit(FIFTH.key, 0.9)], asleep(FIFTH, QUESTION), 500, live={OPENING.key}, frame_tokens=frames
    )
    assert plan.cost == 80 + 30 + 3


def test_a_pair_that_was_deleted_is_not_missed():
    plan = plan_recall([RecallHit(FIFTH.key, 0.9)], asleep(FIFTH, OPENING), 500)
    assert plan.keys == (FIFTH.key, OPENING.key)


def test_an_unknown_chunk_is_refused():
    with pytest.raises(UnknownChunk, match=r"7\.0\.user"):
        plan_recall([RecallHit(ChunkKey(7, 0, U), 0.5)], GRAVEYARD, 500)
    with pytest.raises(BadInput, match="not a number"):
        plan_recall([RecallHit(FIFTH.key, float("nan"))], GRAVEYARD, 500)


@st.composite
def graveyards(draw):
    sleepers, live = {}, set()
    for exchange in range(draw(st.integers(1, 8))):
        turns = [(2 * exchange + 1, U), (2 * exchange + 2, A)]
        for (turn, role), (other, other_role) in zip(turns, reversed(turns), strict=True):
            for number in range(draw(st.integers(1, 3))):
                key = ChunkKey(turn, number, role)
                if draw(st.integers(0, 3)) == 0 and (number == 0 or ChunkKey(turn, 0, role) in live):
                    live.add(key)
                else:
                    peak = draw(st.integers(-5, 5))
                    sleepers[key] = RecallCandidate(
                        key,
                        draw(st.integers(1, 90)),
                        peak,
                        turn * 100 + number,
                        ChunkKey(other, 0, other_role),
                    )
    hits = [RecallHit(key, draw(st.integers(0, 4)) / 4) for key in draw(st.permutations(sorted(sleepers)))]
    return hits[: draw(st.integers(0, len(hits)))], sleepers, live


@given(graveyards(), st.integers(-10, 400), st.sampled_from(["ranked", "with", "off"]))
def test_a_plan_stays_in_the_room_and_wakes_nothing_twice(graveyard, room, pairs):
    hits, sleepers, live = graveyard
    plan = plan_recall(hits, sleepers, room, live=live, frame_tokens={U: 4, A: 3}, pairs=pairs)
    assert plan.cost <= max(0, room)
    assert plan.cost == sum(planned.cost for planned in plan.chunks)
    assert len(set(plan.keys)) == len(plan.keys)
    assert not set(plan.keys) & live
    new_turns = {key.turn_id for key in plan.keys} - {key.turn_id for key in live}
    frames = sum(4 if turn % 2 else 3 for turn in new_turns)
    assert plan.cost == sum(sleepers[key].tokens for key in plan.keys) + frames


@given(graveyards(), st.integers(0, 400))
def test_an_answer_never_wakes_up_without_its_question(graveyard, room):
    hits, sleepers, live = graveyard
    awake = set(plan_recall(hits, sleepers, room, live=live).keys) | live
    for key in awake - live:
        if key.role is A:
            assert ChunkKey(key.turn_id - 1, 0, U) in awake
        assert ChunkKey(key.turn_id, 0, key.role) in awake


@given(graveyards(), st.integers(0, 400), st.randoms())
def test_the_order_in_which_hits_come_does_not_matter(graveyard, room, random):
    hits, sleepers, live = graveyard
    shuffled = list(hits)
    random.shuffle(shuffled)
    assert plan_recall(hits, sleepers, room, live=live) == plan_recall(shuffled, sleepers, room, live=live)


def hits_of(*similarities: float) -> list[RecallHit]:
    return [RecallHit(ChunkKey(2 * i + 1, 0, U), one) for i, one in enumerate(similarities)]


def test_the_best_hit_decides_whether_a_message_needs_memory_at_all():
    assert recall_threshold([], 0.1, 512) is None
    assert recall_threshold(hits_of(-3.0, -4.0), 0.1, 512) is None
    assert recall_threshold(hits_of(-3.0, -3.0, -3.0), 0.1, 512) is not None  # several together
    assert recall_threshold(hits_of(-2.0, -4.0), 0.1, 512) is not None
    assert recall_threshold(hits_of(-9.0), 0, 512) is not None  # 0: the best there is


def test_others_come_with_the_best_as_far_as_they_are_not_much_less_likely():
    least = recall_threshold(hits_of(-0.1, -2.5, -9.0), 0.1, 512)
    assert least is not None
    assert -9 < least < -2.5


def test_with_more_room_less_likely_chunks_are_worth_their_tokens():
    small, usual, large = (recall_threshold(hits_of(-0.1), 0.1, room) for room in (64, 512, 2048))
    assert small == usual
    assert large is not None
    assert usual is not None
    assert large < usual


def test_similarity_is_the_logarithm_of_the_probability():
    assert hits_of(0.0)[0].probability == 1.0
    assert hits_of(-0.6931)[0].probability == pytest.approx(0.5, abs=1e-4)
    assert hits_of(-1e6)[0].probability < 1e-9
