"""The official client against the real server; the scripted engine says what it is told to."""

import json
import time
from contextlib import ExitStack, contextmanager

import openai
import pytest

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.server.talking import following, until_done


@pytest.fixture(scope="module")
def guest(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as guest:
        yield guest


def ask(guest, messages, **more):
    return guest.chat.completions.create(model="any", messages=messages, **more)


def raw(guest, messages, **more):
    """The answer with its headers: what was said, and the window."""
    answer = guest.chat.completions.with_raw_response.create(model="any", messages=messages, **more)
    return answer.parse().choices[0].message.content, answer.headers.get("x-halo-window")


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def shown(client, window):
    return [
        "".join("".join(one["text_pieces"]) for one in turn["chunks"]) for turn in turns_of(client, window)
    ]


def turns_of(client, window):
    """Those that were said there; others woke up."""
    turns = client.get(f"/api/windows/{window}/context").json()["turns"]
    return [turn for turn in turns if turn["window"] == window]


def said_in_all(client):
    return client.get("/api/status").json()["memory"]["chunks"]


def test_a_reply_comes_whole_with_its_usage(guest):
    answer = ask(guest, [user("Hello there.")])
    assert answer.choices[0].message.content == "You said: Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 2
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens == 9


def test_a_reply_streams_as_clients_expect(guest):
    chunks = list(ask(guest, [user("Stream this.")], stream=True, stream_options={"include_usage": True}))
    assert len({(one.id, one.created) for one in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
        == "You said: Stream this."
    )
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert (
        chunks[-1].usage.completion_tokens == len(chunks) - 3
    )  # the first, the last and this one say nothing
    assert all(one.usage is None for one in chunks[:-1])


def test_a_history_that_is_sent_again_is_stored_once(guest, client):
    first, window = raw(guest, [user("My cat is called Mochi.")])
    history = [user("My cat is called Mochi."), assistant(first)]
    before = said_in_all(client)
    for i in range(3):
        reply, again = raw(guest, [*history, user(f"Question {i}.")])
        assert again == window
        history += [user(f"Question {i}."), assistant(f"  {reply}\n")]
    assert said_in_all(client) == before + 6
    assert shown(client, window)[:2] == ["My cat is called Mochi.", first]
    assert len(shown(client, window)) == 8


def test_what_was_read_before_is_not_read_again(guest):
    history = [user("Something long enough to be worth keeping in the cache of the model.")]
    first = ask(guest, history)
    second = ask(guest, [*history, assistant(first.choices[0].message.content), user("Go on.")])
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens / 2


def test_two_chats_that_begin_alike_stay_apart(guest, client):
    reply, one = raw(guest, [user("Hello twins.")])
    _, other = raw(guest, [user("Hello twins.")])
    assert one != other
    begun = [user("Hello twins."), assistant(reply)]
    second, place = raw(guest, [*begun, user("I am Castor.")])
    third, elsewhere = raw(guest, [*begun, user("I am Pollux.")])
    assert {place, elsewhere} == {one, other}
    assert "I am Pollux." not in shown(client, place)
    _, again = raw(guest, [*begun, user("I am Castor."), assistant(second), user("Who am I?")])
    assert again == place
    assert shown(client, elsewhere) == ["Hello twins.", reply, "I am Pollux.", third]


def test_an_edit_in_the_middle_forks(guest, client):
    history = []
    for text in ("I live in Bern.", "I play chess.", "I like tea."):
        reply, window = raw(guest, [*history, user(text)])
        history += [user(text), assistant(reply)]
    edited = [*history[:2], user("I play the violin."), *history[3:4], user("And now?")]
    _, same = raw(guest, edited)
    assert same == window
    assert shown(client, window)[2] == "I play the violin."
    hits = client.get("/api/search", params={"q": "chess", "window": window, "only_window": True}).json()[
        "hits"
    ]
    assert "chess" not in json.dumps([one["text"] for one in hits if one["role"] == "user"])
    _, back = raw(guest, [*history, user("Back again.")])
    assert back == window
    assert "I play chess." in shown(client, window)
    assert "I play the violin." not in shown(client, window)
    assert shown(client, window)[-2] == "Back again."


def test_a_reply_that_is_asked_for_again_takes_the_place_of_the_former(guest, client):
    first, window = raw(guest, [user("Name a colour.")])
    begun = [user("Name a colour."), assistant(first)]
    raw(guest, [*begun, user("Another one.")])
    before = len(shown(client, window))
    _, same = raw(guest, [*begun, user("Another one.")])
    assert same == window
    assert len(shown(client, window)) == before
    turns = turns_of(client, window)
    assert (turns[-1]["versions"], turns[-1]["version"]) == (2, 2)


def test_a_client_that_drops_the_oldest_messages_is_recognised(guest, client):
    history = []
    for i in range(5):
        reply, window = raw(guest, [*history, user(f"Fact number {i} of the long talk.")])
        history += [user(f"Fact number {i} of the long talk."), assistant(reply)]
    _, same = raw(guest, [*history[4:], user("Do you remember?")])
    assert same == window
    assert len(shown(client, window)) == 12


def test_a_client_that_replaces_the_oldest_messages_by_a_summary_is_recognised(guest):
    history = []
    for i in range(5):
        reply, window = raw(guest, [*history, user(f"Point {i} of the argument.")])
        history += [user(f"Point {i} of the argument."), assistant(reply)]
    _, same = raw(guest, [user("Summary: five points were made."), *history[4:], user("Conclude.")])
    assert same == window


def test_a_client_whose_first_message_holds_the_time_is_recognised(guest, client):
    """Some write the system prompt into the user's first words."""
    words = "and my list has apples, pears, plums, quinces, cherries, medlars, figs and grapes."
    reply, window = raw(guest, [user(f"It is 10:01. Be kind. I have a garden, {words}")])
    later = user(f"It is 10:02. Be kind. I have a garden, {words}")
    again = raw(guest, [later, assistant(reply), user("Which of them did I name first?")])
    assert again[1] == window
    swiped = raw(guest, [later, assistant(reply), user("Which of them did I name first?")])
    assert swiped[1] == window
    assert len(turns_of(client, window)) == 4


def test_a_short_reply_that_many_chats_have_makes_none_of_them_known(guest):
    reply, window = raw(guest, [user("Yes?")])
    other = raw(guest, [user("Something else."), assistant(reply), user("And now?")])
    assert other[1] != window


def test_reasoning_that_a_client_shows_folded_does_not_break_the_match(guest):
    reply, window = raw(guest, [user("Think first.")])
    folded = f'<details type="reasoning">\n> hm\n</details>\n{reply}'
    assert raw(guest, [user("Think first."), assistant(folded), user("Again.")])[1] == window


def test_a_front_ends_title_task_leaves_no_trace(guest, client):
    raw(guest, [user("Let us talk of ships.")])
    before, windows = said_in_all(client), client.get("/api/windows").json()["windows"]
    task = "### Task:\nGenerate a concise title.\n### Chat History:\n<chat_history>…</chat_history>"
    answer = guest.chat.completions.with_raw_response.create(model="any", messages=[user(task)])
    assert answer.parse().choices[0].message.content
    assert "x-halo-window" not in answer.headers
    assert said_in_all(client) == before
    assert client.get("/api/windows").json()["windows"] == windows


def test_a_question_about_documents_is_remembered_as_it_was_asked(guest, client):
    """Open WebUI writes its template and what it found before the user's words, for this request alone."""
    found = '### Task:\nRespond to the user query using the context.\n\n<context>\n<source id="1">Basil.</source>\n</context>\n'
    asked = "What grows beside tomatoes, by the plan?"
    reply, window = raw(guest, [user(f"{found}\n{asked}")], stream=False)
    assert reply == f"You said: {asked}"
    again = raw(guest, [user(asked), assistant(reply), user("Thanks for the plan.")])
    assert again[1] == window
    assert shown(client, window) == [asked, reply, "Thanks for the plan.", again[0]]


def test_words_that_begin_like_a_task_are_remembered_in_a_chat_that_streams(guest, client):
    before = said_in_all(client)
    list(ask(guest, [user("### Task: water the ferns on Friday.")], stream=True))
    assert said_in_all(client) == before + 2


@pytest.mark.parametrize(
    ("model", "headers"),
    [("any:incognito", {}), ("any", {"X-Halo-Incognito": "1"}), ("any", {"X-Halo-Task": "title"})],
)
def test_incognito_writes_nothing(guest, client, model, headers):
    before = said_in_all(client)
    answer = guest.chat.completions.create(model=model, messages=[user("A secret.")], extra_headers=headers)
    assert "A secret." in answer.choices[0].message.content
    assert said_in_all(client) == before


@pytest.mark.parametrize("header", ["X-OpenWebUI-Chat-Id", "X-Conversation-Id"])
def test_a_chat_is_known_by_the_clients_own_name_for_it(guest, client, header):
    named = {header: f"chat 7 of {header}"}
    _, window = raw(guest, [user("First words.")], extra_headers=named)
    _, same = raw(guest, [user("First words, changed.")], extra_headers=named)
    assert same == window
    assert shown(client, window)[0] == "First words, changed."
    unfilled = {header: "{{CHAT_ID}}"}
    assert raw(guest, [user("First words.")], extra_headers=unfilled)[1] != window


def test_one_key_for_many_chats_does_not_join_them(guest, client):
    _, one = raw(guest, [user("Chat of Ann.")], extra_body={"prompt_cache_key": "the app"})
    _, other = raw(guest, [user("Chat of Ben.")], extra_body={"prompt_cache_key": "the app"})
    assert one != other
    assert shown(client, one)[0] == "Chat of Ann."


def test_a_person_is_no_chat(guest):
    windows = {raw(guest, [user(f"Talk {i}.")], user="ann")[1] for i in range(2)}
    assert len(windows) == 2


def test_our_own_header_names_the_window_and_one_message_goes_on_in_it(guest, client):
    _, window = raw(guest, [user("Begin.")])
    _, same = raw(guest, [user("Go on.")], extra_headers={"X-Halo-Window": window})
    assert same == window
    assert shown(client, window)[::2] == ["Begin.", "Go on."]
    with pytest.raises(openai.NotFoundError) as refused:
        raw(guest, [user("Begin.")], extra_headers={"X-Halo-Window": "nowhere"})
    assert refused.value.code == "unknown_window"


def test_a_history_from_elsewhere_is_taken_in(guest, client):
    foreign = [user("What is a fjord?"), assistant("A drowned valley."), user("Where are some?")]
    reply, window = raw(guest, foreign)
    assert shown(client, window) == ["What is a fjord?", "A drowned valley.", "Where are some?", reply]
    assert raw(guest, [*foreign, assistant(reply), user("Thanks.")])[1] == window


def test_the_system_prompt_is_a_frame_and_never_memory(guest, client):
    system = {"role": "system", "content": "You are a xylophone teacher."}
    reply, window = raw(guest, [system, user("Teach me.")])
    assert shown(client, window) == ["Teach me.", reply]
    hits = client.get("/api/search", params={"q": "xylophone"}).json()["hits"]
    assert "xylophone" not in json.dumps([one["text"] for one in hits])
    other = {"role": "system", "content": "You are a drum teacher."}
    assert raw(guest, [other, user("Teach me."), assistant(reply), user("More.")])[1] == window


def test_what_was_told_through_the_api_wakes_up_on_the_page_and_is_told_to_clients_that_ask(guest, client):
    raw(guest, [user("The lighthouse key hangs behind the barometer.")])
    made = client.post("/api/windows", json={"name": "the page", "settings": {"memory_scope": "all"}}).json()[
        "id"
    ]
    preview = client.get(
        f"/api/windows/{made}/recall-preview", params={"q": "Where is the lighthouse key?"}
    ).json()
    assert "barometer" in json.dumps(preview)
    answer = guest.chat.completions.with_raw_response.create(
        model="any", messages=[user("Where hangs the lighthouse key?")], extra_headers={"X-Halo-Explain": "1"}
    )
    woken = answer.parse().model_extra["halo"]["woken"]
    assert any("barometer" in one["text"] for one in woken)
    assert int(answer.headers["x-halo-woken"]) == len(woken)


def test_those_who_watch_the_window_see_what_a_client_says(guest, client):
    first, window = raw(guest, [user("Watch me.")])
    last = client.get(f"/api/windows/{window}/context").json()["last_event"]
    raw(guest, [user("Watch me."), assistant(first), user("Are you there?")])
    with following(client, window, last) as events:
        names = [event.name for event in until_done(events)]
    assert {"message_stored", "token", "reply_stored", "done"} <= set(names)
    assert "changed" not in names


def test_several_choices_are_siblings(guest, client):
    answer = guest.chat.completions.with_raw_response.create(model="any", messages=[user("Three ways.")], n=3)
    assert [one.index for one in answer.parse().choices] == [0, 1, 2]
    turns = turns_of(client, answer.headers["x-halo-window"])
    assert len(turns) == 2
    assert turns[1]["versions"] == 3


def test_a_reply_ends_before_a_stop_text_and_after_so_many_tokens(guest):
    assert (
        ask(guest, [user("one two STOP three")], stop=["STOP"]).choices[0].message.content
        == "You said: one two "
    )
    short = ask(guest, [user("one two three")], max_tokens=2)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 2
    assert ask(guest, [user("one two three")], max_completion_tokens=3).usage.completion_tokens == 3


def test_the_last_reply_goes_on_if_it_is_sent_last(guest, client):
    cut = ask(guest, [user("Tell a story.")], max_tokens=2).choices[0].message.content
    _, window = raw(guest, [user("Tell a story."), assistant(cut)])
    assert shown(client, window)[-1].startswith(cut)
    assert len(shown(client, window)[-1]) > len(cut)


def test_a_reply_that_the_client_has_begun_goes_on_and_is_stored_once(guest, client):
    begun = [user("Name a bird of the harbour."), assistant("Sure, it is")]
    reply, window = raw(guest, begun)
    question, answer = shown(client, window)
    assert (question, answer) == (begun[0]["content"], f"Sure, it is{reply}")
    whole = assistant(f"Sure, it is{reply}")
    assert raw(guest, [begun[0], whole, user("And another one?")])[1] == window


def test_logprobs_of_the_chosen_tokens_are_told(guest):
    chosen = ask(guest, [user("Hello.")], logprobs=True).choices[0].logprobs.content
    assert "".join(one.token for one in chosen) == "You said: Hello."
    assert all(one.logprob < 0 for one in chosen)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(guest, [user("Hello.")], top_logprobs=5)
    assert refused.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"messages": []}, "bad_input"),
        ({"messages": [{"role": "user", "content": " "}]}, "invalid_messages"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "invalid_messages"),
        ({"temperature": 99}, "bad_input"),
        ({"n": 100}, "bad_input"),
        ({"response_format": {"type": "xml"}}, "unsupported_value"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"pattern": "a"}},
                }
            },
            "unsupported_schema",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "unsupported_content",
        ),
        ({"tools": [{"type": "function", "function": {"name": "look"}}]}, "tools_unsupported"),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_apis_own_shape(guest, client, wrong, code):
    before = said_in_all(client)
    with pytest.raises(openai.BadRequestError) as refused:
        guest.chat.completions.create(**{"model": "any", "messages": [user("Hello.")], **wrong})
    assert refused.value.code == code
    assert refused.value.type == "invalid_request_error"
    assert refused.value.body["message"]
    assert said_in_all(client) == before


