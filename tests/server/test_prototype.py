"""Clients of the prototype's inference server find what they know."""

import base64
import json
import threading
import time

import httpx
import numpy as np
import pytest


def stream(client, **asked):
    """The messages of one generation."""
    with client.stream("POST", "/api/extra/generate/stream", json=asked) as response:
        assert response.status_code == 200, response.read()
        return list(messages(response.iter_lines()))


def messages(lines):
    event = ""
    for line in lines:
        if line.startswith("event: "):
            event = line[7:]
        if line.startswith("data: "):
            assert event == "message"
            yield json.loads(line[6:])


def tensor(attention):
    assert attention["encoding"] == "base64"
    assert attention["dtype"] == "float32"
    values = np.frombuffer(base64.b64decode(attention["data"]), np.float32)
    return values.reshape(attention["shape"])


def test_the_model_tells_its_shape(client, service):
    told = client.get("/api/v1/model").json()
    info = service.engine().info
    assert told["model_name"] == told["result"] == info.name
    assert (told["num_layers"], told["num_attention_heads"]) == (info.layers, info.heads)


@pytest.mark.parametrize("text", ["Hello world", "naïve 🐈‍⬛ café", ""])
def test_text_becomes_tokens_and_text_again(client, text):
    told = client.post("/api/v1/tokenize", json={"text": text, "add_special_tokens": False}).json()
    assert told["token_ids"] == [token["token_id"] for token in told["tokens"]]
    assert told["token_count"] == len(told["tokens"])
    assert "".join(token["text"] for token in told["tokens"]) == text
    again = client.post("/api/v1/detokenize", json={"token_ids": told["token_ids"]}).json()
    assert again == {"text": text}


def test_the_text_alone_may_be_sent_as_plain_text(client):
    as_json = client.post("/api/v1/tokenize", json={"text": "Hello world"}).json()
    plain = client.post(
        "/api/v1/tokenize", content="Hello world", headers={"content-type": "text/plain"}
    ).json()
    assert plain == as_json


def test_special_tokens_are_added_on_request(client, service):
    plain = client.post("/api/v1/tokenize", json={"text": "Hello"}).json()["token_ids"]
    special = client.post("/api/v1/tokenize", json={"text": "Hello", "add_special_tokens": True}).json()[
        "token_ids"
    ]
    assert special == [service.engine().info.special["bos"], *plain]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain", b"\xff"),
        ("text/plain", b"a\x00b"),
        ("text/plain", b"x" * 900_001),
        ("application/json", b"{"),
        ("application/json", b"\xff"),
        ("application/json", b"[" * 100_000),
        ("application/json", b"[]"),
        ("application/json", b'{"text": 1}'),
        ("application/json", b'{"text": "\\ud800"}'),
    ],
    ids=lambda part: repr(part[:20]),
)
def test_what_is_no_text_is_refused(client, kind, body):
    answer = client.post("/api/v1/tokenize", content=body, headers={"content-type": kind})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "bad_input"


@pytest.mark.parametrize("ids", [[2**31 - 1], [-1], ["x"], [1.5]])
def test_ids_that_are_no_tokens_are_refused(client, ids):
    assert client.post("/api/v1/detokenize", json={"token_ids": ids}).status_code == 422
    answer = client.post("/api/extra/generate/stream", json={"input_ids": ids})
    assert answer.status_code == 422


def test_generation_streams_tokens_and_says_how_it_ended(client):
    told = stream(client, prompt="Say it again.", max_length=5)
    assert [message["type"] for message in told] == ["token"] * 5 + ["done"]
    name = told[-1].pop("request_id")
    assert told[-1] == {"type": "done", "finish_reason": "length", "total_tokens": 5}
    assert {message["request_id"] for message in told[:-1]} == {name}
    assert all("attention" not in message for message in told)
    ids = [message["token"]["token_id"] for message in told[:-1]]
    text = "".join(message["token"]["text"] for message in told[:-1])
    assert client.post("/api/v1/detokenize", json={"token_ids": ids}).json()["text"].startswith(text)


