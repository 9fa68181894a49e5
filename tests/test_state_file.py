"""A run that ended since its model's file changed is explained at the next start; any other is not mentioned."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from halo_weave import app, state_file
from halo_weave.state_file import changed_models, mark_model_in_use

ROOT = Path(__file__).parents[1]
RUN = """
import os, sys
from pathlib import Path
from halo_weave.state_file import mark_model_in_use
mark_model_in_use(Path(sys.argv[1]), sys.argv[2])
if sys.argv[3] == "suddenly":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def model(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" * 100)
    return file


def run(tmp_path, model, ends):
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path), str(model), ends], cwd=ROOT, check=False)


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(b"GGUF"), lambda file: file.unlink()])
def test_a_model_that_was_cut_short_under_a_run_is_named_once(tmp_path, model, change):
    run(tmp_path, model, "suddenly")
    change(model)
    [sentence] = changed_models(tmp_path)
    assert str(model) in sentence
    assert "had 400 bytes" in sentence
    assert changed_models(tmp_path) == []


def test_a_run_that_was_killed_or_ended_by_itself_is_not_mentioned(tmp_path, model):
    run(tmp_path, model, "suddenly")
    assert changed_models(tmp_path) == []
    run(tmp_path, model, "in good order")
    model.write_bytes(b"GGUF")
    assert list((tmp_path / state_file.FOLDER).iterdir()) == []
    assert changed_models(tmp_path) == []


def test_a_run_that_goes_on_keeps_its_note(tmp_path, model):
    mark_model_in_use(tmp_path, str(model))
    model.write_bytes(b"GGUF")
    assert changed_models(tmp_path) == []
    assert len(list((tmp_path / state_file.FOLDER).iterdir())) == 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "7", json.dumps({"owner": 5}), json.dumps({"owner": "a b"})]
)
def test_a_note_that_cannot_be_read_stops_nothing(tmp_path, content):
    (tmp_path / state_file.FOLDER).mkdir()
    (tmp_path / state_file.FOLDER / "1.json").write_text(content)
    assert changed_models(tmp_path) == []


def test_the_next_start_says_it(tmp_path, model, caplog):
    run(tmp_path, model, "suddenly")
    model.write_bytes(b"GGUF")
    app.build_weave(app.Options(tmp_path, engine="scripted", embedder="off")).close()
    assert "ended suddenly" in caplog.text
