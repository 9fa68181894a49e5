"""The model is changed while the server runs; whatever goes wrong, the old one goes on speaking."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import replace

import gguf
import httpx
import pytest

from halo_weave import app as assembling
from halo_weave.app import Options, build_weave_without_model
from halo_weave.core.retrieval_heads import NOT_CALIBRATED
from halo_weave.engines.templates.chat_template import CHATML
from halo_weave.models import download, hub, memory_estimate
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from halo_weave.state_file import remembered_model
from tests.engines.reciting import write_reciting
from tests.models.hub import FakeHub
from tests.models.hub import serving as serving_hub
from tests.models.test_hub import PATIENCE, hanging, status
from tests.server.talking import following, refused, say, shown, spoken

pytestmark = pytest.mark.slow

KEY = "correct-horse-battery"
CONTROLS = ["<|im_start|>", "<|im_end|>"]
CALM = {"temperature": 0.0, "max_new_tokens": 40, "timestamps": False}


def speaker(path, *reply):
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_reciting(path, CHATML, reply, after="assistant\n", controls=CONTROLS)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A folder with two models, and nothing else on this machine."""
    folder = tmp_path / "models"
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(assembling, "calibrate_engine", lambda *_, **__: NOT_CALIBRATED)  # it takes a while
    speaker(folder / "Anna-1B-Q8_0.gguf", "Anna", " speaks", ".")
    speaker(folder / "Boris-2B-Q8_0.gguf", "Hier", " ist", " Boris", ".")
    return folder


@contextmanager
def running(options, key=""):
    service = Service(lambda _: build_weave_without_model(options))
    service.begin().join()
    with serve_in_thread(service, key=key) as address:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with httpx.Client(base_url=address, timeout=60, headers=headers) as client:
            yield client


@pytest.fixture
def options(tmp_path, models):
    return Options(tmp_path / "data", model=str(models / "Anna-1B-Q8_0.gguf"), embedder="off", threads=1)


@pytest.fixture
def client(options):
    with running(options) as client:
        yield client


def new_window(client, name="Tower", **settings):
    return client.post("/api/windows", json={"name": name, "settings": {**CALM, **settings}}).json()["id"]


def choose(client, model):
    """What came of it."""
    answer = client.post("/api/model", json={"model": model})
    assert answer.status_code == 202, answer.text
    return settled(client)


def settled(client):
    end = time.monotonic() + 60
    while (change := client.get("/api/model").json()["change"]) and change["state"] == "loading":
        assert time.monotonic() < end, change
        time.sleep(0.02)
    calibrates = change and change["state"] in ("calibrating", "calibrated")
    return {**change, "state": "done"} if calibrates else change


def test_windows_go_on_with_another_model_and_back(client):
    window, other = new_window(client), new_window(client, "Other")
    assert spoken(say(client, window, "Who is there?")) == "Anna speaks."
    before = client.get(f"/api/windows/{window}/context").json()
    assert choose(client, "boris-2b-q8_0")["state"] == "done"
    model = client.get("/api/status").json()["model"]
    assert (model["state"], model["name"]) == ("ready", "Boris 2B")
    after = client.get(f"/api/windows/{window}/context").json()
    assert shown(after) == shown(before) == ["Who is there?", "Anna speaks."]
    assert spoken(say(client, window, "And now?")) == "Hier ist Boris."
    assert spoken(say(client, other, "And here?")) == "Hier ist Boris."
    assert choose(client, "Anna 1B")["state"] == "done"
    assert spoken(say(client, window, "Who again?")) == "Anna speaks."
    talk = ["Who is there?", "Anna speaks.", "And now?", "Hier ist Boris.", "Who again?", "Anna speaks."]
    assert shown(client.get(f"/api/windows/{window}/context").json()) == talk


