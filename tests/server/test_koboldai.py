"""Clients of the KoboldAI API find what they need."""

import threading

from tests.server.test_prototype import stream

ECHO = "<|turn|>user\n{}<|end|>\n<|turn|>assistant\n"


def test_clients_see_which_server_it_is(client, service):
    assert client.get("/api/v1/info/version").json() == {"result": "1.2.5"}
    assert client.get("/api/extra/version").json()["result"] == "KoboldCpp"
    context = service.engine().info.context
    assert client.get("/api/v1/config/max_context_length").json() == {"value": context}
    assert client.get("/api/extra/true_max_context_length").json() == {"value": context}
    assert client.get("/api/v1/model").json()["result"] == service.engine().info.name


def test_tokens_are_counted(client):
    told = client.post("/api/extra/tokencount", json={"prompt": "Hello big world"}).json()
    ids = client.post("/api/v1/tokenize", json={"text": "Hello big world"}).json()["token_ids"]
    assert told == {"value": len(ids), "ids": ids}


def test_a_text_is_generated_whole(client):
    asked = {"prompt": ECHO.format("one two STOP three"), "max_length": 50, "typical": 1, "mirostat": 0}
    assert client.post("/api/v1/generate", json=asked).json()["results"] == [
        {"text": "You said: one two STOP three", "finish_reason": "stop"}
    ]
    ended = client.post("/api/v1/generate", json={**asked, "stop_sequence": ["STOP"]}).json()["results"][0]
    assert ended == {"text": "You said: one two STOP", "finish_reason": "stop"}
    trimmed = client.post("/api/v1/generate", json={**asked, "stop_sequence": ["STOP"], "trim_stop": True})
    assert trimmed.json()["results"][0]["text"] == "You said: one two "
    short = client.post("/api/v1/generate", json={**asked, "max_length": 2}).json()["results"][0]
    assert short["finish_reason"] == "length"


def test_a_memory_stands_before_the_prompt(client):
    asked = {"prompt": "here<|end|>\n<|turn|>assistant\n", "memory": "<|turn|>user\nIt is ", "max_length": 50}
    assert client.post("/api/v1/generate", json=asked).json()["results"][0]["text"] == "You said: It is here"


def test_a_text_streams_in_the_familys_own_words(client):
    told = stream(client, prompt=ECHO.format("one two"), max_length=50, genkey="KCPP7", quiet=True)
    assert "".join(one["token"] for one in told) == "You said: one two"
    assert [one["finish_reason"] for one in told][-2:] == [None, "eos"]
    check = client.post("/api/extra/generate/check", json={"genkey": "KCPP7"}).json()
    assert check["results"][0]["text"] == "You said: one two"
    trimmed = stream(
        client,
        prompt=ECHO.format("a b END c"),
        max_length=50,
        genkey="K",
        stop_sequence=["END"],
        trim_stop=True,
    )
    assert "".join(one["token"] for one in trimmed) == "You said: a b "


def test_a_text_can_be_looked_at_while_it_grows_and_stopped(client, address, middle):
    import httpx

    found = {}

    def generate():
        with httpx.Client(base_url=address, timeout=60) as other:
            asked = {"prompt": ECHO.format("long " * 200), "max_length": 2000, "genkey": "growing"}
            found["whole"] = other.post("/api/v1/generate", json=asked).json()["results"][0]["text"]

    thread = threading.Thread(target=generate)
    thread.start()
    middle.reach()
    so_far = client.post("/api/extra/generate/check", json={"genkey": "growing"}).json()["results"][0]["text"]
    assert so_far.startswith("You said")
    assert client.get("/api/extra/perf").json()["idle"] == 0
    assert client.post("/api/extra/abort", json={"genkey": "growing"}).json() == {"success": True}
    middle.go_on()
    thread.join()
    assert found["whole"].startswith(so_far)
    perf = client.get("/api/extra/perf").json()
    assert perf["total_gens"] >= 1
    assert perf["idle"] == 1
