"""Calibration and use on the real model: the right heads, and the right chunk."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.calibration import calibrated
from halo_weave.engines.llama import LlamaEngine
from halo_weave.index.recall import Recall
from halo_weave.stores.sqlite import SqliteStore
from halo_weave.weave import Weave, events

pytestmark = pytest.mark.model


def test_the_heads_that_copy_are_found_and_tell_where_a_reply_comes_from(
    model_file: Path, tmp_path: Path
) -> None:
    engine = LlamaEngine(model_file)
    calibration = calibrated(engine, tmp_path / "calibration", lambda what, done, total: None)
    assert {(18, 6), (18, 7), (17, 3), (17, 4)} <= set(calibration.pairs)
    assert 4 <= len(calibration.heads) <= 16
    store = SqliteStore(tmp_path / "memory.sqlite")
    now = datetime(2026, 5, 4, tzinfo=UTC)
    weave = Weave(engine, store, Recall(store, None), calibration=calibration, now=lambda: now)
    settings = {"temperature": 0.0, "max_new_tokens": 24}
    window = weave.windows.create("one", settings=settings).id
    for said in (
        "The harbour master is called Esteban Quiroga.",
        "I like long walks when it rains.",
        "The bakery opens at seven in the morning.",
    ):
        list(weave.turns.steps(window, said))
    turn = list(weave.turns.steps(window, "What is the harbour master called?"))
    (spoken,) = (event for event in turn if isinstance(event, events.Spoken))
    text = "".join(one.chunk.text for one in spoken.chunks)
    assert "Esteban" in text
    assert spoken.use.chunks[0].key.turn_id in {1, 2}  # where the name was said, or repeated
    assert ChunkKey(1, 0, Role.USER) in {one.key for one in spoken.use.chunks}
    weave.close()