def test_what_there_is_is_listed_with_what_it_needs_and_what_is_used(client, models):
    (models / "broken.gguf").write_bytes(b"GGUF")
    told = client.get("/api/models").json()
    by_name = {one["name"]: one for one in told["models"]}
    assert by_name["Anna-1B-Q8_0"]["in_use"]
    assert not by_name["Boris-2B-Q8_0"]["in_use"]
    assert by_name["Boris-2B-Q8_0"]["title"] == "Boris 2B"
    assert by_name["Boris-2B-Q8_0"]["fits"]
    assert by_name["Boris-2B-Q8_0"]["needs"] > by_name["Boris-2B-Q8_0"]["size"] > 0
    assert by_name["broken"]["problem"]
    assert by_name["smollm2-135m"]["where"] == "to pull"
    assert "often wrong" in by_name["smollm2-135m"]["note"]
    assert told["default"] in by_name
    assert told["memory"] > 0
    assert all(one.startswith("hf:") for one in told["recommended"])
    assert {name for name, one in by_name.items() if one["source"] == "hub" and one["fits"]} == set(
        told["recommended"]
    )


def test_a_reply_under_way_ends_with_what_was_shown_of_it(options, models, monkeypatch):
    pieces = [f" w{i}" for i in range(600)]
    speaker(models / "Long-1B-Q8_0.gguf", *pieces)
    with running(replace(options, model=str(models / "Long-1B-Q8_0.gguf"))) as client:
        window = new_window(client, max_new_tokens=600, max_context_tokens=0)
        answer = client.post(f"/api/windows/{window}/messages", json={"text": "Count."}).json()
        heard, asked, done = "", False, None
        with following(client, window, answer["last_event"]) as events:
            for event in events:
                heard += event.data["text"] if event.name == "token" else ""
                if len(heard) > 20 and not asked:
                    asked = client.post("/api/model", json={"model": "Boris-2B-Q8_0"}).status_code == 202
                if event.name in ("done", "failed"):
                    done = event
                    break
        assert done.name == "done"
        assert done.data["reason"] in ("abort", "eos", "length")
        assert settled(client)["state"] == "done"
        assert shown(client.get(f"/api/windows/{window}/context").json()) == ["Count.", heard]
        assert spoken(say(client, window, "And now?")) == "Hier ist Boris."


def test_every_open_page_is_told(client):
    first, second = new_window(client), new_window(client, "Second")
    heard = {first: [], second: []}
    ready = threading.Barrier(3)

    def listen(window):
        with httpx.Client(base_url=client.base_url, timeout=60) as own, following(own, window) as events:
            ready.wait(30)
            for event in events:
                heard[window].append((event.name, event.data))
                if event.name == "model" and event.data["state"] == "done":
                    return

    threads = [threading.Thread(target=listen, args=(window,)) for window in heard]
    for thread in threads:
        thread.start()
    ready.wait(30)
    assert choose(client, "Boris-2B-Q8_0")["state"] == "done"
    for thread in threads:
        thread.join(60)
    for told in heard.values():
        news = [data for name, data in told if name == "model"]
        assert news[-1]["message"] == "Boris 2B is ready."
        assert "changed" in [name for name, _ in told]


def goes_on(client, window):
    """The old model is in place and speaks."""
    assert client.get("/api/status").json()["model"]["name"] == "Anna 1B"
    assert spoken(say(client, window, "Still there?")) == "Anna speaks."


def of_unknown_architecture(path):
    writer = gguf.GGUFWriter(path, "nosucharchitecture")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_that_cannot_be_used_leaves_the_old_one_in_place(client, models, tmp_path, monkeypatch):
    window = new_window(client)
    assert "no model at" in refused(
        client.post("/api/model", json={"model": str(tmp_path / "none.gguf")}), 404, "unknown_model"
    )
    assert "halo-weave models" in refused(
        client.post("/api/model", json={"model": "gpt-9"}), 404, "unknown_model"
    )
    refused(client.post("/api/model", json={"model": "hf:nothing"}), 422, "bad_input")
    refused(client.post("/api/model", json={"model": "minilm"}), 422, "bad_input")
    refused(client.post("/api/model", json={"model": " "}), 422, "bad_input")
    (tmp_path / "text.gguf").write_bytes(b"once upon a time" * 100)
    told = choose(client, str(tmp_path / "text.gguf"))
    assert (told["state"], "not a GGUF" in told["message"]) == ("failed", True)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((models / "Boris-2B-Q8_0.gguf").read_bytes()[:60_000])
    assert choose(client, str(cut))["state"] == "failed"
    of_unknown_architecture(tmp_path / "new.gguf")
    told = choose(client, str(tmp_path / "new.gguf"))
    assert told["state"] == "failed"
    assert "new.gguf" in told["message"]
    goes_on(client, window)
    monkeypatch.setattr(memory_estimate, "_physical_memory", lambda: 10_000_000)
    told = choose(client, "Boris-2B-Q8_0")
    assert told["state"] == "failed"
    assert "Choose a smaller model" in told["message"]
    goes_on(client, window)


