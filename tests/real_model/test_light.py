"""Calibration and use on the real model: the right heads, and the right chunk."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from halo_weave.chat import Weave, events
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.calibration import load_or_calibrate
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.search.memory_search import MemorySearch
from halo_weave.store.sqlite import SqliteStore

pytestmark = pytest.mark.model


def test_the_heads_that_copy_are_found_and_tell_where_a_reply_comes_from(
    model_file: Path, tmp_path: Path
) -> None:
    engine = LlamaEngine(model_file)
    calibration = load_or_calibrate(engine, tmp_path / "calibration", lambda what, done, total: None)
    assert {(18, 6), (18, 7), (17, 3), (17, 4)} <= set(calibration.pairs)
    assert 4 <= len(calibration.heads) <= 16
    store = SqliteStore(tmp_path / "memory.sqlite")
    now = datetime(2026, 5, 4, tzinfo=UTC)
    weave = Weave(engine, store, MemorySearch(store, None), calibration=calibration, now=lambda: now)
    settings = {"temperature": 0.0, "max_new_tokens": 24}
    window = weave.windows.create("one", settings=settings).id
    for said in (
        "The harbour master is called Esteban Quiroga.",
        "I like long walks when it rains.",
        "The bakery opens at seven in the morning.",
    ):
        list(weave.turns.steps(window, said))
    turn = list(weave.turns.steps(window, "What is the harbour master called?"))
    (spoken,) = (event for event in turn if isinstance(event, events.ReplyStored))
    text = "".join(one.chunk.text for one in spoken.chunks)
    assert "Esteban" in text
    assert spoken.use.chunks[0].key.turn_id in {1, 2}  # where the name was said, or repeated
    assert ChunkKey(1, 0, Role.USER) in {one.key for one in spoken.use.chunks}
    weave.close()


FACTS = {
    "The harbour master is called Esteban Quiroga.": ("What is the harbour master called?", "Esteban"),
    "The name of the blue boat is Kestrel.": ("What is the name of the blue boat?", "Kestrel"),
    "The password of the old shed is marmalade.": ("What is the password of the old shed?", "marmalade"),
}


def test_the_words_of_an_answer_come_from_the_fact_that_slept_and_woke(
    model_file: Path, tmp_path: Path
) -> None:
    engine = LlamaEngine(model_file)
    calibration = load_or_calibrate(engine, tmp_path / "calibration", lambda what, done, total: None)
    store = SqliteStore(tmp_path / "memory.sqlite")
    now = datetime(2026, 5, 4, tzinfo=UTC)
    weave = Weave(engine, store, MemorySearch(store, None), calibration=calibration, now=lambda: now)
    settings = {"temperature": 0.0, "max_new_tokens": 24, "max_context_tokens": 150, "protect_used": False}
    # What is read ahead depends on the time there is for it, and this model's answers on the last digits of sums.
    settings["prefetch"] = "off"
    window = weave.windows.create("one", settings=settings).id
    short = {"max_new_tokens": 2}  # the fact stands nowhere but in the user's own words
    keys = {}
    for fact in FACTS:
        (heard,) = (e for e in weave.turns.steps(window, fact, short) if isinstance(e, events.MessageStored))
        keys[fact] = heard.chunks[0].key
    for chatter in (
        "I like long walks when it rains, best of all in autumn, with nobody about and a warm coat.",
        "The bakery opens at seven in the morning, and the queue is long by then, right down to the corner.",
        "We might paint the kitchen next spring, if the weather lets us leave the windows open for days.",
    ):
        list(weave.turns.steps(window, chatter, short))
    answered = 0
    for fact, (question, word) in FACTS.items():
        if keys[fact] in {one.key for turn in weave.windows.context(window).turns for one in turn.chunks}:
            weave.chunks.prune(window, keys[fact])
        turn = list(weave.turns.steps(window, question))
        woken = {
            one.key for event in turn if isinstance(event, events.ChunksResurrected) for one in event.chunks
        }
        assert keys[fact] in woken
        (spoken,) = (event for event in turn if isinstance(event, events.ReplyStored))
        tokens = [token for one in spoken.chunks for token in one.chunk.tokens.spelled()]
        text = "".join(tokens)
        if word not in text:  # so small a model may tell something else
            continue
        answered += 1
        at, place = text.index(word), 0
        for token, sources in zip(tokens, spoken.use.tokens, strict=True):
            if place <= at < place + len(token) or at <= place < at + len(word):
                assert sources, f"{token!r} of {text!r} has no source"
                assert spoken.use.chunks[sources[0].place].key == keys[fact]
            place += len(token)
    assert answered >= 2
    weave.close()
