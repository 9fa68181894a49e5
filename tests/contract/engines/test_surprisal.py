"""How little the model expected each token."""

from __future__ import annotations

import numpy as np

from halo_weave.core.tokens import Role
from halo_weave.ports import Capture
from tests.contract.talks import Talk

ABILITY = "surprisal"


def test_the_surprisal_of_the_reply_is_always_known(talk: Talk) -> None:
    assert all(step.surprisal >= 0 for step in talk.hear().steps)


def test_the_surprisal_of_the_user_turn_is_known_after_it_is_read(talk: Talk) -> None:
    talk.answer()
    question = talk.add(Role.USER, "And where does he swim?")
    _, start, tokens = talk.turns[question]
    for _ in range(2):  # asked again, nothing is new, and yet it is told
        read = talk.hear(capture=Capture(reading_surprisal=True), read_from=start).read
        assert read is not None
        assert read.surprisal is not None
        assert read.surprisal.shape == (len(tokens),)
        assert np.all(read.surprisal > 0)
