"""How little the model expected each token."""

from __future__ import annotations

from tests.contract.talks import Talk

ABILITY = "surprisal"


def test_the_surprisal_of_the_reply_is_always_known(talk: Talk) -> None:
    assert all(step.surprisal >= 0 for step in talk.hear().steps)