def test_a_model_that_is_deleted_while_it_runs_goes_on_until_another_is_chosen(client, models):
    window = new_window(client)
    say(client, window, "Hello?")
    (models / "Anna-1B-Q8_0.gguf").unlink()
    goes_on(client, window)
    assert "Anna-1B-Q8_0" not in {one["name"] for one in client.get("/api/models").json()["models"]}
    assert choose(client, "Boris-2B-Q8_0")["state"] == "done"
    refused(client.post("/api/model", json={"model": "Anna-1B-Q8_0"}), 404, "unknown_model")
    assert spoken(say(client, window, "And now?")) == "Hier ist Boris."


def test_an_ollama_blob_that_llama_cpp_refuses_is_a_sentence(client, tmp_path, models):
    root = tmp_path / "home/.ollama/models"
    blob = root / "blobs" / ("sha256-" + "1" * 64)
    manifest = root / "manifests/registry.ollama.ai/library/newest/4b"
    manifest.parent.mkdir(parents=True)
    blob.parent.mkdir(parents=True)
    of_unknown_architecture(blob)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "1" * 64}
    manifest.write_text(httpx.Response(200, json={"layers": [layer]}).text)
    window = new_window(client)
    told = choose(client, "newest:4b")
    assert told["state"] == "failed"
    assert "sha256-1111" in told["message"]
    goes_on(client, window)


HOSTILE = {
    "loops": "{% for a in range(9999999) %}{% for b in range(9999999) %}{% endfor %}{% endfor %}",
    "megabytes": "{% for m in messages %}{{ m.content * 9000000 }}{% endfor %}",
    "drops turns": "{{ messages[0].role }}",
    "raises": "{{ raise_exception('never') }}",
    "reads files": "{% include '/etc/passwd' %}",
    "breaks out": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_a_template_that_cannot_be_used_is_told_and_the_model_speaks(client, models, template):
    path = models / "Hostile-1B.gguf"
    write_reciting(path, template, ["Well", "."], after="assistant\n", controls=CONTROLS)
    window = new_window(client)
    say(client, window, "Who is there?")
    assert choose(client, str(path))["state"] == "done"
    model = client.get("/api/model").json()
    assert model["template"] == "chatml"
    assert model["template_note"].startswith("The model's chat template cannot be used, so ChatML is. ")
    assert spoken(say(client, window, "And now?")) == "Well."


# From the hub


@pytest.fixture
def tower(models, tmp_path, monkeypatch):
    """A hub on loopback that has a model."""
    path = speaker(tmp_path / "remote/Carla-1B-Q4_K_M.gguf", "Ciao", " da", " Carla", ".")
    monkeypatch.setattr(hub, "RetryPolicy", lambda: PATIENCE)
    with serving_hub(FakeHub({path.name: path.read_bytes()}, repository="owner/carla-GGUF")) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.api)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield made


REFERENCE = "hf:owner/carla-GGUF"


def html(handler):
    handler.answer(200, b"<html>Sign in", **{"Content-Type": "text/html"})
    return True


