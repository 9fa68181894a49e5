"""The official client on the real model: what it promises, and a conversation that is remembered."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.engines.reciting import write_reciting

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@contextmanager
def served(folder, model, **options):
    service = Service(lambda progress: build_weave(Options(data=folder, model=model, **options)))
    service.begin().join()
    with (
        serve_in_thread(service) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=300, max_retries=0) as guest,
    ):
        yield guest
    service.close()


@pytest.fixture(scope="module")
def guest(tmp_path_factory, model_file):
    with served(tmp_path_factory.mktemp("v1"), model_file) as guest:
        yield guest


def ask(guest, *said, **more):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    more = {"model": "smollm2", "temperature": 0, "max_tokens": 16, **more}
    return guest.chat.completions.create(messages=messages, **more)


@pytest.mark.model
def test_a_reply_streams_with_its_usage_and_is_the_same_with_the_same_seed(guest):
    def once():
        # What was said before would wake up, and change the reply.
        options = {"model": "smollm2:incognito", "temperature": 1, "seed": 7}
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(ask(guest, "Tell me something about the sea.", **options))
        assert chunks[-1].usage.completion_tokens >= 4
        assert chunks[-1].usage.prompt_tokens > 8
        return "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)

    first = once()
    assert first
    assert once() == first


@pytest.mark.model
def test_a_stop_text_ends_the_reply(guest):
    alone = "smollm2:incognito"
    whole = ask(guest, "Count from one to ten.", model=alone).choices[0].message.content
    word = whole.split()[3]
    cut = ask(guest, "Count from one to ten.", stop=[word], model=alone)
    assert cut.choices[0].message.content == whole[: whole.index(word)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.model
def test_json_fits_its_schema(guest):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for seed in range(2):
        answer = ask(
            guest,
            "Ada is thirty-six years old. Who is she?",
            response_format=form,
            max_tokens=80,
            temperature=1.2,
            seed=seed,
        )
        found = json.loads(answer.choices[0].message.content)
        assert found.keys() == {"name", "age"}
        assert isinstance(found["age"], int)
    anything = ask(guest, "Describe a cat as JSON.", response_format={"type": "json_object"}, max_tokens=60)
    if anything.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(anything.choices[0].message.content), dict)
    assert anything.choices[0].message.content.startswith("{")


@pytest.mark.model
def test_logprobs_are_those_of_the_model(guest):
    content = ask(guest, "Say hello.", logprobs=True).choices[0].logprobs.content
    assert all(-20 < one.logprob <= 0 for one in content)
    assert content[0].logprob > -5, "the likeliest token was taken"
    assert content[0].top_logprobs == []


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2", "smollm2:incognito"])
def test_the_likeliest_in_place_of_each_token_are_told(guest, model):
    content = ask(guest, "Say hello.", model=model, logprobs=True, top_logprobs=4).choices[0].logprobs.content
    for one in content:
        assert len(one.top_logprobs) == 4
        assert [other.logprob for other in one.top_logprobs] == sorted(
            (other.logprob for other in one.top_logprobs), reverse=True
        )
        first = one.top_logprobs[0]
        assert (first.token, round(first.logprob, 3)) == (one.token, round(one.logprob, 3)), "it is greedy"
    text = guest.completions.create(
        model=model, prompt="Once upon a", max_tokens=3, temperature=0, logprobs=2
    )
    told = text.choices[0].logprobs
    assert "".join(told.tokens) == text.choices[0].text
    assert all(len(one) == 2 and told.tokens[i] in one for i, one in enumerate(told.top_logprobs))
    assert told.text_offset[:2] == [0, len(told.tokens[0])]


@pytest.mark.model
def test_a_history_is_read_once_and_a_fact_is_remembered(guest):
    fact = "My sister Ottilie keeps seventeen bees in Winterthur."
    first = ask(guest, fact)
    history = [fact, first.choices[0].message.content]
    second = ask(guest, *history, "What do you think?")
    usage = second.usage
    assert usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens > 0.6
    asked = guest.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What does my sister Ottilie keep?"}],
        extra_headers={"X-Halo-Explain": "1"},
        max_tokens=8,
    )
    woken = asked.parse().model_extra["halo"]["woken"]
    assert fact in [one["text"] for one in woken], "another chat remembers it"


@pytest.mark.model
def test_embeddings_have_meaning(guest):
    data = guest.embeddings.create(model="any", input=["a cat", "a kitten", "tax law"]).data
    cat, kitten, law = (one.embedding for one in data)

    def near(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert near(cat, kitten) > near(cat, law) + 0.2


@pytest.mark.model
def test_a_model_with_a_format_for_tools_calls_them(tmp_path):
    """Of those that are here; SmolLM2 has none, and says so."""
    model = Path(os.environ.get("HALO_WEAVE_MODELS", "models")) / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    if not model.exists():
        pytest.skip("a model with a format for tools is not here")
    with served(tmp_path, model, embedder="off") as guest:
        asked = {"role": "user", "content": "What is the weather in Paris? Use the tool."}
        first = guest.chat.completions.create(
            model="qwen", messages=[asked], tools=[WEATHER], temperature=0, max_tokens=60
        )
        (call,) = first.choices[0].message.tool_calls
        assert "Paris" in json.loads(call.function.arguments)["city"]


@pytest.mark.model
def test_a_model_without_a_format_for_tools_says_so(guest):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(guest, "Hi", tools=[WEATHER])
    assert refused.value.code == "tools_unsupported"


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}},
                "required": ["unit", "days"],
            },
        },
    }
    for name in ("get_weather", "get_tide")
]  # fmt: skip


CALLS = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for call in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' + call.function.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """A tiny model with a template for tools; left alone it says two words, whatever it is asked."""
    folder = tmp_path_factory.mktemp("silent")
    path = folder / "silent.gguf"
    write_reciting(path, CALLS, ["Well", " no"], after="assistant\n", controls=["<|im_start|>", "<|im_end|>"])
    with served(folder, path, embedder="off") as guest:
        yield guest


@pytest.mark.parametrize("model", ["any", "any:incognito"])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_tide"}),
        ({"type": "function", "function": {"name": "get_tide"}}, {"get_tide"}),
    ],
)
def test_a_call_that_is_demanded_is_made_and_fits_its_schema(silent, model, choice, names):
    asked = [{"role": "user", "content": "Hello."}]
    answer = silent.chat.completions.create(
        model=model, messages=asked, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=200
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name in names
    arguments = json.loads(call.function.arguments)
    assert arguments["unit"] in ("C", "F")
    assert set(arguments["days"]) <= {1, 2}
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    auto = silent.chat.completions.create(
        model=model, messages=asked, tools=TOOLS, temperature=0, max_tokens=9
    )
    assert auto.choices[0].message.content == "Well no"
    assert auto.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("choice", "tools"),
    [({"type": "function", "function": {"name": "other"}}, TOOLS), ("always", TOOLS), ("required", [])],
)
def test_a_call_that_cannot_be_demanded_is_refused(silent, choice, tools):
    asked = [{"role": "user", "content": "Hello."}]
    with pytest.raises(openai.BadRequestError) as refused:
        silent.chat.completions.create(model="any", messages=asked, tools=tools, tool_choice=choice)
    assert refused.value.param == "tool_choice"


@pytest.mark.model
@pytest.mark.parametrize("kind", ["chat", "incognito", "store: false", "completion", "koboldai"])
def test_only_what_is_stored_leaves_cells_on_disk(kind, tmp_path, model_file):
    with served(tmp_path, model_file) as guest:
        words = "The secret code of the boat house is wandering heron forty two."
        match kind:
            case "chat" | "incognito":
                ask(guest, words, model="smollm2:incognito" if kind == "incognito" else "smollm2")
            case "store: false":
                guest.responses.create(model="smollm2", input=words, store=False, max_output_tokens=16)
            case "completion":
                guest.completions.create(model="smollm2", prompt=words, max_tokens=4)
            case "koboldai":
                address = str(guest.base_url).removesuffix("/v1/")
                body = {"prompt": words, "max_length": 4}
                httpx.post(f"{address}/api/v1/generate", json=body, timeout=300).raise_for_status()
    assert bool(list(tmp_path.rglob("*.cells"))) == (kind == "chat")