def test_fields_that_are_not_known_are_passed_over(guest):
    answer = ask(guest, [{**user("Hello."), "weight": 3}], extra_body={"mirostat": 2, "service_tier": "auto"})
    assert answer.choices[0].message.content == "You said: Hello."


def test_null_is_what_a_client_does_not_choose(guest, client):
    names = "stream stream_options temperature top_p seed max_tokens stop n logprobs top_logprobs response_format tools tool_choice"
    nothing = dict.fromkeys([*names.split(), "metadata", "prompt_cache_key", "max_completion_tokens"])
    said = [{"role": "user", "content": "Hello null.", "name": None, "tool_calls": None}]
    answer = client.post("/v1/chat/completions", json={"model": None, "messages": said, **nothing})
    assert answer.json()["choices"][0]["message"]["content"] == "You said: Hello null."
    text = client.post(
        "/v1/completions",
        json={"prompt": "x", **dict.fromkeys(["echo", "n", "stop", "suffix", "max_tokens"])},
    )
    assert text.status_code == 200
    family = dict.fromkeys(
        ["memory", "genkey", "stop_sequence", "sampler_seed", "grammar", "temperature", "top_k"]
    )
    assert client.post("/api/v1/generate", json={"prompt": "x", "max_length": 2, **family}).status_code == 200


