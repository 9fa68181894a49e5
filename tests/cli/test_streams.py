"""Input and output that go wrong cost a sentence, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from halo_weave.paths import memory_file
from halo_weave.store.sqlite import SqliteStore
from tests.search.talk import talk
from tests.store.material import NOW

pytestmark = pytest.mark.slow

FULL = Path("/dev/full")
UNTOUCHED = {"HALO_WEAVE_ENGINE": "scripted", "HALO_WEAVE_CONFIG": os.devnull, "HALO_WEAVE_EMBEDDER": "off"}


@pytest.fixture
def memory(tmp_path):
    with SqliteStore(memory_file(tmp_path)) as store:
        talk(store, store.create_window("first", now=NOW).id)
    return tmp_path


def halo(memory, *arguments, said=b"", out=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tests.fakes", *arguments, "--data", str(memory)],
        input=said,
        stdout=out,
        stderr=subprocess.PIPE,
        timeout=120,
        env={**os.environ, **UNTOUCHED, "COLUMNS": "300", **environment},
    )


def sentence(answer) -> str:
    told = answer.stderr.decode().strip()
    assert answer.returncode == 1, told
    assert len(told.splitlines()) == 1, told
    assert told.startswith("halo-weave: ")
    return told


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:strict", "utf-8:surrogateescape"])
def test_what_is_typed_to_the_model_need_not_be_text(memory, encoding):
    answer = halo(memory, "chat", said=b"caf\xe9\nStill there?\n", PYTHONIOENCODING=encoding)
    assert answer.returncode == 0, answer.stderr.decode()
    shown = answer.stdout.decode()
    assert "caf\N{REPLACEMENT CHARACTER}" in shown
    assert "Still there?" in shown


@pytest.mark.parametrize("arguments", [["chat"], ["memory", "save", "X", "-"]])
def test_a_closed_standard_input_costs_a_sentence(memory, arguments):
    command = [sys.executable, "-m", "tests.fakes", *arguments, "--data", str(memory)]
    answer = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True,
        timeout=120,
        env={**os.environ, **UNTOUCHED, "COLUMNS": "300"},
    )
    assert "Standard input is closed" in sentence(answer)


def test_json_of_what_was_said_cannot_steer_the_terminal(memory):
    halo(memory, "memory", "save", "X", "\x9b2J\u202eevil")
    answer = halo(memory, "memory", "show", "X", "--json")
    assert answer.returncode == 0
    assert "\x9b" not in answer.stdout.decode()
    assert "\u202e" not in answer.stdout.decode()
    assert json.loads(answer.stdout)["content"] == "\x9b2J\u202eevil"


def test_what_is_kept_must_be_text(memory):
    answer = halo(memory, "memory", "save", "X", "-", said=b"\xff", PYTHONIOENCODING="utf-8:strict")
    assert "not UTF-8 text" in sentence(answer)


def test_what_the_terminal_cannot_write_is_told(memory):
    halo(memory, "memory", "save", "X", "żółw")
    answer = halo(memory, "memory", "show", "X", PYTHONIOENCODING="latin-1:strict")
    assert "cannot be written as latin-1" in sentence(answer)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["windows"], ["status", "--json"], ["export", "-"], ["notes"]])
def test_output_that_cannot_be_written_is_told(memory, command):
    with FULL.open("wb") as full:
        answer = halo(memory, *command, out=full)
    assert "The output cannot be written: No space left" in sentence(answer)


def test_a_reader_that_has_seen_enough_is_left_in_peace(memory):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = halo(memory, "export", "-", out=writing)
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr.strip()) == (1, b"")
