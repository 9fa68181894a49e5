"""The text of a call becomes a command, or a sentence that says what is wrong with it."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halo_weave.chat.tools.calls import TOOLS, Command
from halo_weave.errors import BadInput


def jq(program, write=False):
    return Command("jq", {"program": program, "write": write})


def save(path, content, context_tokens=1000):
    return Command("save_memory", {"path": path, "content": content, "context_tokens": context_tokens})


def heading(path, query=None, recency_bias=0.3):
    return Command("query_heading", {"path": path, "query": query, "recency_bias": recency_bias})


def delete(path, recursive=False):
    return Command("delete_memory", {"path": path, "recursive": recursive})


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("jq '.' notes.json", jq(".")),
        ("jq '.array[0]' notes.json", jq(".array[0]")),
        ("""jq '.field = "value"' notes.json > output""", jq('.field = "value"', True)),
        ("""jq '.array += ["item"]' notes.json > output""", jq('.array += ["item"]', True)),
        ("jq 'del(.field)' notes.json >output", jq("del(.field)", True)),
        ("jq .topics notes.json", jq(".topics")),
        ("jq -r '.a' notes.json", jq(".a")),
        ("""jq ".a = \\"b\\"" notes.json > notes.json""", jq('.a = "b"', True)),
        ("""jq '.a = "it'\\''s"' notes.json > output""", jq('.a = "it\'s"', True)),
        ("""jq '.a = "it's"' notes.json > output""", jq('.a = "it\'s"', True)),
        ("jq '.a\n| .b' ./notes.json", jq(".a\n| .b")),
        ("""jq '.a = "x > output"' notes.json""", jq('.a = "x > output"')),
    ],
)
def test_jq_commands_are_read_as_the_model_means_them(text, command):
    assert Command.read(text) == command


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('save_memory("a/b", {"x": [1, null]})', save("a/b", {"x": [1, None]})),
        ('save_memory("a/b", "text", 500)', save("a/b", "text", 500)),
        ("save_memory(path='a/b', content={'x': True})", save("a/b", {"x": True})),
        ("await saveMemory('a/b', {goal: 'x'}, contextTokens: 200);", save("a/b", {"goal": "x"}, 200)),
        ('query_memory("a/b")', Command("query_memory", {"path": "a/b", "page": 1})),
        ('query_heading("a")', heading("a")),
        ('query_heading("a", "cats", 0.5)', heading("a", "cats", 0.5)),
        ('queryMemoryHeading("a", query: "cats", recencyBias: 1)', heading("a", "cats", 1)),
        ("query_heading('a', None)", heading("a", None)),
        ("list_memory()", Command("list_memory", {"path": ""})),
        ('list_memory( "a" )', Command("list_memory", {"path": "a"})),
        ('delete_memory("a/b")', delete("a/b")),
        ('delete_memory("a/b", True)', delete("a/b", True)),
        ('delete_memory("a/b", recursive=true,)', delete("a/b", True)),
        ('inject_memory("a/b")', Command("inject_memory", {"path": "a/b"})),
        (
            '{"name": "query_memory", "arguments": {"path": "a/b"}}',
            Command("query_memory", {"path": "a/b", "page": 1}),
        ),
    ],
)
def test_calls_are_read_with_places_and_with_names(text, command):
    assert Command.read(text) == command


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "Known: jq"),
        ("jq", "looks like"),
        ("jq '.'", "notes.json"),
        ("jq '.' /etc/passwd", "one file"),
        ("jq '.' notes.json > /etc/passwd", "> output"),
        ("jq '.' notes.json | sh", "> output"),
        ("jq '.' notes.json; rm -rf /", "> output"),
        ("jq --args '.' notes.json", "--args"),
        ("jq -n --rawfile x /etc/passwd '$x' notes.json", "options"),
        ("jq '.", "not closed"),
        ("rm -rf /", "no tool rm"),
        ("os.system('x')", "no tool os"),
        ("__import__('os')", "no tool"),
        ("query_memory", "( is missing"),
        ("query_memory(", "missing"),
        ("query_memory()", "needs its path"),
        ("query_memory(7)", "quotes"),
        ("query_memory(a/b)", "quotes"),
        ("query_memory('a', 1, 'b')", "takes path"),
        ("query_memory('a', 'b')", "page is a whole number"),
        ("query_memory('a', 0)", "page is a whole number"),
        ("query_memory('a', colour='red')", "no colour"),
        ("query_memory('a', path='b')", "twice"),
        ("query_memory(path='a', path='b')", "twice"),
        ("query_memory(path='a', 'b')", "follows"),
        ("query_memory('a') and more", "more after"),
        ("save_memory('a')", "needs its content"),
        ("save_memory('a', 1, -5)", "context_tokens"),
        ("save_memory('a', 1, 1.5)", "context_tokens"),
        ("save_memory('a', 1, true)", "context_tokens"),
        ("query_heading('a', 'q', 2)", "recency_bias"),
        ("query_heading('a', ['q'])", "query"),
        ("delete_memory('a', 1)", "true or false"),
        ('{"name": "query_memory"}', "needs its path"),
        ('{"name": 3}', "looks like"),
        ('{"name": "reboot", "arguments": {}}', "no tool reboot"),
        ("{}", "looks like"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_a_sentence(text, hint):
    with pytest.raises(BadInput, match=r".") as caught:
        Command.read(text)
    assert hint in str(caught.value)


safe_text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
contents = st.recursive(
    st.none() | st.booleans() | st.integers() | safe_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(safe_text, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: len(str(value)) < 250)


@given(safe_text, contents, st.booleans(), st.booleans())
def test_arguments_arrive_as_they_were_given(path, content, named, python):
    write = repr if python else json.dumps
    keys = ("path=", "content=") if named else ("", "")
    text = f"save_memory({keys[0]}{write(path)}, {keys[1]}{write(content)})"
    assert Command.read(text) == save(path, content)


@given(st.text(max_size=80) | st.text(alphabet="jq '\".>(){}=,savememory\\n", max_size=80))
def test_any_text_is_a_command_or_a_sentence(text):
    for command in (text, f"jq {text}", f"save_memory({text})"):
        with suppress(BadInput):
            Command.read(command)


@given(safe_text, contents)
def test_a_command_is_the_same_from_its_name_and_arguments_and_from_its_own_text(path, content):
    command = Command.of("saveMemory", {"path": path, "content": content})
    assert command == save(path, content)
    assert Command.read(str(command)) == command


def test_every_tool_can_be_named_with_its_arguments():
    values = {"path": "a", "content": 1, "program": "."}
    for tool, parameters in TOOLS.items():
        named = {name: values[name] for name in parameters if name in values}
        assert Command.of(tool, named).arguments.keys() == parameters.keys()


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400, -1])
def test_a_number_that_no_tool_can_use_is_refused(number):
    with pytest.raises(BadInput, match="context_tokens"):
        Command.of("save_memory", {"path": "a", "content": 1, "context_tokens": number})
