"""Strategies are found by their files; their settings are known, checked and never ambiguous."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from halo_weave.core.brightness import AttentionRow, Strategy, StrategyInput, TokenBrightness
from halo_weave.core.pruning import plan_prune
from halo_weave.core.retrieval_heads import Calibration, RetrievalHead
from halo_weave.core.setting_fields import setting
from halo_weave.core.strategies import STRATEGIES, settings_of
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.strategies.surprise import Surprise
from halo_weave.core.strategies.use_and_surprise import UseAndSurprise
from halo_weave.core.tokens import Chunk, ChunkKey, Role, Tokens
from halo_weave.core.working_set import LiveChunk, WorkingSet
from halo_weave.settings import FIELDS, Settings
from tests.core.conversations import chunk, live


def test_strategies_are_found_by_the_names_of_their_files():
    assert {"magnitude_voting": MagnitudeVoting, "surprise": Surprise}.items() <= STRATEGIES.items()
    assert {"cumulative", "rolling_mean_voting", "symmetric_voting", "use_and_surprise"} <= set(STRATEGIES)


def test_the_settings_of_a_strategy_stand_beside_it_and_are_known_to_all():
    assert list(settings_of(STRATEGIES)) == [
        "fade_per_token",
        "fade_rate",
        "aggregate",
        "decay",
        "sink",
        "question_penalty",
    ]
    first = list(FIELDS).index("max_context_tokens")
    assert list(FIELDS)[first : first + 17] == [
        "max_context_tokens",
        "prune_to",
        "min_chunk_tokens",
        "max_chunk_tokens",
        "strategy",
        "initial_brightness",
        "brightness_cap",
        "fade_per_token",
        "fade_rate",
        "aggregate",
        "decay",
        "sink",
        "question_penalty",
        "prune_pairs",
        "protect_recent_exchanges",
        "protect_used",
        "score_current_turn",
    ]


def test_a_chosen_strategy_gets_its_settings():
    assert Settings().brightness_strategy() == UseAndSurprise()
    changed = Settings().changed(
        {
            "strategy": "magnitude_voting",
            "decay": 3,
            "sink": "first",
            "initial_brightness": 50,
            "brightness_cap": 60,
        }
    )
    assert changed.brightness_strategy() == MagnitudeVoting(50.0, 60.0, decay=3.0, sink="first")
    assert changed.changed({"strategy": "surprise"}).brightness_strategy() == Surprise(50.0, 60.0)


def strategy_with(default: float) -> type[Strategy]:
    @dataclass(frozen=True)
    class Made(Strategy):
        reach: float = setting(default, "How far it looks back.", group="Forgetting", low=0, high=9)

        def brighten(self, state: StrategyInput, row: AttentionRow) -> TokenBrightness:
            return state.tokens

    return Made


def test_two_strategies_share_a_setting_only_if_they_mean_the_same_by_it():
    one, same, other = strategy_with(1.0), strategy_with(1.0), strategy_with(2.0)
    assert list(settings_of({"one": one, "same": same})) == ["reach"]
    with pytest.raises(TypeError, match="other and another strategy define the setting reach differently"):
        settings_of({"one": one, "other": other})


def test_a_strategy_learns_what_the_users_words_looked_at_while_they_were_read():
    class Baseline(MagnitudeVoting):
        traces = ("usual",)

        def after_reading(self, state: StrategyInput, rows: Sequence[AttentionRow]) -> TokenBrightness:
            count = len(state.tokens.brightness)
            looked = [np.pad(row.tokens, (0, count - len(row.tokens))) for row in rows]
            return TokenBrightness(state.tokens.brightness, np.mean(looked, axis=0, keepdims=True))

    window = WorkingSet(strategy=Baseline())
    window.add([live(chunk(1, 0, Role.USER, 0, 2), 7), live(chunk(3, 0, Role.USER, 9, 2), 8)])
    window.observe_rows([])
    assert np.isnan(window.at(ChunkKey(1, 0, Role.USER)).traces).all()
    rows = [AttentionRow(np.array(shares, np.float32)) for shares in ([0.5, 0.25, 0.25], [0.5, 0, 0, 0.5])]
    window.observe_rows(rows)
    assert window.at(ChunkKey(1, 0, Role.USER)).traces.tolist() == [[0.5, 0.125]]
    assert window.at(ChunkKey(3, 0, Role.USER)).traces.tolist() == [[0.125, 0.25]]
    assert window.brightness.tolist() == [7, 7, 8, 8]


def test_what_a_strategy_makes_infinitely_bright_never_falls_asleep():
    class Guarding(MagnitudeVoting):
        def of_chunks(self, state: StrategyInput) -> np.ndarray:
            asked = [one.text.endswith("?") for one in state.chunks]
            return np.where(asked, np.inf, super().of_chunks(state)).astype(np.float32)

    said = [live(chunk(turn, 0, Role.USER, turn * 10, 5), turn) for turn in (1, 3, 5)]
    window = WorkingSet(said)
    assert [key.turn_id for key in plan_prune(window, 10).keys] == [1]
    window.use(Guarding())
    assert [key.turn_id for key in plan_prune(window, 10).keys] == [1]
    guarded = WorkingSet(strategy=Guarding())
    guarded.begin_reply(1, 0, None)
    for piece in b"why?":
        guarded.append_reply_token(piece, bytes([piece]))
    guarded.end_reply(1)
    guarded.add([live(chunk(turn, 0, Role.USER, turn * 10, 5), 20_000) for turn in (3, 5)])
    assert [key.turn_id for key in plan_prune(guarded, 10).keys] == [3]


HEADS = Calibration((RetrievalHead(0, 0, 0.9, 0.9, 1.0),), "")


def looking_at(window: WorkingSet, token: int) -> AttentionRow:
    shares = np.full(len(window), 0.001, np.float32)
    shares[token] += 1 - shares.sum()
    return AttentionRow(shares, raw=shares[None])


def talk(strategy: Strategy, *texts: bytes, surprisal: Sequence[float] = ()) -> WorkingSet:
    """Four tokens of each text's turn; all of one turn are as surprising as is told."""
    window = WorkingSet(strategy=strategy)
    for turn, text in enumerate(texts):
        said = Chunk(
            ChunkKey(2 * turn + 1, 0, Role.USER), 10 * turn, Tokens.of(range(4), [b"x"] * 3 + [text])
        )
        window.add([window.new_chunk(said)])
        nats = surprisal[turn] if surprisal else 2.0
        window.observe_surprisal(2 * turn + 1, np.full(4, nats, np.float32))
    return window