def test_an_unknown_address_is_refused_in_the_apis_own_shape(client):
    assert client.post("/v1/images", json={}).json()["error"].keys() == {"message", "type", "param", "code"}
    wrong = client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["type"] == "invalid_request_error"


def test_models_are_listed(guest):
    names = [model.id for model in guest.models.list()]
    assert names[1] == f"{names[0]}:incognito"
    assert guest.models.retrieve(names[0]).owned_by == "halo-weave"
    with pytest.raises(openai.NotFoundError):
        guest.models.retrieve("gpt-x")


def test_a_text_goes_on_without_memory(guest, client):
    before = said_in_all(client)
    answer = guest.completions.create(model="any", prompt="Once upon a time", max_tokens=4, echo=True, n=2)
    assert len(answer.choices) == 2
    assert answer.choices[0].text.startswith("Once upon a time")
    assert answer.usage.completion_tokens == 8
    streamed = list(guest.completions.create(model="any", prompt=["a", "b"], max_tokens=3, stream=True))
    assert {one.choices[0].index for one in streamed} == {0, 1}
    assert said_in_all(client) == before


def test_a_response_goes_on_from_the_previous_one(guest, client):
    first = guest.responses.create(model="any", input="My name is Ada.", instructions="Be kind.")
    assert first.output_text == "You said: My name is Ada."
    second = guest.responses.create(model="any", input="Who am I?", previous_response_id=first.id)
    window = first.id.split("_")[1]
    assert second.id.split("_")[1] == window
    assert shown(client, window)[::2] == ["My name is Ada.", "Who am I?"]
    assert second.usage.input_tokens > 0
    other = guest.responses.create(model="any", input="Who was I?", previous_response_id=first.id)
    assert shown(client, window)[::2] == ["My name is Ada.", "Who was I?"]
    assert other.output_text == "You said: Who was I?"
    with pytest.raises(openai.NotFoundError):
        guest.responses.create(model="any", input="x", previous_response_id="resp_none_1")


