"""What the model looks at and did not expect while it reads, not only while it writes."""

from __future__ import annotations

import numpy as np

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture, PrefillResult, Prompt
from tests.contract.talks import GREEDY, Talk

ABILITY = "reading"


def test_the_rows_of_the_user_turn_are_known_after_it_is_read(talk: Talk) -> None:
    talk.answer()
    before = talk.chunk_tokens
    question = talk.add(Role.USER, "And where does he swim?")
    _, start, tokens = talk.turns[question]
    capture = Capture(reading=True, raw=True, pairs=((1, 2), (0, 0)))
    for _ in range(2):  # asked again, nothing is new, and yet the rows are there
        read = talk.hear(capture=capture, read_from=start).read
        assert read is not None
        assert [len(row.tokens) for row in read.rows] == [before + 1 + i for i in range(len(tokens))]
        assert all(row.fault(len(row.tokens)) is None for row in read.rows)
        assert [row.raw.shape for row in read.rows if row.raw is not None] == [
            (2, len(row.tokens)) for row in read.rows
        ]


def test_a_reply_that_is_given_is_looked_at_as_if_it_were_read(talk: Talk) -> None:
    """The last segment may be an assistant's words: what would the model look at to say them?"""
    said = talk.add(Role.ASSISTANT, "His name is Bruno.")
    prompt = talk.prompt(read_from=talk.turns[said][1])
    end = next(i for i, one in enumerate(prompt.segments) if one.labels[0] == talk.turns[said][1])
    prompt = Prompt(prompt.segments[: end + 1], talk.next, prompt.read_from)
    read = next(
        event
        for event in talk.engine.generate(talk.window, prompt, GREEDY, Capture(reading=True))
        if isinstance(event, PrefillResult)
    )
    assert len(read.rows) == len(talk.turns[said][2])


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
