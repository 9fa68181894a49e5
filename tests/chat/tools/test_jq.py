"""jq programs do what jq does, and nothing else, whatever they try."""

import errno
import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from halo_weave.chat.tools.notes import PROGRAM_LIMIT, JqSandbox
from halo_weave.errors import BadInput
from halo_weave.sandbox.process import CHILD
from tests.chat.tools.places import PATIENT

DOCUMENT = {"a": 1, "b": [1, 2, {"c": None}], "name": "Żółw 🐈"}


def run(program: str, document: object = DOCUMENT, **limits) -> list:
    output = JqSandbox(**{"seconds": 30, **limits}).run(program, json.dumps(document))
    assert not output.cut
    return [json.loads(value) for value in output.values]


@pytest.mark.parametrize(
    ("program", "values"),
    [
        (".", [DOCUMENT]),
        (".b[]", [1, 2, {"c": None}]),
        ("empty", []),
        (".name", ["Żółw 🐈"]),
        ('. + {"new": true} | keys', [["a", "b", "name", "new"]]),
        ("def double: . * 2; .a | double", [2]),
        (".a # a comment", [1]),
        (".a # a comment that goes on \\", [1]),
        ('.a as $x | "value \\($x)"', ["value 1"]),
    ],
)
def test_programs_give_what_jq_gives(program, values):
    assert run(program) == values


def test_long_numbers_keep_their_digits():
    output = PATIENT.run(".", '{"id":123456789012345678901234567890}')
    assert output.values == ('{"id":123456789012345678901234567890}',)


def test_a_wrong_program_is_told_in_one_line():
    for program in (".a.b", ".a[", "nosuch", "error", 'error("x\ny")', "", "|", '"'):
        with pytest.raises(BadInput) as caught:
            run(program)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("jq cannot do this: ")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ('"no cat" | halt_error', "no cat"),
        ('1, ("no cat\\n" | halt_error(3))', "no cat"),
        (".b[2] | halt_error", '{"c":null}'),
        ("input", "there is no further input here"),
        ("[., input]", "there is no further input here"),
    ],
)
def test_a_program_that_gives_up_says_why(program, reason):
    with pytest.raises(BadInput) as caught:
        run(program)
    assert str(caught.value) == f"jq cannot do this: {reason}."


def test_a_program_may_end_early_look_for_more_input_and_name_things_as_it_likes():
    assert run("1, halt, 2") == [1]
    assert run("[inputs]") == [[]]
    assert run("def input: 5; def halt_error: 6; input, halt_error") == [5, 6]


def test_the_environment_is_empty(monkeypatch):
    monkeypatch.setenv("HALO_SECRET", "secret")
    assert run("$ENV, env, env.HALO_SECRET, $ENV.HALO_SECRET, $ENV.PATH") == [{}, {}, None, None, None]


def test_no_other_input_is_there():
    assert run("[inputs], input_filename") == [[], None]
    with pytest.raises(BadInput):
        run("input")


@pytest.mark.parametrize(
    "program",
    [
        'import "secret" as $s {search: "FOLDER"}; $s',
        'include "code" {search: "FOLDER"}; f',
        'import "code" as c {search: "FOLDER"}; c::f',
        '.) | (import "secret" as $s {search: "FOLDER"}; $s',
        '# x\nimport "secret" as $s {search: "FOLDER"}; $s',
        '"FOLDER/code" | modulemeta',
        '"code" | modulemeta',
    ],
)
def test_no_file_can_be_read(program, tmp_path):
    (tmp_path / "secret.json").write_text('"secret"')
    (tmp_path / "code.jq").write_text('module {"secret": 1}; def f: "secret";')
    with pytest.raises(BadInput) as caught:
        run(program.replace("FOLDER", str(tmp_path)))
    assert '"secret"' not in str(caught.value)


CONFINED = """
import runpy, sys
runpy.run_path(sys.argv[1])["confine"](512 << 20)
for attempt in (lambda: open(sys.argv[1]), lambda: bytearray(1 << 30)):
    try:
        attempt()
    except (OSError, MemoryError) as error:
        sys.stdout.write(type(error).__name__ + str(getattr(error, "errno", "")) + " ")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems know fewer limits")
def test_behind_the_language_the_process_itself_can_open_no_file_and_take_little_memory():
    command = [sys.executable, "-I", "-S", "-c", CONFINED, str(CHILD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == [f"OSError{errno.EMFILE}", "MemoryError"]


ENDLESS = ["def f: f; f", "[range(1e9)]", "until(false; .)", "[recurse(.)]", "[limit(1e9; repeat(1))]"]


@pytest.mark.parametrize("program", ENDLESS)
def test_an_endless_program_is_stopped(program):
    with pytest.raises(BadInput, match="stopped"):
        run(program, seconds=0.5)


def test_a_greedy_program_is_stopped_by_its_memory():
    for program in ('"x" * 1e9', "def f: [f]; f", 'reduce range(1e9) as $i ("x"; . + .)'):
        with pytest.raises(BadInput, match="stopped"):
            run(program, seconds=20, memory_bytes=64 << 20)


def test_too_many_values_are_cut_and_it_is_said():
    output = JqSandbox(seconds=30, result_characters=1000).run("range(1e9)", "{}")
    assert output.cut
    assert sum(map(len, output.values)) <= 1000
    output = JqSandbox(seconds=30, result_characters=1000).run('"x" * 100000', "{}")
    assert output.cut
    assert len(output.values[0]) == 1000


@pytest.mark.parametrize(
    "program",
    [
        "halt",
        "halt_error",
        "@sh",
        "getpath([range(1e5) | tostring])",
        "setpath([range(1e5) | tostring]; 1)",
        "reduce range(1e5) as $i (null; [.])",
        ".b[1e9] = 1",
        "(" * 5000,
        "[" * 5000 + "]" * 5000,
        '"' + "\\(" * 2000,
        '"a" * 10000 | test("(a*)*b")',
        "debug, stderr",
        "input_line_number",
        "$__prog_args",
        '"\\u0000"',
        "1e1000",
        "\udcff",
    ],
)
def test_hostile_programs_cost_at_most_a_sentence(program):
    with suppress(BadInput):
        JqSandbox(seconds=1).run(program, json.dumps(DOCUMENT))


def test_programs_have_a_length_and_no_hidden_end():
    with pytest.raises(BadInput, match="longer"):
        run("." + " " * PROGRAM_LIMIT)
    with pytest.raises(BadInput, match="NUL"):
        run(". \0 | hidden")


def test_no_process_is_left_behind():
    before = children()
    for program in (".", "def f: f; f", "nosuch"):
        with suppress(BadInput):
            run(program, seconds=0.2)
    assert children() == before


def children() -> set[str]:
    task = f"/proc/self/task/{os.getpid()}/children"
    if not os.path.exists(task):
        pytest.skip("the system does not list a process's children")
    with open(task) as file:
        return set(file.read().split())
