"""Native tool calls and thoughts of a model behind `/v1/chat/completions`: our own, llama.cpp's, and deltas in pieces."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.peer_server import llama_server
from halo_weave.chat import Weave, events
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.engines.openai import TOOL_TEMPLATE, OpenAiEngine
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import WordRecall, of
from tests.engines.faulty import KEY, faulty_server
from tests.engines.reciting import write_reciting
from tests.engines.templates.samples import THINKS
from tests.fakes.scripted_engine import ScriptedEngine

CALL = (
    '<tool_call>\n{"name": "save_memory", "arguments": {"path": "Cat", "content": "Mooncake"}}\n</tool_call>'
)
COMMAND = 'save_memory(path="Cat", content="Mooncake")'
SETTINGS = {"tools": "native", "remote_scope": "all", "max_new_tokens": 200, "timestamps": False}


@pytest.fixture
def toolbox(tmp_path):
    store = SqliteStore(tmp_path / "memory.sqlite")
    yield Toolbox(Notes(store), StructuredMemory(store))
    store.close()


def speak(assembled, toolbox, engine):
    weave = assembled(engine, toolbox)
    window = weave.windows.create("w", settings=SETTINGS).id
    return list(weave.turns.steps(window, "My cat is Mooncake, remember that."))


def shown(turn, *, thought):
    tokens = of(events.TokenGenerated, turn)
    return "".join(one.text for one in tokens if one.thought is thought and not one.tool).strip()


def kept(toolbox, turn):
    """What the tool was told and has kept, once."""
    assert [one.command for one in of(events.ToolCalled, turn)] == [COMMAND]
    (answered,) = of(events.ToolAnswered, turn)
    assert answered.ok
    return toolbox.tree.query("Cat", now=of(events.ReplyStored, turn)[0].said).content


def test_a_call_over_our_own_api_runs_here_and_its_answer_goes_back(assembled, toolbox, tmp_path):
    replies = (f"<think>\nI note that.</think>\n\nSure. {CALL}", "<think>\n</think>\n\nDone.")
    far = ScriptedEngine(replies, template=THINKS, context=1 << 14)
    read, generate = [], far.generate

    def noted(window, prompt, *rest, **more):
        read.append(b"".join(far.pieces(one.ids).raw for one in prompt.segments).decode())
        return generate(window, prompt, *rest, **more)

    far.generate = noted
    store = SqliteStore(tmp_path / "far.sqlite")
    service = Service(lambda progress: Weave(far, store, WordRecall(store)))
    service.begin().join()
    with serve_in_thread(service) as address:
        turn = speak(assembled, toolbox, OpenAiEngine(address, model="scripted:incognito"))
    service.close()
    assert kept(toolbox, turn) == "Mooncake"
    assert shown(turn, thought=True) == "I note that."
    assert shown(turn, thought=False).split() == ["Sure.", "Done."]
    assert "save_memory" in read[0]
    assert "<|im_start|>tool" in read[1]
    assert CALL in read[1]
    assert of(events.TurnEnded, turn)[0].reason == "eos"


def deltas(*pieces):
    return [{"choices": [{"delta": one, "finish_reason": None}]} for one in pieces]


def ended(reason):
    return [{"choices": [{"delta": {}, "finish_reason": reason}]}]


def called(**function):
    return {"tool_calls": [{"index": 0, "type": "function", "function": function}]}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_call_and_thoughts_that_come_in_pieces_are_put_together(assembled, toolbox, field):
    calls = deltas(
        {"role": "assistant", "content": None},
        {field: "I note"},
        {field: " that."},
        {"content": "Sure."},
        called(name="save_memory", arguments=""),
        called(arguments='{"path": "Cat", "con'),
        called(arguments='tent": "Mooncake"}'),
    )
    with faulty_server() as server:
        server.streams = [[*calls, *ended("tool_calls")], [*deltas({"content": "Done."}), *ended("stop")]]
        turn = speak(assembled, toolbox, OpenAiEngine(server.url, KEY))
        first, second = (body["messages"] for body in server.asked)
    assert kept(toolbox, turn) == "Mooncake"
    assert shown(turn, thought=True) == "I note that."
    assert shown(turn, thought=False).split() == ["Sure.", "Done."]
    assert second[: len(first)] == first  # what the server has read is read once
    call, answer = second[len(first) :]
    assert call["tool_calls"][0]["function"]["name"] == "save_memory"
    assert call["content"] == "Sure."
    assert answer["tool_call_id"] == call["tool_calls"][0]["id"]
    assert "tools" in server.asked[0]


def test_two_calls_of_one_reply_are_both_run_and_answered(assembled, toolbox):
    two = {
        "tool_calls": [
            {
                "index": number,
                "type": "function",
                "function": {
                    "name": "save_memory",
                    "arguments": f'{{"path": "{path}", "content": "{name}"}}',
                },
            }
            for number, (path, name) in enumerate((("Cat", "Mooncake"), ("Dog", "Bruno")))
        ]
    }
    with faulty_server() as server:
        server.streams = [
            [*deltas({"content": "Sure."}, two), *ended("tool_calls")],
            [*deltas({"content": "Done."}), *ended("stop")],
        ]
        turn = speak(assembled, toolbox, OpenAiEngine(server.url, KEY))
        first, second = (body["messages"] for body in server.asked)
    assert [one.ok for one in of(events.ToolAnswered, turn)] == [True, True]
    now = of(events.ReplyStored, turn)[0].said
    assert [toolbox.tree.query(path, now=now).content for path in ("Cat", "Dog")] == ["Mooncake", "Bruno"]
    call, *answers = second[len(first) :]
    assert [one["function"]["name"] for one in call["tool_calls"]] == ["save_memory"] * 2
    assert [one["tool_call_id"] for one in answers] == [one["id"] for one in call["tool_calls"]]
    assert [one["content"] for one in answers] == [one.text for one in of(events.ToolAnswered, turn)]
    assert shown(turn, thought=False).split() == ["Sure.", "Done."]


@pytest.mark.model
def test_a_call_that_llama_cpps_own_server_tells_is_run(assembled, toolbox, tmp_path):
    pieces = (
        "<think>",
        "\nI note that.",
        "\n</think>\n\n",
        "<tool_call>",
        '\n{"name": "save_memory", ',
        '"arguments": {"path": "Cat", ',
    )
    pieces += ('"content": "Moon', 'cake"}}', "\n</tool_call>")
    model = write_reciting(
        tmp_path / "calls.gguf",
        TOOL_TEMPLATE,
        pieces,
        after="<|im_start|>assistant\n",
        controls=("<|im_start|>", "<|im_end|>"),
    )
    with llama_server(model, context=4096) as address, closing(OpenAiEngine(address)) as engine:
        turn = speak(assembled, toolbox, engine)
    assert kept(toolbox, turn) == "Mooncake"
    assert "I note that." in shown(turn, thought=True)