def test_a_response_streams(guest):
    with guest.responses.stream(model="any", input="Stream it.") as stream:
        deltas = [one.delta for one in stream if one.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "You said: Stream it."


def test_a_response_that_is_not_to_be_stored_is_not(guest, client):
    before = said_in_all(client)
    assert guest.responses.create(model="any", input="Forget this.", store=False).output_text
    assert said_in_all(client) == before


@contextmanager
def another_server(folder, *, key="", **options):
    service = Service(lambda progress: build_weave(Options(data=folder, engine="scripted", **options)))
    service.begin().join()
    with serve_in_thread(service, key=key) as address, ExitStack() as opened:
        yield lambda api_key: opened.enter_context(
            openai.OpenAI(base_url=f"{address}/v1", api_key=api_key, max_retries=0)
        )
    service.close()


def test_embeddings_need_an_embedder(tmp_path):
    with (
        another_server(tmp_path, embedder="off") as client_with,
        pytest.raises(openai.ConflictError) as refused,
    ):
        client_with("none").embeddings.create(model="any", input="Hello.")
    assert refused.value.code == "embedder_off"


def test_embeddings_come_as_numbers_and_packed(guest):
    packed = guest.embeddings.create(model="any", input=["cats", "dogs"])
    plain = guest.embeddings.create(model="any", input=["cats", "dogs"], encoding_format="float")
    assert [one.index for one in packed.data] == [0, 1]
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding)
    assert packed.data[0].embedding != packed.data[1].embedding
    with pytest.raises(openai.BadRequestError):
        guest.embeddings.create(model="any", input=[""])


