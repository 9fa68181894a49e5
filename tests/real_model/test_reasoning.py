"""Reasoning models on llama.cpp: what they think is told apart from what they answer, in marks and in channels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave, events
from halo_weave.core.pruning import PruneReason
from tests.chat.conftest import of
from tests.engines.thinkers import ANSWER, THINKERS, THOUGHT, thinker

pytestmark = pytest.mark.model

SAID = "Hello, is anybody up there?"
ASKED = "Whose lantern do you polish, keeper?"


@pytest.fixture(params=THINKERS)
def talk(request, tmp_path) -> Iterator[tuple[Weave, str]]:
    path, effort = thinker(tmp_path, request.param)
    weave = build_weave(Options(tmp_path / "data", model=path, embedder="off", threads=1))
    settings = {"temperature": 0.0, "timestamps": False, "max_new_tokens": 60, "effort": effort}
    assert weave.models.state().thinks
    yield weave, weave.windows.create("Tower", settings=settings).id
    weave.close()


def told(turn, *, thought: bool) -> str:
    return "".join(one.text for one in of(events.TokenGenerated, turn) if one.thought is thought)


def test_a_thought_streams_apart_is_stored_as_one_and_sleeps_after_its_turn(talk):
    weave, window = talk
    turn = list(weave.turns.steps(window, SAID))
    assert told(turn, thought=True).strip().endswith("".join(THOUGHT))
    assert told(turn, thought=False).strip() == "".join(ANSWER)
    assert turn[-1].reason == "eos"
    assert turn[-1].stats["only_thought"] is False
    (spoken,) = of(events.ReplyStored, turn)
    thought, answer = spoken.chunks
    assert (thought.thought, answer.thought) == (True, False)
    assert [one.key for event in of(events.ChunksPruned, turn) for one in event.chunks] == [thought.key]
    assert of(events.ChunksPruned, turn)[0].chunks[0].why == PruneReason.TURN_OVER
    assert weave.runtime.store.chunk(thought.key).tags == ("thought",)
    again = list(weave.turns.steps(window, SAID))
    assert told(again, thought=False).strip() == "".join(ANSWER)
    assert of(events.PrefillFinished, again)[0].rebuilt == ""


@pytest.mark.parametrize("wanted", [False, True])
def test_a_thought_wakes_up_only_where_that_is_wanted(talk, wanted):
    weave, window = talk
    weave.windows.change(window, settings={"recall_thoughts": wanted})
    list(weave.turns.steps(window, SAID))
    turn = list(weave.turns.steps(window, ASKED))
    woken = [one.chunk.text for event in of(events.ChunksResurrected, turn) for one in event.chunks]
    assert any("lantern" in text for text in woken) is wanted


def test_a_reply_that_is_cut_within_its_thought_says_so(talk):
    weave, window = talk
    weave.windows.change(window, settings={"max_new_tokens": 5})
    turn = list(weave.turns.steps(window, SAID))
    assert turn[-1].reason == "length"
    assert turn[-1].stats["only_thought"] is True
    assert told(turn, thought=False) == ""
    weave.windows.change(window, settings={"max_new_tokens": 60})
    assert told(list(weave.turns.steps(window, SAID)), thought=False).strip() == "".join(ANSWER)