def test_one_row_of_attention_per_token_over_prompt_and_reply(client):
    ids = client.post("/api/v1/tokenize", json={"text": "The cat sat on the mat."}).json()["token_ids"]
    told = stream(client, input_ids=ids, max_length=3, output_attentions=True)
    for i, message in enumerate(told[:-1]):
        attention = message["attention"]
        assert attention["format"] == "aggregated"
        assert attention["context_length"] == len(ids) + i
        row = tensor(attention)
        assert row.shape == (len(ids) + i,)
        assert row.sum() == pytest.approx(1, abs=1e-3)


def test_the_prototypes_page_can_take_the_mean_of_what_it_gets(client):
    """It asks with a request_id and without a format, and reads the shape as layers, heads and context."""
    ids = client.post("/api/v1/tokenize", json={"text": "The cat sat on the mat."}).json()["token_ids"]
    asked = {"top_k": 40, "rep_pen": 1.0, "sampler_seed": -1, "request_id": "7b1c"}
    attention = stream(client, input_ids=ids, max_length=2, output_attentions=True, **asked)[0]["attention"]
    layers, heads, context = attention["shape"]
    assert context == attention["context_length"] == len(ids)
    mean = tensor(attention).sum(axis=(0, 1)) / (layers * heads)
    assert mean.sum() == pytest.approx(1, abs=1e-3)


def test_rows_of_every_layer_and_head_on_request(client, service):
    info = service.engine().info
    told = stream(
        client, prompt="Look around.", max_length=2, output_attentions=True, attention_format="per_layer"
    )
    rows = tensor(told[0]["attention"])
    assert rows.shape[:2] == (info.layers, info.heads)
    assert np.allclose(rows.sum(axis=2), 1, atol=1e-3)


def test_the_fields_of_the_family_are_taken(client):
    family = {
        "max_context_length": 2048,
        "rep_pen": 1.1,
        "top_k": 40,
        "genkey": "KCPP1",
        "sampler_order": [6, 0],
    }
    told = stream(client, prompt="Hi", max_length=1, sampler_seed=-1, stop_sequence=["\n"], **family)
    assert told[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/api/v1/tokenize", {"text": "Hi"}),
        ("/api/v1/detokenize", {"token_ids": []}),
        ("/api/extra/generate/stream", {"prompt": "Hi", "max_length": 1}),
        ("/api/extra/abort", {}),
    ],
)
def test_unknown_fields_are_passed_over(client, path, asked):
    assert client.post(path, json=asked | {"colour": 1}).status_code == 200
    assert client.post(path, json=asked, params={"colour": 1}).status_code == 200


@pytest.mark.parametrize("asked", [{}, {"prompt": ""}, {"input_ids": []}])
def test_a_prompt_is_needed(client, asked):
    answer = client.post("/api/extra/generate/stream", json=asked)
    assert answer.status_code == 422
    assert "prompt" in answer.json()["error"]["message"]


def test_ids_hold_where_a_prompt_comes_with_them(client):
    ids = client.post("/api/v1/tokenize", json={"text": "one two three"}).json()["token_ids"]
    told = stream(client, prompt="something else", input_ids=ids, max_length=1, output_attentions=True)
    assert told[0]["attention"]["context_length"] == len(ids)


def test_json_that_comes_as_plain_text_is_read_as_json(client):
    """As the prototype's page sends it."""
    as_json = client.post("/api/v1/tokenize", json={"text": "Hello world"}).json()
    body = json.dumps({"text": "Hello world", "add_special_tokens": False, "with_pieces": True})
    plain = client.post(
        "/api/v1/tokenize", content=body, headers={"content-type": "text/plain;charset=UTF-8"}
    )
    assert plain.json() == as_json
    code = client.post("/api/v1/tokenize", content='{"a": 1}', headers={"content-type": "text/plain"}).json()
    assert "".join(token["text"] for token in code["tokens"]) == '{"a": 1}'


def test_pieces_may_be_left_out(client):
    told = client.post("/api/v1/tokenize", json={"text": "Hello world", "with_pieces": False}).json()
    assert told["token_ids"]
    assert {token["text"] for token in told["tokens"]} == {None}


