"""What the model looks at."""

from __future__ import annotations

from typing import Any

import pytest

from halo_weave.engines.base import Capture
from halo_weave.errors import BadInput
from tests.contract.talks import Talk, size

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