def cut(handler):
    """The connection ends in the middle of the file."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(next(iter(handler.hub.files.values())))))
    handler.end_headers()
    handler.close_connection = True
    return True


def left_behind(models):
    return [path for path in (models / "owner").rglob("*.gguf") if path.is_file()]


def test_a_model_of_the_hub_is_pulled_and_then_speaks(tower, client, models):
    window = new_window(client)
    assert choose(client, REFERENCE)["state"] == "done"
    assert client.get("/api/model").json()["name"] == "Carla 1B"
    assert spoken(say(client, window, "And you?")) == "Ciao da Carla."
    assert {one["name"] for one in client.get("/api/models").json()["models"] if one["in_use"]} == {
        f"{REFERENCE}:Q4_K_M"
    }


@pytest.mark.parametrize(
    ("where", "fault", "says"),
    [
        ("api", status(401), "private"),
        ("api", status(403), "accept its terms"),
        ("api", status(404), "no owner/carla-GGUF"),
        ("api", status(429, **{"Retry-After": "1000"}), "asks to wait"),
        ("api", status(500), "problem of its own"),
        ("api", html, "sign-in page"),
        ("api", hanging, "Check the network"),
        ("cdn", html, "sign-in page"),
        ("cdn", status(404), "not this file"),
        ("cdn", cut, "Check the network"),
    ],
)  # fmt: skip
def test_a_hub_that_fails_leaves_the_old_model_in_place(
    tower, client, models, monkeypatch, where, fault, says
):
    faults = deque([fault] * 20)
    setattr(tower, f"{where}_faults", faults)
    window = new_window(client)
    told = choose(client, REFERENCE)
    assert told["state"] == "failed"
    assert says in told["message"]
    assert left_behind(models) == []
    goes_on(client, window)
    faults.clear()
    monkeypatch.setattr(hub, "RetryPolicy", lambda: replace(PATIENCE, read=30))  # on a busy machine, too
    assert choose(client, REFERENCE)["state"] == "done"


def test_a_wrong_hash_and_a_full_disk_leave_nothing_half_in_place(tower, client, models, monkeypatch):
    window = new_window(client)
    name = "Carla-1B-Q4_K_M.gguf"
    tower.linked, tower.listed = False, {name: "0" * 64}
    told = choose(client, REFERENCE)
    assert told["state"] == "failed"
    assert "SHA-256" in told["message"]
    assert [path for path in models.rglob("*") if path.is_file() and "arla" in path.name] == []
    tower.linked, tower.listed = True, {}
    whole = download.PartFile.write

    def full(part, block):
        if part.length > 200_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(part, block)

    monkeypatch.setattr(download.PartFile, "write", full)
    told = choose(client, REFERENCE)
    assert told["state"] == "failed"
    assert "No space left" in told["message"]
    assert left_behind(models) == []
    goes_on(client, window)
    monkeypatch.setattr(download.PartFile, "write", whole)
    assert choose(client, REFERENCE)["state"] == "done"


def test_a_model_on_its_way_can_be_left_and_a_second_one_has_to_wait(tower, client, models):
    go_on = threading.Event()

    def slow(handler):
        go_on.wait(30)
        return False

    tower.cdn_faults = deque([slow])
    window = new_window(client)
    assert client.post("/api/model", json={"model": REFERENCE}).status_code == 202
    refused(client.post("/api/model", json={"model": "Boris-2B-Q8_0"}), 409, "window_busy")
    goes_on(client, window)
    assert client.post("/api/model/stop").json() == {"stopped": True}
    go_on.set()
    assert settled(client)["state"] == "stopped"
    assert client.post("/api/model/stop").json() == {"stopped": False}
    goes_on(client, window)
    assert left_behind(models) == []


# Who may ask for what


def test_with_a_key_no_file_can_be_probed(options, models, tmp_path):
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    with running(options, KEY) as client:
        assert client.get("/api/models").json()["any_path"] is False
        sentences = [
            refused(client.post("/api/model", json={"model": str(path)}), 404, "unknown_model").replace(str(path), "")
            for path in (tmp_path / "secret.gguf", tmp_path / "none.gguf", "/etc/passwd", "/root/.ssh/id")
        ]  # fmt: skip
        assert len(set(sentences)) == 1
        assert choose(client, str(models / "Boris-2B-Q8_0.gguf"))["state"] == "done"


# Before there is a model, and after a restart


def test_everything_but_speaking_works_until_the_model_is_there(options, tmp_path, monkeypatch):
    with running(options) as client:
        window = new_window(client)
        say(client, window, "My cat is called Mochi.")
    go_on = threading.Event()
    opened = assembling.open_engine

    def slow(*given, **more):
        given[1]("Downloading Anna", 1, 4)
        go_on.wait(60)
        return opened(*given, **more)

    monkeypatch.setattr(assembling, "open_engine", slow)
    service = Service(lambda _: build_weave_without_model(options))
    loading = service.begin()
    with serve_in_thread(service) as address, httpx.Client(base_url=address, timeout=60) as client:
        while client.get("/api/status").json()["model"]["progress"] is None:
            time.sleep(0.01)
        model = client.get("/api/status").json()["model"]
        assert (model["state"], model["message"], model["progress"]) == (
            "loading",
            "Downloading Anna…",
            0.25,
        )
        context = client.get(f"/api/windows/{window}/context").json()
        assert shown(context) == ["My cat is called Mochi.", "Anna speaks."]
        key = context["turns"][0]["chunks"][0]["key"]
        assert client.get("/api/search", params={"q": "Mochi"}).json()["hits"][0]["key"] == key
        for act in ("pin", "unpin", "prune", "resurrect"):
            assert client.post(f"/api/windows/{window}/chunks/{key}/{act}").status_code == 200
        assert client.get(f"/api/windows/{window}/recall-preview", params={"q": "a cat?"}).status_code == 200
        assert client.patch("/api/settings", json={"temperature": 0.5}).status_code == 200
        assert client.put("/api/notes", json={"content": {"a": 1}}).status_code == 200
        assert client.get("/api/export").status_code == 200
        second = new_window(client, "Meanwhile")
        refused(client.post("/api/v1/tokenize", json={"text": "Hello?"}), 503, "model_loading")
        answer = client.post(f"/api/windows/{second}/messages", json={"text": "Hello?"})
        assert refused(answer, 503, "model_loading") == "Downloading Anna…"
        go_on.set()
        loading.join()
        assert spoken(say(client, window, "And my cat?")) == "Anna speaks."


def test_a_missing_model_can_be_replaced_on_the_page(options, tmp_path):
    with running(replace(options, model=str(tmp_path / "gone.gguf"))) as client:
        model = client.get("/api/status").json()["model"]
        assert model["state"] == "missing"
        assert "gone.gguf" in model["message"]
        window = new_window(client)
        refused(client.post(f"/api/windows/{window}/messages", json={"text": "Hello?"}), 503, "model_missing")
        assert choose(client, "Boris-2B-Q8_0")["state"] == "done"
        assert spoken(say(client, window, "Hello?")) == "Hier ist Boris."


def test_other_programs_speak_with_the_model_in_use(options, tmp_path):
    def asked(client):
        messages = [{"role": "user", "content": "Who is there?"}]
        return client.post(
            "/v1/chat/completions", json={"model": "any", "messages": messages, "temperature": 0}
        )

    with running(replace(options, model=str(tmp_path / "gone.gguf"))) as client:
        assert asked(client).status_code == 503
        for name, reply in (("Anna-1B-Q8_0", "Anna speaks."), ("Boris-2B-Q8_0", "Hier ist Boris.")):
            assert choose(client, name)["state"] == "done"
            answer = asked(client)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == reply


def test_the_choice_survives_a_restart(options, models, monkeypatch):
    with running(options) as client:
        choose(client, "Boris-2B-Q8_0")
    chosen = remembered_model(options.data)
    assert chosen == str(models / "Boris-2B-Q8_0.gguf")
    later = replace(options, model=None, remembered=chosen)
    with running(later) as client:
        assert client.get("/api/model").json()["name"] == "Boris 2B"
    with running(replace(options, remembered=chosen)) as client:
        assert client.get("/api/model").json()["name"] == "Anna 1B", "the command line wins"
    (models / "Boris-2B-Q8_0.gguf").unlink()
    default = models / "Anna-1B-Q8_0.gguf"
    monkeypatch.setattr(
        "halo_weave.models.inventory.catalogue.ensure_default", lambda memory, cores, progress: (default, "")
    )
    with running(later) as client:
        assert client.get("/api/model").json()["name"] == "Anna 1B", "the default serves"


def test_a_failure_does_not_change_what_is_remembered(options, models, tmp_path):
    (tmp_path / "text.gguf").write_bytes(b"once upon a time" * 100)
    with running(options) as client:
        choose(client, "Boris-2B-Q8_0")
        before = remembered_model(options.data)
        choose(client, str(tmp_path / "text.gguf"))
    assert remembered_model(options.data) == before


def test_a_model_that_nobody_named_is_found_again_where_it_lies(options, models, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "Dora-1B.gguf"
    elsewhere.parent.mkdir()
    shutil.copy(models / "Boris-2B-Q8_0.gguf", elsewhere)
    with running(options) as client:
        assert choose(client, str(elsewhere))["state"] == "done"
    assert remembered_model(options.data) == str(elsewhere)
    with running(replace(options, model=None, remembered=str(elsewhere))) as client:
        assert client.get("/api/model").json()["name"] == "Dora 1B"
