"""Tools in the format of the model's own template: declared there, read from the reply, answered as it writes answers."""

from __future__ import annotations

import pytest

from halo_weave.chat import events
from halo_weave.chat.runtime import LARGE_MODEL_PARAMETERS
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.core.pruning import PruneReason
from halo_weave.engines.templates.chat_template import CHATML
from halo_weave.engines.templates.tool_calls import ToolCallSplitter, ToolFormat
from halo_weave.settings import Settings
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, of
from tests.engines.templates.samples import CHANNELS, THINKS
from tests.fakes.scripted_engine import ScriptedEngine

ROOMY = {**SMALL, "max_new_tokens": 200, "max_context_tokens": 4_000, "tools": "native"}
CALL = '<tool_call>\n{"name": "save_memory", "arguments": {"path": "Cat", "content": "Mooncake"}}'
COMMAND = 'save_memory(path="Cat", content="Mooncake")'
WAYS = {
    "json in tags": (THINKS, f"<think>\nI note that.</think>\n\nSure. {CALL}\n</tool_call>", "Done."),
    "channels": (
        CHANNELS,
        "<|channel|>analysis<|message|>I note that.<|end|><|start|>assistant<|channel|>final<|message|>Sure. "
        "<|start|>assistant to=functions.save_memory<|channel|>commentary json<|message|>"
        '{"path": "Cat", "content": "Mooncake"}<|call|>',
        "<|channel|>final<|message|>Done.",
    ),
}


@pytest.fixture(params=WAYS)
def way(request) -> tuple[str, str, str]:
    return WAYS[request.param]


@pytest.fixture
def toolbox(tmp_path):
    store = SqliteStore(tmp_path / "memory.sqlite")
    yield Toolbox(Notes(store), StructuredMemory(store))
    store.close()


def opened(assembled, toolbox, template, *replies, parameters=0, **settings):
    engine = ScriptedEngine(replies, template=template, parameters=parameters, context=1 << 14)
    weave = assembled(engine, toolbox)
    return weave, weave.windows.create("one", settings={**ROOMY, **settings}).id


def shown(turn, **about):
    tokens = of(events.TokenGenerated, turn)
    return "".join(one.text for one in tokens if all(getattr(one, k) is v for k, v in about.items()))


def prompts(weave) -> list[str]:
    """What the model reads, from now on."""
    seen, before = [], weave.engine.generate

    def generate(window, prompt, *rest, **more):
        seen.append(b"".join(weave.engine.pieces(segment.ids).raw for segment in prompt.segments).decode())
        return before(window, prompt, *rest, **more)

    weave.engine.generate = generate
    return seen


def test_a_call_runs_and_is_answered_as_the_template_writes_it(assembled, toolbox, way):
    weave, window = opened(assembled, toolbox, *way)
    seen = prompts(weave)
    turn = list(weave.turns.steps(window, "My cat is Mooncake, remember that."))
    assert [one.command for one in of(events.ToolCalled, turn)] == [COMMAND]
    (answered,) = of(events.ToolAnswered, turn)
    assert answered.ok
    assert toolbox.tree.query("Cat", now=weave.now()).content == "Mooncake"
    assert "save_memory" in seen[0]  # declared by the template
    assert "<tool>" not in seen[0]
    assert seen[1].startswith(seen[0])
    assert answered.text[:20] in seen[1]
    assert seen[1].rstrip().endswith("assistant")  # the model goes on in a turn of its own
    assert shown(turn, thought=False, tool=False) == "Sure. Done."
    assert shown(turn, tool=True).replace('\\"', '"') == answered.text  # some write it as JSON


def test_the_round_trip_is_the_templates_own(assembled, toolbox):
    weave, window = opened(assembled, toolbox, *WAYS["json in tags"])
    seen = prompts(weave)
    turn = list(weave.turns.steps(window, "Remember Mooncake."))
    (answered,) = of(events.ToolAnswered, turn)
    frame = f"\n</tool_call><|im_end|>\n<|im_start|>tool\n{answered.text}<|im_end|>\n<|im_start|>assistant\n"
    assert seen[1].endswith(CALL + frame)


def test_two_calls_of_one_message_are_both_run_and_answered_as_the_template_writes_it(assembled, toolbox):
    both = f"{CALL}\n</tool_call>\n" + CALL.replace("Cat", "Dog").replace("Mooncake", "Bruno")
    weave, window = opened(assembled, toolbox, THINKS, f"Sure. {both}\n</tool_call>", "Done.")
    seen = prompts(weave)
    turn = list(weave.turns.steps(window, "Remember my cat Mooncake and my dog Bruno."))
    assert [toolbox.tree.query(path, now=weave.now()).content for path in ("Cat", "Dog")] == [
        "Mooncake",
        "Bruno",
    ]
    cat, dog = (one.text for one in of(events.ToolAnswered, turn))
    frame = f"<|im_end|>\n<|im_start|>tool\n{cat}<|im_end|>\n<|im_start|>tool\n{dog}<|im_end|>\n"
    assert seen[1].endswith(f"{both}\n</tool_call>{frame}<|im_start|>assistant\n")
    assert len(seen) == 2
    assert shown(turn, tool=False, thought=False) == "Sure. Done."