def dimmest(window: WorkingSet) -> int:
    return int(np.argmin(window.chunk_brightness()))


def test_what_was_surprising_is_bright_and_what_only_asks_is_dim():
    window = talk(UseAndSurprise(calibration=HEADS), b".", b".", b".", b"!", surprisal=[3, 1, 5, 3])
    window.begin_reply(8, 100, 7)
    window.end_reply()
    bright = window.chunk_brightness()
    assert np.argmax(bright) == 2
    assert np.argmin(bright) == 1
    window = talk(UseAndSurprise(calibration=HEADS), b".", b".", b"?", b"!")
    window.begin_reply(8, 100, 7)
    window.end_reply()
    assert dimmest(window) == 2
    assert min(window.chunk_brightness()) >= 0


def test_what_was_needed_once_stays_bright():
    window = talk(UseAndSurprise(calibration=HEADS), b".", b".", b".", b"!")
    window.begin_reply(8, 100, 7)
    window.update(looking_at(window, 5))
    window.append_reply_token(1, b"y")
    for _ in range(5):
        window.update(looking_at(window, 9))
        window.append_reply_token(1, b"y")
    window.end_reply()
    bright = window.chunk_brightness()
    assert bright[1] == pytest.approx(bright[2], rel=1e-3)
    assert bright[0] < bright[1]
    assert window.brightness.max() <= 10_000


def test_the_first_chunks_of_a_talk_are_not_the_most_used():
    window = talk(UseAndSurprise(calibration=HEADS), b".", b"!")
    window.observe_rows([looking_at(window, 0)])
    assert window.at(ChunkKey(1, 0, Role.USER)).traces[1].max() == 0


def test_without_heads_what_each_token_gets_anyway_does_not_count():
    window = talk(UseAndSurprise(), b".", b".", b".", b"!")
    window.observe_rows([looking_at(window, 0)])  # whatever is asked, the first token is looked at
    window.begin_reply(8, 100, 7)
    shares = looking_at(window, 0).tokens
    shares[9] += 0.1
    shares[0] -= 0.1
    window.update(AttentionRow(shares))
    window.append_reply_token(1, b"y")
    window.end_reply()
    assert np.argmax(window.chunk_brightness()) == 2


@pytest.mark.parametrize("name", ["cumulative", "rolling_mean_voting", "symmetric_voting"])
def test_the_prototypes_strategies_keep_what_is_looked_at(name):
    window = talk(STRATEGIES[name](), *[b"."] * 20)
    for _ in range(300):
        window.update(looking_at(window, 5))
    bright = window.chunk_brightness()
    assert np.argmax(bright) == 1
    assert 0 <= min(bright) <= max(bright) <= 10_000


def test_cumulative_fades_by_a_number_or_by_a_share():
    dim, bright = 100.0, 9_000.0
    for strategy, lost in (
        (STRATEGIES["cumulative"](fade_per_token=20.0), (20.0, 20.0)),
        (STRATEGIES["cumulative"](fade_per_token=0.0, fade_rate=0.01), (1.0, 90.0)),
    ):
        window = WorkingSet(
            [live(chunk(1, 0, Role.USER, 10, 5), dim), live(chunk(3, 0, Role.USER, 30, 5), bright)],
            strategy=strategy,
        )
        window.update(looking_at(window, 9))  # nearer than what earns
        assert (dim - window.brightness[0], bright - window.brightness[5]) == pytest.approx(lost)
    assert STRATEGIES["cumulative"](aggregate="max").capture.combine == "max"


