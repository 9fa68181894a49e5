"""A part of the cache leaves and returns without reading the rest again."""

from __future__ import annotations

from halo_weave.core.tokens import Role
from halo_weave.engines.base import Capture
from tests.contract.talks import Talk

ABILITY = "cuts"


def test_a_pruned_chunk_leaves_the_rows_and_returns_without_computing(talk: Talk) -> None:
    talk.answer()
    middle = talk.add(Role.USER, "The weather is nice today and the sky is blue.")
    talk.answer()
    talk.add(Role.USER, "What is my dog's name?")
    whole = talk.hear(capture=Capture())
    live = talk.chunk_tokens

    talk.asleep = {middle}
    pruned = talk.hear(capture=Capture())
    assert pruned.read is not None
    assert pruned.read.computed <= len(whole.steps) + 1
    assert pruned.steps[0].row is not None
    assert len(pruned.steps[0].row.tokens) == talk.chunk_tokens < live

    talk.asleep = set()
    back = talk.hear(capture=Capture())
    assert back.read is not None
    assert back.read.restored >= len(talk.turns[middle][2])
    assert back.read.computed <= len(whole.steps) + 1
    assert not back.read.rebuilt
    assert back.steps[0].row is not None
    assert len(back.steps[0].row.tokens) == live
    assert back.text == whole.text


def test_exact_mode_brings_nothing_back(talk: Talk) -> None:
    talk.answer()
    middle = talk.add(Role.USER, "The weather is nice today and the sky is blue.")
    talk.answer()
    talk.add(Role.USER, "What is my dog's name?")
    whole = talk.hear()
    talk.asleep = {middle}
    talk.hear(mode="exact")
    talk.asleep = set()
    back = talk.hear(mode="exact")
    assert back.read is not None
    assert back.read.restored == 0
    assert back.read.computed > len(talk.turns[middle][2])
    assert back.text == whole.text


def test_a_chunk_from_elsewhere_is_put_into_the_middle(talk: Talk) -> None:
    strange = talk.add(Role.USER, "A cat named Minka sleeps on the roof.")
    talk.add(Role.USER, "What is my dog's name?")
    talk.asleep = {strange}
    talk.hear()
    talk.asleep = set()
    heard = talk.hear(capture=Capture())
    assert heard.read is not None
    assert heard.read.restored == 0
    assert heard.read.computed >= len(talk.turns[strange][2])
    assert heard.read.reused > 0
    assert heard.steps[0].row is not None
    assert heard.steps[0].row.fault(talk.chunk_tokens) is None


def test_the_beginning_can_leave(talk: Talk) -> None:
    talk.answer()
    talk.add(Role.USER, "What is my dog's name?")
    talk.hear()
    talk.asleep = {0, 1}
    talk.system = ""
    heard = talk.hear(capture=Capture())
    assert heard.steps[0].row is not None
    assert heard.steps[0].row.fault(talk.chunk_tokens) is None
