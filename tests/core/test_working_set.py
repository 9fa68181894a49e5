from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from halo_weave.core.brightness import AttentionRow, resurrected_brightness
from halo_weave.core.pruning import plan_prune
from halo_weave.core.resurrection import RecallCandidate, RecallHit, plan_recall
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk, WorkingSet, chunk_turn
from halo_weave.errors import BadInput, UnknownChunk
from tests.core.conversations import Traced, chunk, live, tokens

U, A = Role.USER, Role.ASSISTANT


def two_turns() -> WorkingSet:
    return WorkingSet(
        [
            live(chunk(1, 0, U, 0, 3), np.array([1, 2, 3])),
            live(chunk(2, 0, A, 10, 2, answers=1), np.array([4, 5])),
            live(chunk(2, 1, A, 12, 2, answers=1), np.array([6, 7])),
        ],
        frame_tokens={U: 3, A: 2},
    )


def test_an_attention_row_reaches_its_tokens_after_a_prune():
    window = two_turns()
    window.remove([ChunkKey(2, 0, A)])
    window.update(AttentionRow(np.array([0.5, 0.05, 0.05, 0.35, 0.05], np.float32)))
    assert window.at(ChunkKey(2, 1, A)).brightness.tolist() == [8, 6]  # 6 + 2 votes, 7 - 1


def test_a_woken_chunk_stands_at_its_original_place():
    window = two_turns()
    (gone,) = window.remove([ChunkKey(2, 0, A)])
    window.add([gone])
    assert [one.key for one in window.chunks] == [ChunkKey(1, 0, U), ChunkKey(2, 0, A), ChunkKey(2, 1, A)]
    assert window.brightness.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_frame_counts_exactly_while_any_of_its_turn_is_live():
    window = two_turns()
    assert window.turns == [(1, U), (2, A)]
    assert window.size == 7 + 3 + 2
    window.remove([ChunkKey(2, 0, A)])
    assert window.turns == [(1, U), (2, A)]
    window.remove([ChunkKey(2, 1, A)])
    assert window.turns == [(1, U)]
    assert window.size == 3 + 3


def test_a_window_is_restored_bit_by_bit():
    window = two_turns()
    window.update(AttentionRow(np.array([0.9, 0.04, 0, 0, 0.06, 0, 0], np.float32)))
    (one,) = window.remove([ChunkKey(2, 1, A)])
    odd = np.full(2, np.nextafter(np.float32(1), np.float32(2)))
    window.add([LiveChunk(one.chunk, odd, pinned=True)])
    again = WorkingSet(
        LiveChunk(one.chunk, np.frombuffer(one.brightness.tobytes(), np.float32), one.pinned)
        for one in window
    )
    assert again.brightness.tobytes() == window.brightness.tobytes()
    assert again.pinned == window.pinned
    assert [one.key for one in again.chunks] == [one.key for one in window.chunks]


@pytest.mark.parametrize(
    "act",
    [
        lambda w: w.remove([ChunkKey(1, 0, U), ChunkKey(9, 0, U)]),
        lambda w: w.at(ChunkKey(9, 0, U)),
        lambda w: w.add([live(chunk(7, 0, U, 70, 2)), live(chunk(1, 0, U, 90, 3))]),
        lambda w: w.add([live(chunk(7, 0, U, 70, 2)), live(chunk(7, 0, U, 80, 2))]),
        lambda w: w.add([live(chunk(7, 0, U, 70, 2)), live(chunk(8, 0, U, 2, 3))]),
        lambda w: w.begin_reply(5, 13, 1),
        lambda w: w.append_reply_token(1, b"x"),
        lambda w: w.end_reply(),
    ],
)
def test_a_refused_change_leaves_nothing_behind(act):
    window = two_turns()
    before = [(one.chunk, one.brightness.tobytes(), one.pinned) for one in window]
    with pytest.raises(BadInput):
        act(window)
    assert [(one.chunk, one.brightness.tobytes(), one.pinned) for one in window] == before
    assert window.reply is None