def test_what_a_model_says_after_its_call_instead_of_waiting_is_not_kept(assembled, toolbox):
    reply = f"Sure. {CALL}\n</tool_call>\nThe tool says: all is saved."
    weave, window = opened(assembled, toolbox, THINKS, reply, "Done.")
    seen = prompts(weave)
    turn = list(weave.turns.steps(window, "Remember Mooncake."))
    assert shown(turn, tool=False, thought=False) == "Sure. Done."
    assert "all is saved" not in seen[1]


def test_what_the_tool_said_is_kept_and_sleeps_when_the_turn_is_over(assembled, toolbox, way):
    weave, window = opened(assembled, toolbox, *way)
    turn = list(weave.turns.steps(window, "Remember Mooncake."))
    (spoken,) = of(events.ReplyStored, turn)
    kinds = ["thought" if one.thought else "tool" if one.tool else "answer" for one in spoken.chunks]
    assert kinds == ["thought", "answer", "tool", "answer"]
    assert "tool_call" not in "".join(one.chunk.text for one in spoken.chunks)
    assert "<|" not in "".join(one.chunk.text for one in spoken.chunks)
    slept = [one for event in of(events.ChunksPruned, turn) for one in event.chunks]
    assert {one.why for one in slept} == {PruneReason.TURN_OVER}
    assert len(slept) == 2
    live = weave.windows.context(window).turns[-1].chunks
    assert "".join(one.chunk.text for one in live) == "Sure. Done."
    assert live[0].key.chunk_id == 0


def test_a_mistake_is_answered_in_a_sentence(assembled, toolbox):
    bad = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}'
    weave, window = opened(assembled, toolbox, THINKS, bad, "I cannot know.")
    turn = list(weave.turns.steps(window, "How is the weather?"))
    (answered,) = of(events.ToolAnswered, turn)
    assert not answered.ok
    assert "There is no tool get_weather." in answered.text
    assert shown(turn, tool=False) == "I cannot know."


def test_what_is_no_call_is_shown_as_it_is(assembled, toolbox):
    text = "Write <tool_call>{not json}</tool_call> to call."
    weave, window = opened(assembled, toolbox, THINKS, text)
    turn = list(weave.turns.steps(window, "How do you call?"))
    assert not of(events.ToolCalled, turn)
    assert shown(turn) == text


def test_a_model_calls_at_most_so_often(assembled, toolbox):
    weave, window = opened(
        assembled, toolbox, THINKS, *(CALL.replace("Moon", f"{i} ") for i in range(4)), tool_rounds=2
    )
    turn = list(weave.turns.steps(window, "Again and again."))
    assert len(of(events.ToolCalled, turn)) == 2
    assert turn[-1].reason == "eos"


@pytest.mark.parametrize(
    ("tools", "template", "parameters", "form"),
    [
        ("auto", THINKS, LARGE_MODEL_PARAMETERS, "native"),
        ("auto", THINKS, LARGE_MODEL_PARAMETERS - 1, "off"),  # would call a tool for everything that is said
        ("auto", THINKS, 0, "off"),  # its size is not known
        ("auto", CHATML, LARGE_MODEL_PARAMETERS, "off"),  # no format of its own
        ("native", THINKS, 1, "native"),
        ("native", CHATML, LARGE_MODEL_PARAMETERS - 1, "off"),
        ("tags", CHATML, 1, "tags"),
        ("tags", THINKS, LARGE_MODEL_PARAMETERS - 1, "tags"),
        ("off", THINKS, LARGE_MODEL_PARAMETERS - 1, "off"),
    ],
)
def test_which_form_is_used(assembled, toolbox, tools, template, parameters, form):
    weave, window = opened(assembled, toolbox, template, "Hi.", parameters=parameters, tools=tools)
    assert weave.runtime.tool_format(Settings().changed({"tools": tools})) == form
    seen = prompts(weave)
    list(weave.turns.steps(window, "Hello."))
    assert ("<tool>" in seen[0]) is (form == "tags")
    assert ("query_heading" in seen[0]) is (form != "off")


def test_a_request_to_remember_declares_no_tools_to_a_small_model(assembled, toolbox):
    weave, window = opened(
        assembled, toolbox, THINKS, "Hi.", "Yes.", parameters=LARGE_MODEL_PARAMETERS - 1, tools="auto"
    )
    seen = prompts(weave)
    list(weave.turns.steps(window, "Please remember that my cat is Mooncake."))
    assert not any("save_memory" in prompt for prompt in seen)


