"""Calibration through the engine port: the heads that look back are found, once for each model file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halo_weave.core.brightness import AttentionRow, Capture
from halo_weave.core.retrieval_heads import Calibration, choose_heads
from halo_weave.engines.base import Capabilities
from halo_weave.engines.calibration import METHOD, calibrate, load_or_calibrate
from halo_weave.engines.flat_prompt import FlatPrompt, attention_row
from tests.fakes.scripted_engine import HEADS, LAYERS, ScriptedEngine

LOOKS_BACK = (1, 2)


def silent(what: str, done: int, total: int) -> None:
    pass


class LookingBack(ScriptedEngine):
    """One of its heads looks at what came after the last time that the newest words were said."""

    def __init__(self, file: Path | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.readings = 0
        if file is not None:
            self._info = replace(self._info, file=str(file))

    def _row(self, flat: FlatPrompt, count: int, capture: Capture) -> AttentionRow | None:
        self.readings += 1
        pairs = capture.chosen_raw(LAYERS, HEADS)
        raw = np.full((len(pairs), count), 1 / count, np.float32)
        if LOOKS_BACK in pairs:
            ids = flat.ids[:count].tolist()
            at = max(range(1, count), key=lambda place: _shared_before(ids, place))
            raw[pairs.index(LOOKS_BACK)] = np.eye(count, dtype=np.float32)[at]
        return attention_row(raw.mean(axis=0), np.arange(count, dtype=np.int32), flat.kinds[:count], raw)


def _shared_before(ids: list[int], place: int) -> int:
    shared = 0
    while shared < place and ids[place - 1 - shared] == ids[-1 - shared]:
        shared += 1
    return shared


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    return file


def test_the_head_that_looks_back_is_found() -> None:
    told: list[tuple[str, int, int]] = []
    found = calibrate(LookingBack(), lambda *what: told.append(what))
    assert found.pairs == (LOOKS_BACK,)
    assert found.heads[0].copying > 0.9
    assert found.heads[0].needles > 0.7
    assert found.heads[0].weight == pytest.approx(1.0)
    assert told[0][1] == 0
    assert told[-1][1] == told[-1][2] > 0


def test_where_all_heads_are_alike_none_is_taken_and_it_is_said() -> None:
    found = calibrate(ScriptedEngine(), silent)
    assert found.heads == ()
    assert "mean of all heads" in found.sentence


def test_a_model_file_is_calibrated_once(tmp_path: Path, weights: Path) -> None:
    first = load_or_calibrate(LookingBack(weights), tmp_path / "kept", silent)
    again = LookingBack(weights)
    assert load_or_calibrate(again, tmp_path / "kept", silent) == first
    assert first.pairs == (LOOKS_BACK,)
    assert again.readings == 0


def test_another_file_another_method_or_a_broken_record_is_calibrated_again(
    tmp_path: Path, weights: Path
) -> None:
    folder = tmp_path / "kept"
    load_or_calibrate(LookingBack(weights), folder, silent)
    (record,) = (file for file in folder.iterdir() if file.name != "files.json")
    kept = json.loads(record.read_text())
    for change in (
        lambda: record.write_text(json.dumps({**kept, "method": METHOD + 1})),
        lambda: record.write_text("{"),
        lambda: (folder / "files.json").write_text("[]") and record.unlink(),
        lambda: weights.write_bytes(b"other weights"),
    ):
        change()
        engine = LookingBack(weights)
        assert load_or_calibrate(engine, folder, silent).pairs == (LOOKS_BACK,)
        assert engine.readings > 0
    engine = LookingBack(weights)
    assert load_or_calibrate(engine, folder, silent, force=True).heads
    assert engine.readings > 0


def test_the_hash_of_an_unchanged_file_is_not_computed_again(tmp_path: Path, weights: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        load_or_calibrate(
            LookingBack(weights), tmp_path / "kept", lambda what, done, total: told.append(what)
        )
    assert told.count("Hashing the model file") == 1


def test_a_model_that_cannot_be_watched_or_read_still_works(tmp_path: Path, weights: Path) -> None:
    blind = LookingBack(weights, abilities=Capabilities(attention=False))
    assert "cannot be captured" in load_or_calibrate(blind, tmp_path / "kept", silent).sentence
    gone = LookingBack(tmp_path / "gone.gguf")
    assert "not calibrated" in load_or_calibrate(gone, tmp_path / "kept", silent).sentence
    assert load_or_calibrate(ScriptedEngine(["kept"]), tmp_path / "kept", silent) == Calibration()


def test_heads_count_by_their_strength_and_never_too_many() -> None:
    copying = np.full((10, 10), 0.01)
    copying[0] = np.linspace(1.0, 0.1, 10)
    needles = np.full((10, 10), 0.01)
    found = choose_heads(copying, needles)
    assert 4 <= len(found.heads) < 10
    assert found.pairs[0] == (0, 0)
    assert list(found.weights) == sorted(found.weights, reverse=True)
    assert sum(found.weights) == pytest.approx(1.0)
    copying[:3] = 1.0
    assert len(choose_heads(copying, needles).heads) == 16


def test_another_data_folder_takes_what_was_found_beside_the_models(tmp_path: Path, weights: Path) -> None:
    shared = tmp_path / "models" / "calibration"
    first = load_or_calibrate(LookingBack(weights), tmp_path / "one", silent, shared=shared)
    engine, told = LookingBack(weights), list[str]()
    again = load_or_calibrate(
        engine, tmp_path / "two", lambda what, done, total: told.append(what), shared=shared
    )
    assert again == first
    assert engine.readings == 0
    assert told == []
    assert load_or_calibrate(engine, tmp_path / "two", silent) == first  # it is in the data folder as well
    assert engine.readings == 0
