"""Strategies are found by their files; their settings are known, checked and never ambiguous."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from halo_weave.core.brightness import AttentionRow, Light, Sight, Strategy
from halo_weave.core.pruning import choose_prunes
from halo_weave.core.setting import setting
from halo_weave.core.strategies import STRATEGIES, settings_of
from halo_weave.core.strategies.magnitude_voting import MagnitudeVoting
from halo_weave.core.strategies.surprise import Surprise
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.window import Window
from halo_weave.settings import FIELDS, Settings
from tests.core.conversations import chunk, live


def test_strategies_are_found_by_the_names_of_their_files():
    assert {"magnitude_voting": MagnitudeVoting, "surprise": Surprise} == STRATEGIES


def test_the_settings_of_a_strategy_stand_beside_it_and_are_known_to_all():
    assert list(settings_of(STRATEGIES)) == ["decay", "sink"]
    assert list(FIELDS)[8:16] == [
        "max_context_tokens",
        "min_chunk_tokens",
        "strategy",
        "initial_brightness",
        "brightness_cap",
        "decay",
        "sink",
        "score_current_turn",
    ]


def test_a_chosen_strategy_gets_its_settings():
    assert Settings().brightness_strategy() == MagnitudeVoting()
    changed = Settings().changed(
        {"decay": 3, "sink": "first", "initial_brightness": 50, "brightness_cap": 60}
    )
    assert changed.brightness_strategy() == MagnitudeVoting(50.0, 60.0, decay=3.0, sink="first")
    assert changed.changed({"strategy": "surprise"}).brightness_strategy() == Surprise(50.0, 60.0)


def strategy_with(default: float) -> type[Strategy]:
    @dataclass(frozen=True)
    class Made(Strategy):
        reach: float = setting(default, "How far it looks back.", group="Forgetting", low=0, high=9)

        def brighten(self, sight: Sight, row: AttentionRow) -> Light:
            return sight.light

    return Made


def test_two_strategies_share_a_setting_only_if_they_mean_the_same_by_it():
    one, same, other = strategy_with(1.0), strategy_with(1.0), strategy_with(2.0)
    assert list(settings_of({"one": one, "same": same})) == ["reach"]
    with pytest.raises(TypeError, match="other defines the setting reach otherwise"):
        settings_of({"one": one, "other": other})


def test_a_strategy_learns_what_the_users_words_looked_at_while_they_were_read():
    class Baseline(MagnitudeVoting):
        traces = ("usual",)

        def after_reading(self, sight: Sight, rows: Sequence[AttentionRow]) -> Light:
            count = len(sight.light.brightness)
            looked = [np.pad(row.tokens, (0, count - len(row.tokens))) for row in rows]
            return Light(sight.light.brightness, np.mean(looked, axis=0, keepdims=True))

    window = Window(strategy=Baseline())
    window.add([live(chunk(1, 0, Role.USER, 0, 2), 7), live(chunk(3, 0, Role.USER, 9, 2), 8)])
    window.learn_rows([])
    assert np.isnan(window.at(ChunkKey(1, 0, Role.USER)).traces).all()
    rows = [AttentionRow(np.array(shares, np.float32)) for shares in ([0.5, 0.25, 0.25], [0.5, 0, 0, 0.5])]
    window.learn_rows(rows)
    assert window.at(ChunkKey(1, 0, Role.USER)).traces.tolist() == [[0.5, 0.125]]
    assert window.at(ChunkKey(3, 0, Role.USER)).traces.tolist() == [[0.125, 0.25]]
    assert window.brightness.tolist() == [7, 7, 8, 8]


def test_what_a_strategy_makes_infinitely_bright_never_falls_asleep():
    class Guarding(MagnitudeVoting):
        def of_chunks(self, sight: Sight) -> np.ndarray:
            asked = [one.text.endswith("?") for one in sight.chunks]
            return np.where(asked, np.inf, super().of_chunks(sight)).astype(np.float32)

    said = [live(chunk(turn, 0, Role.USER, turn * 10, 5), turn) for turn in (1, 3, 5)]
    window = Window(said)
    assert [key.turn_id for key in choose_prunes(window, 10).keys] == [1]
    window.use(Guarding())
    assert [key.turn_id for key in choose_prunes(window, 10).keys] == [1]
    guarded = Window(strategy=Guarding())
    guarded.begin_reply(1, 0, None)
    for piece in b"why?":
        guarded.say(piece, bytes([piece]))
    guarded.end_reply(1)
    guarded.add([live(chunk(turn, 0, Role.USER, turn * 10, 5), 20_000) for turn in (3, 5)])
    assert [key.turn_id for key in choose_prunes(guarded, 10).keys] == [3]
