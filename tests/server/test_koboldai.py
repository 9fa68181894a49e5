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
    assert [one["finish_reason"] for one in told][-2:] == [None, "stop"]
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


def test_marks_of_instruct_mode_become_turns_of_the_models_template(client):
    """As KoboldAI Lite sends them, which leaves the form of turns to the server."""
    said = "{{[SYSTEM]}}\nBe kind.\n{{[SYSTEM_END]}}{{[INPUT]}}\nHello.\n{{[OUTPUT]}}\nHi.\n{{[INPUT]}}\nName a tree.\n{{[OUTPUT]}}\n"
    asked = {"prompt": said, "max_length": 50, "genkey": "K1"}
    assert (
        client.post("/api/v1/generate", json=asked).json()["results"][0]["text"] == "You said: Name a tree."
    )
    told = stream(client, memory="A garden. ", **asked)
    assert "".join(one["token"] for one in told) == "You said: Name a tree."
    as_it_is = {**asked, "replace_instruct_placeholders": False}
    assert "{{[INPUT]}}" in client.post("/api/v1/generate", json=as_it_is).json()["results"][0]["text"]


def test_marks_in_odd_places_do_no_harm(client):
    for prompt in (
        "{{[OUTPUT]}}",
        "{{[INPUT]}}",
        "a{{[SYSTEM]}}",
        "{{[OUTPUT]}}x{{[OUTPUT]}}<|end|>",
        "{{[INPUT]}}{{[INPUT]}}b",
    ):
        assert client.post("/api/v1/generate", json={"prompt": prompt, "max_length": 4}).status_code == 200


def test_what_sillytavern_sends_is_taken(client, address):
    """The body of its text completion for KoboldCpp, and of its older KoboldAI connection."""
    names = [f"\nSpeaker {number}:" for number in range(40)]
    asked = {
        "prompt": ECHO.format("hello there"), "model": "m", "max_new_tokens": 20, "max_tokens": 20, "temperature": 1, "top_p": 1,
        "typical_p": 1, "min_p": 0.1, "repetition_penalty": 2.5, "rep_pen": 2.5, "repeat_penalty": 1, "frequency_penalty": 0, "top_k": 0,
        "min_tokens": 0, "add_bos_token": True, "smoothing_factor": 0, "dry_sequence_breakers": ["a"], "stop": names, "stopping_strings": names,
        "truncation_length": 8192, "ban_eos_token": False, "api_type": "koboldcpp", "api_server": address, "sampler_order": [6, 0, 1, 3, 4, 2, 5],
        "custom_token_bans": "", "banned_strings": [], "trim_stop": True, "guidance_scale": 1, "negative_prompt": "", "n_predict": 20, "seed": -1,
    }  # fmt: skip
    whole = client.post("/v1/completions", json=asked)
    assert whole.json()["choices"][0]["text"] == "You said: hello there"
    older = {
        "prompt": ECHO.format("hello there"), "use_story": False, "use_memory": False, "max_context_length": 8192, "max_length": 20,
        "rep_pen": 1.1, "rep_pen_range": 600, "rep_pen_slope": 0, "temperature": 1, "tfs": 1, "top_a": 0, "top_k": 0, "top_p": 0.95,
        "min_p": 0, "typical": 1, "sampler_order": [6, 0, 1], "singleline": False, "stop_sequence": names, "mirostat": 0,
    }  # fmt: skip
    assert client.post("/api/v1/generate", json=older).json()["results"][0]["text"] == "You said: hello there"
    told = stream(client, **older)
    assert "".join(one["token"] for one in told) == "You said: hello there"