def test_a_stop_text_is_sent_and_ends_the_generation(client):
    """The prototype's page looks for it: </tool> ends its tool calls."""
    prompt = "<|turn|>user\n<tool>jq .</tool> and more<|end|>\n<|turn|>assistant\n"
    told = stream(client, prompt=prompt, max_length=50, stop_sequence=["</tool>"], request_id="r7")
    text = "".join(message["token"]["text"] for message in told[:-1])
    assert text == "You said: <tool>jq .</tool>"
    assert told[-1]["finish_reason"] == "stop"
    assert {message["request_id"] for message in told} == {"r7"}


def test_hidden_states_are_refused_in_the_stream(client):
    (told,) = stream(client, prompt="Hi", output_hidden_states=True, request_id="r8")
    assert (told["type"], told["request_id"]) == ("error", "r8")
    assert "hidden_states" in told["message"].lower()


def test_the_model_tells_what_the_prototypes_page_asks_for(client, service):
    told, info = client.get("/api/v1/model").json(), service.engine().info
    assert told["max_trained_context"] == info.trained_context
    assert (told["bos_token_id"], told["eos_token_id"]) == (info.special.get("bos"), info.special.get("eos"))
    assert {"embedding_size", "rope_freq_base", "rope_freq_scale", "eot_token_id"} <= told.keys()


def test_a_prompt_longer_than_the_context_is_refused(client, service):
    word = client.post("/api/v1/tokenize", json={"text": "cat"}).json()["token_ids"]
    answer = client.post(
        "/api/extra/generate/stream", json={"input_ids": word * service.engine().info.context}
    )
    assert answer.status_code == 422


def test_a_generation_is_stopped_by_its_name(client, address, middle):
    with httpx.Client(base_url=address, timeout=30) as other:
        asked = {"prompt": "long " * 200, "max_length": 2000, "request_id": "mine"}
        with other.stream("POST", "/api/extra/generate/stream", json=asked) as response:
            told = messages(response.iter_lines())
            next(told)
            middle.reach()
            taken = client.post("/api/extra/generate/stream", json={"prompt": "x", "request_id": "mine"})
            assert taken.status_code == 409
            assert client.post("/api/extra/abort", json={"request_id": "other"}).json() == {"success": False}
            assert client.post("/api/extra/abort", json={"request_id": "mine"}).json() == {"success": True}
            middle.go_on()
            assert list(told)[-1]["finish_reason"] == "abort"
    assert client.post("/api/extra/abort").json() == {"success": False}


def test_a_client_that_leaves_stops_its_generation_and_frees_its_place(client, address):
    for _ in range(6):  # more than there are places
        with httpx.Client(base_url=address, timeout=30) as other:
            asked = {"prompt": "long " * 200, "max_length": 2000}
            with other.stream("POST", "/api/extra/generate/stream", json=asked) as response:
                assert response.status_code == 200
                next(messages(response.iter_lines()))
        deadline = time.monotonic() + 10
        while (
            client.post("/api/extra/generate/stream", json={"prompt": "x", "max_length": 1}).status_code
            != 200
        ):
            assert time.monotonic() < deadline


def test_generations_at_the_same_time_do_not_mix(address):
    replies = {}

    def ask(name):
        with httpx.Client(base_url=address, timeout=30) as other:
            prompt = f"<|turn|>user\nmy name is {name}<|end|>\n<|turn|>assistant\n"
            told = stream(other, prompt=prompt, max_length=50)
            replies[name] = "".join(message["token"]["text"] for message in told[:-1])

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("Ada", "Grace", "Edsger")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {name: f"You said: my name is {name}" for name in ("Ada", "Grace", "Edsger")}


def test_nothing_of_it_is_remembered(client):
    before = client.get("/api/stats").json()
    stream(client, prompt="The password is swordfish.", max_length=3)
    after = client.get("/api/stats").json()
    assert after["chunks"] == before["chunks"]
    assert "swordfish" not in client.get("/api/search", params={"q": "swordfish"}).text