def test_positions_that_are_claimed_twice_are_refused():
    with pytest.raises(BadInput, match="same positions"):
        WorkingSet([live(chunk(1, 0, U, 0, 3)), live(chunk(3, 0, U, 2, 3))])
    with pytest.raises(UnknownChunk, match=r"9\.0\.user is not live"):
        two_turns().at(ChunkKey(9, 0, U))
    with pytest.raises(BadInput, match="3 tokens and 2 brightness"):
        LiveChunk(chunk(1, 0, U, 0, 3), np.zeros(2, np.float32))


def test_a_reply_grows_token_by_token_and_becomes_chunks():
    window = two_turns()
    window.use(Traced())
    window.begin_reply(4, 20, 3)
    for i in range(3_000):  # beyond the spare room of the buffer
        window.append_reply_token(i, b"word\n\n" if i % 100 == 99 else b"word ", surprisal=float(i))
    assert len(window) == 3_007
    chunks = window.end_reply()
    assert [len(one) for one in chunks] == [100] * 30
    assert [one.key.chunk_id for one in chunks] == list(range(30))
    assert all(one.answers == 3 and one.key.role is A for one in chunks)
    assert window.at(ChunkKey(4, 29, A)).traces[0].tolist() == list(range(2_900, 3_000))
    assert window.at(ChunkKey(4, 29, A)).brightness.tolist() == [10_000] * 100
    assert window.brightness[:7].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_reply_without_a_token_becomes_nothing():
    window = two_turns()
    window.begin_reply(4, 20, 3)
    assert window.end_reply() == ()
    assert len(window.chunks) == 3


def test_what_was_said_after_the_reply_in_progress_wakes_up_next_turn():
    window = two_turns()
    window.begin_reply(4, 20, 3)
    window.append_reply_token(1, b"x")
    with pytest.raises(BadInput, match="next turn"):
        window.add([live(chunk(8, 0, U, 50, 3))])
    with pytest.raises(BadInput, match="still being written"):
        window.begin_reply(6, 60, None)
    window.add([live(chunk(3, 0, U, 15, 2), 8)])
    assert window.brightness.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8, 10_000]


def test_a_turn_is_cut_into_chunks_at_neighbouring_positions():
    pieces = [b"a "] * 70 + [b"\n\n"] + [b"b "] * 70
    chunks = chunk_turn(Tokens.of(range(141), pieces), 5, U, 1_000)
    assert [(one.start, one.stop) for one in chunks] == [(1_000, 1_071), (1_071, 1_141)]
    assert "".join(one.text for one in chunks) == b"".join(pieces).decode()


def test_a_chunk_under_another_tokenizer_keeps_its_place():
    foreign = Chunk(ChunkKey(1, 0, U), 0, tokens(9), span=3)
    window = WorkingSet([live(foreign), live(chunk(2, 0, A, 3, 2, answers=1))])
    assert len(window) == 11
    assert window.chunks[1].start == foreign.stop


def test_traces_that_are_not_known_are_nan_and_those_of_another_strategy_are_refused():
    window = WorkingSet(strategy=Traced())
    window.add([live(chunk(1, 0, U, 0, 2))])
    assert np.isnan(window.at(ChunkKey(1, 0, U)).traces).all()
    with pytest.raises(BadInput, match="keeps 3 traces, but 2 were given"):
        window.add(
            [LiveChunk(chunk(3, 0, U, 9, 1), np.zeros(1, np.float32), traces=np.zeros((2, 1), np.float32))]
        )
    with pytest.raises(BadInput, match="2 tokens and traces of 3"):
        LiveChunk(chunk(3, 0, U, 9, 2), np.zeros(2, np.float32), traces=np.zeros((3, 3), np.float32))
    assert len(window.chunks) == 1


