from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.core.brightness import (
    AttentionRow,
    RowFault,
    StrategyInput,
    TokenBrightness,
    means,
    peaks,
    resurrected_brightness,
)
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.strategies.surprise import Surprise
from halo_weave.core.tokens import Role
from halo_weave.core.working_set import WorkingSet
from tests.core.conversations import chunk, live


def row(shares: list[float], **aside: float) -> AttentionRow:
    return AttentionRow(np.array(shares, np.float32), **aside)


def window(tokens: int = 4, reply: int = 0, strategy=None) -> WorkingSet:
    made = WorkingSet([live(chunk(1, 0, Role.USER, 0, tokens), 100.0)], strategy=strategy)
    made.begin_reply(2, 100, 1)
    for i in range(reply):
        made.append_reply_token(i, b"r")
    return made


def state(brightness: np.ndarray, scored: int) -> StrategyInput:
    """One chunk of tokens, as a strategy sees it."""
    only = chunk(1, 0, Role.USER, 0, len(brightness))
    return StrategyInput(
        TokenBrightness(brightness), [only], np.array([0, len(brightness)]), np.zeros(1, np.int64), scored
    )


def voted_by_hand(brightness, shares, sink, context, cap=10_000, decay=1):
    threshold = (1 - sink) / (context - 1)
    return [
        min(cap, b + (int(a / threshold) if a > threshold else -decay))
        for b, a in zip(brightness, shares, strict=True)
    ]


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=60).filter(lambda votes: sum(votes) > max(votes)),
    st.integers(0, 20),
    st.integers(0, 500),
    st.data(),
)
def test_magnitude_voting_is_the_rule_written_out_for_each_token(weights, aside, aside_weight, data):
    total = sum(weights) + (aside_weight if aside else 0)
    shares = (np.array(weights) / total).astype(np.float32)
    brightness = data.draw(st.lists(st.integers(-300, 10_000), min_size=len(weights), max_size=len(weights)))
    peak = aside_weight / total if aside else 0.0
    scored = data.draw(st.integers(0, len(weights)))
    seen = AttentionRow(shares, frames=peak, aside=aside, aside_peak=peak)
    before = np.array(brightness, np.float32)
    exact = [float(share) for share in shares]
    expected = voted_by_hand(brightness[:scored], exact[:scored], max([*exact, peak]), len(weights) + aside)
    after = MagnitudeVoting().brighten(state(before, scored), seen)
    assert after.brightness.tolist() == [*expected, *brightness[scored:]]
    assert before.tolist() == brightness  # what was seen is not changed


@given(
    st.floats(2**-10, 1 - 2**-10, width=32), st.integers(3, 5_000), st.lists(st.integers(-3, 3), min_size=1)
)
def test_a_token_gains_exactly_when_its_share_is_above_the_threshold(sink, context, steps):
    """Shares a few float32 steps around the threshold, against arithmetic without rounding."""
    threshold = (1 - Fraction(sink)) / (context - 1)
    near = np.float32(float(threshold))
    shares = [sink, *(near + np.spacing(near) * np.float32(step) for step in steps)]
    seen = AttentionRow(np.array(shares, np.float32), aside=max(0, context - len(shares)))
    threshold = (1 - Fraction(float(seen.tokens.max()))) / (seen.length - 1)
    before = np.zeros(len(shares), np.float32)
    after = MagnitudeVoting().brighten(state(before, len(shares)), seen)
    gained = (after.brightness > 0).tolist()
    assert gained == [Fraction(float(share)) > threshold for share in seen.tokens]


def test_the_sink_may_be_the_first_token_as_in_the_prototype():
    seen = row([0.4, 0.5, 0.06, 0.04])
    made = window(strategy=MagnitudeVoting(sink="first"))
    made.update(seen)  # threshold 0.2
    assert made.brightness.tolist() == [102, 102, 99, 99]


def test_a_first_token_outside_the_chunks_is_the_sink_of_the_prototype():
    seen = row([0.1, 0.3, 0.1, 0.1], frames=0.4, aside=1, first=0.4)  # threshold 0.15
    made = window(strategy=MagnitudeVoting(sink="first"))
    made.update(seen)
    assert made.brightness.tolist() == [99, 102, 99, 99]