def test_without_tools_the_prompt_says_nothing_of_them(assembled, toolbox):
    weave, window = opened(assembled, toolbox, THINKS, "Hi.", tools="off")
    toolbox.tree.save("People/Anna", "a friend", now=weave.now())
    seen = prompts(weave)
    list(weave.turns.steps(window, "Hello."))
    assert "Anna" not in seen[0]
    weave.windows.change(window, settings={"tools": "native"})
    weave.engine.replies.append("Hi.")
    list(weave.turns.steps(window, "Hello again."))
    assert "Your memory holds:\nPeople" in seen[1]


# A call within a stream of bytes


def split(format: ToolFormat, *pieces: bytes, header: str = "") -> tuple[list[tuple[str, bytes]], int]:
    splitter = ToolCallSplitter(format, header=header)
    found = [run for piece in pieces for run in splitter.feed(piece)]
    found += splitter.finish()
    return found, len(splitter.take_calls())


def test_however_the_text_falls_into_pieces_it_comes_back_whole():
    format = ToolFormat("json", "<tool_call>", "name", "arguments")
    text = b'Sure.<tool_call>{"name": "jq", "arguments": {}} and <b>'
    for size in range(1, len(text)):
        found, calls = split(format, *(text[at : at + size] for at in range(0, len(text), size)))
        assert b"".join(raw for _, raw in found) == text
        assert calls == 1
        assert b"".join(raw for kind, raw in found if kind == "answer").startswith(b"Sure.")
        assert b"tool_call" not in b"".join(raw for kind, raw in found if kind == "answer")


def test_a_call_that_is_the_whole_reply_has_no_mark():
    format = ToolFormat("json", "", "name", "parameters")
    found, calls = split(format, b' {"name": "jq", ', b'"parameters": {}}')
    assert calls == 1
    assert {kind for kind, _ in found} == {"mark"}
    found, calls = split(format, b"Sets are written ", b'{"name": "jq", "parameters": {}}')
    assert calls == 0
    assert {kind for kind, _ in found} == {"answer"}


@pytest.mark.parametrize(
    "reply",
    [
        b'```json\n{\n  "name": "jq",\n  "arguments": {"program": "."}\n}\n```',
        b'{"name": "jq", "arguments": {"program": "."}}',
        b'{{"name": "jq", "arguments": {"program": "."}}}',
        b'<tools>\n{"name": "jq", "arguments": {"program": "."}}\n</tools>',
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_call_that_has_lost_its_mark_is_a_call(reply, size):
    format = ToolFormat("json", "<tool_call>", "name", "arguments")
    splitter = ToolCallSplitter(format, [{"function": {"name": "jq"}}])
    found = []
    for at in range(0, len(reply), size):
        found += splitter.feed(reply[at : at + size])
        if splitter._found:
            break
    assert [(call.name, call.arguments) for call in splitter.take_calls()] == [("jq", {"program": "."})]
    assert {kind for kind, _ in found} == {"mark"}


@pytest.mark.parametrize(
    "reply",
    [
        b'```json\n{"name": "Anna", "arguments": {}}\n``` is JSON.',
        b"```python\nprint({})\n```",
        b"<b>Hello</b> {you}",
        b'{"a": {"b": 1}} is a mapping.',
        b"2 < 3, {x}",
        b"``",
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_other_code_is_the_answer(reply, size):
    format = ToolFormat("json", "<tool_call>", "name", "arguments")
    splitter = ToolCallSplitter(format, [{"function": {"name": "jq"}}])
    found = [run for at in range(0, len(reply), size) for run in splitter.feed(reply[at : at + size])]
    found += splitter.finish()
    assert b"".join(raw for _, raw in found) == reply
    assert {kind for kind, _ in found} == {"answer"}


def test_a_call_that_was_answered_is_not_made_again(assembled, toolbox, way):
    template, reply, _ = way
    weave, window = opened(assembled, toolbox, template, reply, reply, reply)
    turn = list(weave.turns.steps(window, "Remember my cat."))
    assert [one.command for one in of(events.ToolCalled, turn)] == [COMMAND]
    assert turn[-1].reason == "eos"
    assert toolbox.tree.query("Cat", now=weave.now()).version == 1
    assert "save_memory" not in shown(turn, tool=False, thought=False)


@pytest.mark.parametrize(
    ("last", "said"), [("Done.", "Done."), ("", "I have used my memory, and have nothing to add.")]
)
def test_an_empty_answer_after_a_call_is_asked_for_once_more_without_tools(assembled, toolbox, last, said):
    weave, window = opened(assembled, toolbox, THINKS, f"{CALL}\n</tool_call>", "", last)
    seen = prompts(weave)
    turn = list(weave.turns.steps(window, "My cat is Mooncake."))
    assert len(seen) == 3
    assert "query_heading" in seen[1]
    assert "query_heading" not in seen[2]
    assert shown(turn).strip().endswith(said)
