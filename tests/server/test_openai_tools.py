"""Tools of the client and thoughts of the model, through the official client; the template has a format for both."""

import json
from contextlib import contextmanager

import openai
import pytest

from halo_weave.chat import Weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import WordRecall
from tests.chat.test_native_tools import prompts
from tests.engines.templates.samples import THINKS
from tests.fakes.scripted_engine import ScriptedEngine

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
ASKED = {"role": "user", "content": "How is the weather in Bern?"}


@contextmanager
def house(folder, *replies):
    """A server whose model says these replies, and a client of it."""
    store = SqliteStore(folder / "memory.sqlite")
    weave = Weave(ScriptedEngine(replies, template=THINKS, context=1 << 14), store, WordRecall(store))
    service = Service(lambda progress: weave)
    service.begin().join()
    with (
        serve_in_thread(service) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as guest,
    ):
        yield guest, weave
    service.close()


def ask(guest, messages, **more):
    return guest.chat.completions.create(model="any", messages=messages, tools=[WEATHER], **more)


def message_of(answer):
    """What a client sends back of an answer."""
    return answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)


@pytest.mark.parametrize("model", ["any", "any:incognito"])
def test_a_call_goes_to_the_client_and_its_result_back_to_the_model(tmp_path, model):
    replies = (f"<think>\nI look.</think>\n\n{CALL}", "<think>\nSo.</think>\n\nIt is sunny.")
    with house(tmp_path, *replies) as (guest, weave):
        seen = prompts(weave)
        first = guest.chat.completions.create(model=model, messages=[ASKED], tools=[WEATHER])
        assert first.choices[0].finish_reason == "tool_calls"
        (call,) = first.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Bern"})
        assert first.choices[0].message.model_extra["reasoning_content"].strip() == "I look."
        assert "The weather of a city." in seen[0], "the template declares the client's tools"
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain at 21 degrees"}
        messages = [ASKED, message_of(first), result]
        second = guest.chat.completions.create(model=model, messages=messages, tools=[WEATHER])
        assert second.choices[0].message.content == "It is sunny."
        assert second.choices[0].finish_reason == "stop"
        assert CALL in seen[1], "the model reads its call as its template writes it"
        assert "<tool_response>" in seen[1] or "rain at 21 degrees" in seen[1]


def test_a_chat_with_tools_is_one_conversation_and_the_result_is_remembered(tmp_path):
    replies = (f"Let me look. {CALL}", "It is sunny.", "You are welcome.")
    with house(tmp_path, *replies) as (guest, weave):
        first = ask(guest, [ASKED])
        (call,) = first.choices[0].message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain at 21 degrees"}
        messages = [ASKED, message_of(first), result]
        second = ask(guest, messages)
        thanks = {"role": "user", "content": "Thank you."}
        ask(guest, [*messages, message_of(second), thanks])
        (window,) = weave.windows.list()
        turns = weave.windows.context(window.window.id).turns
        texts = ["".join(one.chunk.text for one in turn.chunks if not one.tool) for turn in turns]
        assert texts == [ASKED["content"], "Let me look. It is sunny.", "Thank you.", "You are welcome."]
        assert [one.record.chunk.text for one in weave.memory.search("rain")] == ["rain at 21 degrees"]
        assert len(weave.windows.list()) == 1


def test_calls_stream_whole(tmp_path):
    with house(tmp_path, f"<think>\nI look.</think>\n\nWell. {CALL}") as (guest, _):
        chunks = list(ask(guest, [ASKED], stream=True))
        deltas = [one.choices[0].delta for one in chunks if one.choices]
        (call,) = [one.tool_calls[0] for one in deltas if one.tool_calls]
        assert (call.index, call.function.name) == (0, "get_weather")
        assert "".join(one.content or "" for one in deltas).strip() == "Well."
        assert (
            "".join((one.model_extra or {}).get("reasoning_content", "") for one in deltas).strip()
            == "I look."
        )
        assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tools_that_shall_not_be_called_are_not_told_of(tmp_path):
    with house(tmp_path, "<think>\n</think>\n\nNo.") as (guest, weave):
        seen = prompts(weave)
        ask(guest, [ASKED], tool_choice="none")
        assert "get_weather" not in seen[0]


def test_thoughts_are_apart_and_do_not_break_the_match(tmp_path):
    replies = ("<think>\nHm.</think>\n\nHello.", "<think>\nHm.</think>\n\nAgain.")
    with house(tmp_path, *replies) as (guest, weave):
        first = guest.chat.completions.create(model="any", messages=[ASKED])
        assert first.choices[0].message.content.strip() == "Hello."
        assert first.usage.completion_tokens_details.reasoning_tokens > 0
        again = {"role": "user", "content": "Again?"}
        guest.chat.completions.create(model="any", messages=[ASKED, message_of(first), again])
        assert len(weave.windows.list()) == 1