def test_another_strategy_keeps_brightness_and_the_traces_of_the_same_name():
    class Other(Traced):
        traces = ("new", "surprisal")

    window = WorkingSet([live(chunk(1, 0, U, 0, 2), 7)], strategy=Traced())
    window.observe_surprisal(1, np.array([3, 4], np.float32))
    window.use(Other())
    window.begin_reply(2, 5, 1)
    kept = window.at(ChunkKey(1, 0, U))
    assert kept.traces[1].tolist() == [3, 4]
    assert np.isnan(kept.traces[0]).all()
    window.use(MagnitudeVoting())
    assert window.at(ChunkKey(1, 0, U)).traces is None
    assert window.brightness.tolist() == [10_000, 10_000]


def positions(window: WorkingSet, before: int | None = None) -> list[int]:
    """Of all live chunks' tokens, or of those before a turn."""
    return [
        place
        for one in window.chunks
        if before is None or one.key.turn_id < before
        for place in range(one.start, one.stop)
    ]


def pinned(one: LiveChunk) -> LiveChunk:
    return LiveChunk(one.chunk, np.full(len(one.chunk), 10_000, np.float32), pinned=True, traces=one.traces)


class Conversation(RuleBasedStateMachine):
    """Any sequence of what can happen to a window; the graveyard is a plain dictionary beside it."""

    @initialize()
    def begin(self):
        self.window = WorkingSet(strategy=Traced(), frame_tokens={U: 3, A: 2}, system_tokens=2)
        self.rows = Counter[int]()  # that were read while a token was live and scored, by its position
        self.replies = Counter[int]()  # that ended while a token was live, by its position
        self.asleep: dict[ChunkKey, LiveChunk] = {}
        self.said: dict[ChunkKey, Chunk] = {}
        self.by_hand: set[int] = set()  # exchanges that the user took apart
        self.pins: set[ChunkKey] = set()
        self.turn, self.position = 1, 0

    def exchange(self, key: ChunkKey) -> int:
        answers = self.said[key].answers
        return key.turn_id if answers is None else answers

    @rule(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3), gap=st.integers(0, 9))
    def user_speaks(self, sizes, gap):
        chunks = []
        for number, count in enumerate(sizes):
            chunks.append(chunk(self.turn, number, U, self.position, count))
            self.position += count
        self.window.add([self.window.new_chunk(one) for one in chunks])
        self.window.observe_surprisal(self.turn, np.arange(chunks[0].start, self.position, dtype=np.float32))
        self.said |= {one.key: one for one in chunks}
        self.turn, self.position = self.turn + 1, self.position + gap

    @precondition(lambda self: any(key.role is U for key in self.said))
    @rule(count=st.integers(0, 30))
    def model_answers(self, count):
        question = max(key.turn_id for key in self.said if key.role is U)
        self.window.begin_reply(self.turn, self.position, question)
        rng = np.random.default_rng(count)
        before = positions(self.window)
        for i in range(count):
            row = rng.dirichlet(np.ones(len(self.window) + 1)).astype(np.float32)
            fault = self.window.update(AttentionRow(row[1:], frames=float(row[0]), aside=1))
            assert not fault or not len(self.window)
            self.rows.update(() if fault else before)
            self.window.append_reply_token(i, b"\n\n" if i % 4 == 3 else b"w", self.position + i)
        chunks = self.window.end_reply(min_chunk_tokens=3)
        newest = max(one.key.turn_id for one in self.window.chunks) if self.window.chunks else 0
        self.replies.update(positions(self.window, before=newest))
        self.said |= {one.key: one for one in chunks}
        self.turn, self.position = self.turn + 1, self.position + count

    @rule(budget=st.integers(1, 60))
    def prune(self, budget):
        plan = plan_prune(self.window, budget, pairs="brighter")  # apart, answers do stay alone
        assert plan == plan_prune(self.window, budget, pairs="brighter")
        gone = self.window.remove(plan.keys)
        self.asleep |= {one.chunk.key: one for one in gone}
        assert self.window.size == plan.after

    @precondition(lambda self: self.asleep)
    @rule(data=st.data(), room=st.integers(0, 60), mode=st.sampled_from(["earned", "hybrid", "fresh"]))
    def recall(self, data, room, mode):
        keys = data.draw(st.lists(st.sampled_from(sorted(self.asleep)), unique=True))
        sleepers = {}
        for key, one in self.asleep.items():
            turns = {other.turn_id for other, c in self.said.items() if c.answers == key.turn_id}
            question = one.chunk.answers
            pair_key = (
                ChunkKey(question, 0, U)
                if question is not None
                else ChunkKey(min(turns), 0, A)
                if turns
                else None
            )
            sleepers[key] = RecallCandidate(key, len(one.chunk), one.peak, one.chunk.start, pair_key)
        hits = [RecallHit(key, i / 7) for i, key in enumerate(keys)]
        live_keys = {one.key for one in self.window.chunks}
        plan = plan_recall(hits, sleepers, room, live=live_keys, frame_tokens=self.window.frame_tokens)
        before = self.window.size
        mean = float(self.window.brightness.mean()) if len(self.window) else 0.0
        waking = [self.asleep.pop(key) for key in plan.keys]
        self.window.add(
            LiveChunk(one.chunk, resurrected_brightness(mode, one.brightness, mean=mean), traces=one.traces)
            for one in waking
        )
        assert self.window.size == before + plan.cost
        for one in waking:
            now = self.window.at(one.chunk.key).brightness
            if mode == "earned":
                assert now.tobytes() == one.brightness.tobytes()
            assert (now >= one.brightness).all() or mode == "earned"

    @precondition(lambda self: len(self.window.chunks))
    @rule(data=st.data())
    def user_pins(self, data):
        key = data.draw(st.sampled_from([one.key for one in self.window.chunks]))
        (one,) = self.window.remove([key])
        self.window.add([pinned(one)])
        self.pins.add(key)

    @precondition(lambda self: len(self.window.chunks))
    @rule(data=st.data())
    def user_puts_to_sleep(self, data):
        key = data.draw(st.sampled_from([one.key for one in self.window.chunks]))
        self.asleep |= {one.chunk.key: one for one in self.window.remove([key])}
        self.pins.discard(key)
        self.by_hand.add(self.exchange(key))

    @precondition(lambda self: self.asleep)
    @rule(data=st.data())
    def user_wakes(self, data):
        key = data.draw(st.sampled_from(sorted(self.asleep)))
        one = self.asleep.pop(key)
        self.window.add([pinned(one)])
        self.pins.add(key)
        self.by_hand.add(self.exchange(key))

    @invariant()
    def positions_are_unique_and_ordered(self):
        assert all(before.stop <= after.start for before, after in pairwise(self.window.chunks))

    @invariant()
    def traces_follow_their_tokens(self):
        for one in [*self.window, *self.asleep.values()]:
            places = range(one.chunk.start, one.chunk.stop)
            assert one.traces[0].tolist() == list(places)
            assert one.traces[1].tolist() == [self.rows[place] for place in places]
            assert one.traces[2].tolist() == [self.replies[place] for place in places]

    @invariant()
    def everything_said_is_live_or_asleep(self):
        live_now = {one.key: one for one in self.window.chunks}
        assert not live_now.keys() & self.asleep.keys()
        everything = live_now | {key: one.chunk for key, one in self.asleep.items()}
        assert everything == self.said

    @invariant()
    def pins_survive(self):
        assert self.window.pinned == self.pins
        assert all(key in self.window for key in self.pins)

    @invariant()
    def no_answer_is_live_without_its_question_unless_the_user_did_it(self):
        for one in self.window.chunks:
            if one.answers is not None and one.answers not in self.by_hand:
                assert ChunkKey(one.answers, 0, U) in self.window

    @invariant()
    def frames_count_exactly_for_live_turns(self):
        turns = list(dict.fromkeys(one.key.turn_id for one in self.window.chunks))
        assert [turn_id for turn_id, _ in self.window.turns] == turns


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestConversation = Conversation.TestCase
