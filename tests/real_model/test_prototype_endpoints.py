"""The prototype's endpoints on the real model."""

import base64
import json

import httpx
import numpy as np
import pytest

from halo_weave.app import Options, build_weave
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service

pytestmark = pytest.mark.model

CAT = "<|im_start|>user\nMy cat is called Mochi. What is my cat called?<|im_end|>\n<|im_start|>assistant\n"
DOG = "<|im_start|>user\nMy dog is called Rufus. What is my dog called?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory, model_file):
    options = Options(data=tmp_path_factory.mktemp("prototype"), model=model_file, embedder="off")
    service = Service(lambda progress: build_weave(options))
    service.begin().join()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=300) as client:
        yield client


def generate(client, prompt, **asked):
    lines = client.post(
        "/api/extra/generate/stream", json={"prompt": prompt, "max_length": 8, "temperature": 0, **asked}
    ).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def text_of(told):
    return "".join(message["token"]["text"] for message in told if message["type"] == "token")


def rows_of(attention):
    return np.frombuffer(base64.b64decode(attention["data"]), "<f4").reshape(attention["shape"])


@pytest.mark.model
def test_one_prompt_after_another_is_answered_for_itself(client):
    cat, dog, again = (generate(client, prompt) for prompt in (CAT, DOG, CAT))
    assert "Mochi" in text_of(cat)
    assert "Rufus" in text_of(dog)
    assert text_of(again) == text_of(cat)


@pytest.mark.model
def test_the_mean_of_all_rows_is_the_aggregated_one(client):
    every = rows_of(
        generate(client, CAT, output_attentions=True, attention_format="per_layer")[0]["attention"]
    )
    mean = rows_of(generate(client, CAT, output_attentions=True)[0]["attention"])
    told = client.get("/api/v1/model").json()
    ids = client.post("/api/v1/tokenize", json={"text": CAT}).json()["token_ids"]
    assert every.shape == (told["num_layers"], told["num_attention_heads"], len(ids))
    assert np.allclose(every.sum(axis=2), 1, atol=1e-3)
    assert np.allclose(every.mean(axis=(0, 1)), mean, atol=2e-3)


@pytest.mark.model
def test_special_tokens_are_those_that_the_model_begins_with(client):
    plain = client.post("/api/v1/tokenize", json={"text": "Hi"}).json()["token_ids"]
    special = client.post("/api/v1/tokenize", json={"text": "Hi", "add_special_tokens": True}).json()[
        "token_ids"
    ]
    assert special == plain, "texts of this model begin with nothing"
