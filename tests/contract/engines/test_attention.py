"""What the model looks at."""

from __future__ import annotations

from typing import Any

import pytest

from halo_weave.core.tokens import Role
from halo_weave.errors import BadInput
from halo_weave.ports import Capture, Prompt, Read
from tests.contract.talks import GREEDY, Talk, size

ABILITY = "attention"


def test_each_row_covers_the_chunk_tokens_so_far_and_sums_to_one(talk: Talk) -> None:
    heard = talk.hear(capture=Capture())
    before = talk.chunk_tokens
    aside = size(talk.prompt()) - before
    assert len(heard.steps) > 1
    for number, step in enumerate(heard.steps):
        row = step.row
        assert row is not None
        assert len(row.tokens) == before + number
        assert row.fault(before + number) is None
        assert float(row.tokens.sum()) + row.frames + row.system == pytest.approx(1, abs=1e-4)
        assert row.aside == aside
        assert min(row.frames, row.system) > 0
        assert row.first is not None
        assert row.first <= row.aside_peak <= row.frames + row.system
        assert row.raw is None


@pytest.mark.parametrize("combine", ["mean", "max"])
def test_layers_and_heads_are_the_callers_to_choose(talk: Talk, combine: Any) -> None:
    capture = Capture(layers=(1,), heads=(0, 2), combine=combine, raw=True)
    row = talk.hear(capture=capture).steps[0].row
    assert row is not None
    assert row.raw is not None
    assert row.raw.shape == (2, talk.chunk_tokens)
    assert float(row.tokens.sum()) + row.frames + row.system == pytest.approx(1, abs=1e-4)


def test_rows_of_the_reply_can_be_left_out(talk: Talk) -> None:
    assert all(step.row is None for step in talk.hear(capture=Capture(reply=False)).steps)


@pytest.mark.parametrize(
    ("capture", "sentence"),
    [
        (Capture(pairs=((0, 99),)), "no head 99"),
        (Capture(pairs=((99, 0),)), "no layer 99"),
        (Capture(layers=(-1,)), "no layer -1"),
        (Capture(pairs=()), "No layer and head"),
        (Capture(heads=()), "No layer and head"),
        (Capture(pairs=((0, 1), (0, 1))), "twice"),
        (Capture(pairs=((0, 1),), layers=(0,)), "either pairs"),
    ],
)
def test_layers_and_heads_that_cannot_be_read_are_refused(
    talk: Talk, capture: Capture, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        talk.hear(capture=capture)
    assert talk.hear(capture=Capture()).steps[0].row is not None


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
        if isinstance(event, Read)
    )
    assert len(read.rows) == len(talk.turns[said][2])