def test_halves_of_a_pair_go_apart_or_together_and_with_magnitude_voting_by_the_dimmer_one():
    def pair(turn: int, question: float, answer: float) -> list[LiveChunk]:
        start = 20 * turn
        return [
            live(chunk(turn, 0, Role.USER, start, 5), question),
            live(chunk(turn + 1, 0, Role.ASSISTANT, start + 5, 5, turn), answer),
        ]

    said = [*pair(1, 10, 90), *pair(3, 40, 50), *pair(5, 99, 99)]
    assert {key.turn_id for key in plan_prune(WorkingSet(said), 20).keys} == {1, 2}
    plan = plan_prune(WorkingSet(said, strategy=Surprise()), 20)
    assert [(one.key.turn_id, one.brightness, str(one.why)) for one in plan.chunks] == [
        (1, 10.0, "dimmest"),
        (3, 40.0, "dimmest"),
    ]
    plan = plan_prune(WorkingSet(said, strategy=Surprise()), 20, pairs="brighter")
    assert [(one.key.turn_id, one.brightness, str(one.why)) for one in plan.chunks] == [
        (4, 50.0, "dimmest"),
        (3, 40.0, "with its pair"),
    ]


def test_what_is_to_be_kept_is_not_chosen():
    said = [live(chunk(turn, 0, Role.USER, turn * 10, 5), turn) for turn in (1, 3, 5)]
    plan = plan_prune(WorkingSet(said), 10, kept={ChunkKey(1, 0, Role.USER)})
    assert [key.turn_id for key in plan.keys] == [3]


@pytest.mark.parametrize("heads", [0, 2])
def test_what_is_noted_between_rows_changes_no_brightness(heads):
    """Whatever happens to a window: chunks that come and go, surprisal that is learnt late, replies that end."""
    rng = np.random.default_rng(11)
    found = tuple(RetrievalHead(0, head, 0.5, 0.5, 1 / heads) for head in range(heads))
    windows = [WorkingSet(strategy=UseAndSurprise(calibration=Calibration(found, "found"))) for _ in range(2)]
    said = [chunk(turn, 0, Role.USER, 10 * turn, 5) for turn in range(1, 6)]

    def same(step) -> None:
        noting, forgetful = windows
        step(noting)
        forgetful._noted = {}
        step(forgetful)
        np.testing.assert_array_equal(noting.brightness, forgetful.brightness)
        np.testing.assert_array_equal(noting.traces, forgetful.traces)

    def look() -> None:
        size = len(windows[0])
        raw = rng.random((max(1, heads), size)).astype(np.float32) ** 4
        raw /= raw.sum(axis=1, keepdims=True) * 2
        row = AttentionRow(raw.mean(axis=0), frames=0.5, raw=raw if heads else None)
        same(lambda window: window.update(row))
        same(lambda window: window.append_reply_token(1, b"t", 0.5))

    same(lambda window: window.add([window.new_chunk(one) for one in said[:3]]))
    for turn in (1, 2, 3):
        surprisal = rng.random(5).astype(np.float32)
        same(lambda window, turn=turn, surprisal=surprisal: window.observe_surprisal(turn, surprisal))
    same(lambda window: window.begin_reply(9, 90, 3))
    for _ in range(3):
        look()
    same(lambda window: window.add([window.new_chunk(said[3])]))
    look()
    same(lambda window: window.remove([said[0].key]))
    for _ in range(3):
        look()
    same(lambda window: window.end_reply())
    assert len(np.unique(windows[0].brightness)) > 5


def test_first_in_first_out_lets_the_oldest_go_whatever_was_looked_at():
    window = talk(STRATEGIES["first_in_first_out"](), b".", b"!", b".", b".")
    for _ in range(20):
        window.update(looking_at(window, 0))
    assert [key.turn_id for key in plan_prune(window, 8, current={7}).keys] == [1, 3]


@pytest.mark.parametrize(("surprisal", "counts"), [(0.0, True), (50.0, False)])
def test_in_confident_voting_a_look_counts_as_the_model_was_sure_of_its_word(surprisal, counts):
    window = talk(STRATEGIES["confident_voting"](initial_brightness=5_000.0), b".", b".", b".")
    window.begin_reply(6, 100, 5)
    for _ in range(10):
        window.update(looking_at(window, 5))
        window.append_reply_token(1, b"y", surprisal)
    window.end_reply()
    bright = window.chunk_brightness()
    assert (bright[1] > 5_050) == counts
    assert (bright[0] < 5_000) == counts
