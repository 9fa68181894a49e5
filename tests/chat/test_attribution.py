"""A reply tells where it comes from: in its events, in the store, and after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import halo_weave.cli
from halo_weave.chat import Weave, events
from halo_weave.cli.app import app
from halo_weave.core.retrieval_heads import PENDING, Calibration, RetrievalHead
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, Clock, WordRecall, of
from tests.fakes.scripted_engine import ScriptedEngine, Visible

assert halo_weave.cli  # registers the commands
HEADS = Calibration((RetrievalHead(1, 2, 0.9, 0.9, 1.0),), "One head was found.")


def look(at: Visible) -> np.ndarray:
    """At Bruno, and a little at everything else."""
    weights = np.full(len(at.ids), 0.001, np.float32)
    weights[[piece == b"uno" for piece in ScriptedEngine().pieces(at.ids).pieces()]] = 10.0
    return weights


def opened(folder: Path, calibration: Calibration = HEADS) -> Weave:
    store = SqliteStore(folder / "memory.sqlite")
    engine = ScriptedEngine(["Hello Anna.", "He is called Rex."], look=look)
    return Weave(engine, store, WordRecall(store), None, calibration=calibration, now=Clock())


@pytest.fixture
def told(tmp_path: Path) -> tuple[Weave, str, events.ReplyStored]:
    weave = opened(tmp_path)
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, "My dog is called Bruno."))
    turn = list(weave.turns.steps(window, "What is my dog called?"))
    return weave, window, of(events.ReplyStored, turn)[0]


def test_a_reply_names_the_chunk_and_the_token_it_comes_from(
    told: tuple[Weave, str, events.ReplyStored],
) -> None:
    weave, window, spoken = told
    use, bruno = spoken.use, ChunkKey(1, 0, Role.USER)
    assert use.chunks[0].key == bruno
    assert use.chunks[0].share > 0.9
    assert sum(one.share for one in use.chunks) + use.nothing == pytest.approx(1.0)
    assert len(use.tokens) == sum(len(one.chunk) for one in spoken.chunks)
    source = use.tokens[0][0]
    assert weave.runtime.store.chunk(bruno).chunk.tokens.pieces()[source.offset] == b"uno"
    why = weave.chunks.why(window, bruno)
    assert [(one.turn_id, one.share) for one in why.uses] == [(4, use.chunks[0].share)]
    assert why.use is None  # it belongs to no reply
    weave.close()


def test_it_is_known_after_a_restart_and_on_the_command_line(
    told: tuple[Weave, str, events.ReplyStored], tmp_path: Path
) -> None:
    weave, window, spoken = told
    weave.close()
    again = opened(tmp_path)
    why = again.chunks.why(window, ChunkKey(4, 0, Role.ASSISTANT))
    again.close()
    assert why.use is not None
    assert why.use.chunks == spoken.use.chunks
    assert [[one[:2] for one in sources] for sources in why.use.tokens] == [
        [one[:2] for one in sources] for sources in spoken.use.tokens
    ]
    run = CliRunner().invoke(app, ["why", "1.0.user", "--data", str(tmp_path), "--json"])
    assert json.loads(run.stdout)["used_by"][0]["turn_id"] == "4"
    shown = CliRunner().invoke(app, ["why", "4.0.assistant", "--data", str(tmp_path)]).stdout
    assert "from 1.0.user  My dog is called Bruno." in shown


def test_a_model_without_heads_tells_it_as_well(tmp_path: Path) -> None:
    engine = ScriptedEngine(
        ["Hello Anna.", "Rex."],
        look=lambda at: (
            look(at)
            if at.text.rpartition("<|turn|>")[2].startswith("assistant")
            else np.ones(len(at.ids), np.float32)
        ),
    )
    store = SqliteStore(tmp_path / "memory.sqlite")
    weave = Weave(engine, store, WordRecall(store), None, now=Clock())
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, "My dog is called Bruno."))
    turn = list(weave.turns.steps(window, "What is my dog called?"))
    assert of(events.ReplyStored, turn)[0].use.chunks[0].key == ChunkKey(1, 0, Role.USER)
    assert "not calibrated" in weave.memory.status().calibration.sentence
    weave.close()


def test_before_the_model_is_calibrated_it_is_not_known_what_a_reply_used(tmp_path: Path) -> None:
    weave = opened(tmp_path, PENDING)
    window = weave.windows.create("one", settings=SMALL).id
    list(weave.turns.steps(window, "My dog is called Bruno."))
    weave.chunks.prune(window, ChunkKey(1, 0, Role.USER))
    (spoken,) = of(events.ReplyStored, list(weave.turns.steps(window, "What is my dog called?")))
    assert spoken.use is None
    assert [(one.key.turn_id, one.share) for one in spoken.remembered or ()] == [(1, None)]
    answer = spoken.chunks[0].chunk.key
    assert weave.chunks.why(window, answer).use is None
    assert weave.windows.said(window).turns[-1].remembered == spoken.remembered
    weave.close()
    run = CliRunner().invoke(app, ["why", str(answer), "--data", str(tmp_path)])
    assert "It is not known where this reply came from." in run.stdout
