"""The promise, on the real model: what was said long ago returns to its place when it is asked about."""

from __future__ import annotations

from pathlib import Path

import pytest

from halo_weave.assemble import Options, assemble
from halo_weave.core.tokens import ChunkKey
from halo_weave.settings import Settings
from halo_weave.weave import Weave, events

pytestmark = pytest.mark.model

FACT = "Remember this: my sister Philippa keeps the spare key of the lighthouse behind the brass barometer."
QUESTION = "Where does Philippa keep the spare key of the lighthouse?"
SETTINGS = {
    "max_context_tokens": 420,
    "max_new_tokens": 8,
    "seed": 7,
    "tool_rounds": 0,
    "resurrection_budget": 200,
}
TOPICS = ["soup", "clouds", "chess", "trains", "violins", "sand", "maps", "tea", "kites", "moss"]


def opened(folder: Path) -> Weave:
    return assemble(Options(data=folder, settings=Settings().changed(SETTINGS)))


def tell(weave: Weave, window: str) -> ChunkKey:
    (heard,) = [event for event in weave.say(window, FACT) if isinstance(event, events.Heard)]
    return heard.chunks[0].key


def chatter(weave: Weave, window: str, turns: int) -> None:
    for i in range(turns):
        list(weave.say(window, f"Let us talk about {TOPICS[i % 10]} for a moment, round {i}."))


def live(weave: Weave, window: str) -> list[ChunkKey]:
    return [one.chunk.key for turn in weave.context(window).turns for one in turn.chunks]


def ask(weave: Weave, window: str, key: ChunkKey) -> None:
    """The question wakes the fact at its place, and the model reads it word for word."""
    if key in live(weave, window):  # the model still looks at it, or other talk woke it
        weave.sleep(window, key)
    assert key not in live(weave, window)
    for event in weave.say(window, QUESTION):
        if isinstance(event, events.Token):  # the model has read its context and begins to answer
            keys = live(weave, window)
            assert key in keys
            assert keys == sorted(keys, key=lambda one: weave.store.chunk(one).chunk.start)
            assert FACT in read_by(weave, window)
            return
    raise AssertionError("The model said nothing.")


def read_by(weave: Weave, window: str) -> str:
    """What the engine holds in the KV cache of a window."""
    held = weave.engine.caches[window].live  # type: ignore[attr-defined]
    return weave.engine.pieces(held.ids).text


def test_a_fact_of_turn_one_returns_after_forty_other_turns_also_elsewhere_and_after_a_restart(
    tmp_path: Path,
):
    weave = opened(tmp_path)
    window = weave.create_window("one").id
    other = weave.create_window("two").id
    key = tell(weave, window)
    chatter(weave, window, 40)
    ask(weave, window, key)
    chatter(weave, other, 2)
    ask(weave, other, key)
    weave.close()
    again = opened(tmp_path)
    chatter(again, window, 8)
    ask(again, window, key)
    assert live(again, window)[0] == key  # it was said first
    again.close()