def test_a_client_that_leaves_stops_its_reply(guest, client, service):
    service.weave.engine.pause, usual = lambda: time.sleep(0.05), service.weave.engine.pause
    try:
        stream = ask(guest, [user("word " * 200)], stream=True, max_tokens=400)
        next(iter(stream))
        next(iter(stream))
        stream.close()
        for _ in range(100):
            if not client.get("/api/status").json()["generating"]:
                break
            time.sleep(0.1)
        assert not client.get("/api/status").json()["generating"]
    finally:
        service.weave.engine.pause = usual


def test_the_key_is_needed_here_too(tmp_path):
    with another_server(tmp_path, key="0123456789abcdef") as client_with:
        with pytest.raises(openai.AuthenticationError) as refused:
            client_with("not the key at all").models.list()
        assert refused.value.body["message"]
        assert list(client_with("0123456789abcdef").models.list())


JUNK = [
    None,
    0,
    -1,
    1.5,
    True,
    "",
    " ",
    "\ud800",
    "a\0b",
    [],
    {},
    [[]],
    {"type": "text"},
    10**30,
    ["", None],
    "x" * 300,
]
FIELDS = {
    "chat/completions": """messages model stream stream_options temperature top_p top_k seed max_tokens stop n logprobs
        response_format tools tool_choice prompt_cache_key metadata""",
    "completions": "prompt echo logprobs suffix best_of max_tokens stop n stream",
    "embeddings": "input encoding_format dimensions",
    "responses": "input instructions previous_response_id store stream text tools metadata max_output_tokens",
}


@pytest.mark.slow
@pytest.mark.parametrize("place", FIELDS)
def test_whatever_is_sent_is_answered_or_refused(client, place):
    plain = {"messages": [user("hi")], "prompt": "hi", "input": "hi", "max_tokens": 2, "max_output_tokens": 2}
    for field in FIELDS[place].split():
        for junk in JUNK:
            body = json.dumps({**plain, field: junk})
            answer = client.post(f"/v1/{place}", content=body, headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400, 404), (field, junk, answer.text)


@pytest.mark.slow
def test_whatever_stands_in_messages_is_answered_or_refused(client):
    for role in ("user", "assistant", "system", "tool", "function", "nobody"):
        for junk in JUNK:
            parts = [
                {"role": role, "content": junk},
                {"role": role, "content": [{"type": junk, "text": junk}]},
            ]
            parts.append(
                {
                    "role": role,
                    "content": "x",
                    "tool_calls": [{"id": junk, "function": {"name": "f", "arguments": junk}}],
                }
            )
            for part in parts:
                body = json.dumps({"messages": [user("hi"), part], "max_tokens": 2})
                answer = client.post(
                    "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
                )
                assert answer.status_code in (200, 400), (part, answer.text)