def test_brightness_is_capped_and_has_no_floor():
    made = WorkingSet([live(chunk(1, 0, Role.USER, 0, 3), np.array([9_999, -5_000, 10]))])
    made.update(row([0.45, 0.0, 0.55]))
    assert made.brightness.tolist() == [10_000, -5_001, 12]


def test_all_attention_on_the_sink_dims_every_other_token():
    made = window()
    assert made.update(row([0, 1, 0, 0])) is None
    assert made.brightness.tolist() == [99, 10_000, 99, 99]


def test_the_current_turn_is_scored_only_on_request():
    seen = row([0.1, 0.1, 0.1, 0.1, 0.3, 0.3])
    made = window(reply=2)
    made.update(seen)
    assert made.brightness.tolist() == [99] * 4 + [10_000] * 2
    made.update(seen, score_reply=True)
    assert made.brightness.tolist() == [98] * 4 + [10_000] * 2
    made.update(row([0.2, 0.2, 0.2, 0.2, 0.2, 0.0]), score_reply=True)
    assert made.brightness[-1] == 9_999


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        (None, RowFault.MISSING),
        (row([]), RowFault.EMPTY),
        (AttentionRow(np.full((2, 4), 0.125, np.float32)), RowFault.EMPTY),
        (row([0.5, 0.5]), RowFault.SHORT),
        (row([0.2] * 5), RowFault.LONG),
        (row([0.5, np.nan, 0.25, 0.25]), RowFault.NOT_FINITE),
        (row([0.5, np.inf, 0.25, 0.25]), RowFault.NOT_FINITE),
        (row([0.5, -np.inf, np.inf, 0.25]), RowFault.NOT_FINITE),
        (row([0.5, 0.25, 0.25, 0.0], frames=np.nan), RowFault.NOT_FINITE),
        (row([0.75, -0.25, 0.25, 0.25]), RowFault.NEGATIVE),
        (row([0.75, 0.25, 0.25, 0.25], system=-0.5), RowFault.NEGATIVE),
        (row([0.0] * 4), RowFault.ZERO),
        (row([0.5, 0.5, 0.5, 0.5]), RowFault.NOT_ONE),
        (row([0.1] * 4), RowFault.NOT_ONE),
    ],
)
@pytest.mark.parametrize("strategy", [MagnitudeVoting(), Surprise()])
def test_a_row_that_cannot_be_used_changes_nothing_and_is_counted(seen, fault, strategy):
    made = window(strategy=strategy)
    before = made.brightness.tobytes()
    assert made.update(seen) is fault
    assert made.brightness.tobytes() == before
    assert made.faults == {fault: 1}


def test_frames_and_system_prompt_complete_the_sum():
    made = window()
    assert made.update(row([0.1] * 4, frames=0.4, system=0.2, aside=5, aside_peak=0.3)) is None
    assert not made.faults


def test_a_chunk_is_as_bright_as_its_brightest_token():
    brightness = np.array([1, 9, 2, 3, 4], np.float32)
    assert peaks(brightness, np.array([0, 3, 5])).tolist() == [9, 4]
    assert means(brightness, np.array([0, 3, 5])).tolist() == [4, 3.5]
    assert peaks(brightness[:0], np.array([0])).size == means(brightness[:0], np.array([0])).size == 0


def test_surprise_keeps_what_was_not_expected():
    strategy = Surprise()
    born = strategy.new_tokens(np.array([0.5, 3.0, 50.0, np.nan], np.float32)).brightness
    assert born.tolist() == [500, 3_000, 10_000, 10_000]
    made = WorkingSet([live(chunk(1, 0, Role.USER, 0, 2), 500), live(chunk(3, 0, Role.USER, 9, 2), [1, 9])])
    made.use(strategy)
    assert made.chunk_brightness() == [500, 5]
    made.observe_surprisal(3, np.array([2.0, 4.0], np.float32))
    assert made.chunk_brightness() == [500, 3_000]


def test_a_chunk_returns_with_what_it_earned_or_as_much_as_the_others_or_as_new():
    earned = np.array([-50, 300, 5_000], np.float32)
    assert resurrected_brightness("earned", earned, mean=400).tolist() == [-50, 300, 5_000]
    assert resurrected_brightness("hybrid", earned, mean=400).tolist() == [400, 400, 5_000]
    assert resurrected_brightness("hybrid", earned, mean=-9).tolist() == [255, 300, 5_000]
    assert resurrected_brightness("fresh", earned, mean=400).tolist() == [10_000] * 3
